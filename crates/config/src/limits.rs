//! `[limits]`: how large results may be, how many connections are allowed, and how long a request may take to
//! arrive.

use std::time::Duration;

use nonet_wire::{Limits, SizeLimit};
use schemars::JsonSchema;
use serde::Deserialize;

use super::values::time;

/// Limits that keep one server or one client from taking everything from the others: `[limits]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LimitSettings {
    /// The longest result of a call, in bytes. A longer result is an error.
    #[schemars(range(min = 1_048_576, max = 268_435_456))]
    pub result_bytes: usize,
    /// The most connections over HTTP that have shown a valid token. Two thirds of them may come from one
    /// address; all clients of this machine have one address.
    #[schemars(range(min = 6, max = 100_000))]
    pub connections: usize,
    /// How long a client over HTTP may take to send the headers of its next request, also while its
    /// connection is idle, and again how long to send the body.
    #[serde(with = "time")]
    #[schemars(schema_with = "time::schema")]
    pub request_timeout: Duration,
}

impl Default for LimitSettings {
    fn default() -> Self {
        Self {
            result_bytes: Limits::default().answer.bytes,
            connections: 768,
            request_timeout: Duration::from_secs(60),
        }
    }
}

impl LimitSettings {
    /// Returns the limits of messages.
    pub fn messages(&self) -> Limits {
        Limits { answer: SizeLimit::of_answer(self.result_bytes), ..Limits::default() }
    }

    /// The most connections from one address.
    pub fn connections_per_address(&self) -> usize {
        self.connections * 2 / 3
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{ValueSources, parse};
    use nonet_text::name::ServerName;
    use nonet_wire::Limits;

    #[test]
    fn limits_hold_for_every_server_and_have_bounds() {
        let text = "[limits]\nresult_bytes = 2_000_000\n[servers.a]\ncommand = 'a'\n";
        let config = parse(text, Path::new("servers.toml"), ValueSources::NONE).expect("usable").config;
        assert_eq!(config.limits.messages().answer.bytes, 2_000_000);
        let server = &config.servers[&ServerName::new("a").expect("a name")];
        assert_eq!(server.limits, config.limits.messages());
        assert_eq!(server.limits.page, Limits::default().page);
        let fault = |key: &str| {
            let text = format!("[limits]\n{key}\n");
            let faults =
                parse(&text, Path::new("servers.toml"), ValueSources::NONE).expect_err("it is fatal");
            faults.to_string()
        };
        assert!(fault("result_bytes = 1").contains("limits.result_bytes"));
        assert!(fault("result_bytes = 1_000_000_000").contains("limits.result_bytes"));
        assert!(fault("result_byte = 2_000_000").contains("`result_bytes`"));
        assert!(fault("request_timeout = 5").contains("limits.request_timeout"));
        assert!(fault("[gateway]\ntrusted_proxies = ['10.0.0.0/40']").contains("gateway.trusted_proxies[0]"));
    }
}
