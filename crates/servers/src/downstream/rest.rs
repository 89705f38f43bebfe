//! A REST service as a server: its document or endpoints define the tools, and a call of a tool is an HTTP
//! request.
//!
//! The link is up as soon as the document is read; the service gets no request before the first call. A
//! changed file is read again. `nonet_rest` decides which operations become tools, and how params make a
//! request.

mod answer;
mod document;
mod paging;
mod send;

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use backon::{BackoffBuilder, ExponentialBuilder};
use futures::{FutureExt, future::BoxFuture};
use nonet_base::files::FileStamp;
use nonet_config::{OpenApi, RestSettings, ServerSettings};
use nonet_rest::{Operation, Service};
use nonet_text::results::CallResult;
use nonet_wire::{self as wire, Limits, reach::PrivateHosts, web};
use parking_lot::Mutex;
use reqwest::Url;
use rmcp::model::{ErrorCode, ErrorData};
use serde_json::{Map, Value, json};

use self::{
    answer::RestAnswer,
    send::{SendError, Sender, is_same_host},
};
use super::{
    CallControl, CallError, ConnectionContext, DocumentReport, Era, LogLevel, PersonAccess,
    credentials::Credentials,
    link::{Connector, Input, Link, LinkError, LinkRequest, RequestError},
    listing::MAX_ENTRIES,
};
use crate::{catalog::Listing, pins};

/// How often a document's file is checked.
const LOOK: Duration = Duration::from_secs(2);
/// The longest delay before the one retry, if the service asks for a delay.
const SHORT: Duration = Duration::from_secs(3);

/// One REST service.
#[derive(Clone)]
pub(super) struct RestServer {
    name: Arc<str>,
    settings: Arc<RestSettings>,
    credentials: Arc<Credentials>,
    limits: Limits,
    report: Arc<Mutex<Option<DocumentReport>>>,
}

impl RestServer {
    /// Returns the connector to a service. Reads nothing yet.
    pub(super) fn new(
        name: &Arc<str>,
        settings: Arc<RestSettings>,
        all: &ServerSettings,
        context: &ConnectionContext,
        person: Option<&PersonAccess>,
    ) -> Self {
        let credentials = Arc::new(Credentials::new(name, all, context, person));
        Self { name: name.clone(), settings, credentials, limits: all.limits, report: Arc::default() }
    }

    async fn connected(&self) -> Result<Arc<dyn Link>, LinkError> {
        let (described, stamp) = self.described().await?;
        Ok(Arc::new(RestLink {
            server: self.clone(),
            described: ArcSwap::from_pointee(described),
            seen: Mutex::new(stamp),
        }))
    }

    /// Reads the document, and builds the sender for the service that it describes.
    async fn described(&self) -> Result<(RestService, Option<FileStamp>), LinkError> {
        let settings = &self.settings;
        let (mut service, stamp) = match &settings.openapi {
            None => (Service::default(), None),
            Some(OpenApi::File(path)) => {
                let (service, stamp) = document::read_file(path, settings.operations.clone()).await?;
                (service, Some(stamp))
            }
            Some(OpenApi::Url(url)) => {
                let sender = self.sender()?;
                let base_url = settings.base_url.as_deref();
                let service = document::fetch(&sender, url, base_url, settings.operations.clone()).await;
                let service = service.map_err(|unanswered| self.lost(unanswered))?;
                (service, None)
            }
        };
        let base_url = settings.base_url.clone().or_else(|| service.base_url.clone());
        let mut by_hand = Service::by_hand(&settings.endpoints, base_url.as_deref());
        let home = self.home(&service, base_url.as_deref());
        if let (Some(home), true) = (&home, self.holds_hosts_of_document()) {
            let by_hand = by_hand.operations.values_mut().filter(|one| one.address() == base_url.as_deref());
            service.operations.values_mut().chain(by_hand).for_each(|one| self.hold_elsewhere(one, home));
        }
        // What the user wrote takes precedence.
        service.operations.extend(by_hand.operations);
        service.left_out.append(&mut by_hand.left_out);
        if settings.base_url.is_none() {
            let set = format!("set `base_url` in [servers.{}]", self.name);
            let homeless = service.operations.values().filter(|operation| operation.address().is_none());
            let homeless: Vec<String> = homeless.map(Operation::name).map(String::from).collect();
            if !homeless.is_empty() && homeless.len() == service.operations.len() {
                return Err(format!("its document names no address of the service: {set}").into());
            }
            for name in homeless {
                service.operations.remove(&name);
                service.left_out.push(format!("{name}: the document names no address for it; {set}"));
            }
        }
        for unmatched in &service.unmatched {
            tracing::warn!("servers.{}.operations: {unmatched}", self.name);
        }
        let sender = self.sender()?;
        *self.report.lock() = Some(DocumentReport {
            document: settings.openapi.as_ref().map(shown),
            operations: service.operations.len(),
            left_out: service.left_out.clone(),
            unmatched: service.unmatched.clone(),
        });
        Ok((RestService { service, home, sender }, stamp))
    }

