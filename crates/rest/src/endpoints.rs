//! Endpoints written by hand as operations.

use std::{collections::BTreeMap, sync::Arc};

use http::{HeaderName, HeaderValue, Method};
use nonet_config::Endpoint;
use serde_json::{Map, Value, json};

use super::{
    Operation, Service,
    operations::{annotations, described, is_managed},
    plan::{
        self, BodyPlan, Encoding, Field, Media, ParamPlace, ParamPlan, PathPiece, RequestPlan, Shape,
        ValueFormat,
    },
};

/// The method of an endpoint, and its path split into pieces with the names in its braces.
struct ParsedEndpoint<'e> {
    method: Method,
    pieces: Vec<PathPiece>,
    /// The names in the path, each with whether its value may contain slashes.
    in_path: Vec<(String, bool)>,
    endpoint: &'e Endpoint,
}

impl<'e> ParsedEndpoint<'e> {
    /// Reads an endpoint. Returns its faults, which are empty if it can be used.
    fn new(endpoint: &'e Endpoint) -> (Option<Self>, Vec<String>) {
        let mut faults = Vec::new();
        let given = endpoint.method.as_deref().unwrap_or("GET").trim().to_ascii_uppercase();
        let method = plan::method(&given);
        if method.is_none() {
            faults.push(format!(
                "`method` is `{}`; it must be GET, HEAD, POST, PUT, PATCH or DELETE",
                nonet_base::text::clip(&given, 20)
            ));
        }
        let path = &endpoint.path;
        if !path.starts_with('/') {
            faults.push(format!("`path` is `{path}`; it must begin with a slash"));
        }
        if path.contains('#') || path.chars().any(|c| c.is_whitespace() || c.is_control()) {
            faults.push(
                "`path` has a space or `#`, which a request cannot have there: percent-encode it".into(),
            );
        }
        let mut in_path: Vec<(String, bool)> = Vec::new();
        let pieces =
            plan::pieces(path, |name, reserved| match in_path.iter().position(|(own, _)| own == name) {
                Some(at) => at,
                None => {
                    in_path.push((name.to_string(), reserved));
                    in_path.len() - 1
                }
            });
        let pieces = pieces.map_err(|why| faults.push(format!("`path` is `{path}`: {why}"))).ok();
        let read = match (method, pieces) {
            (Some(method), Some(pieces)) => Some(Self { method, pieces, in_path, endpoint }),
            _ => None,
        };
        if let Some(read) = &read {
            read.faults(&mut faults);
        }
        (read, faults)
    }

    /// Returns the place of each named param.
    fn named(&self) -> Vec<(&str, &'static str)> {
        let endpoint = self.endpoint;
        let lists = [(&endpoint.query, "query"), (&endpoint.header, "header"), (&endpoint.body, "body")];
        let in_path = self.in_path.iter().map(|(name, _)| (name.as_str(), "path"));
        let listed =
            lists.into_iter().flat_map(|(names, place)| names.iter().map(move |name| (name.as_str(), place)));
        in_path.chain(listed).collect()
    }

