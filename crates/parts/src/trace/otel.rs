//! OpenTelemetry spans, and their export to the collector.
//!
//! Ended spans wait in a bounded queue for a separate thread, which sends them with its own client. A
//! collector that does not answer costs spans and one line in the log, never a call.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use nonet_base::text::clip;
use opentelemetry::{
    Context, KeyValue,
    propagation::{Extractor, Injector, TextMapPropagator},
    trace::{TraceContextExt, TracerProvider},
};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    propagation::TraceContextPropagator,
    trace::{SdkTracerProvider, SpanData, SpanExporter},
};
use serde_json::{Map, Value};
use tracing::{Metadata, Subscriber, field::Empty};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::{Layer, registry::LookupSpan};

use super::{ENDPOINTS, wanted};
use crate::metrics::CallRecord;

/// The variables that choose a protocol.
const PROTOCOLS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
/// How long unsent spans may delay the end of the process.
pub(super) const FLUSH_LIMIT: Duration = Duration::from_secs(2);
/// The longest name accepted from a client, in characters.
const MAX_NAME: usize = 200;

/// Whether spans are exported.
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// Returns whether a span or an event belongs to this room.
pub fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && metadata.target() == module_path!()
}

/// Exports spans to a collector. Dropping it sends the waiting spans, within two seconds.
#[derive(Debug)]
pub struct Export(SdkTracerProvider);

impl Export {
    /// Starts the export, if the environment names a collector.
    pub fn start() -> anyhow::Result<Option<Self>> {
        if !wanted(|name| std::env::var(name).ok()) {
            return Ok(None);
        }
        ensure_protocol(&PROTOCOLS)?;
        // Fails only if another provider was installed first, which works as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .build()
            .map_err(|error| anyhow::anyhow!(masked(error.to_string())))?;
        let exporter = LoggedExporter { exporter, failing: AtomicBool::new(false) };
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource()).build();
        ACTIVE.store(true, Ordering::Relaxed);
        Ok(Some(Self(provider)))
    }

    /// Returns the layer that takes spans out of `tracing`; to be used only with [`is_ours`].
    pub fn layer<S>(&self) -> impl Layer<S> + Send + Sync + 'static
    where
        S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer("nonet"))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_context_activation(false)
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        ACTIVE.store(false, Ordering::Relaxed);
        // Spans that were not delivered are in the log already, or their collector is silent.
        if self.0.shutdown_with_timeout(FLUSH_LIMIT).is_err() {
            tracing::debug!("the last traces were not sent");
        }
    }
}

/// Rejects a protocol that Nonet does not support.
pub(super) fn ensure_protocol(names: &[&str]) -> anyhow::Result<()> {
    for name in names {
        let protocol = std::env::var(name).unwrap_or_default();
        anyhow::ensure!(
            ["", "http/protobuf"].contains(&protocol.trim()),
            "{name} is `{protocol}`, but Nonet supports only http/protobuf"
        );
    }
    Ok(())
}

/// Returns a fault without the endpoints in it, which may contain passwords.
pub(super) fn masked(fault: String) -> String {
    let endpoints = ENDPOINTS
        .iter()
        .chain(&["OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"])
        .filter_map(|name| std::env::var(name).ok());
    endpoints
        .filter(|endpoint| !endpoint.is_empty())
        .fold(fault, |fault, endpoint| fault.replace(&endpoint, "***"))
}

/// Returns the sender: `nonet`, unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` says otherwise.
pub(super) fn resource() -> Resource {
    let named = std::env::var("OTEL_SERVICE_NAME").is_ok_and(|name| !name.is_empty())
        || std::env::var("OTEL_RESOURCE_ATTRIBUTES").is_ok_and(|all| all.contains("service.name="));
    let resource =
        Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    if named { resource.build() } else { resource.with_service_name("nonet").build() }
}

/// An exporter that logs its first failure, and its recovery.
#[derive(Debug)]
struct LoggedExporter {
    exporter: opentelemetry_otlp::SpanExporter,
    failing: AtomicBool,
}

impl SpanExporter for LoggedExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let sent = self.exporter.export(batch).await;
        match (&sent, self.failing.swap(sent.is_err(), Ordering::Relaxed)) {
            (Err(error), false) => tracing::warn!(%error, "traces do not reach the collector"),
            (Ok(()), true) => tracing::info!("traces reach the collector again"),
            _ => {}
        }
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// The parent of spans.
#[derive(Clone, Debug, Default)]
pub struct Parent(Context);

impl Parent {
    /// Returns the client's span, from its request's `_meta`.
    pub fn of(meta: &Map<String, Value>) -> Self {
        if !ACTIVE.load(Ordering::Relaxed) {
            return Self::default();
        }
        Self(TraceContextPropagator::new().extract_with_context(&Context::new(), &MetaReader(meta)))
    }