    /// Returns the host that credentials go to: the host of `base_url`, of the document's address, or the
    /// only host that the user's own document names.
    fn home(&self, service: &Service, base_url: Option<&str>) -> Option<Url> {
        let of_document = match &self.settings.openapi {
            Some(OpenApi::Url(url)) if self.settings.base_url.is_none() => Some(url.as_str()),
            _ => None,
        };
        let home = of_document.or(base_url).or_else(|| only_host(service))?;
        Url::parse(home).ok()
    }

    /// Whether operations on a host that only a fetched document names wait for the user: where there are
    /// credentials, which such a document must not direct.
    fn holds_hosts_of_document(&self) -> bool {
        let settings = &self.settings;
        let is_fetched = matches!(settings.openapi, Some(OpenApi::Url(_))) && settings.base_url.is_none();
        is_fetched && (!settings.headers.is_empty() || settings.has_oauth)
    }

    /// Marks an operation that is not at home, so that it is held like a changed definition.
    fn hold_elsewhere(&self, operation: &mut Operation, home: &Url) {
        let Some(url) = operation.address().and_then(|address| Url::parse(address).ok()) else { return };
        if is_same_host(home, &url) {
            return;
        }
        let origin = url.origin().ascii_serialization();
        let definition = Arc::make_mut(&mut operation.definition);
        let Some(fields) = definition.as_object_mut() else { return };
        let described = fields.get("description").and_then(Value::as_str).unwrap_or_default();
        let described = format!(
            "{described}\n\nRequests go to {origin}, which only the document names, and without credentials. To send them there, set `base_url` in [servers.{}].",
            self.name
        );
        fields.insert("description".into(), described.into());
        let meta = fields.entry("_meta").or_insert_with(|| json!({}));
        if let Some(meta) = meta.as_object_mut() {
            meta.insert(pins::ELSEWHERE.into(), origin.into());
        }
    }

    /// Builds the sender.
    fn sender(&self) -> Result<Sender, LinkError> {
        let settings = &self.settings;
        let reach = PrivateHosts::of(
            settings.base_url.as_deref(),
            match &settings.openapi {
                Some(OpenApi::Url(url)) => Some(url),
                Some(OpenApi::File(_)) | None => None,
            },
            settings.private_addresses,
        );
        Sender::new(reach, &self.settings.headers, self.credentials.clone(), self.settings.has_oauth)
            .map_err(|error| LinkError::Failed(format!("no HTTP client: {error}")))
    }

    /// Returns why the document was not fetched.
    fn lost(&self, unanswered: SendError) -> LinkError {
        match unanswered {
            SendError::SignIn(needed) => LinkError::SignIn(needed),
            other => {
                LinkError::Failed(self.credentials.mask(&format!("its document cannot be read: {other}")))
            }
        }
    }
}

impl Connector for RestServer {
    fn connect(&self, _: Duration) -> BoxFuture<'_, Result<Arc<dyn Link>, LinkError>> {
        async { self.connected().await.map_err(|lost| self.credentials.mask_lost(lost)) }.boxed()
    }

    fn sign_in_changed(&self) -> BoxFuture<'_, ()> {
        self.credentials.changed().boxed()
    }

    fn account_replaced(&self) -> BoxFuture<'_, ()> {
        self.credentials.replaced().boxed()
    }

    fn mask(&self, text: &str) -> String {
        self.credentials.mask(text)
    }

    fn document(&self) -> Option<DocumentReport> {
        self.report.lock().clone()
    }
}

/// Returns the address of the operations, if all of them are on one host.
fn only_host(service: &Service) -> Option<&str> {
    let mut all = service.operations.values().filter_map(Operation::address);
    let first = all.next()?;
    let home = Url::parse(first).ok()?;
    all.all(|other| Url::parse(other).is_ok_and(|other| is_same_host(&home, &other))).then_some(first)
}

/// Returns the place of a document in a form that may be shown.
fn shown(document: &OpenApi) -> String {
    match document {
        OpenApi::File(path) => path.display().to_string(),
        OpenApi::Url(url) => web::place(url),
    }
}

/// A service and its sender.
struct RestService {
    service: Service,
    /// The host that credentials go to.
    home: Option<Url>,
    sender: Sender,
}

impl RestService {
    /// Returns whether credentials are sent to this address: an operation may be on another host.
    fn is_home(&self, url: &str) -> bool {
        let url = Url::parse(url).ok();
        self.home.as_ref().zip(url).is_some_and(|(home, url)| is_same_host(home, &url))
    }
}

/// A service whose document was read.
struct RestLink {
    server: RestServer,
    described: ArcSwap<RestService>,
    /// The state of the document's file when it was last read, if it is a file.
    seen: Mutex<Option<FileStamp>>,
}

impl RestLink {
    /// Returns the path of the document, if it is a file.
    fn file(&self) -> Option<&std::path::Path> {
        match &self.server.settings.openapi {
            Some(OpenApi::File(path)) => Some(path),
            _ => None,
        }
    }

