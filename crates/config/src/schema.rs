//! The file's JSON Schema, generated from the types.
//!
//! Single values are checked by custom `format`s, so that every check has a place in the schema and thereby a
//! line in the file.

use nonet_search as search;
use nonet_text::{fault::FaultCode, name::ServerName};
use nonet_wire::reach::names_private;
use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, json_schema};
use serde_json::{Value, json};

use super::{
    AddressRange, AuditSettings, Category, ClientSettings, ClusterSettings, GatewaySettings, Globs,
    LimitSettings, PolicyRule, Profile, QuotaSettings, Rate, RedisUrl, RegistrySettings, ReplicaAddress,
    apps::{AppTable, model_word},
    audit::syslog_url,
    auth::AuthTable,
    rest, sandbox,
    servers::{Placement, ServerCredentials, ServerTable},
    values::{BearerToken, time},
};
use crate::{
    keyring,
    secret_commands::SecretCommand,
    select::{self, SelectError},
};

/// Checks a string. `Err` is the predicate of the fault, to follow "`the text`" or "this value".
pub(super) type Check = fn(&str) -> Result<(), String>;

/// The formats that the types use.
pub(super) const FORMATS: [(&str, Check); 33] = [
    ("time-span", |text| time::parse(text).map(drop).map_err(Into::into)),
    ("glob", |text| {
        Globs::new(vec![text.into()]).map(drop).map_err(|e| format!("is not a valid pattern ({})", e.kind()))
    }),
    ("rate", |text| text.parse::<Rate>().map(drop).map_err(Into::into)),
    ("http-url", http_url),
    ("base-url", base_url),
    ("issuer-url", issuer_url),
    ("openapi", openapi),
    ("http-method", http_method),
    ("endpoint-path", |text| path_params(text).map(drop)),
    ("app-model", model_word),
    ("redirect-uri", redirect_uri),
    ("redis-url", RedisUrl::check),
    ("http-origin", ReplicaAddress::check),
    ("placement", Placement::check),
    ("credentials", ServerCredentials::check),
    ("syslog-url", syslog_url),
    ("header-name", header_name),
    ("header-value", header_value),
    ("param-header", |text| match UNSETTABLE.iter().any(|name| name.eq_ignore_ascii_case(text)) {
        true => Err("is not for models to set; put it into `headers` of the server".into()),
        false => header_name(text),
    }),
    ("response-header", |text| match http::HeaderName::from_bytes(text.as_bytes()) {
        Ok(_) => Ok(()),
        Err(_) => Err("is not a valid header name".into()),
    }),
    ("env-name", |text| match text.is_empty() || text.contains(['=', '\0']) {
        true => Err("is not a valid name for an environment variable".into()),
        false => Ok(()),
    }),
    ("server-name", |text| {
        ServerName::new(text)
            .map(drop)
            .map_err(|bad| format!("is not a valid server name ({}); try `{}`", bad.why, bad.nearest))
    }),
    ("bearer-token", BearerToken::check),
    ("address-range", |text| text.parse::<AddressRange>().map(drop)),
    ("plain-name", plain_name),
    ("secret-name", |text| match keyring::is_name(text) && text != "keyring" {
        true => Ok(()),
        false => Err("must be letters, digits and `_`, begin with no digit, and not be `keyring`".into()),
    }),
    ("sandbox", sandbox::level),
    ("sandbox-host", sandbox::host),
    ("sandbox-net", sandbox::net),
    ("step-id", |text| match text {
        "input" => Err("is reserved for the app's input".into()),
        _ => plain_name(text),
    }),
    ("jq-filter", |text| match select::check(text) {
        Ok(()) => Ok(()),
        Err(SelectError::Syntax(_, why)) => Err(format!("is not a jq filter ({why})")),
        Err(error) => Err(format!("is not a jq filter ({error})")),
    }),
    ("jq-condition", |text| match select::check_condition(text) {
        Ok(()) => Ok(()),
        Err(SelectError::Syntax(_, why)) => Err(format!("is not a condition ({why})")),
        Err(error) => Err(format!("is not a condition ({error})")),
    }),
    ("fault-code", |text| match FaultCode::of(text) {
        Some(_) => Ok(()),
        None => {
            let known = FaultCode::ALL.map(FaultCode::as_str);
            Err(format!("is not an error code; choose from {}", known.join(", ")))
        }
    }),
];

/// Headers reserved for the protocol.
const OWN_HEADERS: [&str; 7] = [
    "accept",
    "content-length",
    "content-type",
    "host",
    "last-event-id",
    "mcp-protocol-version",
    "mcp-session-id",
];

/// Headers that no param of an endpoint may set: identity and connection headers.
const UNSETTABLE: [&str; 7] = [
    "authorization",
    "connection",
    "cookie",
    "keep-alive",
    "proxy-authorization",
    "transfer-encoding",
    "upgrade",
];

/// Makes the schema of one table.
type MakeSchema = fn(&mut SchemaGenerator) -> Schema;

