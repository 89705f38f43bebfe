//! Well-known services' keys by their format, each with the source of the format.
//!
//! No maintained crate has a suitable size and age, hence this table. A format is included only if it has a
//! distinctive prefix: random-looking text without one is too often a hash or an id.

use std::{ops::Range, sync::LazyLock};

/// A form of keys.
pub(super) struct KeyFormat {
    /// The name shown for it.
    pub name: &'static str,
    /// Its prefix.
    pub begins: &'static str,
    /// Accepts the characters after the prefix.
    of: fn(u8) -> bool,
    /// The minimum and maximum number of those characters.
    length: (usize, usize),
    /// A further condition.
    also: KeyCondition,
    /// Where the format is documented.
    #[cfg_attr(not(test), allow(dead_code, reason = "for readers, and for the test that nothing lacks one"))]
    pub source: &'static str,
}

/// A further condition on a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyCondition {
    /// It is not a placeholder.
    Varied,
    /// It has three parts, like a JSON web token.
    ThreeParts,
    /// A private key follows the line.
    KeyFollows,
    /// It is the authority of an address, with a password.
    Password,
    /// It is preceded by digits.
    DigitsBefore,
}

const fn letters(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
}
const fn capitals(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit()
}
const fn small(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}
const fn words(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}
const fn token(byte: u8) -> bool {
    words(byte) || byte == b'-'
}
const fn dotted(byte: u8) -> bool {
    token(byte) || byte == b'.'
}
const fn base64(byte: u8) -> bool {
    token(byte) || matches!(byte, b'+' | b'/' | b'=')
}
const fn hexadecimal(byte: u8) -> bool {
    byte.is_ascii_hexdigit()
}
const fn path(byte: u8) -> bool {
    token(byte) || byte == b'/'
}

const fn key(
    name: &'static str,
    begins: &'static str,
    of: fn(u8) -> bool,
    length: (usize, usize),
    source: &'static str,
) -> KeyFormat {
    KeyFormat { name, begins, of, length, also: KeyCondition::Varied, source }
}

const GITHUB: &str =
    "docs.github.com/en/authentication/keeping-your-account-and-data-secure/about-authentication-to-github";
const GITLAB: &str = "docs.gitlab.com/security/tokens/#token-prefixes";
const AWS: &str =
    "docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html#identifiers-unique-ids";
const SLACK: &str = "docs.slack.dev/authentication/tokens";
const STRIPE: &str = "docs.stripe.com/keys";
const OPENAI: &str = "platform.openai.com/docs/api-reference/authentication";
const DIGITALOCEAN: &str = "docs.digitalocean.com/reference/api/create-personal-access-token";
const SHOPIFY: &str = "shopify.dev/changelog/length-of-the-shopify-access-token-is-increasing";
const GRAFANA: &str = "grafana.com/docs/grafana/latest/administration/service-accounts";

