//! Notices for one session: information that its client needs without having asked for it.

use std::{borrow::Cow, collections::VecDeque, sync::Arc};

use nonet_api::notice::Notice;
use nonet_base::text::{clean, clip};
use nonet_text::results::{CallResult, json_len};
use parking_lot::Mutex;
use serde_json::Value;

use crate::mail::Mail;

/// How many notices may wait for one session; the oldest are dropped first.
const MAX_NOTICES: usize = 50;
/// How many findings one notice has.
const MAX_FOUND: usize = 30;
/// How many bytes of notices one answer carries; the others wait for the next answer.
const MAX_BYTES: usize = 8_000;
/// The longest text in a notice, in characters.
const MAX_TEXT: usize = 20_000;

/// The notices that wait for the next answer.
#[derive(Debug, Default)]
pub struct Mailbox {
    queue: Mutex<Queue>,
    /// Takes lasting notices that the session did not deliver, with their owner.
    mail: Option<(Arc<Mail>, Box<str>)>,
}

/// A waiting notice.
#[derive(Debug)]
pub struct Letter {
    /// The notice as a client reads it.
    pub notice: Value,
    /// The id under which the store keeps the notice, if it does.
    pub kept: Option<String>,
}

impl From<Value> for Letter {
    fn from(notice: Value) -> Self {
        Self { notice, kept: None }
    }
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Letter>,
    /// How many were dropped since the last answer.
    lost: usize,
}

impl Mailbox {
    /// Adds a notice; drops the oldest one if too many wait. If the store keeps the dropped notice, returns
    /// its id, because it is not lost.
    #[must_use]
    pub fn post(&self, letter: impl Into<Letter>) -> Option<String> {
        let mut letter = letter.into();
        clean_all(&mut letter.notice);
        let mut queue = self.queue.lock();
        // A notice posted again with the same id replaces the first one.
        let same = |waiting: &&mut Letter| letter.kept.is_some() && waiting.kept == letter.kept;
        if let Some(waiting) = queue.waiting.iter_mut().find(same) {
            *waiting = letter;
            return None;
        }
        if queue.waiting.iter_mut().any(|waiting| merge(&mut waiting.notice, &letter.notice)) {
            return None;
        }
        let dropped = (queue.waiting.len() == MAX_NOTICES).then(|| queue.waiting.pop_front()).flatten();
        queue.waiting.push_back(letter);
        let kept = dropped.as_ref().and_then(|letter| letter.kept.clone());
        queue.lost += usize::from(dropped.is_some() && kept.is_none());
        kept
    }

    /// Returns the waiting notices that the store does not keep.
    pub fn unkept(&self) -> Vec<Value> {
        let queue = self.queue.lock();
        queue
            .waiting
            .iter()
            .filter(|letter| letter.kept.is_none())
            .map(|letter| letter.notice.clone())
            .collect()
    }

    /// Returns how many more notices fit.
    pub fn room(&self) -> usize {
        MAX_NOTICES - self.waiting()
    }

    /// Removes the notices of a task whose result the client has. Returns the ids of the removed notices that
    /// are in the store.
    pub fn withdraw(&self, task: &str) -> Vec<String> {
        let mut withdrawn = Vec::new();
        self.queue.lock().waiting.retain_mut(|letter| {
            let other = letter.notice["task_id"] != task;
            if !other {
                withdrawn.extend(letter.kept.take());
            }
            other
        });
        withdrawn
    }

    /// Creates a mailbox that returns its lasting notices to `mail` when the session ends.
    pub fn with_mail(mail: Arc<Mail>, owner: &str) -> Self {
        Self { queue: Mutex::default(), mail: Some((mail, owner.into())) }
    }

    /// Returns where lasting notices go when the session ends.
    pub fn mail(&self) -> Option<&Arc<Mail>> {
        self.mail.as_ref().map(|(mail, _)| mail)
    }

    /// Returns how many notices wait.
    pub fn waiting(&self) -> usize {
        self.queue.lock().waiting.len()
    }

    /// Adds notices to an answer as a last text block: `own` for this very call, then the waiting ones, each
    /// once, in order. Notices that would make the block too long wait for the next answer. Returns the ids
    /// of the notices that are in the store.
    pub fn attach(&self, answer: &mut CallResult, own: Vec<Value>) -> Vec<String> {
        let mut told = Vec::new();
        let mut queue = self.queue.lock();
        if queue.waiting.is_empty() && own.is_empty() {
            return told;
        }
        if !answer.has_content() {
            return told;
        }
        let mut all = own;
        all.iter_mut().for_each(clean_all);
        if queue.lost > 0 {
            let count = std::mem::take(&mut queue.lost) as u64;
            all.push(Notice::NoticesLost { count }.into());
        }
        let mut left = MAX_BYTES;
        while let Some(next) = queue.waiting.front() {
            let size = json_len(&next.notice);
            if size > left && !all.is_empty() {
                break;
            }
            left = left.saturating_sub(size);
            if let Some(letter) = queue.waiting.pop_front() {
                told.extend(letter.kept);
                all.push(letter.notice);
            }
        }
        answer.push_notices(&all);
        told
    }
}

