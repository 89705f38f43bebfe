//! Protection that a changed configuration would lose: a truncated or emptied file must not open doors.

use std::collections::BTreeMap;

use crate::{
    ApproveBy, AuthSettings, Config, NewServers, OnLeak, Policy, Profile, ServerSettings, ToolOverride,
    Transport,
};

/// The minimum number of servers for which losing more than half of them is a loss. Losing all servers always
/// is a loss.
const MANY: usize = 3;
/// How many names a reason lists.
const NAMED: usize = 5;

/// Returns what the new configuration loses, with the names of the keys.
pub fn losses(old: &Config, new: &Config) -> Vec<String> {
    let mut lost = Vec::new();
    let is_open = |config: &Config| !config.guarded && config.gateway.allow_without_tokens;
    if is_open(new) && !is_open(old) {
        lost.push("all tokens, so that every request over HTTP would be accepted".into());
    } else if old.guarded && !new.guarded {
        lost.push("all tokens, so that the token of this machine's user would open every profile".into());
    } else if !old.gateway.tokens.is_empty() && new.gateway.tokens.is_empty() {
        lost.push("`gateway.tokens`".into());
    }
    lost.extend(of_auth(old, new));
    let (before, after) = (&old.gateway, &new.gateway);
    let weaker = [
        ("approve_by", before.approve_by == ApproveBy::User && after.approve_by != ApproveBy::User),
        ("on_change", before.on_change > after.on_change),
        ("new_servers", before.new_servers == NewServers::Hold && after.new_servers != NewServers::Hold),
        ("leaks", before.leaks != OnLeak::Off && after.leaks == OnLeak::Off),
        ("min_protocol", before.min_protocol > after.min_protocol),
    ];
    lost.extend(weaker.iter().filter(|(_, is_weaker)| *is_weaker).map(|(key, _)| format!("`gateway.{key}`")));
    for (name, before) in &old.profiles {
        match new.profiles.get(name) {
            Some(after) => of_profile(&format!("profiles.{name}"), before, after, &mut lost),
            None => lost.push(format!("`[profiles.{name}]`")),
        }
        if before.tokens.iter().any(|token| new.gateway.tokens.contains(token)) {
            lost.push(format!(
                "the limits of a token of `[profiles.{name}]`, which is now in `gateway.tokens`"
            ));
        }
    }
    for (name, before) in &old.policies {
        match new.policies.get(name) {
            Some(after) if after.policy < before.policy => {
                lost.push(format!("the strictness of `[policies.{name}]`"))
            }
            Some(after) if before.when.is_none() && after.when.is_some() => {
                lost.push(format!("the strictness of `[policies.{name}]`"))
            }
            Some(_) => {}
            None if before.policy == Policy::Allow => {}
            None => lost.push(format!("`[policies.{name}]`")),
        }
    }
    for (name, before) in &old.servers {
        if let Some(after) = new.servers.get(name) {
            let key = format!("servers.{name}");
            of_server(&key, before, after, &mut lost);
            if before.credentials.are_personal() && !after.credentials.are_personal() {
                lost.push(format!("`{key}.credentials`, so that people would share one account"));
            }
            let change_of = |server: &ServerSettings, gateway| server.on_change.unwrap_or(gateway);
            let is_own = before.on_change.is_some() || after.on_change.is_some();
            if is_own && change_of(before, old.gateway.on_change) > change_of(after, new.gateway.on_change) {
                lost.push(format!("`{key}.on_change`"));
            }
            let is_lower = before.min_protocol > after.min_protocol;
            let is_gateways = before.min_protocol == old.gateway.min_protocol
                && after.min_protocol == new.gateway.min_protocol;
            if is_lower && !is_gateways {
                lost.push(format!("`{key}.min_protocol`"));
            }
            let leaks = |server: &ServerSettings, gateway| server.leaks.unwrap_or(gateway);
            let is_own = before.leaks.is_some() || after.leaks.is_some();
            let (was, is) = (leaks(before, old.gateway.leaks), leaks(after, new.gateway.leaks));
            if is_own && was != OnLeak::Off && is == OnLeak::Off {
                lost.push(format!("`{key}.leaks`"));
            }
            let by = |server: &ServerSettings, gateway| server.approve_by.unwrap_or(gateway);
            let is_own = before.approve_by.is_some() || after.approve_by.is_some();
            let (was, is) = (by(before, old.gateway.approve_by), by(after, new.gateway.approve_by));
            if is_own && was == ApproveBy::User && is != ApproveBy::User {
                lost.push(format!("`{key}.approve_by`"));
            }
        }
    }
    lost.extend(servers(old, new));
    lost
}