/// The tables of a config file, and the schema of each.
pub(super) const SECTIONS: [(&str, MakeSchema); 15] = [
    ("gateway", SchemaGenerator::subschema_for::<GatewaySettings>),
    ("quotas", SchemaGenerator::subschema_for::<QuotaSettings>),
    ("limits", SchemaGenerator::subschema_for::<LimitSettings>),
    ("auth", SchemaGenerator::subschema_for::<AuthTable>),
    ("audit", SchemaGenerator::subschema_for::<AuditSettings>),
    ("cluster", SchemaGenerator::subschema_for::<ClusterSettings>),
    ("registry", SchemaGenerator::subschema_for::<RegistrySettings>),
    ("embedder", SchemaGenerator::subschema_for::<search::Settings>),
    ("secrets", |generator| {
        entries::<SecretCommand>(generator, "secret-name", "Programs that print secrets, by name.")
    }),
    ("servers", |generator| entries::<ServerTable>(generator, "server-name", "The servers, by name.")),
    ("categories", |generator| entries::<Category>(generator, "plain-name", "Groups of tools.")),
    ("profiles", |generator| entries::<Profile>(generator, "plain-name", "What clients may see.")),
    ("policies", |generator| {
        entries::<PolicyRule>(generator, "plain-name", "What happens when certain tools are called.")
    }),
    ("clients", |generator| entries::<ClientSettings>(generator, "plain-name", "Limits of clients.")),
    ("apps", |generator| {
        entries::<AppTable>(generator, "plain-name", "Workflows, models with tools, and named tools.")
    }),
];

/// Returns the JSON Schema of a config file.
pub fn schema() -> Value {
    schema_of(|_| true)
}

/// Returns the JSON Schema of a config file, in which tables that are not `wanted` may hold anything: making
/// all of them costs a start more than anything else.
pub(super) fn schema_of(wanted: impl Fn(&str) -> bool) -> Value {
    let settings =
        SchemaSettings::draft07().for_deserialize().with(|settings| settings.inline_subschemas = true);
    let mut generator = settings.into_generator();
    let sections = SECTIONS.iter().map(|(name, section)| {
        let section = if wanted(name) { json!(section(&mut generator)) } else { Value::Bool(true) };
        ((*name).to_owned(), section)
    });
    let sections: serde_json::Map<String, Value> = sections.collect();
    let mut schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "servers.toml",
        "description": "The servers behind a Nonet gateway, and the gateway itself.",
        "type": "object",
        "properties": sections,
        "additionalProperties": false,
    });
    plain(&mut schema);
    schema
}

/// Returns the schema of a text with a format.
pub(super) fn named(format: &str, example: &str) -> Schema {
    json_schema!({ "type": "string", "format": format, "examples": [example] })
}

/// Returns the schema of a table whose keys have a format.
pub(super) fn with_keys(format: &str, value: Schema, example: Value) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": value,
        "propertyNames": { "format": format },
        "examples": [example],
    })
}

/// Returns the schema of a key that takes a table or a word of a format, in this order of types.
pub(super) fn table_or_word<T: JsonSchema>(
    generator: &mut SchemaGenerator,
    types: [&str; 2],
    format: &str,
    example: Value,
) -> Schema {
    let mut schema = T::json_schema(generator);
    for (key, value) in [("type", json!(types)), ("format", json!(format)), ("examples", json!([example]))] {
        schema.insert(key.into(), value);
    }
    for key in ["description", "title", "default"] {
        schema.remove(key);
    }
    schema
}

fn entries<T: JsonSchema>(generator: &mut SchemaGenerator, format: &str, description: &str) -> Schema {
    let mut schema = with_keys(format, generator.subschema_for::<T>(), json!({}));
    schema.remove("examples");
    schema.insert("description".into(), description.into());
    schema
}

/// Simplifies a schema to TOML's needs: without null, and with a choice of texts as one `enum`.
fn plain(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(plain),
        Value::Object(members) => {
            members.values_mut().for_each(plain);
            if let Some(Value::String(description)) = members.get_mut("description") {
                *description = description.replace('\n', " ");
            }
            if members.get("default") == Some(&Value::Null) {
                members.shift_remove("default");
            }
            if let Some(Value::Array(types)) = members.get_mut("type") {
                types.retain(|name| name != "null");
                if let [only] = types.as_slice() {
                    let only = only.clone();
                    members.insert("type".into(), only);
                }
            }
            if let Some(Value::Array(choices)) = members.get_mut("enum") {
                choices.retain(|choice| !choice.is_null());
            }
            if let Some(Value::Array(mut variants)) = members.shift_remove("anyOf") {
                variants.retain(|variant| variant["type"] != "null");
                for variant in variants {
                    for (key, value) in variant.as_object().cloned().unwrap_or_default() {
                        members.entry(key).or_insert(value);
                    }
                }
            }
            if let Some(Value::Array(variants)) = members.shift_remove("oneOf") {
                let choices: Vec<_> = variants.iter().flat_map(choices).collect();
                members.insert("type".into(), "string".into());
                members.insert("enum".into(), choices.into());
            }
        }
        _ => {}
    }
}

