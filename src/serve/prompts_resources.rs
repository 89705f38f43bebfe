//! Prompts, resources and completions in rmcp's types: verbatim, under a key of `_meta`.

use nonet_core::ListPage;
use nonet_wire::rmcp::carry;
use rmcp::{
    ErrorData,
    model::{
        CompleteResult, GetPromptResult, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult,
        ReadResourceResult,
    },
};
use serde_json::{Value, json};

/// Returns a list under the name of its field. A stateless client also learns that the list may change at any time.
fn list(field: &str, page: ListPage, stateless: bool) -> Value {
    let mut list = json!({ field: page.entries });
    if let Some(next) = page.next {
        list["nextCursor"] = json!(next);
    }
    if stateless {
        list["resultType"] = json!("complete");
        list["ttlMs"] = json!(0);
        list["cacheScope"] = json!("private");
    }
    list
}

/// Returns a server's result with the fields of the client's era.
fn result(mut result: Value, stateless: bool, cached: bool) -> Value {
    if let Some(fields) = result.as_object_mut() {
        if stateless {
            fields.entry("resultType").or_insert_with(|| json!("complete"));
            if cached {
                fields.entry("ttlMs").or_insert_with(|| json!(0));
                fields.entry("cacheScope").or_insert_with(|| json!("private"));
            }
        } else {
            for key in ["resultType", "ttlMs", "cacheScope"] {
                fields.remove(key);
            }
        }
    }
    result
}

pub(super) fn prompts(page: ListPage, stateless: bool) -> ListPromptsResult {
    ListPromptsResult { meta: Some(carry(list("prompts", page, stateless))), ..ListPromptsResult::default() }
}

pub(super) fn resources(page: ListPage, stateless: bool) -> ListResourcesResult {
    ListResourcesResult {
        meta: Some(carry(list("resources", page, stateless))),
        ..ListResourcesResult::default()
    }
}

pub(super) fn templates(page: ListPage, stateless: bool) -> ListResourceTemplatesResult {
    let list = list("resourceTemplates", page, stateless);
    ListResourceTemplatesResult { meta: Some(carry(list)), ..ListResourceTemplatesResult::default() }
}

/// Checks that a server's answer contains this field.
fn has(given: Value, field: &str) -> Result<Value, ErrorData> {
    match given.get(field) {
        Some(_) => Ok(given),
        None => Err(ErrorData::internal_error(format!("the server's answer has no `{field}`"), None)),
    }
}

pub(super) fn prompt(given: Value, stateless: bool) -> Result<GetPromptResult, ErrorData> {
    let mut carrier = GetPromptResult::new(Vec::new());
    carrier.meta = Some(carry(result(has(given, "messages")?, stateless, false)));
    Ok(carrier)
}

pub(super) fn resource(given: Value, stateless: bool) -> Result<ReadResourceResult, ErrorData> {
    let mut carrier = ReadResourceResult::new(Vec::new());
    carrier.meta = Some(carry(result(has(given, "contents")?, stateless, true)));
    Ok(carrier)
}

pub(super) fn completion(given: Value, stateless: bool) -> Result<CompleteResult, ErrorData> {
    let mut carrier = CompleteResult::default();
    carrier.meta = Some(carry(result(has(given, "completion")?, stateless, false)));
    Ok(carrier)
}
