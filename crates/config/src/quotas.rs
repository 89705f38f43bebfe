//! `[quotas]` and a profile's `quotas`: what one token, or one session without a token, may use at the same
//! time.

use schemars::JsonSchema;
use serde::Deserialize;

use super::Config;

/// How much one client may have at the same time: each bearer token, and each session without one. New work
/// beyond it is refused; what has begun goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct QuotaSettings {
    /// The most calls in flight, and the most background tasks; a call in flight that becomes a task is never
    /// refused. Default: 64, in a profile as in `[quotas]`.
    #[schemars(range(min = 1, max = 100_000), example = 8)]
    pub calls: Option<usize>,
    /// The most open sessions over HTTP of one token, or of all clients without a token. Default: 1,000, in a
    /// profile as in `[quotas]`.
    #[schemars(range(min = 1, max = 100_000), example = 100)]
    pub sessions: Option<usize>,
}

/// What one token or session may use at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// The most calls in flight.
    pub calls: usize,
    /// The most background tasks.
    pub jobs: usize,
    /// The most bytes of kept results; the oldest of the same client go first.
    pub kept_bytes: u64,
    /// The most open questions in the chat; the oldest of the same client goes first.
    pub questions: usize,
    /// The most calls that wait for an answer of the client while no request of it is open.
    pub parked: usize,
    /// The most open sessions over HTTP.
    pub sessions: usize,
}

impl Default for Quotas {
    fn default() -> Self {
        Self { calls: 64, jobs: 64, kept_bytes: 64_000_000, questions: 50, parked: 50, sessions: 1_000 }
    }
}

impl Config {
    /// Returns the quotas of one token or session under a profile.
    pub fn quotas(&self, profile: Option<&str>) -> Quotas {
        let default = Quotas::default();
        let own = profile.and_then(|name| self.profiles.get(name)).map(|profile| profile.quotas);
        let own = own.unwrap_or_default();
        let calls = own.calls.or(self.quotas.calls).unwrap_or(default.calls);
        Quotas {
            calls,
            jobs: calls,
            kept_bytes: self.gateway.keep_results_bytes / 4,
            sessions: own.sessions.or(self.quotas.sessions).unwrap_or(default.sessions),
            ..default
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{self as config, LoadError, ValueSources};

    fn quotas(toml: &str, profile: Option<&str>) -> Quotas {
        let loaded = config::parse(toml, Path::new("servers.toml"), ValueSources::NONE).expect("usable");
        assert_eq!(loaded.faults, []);
        loaded.config.quotas(profile)
    }

    #[test]
    fn a_profile_changes_what_it_names() {
        assert_eq!(quotas("", None), Quotas::default());
        let toml = "[quotas]\ncalls = 10\nsessions = 5\n[profiles.reader]\nquotas = { calls = 2 }\n[profiles.plain]\n";
        let all = Quotas { calls: 10, jobs: 10, sessions: 5, ..Quotas::default() };
        assert_eq!(quotas(toml, None), all);
        assert_eq!(quotas(toml, Some("plain")), all);
        assert_eq!(quotas(toml, Some("gone")), all);
        assert_eq!(quotas(toml, Some("reader")), Quotas { calls: 2, jobs: 2, ..all });
    }

    #[test]
    fn a_wrong_figure_has_its_line() {
        let check = |toml: &str, key: &str, word: &str| {
            let parsed = config::parse(toml, Path::new("servers.toml"), ValueSources::NONE);
            let faults = match parsed {
                Err(LoadError::Faults(faults)) => faults,
                Ok(loaded) => loaded.faults,
                Err(other) => panic!("{other}"),
            };
            let fault = faults.first().expect("a fault");
            let told = format!("{} {}", fault.message, fault.remedy);
            assert!(fault.line == 2 && fault.key == key && told.contains(word), "{fault:?}");
        };
        check("[quotas]\ncalls = 0\n", "quotas.calls", "1");
        check("[quotas]\ncall = 5\n", "quotas.call", "calls");
        check("[profiles.a]\nquotas = { session = 5 }\n", "profiles.a.quotas.session", "sessions");
    }
}
