//! Which profile a person gets.

use nonet_config::{AuthSettings, Config, Profile};

use crate::Person;

/// What an address is to a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opening<'a> {
    /// They get this profile; `None`: everything.
    Profile(Option<&'a str>),
    /// It would be theirs with a token for these scopes. Holds all that it needs, not only those that lack: a
    /// client asks for exactly these.
    NeedsScopes(Vec<String>),
    /// Several profiles are theirs, and none is more theirs than the others. Holds their names.
    Several(Vec<&'a str>),
    /// Nothing is theirs there.
    Closed,
}

/// Returns what a person gets at `/mcp/NAME` if it is `named`, else at `/mcp`, where `default` is the profile of
/// `--profile`.
///
/// A profile with `claims` or `scopes` is for those who have all of them; `auth.profile` is for everybody who has
/// signed in. At `/mcp`, the profile with the most conditions counts. Where the configuration says neither,
/// whoever has signed in gets what a token of `[gateway]` gets.
pub fn of<'a>(
    config: &'a Config,
    auth: &'a AuthSettings,
    person: &Person,
    named: Option<&'a str>,
    default: Option<&'a str>,
) -> Opening<'a> {
    let opening = match named {
        Some(name) => at(config, auth, person, name),
        None => at_root(config, auth, person, default),
    };
    let lacks = auth.scopes.iter().any(|scope| !person.scopes.contains(scope));
    let of_profile = match &opening {
        Opening::Closed => return Opening::Closed,
        Opening::NeedsScopes(scopes) => scopes.clone(),
        Opening::Profile(Some(name)) if lacks => {
            config.profiles.get(*name).map(|profile| profile.scopes.clone()).unwrap_or_default()
        }
        _ if lacks => Vec::new(),
        _ => return opening,
    };
    let mut needed: Vec<String> = auth.scopes.iter().cloned().chain(of_profile).collect();
    needed.sort();
    needed.dedup();
    Opening::NeedsScopes(needed)
}

/// Returns a profile that is a person's by their claims, and whether their token has its scopes.
fn fit<'a>(config: &'a Config, person: &Person, name: &str) -> Option<(&'a Profile, bool)> {
    let profile = config.profiles.get(name).filter(|profile| profile.is_of_people())?;
    let has_all = profile.claims.iter().all(|(claim, wanted)| wanted.is_met(claim, &person.claims));
    has_all.then(|| (profile, profile.scopes.iter().all(|scope| person.scopes.contains(scope))))
}

fn at<'a>(config: &'a Config, auth: &AuthSettings, person: &Person, name: &'a str) -> Opening<'a> {
    if !auth.sorts_people || auth.profile.as_deref() == Some(name) {
        return Opening::Profile(Some(name));
    }
    match fit(config, person, name) {
        Some((_, true)) => Opening::Profile(Some(name)),
        Some((profile, false)) => Opening::NeedsScopes(profile.scopes.clone()),
        None => Opening::Closed,
    }
}

