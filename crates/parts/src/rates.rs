//! Rates of calls: how many calls a gateway, a server, a tool, a profile, a token and a person allow.
//!
//! Each rule of the configuration has one limiter, and each person has one of the rule for tokens. A call counts
//! against every rule that applies, from the narrowest to the widest; the first exhausted rule refuses the
//! call.
//!
//! Replicas that share a store also share the rates. While the store is away or slow, the limiters of this
//! process decide; they know how many calls this replica has made.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use dashmap::DashMap;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter, clock::Clock};
use nonet_api::status::RateStatus;
use nonet_config::{BearerToken, Config, Rate};
use nonet_store::{RateOutcome, SharedRate, Store};

/// How many people's limiters are kept. Beyond that, all begin anew.
const MAX_PEOPLE: usize = 20_000;

/// A rule with its limiter.
#[derive(Debug)]
struct Limit {
    /// The configuration key.
    rule: String,
    rate: Rate,
    limiter: DefaultDirectRateLimiter,
    /// The rule as shared by all replicas.
    shared: SharedRate,
    refused: AtomicU64,
}

/// The limits of one server.
#[derive(Debug, Default)]
struct ServerRates {
    all: Option<Arc<Limit>>,
    /// By the server's own names of the tools.
    tools: HashMap<String, Arc<Limit>>,
}

/// Limits by profile and person.
type PeopleLimits = DashMap<(Option<String>, String), Arc<Limit>>;

/// The rates of a configuration.
#[derive(Debug, Default)]
pub struct Rates {
    gateway: Option<Arc<Limit>>,
    servers: HashMap<String, ServerRates>,
    profiles: HashMap<String, Arc<Limit>>,
    tokens: HashMap<BearerToken, Arc<Limit>>,
    /// The rule for each person, by profile, where people can sign in.
    for_people: HashMap<Option<String>, (String, Rate)>,
    /// By profile and person.
    people: Arc<PeopleLimits>,
    is_empty: bool,
}

/// The caller and the tool of a call.
#[derive(Clone, Copy, Debug)]
pub struct RatedCall<'a> {
    /// The server.
    pub server: &'a str,
    /// The tool, by the server's own name.
    pub tool: &'a str,
    /// The profile, if there is one.
    pub profile: Option<&'a str>,
    /// The bearer token of the configuration, if there is one.
    pub token: Option<BearerToken>,
    /// The key of the person who has signed in, if somebody has.
    pub person: Option<&'a str>,
}

/// The rule that refuses a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateExceeded {
    /// The configuration key.
    pub rule: String,
    /// Its rate.
    pub rate: Rate,
    /// When the rule allows the next call.
    pub wait: Duration,
}

impl Limit {
    /// Creates a limit for this rule. Returns the one of `before`, with its current use, if the rule is
    /// unchanged. `of` names the owner if several have a limit by one rule.
    fn new(rule: String, rate: Rate, of: Option<String>, before: Option<&Arc<Self>>) -> Arc<Self> {
        if let Some(same) = before.filter(|before| before.rate == rate && before.rule == rule) {
            return same.clone();
        }
        // The shortest interval that a rate can have is a microsecond.
        let quota = Quota::with_period(rate.interval()).unwrap_or(Quota::per_second(rate.burst()));
        let limiter = RateLimiter::direct(quota.allow_burst(rate.burst()));
        // The name contains the rate, so that a changed rate starts unused in the store too.
        let name = [&rule, of.as_deref().unwrap_or_default(), &rate.to_string()].join(" ");
        let shared = SharedRate { name, interval: rate.interval(), burst: rate.burst().get() };
        Arc::new(Self { rule, rate, limiter, shared, refused: AtomicU64::new(0) })
    }

    fn take(&self) -> Result<(), RateExceeded> {
        let taken = self.limiter.check();
        taken.map_err(|not_until| self.exceeded(not_until.wait_time_from(self.limiter.clock().now())))
    }

