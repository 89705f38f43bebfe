//! The lists of a server, page by page, and the announcements of their changes.

use std::{collections::HashSet, sync::Arc, time::Duration};

use nonet_wire::{self as wire, Limits, SizeLimit};
use rmcp::{
    RoleClient,
    model::{
        ClientRequest, ErrorCode, ListPromptsRequest, ListResourceTemplatesRequest, ListResourcesRequest,
        ListToolsRequest, PaginatedRequestParams, ServerNotification, ServerPeerInfo, ServerResult,
        SubscriptionFilter,
    },
    service::{Peer, ServiceError, Subscription},
};
use serde_json::Value;
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

use super::{deepest, subscriptions::Subscriptions};
use crate::catalog::Listing;

/// The maximum numbers of pages and entries read from a list; the rest is not shown.
const MAX_PAGES: usize = 200;
pub(super) const MAX_ENTRIES: usize = 10_000;
/// The longest time for one page of a list, and for opening a change stream.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// The delay before reopening a change stream that ended, and before retrying a refused one.
const RELISTEN: Duration = Duration::from_secs(5);
const LISTEN_AGAIN: Duration = Duration::from_secs(60);

/// Makes the request for one page.
type PageRequest = dyn Fn(Option<PaginatedRequestParams>) -> ClientRequest + Sync;

/// Reads all pages of the tools, prompts, resources and resource templates. All pages of one list may take `time`.
pub(super) async fn list(
    peer: &Peer<RoleClient>,
    info: &ServerPeerInfo,
    server: &str,
    limits: &Limits,
    time: Duration,
) -> Result<Listing, String> {
    let tools = pages(peer, server, "tools", limits.list, |cursor| {
        let params = cursor.map(|cursor| PaginatedRequestParams::default().with_cursor(Some(cursor)));
        ClientRequest::ListToolsRequest(ListToolsRequest { params, ..ListToolsRequest::default() })
    });
    let tools = match within(time, Box::pin(tools)).await {
        // A server with only prompts may not know the method.
        Err(ListError::Rpc(code, _)) if code == ErrorCode::METHOD_NOT_FOUND => Vec::new(),
        other => other.map_err(|error| error.to_string())?,
    };
    // Any other list's failure is logged and costs only that list.
    let more = async |there: bool, field: &str, request: &PageRequest| {
        if !there {
            return Vec::new();
        }
        let page = |cursor: Option<String>| {
            request(cursor.map(|cursor| PaginatedRequestParams::default().with_cursor(Some(cursor))))
        };
        match within(time, Box::pin(pages(peer, server, field, limits.list, page))).await {
            Ok(listed) => listed,
            // Many servers with resources do not know the separate method for templates.
            Err(ListError::Rpc(code, _)) if code == ErrorCode::METHOD_NOT_FOUND => Vec::new(),
            Err(error) => {
                tracing::warn!(server, field, "the list could not be read: {error}");
                Vec::new()
            }
        }
    };
    let (has_prompts, has_resources) =
        (info.capabilities.prompts.is_some(), info.capabilities.resources.is_some());
    // Concurrently: a server that answers none of them is ready after one time limit.
    let (prompts, resources, templates) = futures::join!(
        more(has_prompts, "prompts", &|params| {
            ClientRequest::ListPromptsRequest(ListPromptsRequest { params, ..ListPromptsRequest::default() })
        }),
        more(has_resources, "resources", &|params| {
            let request = ListResourcesRequest { params, ..ListResourcesRequest::default() };
            ClientRequest::ListResourcesRequest(request)
        }),
        more(has_resources, "resourceTemplates", &|params| {
            let request = ListResourceTemplatesRequest { params, ..ListResourceTemplatesRequest::default() };
            ClientRequest::ListResourceTemplatesRequest(request)
        }),
    );
    let about = info.instructions.clone().or_else(|| info.server_info.as_ref()?.description.clone());
    let tools = tools.into_iter().map(Arc::new).collect();
    Ok(Listing {
        tools,
        prompts,
        resources,
        templates,
        about: about.unwrap_or_default(),
        ..Listing::default()
    })
}

#[derive(Debug, thiserror::Error)]
enum ListError {
    #[error("{1}")]
    Rpc(ErrorCode, String),
    #[error("{0}")]
    Other(String),
}

/// Limits the total time for a list's pages.
async fn within(
    time: Duration,
    pages: impl Future<Output = Result<Vec<Value>, ListError>>,
) -> Result<Vec<Value>, ListError> {
    let late = |_| {
        format!("not all pages arrived within {time:?}; if it is only slow to list, raise `start_timeout`")
    };
    timeout(time, pages).await.unwrap_or_else(|error| Err(ListError::Other(late(error))))
}

