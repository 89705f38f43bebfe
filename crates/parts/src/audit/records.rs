//! Lines of the audit log in the forms of others. Each has the line itself, so that `nonet audit verify` can
//! check the chain of what was exported.

use std::sync::LazyLock;

use nonet_config::AuditFormat;
use serde_json::{Map, Value, json};

/// The facility "log audit", and the severities (RFC 5424, section 6.2.1).
const FACILITY: u8 = 13;
const ERROR: u8 = 3;
const WARNING: u8 = 4;
const NOTICE: u8 = 5;
const INFO: u8 = 6;
/// The largest `sequenceId` (RFC 5424, section 7.3.1).
const MAX_SEQUENCE: u64 = 2_147_483_647;
/// The longest host name and message id (RFC 5424, section 6).
const MAX_HOST: usize = 255;
const MAX_MSGID: usize = 32;
/// The version of the schema.
const OCSF: &str = "1.3.0";

/// The name of this machine, or `-`.
static HOST: LazyLock<String> = LazyLock::new(|| {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = name.or_else(|| std::env::var("HOSTNAME").ok()).or_else(|| std::env::var("COMPUTERNAME").ok());
    word(name.as_deref().unwrap_or_default(), MAX_HOST)
});

/// Returns the record of a line; `None` if it is no line.
pub(super) fn record(format: AuditFormat, line: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(line).ok()?;
    let parsed: Value = serde_json::from_str(text).ok()?;
    Some(match format {
        AuditFormat::Syslog => syslog(&parsed, text),
        AuditFormat::Ocsf => ocsf(&parsed, text).to_string(),
    })
}

/// Returns a record as the message of syslog.
pub(super) fn framed(record: &str) -> String {
    let parsed: Value = serde_json::from_str(record).unwrap_or_default();
    let line: Value =
        parsed["raw_data"].as_str().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
    syslog(&line, record)
}

/// Returns a word of printable ASCII, or `-`.
fn word(text: &str, most: usize) -> String {
    let word: String = text.trim().chars().filter(char::is_ascii_graphic).take(most).collect();
    if word.is_empty() { "-".into() } else { word }
}

/// How bad a line is.
fn severity(line: &Value) -> u8 {
    let outcome = line["outcome"].as_str().unwrap_or("ok");
    match line["event"].as_str().unwrap_or_default() {
        "lost" | "damaged" | "file_missing" | "export_lost" | "export_failing" => ERROR,
        "call" if line["verdict"] == "deny" => WARNING,
        "call" if outcome == "ok" => INFO,
        "call" => NOTICE,
        _ => NOTICE,
    }
}

/// Returns a line as a message of syslog (RFC 5424, section 6).
fn syslog(line: &Value, message: &str) -> String {
    let priority = FACILITY * 8 + severity(line);
    let at = line["at"].as_str().unwrap_or("-");
    let process = line["gateway"].as_str().map_or_else(|| "-".into(), |gateway| word(gateway, 128));
    let kind = word(line["event"].as_str().unwrap_or_default(), MAX_MSGID);
    let number = line["seq"].as_u64().unwrap_or_default();
    let sequence = if number == 0 { 1 } else { (number - 1) % MAX_SEQUENCE + 1 };
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "<{priority}>1 {at} {} nonet {process} {kind} [origin software=\"nonet\" swVersion=\"{version}\"]\
         [meta sequenceId=\"{sequence}\"] {message}",
        *HOST
    )
}

/// Returns a line as an event of the Open Cybersecurity Schema Framework: "API Activity" (6003) for calls and
/// changes, "Authentication" (3002) for sign-ins.
fn ocsf(line: &Value, text: &str) -> Value {
    let event = line["event"].as_str().unwrap_or_default();
    let action = line["about"]["action"].as_str().unwrap_or(event);
    let sign_in = match action {
        "sign_in" | "account_signed_in" => Some((1, "Logon")),
        "account_signed_out" => Some((2, "Logoff")),
        "sign_in_failed" => Some((1, "Logon")),
        _ => None,
    };
    let (class, name, category) = match sign_in {
        Some(_) => (3002, "Authentication", (3, "Identity & Access Management")),
        None => (6003, "API Activity", (6, "Application Activity")),
    };
    let (activity, activity_name) = sign_in.unwrap_or((99, if event == "call" { "Call" } else { "Other" }));
    let outcome = line["outcome"].as_str().unwrap_or_default();
    let (status, status_name) = match outcome {
        _ if action == "sign_in_failed" => (2, "Failure"),
        "ok" => (1, "Success"),
        "" => (if sign_in.is_some() { 1 } else { 0 }, if sign_in.is_some() { "Success" } else { "Unknown" }),
        _ => (2, "Failure"),
    };
    let (level, level_name) = match severity(line) {
        ERROR => (4, "High"),
        WARNING => (3, "Medium"),
        NOTICE => (2, "Low"),
        _ => (1, "Informational"),
    };
    let time = line["at"].as_str().and_then(|at| at.parse::<jiff::Timestamp>().ok());
    let number = line["seq"].as_u64().unwrap_or_default();
    let mut record = json!({
        "class_uid": class,
        "class_name": name,
        "category_uid": category.0,
        "category_name": category.1,
        "activity_id": activity,
        "activity_name": activity_name,
        "type_uid": class * 100 + activity,
        "time": time.map_or(0, |time| time.as_millisecond()),
        "severity_id": level,
        "severity": level_name,
        "status_id": status,
        "status": status_name,
        "metadata": {
            "version": OCSF,
            "uid": line["hash"],
            "sequence": number,
            "product": { "name": "Nonet", "vendor_name": "Nonet", "version": env!("CARGO_PKG_VERSION") },
            "log_name": "audit",
            "original_time": line["at"],
        },
        "actor": actor(line),
        "src_endpoint": { "name": line["client"].as_str().unwrap_or("unknown") },
        "unmapped": {
            "chain_prev": line["prev"], "gateway": line["gateway"], "event": event,
        },
        "raw_data": text,
    });
    if sign_in.is_some() {
        record["user"] = user(&line["about"]["person"]);
        record["dst_endpoint"] = json!({ "svc_name": line["about"]["server"].as_str().unwrap_or("nonet") });
    } else {
        let tool = line["tool"].as_str();
        let server = tool.and_then(|tool| tool.split_once('.')).map_or("nonet", |(server, _)| server);
        record["api"] = json!({ "operation": tool.unwrap_or(action), "service": { "name": server } });
        if let Some(tool) = tool {
            let resource = json!([{ "name": tool, "type": "tool", "version": line["version"] }]);
            record["resources"] = resource;
        }
    }
    let mut put = |key: &str, value: Option<Value>| {
        if let Some(value) = value.filter(|value| !value.is_null()) {
            record[key] = value;
        }
    };
    put("status_code", (!outcome.is_empty()).then(|| outcome.into()));
    put("status_detail", line["about"]["why"].as_str().map(Into::into));
    put("duration", line["elapsed_us"].as_u64().map(|us| (us / 1_000).into()));
    let verdict = line["verdict"].as_str().unwrap_or_default();
    put("action_id", (!verdict.is_empty()).then(|| if verdict == "deny" { 2 } else { 1 }.into()));
    put("action", (!verdict.is_empty()).then(|| if verdict == "deny" { "Denied" } else { "Allowed" }.into()));
    put("policy", line["rule"].as_str().map(|rule| json!({ "name": rule })));
    record
}