    /// Counts a call that the shared rates have allowed.
    fn note(&self) {
        // The limiter of this replica may be exhausted already.
        let _ = self.limiter.check();
    }

    /// Counts and describes a refusal.
    fn exceeded(&self, wait: Duration) -> RateExceeded {
        self.refused.fetch_add(1, Ordering::Relaxed);
        RateExceeded { rule: self.rule.clone(), rate: self.rate, wait }
    }

    fn shown(&self) -> RateStatus {
        let refused = self.refused.load(Ordering::Relaxed);
        RateStatus { rule: self.rule.clone(), rate: self.rate.to_string(), refused }
    }
}

impl Rates {
    /// Creates the rates of a configuration. Unchanged rules of `before` keep their current use.
    pub fn new(config: &Config, before: &Self) -> Self {
        let limit = |rule: String, rate: Option<Rate>, before: Option<&Arc<Limit>>| {
            Some(Limit::new(rule, rate?, None, before))
        };
        let gateway = limit("gateway.rate".into(), config.gateway.rate, before.gateway.as_ref());
        let mut servers = HashMap::new();
        for (name, settings) in &config.servers {
            let name = name.as_str();
            let before = before.servers.get(name);
            let all = before.and_then(|before| before.all.as_ref());
            let all = limit(format!("servers.{name}.rate"), settings.rate, all);
            let tools: HashMap<String, Arc<Limit>> = settings
                .tools
                .iter()
                .filter_map(|(tool, own)| {
                    let before = before.and_then(|before| before.tools.get(tool));
                    let rule = format!("servers.{name}.tools.{tool}.rate");
                    Some((tool.clone(), limit(rule, own.rate, before)?))
                })
                .collect();
            if all.is_some() || !tools.is_empty() {
                servers.insert(name.to_owned(), ServerRates { all, tools });
            }
        }
        let profiles: HashMap<String, Arc<Limit>> = config
            .profiles
            .iter()
            .filter_map(|(name, profile)| {
                let rule = format!("profiles.{name}.rate");
                Some((name.clone(), limit(rule, profile.rate, before.profiles.get(name))?))
            })
            .collect();
        let of_all = config.gateway.token_rate.map(|rate| ("gateway.token_rate".to_owned(), rate));
        let owned = config.profiles.iter().map(|(name, profile)| {
            let own = profile.token_rate.map(|rate| (format!("profiles.{name}.token_rate"), rate));
            (own.or_else(|| of_all.clone()), &profile.tokens)
        });
        let tokens: HashMap<BearerToken, Arc<Limit>> = owned
            .chain([(of_all.clone(), &config.gateway.tokens)])
            .filter_map(|(rule, tokens)| Some((rule?, tokens)))
            .flat_map(|((rule, rate), tokens)| {
                let of = move |token: &BearerToken| {
                    (*token, Limit::new(rule.clone(), rate, Some(token.alias()), before.tokens.get(token)))
                };
                tokens.iter().map(of).collect::<Vec<_>>()
            })
            .collect();
        let own = config.profiles.iter().filter_map(|(name, profile)| {
            let own = profile.token_rate.map(|rate| (format!("profiles.{name}.token_rate"), rate));
            Some((Some(name.clone()), own.or_else(|| of_all.clone())?))
        });
        let all = of_all.clone().map(|rule| (None, rule));
        let for_people: HashMap<_, _> =
            if config.auth.is_some() { own.chain(all).collect() } else { HashMap::new() };
        let people = before.people.clone();
        let is_empty = gateway.is_none()
            && servers.is_empty()
            && profiles.is_empty()
            && tokens.is_empty()
            && for_people.is_empty();
        Self { gateway, servers, profiles, tokens, for_people, people, is_empty }
    }

