//! Spans of calls, requests and searches for OpenTelemetry, if the feature `otel` is built in and
//! `OTEL_EXPORTER_OTLP_ENDPOINT` names a collector. Otherwise everything here is empty and costs nothing.
//!
//! Names follow the semantic conventions for MCP where there are any, and are `nonet.*` otherwise. A span
//! contains names, sizes and codes, never params, results or servers' texts.
//!
//! Spans are `tracing` spans that are never entered, so other log events do not get into them, nor the spans
//! into the log.

#[cfg(feature = "otel")]
mod logs;
#[cfg(not(feature = "otel"))]
mod off;
#[cfg(feature = "otel")]
mod otel;

#[cfg(feature = "otel")]
pub use logs::AuditExport;
#[cfg(not(feature = "otel"))]
pub use off::{AuditExport, Parent, Span};
#[cfg(feature = "otel")]
pub use otel::{Export, Parent, Span, is_ours};

/// The variables that name a collector; the first is for traces only.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

/// Returns whether traces are wanted: a collector is named and nothing disables them. `variable` looks up an
/// environment variable.
pub fn wanted(variable: impl Fn(&str) -> Option<String>) -> bool {
    wanted_at(&ENDPOINTS, "OTEL_TRACES_EXPORTER", variable)
}

/// Returns whether one of these variables names a collector, and `exporter` does not disable it.
fn wanted_at(endpoints: &[&str], exporter: &str, variable: impl Fn(&str) -> Option<String>) -> bool {
    let says =
        |name: &str, value: &str| variable(name).is_some_and(|set| set.trim().eq_ignore_ascii_case(value));
    endpoints.iter().any(|name| variable(name).is_some_and(|set| !set.trim().is_empty()))
        && !says("OTEL_SDK_DISABLED", "true")
        && !says(exporter, "none")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_wanted_where_a_collector_is_named() {
        let check = |set: &[(&str, &str)], expected| {
            let find =
                |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_string());
            assert_eq!(wanted(find), expected, "{set:?}");
        };
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
        check(&[], false);
        check(&[("OTEL_SERVICE_NAME", "tools")], false);
        check(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")], false);
        check(&[endpoint], true);
        check(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1/traces")], true);
        check(&[endpoint, ("OTEL_SDK_DISABLED", "TRUE")], false);
        check(&[endpoint, ("OTEL_TRACES_EXPORTER", "none")], false);
        check(&[endpoint, ("OTEL_TRACES_EXPORTER", "otlp")], true);
    }
}
