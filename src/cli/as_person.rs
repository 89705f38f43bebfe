//! `nonet check --as FILE`: what a person would get who signs in with these claims, without a token.

use std::{path::Path, sync::Arc};

use anyhow::{Context, ensure};
use nonet_api::tools::{Policy, Risk};
use nonet_auth::{
    Person,
    opening::{self, Opening},
};
use nonet_base::files;
use nonet_config::{AuthSettings, Config};
use nonet_state::{
    conditions::{AskedCondition, asked_conditions},
    session::{Caller, Session},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{OK, UNUSABLE, show};

/// The largest file, in bytes.
const MAX_BYTES: usize = 1 << 20;

/// A person as a file describes them, and a call of theirs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    /// The claims of their token; `sub` is needed.
    claims: Map<String, Value>,
    /// The scopes of their token, in addition to those of the claims.
    #[serde(default)]
    scopes: Vec<String>,
    /// A tool, by its full name.
    tool: Option<String>,
    /// The params of its call.
    #[serde(default)]
    params: Map<String, Value>,
}

/// Prints what the person of a file gets at each address, and what policies say about their call.
pub(super) fn run(config: &Config, default: Option<&str>, file: &Path, as_json: bool) -> anyhow::Result<u8> {
    let shown = file.display();
    let Some(auth) = &config.auth else {
        show::complain(format!(
            "{} has no `[auth]`, so nobody signs in to this gateway",
            config.file.display()
        ));
        return Ok(UNUSABLE);
    };
    let bytes = files::read_at_most(file, MAX_BYTES).with_context(|| format!("cannot read {shown}"))?;
    let described: Described = serde_json::from_slice(&bytes).with_context(|| {
        format!("{shown}: expected `{{\"claims\": {{\"sub\": ...}}, \"scopes\": [], \"tool\": ..., \"params\": {{}}}}`")
    })?;
    let mut claims = described.claims;
    ensure!(
        claims.get("sub").is_some_and(Value::is_string),
        "{shown}: `claims` needs `sub`, as every token has it"
    );
    let scopes = claims.get("scope").and_then(Value::as_str).unwrap_or_default().to_owned();
    claims.insert("scope".into(), format!("{scopes} {}", described.scopes.join(" ")).trim().into());
    let first = auth.issuers.first().map(|issuer| issuer.issuer.clone()).unwrap_or_default();
    let issuer = claims.get("iss").and_then(Value::as_str).map_or(first, Into::into);
    let person = Person::of(&issuer, claims).context("the claims name nobody")?;
    let person = Arc::new(person);
    let admitted = auth.still_admits(&person.issuer, &person.subject);
    let openings = openings(config, auth, &person, default);
    let asked = described.tool.as_deref().map(|tool| {
        let profile = match openings.first() {
            Some((_, Opening::Profile(profile))) => profile.map(Into::into),
            _ => None,
        };
        let caller =
            Caller { person: Some(person.clone()), session: Session::new(profile), ..Caller::default() };
        asked_conditions(config, &caller, tool, &described.params)
    });
    match as_json {
        true => raw!(
            "{}",
            serde_json::to_string_pretty(&in_json(&person, admitted, &openings, asked.as_deref()))?
        ),
        false => print(&person, admitted, &openings, described.tool.as_deref().zip(asked.as_deref())),
    }
    Ok(OK)
}

/// Returns what each address is to a person, `/mcp` first.
fn openings<'a>(
    config: &'a Config,
    auth: &'a AuthSettings,
    person: &Person,
    default: Option<&'a str>,
) -> Vec<(String, Opening<'a>)> {
    let root = ("/mcp".to_string(), opening::of(config, auth, person, None, default));
    let named = config
        .profiles
        .keys()
        .map(|name| (format!("/mcp/{name}"), opening::of(config, auth, person, Some(name), default)));
    std::iter::once(root).chain(named).collect()
}

fn in_words(opening: &Opening<'_>) -> String {
    match opening {
        Opening::Profile(Some(name)) => format!("profile `{name}`"),
        Opening::Profile(None) => "everything".into(),
        Opening::NeedsScopes(scopes) => format!("refused: needs the scopes `{}`", scopes.join(" ")),
        Opening::Several(names) => format!("refused: several profiles fit equally ({})", names.join(", ")),
        Opening::Closed => "refused: no profile here is for this person".into(),
    }
}

fn print(
    person: &Person,
    admitted: bool,
    openings: &[(String, Opening<'_>)],
    call: Option<(&str, &[AskedCondition])>,
) {
    say!("{} ({} of {})", person.name, person.subject, person.issuer);
    if !admitted {
        say!("refused everywhere: the issuer is not in [auth], or `blocked` names the person");
        return;
    }
    for (address, opening) in openings {
        say!("{address}: {}", in_words(opening));
    }
    let Some((tool, asked)) = call else { return };
    if asked.is_empty() {
        say!("{tool}: no policy with `when` is about it");
    }
    for one in asked {
        say!("{tool}: {} {}", one.rule, outcome(one));
    }
}

fn in_text(risk: Risk) -> &'static str {
    match risk {
        Risk::Low => "low",
        Risk::Medium => "medium",
        Risk::High => "high",
    }
}

/// Returns what a policy says about the call, to follow its name.
fn outcome(one: &AskedCondition) -> String {
    let what = match one.policy {
        Policy::Deny => "forbids the call",
        Policy::Approve => "asks the user first",
        Policy::Allow => "allows the call",
    };
    let at_risk = one.risk.map(|risk| format!(", if its risk is at least {}", in_text(risk)));
    let at_risk = at_risk.unwrap_or_default();
    match &one.holds {
        Ok(true) => format!("applies and {what}{at_risk}"),
        Ok(false) => "does not apply".into(),
        Err(why) => format!("fails, so that it {what}{at_risk}: {why}"),
    }
}

fn in_json(
    person: &Person,
    admitted: bool,
    openings: &[(String, Opening<'_>)],
    asked: Option<&[AskedCondition]>,
) -> Value {
    let opening = |opening: &Opening<'_>| match opening {
        Opening::Profile(profile) => json!({ "open": true, "profile": profile }),
        Opening::NeedsScopes(scopes) => json!({ "open": false, "scopes": scopes }),
        Opening::Several(profiles) => json!({ "open": false, "profiles": profiles }),
        Opening::Closed => json!({ "open": false }),
    };
    let addresses: Map<String, Value> =
        openings.iter().map(|(address, one)| (address.clone(), opening(one))).collect();
    let mut out = json!({
        "subject": person.subject, "issuer": person.issuer, "name": person.name, "admitted": admitted,
        "addresses": addresses,
    });
    if let Some(asked) = asked {
        let policies = asked.iter().map(|one| {
            let mut shown = json!({ "rule": one.rule, "policy": one.policy, "applies": *one.holds.as_ref().unwrap_or(&true) });
            if let Some(risk) = one.risk {
                shown["from_risk"] = json!(risk);
            }
            if let Err(why) = &one.holds {
                shown["error"] = json!(why);
            }
            shown
        });
        out["policies"] = policies.collect();
    }
    out
}
