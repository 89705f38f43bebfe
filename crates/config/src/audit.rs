//! `[audit]`: the record of every call, separate from the log for people.

use std::path::PathBuf;

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
