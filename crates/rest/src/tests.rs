//! Tests: documents and calls in, definitions and requests out.

mod documents;
mod own_endpoints;
mod requests;
mod schemas;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use nonet_schema::Schema;
use serde_json::json;

use super::*;

fn read(document: Value) -> Service {
    Service::read(document.to_string().as_bytes(), None, None).expect("a document")
}

/// Returns a document with one operation, by default `POST /x/{id}`.
fn with(operation: Value) -> Value {
    json!({
        "openapi": "3.0.3",
        "info": { "title": "T" },
        "servers": [{ "url": "https://api.test/v1/" }],
        "paths": { "/x": { "post": operation } },
    })
}

/// Returns the only operation of a document.
fn only(document: Value) -> Operation {
    let service = read(document);
    assert_eq!(service.left_out, Vec::<String>::new());
    assert_eq!(service.operations.len(), 1);
    service.operations.into_values().next().expect("one")
}

fn input(document: Value) -> Value {
    let definition = only(document).definition;
    assert_eq!(Schema::new(definition["inputSchema"].clone()).broken(), None);
    definition["inputSchema"].clone()
}

/// Returns the converted schema of the param `p`, whose schema in the document is `raw`.
fn of_schema(raw: Value) -> Value {
    let parameter = json!({ "name": "p", "in": "query", "schema": raw });
    input(with(json!({ "operationId": "o", "parameters": [parameter] })))["properties"]["p"].clone()
}

fn call(operation: &Operation, params: Value) -> Result<RestRequest, String> {
    operation.request(None, params.as_object().expect("an object"))
}

/// Returns the address, the headers except `Accept`, and the body, as one text.
fn sent(operation: &Operation, params: Value) -> String {
    let request = match call(operation, params) {
        Ok(request) => request,
        Err(why) => return format!("! {why}"),
    };
    let mut text = format!("{} {}", request.method, request.url);
    for (name, value) in request.headers.iter().filter(|(name, _)| *name != "accept") {
        text += &format!("\n{name}: {}", value.to_str().expect("text"));
    }
    if let Some((kind, body)) = request.body {
        text += &format!("\n{kind}\n{}", String::from_utf8(body).expect("text"));
    }
    text
}
