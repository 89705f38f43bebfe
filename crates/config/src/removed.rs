//! Keys that are gone. For one release a file that still has one is read, with a warning that says what to
//! write instead.

use serde_json::{Value, json};

use super::{
    ConfigFault,
    read::{ConfigSource, FaultSide, join},
};

/// Makes the value of the successor from the value of the key, and from what the successor has already.
type Carry = fn(Value, Option<Value>) -> Option<Value>;

/// Keys that are gone, all for the same reason.
struct RemovedKey {
    /// Their paths; `*` stands for any name.
    paths: &'static [&'static str],
    /// What to do about them.
    remedy: &'static str,
    /// The path of the key that has the value now, with the same names, and how it gets the value.
    successor: Option<(&'static str, Carry)>,
}

const fn gone(paths: &'static [&'static str], remedy: &'static str) -> RemovedKey {
    RemovedKey { paths, remedy, successor: None }
}

const fn moved(
    paths: &'static [&'static str],
    successor: &'static str,
    carry: Carry,
    remedy: &'static str,
) -> RemovedKey {
    RemovedKey { paths, remedy, successor: Some((successor, carry)) }
}

const REMOVED: &[RemovedKey] = &[
    gone(&["limits.server_message_bytes"], "Remove it: the limit is always 1,048,576."),
    gone(&["limits.list_page_bytes"], "Remove it: the limit is always 8,388,608."),
    gone(&["limits.list_bytes"], "Remove it: the limit is always 33,554,432."),
    gone(&["limits.client_message_bytes"], "Remove it: the limit is always 4,194,304."),
    gone(&["limits.error_bytes"], "Remove it: the limit is always 65,536."),
    gone(&["limits.unread_bytes"], "Remove it: the limit is always 16,777,216."),
    gone(&["limits.connections_per_address"], "Remove it: the limit is always two thirds of `connections`."),
    gone(&["limits.connections_without_token"], "Remove it: the limit is always 128."),
    gone(
        &["limits.first_byte_timeout"],
        "Remove it: the time is always 10s, or `request_timeout` if that is less.",
    ),
    moved(
        &["limits.body_timeout", "limits.header_timeout"],
        "limits.request_timeout",
        first,
        "Write `request_timeout` instead.",
    ),
    moved(
        &["limits.trusted_proxies"],
        "gateway.trusted_proxies",
        first,
        "Write `trusted_proxies` in `[gateway]` instead.",
    ),
    gone(
        &["quotas.jobs", "profiles.*.quotas.jobs"],
        "Remove it: `calls` is the limit of background tasks too.",
    ),
    gone(
        &["quotas.kept_bytes", "profiles.*.quotas.kept_bytes"],
        "Remove it: the limit is always a quarter of `keep_results_bytes` in `[gateway]`.",
    ),
    gone(
        &["quotas.questions", "quotas.parked", "profiles.*.quotas.questions", "profiles.*.quotas.parked"],
        "Remove it: the limit is always 50.",
    ),
    moved(
        &["servers.*.serialize"],
        "servers.*.max_concurrency",
        |old, now| if old == true { Some(1.into()) } else { now },
        "For one call at a time, write `max_concurrency = 1` instead.",
    ),
    moved(
        &["servers.*.breaker.wait"],
        "servers.*.breaker",
        |_, now| if now == Some(json!({})) { Some(true.into()) } else { now },
        "Remove it: the time is always 10s at first.",
    ),
    moved(
        &["servers.*.breaker.failures"],
        "servers.*.breaker",
        |old, _| Some((old != 0).into()),
        "For a server that always gets its calls, write `breaker = false` instead; otherwise the number is always 5.",
    ),
    gone(&["servers.*.max_response_bytes"], "Remove it: the limit is `result_bytes` in `[limits]`."),
    moved(
        &["servers.*.endpoints.*.risk"],
        "servers.*.tools.*.risk",
        first,
        "Write `risk` in `[servers.NAME.tools.TOOL]` instead.",
    ),
    moved(
        &["servers.*.endpoints.*.tags"],
        "servers.*.tools.*.tags",
        joined,
        "Write `tags` in `[servers.NAME.tools.TOOL]` instead.",
    ),
    gone(&["clients.*.max_instructions"], "Remove it: the limit is always 2,000."),
];

/// The successor's own value counts, if it has one.
fn first(old: Value, now: Option<Value>) -> Option<Value> {
    Some(now.unwrap_or(old))
}

fn joined(old: Value, now: Option<Value>) -> Option<Value> {
    match (old, now) {
        (Value::Array(old), Some(Value::Array(now))) => Some(now.into_iter().chain(old).collect()),
        (old, now) => first(old, now),
    }
}

/// Takes the removed keys out of a file, and gives their values to their successors. Returns the warnings.
pub(super) fn carry_over(written: &mut ConfigSource) -> Vec<ConfigFault> {
    let mut told = Vec::new();
    let keys = REMOVED.iter().flat_map(|removed| removed.paths.iter().map(move |path| (path, removed)));
    for (path, removed) in keys {
        for names in places(&written.value, path) {
            let origin = pointer(path, &names);
            let (message, remedy) = ("this key is gone".into(), removed.remedy.into());
            told.push(written.fault(&origin, FaultSide::Key, message, remedy));
            let old = written.take(&origin);
            if let (Some(old), Some((successor, carry))) = (old, removed.successor) {
                written.put(&pointer(successor, &names), &origin, |now| carry(old, now));
            }
        }
    }
    told.sort_by_key(|fault| (fault.line, fault.column));
    told
}