/// Returns who acted.
fn actor(line: &Value) -> Value {
    let person = if line["person"].is_object() { &line["person"] } else { &line["about"]["person"] };
    let mut actor = Map::from_iter([("user".to_string(), user(person))]);
    if let Some(client) = line["client"].as_str() {
        actor.insert("app_name".into(), client.into());
    }
    if let Some(session) = line["session"].as_u64() {
        actor.insert("session".into(), json!({ "uid": session.to_string() }));
    }
    if person.is_null()
        && let Some(token) = line["token"].as_str()
    {
        actor.insert("user".into(), json!({ "name": token, "type_id": 99, "type": "Token" }));
    }
    Value::Object(actor)
}

fn user(person: &Value) -> Value {
    match person.is_object() {
        true => json!({
            "name": person["name"], "uid": person["subject"], "domain": person["issuer"], "type_id": 1, "type": "User",
        }),
        false => json!({ "name": "unknown", "type_id": 0, "type": "Unknown" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: &str = r#"{"seq":7,"prev":"00","at":"2026-11-29T01:02:03.004Z","gateway":"ab12","event":"call","client":"vscode","session":3,"person":{"issuer":"https://id","subject":"u1","name":"Ann"},"tool":"drive.read","version":"v1","verdict":"allow","outcome":"ok","elapsed_us":2500,"hash":"ff"}"#;

    #[test]
    fn a_line_is_a_message_of_syslog() {
        let record = record(AuditFormat::Syslog, CALL.as_bytes()).expect("a line");
        let (head, message) = record.split_once("] {").expect("a message");
        let head = head.replace(HOST.as_str(), "host").replace(env!("CARGO_PKG_VERSION"), "1");
        assert_eq!(
            head,
            "<110>1 2026-11-29T01:02:03.004Z host nonet ab12 call [origin software=\"nonet\" swVersion=\"1\"][meta sequenceId=\"7\""
        );
        assert_eq!(format!("{{{message}"), CALL, "the line is as it was");
        let denied = CALL.replace("\"allow\"", "\"deny\"").replace("\"ok\"", "\"forbidden\"");
        assert!(
            super::record(AuditFormat::Syslog, denied.as_bytes()).expect("a line").starts_with("<108>1 ")
        );
        assert_eq!(super::record(AuditFormat::Syslog, b"{\"torn"), None);
    }

    #[test]
    fn a_line_is_an_event_of_ocsf() {
        let record = record(AuditFormat::Ocsf, CALL.as_bytes()).expect("a line");
        let event: Value = serde_json::from_str(&record).expect("JSON");
        let of = |path: &str| event.pointer(path).cloned().unwrap_or_default();
        for (path, expected) in [
            ("/class_uid", json!(6003)),
            ("/type_uid", json!(600_399)),
            ("/time", json!(1_795_914_123_004_i64)),
            ("/severity_id", json!(1)),
            ("/status_id", json!(1)),
            ("/duration", json!(2)),
            ("/actor/user/uid", json!("u1")),
            ("/actor/app_name", json!("vscode")),
            ("/api/operation", json!("drive.read")),
            ("/api/service/name", json!("drive")),
            ("/metadata/sequence", json!(7)),
            ("/metadata/uid", json!("ff")),
            ("/unmapped/chain_prev", json!("00")),
            ("/raw_data", json!(CALL)),
        ] {
            assert_eq!(of(path), expected, "{path}: {event}");
        }
        let sign_in = r#"{"seq":8,"at":"2026-11-29T01:02:03.004Z","event":"page","about":{"action":"sign_in","person":{"issuer":"https://id","subject":"u1","name":"Ann"}},"hash":"fe"}"#;
        let event: Value =
            serde_json::from_str(&super::record(AuditFormat::Ocsf, sign_in.as_bytes()).expect("a line"))
                .expect("JSON");
        assert_eq!(
            (&event["class_uid"], &event["type_uid"], &event["user"]["uid"]),
            (&json!(3002), &json!(300_201), &json!("u1"))
        );
    }
}
