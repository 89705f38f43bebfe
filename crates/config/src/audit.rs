//! `[audit]`: the record of every call, separate from the log for people.

use std::{collections::BTreeMap, path::PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Secret;

/// The audit log: `[audit]`. With this table, even an empty one, each call has a line in a file that only
/// grows, and each line has the hash of the line before (`nonet audit verify`).
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AuditSettings {
    /// The folder of the files: absolute, with `~/`, or relative to this file. Default: `audit` in Nonet's
    /// state folder.
    #[schemars(with = "Option<String>", length(min = 1), example = &"audit")]
    pub folder: Option<PathBuf>,
    /// The most bytes that the files of one gateway take; the oldest file goes first.
    #[schemars(range(min = 1_000_000, max = 1_000_000_000_000_u64))]
    pub max_bytes: u64,
    /// When a line is on the disk.
    pub sync: AuditSync,
    /// Whether lines have the params of the calls, with secrets masked, beside their hash.
    pub params: bool,
    /// The key of the chain: each hash is then an HMAC-SHA-256, which whoever can only write the files cannot
    /// make. At least 16 characters; all gateways of a folder, and `nonet audit verify`, need the same.
    #[schemars(with = "Option<String>", length(min = 16), example = &"${AUDIT_KEY}")]
    pub key: Option<Secret>,
    /// What happens to calls while lines cannot be written.
    pub on_failure: OnAuditFailure,
    /// Where copies of the lines go, by a name of yours: `[audit.export.NAME]`.
    pub export: BTreeMap<String, AuditExportSettings>,
}

/// Where copies of the lines go: into a file, to a webhook, or to a syslog server. What cannot be sent waits in the
/// files of the log.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AuditExportSettings {
    /// The form of a record. Default: `syslog` for a syslog server, else `ocsf`.
    #[schemars(with = "Option<AuditFormat>")]
    #[serde(rename = "format")]
    pub written: Option<AuditFormat>,
    /// The form of a record, decided.
    #[serde(skip)]
    pub format: AuditFormat,
    /// The file to which records are appended, one a line: absolute, with `~/`, or relative to this file.
    #[schemars(with = "Option<String>", length(min = 1), example = &"/var/log/nonet/audit.ocsf.jsonl")]
    pub file: Option<PathBuf>,
    /// The address that gets up to 500 records at once, as a list in JSON.
    #[schemars(with = "Option<String>", extend("format" = "http-url"), example = &"https://siem.example.com/ingest")]
    pub webhook: Option<Secret>,
    /// The headers of the webhook's requests.
    #[schemars(schema_with = "super::servers::headers_schema")]
    pub headers: BTreeMap<String, Secret>,
    /// The syslog server: `udp://HOST:PORT`, or `tcp://HOST:PORT` with octet counting (RFC 6587).
    #[schemars(extend("format" = "syslog-url"), example = &"tcp://127.0.0.1:601")]
    pub syslog: Option<String>,
}

impl AuditExportSettings {
    /// Decides what the table leaves open.
    pub(super) fn decide(&mut self) {
        let usual = if self.syslog.is_some() { AuditFormat::Syslog } else { AuditFormat::Ocsf };
        self.format = self.written.unwrap_or(usual);
    }
}

/// The form of an exported record. Both have the line itself, with its hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AuditFormat {
    /// An event of the Open Cybersecurity Schema Framework, as JSON.
    #[default]
    Ocsf,
    /// A message of syslog (RFC 5424).
    Syslog,
}

/// Returns why a text is not the address of a syslog server.
pub(super) fn syslog_url(text: &str) -> Result<(), String> {
    let why = || Err("is not `udp://HOST:PORT` or `tcp://HOST:PORT`".into());
    let Some((scheme, host)) = text.split_once("://") else { return why() };
    let port = host.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port);
    match ["udp", "tcp"].contains(&scheme)
        && port.is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
    {
        true => Ok(()),
        false => why(),
    }
}

impl Default for AuditSettings {
    fn default() -> Self {
        Self {
            folder: None,
            max_bytes: 1_000_000_000,
            sync: AuditSync::default(),
            params: false,
            key: None,
            on_failure: OnAuditFailure::default(),
            export: BTreeMap::new(),
        }
    }
}

/// When a line of the audit log is on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AuditSync {
    /// Before the call is answered.
    Always,
    /// Given to the system within a tenth of a second, and on the disk within two seconds.
    #[default]
    Interval,
    /// Given to the system within a tenth of a second, which writes it when it likes.
    Never,
}

/// What happens to calls while the audit log cannot be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnAuditFailure {
    /// They run. Lines wait in memory; those beyond its bound are lost, and a line says how many.
    #[default]
    Continue,
    /// New calls are refused. No line is lost.
    Refuse,
}
