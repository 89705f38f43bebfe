//! The issuer of the tests, and attacks on its gateway.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use nonet_base::clock::{system_time, unix_ms};
use nonet_config::{AuthSettings, BearerToken, ValueSources};
use nonet_testing::{TokenIssuer, TokenKey, unsigned};
use ring::hmac;
use serde_json::{Value, json};

use super::{Issuers, TokenFault};

const US: &str = "https://nonet.example.com/mcp";

fn now() -> u64 {
    unix_ms(system_time()) / 1_000
}

/// Returns a gateway's view of an issuer, with more lines in `[auth]`.
fn issuers_of(of: &TokenIssuer, more: &str) -> Issuers {
    Issuers::new(&settings(&format!("issuer = '{}'\n{more}", of.address)), None).expect("a client")
}

fn claims_of(of: &TokenIssuer) -> Value {
    json!({ "iss": of.address, "sub": "ann", "aud": US, "exp": now() + 60 })
}

fn settings(auth: &str) -> AuthSettings {
    let text = format!("[gateway]\npublic_url = 'https://nonet.example.com'\n[auth]\n{auth}");
    let env = |name: &str| (name == "SECRET").then(|| "s3cret".to_string());
    let sources = ValueSources { env: &env, ..ValueSources::NONE };
    let loaded = nonet_config::parse(&text, std::path::Path::new("f"), sources);
    let loaded = loaded.unwrap_or_else(|error| panic!("{text}\n{error:?}"));
    loaded.config.auth.expect("a table")
}

async fn identified(issuers: &Issuers, token: &str) -> Result<String, TokenFault> {
    let person = issuers.identify(token, BearerToken::new(token), US).await?;
    Ok(person.subject.to_string())
}

fn with(claims: &Value, changes: Value) -> Value {
    let mut claims = claims.clone();
    for (name, value) in changes.as_object().cloned().unwrap_or_default() {
        match value {
            Value::Null => drop(claims.as_object_mut().map(|all| all.shift_remove(&name))),
            value => claims[name] = value,
        }
    }
    claims
}

#[tokio::test]
async fn a_token_is_believed_only_as_its_issuer_made_it() {
    let (key, foreign) = (TokenKey::new("one"), TokenKey::new("one"));
    let issuer = TokenIssuer::start(&[&key]);
    let issuers = issuers_of(&issuer, "");
    let claims = claims_of(&issuer);
    let check = async |token: String, expected: &str| {
        let found = match identified(&issuers, &token).await {
            Ok(subject) => subject,
            Err(fault) => fault.to_string(),
        };
        assert!(found.contains(expected), "expected {expected}, found {found}: {token}");
    };
    let signed = |changes: Value| key.token(&key.header(), &with(&claims, changes));
    check(signed(json!({})), "ann").await;
    check(signed(json!({ "aud": [US, "https://other"] })), "ann").await;
    check(signed(json!({ "aud": format!("{US}/") })), "ann").await;
    // Within the skew of clocks.
    check(signed(json!({ "exp": now() - 5, "nbf": now() + 5 })), "ann").await;
    check(key.token(&json!({ "alg": "ES256", "typ": "JWT" }), &claims), "ann").await;

    check(signed(json!({ "exp": now() - 60 })), "expired").await;
    check(signed(json!({ "nbf": now() + 600 })), "not valid yet").await;
    check(signed(json!({ "exp": null })), "lacks a claim").await;
    check(signed(json!({ "exp": "never" })), "not valid").await;
    check(signed(json!({ "sub": null })), "lacks a claim").await;
    check(signed(json!({ "sub": 7 })), "not valid").await;
    check(signed(json!({ "aud": "https://other" })), "is for `https://other`").await;
    check(signed(json!({ "aud": null })), "nobody in particular").await;
    check(signed(json!({ "aud": format!("{US}/reader") })), "is for").await;
    check(signed(json!({ "iss": "https://elsewhere" })), "not one of `[auth]`").await;
    check(signed(json!({ "iss": format!("{}/", issuer.address) })), "not one of `[auth]`").await;
    check(signed(json!({ "iss": [issuer.address] })), "not one of `[auth]`").await;
    // Another key under the same name, and a changed claim.
    check(foreign.token(&foreign.header(), &claims), "signature").await;
    let (head, tail) = (signed(json!({})), signed(json!({ "sub": "bob" })));
    let mixed: Vec<&str> = head.split('.').take(1).chain(tail.split('.').skip(1).take(1)).collect();
    let signature = head.rsplit('.').next().unwrap_or_default();
    check(format!("{}.{signature}", mixed.join(".")), "signature").await;
    // Without a signature, and with the public key as a shared secret.
    for algorithm in ["none", "None", "NONE"] {
        let header = json!({ "alg": algorithm, "kid": "one" });
        check(format!("{}.", unsigned(&header, &claims)), "neither a token of servers.toml").await;
    }
    let text = unsigned(&json!({ "alg": "HS256", "kid": "one" }), &claims);
    for secret in [key.point().to_vec(), key.public().to_string().into_bytes()] {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &secret), text.as_bytes());
        check(format!("{text}.{}", URL_SAFE_NO_PAD.encode(tag.as_ref())), "not allowed").await;
    }
    // Another algorithm than the key's, a key in the token itself, and an extension that is not understood.
    check(key.token(&with(&key.header(), json!({ "alg": "ES384" })), &claims), "not allowed").await;
    check(foreign.token(&with(&foreign.header(), json!({ "jwk": foreign.public() })), &claims), "signature")
        .await;
    check(key.token(&with(&key.header(), json!({ "crit": ["x"], "x": 1 })), &claims), "not valid").await;
    // Other tokens of the same issuer.
    for kind in ["dpop+jwt", "logout+jwt", "secevent+jwt"] {
        check(key.token(&with(&key.header(), json!({ "typ": kind })), &claims), "not an access token").await;
    }
    for broken in ["", "x", "a.b", "a.b.c", "..", &"x".repeat(20_000), &signed(json!({}))[1..]] {
        check(broken.into(), "not valid").await;
    }
}

