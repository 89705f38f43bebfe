//! The lists of a server, page by page, and the announcements of their changes.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use nonet_wire::{self as wire, Limits, SizeLimit};
use rmcp::model::{ErrorCode, ErrorData, ServerPeerInfo};
use serde_json::{Map, Value, json};
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, timeout},
};

use super::{
    channel::{Channel, Outgoing, RequestFault},
    deepest,
    pending::AnswerKind,
    subscriptions::Subscriptions,
};
use crate::catalog::Listing;

/// The maximum numbers of pages and entries read from a list; the rest is not shown.
const MAX_PAGES: usize = 200;
pub(super) const MAX_ENTRIES: usize = 10_000;
/// The longest time for one page of a list, and for opening a change stream.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// The extension of skills (SEP-2640).
const SKILLS_EXTENSION: &str = "io.modelcontextprotocol/skills";
/// The delay before reopening a change stream that ended, and before retrying a refused one.
const RELISTEN: Duration = Duration::from_secs(5);
const LISTEN_AGAIN: Duration = Duration::from_secs(60);

/// Reads all pages of the tools, prompts, resources and resource templates. All pages of one list may take
/// `time`.
pub(super) async fn list(
    channel: &Channel,
    info: &ServerPeerInfo,
    server: &str,
    limits: &Limits,
    time: Duration,
) -> Result<Listing, String> {
    let tools = pages(channel, server, ("tools/list", "tools"), limits.list);
    let mut tools = match within(time, Box::pin(tools)).await {
        // A server with only prompts may not know the method.
        Err(ListError::Rpc(error)) if error.code == ErrorCode::METHOD_NOT_FOUND => Vec::new(),
        other => other.map_err(|error| error.to_string())?,
    };
    if let Some(http) = channel.http() {
        http.note_mirrored(&mut tools);
    }
    // Any other list's failure is logged and costs only that list.
    let more = async |there: bool, method: &'static str, field: &'static str| {
        if !there {
            return Vec::new();
        }
        match within(time, Box::pin(pages(channel, server, (method, field), limits.list))).await {
            Ok(listed) => listed,
            // Many servers with resources do not know the separate method for templates.
            Err(ListError::Rpc(error)) if error.code == ErrorCode::METHOD_NOT_FOUND => Vec::new(),
            Err(error) => {
                tracing::warn!(server, field, "the list could not be read: {error}");
                Vec::new()
            }
        }
    };
    let (has_prompts, has_resources) =
        (info.capabilities.prompts.is_some(), info.capabilities.resources.is_some());
    // Concurrently: a server that answers none of them is ready after one time limit.
    let extensions = info.capabilities.extensions.as_ref();
    let has_skills = extensions.is_some_and(|extensions| extensions.contains_key(SKILLS_EXTENSION));
    let (prompts, resources, templates, skills) = futures::join!(
        more(has_prompts, "prompts/list", "prompts"),
        more(has_resources, "resources/list", "resources"),
        more(has_resources, "resources/templates/list", "resourceTemplates"),
        more(has_skills, "skills/list", "skills"),
    );
    let about = info.instructions.clone().or_else(|| info.server_info.as_ref()?.description.clone());
    let tools = tools.into_iter().map(Arc::new).collect();
    Ok(Listing {
        tools,
        prompts,
        resources,
        templates,
        skills,
        about: about.unwrap_or_default(),
        ..Listing::default()
    })
}