    /// Returns the limit of a person under a profile, with its current use.
    fn of_person(&self, profile: Option<&str>, person: &str) -> Option<Arc<Limit>> {
        if self.for_people.is_empty() {
            return None;
        }
        let key = (profile.map(String::from), person.to_owned());
        let (rule, rate) = self.for_people.get(&key.0)?;
        if self.people.len() >= MAX_PEOPLE && !self.people.contains_key(&key) {
            self.people.clear();
        }
        let mut kept = self
            .people
            .entry(key)
            .or_insert_with(|| Limit::new(rule.clone(), *rate, Some(person.into()), None));
        let limit = Limit::new(rule.clone(), *rate, Some(person.into()), Some(&kept));
        *kept = limit.clone();
        Some(limit)
    }

    /// Counts a call against every rule that applies, in the store if replicas share one.
    ///
    /// # Errors
    ///
    /// The first exhausted rule. The call must not be made.
    pub async fn take(&self, call: &RatedCall<'_>, store: &dyn Store) -> Result<(), RateExceeded> {
        let limits = self.about(call);
        if limits.is_empty() {
            return Ok(());
        }
        let shared: Vec<&SharedRate> = limits.iter().map(|limit| &limit.shared).collect();
        match store.take_rates(&shared).await {
            Ok(RateOutcome::All) => {
                limits.iter().for_each(|limit| limit.note());
                Ok(())
            }
            Ok(RateOutcome::UsedUp { at, wait }) => {
                let limit = limits.get(at).unwrap_or(&limits[0]);
                Err(limit.exceeded(wait))
            }
            Ok(RateOutcome::NotShared) => limits.iter().try_for_each(|limit| limit.take()),
            Err(error) => {
                tracing::debug!(%error, "the rates of calls are applied by this replica");
                limits.iter().try_for_each(|limit| limit.take())
            }
        }
    }

    /// Returns the rules that apply to a call, the narrowest first.
    fn about(&self, call: &RatedCall<'_>) -> Vec<Arc<Limit>> {
        if self.is_empty {
            return Vec::new();
        }
        let server = self.servers.get(call.server);
        let person = call.person.and_then(|person| self.of_person(call.profile, person));
        let limits = [
            server.and_then(|server| server.tools.get(call.tool)),
            call.token.and_then(|token| self.tokens.get(&token)).or(person.as_ref()),
            server.and_then(|server| server.all.as_ref()),
            call.profile.and_then(|profile| self.profiles.get(profile)),
            self.gateway.as_ref(),
        ];
        limits.into_iter().flatten().cloned().collect()
    }