/// Returns what protects from people who sign in.
fn of_auth(old: &Config, new: &Config) -> Vec<String> {
    let (Some(before), after) = (&old.auth, &new.auth) else { return Vec::new() };
    let Some(after) = after else { return vec!["`[auth]`".into()] };
    let has_introspection =
        |auth: &AuthSettings| auth.issuers.iter().any(|issuer| issuer.introspection.is_some());
    let is_blocked = |subject: &String| after.blocked.contains(subject);
    let lost = [
        ("scopes", before.scopes.iter().any(|scope| !after.scopes.contains(scope))),
        ("blocked", !before.blocked.iter().all(is_blocked)),
        ("introspection", has_introspection(before) && !has_introspection(after)),
        ("profile", before.sorts_people && !after.sorts_people),
    ];
    lost.iter().filter(|(_, is_lost)| *is_lost).map(|(key, _)| format!("`auth.{key}`")).collect()
}

fn of_profile(key: &str, before: &Profile, after: &Profile, lost: &mut Vec<String>) {
    let limits = [
        ("deny", !before.deny.is_empty(), !after.deny.is_empty()),
        ("only", before.only.is_some(), after.only.is_some()),
        ("max_risk", before.max_risk.is_some(), after.max_risk.is_some()),
        ("tokens", !before.tokens.is_empty(), !after.tokens.is_empty()),
        ("claims", !before.claims.is_empty(), !after.claims.is_empty()),
        ("scopes", !before.scopes.is_empty(), before.scopes.iter().all(|scope| after.scopes.contains(scope))),
    ];
    for (limit, had, has) in limits {
        if had && !has {
            lost.push(format!("`{key}.{limit}`"));
        }
    }
    if before.is_limited() && !after.is_limited() && after.only.is_none() {
        lost.push(format!("`categories`, `tags` or `allow` of `[{key}]`"));
    }
}

fn of_server(key: &str, before: &ServerSettings, after: &ServerSettings, lost: &mut Vec<String>) {
    if before.allowed_tools.is_some() && after.allowed_tools.is_none() {
        lost.push(format!("`{key}.allowed_tools`"));
    }
    if !before.blocked_tools.is_empty() && after.blocked_tools.is_empty() {
        lost.push(format!("`{key}.blocked_tools`"));
    }
    if is_weaker(before.policy, after.policy) {
        lost.push(format!("`{key}.policy`"));
    }
    if before.is_sandboxed() && !after.is_sandboxed() && matches!(after.transport, Transport::Stdio { .. }) {
        lost.push(format!("`{key}.sandbox`"));
    }
    let policy =
        |tools: &BTreeMap<String, ToolOverride>, tool: &str| tools.get(tool).and_then(|tool| tool.policy);
    for tool in before.tools.keys() {
        if is_weaker(policy(&before.tools, tool), policy(&after.tools, tool)) {
            lost.push(format!("`{key}.tools.{tool}.policy`"));
        }
    }
}

/// Whether calls that were denied or required approval would now go through.
fn is_weaker(before: Option<Policy>, after: Option<Policy>) -> bool {
    before.is_some_and(|before| before > Policy::Allow && after.is_none_or(|after| after < before))
}

