//! Exports lines of the audit log to the collector, as OpenTelemetry log records.
//!
//! They wait in a bounded queue, as spans do. A copy off this machine also records what the chain in the
//! files was.

use std::sync::atomic::{AtomicBool, Ordering};

use opentelemetry::logs::{AnyValue, LogRecord, Logger, LoggerProvider, Severity};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    logs::{LogBatch, LogExporter, SdkLogger, SdkLoggerProvider},
};
use serde_json::Value;

use super::otel::{FLUSH_LIMIT, masked, resource};

/// The variables that name a collector of logs; the first is for logs only.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
/// The variables that choose a protocol.
const PROTOCOLS: [&str; 2] = ["OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];

/// Exports audit lines to a collector. Dropping it sends the waiting lines, within two seconds.
#[derive(Debug)]
pub struct AuditExport {
    provider: SdkLoggerProvider,
    logger: SdkLogger,
}

impl AuditExport {
    /// Starts the export, if the environment names a collector. Not to be called within a runtime, because
    /// the sending client blocks.
    pub fn start() -> Option<Self> {
        if !super::wanted_at(&ENDPOINTS, "OTEL_LOGS_EXPORTER", |name| std::env::var(name).ok()) {
            return None;
        }
        Self::open().inspect_err(|error| tracing::warn!("no audit lines are sent: {error:#}")).ok()
    }

    fn open() -> anyhow::Result<Self> {
        super::otel::ensure_protocol(&PROTOCOLS)?;
        // Fails only if another provider was installed first, which works as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let exporter = opentelemetry_otlp::LogExporter::builder()
            .with_http()
            .build()
            .map_err(|error| anyhow::anyhow!(masked(error.to_string())))?;
        let exporter = LoggedExporter { exporter, failing: AtomicBool::new(false) };
        let provider =
            SdkLoggerProvider::builder().with_batch_exporter(exporter).with_resource(resource()).build();
        let logger = provider.logger("nonet.audit");
        Ok(Self { provider, logger })
    }

    /// Sends a line: the line is the body, and the attributes are what collectors filter by.
    pub fn emit(&self, line: &str) {
        let mut record = self.logger.create_log_record();
        record.set_event_name("nonet.audit");
        record.set_severity_number(Severity::Info);
        record.set_severity_text("INFO");
        record.set_body(AnyValue::from(line.to_owned()));
        let parsed: Value = serde_json::from_str(line).unwrap_or_default();
        let at = parsed["at"].as_str().and_then(|at| at.parse::<jiff::Timestamp>().ok());
        if let Some(at) = at {
            record.set_timestamp(at.into());
        }
        let texts = [
            ("nonet.audit.event", "event"),
            ("nonet.audit.gateway", "gateway"),
            ("nonet.audit.hash", "hash"),
            ("nonet.client", "client"),
            ("gen_ai.tool.name", "tool"),
            ("nonet.outcome", "outcome"),
        ];
        for (attribute, key) in texts {
            if let Some(text) = parsed[key].as_str() {
                record.add_attribute(attribute, AnyValue::from(text.to_owned()));
            }
        }
        if let Some(seq) = parsed["seq"].as_i64() {
            record.add_attribute("nonet.audit.seq", AnyValue::from(seq));
        }
        self.logger.emit(record);
    }
}

impl Drop for AuditExport {
    fn drop(&mut self) {
        if self.provider.shutdown_with_timeout(FLUSH_LIMIT).is_err() {
            tracing::debug!("the last audit lines were not sent");
        }
    }
}

/// An exporter that logs its first failure, and its recovery.
#[derive(Debug)]
struct LoggedExporter {
    exporter: opentelemetry_otlp::LogExporter,
    failing: AtomicBool,
}

impl LogExporter for LoggedExporter {
    async fn export(&self, batch: LogBatch<'_>) -> OTelSdkResult {
        let sent = self.exporter.export(batch).await;
        match (&sent, self.failing.swap(sent.is_err(), Ordering::Relaxed)) {
            (Err(error), false) => tracing::warn!(%error, "audit lines do not reach the collector"),
            (Ok(()), true) => tracing::info!("audit lines reach the collector again"),
            _ => {}
        }
        sent
    }

    fn shutdown_with_timeout(&self, timeout: std::time::Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