async fn pages(
    peer: &Peer<RoleClient>,
    server: &str,
    field: &str,
    limit: SizeLimit,
    request: impl Fn(Option<String>) -> ClientRequest,
) -> Result<Vec<Value>, ListError> {
    let mut all: Vec<Value> = Vec::new();
    let mut seen = HashSet::new();
    let mut cursor = None;
    let mut left = limit;
    for _ in 0..MAX_PAGES {
        let answer = timeout(PAGE_TIMEOUT, peer.send_request(request(cursor.take())))
            .await
            .map_err(|_| ListError::Other(format!("no answer within {PAGE_TIMEOUT:?}")))?;
        let page = match answer {
            Ok(ServerResult::CustomResult(page)) => page.0,
            Ok(_) => return Err(ListError::Other("the answer is not a list".into())),
            Err(ServiceError::McpError(error)) => {
                return Err(ListError::Rpc(error.code, error.message.into_owned()));
            }
            Err(error) => return Err(ListError::Other(deepest(&error))),
        };
        let key = field.to_string();
        let page = tokio::task::spawn_blocking(move || Page::of(page, &key, left)).await;
        let page = page.map_err(|_| ListError::Other("the answer could not be read".into()))?;
        let Some(Page { entries, next, left: rest, is_cut }) = page else {
            return Err(ListError::Other(format!("the answer has no `{field}`")));
        };
        all.extend(entries);
        left = rest;
        if is_cut {
            tracing::warn!(
                server,
                field,
                limit_bytes = limit.bytes,
                limit_values = limit.values,
                "the list is longer than the limit and was cut"
            );
            return Ok(all);
        }
        if all.len() >= MAX_ENTRIES {
            tracing::warn!(
                server,
                field,
                limit = MAX_ENTRIES,
                "the list is longer than the limit and was cut"
            );
            all.truncate(MAX_ENTRIES);
            return Ok(all);
        }
        match next {
            None => return Ok(all),
            Some(next) if seen.insert(next.clone()) => cursor = Some(next),
            Some(_) => {
                tracing::warn!(server, field, "the pages of the list form a cycle; the list ends there");
                return Ok(all);
            }
        }
    }
    tracing::warn!(server, field, limit = MAX_PAGES, "the list has more pages than the limit and was cut");
    Ok(all)
}

/// One page of a list.
struct Page {
    /// The entries within the limit.
    entries: Vec<Value>,
    next: Option<String>,
    /// The rest of the limit.
    left: SizeLimit,
    is_cut: bool,
}

impl Page {
    /// Splits a page into entries, which is slow for a long one. `None` if the page has no such list.
    fn of(mut page: Value, field: &str, mut left: SizeLimit) -> Option<Self> {
        let Some(Value::Array(mut entries)) = page.get_mut(field).map(Value::take) else { return None };
        entries.truncate(MAX_ENTRIES);
        let mut fitting = 0;
        for entry in &entries {
            let size = wire::measure(entry);
            let rest = (left.bytes.checked_sub(size.bytes), left.values.checked_sub(size.values));
            let (Some(bytes), Some(values)) = rest else { break };
            left = SizeLimit { bytes, values };
            fitting += 1;
        }
        let is_cut = fitting < entries.len();
        entries.truncate(fitting);
        let next = page.get("nextCursor").and_then(Value::as_str).filter(|next| !next.is_empty());
        Some(Self { entries, next: next.map(String::from), left, is_cut })
    }
}

/// The stream on which a server of the stateless era announces changes.
#[derive(Default)]
pub(super) enum ChangeStream {
    /// Not open yet.
    #[default]
    Wanted,
    Open(Box<Subscription>),
    /// Ended or refused; to be reopened at that time.
    Lost(Instant),
    /// The server announces nothing.
    Silent,
}

impl ChangeStream {
    /// Waits for the next announced change of a list; for ever if the server announces nothing. If a stream ends while the
    /// server lives (a proxy's idle limit), it is reopened, and that counts as a change, because one may have been missed.
    /// `relisten` requests a new stream for other resources. Dropping the future and calling again loses nothing.
    pub(super) async fn next(
        &mut self,
        peer: &Peer<RoleClient>,
        info: &ServerPeerInfo,
        subscriptions: &Subscriptions,
        relisten: &Notify,
    ) {
        loop {
            match self {
                Self::Wanted => *self = Self::open(peer, info, subscriptions.uris()).await,
                Self::Open(stream) => {
                    let news = tokio::select! {
                        // Changes already in the stream count before the stream is replaced.
                        biased;
                        news = stream.next() => news,
                        () = relisten.notified() => {
                            *self = Self::Wanted;
                            continue;
                        }
                    };
                    match news {
                        Ok(Some(ServerNotification::ResourceUpdatedNotification(update))) => {
                            subscriptions.updated(update.params.uri);
                        }
                        Ok(Some(_)) => return,
                        _ => *self = Self::Lost(Instant::now() + RELISTEN),
                    }
                }
                Self::Lost(until) => {
                    tokio::time::sleep_until(*until).await;
                    *self = Self::open(peer, info, subscriptions.uris()).await;
                    if matches!(self, Self::Open(_)) {
                        return;
                    }
                }
                Self::Silent => {
                    relisten.notified().await;
                    *self = Self::Wanted;
                }
            }
        }
    }

    /// Opens a stream for the lists that the server can announce, and for the subscribed resources.
    async fn open(peer: &Peer<RoleClient>, info: &ServerPeerInfo, uris: Vec<String>) -> Self {
        let capabilities = &info.capabilities;
        let announces = [
            capabilities.tools.as_ref().and_then(|tools| tools.list_changed),
            capabilities.prompts.as_ref().and_then(|prompts| prompts.list_changed),
            capabilities.resources.as_ref().and_then(|resources| resources.list_changed),
        ];
        if !announces.contains(&Some(true)) && uris.is_empty() {
            return Self::Silent;
        }
        let mut filter = SubscriptionFilter::builder()
            .tools_list_changed()
            .prompts_list_changed()
            .resources_list_changed()
            .build();
        filter.resource_subscriptions = (!uris.is_empty()).then_some(uris);
        match timeout(PAGE_TIMEOUT, peer.listen(filter)).await {
            Ok(Ok(stream)) => Self::Open(Box::new(stream)),
            Ok(Err(ServiceError::McpError(error))) if error.code == ErrorCode::METHOD_NOT_FOUND => {
                Self::Silent
            }
            refused => {
                let error = refused.map(|refused| refused.err().map(|error| deepest(&error)));
                tracing::debug!(?error, "no subscription to changes");
                Self::Lost(Instant::now() + LISTEN_AGAIN)
            }
        }
    }
}