    /// Reads the document again if its file has changed.
    async fn refreshed(&self) -> Result<(), LinkError> {
        let Some(path) = self.file() else { return Ok(()) };
        let stamp = FileStamp::of(path);
        if *self.seen.lock() == stamp {
            return Ok(());
        }
        // An unusable document is read again only once it has changed again.
        *self.seen.lock() = stamp;
        let (described, stamp) = self.server.described().await?;
        *self.seen.lock() = stamp;
        self.described.store(Arc::new(described));
        Ok(())
    }

    async fn listed(&self) -> Result<Listing, LinkError> {
        self.refreshed().await.map_err(|lost| self.server.credentials.mask_lost(lost))?;
        let described = self.described.load();
        let service = &described.service;
        let mut bytes = 0;
        let tools: Vec<Arc<Value>> = service
            .operations
            .values()
            .take(MAX_ENTRIES)
            .map(|operation| operation.definition.clone())
            .take_while(|definition| {
                bytes += wire::size(definition);
                bytes <= self.server.limits.list.bytes
            })
            .collect();
        if tools.len() < service.operations.len() {
            let (server, listed, all) = (&self.server.name, tools.len(), service.operations.len());
            tracing::warn!(%server, listed, all, "the list is longer than the limit and was cut; choose `operations`");
        }
        Ok(Listing { tools, about: service.about.clone(), ..Listing::default() })
    }

    async fn call(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        control: &CallControl,
    ) -> Result<Value, RequestError> {
        let described = self.described.load_full();
        let Some(operation) = described.service.operations.get(tool) else {
            let why = format!("the service no longer has the operation `{tool}`");
            return Err(RequestError::Call(CallError::NotSent(why)));
        };
        let params = |why| RequestError::Call(CallError::Params(why));
        let base_url = self.server.settings.base_url.as_deref();
        let request = operation.request(base_url, arguments).map_err(params)?;
        // The host does not depend on params.
        described.sender.reach.found(&request.url);
        let mut again = operation.method.is_idempotent();
        loop {
            let failed = match self.attempt(&described, operation, &request, arguments, control).await {
                Ok(result) => return Ok(result),
                Err(failed) => failed,
            };
            let wait = match &failed {
                RequestError::Call(CallError::Upstream { wait, .. }) => wait.unwrap_or_else(jittered),
                _ => return Err(failed),
            };
            if !std::mem::take(&mut again) || wait > SHORT {
                return Err(failed);
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// Sends the request once.
    async fn attempt(
        &self,
        described: &RestService,
        operation: &Operation,
        request: &nonet_rest::RestRequest,
        arguments: &Map<String, Value>,
        control: &CallControl,
    ) -> Result<Value, RequestError> {
        let is_home = described.is_home(&request.url);
        let reply = described.sender.send(request, is_home, &control.meta).await;
        let reply = reply.map_err(|unanswered| unanswered.of_call(&operation.method))?;
        let answer = RestAnswer {
            server: &self.server,
            described,
            operation,
            arguments,
            is_home,
            url: reply.url.clone(),
            status: reply.status,
            headers: reply.headers().clone(),
        };
        answer.read(reply).await
    }
}

/// Returns the answer to every request other than a tool call.
fn tools_only() -> CallError {
    CallError::Rpc(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "a REST service has tools only", None))
}

/// Returns a short delay before a retry, jittered so that retries do not coincide.
fn jittered() -> Duration {
    let waits = ExponentialBuilder::default().with_min_delay(Duration::from_millis(200)).with_jitter();
    waits.build().next().unwrap_or_default()
}

impl Link for RestLink {
    fn version(&self) -> String {
        match &self.server.settings.openapi {
            Some(_) => format!("OpenAPI {}", self.described.load().service.version),
            None => "REST".into(),
        }
    }

    fn era(&self) -> Option<Era> {
        None
    }

    fn list(&self) -> BoxFuture<'_, Result<Listing, LinkError>> {
        self.listed().boxed()
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        async {
            let Some(path) = self.file() else { return std::future::pending().await };
            while FileStamp::of(path) == *self.seen.lock() {
                tokio::time::sleep(LOOK).await;
            }
        }
        .boxed()
    }

    fn lost(&self) -> BoxFuture<'_, LinkError> {
        std::future::pending().boxed()
    }

    fn is_closed(&self) -> bool {
        false
    }

    fn request<'a>(
        &'a self,
        request: LinkRequest,
        _: Input,
        control: &'a CallControl,
    ) -> BoxFuture<'a, Result<CallResult, RequestError>> {
        async move {
            match request {
                LinkRequest::CallTool { tool, arguments, .. } => {
                    self.call(&tool, &arguments, control).await.map(CallResult::from)
                }
                LinkRequest::Other { .. } => Err(RequestError::Call(tools_only())),
            }
        }
        .boxed()
    }

    fn follows_resources(&self) -> bool {
        false
    }

    fn subscribe(&self, _: String) -> BoxFuture<'_, Result<(), CallError>> {
        async { Err(tools_only()) }.boxed()
    }

    fn unsubscribe(&self, _: String) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }

    fn set_log_level(&self, _: LogLevel) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }

    fn close(&self, reason: String) -> BoxFuture<'_, String> {
        async { reason }.boxed()
    }
}