    fn faults(&self, faults: &mut Vec<String>) {
        let endpoint = self.endpoint;
        let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, place) in self.named() {
            if name.is_empty() {
                faults.push(format!("`{place}` has a param without a name"));
            } else if let Some(earlier) = seen.insert(name, place) {
                faults.push(format!(
                    "the param `{name}` is in `{earlier}` and again in `{place}`; name it once"
                ));
            }
        }
        for name in &endpoint.header {
            if HeaderName::try_from(name).is_err() {
                faults.push(format!("`header` has `{name}`, which cannot be the name of a header"));
            } else if is_managed(name) {
                faults.push(format!(
                    "`header` has `{name}`, which is not for models to set: put it into `headers` of the server"
                ));
            }
        }
        if !endpoint.body.is_empty() && matches!(self.method, Method::GET | Method::HEAD) {
            faults.push(format!("`body` is set, but a {} request has none: use `query`", self.method));
        }
        let Some(schema) = &endpoint.input_schema else { return };
        if schema.get("type").is_some_and(|kind| kind != "object") {
            faults.push("`input_schema.type` must be `object`".into());
        }
        match schema.get("properties") {
            Some(Value::Object(properties)) => {
                for (name, place) in self.named() {
                    if !properties.contains_key(name) {
                        faults.push(format!(
                            "the param `{name}` of `{place}` is not in `input_schema.properties`"
                        ));
                    }
                }
            }
            Some(_) => faults.push("`input_schema.properties` must be an object".into()),
            None if self.named().is_empty() => {}
            None => faults.push("`input_schema` has no `properties`".into()),
        }
    }

    /// Returns all params in the order of the schema, else of the endpoint.
    fn params(&self) -> Vec<(String, &'static str)> {
        let named = self.named();
        let default =
            if matches!(self.method, Method::GET | Method::HEAD | Method::DELETE) { "query" } else { "body" };
        let properties =
            self.endpoint.input_schema.as_ref().and_then(|schema| schema.get("properties")?.as_object());
        let place =
            |name: &str| named.iter().find(|(own, _)| *own == name).map_or(default, |(_, place)| place);
        match properties {
            Some(properties) => properties.keys().map(|name| (name.clone(), place(name))).collect(),
            None => named.iter().map(|(name, place)| ((*name).to_string(), *place)).collect(),
        }
    }

    fn schema(&self, params: &[(String, &str)]) -> Value {
        if let Some(given) = &self.endpoint.input_schema {
            let mut schema = Map::from_iter([("type".to_string(), json!("object"))]);
            schema.extend(given.clone());
            return Value::Object(schema);
        }
        let properties: Map<String, Value> =
            params.iter().map(|(name, _)| (name.clone(), json!({ "type": "string" }))).collect();
        let mut schema = json!({ "type": "object", "properties": properties });
        if !self.in_path.is_empty() {
            schema["required"] = self.in_path.iter().map(|(name, _)| name.as_str()).collect();
        }
        schema
    }

    fn operation(self, name: &str, base: Option<Arc<str>>) -> Operation {
        let params = self.params();
        let called = format!("{} {}", self.method, nonet_base::text::clip(&self.endpoint.path, 200));
        let description = self.endpoint.description.as_deref().unwrap_or_default();
        let definition = json!({
            "name": name,
            "description": described(description, &called),
            "inputSchema": self.schema(&params),
            "annotations": annotations(&self.method),
        });
        // The path refers to its params by their index in the list.
        let mut sent: Vec<ParamPlan> = self
            .in_path
            .iter()
            .map(|(name, reserved)| ParamPlan {
                param: name.clone(),
                name: name.clone(),
                place: ParamPlace::Path,
                writing: ValueFormat { reserved: *reserved, ..ValueFormat::SIMPLE },
            })
            .collect();
        let mut fields = Vec::new();
        for (name, place) in params {
            match ParamPlace::new(place) {
                Some(ParamPlace::Path) => {}
                Some(place) => {
                    sent.push(ParamPlan {
                        param: name.clone(),
                        name,
                        place,
                        writing: ValueFormat::of(place),
                    });
                }
                None => fields.push(Field { param: name.clone(), name, encoding: Encoding::default() }),
            }
        }
        let body = (!fields.is_empty()).then(|| BodyPlan {
            media: Media::Json("application/json".into()),
            shape: Shape::Members { fields, open: false },
            required: false,
        });
        let plan = RequestPlan {
            called,
            path: self.pieces,
            params: sent,
            body,
            accept: HeaderValue::from_static("application/json, */*;q=0.5"),
            base,
        };
        Operation { definition: Arc::new(definition), method: self.method, plan }
    }
}

/// Returns the faults of an endpoint.
#[cfg(test)]
pub(super) fn check(endpoint: &Endpoint) -> Vec<String> {
    ParsedEndpoint::new(endpoint).1
}

/// Builds a service from endpoints.
pub(super) fn service(endpoints: &BTreeMap<String, Endpoint>, base_url: Option<&str>) -> Service {
    let mut service = Service::default();
    let base: Option<Arc<str>> = base_url.map(Into::into);
    for (name, endpoint) in endpoints {
        match ParsedEndpoint::new(endpoint) {
            (Some(read), faults) if faults.is_empty() => {
                service.operations.insert(name.clone(), read.operation(name, base.clone()));
            }
            (_, faults) => service.left_out.push(format!("{name}: {}", faults.join("; "))),
        }
    }
    service
}