fn servers(old: &Config, new: &Config) -> Option<String> {
    let running: Vec<&str> =
        old.servers.iter().filter(|(_, server)| server.enabled).map(|(name, _)| name.as_str()).collect();
    let stays =
        |name: &str| new.servers.iter().any(|(other, server)| other.as_str() == name && server.enabled);
    let gone: Vec<&str> = running.iter().copied().filter(|name| !stays(name)).collect();
    let is_most = gone.len() >= MANY && gone.len() * 2 > running.len();
    // A different server may replace the only one.
    let is_all = !gone.is_empty() && !new.servers.values().any(|server| server.enabled);
    if !is_most && !is_all {
        return None;
    }
    let names = gone.iter().take(NAMED).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let more = gone.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Some(format!("{} of {} servers: {names}{more}", gone.len(), running.len()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate as config;

    const FULL: &str = "[gateway]\ntokens = ['an-owners-token-of-32-characters']\n\
        [servers.a]\ncommand = 'x'\nblocked_tools = ['rm_*']\npolicy = 'approve'\n\
        [servers.a.tools.drop]\npolicy = 'deny'\n\
        [servers.b]\ncommand = 'x'\nallowed_tools = ['read_*']\n\
        [servers.c]\ncommand = 'x'\n[servers.d]\ncommand = 'x'\n\
        [profiles.reader]\nmax_risk = 'low'\ndeny = ['a.*']\ncategories = ['b']\ntokens = ['a-readers-token-of-32-characters']\n\
        [policies.no]\ntools = ['a.*']\npolicy = 'deny'\n[policies.yes]\ntools = ['b.*']\npolicy = 'allow'\n";

    #[test]
    fn what_protects_is_missed() {
        let parse = |text: &str| {
            let loaded =
                config::parse(text, Path::new("/f"), config::ValueSources::NONE).expect("it is usable");
            assert!(loaded.faults.is_empty(), "{:?}", loaded.faults);
            loaded.config
        };
        let old = parse(FULL);
        let check = |text: &str, expected: &[&str]| {
            let lost = losses(&old, &parse(text));
            assert_eq!(lost.len(), expected.len(), "{text}\n{lost:?}");
            for (lost, expected) in lost.iter().zip(expected) {
                assert!(lost.contains(expected), "{lost}, expected {expected}");
            }
        };
        let without = |part: &str| {
            assert!(FULL.contains(part), "{part}");
            FULL.replace(part, "")
        };
        check(FULL, &[]);
        check(&FULL.replace("an-owners", "another-owners"), &[]);
        check(&format!("{FULL}[servers.e]\ncommand = 'x'\n"), &[]);
        check("", &["all tokens", "[profiles.reader]", "[policies.no]", "4 of 4 servers"]);
        check(&without("tokens = ['an-owners-token-of-32-characters']\n"), &["gateway.tokens"]);
        check(&without("tokens = ['a-readers-token-of-32-characters']\n"), &["profiles.reader.tokens"]);
        check(&without("max_risk = 'low'\n"), &["profiles.reader.max_risk"]);
        check(&without("deny = ['a.*']\n"), &["profiles.reader.deny"]);
        check(&without("categories = ['b']\n"), &["[profiles.reader]"]);
        check(&without("[policies.no]\ntools = ['a.*']\npolicy = 'deny'\n"), &["[policies.no]"]);
        check(&without("[policies.yes]\ntools = ['b.*']\npolicy = 'allow'\n"), &[]);
        check(
            &FULL.replace("tools = ['a.*']\npolicy = 'deny'", "tools = ['a.*']\npolicy = 'approve'"),
            &["[policies.no]"],
        );
        let sandboxed = parse(&FULL.replace("[servers.c]\n", "[servers.c]\nsandbox = 'standard'\n"));
        assert_eq!(losses(&sandboxed, &old), ["`servers.c.sandbox`"]);
        let strict = "approve_by = 'user'\non_change = 'hold'\nnew_servers = 'hold'\n";
        let held = parse(&FULL.replace("[gateway]\n", &format!("[gateway]\n{strict}")));
        let keys = ["`gateway.approve_by`", "`gateway.on_change`", "`gateway.new_servers`"];
        assert_eq!(losses(&held, &old), keys);
        let own = "[servers.c]\non_change = 'deny'\napprove_by = 'user'\n";
        let own = parse(&FULL.replace("[servers.c]\n", own));
        assert_eq!(losses(&own, &old), ["`servers.c.on_change`", "`servers.c.approve_by`"]);
        assert_eq!(losses(&own, &held), ["`servers.c.on_change`"]);
        let soft = "[servers.c]\non_change = 'tell'\napprove_by = 'chat'\nleaks = 'off'\n";
        let soft =
            FULL.replace("[gateway]\n", &format!("[gateway]\n{strict}")).replace("[servers.c]\n", soft);
        let keys = ["`servers.c.on_change`", "`servers.c.leaks`", "`servers.c.approve_by`"];
        assert_eq!(losses(&held, &parse(&soft)), keys);
        check(&without("blocked_tools = ['rm_*']\n"), &["servers.a.blocked_tools"]);
        check(&without("policy = 'approve'\n"), &["servers.a.policy"]);
        check(&without("[servers.a.tools.drop]\npolicy = 'deny'\n"), &["servers.a.tools.drop.policy"]);
        check(&without("allowed_tools = ['read_*']\n"), &["servers.b.allowed_tools"]);
        // Two of four servers may go, and any number where others come; three of four may not.
        check(&without("[servers.c]\ncommand = 'x'\n[servers.d]\ncommand = 'x'\n"), &[]);
        let off = |text: String, server: &str| {
            text.replace(&format!("[servers.{server}]\n"), &format!("[servers.{server}]\nenabled = false\n"))
        };
        check(&off(off(FULL.into(), "c"), "d"), &[]);
        check(&off(off(off(FULL.into(), "b"), "c"), "d"), &["3 of 4 servers: `b`, `c`, `d`"]);
        let moved = FULL
            .replace(
                "tokens = ['a-readers-token-of-32-characters']\n",
                "tokens = ['a-new-readers-token-of-32-chars!']\n",
            )
            .replace("['an-owners-token-of-32-characters']", "['a-readers-token-of-32-characters']");
        check(&moved, &["the limits of a token"]);
    }
}