#[tokio::test]
async fn keys_rotate_and_invented_ones_cost_the_issuer_nothing() {
    let (old, new) = (TokenKey::new("old"), TokenKey::new("new"));
    let issuer = TokenIssuer::start(&[&old]);
    let issuers = issuers_of(&issuer, "");
    let claims = claims_of(&issuer);
    assert_eq!(identified(&issuers, &old.token(&old.header(), &claims)).await, Ok("ann".into()));
    // One request for all tokens with a key that is not there.
    issuer.has(&[&new]);
    for at in 0..20 {
        let invented = new.token(&with(&new.header(), json!({ "kid": format!("no-{at}") })), &claims);
        assert!(identified(&issuers, &invented).await.is_err());
    }
    let fetched = issuer.times_fetched();
    assert!((1..=2).contains(&fetched), "{fetched}");
    // A withdrawn key does not count any more, even for a token that was checked before.
    let issuers = issuers_of(&issuer, "");
    issuer.has(&[&old]);
    let by_old = old.token(&old.header(), &claims);
    assert!(identified(&issuers, &by_old).await.is_ok());
    issuer.has(&[&new]);
    let issuers_later = issuers_of(&issuer, "");
    assert!(identified(&issuers_later, &new.token(&new.header(), &claims)).await.is_ok());
    assert!(identified(&issuers_later, &by_old).await.is_err());
}

#[tokio::test]
async fn an_issuer_that_is_away_is_said_to_be() {
    let key = TokenKey::new("one");
    let mut issuer = TokenIssuer::start(&[&key]);
    let issuers = issuers_of(&issuer, "");
    let token = key.token(&key.header(), &claims_of(&issuer));
    assert!(identified(&issuers, &token).await.is_ok());
    issuer.stop();
    // Known keys count on.
    assert!(
        identified(&issuers, &key.token(&key.header(), &with(&claims_of(&issuer), json!({ "jti": "2" }))))
            .await
            .is_ok()
    );
    let away = identified(&issuers_of(&issuer, ""), &token).await;
    assert!(matches!(away, Err(TokenFault::Away(_))), "{away:?}");
}

#[tokio::test]
async fn metadata_does_not_lead_to_another_issuer_or_inside() {
    let key = TokenKey::new("one");
    let issuer = TokenIssuer::start(&[&key]);
    let token = key.token(&key.header(), &claims_of(&issuer));
    let check = async |metadata: Value, expected: &str| {
        issuer.says(metadata.clone());
        let found = identified(&issuers_of(&issuer, ""), &token).await;
        let Err(TokenFault::Away(why)) = &found else { panic!("{metadata}: {found:?}") };
        assert!(why.contains(expected), "{metadata}: {why}");
    };
    let keys = format!("{}/keys", issuer.address);
    check(json!({ "issuer": "https://elsewhere", "jwks_uri": keys }), "says that it is `https://elsewhere`")
        .await;
    check(json!({ "jwks_uri": keys }), "says that it is `nobody`").await;
    check(json!({ "issuer": issuer.address }), "no `jwks_uri`").await;
    for inside in ["http://169.254.169.254/keys", "http://10.0.0.1/keys", "http://[::1]:1/keys"] {
        check(json!({ "issuer": issuer.address, "jwks_uri": inside }), "private address").await;
    }
    check(json!({ "issuer": issuer.address, "jwks_uri": "file:///etc/passwd" }), "passwd").await;
    check(json!({ "issuer": issuer.address, "jwks_uri": "no address" }), "no address").await;
    // The user's own address counts instead.
    issuer.says(json!({}));
    assert!(identified(&issuers_of(&issuer, &format!("jwks = '{keys}'")), &token).await.is_ok());
}