#[derive(Debug, thiserror::Error)]
enum ListError {
    #[error("{}", .0.message)]
    Rpc(ErrorData),
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

/// Reads all pages of one list.
async fn pages(
    channel: &Channel,
    server: &str,
    (method, field): (&'static str, &'static str),
    limit: SizeLimit,
) -> Result<Vec<Value>, ListError> {
    let mut all: Vec<Value> = Vec::new();
    let mut seen = HashSet::new();
    let mut cursor: Option<String> = None;
    let mut left = limit;
    for _ in 0..MAX_PAGES {
        let params = cursor.take().map(|cursor| ("cursor".to_owned(), cursor.into()));
        let request = Outgoing::own(method, Map::from_iter(params), AnswerKind::Page);
        let answer = timeout(PAGE_TIMEOUT, channel.request(request))
            .await
            .map_err(|_| ListError::Other(format!("no answer within {PAGE_TIMEOUT:?}")))?;
        let page = answer.map_err(|fault| match fault {
            RequestFault::Refused(error) => ListError::Rpc(error),
            RequestFault::NotSent(fault) => ListError::Other(deepest(&fault)),
            RequestFault::Lost => ListError::Other("the connection closed".into()),
        })?;
        let page = page.into_tree().await;
        let page = tokio::task::spawn_blocking(move || Page::of(page, field, left)).await;
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

/// The stream on which a server of the stateless era announces changes. Its notifications go the way of all
/// others.
#[derive(Default)]
pub(super) enum ChangeStream {
    /// Not open yet.
    #[default]
    Wanted,
    /// Until the request ends.
    Open(BoxFuture<'static, ()>),
    /// Ended or refused; to be reopened at that time.
    Lost(Instant),
    /// The server announces nothing.
    Silent,
}

impl ChangeStream {
    /// Keeps the stream open. Returns when a change may have been missed: a stream that ended while the
    /// server lives (a proxy's idle limit) has been reopened. Waits for ever if the server announces nothing.
    /// `relisten` requests a new stream for other resources. Dropping the future and calling again loses
    /// nothing.
    pub(super) async fn next(
        &mut self,
        channel: &Arc<Channel>,
        info: &ServerPeerInfo,
        subscriptions: &Subscriptions,
        relisten: &Notify,
    ) {
        loop {
            match self {
                Self::Wanted => *self = Self::open(channel, info, subscriptions.uris()).await,
                Self::Open(request) => {
                    *self = tokio::select! {
                        () = request => Self::Lost(Instant::now() + RELISTEN),
                        () = relisten.notified() => Self::Wanted,
                    };
                }
                Self::Lost(until) => {
                    tokio::time::sleep_until(*until).await;
                    *self = Self::open(channel, info, subscriptions.uris()).await;
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
    async fn open(channel: &Arc<Channel>, info: &ServerPeerInfo, uris: Vec<String>) -> Self {
        let capabilities = &info.capabilities;
        let announces = [
            capabilities.tools.as_ref().and_then(|tools| tools.list_changed),
            capabilities.prompts.as_ref().and_then(|prompts| prompts.list_changed),
            capabilities.resources.as_ref().and_then(|resources| resources.list_changed),
        ];
        if !announces.contains(&Some(true)) && uris.is_empty() {
            return Self::Silent;
        }
        let mut wanted =
            json!({ "toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": true });
        if !uris.is_empty() {
            wanted["resourceSubscriptions"] = json!(uris);
        }
        let params = Map::from_iter([("notifications".to_owned(), wanted)]);
        let (acknowledge, acknowledged) = oneshot::channel();
        let mut request = Outgoing::own("subscriptions/listen", params, AnswerKind::Short);
        request.acknowledged = Some(acknowledge);
        let channel = channel.clone();
        let mut request = async move { channel.request(request).await }.boxed();
        let refused = tokio::select! {
            biased;
            Ok(()) = acknowledged => return Self::Open(request.map(drop).boxed()),
            refused = &mut request => refused.err(),
            () = tokio::time::sleep(PAGE_TIMEOUT) => None,
        };
        match refused {
            Some(RequestFault::Refused(error)) if error.code == ErrorCode::METHOD_NOT_FOUND => Self::Silent,
            refused => {
                tracing::debug!(?refused, "no subscription to changes");
                Self::Lost(Instant::now() + LISTEN_AGAIN)
            }
        }
    }
}