/// Returns where a file has a path: the names that its `*` stand for, in each place.
fn places(value: &Value, path: &str) -> Vec<Vec<String>> {
    let (key, rest) = path.split_once('.').map_or((path, None), |(key, rest)| (key, Some(rest)));
    let members =
        value.as_object().into_iter().flatten().filter(|(name, _)| key == "*" || key == name.as_str());
    let found = members.flat_map(|(name, member)| {
        let inner = rest.map_or_else(|| vec![Vec::new()], |rest| places(member, rest));
        let name = (key == "*").then(|| name.clone());
        inner.into_iter().map(move |names| name.iter().cloned().chain(names).collect())
    });
    found.collect()
}

/// Returns the pointer of a path with these names.
fn pointer(path: &str, names: &[String]) -> String {
    let mut names = names.iter();
    let keys =
        path.split('.').map(|key| if key == "*" { names.next().map_or(key, |name| name) } else { key });
    keys.fold(String::new(), |pointer, key| join(&pointer, key))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{LoadedConfig, ValueSources, parse, schema};

    fn loaded(text: &str) -> LoadedConfig {
        let loaded = parse(text, Path::new("servers.toml"), ValueSources::NONE).expect("usable");
        assert_eq!(loaded.faults, [], "{text}");
        loaded
    }

    /// Whether the schema has a key.
    fn is_known(path: &str) -> bool {
        let schema = schema();
        let inner = path.split('.').try_fold(&schema, |node, key| match key {
            "*" => node.get("additionalProperties"),
            key => node.get("properties")?.get(key),
        });
        inner.is_some()
    }

    #[test]
    fn what_is_removed_is_no_key_and_its_successor_is_one() {
        for RemovedKey { paths, successor, .. } in REMOVED {
            assert!(!paths.iter().any(|path| is_known(path)), "{paths:?}");
            assert!(successor.is_none_or(|(successor, _)| is_known(successor)), "{paths:?}");
        }
    }

    #[test]
    fn a_removed_key_is_told_and_its_value_counts_for_its_successor() {
        let check = |old: &str, new: &str, warnings: &[&str]| {
            let (old, new) = (loaded(old), loaded(new));
            let told: Vec<String> =
                old.removed.iter().map(|fault| format!("{}: {}", fault.line, fault.key)).collect();
            assert_eq!((told, new.removed.len()), (warnings.iter().map(ToString::to_string).collect(), 0));
            let shown = |loaded: &LoadedConfig| {
                let config = &loaded.config;
                format!("{:?} {:?} {:?} {:?}", config.gateway, config.limits, config.servers, config.profiles)
            };
            assert_eq!(shown(&old), shown(&new));
        };
        check(
            "[limits]\nerror_bytes = 'many'\nconnections = 9\n",
            "[limits]\nconnections = 9\n",
            &["2: limits.error_bytes"],
        );
        check(
            "[limits]\nheader_timeout = '5s'\ntrusted_proxies = ['10.0.0.1']\n",
            "[gateway]\ntrusted_proxies = ['10.0.0.1']\n[limits]\nrequest_timeout = '5s'\n",
            &["2: limits.header_timeout", "3: limits.trusted_proxies"],
        );
        let one = "[servers.a]\ncommand = 'a'\n";
        check(
            &format!("{one}serialize = true\nmax_concurrency = 5\n"),
            &format!("{one}max_concurrency = 1\n"),
            &["3: servers.a.serialize"],
        );
        check(&format!("{one}serialize = false\n"), one, &["3: servers.a.serialize"]);
        let rest = "[servers.a]\nbase_url = 'http://a'\nendpoints.x.path = '/x'\n";
        check(
            &format!("{rest}endpoints.x.risk = 'high'\nendpoints.x.tags = ['b']\ntools.x.tags = ['a']\n"),
            &format!("{rest}tools.x = {{ risk = 'high', tags = ['a', 'b'] }}\n"),
            &["4: servers.a.endpoints.x.risk", "5: servers.a.endpoints.x.tags"],
        );
        check(
            "[profiles.p]\nquotas.jobs = 3\n",
            "[profiles.p]\nquotas = {}\n",
            &["2: profiles.p.quotas.jobs"],
        );
    }

    #[test]
    fn a_wrong_value_is_a_fault_where_it_was_written() {
        let text = "[servers.a]\nbase_url = 'http://a'\nendpoints.x.path = '/x'\nendpoints.x.risk = 'hihg'\n";
        let loaded = parse(text, Path::new("servers.toml"), ValueSources::NONE).expect("usable");
        let fault = &loaded.faults[0];
        assert_eq!((fault.line, fault.key.as_str()), (4, "servers.a.endpoints.x.risk"));
        assert_eq!(fault.entry.as_deref(), Some("servers.a"));
    }
}
