//! Finds the next page of an answer, if the answer names one: a ready-made call if the operation's own params
//! reach the page, else a sentence.

use http::{HeaderMap, header};
use nonet_rest::Operation;
use nonet_text::name::full_name;
use nonet_wire::web;
use reqwest::Url;
use serde_json::{Map, Value, json};

use crate::downstream::credentials::Credentials;

/// The longest address or cursor that is followed, in bytes.
const LONGEST: usize = 4_000;
/// The members that point to the next page, without case and punctuation.
const LEADS: [&str; 13] = [
    "nextpagetoken",
    "nextcursor",
    "nextpageurl",
    "nextpage",
    "nexturl",
    "nextlink",
    "odatanextlink",
    "nexttoken",
    "nextoffset",
    "nextpageid",
    "nextstart",
    "nextkey",
    "next",
];
/// The members of an answer that may contain such members.
const AROUND: [&str; 9] =
    ["meta", "metadata", "pagination", "paging", "pageinfo", "links", "responsemetadata", "cursors", "page"];
/// The params that accept a member's value, by the end of the member's name after `next`.
const TAKERS: [(&str, &[&str]); 6] = [
    ("cursor", &["after", "startingafter", "pagetoken", "startcursor"]),
    ("token", &["pagetoken", "continuationtoken", "cursor"]),
    ("pagetoken", &["token", "cursor"]),
    ("page", &["pagenumber", "p"]),
    ("offset", &["start", "skip"]),
    ("", &["cursor", "page", "pagetoken", "offset", "start", "after"]),
];

/// One page of an operation's answers.
pub(super) struct AnswerPage<'a> {
    pub server: &'a str,
    pub operation: &'a Operation,
    /// The address of the service in the configuration.
    pub base_url: Option<&'a str>,
    pub arguments: &'a Map<String, Value>,
    /// Where the page came from.
    pub url: &'a Url,
    pub credentials: &'a Credentials,
}

impl AnswerPage<'_> {
    /// Returns `next_step` with the step to the next page, if there is one.
    pub(super) fn next(&self, headers: &HeaderMap, body: Option<&Value>) -> Option<(String, Value)> {
        let step = match linked(headers) {
            Some(link) => self.by_link(link),
            None => {
                let (name, lead) = lead_of(body?)?;
                match &lead {
                    Value::String(link) if is_link(link) => self.by_link(link),
                    lead => self.by_param(name, lead),
                }
            }
        };
        Some(("next_step".into(), step?))
    }

    /// Returns the call that requests an address, if this operation's params can.
    fn by_link(&self, link: &str) -> Option<Value> {
        let next = self.url.join(link).ok().filter(|next| matches!(next.scheme(), "http" | "https"))?;
        if next == *self.url {
            return None;
        }
        let mut params = self.arguments.clone();
        let wanted: Vec<(String, String)> = next.query_pairs().into_owned().collect();
        for (name, _) in self.url.query_pairs() {
            if !wanted.iter().any(|(other, _)| *other == name) {
                params.shift_remove(&*name);
            }
        }
        for (name, value) in &wanted {
            let is_same = self.url.query_pairs().any(|(other, now)| other == *name && now == *value);
            if let Some(schema) = self.schema_of(name).filter(|_| !is_same) {
                params.insert(name.clone(), typed(&json!(value), schema));
            }
        }
        let leads_there = self
            .operation
            .request(self.base_url, &params)
            .is_ok_and(|request| Url::parse(&request.url).is_ok_and(|url| is_same_page(&url, &next)));
        match leads_there {
            true => Some(self.call(params)),
            false => Some(json!(self.credentials.mask(&format!("More follows at {}", place(&next))))),
        }
    }

    /// Returns the call that passes on a member's value, if a param accepts it.
    fn by_param(&self, member: &str, lead: &Value) -> Option<Value> {
        let name = fold(member);
        let behind = name.strip_prefix("next").unwrap_or(&name);
        let others = TAKERS.iter().find(|(known, _)| *known == behind).map_or(&[][..], |(_, others)| others);
        let takers = [behind, name.as_str()].into_iter().chain(others.iter().copied());
        let properties = self.properties()?;
        for taker in takers.filter(|taker| !taker.is_empty()) {
            let Some((param, schema)) = properties.iter().find(|(param, _)| fold(param) == taker) else {
                continue;
            };
            let mut params = self.arguments.clone();
            let value = typed(lead, schema);
            if params.insert(param.clone(), value.clone()) != Some(value)
                && self.operation.request(self.base_url, &params).is_ok()
            {
                return Some(self.call(params));
            }
        }
        // A member `next` may be anything.
        (name != "next").then(|| json!(format!("More follows: `{member}` of the answer leads to it")))
    }

    fn call(&self, params: Map<String, Value>) -> Value {
        let tool = self.operation.definition["name"].as_str().unwrap_or_default();
        let name = full_name(self.server, tool);
        json!({ "tool": "execute_tool", "arguments": { "name": name, "params": params } })
    }

    fn properties(&self) -> Option<&Map<String, Value>> {
        self.operation.definition.get("inputSchema")?.get("properties")?.as_object()
    }

    fn schema_of(&self, param: &str) -> Option<&Value> {
        self.properties()?.get(param)
    }
}

/// Returns an address as a sentence shows it. The query is what points to the page.
fn place(url: &Url) -> String {
    match url.query() {
        Some(query) => format!("{}?{query}", web::place(url.as_str())),
        None => web::place(url.as_str()),
    }
}