fn at_root<'a>(
    config: &'a Config,
    auth: &'a AuthSettings,
    person: &Person,
    default: Option<&'a str>,
) -> Opening<'a> {
    if !auth.sorts_people {
        return Opening::Profile(default);
    }
    let fits = config.profiles.keys().filter_map(|name| Some((name.as_str(), fit(config, person, name)?)));
    let (open, closed): (Vec<_>, Vec<_>) = fits.partition(|(_, (_, is_open))| *is_open);
    let conditions = |profile: &Profile| profile.claims.len() + profile.scopes.len();
    let most = open.iter().map(|(_, (profile, _))| conditions(profile)).max();
    let best = open.iter().filter(|(_, (profile, _))| Some(conditions(profile)) == most);
    let best: Vec<&str> = best.map(|(name, _)| *name).collect();
    match (&best[..], auth.profile.as_deref()) {
        ([one], _) => Opening::Profile(Some(one)),
        ([], Some(of_all)) => Opening::Profile(Some(of_all)),
        ([], None) => {
            let fewest =
                closed.into_iter().map(|(_, (profile, _))| &profile.scopes).min_by_key(|all| all.len());
            fewest.map_or(Opening::Closed, |scopes| Opening::NeedsScopes(scopes.clone()))
        }
        _ => Opening::Several(best),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;
    use nonet_config::ValueSources;

    /// Returns the opening of `/mcp` or `/mcp/NAME` for the claims of a token, in words.
    fn opened(text: &str, claims: Value, named: Option<&str>) -> String {
        let auth = "[gateway]\npublic_url = 'https://mcp.example.com'\n[auth]\nissuer = 'https://id'\n";
        let text = format!("{auth}{text}");
        let loaded = nonet_config::parse(&text, Path::new("f"), ValueSources::NONE).expect("it is usable");
        assert!(loaded.faults.is_empty(), "{:?}", loaded.faults);
        let Value::Object(mut all) = claims else { panic!("claims are an object") };
        all.insert("sub".into(), "ann".into());
        let person = Person::of("https://id", all).expect("a person");
        let auth = loaded.config.auth.as_ref().expect("a table");
        match of(&loaded.config, auth, &person, named, Some("plain")) {
            Opening::Profile(profile) => profile.unwrap_or("everything").into(),
            Opening::NeedsScopes(scopes) => format!("needs {}", scopes.join(" ")),
            Opening::Several(names) => format!("several {}", names.join(" ")),
            Opening::Closed => "closed".into(),
        }
    }

    #[test]
    fn claims_and_scopes_choose_the_profile() {
        let sorted = "[profiles.plain]\n\
                      [profiles.analyst]\nclaims = { groups = 'analysts' }\n\
                      [profiles.writer]\nclaims = { groups = 'analysts' }\nscopes = ['files:write']\n\
                      [profiles.admin]\nclaims = { 'realm_access.roles' = ['owner', 'admin'] }\n\
                      [profiles.robot]\nscopes = ['robots']\n";
        let check = |claims: Value, at_root: &str, at_writer: &str| {
            assert_eq!(opened(sorted, claims.clone(), None), at_root, "{claims} at the root");
            assert_eq!(opened(sorted, claims.clone(), Some("writer")), at_writer, "{claims} at /mcp/writer");
        };
        check(json!({ "groups": ["analysts", "x"] }), "analyst", "needs files:write");
        check(json!({ "groups": "analysts", "scope": "files:write" }), "writer", "writer");
        check(json!({ "realm_access": { "roles": ["admin"] } }), "admin", "closed");
        check(json!({ "realm_access.roles": "owner" }), "admin", "closed");
        check(json!({ "scope": "robots" }), "robot", "closed");
        check(
            json!({ "scope": "robots", "groups": ["analysts"] }),
            "several analyst robot",
            "needs files:write",
        );
        // Whoever might get in with more scopes is told which.
        check(json!({ "groups": ["others"] }), "needs robots", "closed");
        check(json!({}), "needs robots", "closed");
        assert_eq!(opened(sorted, json!({}), Some("plain")), "closed");
        assert_eq!(opened(sorted, json!({}), Some("nothing")), "closed");
    }

    #[test]
    fn everybody_who_signs_in_gets_what_the_file_says() {
        assert_eq!(opened("[profiles.plain]\n", json!({}), None), "plain");
        assert_eq!(opened("[profiles.plain]\n", json!({}), Some("plain")), "plain");
        let of_all = "profile = 'guest'\nscopes = ['mcp']\n[profiles.guest]\n[profiles.plain]\n\
                      [profiles.staff]\nclaims = { staff = true }\nscopes = ['staff']\n";
        assert_eq!(opened(of_all, json!({}), None), "needs mcp");
        assert_eq!(opened(of_all, json!({ "scope": "mcp" }), None), "guest");
        assert_eq!(opened(of_all, json!({ "scope": "mcp" }), Some("plain")), "closed");
        assert_eq!(opened(of_all, json!({ "staff": true, "scope": "mcp staff" }), None), "staff");
        assert_eq!(opened(of_all, json!({ "staff": true, "scope": "mcp" }), None), "guest");
        assert_eq!(opened(of_all, json!({ "staff": true }), Some("staff")), "needs mcp staff");
        assert_eq!(opened(of_all, json!({ "staff": "true", "scope": "mcp staff" }), Some("staff")), "closed");
    }
}
