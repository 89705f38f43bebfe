//! What moves to another machine: facts, goals, to-dos, watches and schedules, and which definitions are trusted.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    NewRecord, PinKind, PinStep, PinStore, PinTexts, PinWrite, RecordKind, RecordQuota, Records, StoreError,
};

/// The kinds of records that move.
const KINDS: [RecordKind; 5] =
    [RecordKind::Fact, RecordKind::Goal, RecordKind::Todo, RecordKind::Watch, RecordKind::Schedule];

/// A record on its way to another machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CarriedRecord {
    kind: String,
    owner: String,
    id: String,
    body: Value,
    due_ms: Option<u64>,
    of_config: bool,
}

/// A trusted definition on its way to another machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedPin {
    server: String,
    kind: String,
    name: String,
    hash: String,
    text: String,
}

impl Records {
    /// Returns the records that move, of all owners.
    pub async fn carried(&self) -> Result<Vec<CarriedRecord>, StoreError> {
        let mut carried = Vec::new();
        for kind in KINDS {
            for (record, of_config) in self.ours(kind).await? {
                let (owner, id, body, due_ms) = (record.owner, record.id, record.body, record.due_ms);
                carried.push(CarriedRecord {
                    kind: kind.as_str().into(),
                    owner,
                    id,
                    body,
                    due_ms,
                    of_config,
                });
            }
        }
        Ok(carried)
    }

    /// Stores records of another machine, as work of this configuration. Those that are there stay as they are.
    /// Returns how many were stored, and how many were there or are of an unknown kind.
    pub async fn take_in(&self, carried: Vec<CarriedRecord>) -> Result<(usize, usize), StoreError> {
        let (mut stored, mut left) = (0, 0);
        for record in carried {
            let CarriedRecord { kind, owner, id, body, due_ms, of_config } = record;
            let kind = KINDS.into_iter().find(|known| known.as_str() == kind);
            let is_there = match kind {
                Some(kind) => self.get(kind, &owner, &id).await?.is_some(),
                None => true,
            };
            let Some(kind) = kind.filter(|_| !is_there) else {
                left += 1;
                continue;
            };
            let new = NewRecord { kind, owner, id, body, due_ms, held: false, of_config };
            let done = self.put(new, RecordQuota::Refuse(usize::MAX)).await?;
            stored += usize::from(done.is_some());
        }
        Ok((stored, left))
    }
}

impl PinStore {
    /// Returns the trusted definitions of servers. Blocks.
    pub fn carried(&self, servers: &[String]) -> Result<Vec<CarriedPin>, StoreError> {
        let mut carried = Vec::new();
        for server in servers {
            for pin in self.of_server(server)? {
                let Some(hash) = pin.trusted.clone() else { continue };
                let PinTexts { trusted, .. } = self.texts(&pin)?;
                let (server, kind, name) = (pin.server, pin.kind.as_str().into(), pin.name);
                carried.push(CarriedPin { server, kind, name, hash, text: trusted.unwrap_or_default() });
            }
        }
        Ok(carried)
    }

    /// Trusts definitions as another machine did. Those that are known here stay as they are. Blocks.
    pub fn take_in(&self, carried: Vec<CarriedPin>, now_ms: u64) -> Result<usize, StoreError> {
        let mut stored = 0;
        for CarriedPin { server, kind, name, hash, text } in carried {
            let Some(kind) = PinKind::of(&kind) else { continue };
            let to = PinStep::First { hash, text };
            self.write(&server, &[PinWrite { kind, name, to }], now_ms)?;
            stored += 1;
        }
        Ok(stored)
    }
}
