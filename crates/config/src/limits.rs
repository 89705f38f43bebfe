//! `[limits]`: how large messages may be, how much may wait for an unresponsive reader, and how many connections are allowed.

use std::time::Duration;

use nonet_wire::Limits;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{AddressRange, addresses, values::time};

/// Limits that keep one server or one client from taking everything from the others: `[limits]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LimitSettings {
    /// The longest request, notification, error and answer about the connection itself of a server, in bytes. Longer ones are
    /// not read.
    #[schemars(range(min = 65_536, max = 16_777_216))]
    pub server_message_bytes: usize,
    /// The longest page of a server's list, in bytes.
    #[schemars(range(min = 262_144, max = 67_108_864))]
    pub list_page_bytes: usize,
    /// The longest list of a server, all pages together, in bytes. The rest of a longer list is not shown.
    #[schemars(range(min = 262_144, max = 268_435_456))]
    pub list_bytes: usize,
    /// The longest result of a call, in bytes. A longer result is an error.
    #[schemars(range(min = 1_048_576, max = 268_435_456))]
    pub result_bytes: usize,
    /// The longest message of a client, in bytes. A longer request is answered with an error.
    #[schemars(range(min = 262_144, max = 67_108_864))]
    pub client_message_bytes: usize,
    /// How much of a server's error clients are shown, in bytes.
    #[schemars(range(min = 1_024, max = 1_048_576))]
    pub error_bytes: usize,
    /// How many bytes may wait for a client or server that does not read. Beyond them, such a client is not read from, and
    /// calls of such a server fail.
    #[schemars(range(min = 1_048_576, max = 268_435_456))]
    pub unread_bytes: usize,
    /// The most connections over HTTP that have shown a valid token.
    #[schemars(range(min = 8, max = 100_000))]
    pub connections: usize,
    /// The most such connections from one address. All clients of this machine have one address.
    #[schemars(range(min = 4, max = 100_000))]
    pub connections_per_address: usize,
    /// The most connections over HTTP that have not shown a valid token yet. Beyond them, the oldest one is closed, of the
    /// address that has the most.
    #[schemars(range(min = 4, max = 100_000))]
    pub connections_without_token: usize,
    /// How long a new connection over HTTP may send nothing.
    #[serde(with = "time")]
    #[schemars(schema_with = "time::schema")]
    pub first_byte_timeout: Duration,
    /// Addresses and ranges of proxies whose header `Forwarded` or `X-Forwarded-For` names the client. Its address then counts
    /// for `connections_per_address`, with each request in flight as one connection.
    #[schemars(schema_with = "addresses::schema")]
    pub trusted_proxies: Vec<AddressRange>,
    /// How long a client over HTTP may take to send the headers of its next request, also while its connection is idle.
    #[serde(with = "time")]
    #[schemars(schema_with = "time::schema")]
    pub header_timeout: Duration,
    /// How long a client over HTTP may take to send the body of a request.
    #[serde(with = "time")]
    #[schemars(schema_with = "time::schema")]
    pub body_timeout: Duration,
}

impl Default for LimitSettings {
    fn default() -> Self {
        let Limits { of_server, page, list, answer, of_client, error, unread } = Limits::default();
        Self {
            server_message_bytes: of_server.bytes,
            list_page_bytes: page.bytes,
            list_bytes: list.bytes,
            result_bytes: answer.bytes,
            client_message_bytes: of_client.bytes,
            error_bytes: error,
            unread_bytes: unread,
            connections: 768,
            connections_per_address: 512,
            connections_without_token: 128,
            first_byte_timeout: Duration::from_secs(10),
            trusted_proxies: Vec::new(),
            header_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(60),
        }
    }
}

impl LimitSettings {
    /// Returns the limits of messages.
    pub fn messages(&self) -> Limits {
        let messages = Limits::new(
            self.server_message_bytes,
            self.list_page_bytes,
            self.list_bytes,
            self.result_bytes,
            self.client_message_bytes,
        );
        Limits { error: self.error_bytes, unread: self.unread_bytes, ..messages }
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
        assert!(fault("server_message_bytes = 1_000_000_000").contains("limits.server_message_bytes"));
        assert!(fault("result_byte = 2_000_000").contains("`result_bytes`"));
        assert!(fault("header_timeout = 5").contains("limits.header_timeout"));
        assert!(fault("trusted_proxies = ['10.0.0.0/40']").contains("limits.trusted_proxies[0]"));
    }
}