#[tokio::test]
async fn an_issuer_is_asked_about_tokens_that_only_it_can_read() {
    let key = TokenKey::new("one");
    let issuer = TokenIssuer::start(&[&key]);
    let asks = format!(
        "introspection = '{}/ask'\nclient_id = 'nonet'\nclient_secret = '${{SECRET}}'",
        issuer.address
    );
    let said = |changes: Value| {
        let active = with(&claims_of(&issuer), json!({ "active": true }));
        issuer.says_about_tokens(with(&active, changes));
    };
    said(json!({}));
    let issuers = issuers_of(&issuer, &asks);
    assert_eq!(identified(&issuers, "opaque-token-1").await, Ok("ann".into()));
    assert_eq!(identified(&issuers, "opaque-token-1").await, Ok("ann".into()));
    assert_eq!(issuer.times_asked(), 1, "the answer counts for a while");
    for (changes, expected) in [
        (json!({ "active": false }), "not active"),
        (json!({ "active": "true" }), "not active"),
        (json!({ "active": null }), "not active"),
        (json!({ "iss": "https://elsewhere" }), "not active"),
        (json!({ "sub": null }), "names nobody"),
        (json!({ "exp": now() - 60 }), "expired"),
        (json!({ "aud": "https://other" }), "https://other"),
    ] {
        said(changes.clone());
        let found = identified(&issuers_of(&issuer, &asks), "opaque-token-2").await;
        let Err(fault) = found else { panic!("{changes}: {found:?}") };
        assert!(fault.to_string().contains(expected), "{changes}: {fault}");
    }
    // A signed token that was revoked.
    said(json!({ "active": false }));
    let token = key.token(&key.header(), &claims_of(&issuer));
    let revoked = identified(&issuers_of(&issuer, &asks), &token).await;
    assert!(revoked.as_ref().is_err_and(|fault| fault.to_string().contains("not active")), "{revoked:?}");
    // What the issuer adds counts, and does not replace what it has signed.
    said(json!({ "sub": "bob", "groups": ["admins"] }));
    let issuers = issuers_of(&issuer, &asks);
    let person = issuers.identify(&token, BearerToken::new(&token), US).await.expect("a person");
    assert_eq!((&*person.subject, &person.claims["groups"]), ("ann", &json!(["admins"])));
}

#[tokio::test]
async fn a_blocked_person_stays_out_whatever_the_token_says() {
    let key = TokenKey::new("one");
    let issuer = TokenIssuer::start(&[&key]);
    let token = key.token(&key.header(), &claims_of(&issuer));
    assert_eq!(
        identified(&issuers_of(&issuer, "blocked = ['bob', 'ann']"), &token).await,
        Err(TokenFault::Blocked)
    );
    assert!(identified(&issuers_of(&issuer, "blocked = ['bob']"), &token).await.is_ok());
    let elsewhere = issuers_of(&issuer, "audience = ['api://nonet', 'other']");
    assert!(matches!(identified(&elsewhere, &token).await, Err(TokenFault::OtherAudience(_))));
    let token = key.token(&key.header(), &with(&claims_of(&issuer), json!({ "aud": "api://nonet" })));
    assert!(identified(&elsewhere, &token).await.is_ok());
    let only = issuers_of(&issuer, "algorithms = ['RS256']\naudience = 'api://nonet'");
    assert!(identified(&only, &token).await.is_err_and(|fault| fault.to_string().contains("not allowed")));
}

#[tokio::test]
async fn a_change_of_the_rest_keeps_keys_and_checked_tokens() {
    let key = TokenKey::new("one");
    let mut issuer = TokenIssuer::start(&[&key]);
    let before = issuers_of(&issuer, "");
    let token = key.token(&key.header(), &claims_of(&issuer));
    assert!(identified(&before, &token).await.is_ok());
    issuer.stop();
    let with = |more: &str| settings(&format!("issuer = '{}'\n{more}", issuer.address));
    let blocked = Issuers::new(&with("blocked = ['bob']"), Some(&before)).expect("a client");
    assert!(identified(&blocked, &token).await.is_ok(), "its issuer is away, and need not be asked");
    let blocked = Issuers::new(&with("blocked = ['ann']"), Some(&blocked)).expect("a client");
    assert_eq!(identified(&blocked, &token).await, Err(TokenFault::Blocked));
    let stricter = Issuers::new(&with("algorithms = ['RS256']"), Some(&before)).expect("a client");
    assert!(matches!(identified(&stricter, &token).await, Err(TokenFault::Away(_))), "it is checked again");
}

#[tokio::test]
async fn a_token_without_the_id_of_its_key_may_be_of_a_new_one() {
    let (old, new) = (TokenKey::new("old"), TokenKey::new("new"));
    let issuer = TokenIssuer::start(&[&old]);
    let header = json!({ "alg": "ES256", "typ": "JWT" });
    let token = new.token(&header, &claims_of(&issuer));
    issuer.has(&[&old, &new]);
    assert_eq!(identified(&issuers_of(&issuer, ""), &token).await, Ok("ann".into()));
}
