//! Prompts, resources and completions as rmcp's types carry them: verbatim, under a key of `_meta`.

use rmcp::{
    ErrorData,
    model::{
        CompleteResult, GetPromptResult, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult,
        ReadResourceResult,
    },
};
use serde_json::{Value, json};

use crate::gateway::Page;
use crate::wire::rmcp::carry;

/// A list under the name of its field. A client of the stateless era is told that it may change at any time.
fn list(field: &str, page: Page, modern: bool) -> Value {
    let mut list = json!({ field: page.entries });
    if let Some(next) = page.next {
        list["nextCursor"] = json!(next);
    }
    if modern {
        list["resultType"] = json!("complete");
        list["ttlMs"] = json!(0);
        list["cacheScope"] = json!("private");
    }
    list
}

/// A server's result with what the client's era wants on it, and nothing that it does not know.
fn result(mut result: Value, modern: bool, cached: bool) -> Value {
    if let Some(fields) = result.as_object_mut() {
        if modern {
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

pub(super) fn prompts(page: Page, modern: bool) -> ListPromptsResult {
    ListPromptsResult { meta: Some(carry(list("prompts", page, modern))), ..ListPromptsResult::default() }
}

pub(super) fn resources(page: Page, modern: bool) -> ListResourcesResult {
    ListResourcesResult {
        meta: Some(carry(list("resources", page, modern))),
        ..ListResourcesResult::default()
    }
}

pub(super) fn templates(page: Page, modern: bool) -> ListResourceTemplatesResult {
    let list = list("resourceTemplates", page, modern);
    ListResourceTemplatesResult { meta: Some(carry(list)), ..ListResourceTemplatesResult::default() }
}

/// A server's answer that has to be an object with this field.
fn has(given: Value, field: &str) -> Result<Value, ErrorData> {
    match given.get(field) {
        Some(_) => Ok(given),
        None => Err(ErrorData::internal_error(format!("the server's answer has no `{field}`"), None)),
    }
}

pub(super) fn prompt(given: Value, modern: bool) -> Result<GetPromptResult, ErrorData> {
    let mut carrier = GetPromptResult::new(Vec::new());
    carrier.meta = Some(carry(result(has(given, "messages")?, modern, false)));
    Ok(carrier)
}

pub(super) fn resource(given: Value, modern: bool) -> Result<ReadResourceResult, ErrorData> {
    let mut carrier = ReadResourceResult::new(Vec::new());
    carrier.meta = Some(carry(result(has(given, "contents")?, modern, true)));
    Ok(carrier)
}

pub(super) fn completion(given: Value, modern: bool) -> Result<CompleteResult, ErrorData> {
    let mut carrier = CompleteResult::default();
    carrier.meta = Some(carry(result(has(given, "completion")?, modern, false)));
    Ok(carrier)
}