/// The formats. A prefix is case-sensitive.
pub(super) static FORMATS: &[KeyFormat] = &[
    key("GitHub token", "ghp_", letters, (36, 255), GITHUB),
    key("GitHub token", "gho_", letters, (36, 255), GITHUB),
    key("GitHub token", "ghu_", letters, (36, 255), GITHUB),
    key("GitHub token", "ghs_", dotted, (36, 1_000), GITHUB),
    key("GitHub token", "ghr_", letters, (36, 255), GITHUB),
    key("GitHub token", "github_pat_", words, (50, 255), GITHUB),
    key("GitLab token", "glpat-", dotted, (20, 300), GITLAB),
    key("GitLab token", "gldt-", dotted, (20, 300), GITLAB),
    key("GitLab token", "glrt-", dotted, (20, 300), GITLAB),
    key("GitLab token", "glptt-", dotted, (40, 300), GITLAB),
    key("GitLab token", "glcbt-", dotted, (20, 300), GITLAB),
    key("GitLab token", "gloas-", dotted, (40, 300), GITLAB),
    key("AWS access key", "AKIA", capitals, (16, 16), AWS),
    key("AWS access key", "ASIA", capitals, (16, 16), AWS),
    key("Google API key", "AIza", token, (35, 35), "cloud.google.com/docs/authentication/api-keys"),
    key(
        "Google access token",
        "ya29.",
        dotted,
        (20, 2_000),
        "developers.google.com/identity/protocols/oauth2",
    ),
    key(
        "Google client secret",
        "GOCSPX-",
        token,
        (28, 28),
        "developers.google.com/identity/protocols/oauth2",
    ),
    key("Slack token", "xoxb-", token, (20, 255), SLACK),
    key("Slack token", "xoxp-", token, (20, 255), SLACK),
    key("Slack token", "xoxa-", token, (20, 255), SLACK),
    key("Slack token", "xoxr-", token, (20, 255), SLACK),
    key("Slack token", "xoxs-", token, (20, 255), SLACK),
    key("Slack token", "xoxe.", dotted, (20, 255), SLACK),
    key("Slack token", "xapp-", token, (20, 255), SLACK),
    key(
        "Slack webhook",
        "hooks.slack.com/services/",
        path,
        (40, 100),
        "docs.slack.dev/messaging/sending-messages-using-incoming-webhooks",
    ),
    key(
        "Discord webhook",
        "discord.com/api/webhooks/",
        path,
        (60, 120),
        "discord.com/developers/docs/resources/webhook",
    ),
    key("Stripe key", "sk_live_", letters, (20, 255), STRIPE),
    key("Stripe key", "sk_test_", letters, (20, 255), STRIPE),
    key("Stripe key", "rk_live_", letters, (20, 255), STRIPE),
    key("Stripe key", "rk_test_", letters, (20, 255), STRIPE),
    key("Stripe webhook secret", "whsec_", base64, (32, 255), "docs.stripe.com/webhooks"),
    key("OpenAI key", "sk-proj-", token, (40, 255), OPENAI),
    key("OpenAI key", "sk-svcacct-", token, (40, 255), OPENAI),
    key("OpenAI key", "sk-admin-", token, (40, 255), OPENAI),
    key("Anthropic key", "sk-ant-", token, (40, 255), "docs.claude.com/en/api/overview"),
    key(
        "OpenRouter key",
        "sk-or-v1-",
        hexadecimal,
        (64, 64),
        "openrouter.ai/docs/api-reference/authentication",
    ),
    key("API key", "sk-", letters, (32, 128), OPENAI),
    key("Groq key", "gsk_", letters, (40, 128), "console.groq.com/docs/quickstart"),
    key("Perplexity key", "pplx-", letters, (40, 128), "docs.perplexity.ai/getting-started/quickstart"),
    key("xAI key", "xai-", letters, (60, 128), "docs.x.ai/docs/tutorial"),
    key("Replicate token", "r8_", letters, (37, 40), "replicate.com/docs/reference/http#authentication"),
    key("Hugging Face token", "hf_", letters, (34, 64), "huggingface.co/docs/hub/security-tokens"),
    key("Tavily key", "tvly-", token, (28, 100), "docs.tavily.com/documentation/quickstart"),
    key("Firecrawl key", "fc-", hexadecimal, (32, 32), "docs.firecrawl.dev/introduction"),
    key("npm token", "npm_", letters, (36, 36), "docs.npmjs.com/about-access-tokens"),
    key("PyPI token", "pypi-AgE", token, (50, 1_000), "pypi.org/help/#apitoken"),
    key(
        "crates.io token",
        "cio",
        letters,
        (32, 32),
        "github.com/rust-lang/crates.io/blob/main/crates/crates_io_token",
    ),
    key("RubyGems key", "rubygems_", hexadecimal, (48, 48), "guides.rubygems.org/api-key-scopes"),
    key("Docker token", "dckr_pat_", token, (27, 64), "docs.docker.com/security/access-tokens"),
    key("Docker token", "dckr_oat_", token, (27, 64), "docs.docker.com/enterprise/security/access-tokens"),
    key("DigitalOcean token", "dop_v1_", hexadecimal, (64, 64), DIGITALOCEAN),
    key("DigitalOcean token", "doo_v1_", hexadecimal, (64, 64), DIGITALOCEAN),
    key("DigitalOcean token", "dor_v1_", hexadecimal, (64, 64), DIGITALOCEAN),
    key(
        "Heroku key",
        "HRKU-AA",
        token,
        (58, 62),
        "devcenter.heroku.com/articles/platform-api-reference#authentication",
    ),
    key("Netlify token", "nfp_", letters, (36, 64), "docs.netlify.com/api/get-started"),
    key("Supabase token", "sbp_", hexadecimal, (40, 40), "supabase.com/docs/reference/api/introduction"),
    key("Supabase key", "sb_secret_", token, (30, 64), "supabase.com/docs/guides/api/api-keys"),
    key(
        "PlanetScale token",
        "pscale_tkn_",
        dotted,
        (32, 64),
        "planetscale.com/docs/api/reference/service-tokens",
    ),
    key(
        "PlanetScale password",
        "pscale_pw_",
        dotted,
        (32, 64),
        "planetscale.com/docs/concepts/connection-strings",
    ),
    key("Databricks token", "dapi", small, (32, 34), "docs.databricks.com/aws/en/dev-tools/auth/pat"),
    key("Vault token", "hvs.", dotted, (24, 300), "developer.hashicorp.com/vault/docs/concepts/tokens"),
    key("Doppler token", "dp.pt.", letters, (40, 44), "docs.doppler.com/reference/auth-token-formats"),
    key("Doppler token", "dp.st.", dotted, (40, 80), "docs.doppler.com/reference/auth-token-formats"),
    key("Tailscale key", "tskey-", token, (20, 100), "tailscale.com/kb/1085/auth-keys"),
    key("1Password token", "ops_eyJ", base64, (100, 2_000), "developer.1password.com/docs/service-accounts"),
    key("age key", "AGE-SECRET-KEY-1", capitals, (58, 58), "age-encryption.org/v1"),
    key(
        "Azure storage key",
        "AccountKey=",
        base64,
        (80, 100),
        "learn.microsoft.com/azure/storage/common/storage-configure-connection-string",
    ),
    key("Notion token", "ntn_", letters, (40, 64), "developers.notion.com/page/changelog"),
    key("Linear key", "lin_api_", letters, (40, 40), "linear.app/developers/graphql"),
    key("Figma token", "figd_", token, (40, 64), "developers.figma.com/docs/rest-api/authentication"),
    key(
        "Atlassian token",
        "ATATT3",
        base64,
        (100, 300),
        "support.atlassian.com/atlassian-account/docs/manage-api-tokens-for-your-atlassian-account",
    ),
    key(
        "Atlassian token",
        "ATCTT3",
        base64,
        (100, 300),
        "support.atlassian.com/bitbucket-cloud/docs/access-tokens",
    ),
    key("Shopify token", "shpat_", hexadecimal, (32, 64), SHOPIFY),
    key("Shopify token", "shpca_", hexadecimal, (32, 64), SHOPIFY),
    key("Shopify token", "shppa_", hexadecimal, (32, 64), SHOPIFY),
    key("Shopify secret", "shpss_", hexadecimal, (32, 64), SHOPIFY),
    key("SendGrid key", "SG.", dotted, (66, 67), "docs.sendgrid.com/ui/account-and-settings/api-keys"),
    key(
        "Mailgun key",
        "key-",
        hexadecimal,
        (32, 32),
        "documentation.mailgun.com/docs/mailgun/api-reference/mg-auth",
    ),
    key(
        "Postman key",
        "PMAK-",
        token,
        (59, 59),
        "learning.postman.com/docs/reference/postman-api/authentication",
    ),
    key(
        "New Relic key",
        "NRAK-",
        capitals,
        (27, 27),
        "docs.newrelic.com/docs/apis/intro-apis/new-relic-api-keys",
    ),
    key("Grafana token", "glsa_", words, (41, 41), GRAFANA),
    key(
        "Grafana token",
        "glc_eyJ",
        base64,
        (50, 500),
        "grafana.com/docs/grafana-cloud/security-and-account-management",
    ),
    key("Sentry token", "sntrys_eyJ", base64, (80, 500), "docs.sentry.io/account/auth-tokens"),
    key("Sentry token", "sntryu_", hexadecimal, (64, 64), "docs.sentry.io/account/auth-tokens"),
    KeyFormat {
        name: "Telegram bot token",
        begins: ":AA",
        of: token,
        length: (33, 33),
        also: KeyCondition::DigitsBefore,
        source: "core.telegram.org/bots/features#botfather",
    },
    KeyFormat {
        name: "JSON web token",
        begins: "eyJ",
        of: dotted,
        length: (40, 8_000),
        also: KeyCondition::ThreeParts,
        source: "RFC 7519",
    },
    KeyFormat {
        name: "private key",
        begins: "-----BEGIN ",
        of: |byte| capitals(byte) || byte == b' ',
        length: (3, 40),
        also: KeyCondition::KeyFollows,
        source: "RFC 7468",
    },
    KeyFormat {
        name: "password in an address",
        begins: "://",
        of: |byte| {
            byte.is_ascii_graphic()
                && !matches!(byte, b'/' | b'?' | b'#' | b'"' | b'\'' | b'<' | b'>' | b'\\' | b'`')
        },
        length: (6, 400),
        also: KeyCondition::Password,
        source: "RFC 3986, 3.2.1",
    },
];

