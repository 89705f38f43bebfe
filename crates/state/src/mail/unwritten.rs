//! Notices that could not be written to disk: they wait in memory, and are delivered like others while this
//! gateway runs.

use std::collections::{BTreeMap, VecDeque};

use nonet_api::notice::Notice;
use nonet_store::NewRecord;
use serde_json::Value;

use super::MOST_NOTICES;
use crate::mailbox::Letter;

#[derive(Debug, Default)]
pub(super) struct WriteBacklog(BTreeMap<String, OwnerQueue>);

/// The notices of one owner, oldest first.
#[derive(Debug, Default)]
struct OwnerQueue {
    notices: VecDeque<NewRecord>,
    /// How many notices were dropped to make room.
    lost: usize,
}

impl WriteBacklog {
    /// Keeps a notice, replacing a notice with the same id. The oldest make room, and are counted.
    pub(super) fn put(&mut self, record: NewRecord) {
        let waiting = self.0.entry(record.owner.clone()).or_default();
        waiting.notices.retain(|other| other.id != record.id);
        if waiting.notices.len() >= MOST_NOTICES {
            waiting.notices.pop_front();
            waiting.lost += 1;
        }
        waiting.notices.push_back(record);
    }

    /// Removes a delivered notice.
    pub(super) fn remove(&mut self, owner: &str, id: &str) {
        if let Some(waiting) = self.0.get_mut(owner) {
            waiting.notices.retain(|record| record.id != id);
            if waiting.notices.is_empty() && waiting.lost == 0 {
                self.0.remove(owner);
            }
        }
    }

    /// Releases a notice that waited for a session which has ended.
    pub(super) fn free(&mut self, owner: &str, id: &str) {
        let notices = self.0.get_mut(owner).into_iter().flat_map(|waiting| &mut waiting.notices);
        notices.filter(|record| record.id == id).for_each(|record| record.held = false);
    }

    /// Claims up to `most` notices that wait for no session.
    pub(super) fn claim(&mut self, owner: &str, most: usize) -> Vec<Letter> {
        let Some(waiting) = self.0.get_mut(owner) else { return Vec::new() };
        let mut letters = Vec::new();
        if waiting.lost > 0 && most > 0 {
            let count = std::mem::take(&mut waiting.lost);
            letters.push(Letter::from(Value::from(Notice::NoticesLost { count: count as u64 })));
        }
        for record in waiting.notices.iter_mut().filter(|record| !record.held) {
            if letters.len() >= most {
                break;
            }
            record.held = true;
            letters.push(Letter { notice: record.body.clone(), kept: Some(record.id.clone()) });
        }
        letters
    }
}