/// Returns the address with `rel="next"` in the `Link` headers (RFC 8288).
fn linked(headers: &HeaderMap) -> Option<&str> {
    let all = headers.get_all(header::LINK).iter().filter_map(|value| value.to_str().ok());
    for mut rest in all {
        while let Some((link, after)) = rest.split_once('<').and_then(|(_, rest)| rest.split_once('>')) {
            let (params, others) = after.find('<').map_or((after, ""), |at| after.split_at(at));
            let mut params = params.split([';', ',']).filter_map(|param| param.split_once('='));
            let is_next = params.any(|(name, value)| {
                let value = value.trim().trim_matches('"');
                name.trim().eq_ignore_ascii_case("rel")
                    && value.split(' ').any(|rel| rel.eq_ignore_ascii_case("next"))
            });
            if is_next && (1..=LONGEST).contains(&link.len()) {
                return Some(link);
            }
            rest = others;
        }
    }
    None
}

/// Returns the member of an answer that points to the next page, with its value.
fn lead_of(body: &Value) -> Option<(&str, Value)> {
    let body = body.as_object()?;
    let around = body.iter().filter(|(name, _)| AROUND.contains(&&*fold(name)));
    let around: Vec<&Map<String, Value>> = around.filter_map(|(_, inside)| inside.as_object()).collect();
    let cursors = around.iter().filter_map(|inside| inside.get("cursors")?.as_object());
    let all: Vec<&Map<String, Value>> =
        std::iter::once(body).chain(around.iter().copied()).chain(cursors).collect();
    let is_last = |(name, value): (&String, &Value)| {
        matches!(&*fold(name), "hasmore" | "hasnext" | "hasnextpage") && *value == Value::Bool(false)
    };
    if all.iter().any(|members| members.iter().any(is_last)) {
        return None;
    }
    LEADS.iter().find_map(|lead| {
        all.iter().find_map(|members| {
            let (name, value) = members.iter().find(|(name, _)| fold(name) == *lead)?;
            let value = value.get("href").or_else(|| value.get("url")).unwrap_or(value);
            let leads = match value {
                Value::String(text) => (1..=LONGEST).contains(&text.len()),
                Value::Number(_) => true,
                _ => false,
            };
            leads.then(|| (name.as_str(), value.clone()))
        })
    })
}

/// Returns a name without case and punctuation.
fn fold(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

fn is_link(text: &str) -> bool {
    ["http://", "https://", "/", "?"].iter().any(|beginning| text.starts_with(beginning))
}

/// Returns whether two addresses request the same page: the order of a query does not matter.
fn is_same_page(one: &Url, other: &Url) -> bool {
    let pairs = |url: &Url| {
        let mut pairs: Vec<_> = url.query_pairs().into_owned().collect();
        pairs.sort();
        pairs
    };
    one.host_str() == other.host_str() && one.path() == other.path() && pairs(one) == pairs(other)
}

/// Returns a value in the type that a param of this schema accepts.
fn typed(value: &Value, schema: &Value) -> Value {
    let is = |kind: &str| match &schema["type"] {
        Value::Array(kinds) => kinds.iter().any(|one| one == kind),
        one => one == kind,
    };
    match value {
        Value::String(text) if !is("string") => match serde_json::from_str(text) {
            Ok(Value::Number(number)) if is("integer") || is("number") => Value::Number(number),
            Ok(Value::Bool(truth)) if is("boolean") => Value::Bool(truth),
            _ => value.clone(),
        },
        Value::Number(number) if is("string") => json!(number.to_string()),
        value => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_on_by_their_relation() {
        let check = |links: &[&'static str], expected: Option<&str>| {
            let headers = links.iter().map(|link| (header::LINK, link.parse().expect("a value")));
            assert_eq!(linked(&headers.collect()), expected, "{links:?}");
        };
        check(&[r#"<https://a.example/x?page=2>; rel="next""#], Some("https://a.example/x?page=2"));
        check(&[r#"</x?a=1,2>; rel=prev, </x?a=3,4>; title="a"; rel="last next""#], Some("/x?a=3,4"));
        check(&["</a>; rel=\"prev\"", "</b>; rel=NEXT"], Some("/b"));
        check(&["</a>; rel=\"prev\""], None);
        check(&["no link"], None);
        check(&[], None);
    }

    #[test]
    fn members_lead_on_by_their_names() {
        let check = |body: Value, expected: Option<(&str, Value)>| {
            assert_eq!(lead_of(&body), expected, "{body}");
        };
        check(json!({ "items": [], "nextPageToken": "t" }), Some(("nextPageToken", json!("t"))));
        check(json!({ "meta": { "next_cursor": "c" } }), Some(("next_cursor", json!("c"))));
        check(json!({ "_links": { "next": { "href": "/x" } } }), Some(("next", json!("/x"))));
        check(
            json!({ "@odata.nextLink": "https://a.example/" }),
            Some(("@odata.nextLink", json!("https://a.example/"))),
        );
        check(json!({ "next": 2 }), Some(("next", json!(2))));
        check(json!({ "next": null }), None);
        check(json!({ "next_cursor": "" }), None);
        check(json!({ "next_cursor": "c", "has_more": false }), None);
        check(json!({ "deep": { "deeper": { "next": "/x" } } }), None);
        check(json!([{ "next": "/x" }]), None);
    }
}
