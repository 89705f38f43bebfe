//! What a server lists, page by page, and how it tells of changes.

use std::{collections::HashSet, sync::Arc, time::Duration};

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
use tokio::time::{Instant, timeout};

use super::{Era, deepest, follow::Followed, supervise::Link};
use crate::catalog::Listing;

/// How many pages of a list are read, and how many entries; what lies beyond is not shown.
const MAX_PAGES: usize = 200;
const MAX_ENTRIES: usize = 10_000;
/// How long one page of a list may take.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a subscription that ended is left before it is opened again, and one that was refused.
const RELISTEN: Duration = Duration::from_secs(5);
const LISTEN_AGAIN: Duration = Duration::from_secs(60);

/// Makes the request for one page.
type Request = dyn Fn(Option<PaginatedRequestParams>) -> ClientRequest + Sync;

/// All pages of the tools, and of what else there is.
pub(super) async fn list(
    peer: &Peer<RoleClient>,
    info: &ServerPeerInfo,
    server: &str,
) -> Result<Listing, String> {
    let tools = pages(peer, server, "tools", |cursor| {
        let params = cursor.map(|cursor| PaginatedRequestParams::default().with_cursor(Some(cursor)));
        ClientRequest::ListToolsRequest(ListToolsRequest { params, ..ListToolsRequest::default() })
    })
    .await;
    let tools = match tools {
        // A server of prompts alone need not know the method.
        Err(ListError::Rpc(code, _)) if code == ErrorCode::METHOD_NOT_FOUND => Vec::new(),
        other => other.map_err(|error| error.to_string())?,
    };
    // What else it has is worth a word in the log where it cannot be read, and no more.
    let other = async |there: bool, field: &str, request: &Request| {
        if !there {
            return Vec::new();
        }
        let page = |cursor: Option<String>| {
            request(cursor.map(|cursor| PaginatedRequestParams::default().with_cursor(Some(cursor))))
        };
        match pages(peer, server, field, page).await {
            Ok(listed) => listed,
            // Templates have a method of their own, which many servers of resources do not know.
            Err(ListError::Rpc(code, _)) if code == ErrorCode::METHOD_NOT_FOUND => Vec::new(),
            Err(error) => {
                tracing::warn!(server, field, "its list could not be read: {error}");
                Vec::new()
            }
        }
    };
    let (has_prompts, has_resources) =
        (info.capabilities.prompts.is_some(), info.capabilities.resources.is_some());
    let prompts = other(has_prompts, "prompts", &|params| {
        ClientRequest::ListPromptsRequest(ListPromptsRequest { params, ..ListPromptsRequest::default() })
    })
    .await;
    let resources = other(has_resources, "resources", &|params| {
        ClientRequest::ListResourcesRequest(ListResourcesRequest {
            params,
            ..ListResourcesRequest::default()
        })
    })
    .await;
    let templates = other(has_resources, "resourceTemplates", &|params| {
        let request = ListResourceTemplatesRequest { params, ..ListResourceTemplatesRequest::default() };
        ClientRequest::ListResourceTemplatesRequest(request)
    })
    .await;
    let about = info.instructions.clone().or_else(|| info.server_info.as_ref()?.description.clone());
    let tools = tools.into_iter().map(Arc::new).collect();
    Ok(Listing { tools, prompts, resources, templates, about: about.unwrap_or_default() })
}

#[derive(Debug, thiserror::Error)]
enum ListError {
    #[error("{1}")]
    Rpc(ErrorCode, String),
    #[error("{0}")]
    Other(String),
}