    /// Returns whether it is a span of this process.
    fn is_own(&self) -> bool {
        let span = self.0.span();
        span.span_context().is_valid() && !span.span_context().is_remote()
    }
}

/// A span that runs until it is dropped.
#[derive(Debug)]
pub struct Span(tracing::Span);

impl Span {
    /// Starts the span of a client's call, with the client's name and, if any, the number of its session.
    pub fn call(parent: &Parent, client: &str, session: Option<u64>) -> Self {
        let span = Self::new(parent, if parent.is_own() { "internal" } else { "server" });
        if !span.0.is_disabled() {
            span.set("nonet.client", clip(client, MAX_NAME));
            if let Some(session) = session {
                span.set("mcp.session.id", session.to_string());
            }
        }
        span
    }

    /// Starts the span of the request to a server that a call causes.
    pub fn request(call: &Span, server: &str, tool: &str) -> Self {
        if call.0.is_disabled() {
            return Self(tracing::Span::none());
        }
        let span = Self::new(&call.parent(), "client");
        span.of_tool(tool);
        span.set("nonet.server", server.to_string());
        span
    }

    fn new(parent: &Parent, kind: &'static str) -> Self {
        if !ACTIVE.load(Ordering::Relaxed) {
            return Self(tracing::Span::none());
        }
        let span = tracing::info_span!(
            parent: None,
            "tools/call",
            otel.kind = kind,
            otel.status_code = Empty,
            mcp.method.name = "tools/call",
            gen_ai.operation.name = "execute_tool",
        );
        // Fails only if no layer takes spans, and then there is nothing to attach.
        let _ = span.set_parent(parent.0.clone());
        Self(span)
    }

    /// Returns this span as a parent.
    pub fn parent(&self) -> Parent {
        if self.0.is_disabled() { Parent::default() } else { Parent(self.0.context()) }
    }

    /// Names this span in `_meta` as the parent of what follows.
    pub fn pass_on(&self, meta: &mut Map<String, Value>) {
        if !self.0.is_disabled() {
            TraceContextPropagator::new().inject_context(&self.0.context(), &mut MetaWriter(meta));
        }
    }

    /// Records which tool is called; the span is named after it.
    pub fn of_tool(&self, name: &str) {
        if !self.0.is_disabled() {
            // Recording `otel.name` has no effect once the span has started.
            self.0.context().span().update_name(format!("tools/call {name}"));
            self.set("gen_ai.tool.name", name.to_string());
        }
    }

    /// Records a finished call of the tool with this full name.
    pub fn called(&self, tool: &str, call: &CallRecord<'_>) {
        if self.0.is_disabled() {
            return;
        }
        self.of_tool(tool);
        self.set("nonet.server", call.server.to_string());
        self.set("nonet.bytes_in", signed(call.bytes_in));
        self.set("nonet.bytes_out", signed(call.bytes_out));
        self.ended(call.outcome);
    }

    /// Records a call that was refused before a tool was found. `name` is the client's own text.
    pub fn refused(&self, name: &str, outcome: &'static str) {
        if self.0.is_disabled() {
            return;
        }
        // Not in the span's name, which should have few distinct values.
        self.set("gen_ai.tool.name", clip(name, MAX_NAME));
        self.ended(outcome);
    }

    /// Records the results of a search.
    pub fn found(&self, shown: usize, total: usize, confidence: &'static str) {
        self.set("nonet.search.shown", signed(shown));
        self.set("nonet.search.total", signed(total));
        self.set("nonet.search.confidence", confidence);
        self.ended("ok");
    }

    /// Records the outcome: `ok`, `tool_error`, or the code of a fault.
    pub fn ended(&self, outcome: &'static str) {
        self.set("nonet.outcome", outcome);
        if outcome != "ok" {
            self.set("error.type", outcome);
            self.0.record("otel.status_code", "ERROR");
        }
    }

    fn set(&self, key: &'static str, value: impl Into<opentelemetry::Value>) {
        self.0.set_attribute(key, value);
    }
}

fn signed(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// Reads from `_meta`.
struct MetaReader<'a>(&'a Map<String, Value>);

impl Extractor for MetaReader<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.as_str()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}

/// Writes to `_meta`, and removes empty values.
struct MetaWriter<'a>(&'a mut Map<String, Value>);

impl Injector for MetaWriter<'_> {
    fn set(&mut self, key: &str, value: String) {
        if value.is_empty() {
            self.0.remove(key);
        } else {
            self.0.insert(key.into(), Value::String(value));
        }
    }
}
