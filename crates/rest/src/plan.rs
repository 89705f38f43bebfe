//! How the params of a call become a request: the place and style of each.

use std::sync::Arc;

use http::Method;

/// The methods of tools. `OPTIONS` and `TRACE` are for the clients' own use.
const METHODS: [Method; 6] =
    [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

/// Returns a tool's method, in any case.
pub(super) fn method(name: &str) -> Option<Method> {
    METHODS.into_iter().find(|method| method.as_str().eq_ignore_ascii_case(name))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ParamPlace {
    Path,
    Query,
    Header,
    Cookie,
}

impl ParamPlace {
    /// Returns the place that a document names.
    pub(crate) fn new(name: &str) -> Option<Self> {
        Some(match name {
            "path" => Self::Path,
            "query" => Self::Query,
            "header" => Self::Header,
            "cookie" => Self::Cookie,
            _ => return None,
        })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Query => "query",
            Self::Header => "header",
            Self::Cookie => "cookie",
        }
    }
}

/// How arrays and objects are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParamStyle {
    Form,
    Space,
    Pipe,
    Deep,
    Simple,
    Label,
    Matrix,
    /// As JSON text.
    Json,
}

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ValueFormat {
    pub style: ParamStyle,
    pub explode: bool,
    /// Whether reserved characters stay unescaped. In a path, a slash then separates segments.
    pub reserved: bool,
}

impl ValueFormat {
    pub(crate) const FORM: Self = Self { style: ParamStyle::Form, explode: true, reserved: false };
    pub(crate) const SIMPLE: Self = Self { style: ParamStyle::Simple, explode: false, reserved: false };

    /// Returns the default for a place.
    pub(crate) fn of(place: ParamPlace) -> Self {
        match place {
            ParamPlace::Path | ParamPlace::Header => Self::SIMPLE,
            ParamPlace::Query | ParamPlace::Cookie => Self::FORM,
        }
    }
}

/// A param outside the body.
#[derive(Clone, Debug)]
pub(super) struct ParamPlan {
    /// The name in the input schema.
    pub param: String,
    /// The name in the request.
    pub name: String,
    pub place: ParamPlace,
    pub writing: ValueFormat,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum PathPiece {
    Text(String),
    /// A param by its index in the list, in the query if the path contains one.
    Param {
        at: usize,
        in_query: bool,
    },
}

/// The body of a request.
#[derive(Clone, Debug)]
pub(super) struct BodyPlan {
    pub media: Media,
    pub shape: Shape,
    pub required: bool,
}

/// What a body consists of.
#[derive(Clone, Debug)]
pub(super) enum Shape {
    /// One param.
    Whole(String),
    /// Each member is a param. `open`: so are undeclared members.
    Members { fields: Vec<Field>, open: bool },
}

/// A member of a body.
#[derive(Clone, Debug)]
pub(super) struct Field {
    /// The name in the input schema.
    pub param: String,
    /// The name in the body.
    pub name: String,
    pub encoding: Encoding,
}

/// How a form member is encoded.
#[derive(Clone, Debug, Default)]
pub(super) struct Encoding {
    /// `None`: according to its type.
    pub writing: Option<ValueFormat>,
    pub content_type: Option<String>,
    pub is_file: bool,
}

/// The kind of a body, with its content type where the document decides.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Media {
    Json(String),
    Form,
    Multipart,
    Text(String),
    Binary(String),
}

impl Media {
    /// Returns the kind of a media type, and its rank for use by a model: lower is better.
    pub(crate) fn new(given: &str) -> (u8, Self) {
        let essence = given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let is_exact = essence.contains('/')
            && !essence.contains('*')
            && given.bytes().all(|b| (b' '..=b'~').contains(&b));
        let or = |default: &str| if is_exact { given.trim().to_string() } else { default.to_string() };
        let is_lines = ["ndjson", "jsonl", "json-seq", "jsonlines"].iter().any(|word| essence.contains(word));
        let is_text = essence.starts_with("text/")
            || is_lines
            || ["xml", "yaml", "csv", "graphql", "javascript", "jwt", "jose", "sql", "rfc822"]
                .iter()
                .any(|word| essence.contains(word));
        if essence == "application/json" {
            (0, Self::Json(or("application/json")))
        } else if essence.contains("json") && !is_lines || essence.is_empty() || essence == "*/*" {
            let is_patch = essence.contains("json-patch");
            (if is_patch { 2 } else { 1 }, Self::Json(or("application/json")))
        } else if essence == "application/x-www-form-urlencoded" {
            (3, Self::Form)
        } else if essence.contains("form-data") || essence.starts_with("multipart/") {
            (4, Self::Multipart)
        } else if is_text {
            (5, Self::Text(or("text/plain")))
        } else {
            (6, Self::Binary(or("application/octet-stream")))
        }
    }
}

/// The complete request of an operation except its method.
#[derive(Debug)]
pub(super) struct RequestPlan {
    /// `GET /users/{id}`.
    pub called: String,
    pub path: Vec<PathPiece>,
    pub params: Vec<ParamPlan>,
    pub body: Option<BodyPlan>,
    pub accept: http::HeaderValue,
    /// The address of the service, if one is known.
    pub base: Option<Arc<str>>,
}

/// Splits a path at its params: `{id}`; `{+path}` and `{path*}` may contain slashes. `find` returns a param's
/// index in the list.
///
/// # Errors
///
/// What is wrong with the path.
pub(super) fn pieces<'p>(
    path: &'p str,
    mut find: impl FnMut(&'p str, bool) -> usize,
) -> Result<Vec<PathPiece>, String> {
    // A fragment never leaves the client; documents use it to distinguish operations of one path.
    let path = path.split('#').next().unwrap_or_default();
    let mut pieces = Vec::new();
    let mut rest = path;
    let mut in_query = false;
    let unbalanced = || "the braces of its path do not match".to_string();
    while let Some(begin) = rest.find(['{', '}']) {
        let text = &rest[..begin];
        in_query |= text.contains('?');
        if !text.is_empty() {
            pieces.push(PathPiece::Text(text.into()));
        }
        let inner = rest[begin..].strip_prefix('{').ok_or_else(unbalanced)?;
        let (name, behind) = inner.split_once('}').ok_or_else(unbalanced)?;
        if name.contains('{') {
            return Err(unbalanced());
        }
        let (bare, reserved) = bare(name);
        if bare.is_empty() {
            return Err("its path has a param without a name".into());
        }
        pieces.push(PathPiece::Param { at: find(bare, reserved), in_query });
        rest = behind;
    }
    if !rest.is_empty() {
        pieces.push(PathPiece::Text(rest.into()));
    }
    Ok(pieces)
}

/// Returns the name in braces without its operator, and whether its value may contain slashes.
fn bare(name: &str) -> (&str, bool) {
    let name = name.trim();
    match (name.strip_prefix('+'), name.strip_suffix('*')) {
        (Some(name), _) | (None, Some(name)) => (name.trim(), true),
        (None, None) => (name, false),
    }
}