async fn pages(
    peer: &Peer<RoleClient>,
    server: &str,
    field: &str,
    request: impl Fn(Option<String>) -> ClientRequest,
) -> Result<Vec<Value>, ListError> {
    let mut all: Vec<Value> = Vec::new();
    let mut seen = HashSet::new();
    let mut cursor = None;
    for _ in 0..MAX_PAGES {
        let answer = timeout(PAGE_TIMEOUT, peer.send_request(request(cursor.take())))
            .await
            .map_err(|_| ListError::Other(format!("no answer within {PAGE_TIMEOUT:?}")))?;
        let mut page = match answer {
            Ok(ServerResult::CustomResult(page)) => page.0,
            Ok(_) => return Err(ListError::Other("an answer that is no list".into())),
            Err(ServiceError::McpError(error)) => {
                return Err(ListError::Rpc(error.code, error.message.into_owned()));
            }
            Err(error) => return Err(ListError::Other(deepest(&error))),
        };
        match page.get_mut(field).map(Value::take) {
            Some(Value::Array(entries)) => all.extend(entries),
            _ => return Err(ListError::Other(format!("an answer without `{field}`"))),
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
        match page.get("nextCursor").and_then(Value::as_str) {
            None | Some("") => return Ok(all),
            Some(next) if seen.insert(next.to_string()) => cursor = Some(next.to_string()),
            Some(_) => {
                tracing::warn!(server, field, "the pages of the list go in a circle; what was read counts");
                return Ok(all);
            }
        }
    }
    tracing::warn!(server, field, limit = MAX_PAGES, "the list has more pages than the limit and was cut");
    Ok(all)
}

/// The subscription to changes of a modern server, which tells of them only to those who listen.
#[derive(Default)]
pub(super) enum Subscribed {
    /// It is to be opened.
    #[default]
    Wanted,
    /// It is open.
    Open(Box<Subscription>),
    /// It ended, or could not be opened; it is opened again then.
    Lost(Instant),
    /// The server has nothing to tell.
    Silent,
}

impl Subscribed {
    /// Waits for the next change of a list that the server tells of; for ever where there is nothing to listen to. A stream
    /// that ends while the server lives (a proxy's idle limit) is opened again, and counts as a change, since one may have
    /// been missed. Nothing is lost where this is given up and begun again.
    pub(super) async fn changed(&mut self, peer: &Peer<RoleClient>, link: &Link, followed: &Followed) {
        if link.era == Era::Legacy {
            return std::future::pending().await;
        }
        loop {
            match self {
                Self::Wanted => *self = Self::open(peer, &link.info, followed.uris()).await,
                Self::Open(stream) => {
                    let news = tokio::select! {
                        // What the stream has told already counts before it is left for another.
                        biased;
                        news = stream.next() => news,
                        () = followed.changed() => {
                            *self = Self::Wanted;
                            continue;
                        }
                    };
                    match news {
                        Ok(Some(ServerNotification::ResourceUpdatedNotification(update))) => {
                            followed.tell(update.params.uri);
                        }
                        Ok(Some(_)) => return,
                        _ => *self = Self::Lost(Instant::now() + RELISTEN),
                    }
                }
                Self::Lost(until) => {
                    tokio::time::sleep_until(*until).await;
                    *self = Self::open(peer, &link.info, followed.uris()).await;
                    if matches!(self, Self::Open(_)) {
                        return;
                    }
                }
                Self::Silent => {
                    followed.changed().await;
                    *self = Self::Wanted;
                }
            }
        }
    }

    /// Listens to the lists that the server says it tells of, and to what is followed.
    async fn open(peer: &Peer<RoleClient>, info: &ServerPeerInfo, followed: Vec<String>) -> Self {
        let capabilities = &info.capabilities;
        let tells = [
            capabilities.tools.as_ref().and_then(|tools| tools.list_changed),
            capabilities.prompts.as_ref().and_then(|prompts| prompts.list_changed),
            capabilities.resources.as_ref().and_then(|resources| resources.list_changed),
        ];
        if !tells.contains(&Some(true)) && followed.is_empty() {
            return Self::Silent;
        }
        let mut filter = SubscriptionFilter::builder()
            .tools_list_changed()
            .prompts_list_changed()
            .resources_list_changed()
            .build();
        filter.resource_subscriptions = (!followed.is_empty()).then_some(followed);
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