fn choices(variant: &Value) -> Vec<Value> {
    match (variant.get("const"), variant.get("enum")) {
        (Some(choice), _) => vec![choice.clone()],
        (None, Some(Value::Array(choices))) => choices.clone(),
        _ => Vec::new(),
    }
}

fn plain_name(text: &str) -> Result<(), String> {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    match text.chars().all(good) && (1..=64).contains(&text.len()) {
        true => Ok(()),
        false => Err("must be 1 to 64 characters from a-z, A-Z, 0-9, `-` and `_`".into()),
    }
}

/// Checks that a text is a valid server address.
pub fn http_url(text: &str) -> Result<(), String> {
    if !text.starts_with("http://") && !text.starts_with("https://") {
        return Err("is not an http:// or https:// address".into());
    }
    let url: http::Uri = text.parse().map_err(|error| format!("is not a valid address ({error})"))?;
    match url.host() {
        Some(host) if !host.is_empty() => Ok(()),
        _ => Err("has no host".into()),
    }
}

/// Checks the address of an issuer, or of a part of it: tokens and keys go there, so it has TLS, or is in the
/// own network.
fn issuer_url(text: &str) -> Result<(), String> {
    http_url(text)?;
    if text.contains(['?', '#']) {
        return Err("has a query or a fragment, which no issuer has".into());
    }
    match text.starts_with("https://") || names_private(text) {
        true => Ok(()),
        false => Err("is not an https:// address".into()),
    }
}

/// Checks that paths can be appended to an address.
fn base_url(text: &str) -> Result<(), String> {
    http_url(text)?;
    match text.contains('#') {
        true => Err("has a fragment, which is never sent".into()),
        false => Ok(()),
    }
}

/// Checks that a text names a document: an address, or a file.
fn openapi(text: &str) -> Result<(), String> {
    match () {
        () if rest::is_url(text) => http_url(text),
        () if text.trim().is_empty() => Err("must not be empty".into()),
        () if text.contains("://") => Err("is neither a file nor an http:// or https:// address".into()),
        () => Ok(()),
    }
}

/// The methods allowed for an endpoint.
const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];

fn http_method(text: &str) -> Result<(), String> {
    match METHODS.iter().any(|method| method.eq_ignore_ascii_case(text)) {
        true => Ok(()),
        false => Err(format!("is not one of {}", METHODS.join(", "))),
    }
}

/// Returns the params in braces of an endpoint's path.
pub(super) fn path_params(path: &str) -> Result<Vec<&str>, String> {
    if !path.starts_with('/') {
        return Err("must begin with `/`".into());
    }
    if path.contains('#') || path.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err("has white space or `#`; percent-encode it".into());
    }
    let mut params: Vec<&str> = Vec::new();
    let mut rest = path;
    while let Some(at) = rest.find(['{', '}']) {
        let inside = rest[at..].strip_prefix('{').and_then(|inside| inside.split_once('}'));
        // With `+` or `*`, the value may contain slashes.
        let name = inside.map(|(name, _)| name.strip_prefix('+').or(name.strip_suffix('*')).unwrap_or(name));
        let (Some(name), Some((_, after))) =
            (name.filter(|name| !name.is_empty() && !name.contains('{')), inside)
        else {
            return Err("has braces that do not enclose a name".into());
        };
        if !params.contains(&name) {
            params.push(name);
        }
        rest = after;
    }
    Ok(params)
}

/// Checks a redirect address: the browser must return to this machine (RFC 8252, section 7.3), and Nonet must
/// know where to listen.
fn redirect_uri(text: &str) -> Result<(), String> {
    let uri: http::Uri = text.parse().map_err(|error| format!("is not a valid address ({error})"))?;
    let here = matches!(uri.host(), Some("localhost" | "127.0.0.1" | "[::1]"));
    match (uri.scheme_str(), here, uri.port_u16()) {
        (Some("http"), true, Some(1..)) => Ok(()),
        _ => {
            Err("must be an address on this machine with a port, such as http://127.0.0.1:3118/callback"
                .into())
        }
    }
}

/// Checks that a header of this name can be sent.
pub fn header_name(text: &str) -> Result<(), String> {
    match http::HeaderName::from_bytes(text.as_bytes()) {
        Err(_) => Err("is not a valid header name".into()),
        Ok(name) if OWN_HEADERS.contains(&name.as_str()) => Err("is a header set by Nonet itself".into()),
        Ok(_) => Ok(()),
    }
}

/// Checks that a text is a valid header value.
pub fn header_value(text: &str) -> Result<(), String> {
    http::HeaderValue::from_str(text)
        .map(drop)
        .map_err(|_| "contains characters that are not allowed in a header".into())
}
