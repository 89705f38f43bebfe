//! `[quotas]` and a profile's `quotas`: what one token, or one session without a token, may use at the same time.

use schemars::JsonSchema;
use serde::Deserialize;

use super::Config;

/// How much one client may have at the same time: each bearer token, and each session without one. New work beyond it is
/// refused; what has begun goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Quotas {
    /// The most calls in flight.
    #[schemars(range(min = 1, max = 100_000))]
    pub calls: usize,
    /// The most background tasks. A call in flight that becomes one is never refused.
    #[schemars(range(min = 1, max = 100_000))]
    pub jobs: usize,
    /// The most bytes of kept results; the oldest of the same client go first.
    #[schemars(range(min = 1_000_000, max = 1_000_000_000_000_u64))]
    pub kept_bytes: u64,
    /// The most open questions in the chat; the oldest of the same client goes first.
    #[schemars(range(min = 1, max = 10_000))]
    pub questions: usize,
    /// The most calls that wait for an answer of the client while no request of it is open.
    #[schemars(range(min = 1, max = 10_000))]
    pub parked: usize,
    /// The most open sessions over HTTP of one token, or of all clients without a token.
    #[schemars(range(min = 1, max = 100_000))]
    pub sessions: usize,
}

impl Default for Quotas {
    fn default() -> Self {
        Self { calls: 64, jobs: 50, kept_bytes: 64_000_000, questions: 50, parked: 50, sessions: 1_000 }
    }
}

/// Other figures than those of `[quotas]`, for each token or session of a profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ProfileQuotas {
    /// The most calls in flight.
    #[schemars(range(min = 1, max = 100_000), example = 8)]
    pub calls: Option<usize>,
    /// The most background tasks.
    #[schemars(range(min = 1, max = 100_000), example = 10)]
    pub jobs: Option<usize>,
    /// The most bytes of kept results.
    #[schemars(range(min = 1_000_000, max = 1_000_000_000_000_u64), example = 16_000_000)]
    pub kept_bytes: Option<u64>,
    /// The most open questions in the chat.
    #[schemars(range(min = 1, max = 10_000), example = 10)]
    pub questions: Option<usize>,
    /// The most calls that wait for an answer of the client while no request of it is open.
    #[schemars(range(min = 1, max = 10_000), example = 10)]
    pub parked: Option<usize>,
    /// The most open sessions over HTTP.
    #[schemars(range(min = 1, max = 100_000), example = 100)]
    pub sessions: Option<usize>,
}

impl Config {
    /// Returns the quotas of one token or session under a profile.
    pub fn quotas(&self, profile: Option<&str>) -> Quotas {
        let all = self.quotas;
        let Some(own) = profile.and_then(|name| self.profiles.get(name)).map(|profile| profile.quotas) else {
            return all;
        };
        Quotas {
            calls: own.calls.unwrap_or(all.calls),
            jobs: own.jobs.unwrap_or(all.jobs),
            kept_bytes: own.kept_bytes.unwrap_or(all.kept_bytes),
            questions: own.questions.unwrap_or(all.questions),
            parked: own.parked.unwrap_or(all.parked),
            sessions: own.sessions.unwrap_or(all.sessions),
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
        let toml =
            "[quotas]\ncalls = 10\njobs = 5\n[profiles.reader]\nquotas = { calls = 2 }\n[profiles.plain]\n";
        let all = Quotas { calls: 10, jobs: 5, ..Quotas::default() };
        assert_eq!(quotas(toml, None), all);
        assert_eq!(quotas(toml, Some("plain")), all);
        assert_eq!(quotas(toml, Some("gone")), all);
        assert_eq!(quotas(toml, Some("reader")), Quotas { calls: 2, ..all });
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
        check("[profiles.a]\nquotas = { kept = 5 }\n", "profiles.a.quotas.kept", "kept_bytes");
    }
}
