//! The last scripts that have ended, so that one that worked can be saved without being sent again.

use std::collections::VecDeque;

use nonet_state::session::Caller;
use parking_lot::Mutex;

use super::{ScriptRun, answerer};

/// How many ended scripts are remembered, of all clients together.
const MOST: usize = 100;

/// The scripts that have ended in this process.
#[derive(Debug, Default)]
pub(crate) struct EndedScripts(Mutex<VecDeque<EndedScript>>);

#[derive(Debug)]
struct EndedScript {
    id: String,
    /// The profile and the account of its client.
    owner: (String, Option<String>),
    script: String,
}

fn owner_of(caller: &Caller) -> (String, Option<String>) {
    (caller.owner().key().into(), answerer(caller))
}

impl EndedScripts {
    /// Remembers a script.
    pub(super) fn add(&self, caller: &Caller, run: &ScriptRun) {
        let mut all = self.0.lock();
        if all.len() >= MOST {
            all.pop_front();
        }
        let (id, script) = (run.record.id.clone(), run.kept.script.clone());
        all.push_back(EndedScript { id, owner: owner_of(caller), script });
    }

    /// Returns the text of a script of this caller.
    pub(crate) fn text(&self, caller: &Caller, id: &str) -> Option<String> {
        let owner = owner_of(caller);
        let all = self.0.lock();
        all.iter().rev().find(|one| one.id == id && one.owner == owner).map(|one| one.script.clone())
    }
}