    /// Returns the rules that may apply to a caller, in order of their keys. `sees` says which servers the
    /// caller may know about.
    pub fn shown(
        &self,
        profile: Option<&str>,
        token: Option<BearerToken>,
        sees: impl Fn(&str) -> bool,
    ) -> Vec<RateStatus> {
        let servers = self.servers.iter().filter(|(name, _)| sees(name));
        let of_servers = servers.flat_map(|(_, server)| server.all.iter().chain(server.tools.values()));
        let own = profile.and_then(|profile| self.profiles.get(profile));
        // A caller without a profile may see all profiles.
        let all = profile.is_none().then(|| self.profiles.values()).into_iter().flatten();
        let token = token.and_then(|token| self.tokens.get(&token));
        let limits = of_servers.chain(own).chain(all).chain(token).chain(&self.gateway);
        let mut shown: Vec<RateStatus> = limits.map(|limit| limit.shown()).collect();
        shown.sort();
        shown
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use futures::FutureExt;

    use nonet_base::clock::Clock;
    use nonet_config as config;
    use nonet_store::{GatewayStore, Retention};
    use nonet_testing::RedisServer;

    use super::*;
    use crate::testing::store_at;

    fn config(text: &str) -> Config {
        let env = |name: &str| Some(format!("a-token-of-{name}-0123"));
        let keyring = |name: &str| Err(nonet_config::keyring::Error::NoSecret(name.into()));
        let sources = config::ValueSources { env: &env, keyring: &keyring, ..config::ValueSources::NONE };
        let loaded = config::parse(text, Path::new("f"), sources).expect("usable");
        assert_eq!(loaded.faults, []);
        loaded.config
    }

    const CALL: RatedCall<'_> =
        RatedCall { server: "shop", tool: "buy", profile: None, token: None, person: None };

    /// Counts a call without shared rates.
    fn take(rates: &Rates, call: &RatedCall<'_>) -> Result<(), RateExceeded> {
        let store = GatewayStore::in_files(None, Retention::ROOMY, Clock::default(), "");
        rates.take(call, &store).now_or_never().expect("there is nothing to wait for")
    }

    /// Returns how many of 20 calls are allowed, and the rule that refuses the next.
    fn through(rates: &Rates, call: RatedCall<'_>) -> (usize, Option<String>) {
        for made in 0..20 {
            if let Err(exceeded) = take(rates, &call) {
                return (made, Some(exceeded.rule));
            }
        }
        (20, None)
    }

    #[test]
    fn the_narrowest_rule_that_is_used_up_refuses() {
        let check = |text: &str, call: RatedCall<'_>, expected: (usize, Option<&str>)| {
            let rates = Rates::new(&config(text), &Rates::default());
            let (made, rule) = through(&rates, call);
            assert_eq!((made, rule.as_deref()), expected, "{text}");
        };
        check("", CALL, (20, None));
        check("[gateway]\nrate = '3/h'\n", CALL, (3, Some("gateway.rate")));
        let shop = "[servers.shop]\ncommand = 'x'\nrate = '4/h burst 2'\n";
        check(shop, CALL, (2, Some("servers.shop.rate")));
        check(shop, RatedCall { server: "other", ..CALL }, (20, None));
        let tool = &format!("{shop}[servers.shop.tools.buy]\nrate = '1/h'\n");
        check(tool, CALL, (1, Some("servers.shop.tools.buy.rate")));
        check(tool, RatedCall { tool: "look", ..CALL }, (2, Some("servers.shop.rate")));
        let profile = "[profiles.reader]\nrate = '5/h'\n";
        check(profile, RatedCall { profile: Some("reader"), ..CALL }, (5, Some("profiles.reader.rate")));
        check(profile, CALL, (20, None));
        let both = &format!("[gateway]\nrate = '3/h'\n{profile}");
        check(both, RatedCall { profile: Some("reader"), ..CALL }, (3, Some("gateway.rate")));
    }

    #[test]
    fn each_token_has_a_rate_of_its_own() {
        let text = "[gateway]\ntoken_rate = '2/h'\ntokens = ['${ONE}', '${TWO}']\n\
                    [profiles.reader]\ntokens = ['${THREE}']\ntoken_rate = '1/h'\n\
                    [profiles.other]\ntokens = ['${FOUR}']\n";
        let rates = Rates::new(&config(text), &Rates::default());
        let by = |name: &str| {
            let token = Some(BearerToken::new(&format!("a-token-of-{name}-0123")));
            through(&rates, RatedCall { token, ..CALL })
        };
        assert_eq!(by("ONE"), (2, Some("gateway.token_rate".into())));
        assert_eq!(by("TWO"), (2, Some("gateway.token_rate".into())));
        assert_eq!(by("THREE"), (1, Some("profiles.reader.token_rate".into())));
        assert_eq!(by("FOUR"), (2, Some("gateway.token_rate".into())));
        // A person counts like a token, if people sign in.
        let with_people = format!(
            "[auth]\nissuer = 'https://id'\n{}",
            text.replace("[gateway]\n", "[gateway]\npublic_url = 'https://mcp.example.com'\n")
        );
        let rates = Rates::new(&config(&with_people), &Rates::default());
        let of = |profile, person| through(&rates, RatedCall { profile, person: Some(person), ..CALL });
        assert_eq!(of(None, "ann"), (2, Some("gateway.token_rate".into())));
        assert_eq!(of(None, "ann"), (0, Some("gateway.token_rate".into())));
        assert_eq!(of(None, "bob"), (2, Some("gateway.token_rate".into())));
        assert_eq!(of(Some("reader"), "ann"), (1, Some("profiles.reader.token_rate".into())));
        assert_eq!(by("NONE"), (20, None));
    }