/// How many bytes of a private key are searched for its end, and the minimum number of letters in one.
const LONGEST_KEY: usize = 16_384;
const SHORTEST_KEY: usize = 60;
/// What people write in place of a key or a password.
const PLACEHOLDERS: [&str; 12] = [
    "example",
    "xxxx",
    "your",
    "placeholder",
    "password",
    "passwd",
    "secret",
    "changeme",
    "redacted",
    "token",
    "****",
    "....",
];

/// The formats whose keys are tokens: those of each first letter, with shorter prefixes first.
static TOKENS: LazyLock<[Vec<&KeyFormat>; 128]> = LazyLock::new(|| {
    let mut tokens = [const { Vec::new() }; 128];
    for format in FORMATS.iter().filter(|format| format.is_token()) {
        tokens[usize::from(format.begins.as_bytes()[0])].push(format);
    }
    tokens.iter_mut().for_each(|formats| formats.sort_by_key(|format| format.begins.len()));
    tokens
});

/// Calls `found` with the keys in a token of a text.
pub(super) fn in_token(
    text: &str,
    token: &Range<usize>,
    mut found: impl FnMut(&'static KeyFormat, Range<usize>),
) {
    let bytes = text.as_bytes();
    // A colon before a token is the first character of one prefix.
    let first = token.start - usize::from(bytes[..token.start].ends_with(b":"));
    for start in first..token.end {
        // Where a key can begin: nowhere inside of something longer.
        let may_begin = start <= token.start || !dotted(bytes[start - 1]) || is_escaped(bytes, start);
        let formats = if may_begin { TOKENS.get(usize::from(bytes[start])) } else { None };
        for format in formats.into_iter().flatten() {
            if let Some(range) = format.at(text, start) {
                found(format, range);
            }
        }
    }
}

/// Whether the byte before a place is the end of an escape.
fn is_escaped(bytes: &[u8], start: usize) -> bool {
    start.checked_sub(2).is_some_and(|at| bytes[at] == b'\\' && bytes[at + 1].is_ascii_lowercase())
}

impl KeyFormat {
    /// Whether its keys are tokens, but for a colon before them. The prefixes of the others are searched for
    /// as words.
    pub(super) fn is_token(&self) -> bool {
        !matches!(self.also, KeyCondition::KeyFollows | KeyCondition::Password)
    }

    /// Returns the key that begins at a place.
    pub(super) fn at(&self, text: &str, start: usize) -> Option<Range<usize>> {
        let bytes = text.as_bytes();
        let rest = start + self.begins.len();
        if !bytes[start..].starts_with(self.begins.as_bytes()) {
            return None;
        }
        // A prefix inside something longer is not examined again for each possible start.
        let is_inside = start.checked_sub(1).is_some_and(|before| dotted(bytes[before]));
        // In a JSON text, an escaped line break may precede it.
        if self.begins.as_bytes()[0].is_ascii_alphanumeric() && is_inside && !is_escaped(bytes, start) {
            return None;
        }
        let most = self.length.1 + 1;
        let length = bytes[rest..].iter().take(most).take_while(|byte| (self.of)(**byte)).count();
        if !(self.length.0..=self.length.1).contains(&length) {
            return None;
        }
        let end = rest + length;
        let rest_text = &text[rest..end];
        match self.also {
            KeyCondition::Varied => {
                is_varied(rest_text).then(|| start..start + text[start..end].trim_end_matches('.').len())
            }
            KeyCondition::DigitsBefore => {
                let digits =
                    bytes[..start].iter().rev().take(11).take_while(|byte| byte.is_ascii_digit()).count();
                ((8..=10).contains(&digits) && is_varied(rest_text)).then_some(start - digits..end)
            }
            KeyCondition::ThreeParts => {
                let mut parts = text[start..end].splitn(4, '.');
                let (head, body, sign) = (parts.next()?, parts.next()?, parts.next()?);
                let is_token =
                    head.len() >= 12 && body.len() >= 12 && sign.len() >= 12 && body.starts_with("ey");
                is_token.then(|| start..start + head.len() + body.len() + sign.len() + 2)
            }
            KeyCondition::KeyFollows => {
                let tail = text[end..].strip_prefix("-----")?;
                let begins = text.len() - tail.len();
                let tail = &tail[..tail.floor_char_boundary(LONGEST_KEY)];
                let is_key = rest_text.ends_with("PRIVATE KEY") || rest_text.ends_with("PRIVATE KEY BLOCK");
                let last = tail.find("-----END ");
                let lines = &tail[..last.unwrap_or(tail.len())];
                let has_body = lines.bytes().take(400).filter(|byte| base64(*byte)).count() >= SHORTEST_KEY;
                let close = last.and_then(|at| Some(at + 9 + tail[at + 9..].find("-----")? + 5));
                (is_key && has_body).then(|| start..begins + close.unwrap_or(tail.len()))
            }
            KeyCondition::Password => {
                let (user, _) = rest_text.rsplit_once('@')?;
                let (name, password) = user.split_once(':')?;
                let begins = rest + name.len() + 1;
                let is_variable =
                    password.contains(['$', '{', '<', '*', '[', '%', '(']) && !password.contains('!');
                let percent =
                    password.contains('%') && password.bytes().any(|byte| byte.is_ascii_alphanumeric());
                let lower = password.to_ascii_lowercase();
                let is_placeholder = PLACEHOLDERS.iter().any(|word| lower.contains(word))
                    || ["pass", "pwd", "pw", "user", "postgres", "root", "admin", "guest"]
                        .contains(&lower.as_str())
                    || lower == name.to_ascii_lowercase();
                (password.len() >= 4 && (!is_variable || percent) && !is_placeholder)
                    .then(|| begins..begins + password.len())
            }
        }
    }
}

/// Returns whether a key is not a placeholder: its characters vary, and it contains a digit and no
/// placeholder word.
fn is_varied(rest: &str) -> bool {
    let mut seen = [false; 256];
    rest.bytes().for_each(|byte| seen[usize::from(byte)] = true);
    let kinds = seen.iter().filter(|seen| **seen).count();
    let lower = rest.to_ascii_lowercase();
    kinds >= 7.min(rest.len())
        && rest.contains(|c: char| c.is_ascii_digit())
        && !["example", "xxxx", "your", "placeholder", "redacted", "...."]
            .iter()
            .any(|word| lower.contains(word))
}

#[cfg(test)]
mod tests {
    use nonet_base::blocks::{SHORTEST_RUN, is_token};

    use super::*;

    #[test]
    fn every_form_says_where_it_is_written_down() {
        assert_eq!(FORMATS.len(), 88, "docs/leaks.md says how many");
        for format in FORMATS {
            assert!(!format.source.is_empty() && format.begins.len() >= 3, "{}", format.name);
            assert!(format.length.0 <= format.length.1, "{}", format.name);
        }
    }

    #[test]
    fn a_key_is_long_enough_to_be_found_as_a_token() {
        for format in FORMATS.iter().filter(|format| format.is_token()) {
            let begins = format.begins.trim_start_matches(':');
            assert!(begins.len() + format.length.0 >= SHORTEST_RUN, "{}", format.name);
            let is_part = |byte: u8| is_token(byte) || !(format.of)(byte);
            assert!(begins.bytes().all(is_token) && (0..=u8::MAX).all(is_part), "{}", format.name);
        }
    }
}
