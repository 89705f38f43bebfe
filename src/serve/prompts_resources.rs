//! The results of requests for prompts, resources and completions, in the form of the client's era.

use nonet_base::{clock::millis, json::set_member};
use nonet_core::{ListPage, serving_skills};
use rmcp::ErrorData;
use serde_json::{Value, json};

/// Returns a list under the name of its field. A stateless client also learns that the list may change at any
/// time.
pub(super) fn list(field: &str, page: ListPage, stateless: bool) -> Value {
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

/// Returns an answer about skills with the fields of the client's era. `cached`: how long it is fresh is part of it.
pub(super) fn of_skills(mut answer: Value, stateless: bool, cached: bool) -> Value {
    if stateless && cached {
        set_member(&mut answer, "ttlMs", millis(serving_skills::FRESH));
    }
    result(answer, stateless, cached)
}

/// Checks that a server's answer contains this field.
fn has(given: Value, field: &str) -> Result<Value, ErrorData> {
    match given.get(field) {
        Some(_) => Ok(given),
        None => Err(ErrorData::internal_error(format!("the server's answer has no `{field}`"), None)),
    }
}

pub(super) fn prompt(given: Value, stateless: bool) -> Result<Value, ErrorData> {
    Ok(result(has(given, "messages")?, stateless, false))
}

pub(super) fn resource(given: Value, stateless: bool) -> Result<Value, ErrorData> {
    Ok(result(has(given, "contents")?, stateless, true))
}

pub(super) fn completion(given: Value, stateless: bool) -> Result<Value, ErrorData> {
    Ok(result(has(given, "completion")?, stateless, false))
}