    #[test]
    fn a_reload_keeps_what_is_used_and_the_wait_is_that_of_the_limiter() {
        let text = "[servers.shop]\ncommand = 'x'\nrate = '2/h'\n[servers.shop.tools.look]\nrate = '9/h'\n";
        let rates = Rates::new(&config(text), &Rates::default());
        assert_eq!(through(&rates, CALL).0, 2);
        let again = Rates::new(&config(&format!("[gateway]\nrate = '9/h'\n{text}")), &rates);
        let exceeded = take(&again, &CALL).expect_err("it is used up");
        assert_eq!(exceeded.rate.to_string(), "2/h");
        let half_an_hour = Duration::from_secs(1_800);
        assert!(exceeded.wait <= half_an_hour && exceeded.wait > half_an_hour / 2, "{:?}", exceeded.wait);
        let shown = serde_json::json!(again.shown(None, None, |server| server == "shop"));
        assert_eq!(
            shown,
            serde_json::json!([
                { "rule": "gateway.rate", "rate": "9/h" },
                { "rule": "servers.shop.rate", "rate": "2/h", "refused": 2 },
                { "rule": "servers.shop.tools.look.rate", "rate": "9/h" },
            ])
        );
        assert_eq!(serde_json::json!(again.shown(None, None, |_| false)).as_array().map(Vec::len), Some(1));
        let faster = Rates::new(&config(&text.replace("2/h", "3/h")), &again);
        assert_eq!(through(&faster, CALL).0, 3);
    }

    #[tokio::test]
    async fn replicas_share_what_is_used_and_alone_each_knows_its_own() {
        let Some(server) = RedisServer::start() else { return };
        let stores = [(); 2].map(|()| store_at(&server, &Clock::default()));
        let text = "[gateway]\nrate = '4/h'\n[servers.shop.tools.buy]\nrate = '3/h'\n[servers.shop]\ncommand = 'x'\n";
        let replicas = [(); 2].map(|()| Rates::new(&config(text), &Rates::default()));
        let take = async |at: usize, call| {
            let taken = replicas[at].take(&call, &stores[at]).await;
            taken.map_err(|exceeded| (exceeded.rule, exceeded.wait.as_secs()))
        };
        for at in [0, 1, 0] {
            assert_eq!(take(at, CALL).await, Ok(()));
        }
        for at in [0, 1] {
            let (rule, wait) = take(at, CALL).await.expect_err("it is used up");
            assert_eq!(rule, "servers.shop.tools.buy.rate");
            assert!((1_100..=1_200).contains(&wait), "{wait}");
        }
        let other = RatedCall { tool: "look", ..CALL };
        assert_eq!(take(1, other).await, Ok(()), "a call that was refused took nothing from the others");
        assert_eq!(take(0, other).await.expect_err("it is used up").0, "gateway.rate");
        let shown = serde_json::json!(replicas[0].shown(None, None, |_| true));
        assert_eq!(shown[0], serde_json::json!({ "rule": "gateway.rate", "rate": "4/h", "refused": 1 }));

        // Two calls of each replica are in use, and each replica knows about its own.
        drop(server);
        assert_eq!(take(0, other).await, Ok(()));
        assert_eq!(take(0, CALL).await, Ok(()));
        assert_eq!(take(0, other).await.expect_err("it is used up").0, "gateway.rate");
        assert_eq!(take(1, other).await, Ok(()));
    }

    #[tokio::test]
    async fn a_call_without_a_rule_asks_no_redis() {
        let Some(server) = RedisServer::start() else { return };
        let store = store_at(&server, &Clock::default());
        let rates = Rates::new(&config("[servers.shop]\ncommand = 'x'\nrate = '4/h'\n"), &Rates::default());
        rates.take(&RatedCall { server: "other", ..CALL }, &store).await.expect("no rule is about it");
        assert_eq!(store.counts().await.expect("readable"), None, "nobody has used the store");
        rates.take(&CALL, &store).await.expect("the first");
        assert!(store.counts().await.expect("readable").is_some());
    }
}