/// Adds what a notice found to an earlier notice about the same tool. Returns whether the earlier one now has
/// everything.
fn merge(earlier: &mut Value, notice: &Value) -> bool {
    let is_same =
        earlier["found"].is_array() && ["kind", "of"].iter().all(|key| earlier[*key] == notice[*key]);
    let (true, Some(found)) = (is_same, notice["found"].as_array()) else { return false };
    let Some(known) = earlier.get_mut("found").and_then(Value::as_array_mut) else { return false };
    let new: Vec<Value> = found.iter().filter(|one| !known.contains(one)).cloned().collect();
    let fits = known.len() + new.len() <= MAX_FOUND;
    if fits {
        known.extend(new);
    }
    fits
}

/// Cleans the texts of a notice, which may quote servers and clients, and shortens long ones.
pub fn clean_all(notice: &mut Value) {
    match notice {
        Value::String(text) => {
            if let Cow::Owned(clean) = clean(text) {
                *text = clean;
            }
            if text.len() > MAX_TEXT {
                *text = clip(text, MAX_TEXT);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(clean_all),
        Value::Object(fields) => fields.values_mut().for_each(clean_all),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        if let Some((mail, owner)) = &self.mail {
            let untold = self.queue.get_mut().waiting.drain(..).filter_map(|letter| letter.kept).collect();
            mail.returned(owner, untold);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer() -> CallResult {
        json!({ "content": [{ "type": "text", "text": "done" }] }).into()
    }

    fn blocks(answer: &CallResult) -> &[Value] {
        answer.as_tree().and_then(|tree| tree["content"].as_array()).expect("blocks")
    }

    /// Returns the notices in the next answer, each as its `n`, its `task_id` or its kind.
    fn next(mailbox: &Mailbox) -> Vec<Value> {
        let mut answer = answer();
        mailbox.attach(&mut answer, Vec::new());
        let Some(block) = blocks(&answer).get(1) else { return Vec::new() };
        let mut block: Value = serde_json::from_str(block["text"].as_str().expect("text")).expect("JSON");
        let notices = block["notices"].as_array_mut().expect("notices");
        let name = |notice: &Value| {
            ["n", "task_id", "count"].into_iter().find_map(|key| notice.get(key).cloned()).expect("a name")
        };
        notices.iter().map(name).collect()
    }

    #[test]
    fn a_notice_goes_out_once_and_in_order() {
        let mailbox = Mailbox::default();
        assert!(next(&mailbox).is_empty());
        (1..=3).for_each(|n| drop(mailbox.post(json!({ "n": n }))));
        assert_eq!(mailbox.waiting(), 3);
        assert_eq!(next(&mailbox), [1, 2, 3]);
        assert!(next(&mailbox).is_empty());
    }

    #[test]
    fn the_notices_of_the_call_come_first() {
        let mailbox = Mailbox::default();
        let _ = mailbox.post(json!({ "n": 1 }));
        let mut with_own = answer();
        mailbox.attach(&mut with_own, vec![json!({ "n": 2 })]);
        assert_eq!(blocks(&with_own)[1]["text"], r#"{"notices":[{"n":2},{"n":1}]}"#);
        // An answer without content leaves the notices for the next one.
        let _ = mailbox.post(json!({ "n": 3 }));
        mailbox.attach(&mut json!({}).into(), Vec::new());
        assert_eq!(next(&mailbox), [3]);
    }

    #[test]
    fn what_does_not_fit_goes_with_the_next_answer() {
        let mailbox = Mailbox::default();
        let long = "x".repeat(MAX_BYTES / 2);
        (1..=3).for_each(|n| drop(mailbox.post(json!({ "n": n, "text": long }))));
        let _ = mailbox.post(json!({ "n": 4, "text": long.repeat(3) }));
        // A notice that is too long on its own is sent nevertheless.
        for expected in [1, 2, 3, 4] {
            assert_eq!(next(&mailbox), [expected]);
        }
    }

    #[test]
    fn the_oldest_make_room_and_are_counted() {
        let mailbox = Mailbox::default();
        (0..MAX_NOTICES + 2).for_each(|n| drop(mailbox.post(json!({ "n": n }))));
        let told = next(&mailbox);
        assert_eq!((told.len(), &told[0], &told[1]), (MAX_NOTICES + 1, &json!(2), &json!(2)));
        let _ = mailbox.post(json!({ "n": 9 }));
        assert_eq!(next(&mailbox), [9], "lost notices are counted once");
    }

    #[test]
    fn a_withdrawn_notice_is_not_told() {
        let mailbox = Mailbox::default();
        for id in ["job-1", "job-2"] {
            let _ = mailbox.post(json!({ "kind": "task_ended", "task_id": id }));
        }
        mailbox.withdraw("job-1");
        assert_eq!(next(&mailbox), ["job-2"]);
    }
}
