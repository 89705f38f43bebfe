//! Approvals that wait for the user outside of the chat: the live page, `nonet approve` and a webhook decide them.
//!
//! An approval is a record, so that the process that decides need not be the gateway that asks. It belongs to a key, which the
//! gateway makes of whatever the user approves, and is good once. This room knows records, and nothing of tools or clients.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    clock::{Clock, millis},
    store::{Most, NewRecord, Record, RecordKind, Records, StoreError},
};

/// How long an approval waits, for the user and then for its call.
pub const AGE: Duration = Duration::from_secs(900);
/// How many approvals of an owner wait at most.
const MOST: usize = 50;
/// How often a call that waits looks for the decision of another process.
const LOOK: Duration = Duration::from_millis(500);

/// What the user says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// This once.
    Allow,
    /// For the rest of the session.
    AllowForSession,
    /// No.
    Deny,
}

/// A decision, and where it was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// What the user says.
    pub verdict: Verdict,
    /// The answer to a question that is no yes or no.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Value>,
    /// Where it was made: `page`, `command` or `webhook`.
    pub by: String,
}

/// What the user is asked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Asked {
    /// What may be approved, as a digest: the call, its definition, its params and its session.
    pub key: String,
    /// The whole question.
    pub question: String,
    /// The tool or the app that waits.
    pub subject: String,
    /// The rule that asks.
    pub rule: String,
    /// The client.
    pub client: String,
    /// Whether a yes can hold for the rest of the session.
    pub lasting: bool,
    /// Whether it may be answered in words, as a step of a workflow may.
    pub takes_answer: bool,
    /// What the one-time address of the answer ends with; empty without one.
    pub address: String,
    /// The servers.toml of the gateway that asks; set when it is asked.
    pub config: String,
    /// What the user has decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
}

/// An approval that waits.
#[derive(Clone, Debug)]
pub struct WaitingApproval {
    record: Record,
    /// What is asked.
    pub asked: Asked,
    /// How long it waits yet.
    pub left: Duration,
}

/// The approvals that wait, of one configuration.
#[derive(Debug)]
pub struct Approvals {
    records: Arc<dyn Records>,
    clock: Clock,
    config: String,
    /// Different for each process: sessions are numbered in each.
    pub nonce: String,
    decided: Notify,
}

/// Why nothing was decided.
#[derive(Debug, PartialEq, Eq)]
pub enum Undecided {
    /// No approval with this id waits.
    Unknown,
    /// It cannot be answered like this.
    Unfit(&'static str),
    /// The store failed.
    Failed(String),
}

impl std::fmt::Display for Undecided {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown => {
                f.write_str("no approval with this id waits: it was decided, or its time is over; `nonet approve` lists what waits")
            }
            Self::Unfit(why) => f.write_str(why),
            Self::Failed(why) => write!(f, "the decision could not be kept: {why}"),
        }
    }
}

impl WaitingApproval {
    /// The id that people type.
    pub fn id(&self) -> &str {
        &self.record.id
    }

    /// The approval for people and programs.
    pub fn to_json(&self) -> Value {
        json!({
            "id": self.id(),
            "question": self.asked.question,
            "for": self.asked.subject,
            "rule": self.asked.rule,
            "client": self.asked.client,
            "profile": Some(&self.record.owner).filter(|owner| !owner.is_empty()),
            "for_session": self.asked.lasting,
            "takes_answer": self.asked.takes_answer,
            "left_s": self.left.as_secs(),
        })
    }

    /// What the user has decided.
    pub fn decision(&self) -> Option<&Decision> {
        self.asked.decision.as_ref()
    }
}

impl Approvals {
    /// The approvals of a configuration, which is named by its path.
    pub fn new(records: Arc<dyn Records>, clock: Clock, config: &str) -> Self {
        let nonce = uuid::Uuid::new_v4().simple().to_string();
        Self { records, clock, config: config.into(), nonce, decided: Notify::new() }
    }

    /// Reads a record; none if its time is over, or if it is of another configuration.
    fn read(&self, record: Record) -> Option<WaitingApproval> {
        let asked = Asked::deserialize(&record.body).ok()?;
        let age = Duration::from_millis(self.clock.unix_ms().saturating_sub(record.put_ms));
        let left = AGE.checked_sub(age).filter(|left| !left.is_zero())?;
        (asked.config == self.config).then_some(WaitingApproval { record, asked, left })
    }

    /// Every approval, decided or not.
    async fn every(&self) -> Result<Vec<WaitingApproval>, StoreError> {
        let records = self.records.of_kind(RecordKind::Approval).await?;
        Ok(records.into_iter().filter_map(|record| self.read(record)).collect())
    }

    /// The approvals that nobody has decided yet, oldest first.
    pub async fn waiting(&self) -> Result<Vec<WaitingApproval>, StoreError> {
        let mut all = self.every().await?;
        all.retain(|one| one.decision().is_none());
        Ok(all)
    }

    /// The approval of a key.
    pub async fn of_key(&self, owner: &str, key: &str) -> Result<Option<WaitingApproval>, StoreError> {
        let records = self.records.all(RecordKind::Approval, owner).await?;
        Ok(records.into_iter().filter_map(|record| self.read(record)).find(|one| one.asked.key == key))
    }

    /// The id of the approval that waits for an answer at a one-time address.
    pub async fn at_address(&self, address: &str) -> Result<Option<String>, StoreError> {
        let waiting = self.waiting().await?;
        let found = waiting.iter().find(|one| !address.is_empty() && one.asked.address == address);
        Ok(found.map(|one| one.id().to_string()))
    }

    /// Asks. Returns the approval; none if too many of the owner wait.
    pub async fn ask(&self, owner: &str, asked: Asked) -> Result<Option<WaitingApproval>, StoreError> {
        let before = self.clock.unix_ms().saturating_sub(millis(AGE));
        self.records.drop_old(RecordKind::Approval, owner, before).await?;
        let asked = Asked { config: self.config.clone(), ..asked };
        let id = uuid::Uuid::new_v4().simple().to_string();
        // Short enough to be typed; a few wait at a time.
        let id = id.get(..8).unwrap_or(&id).to_string();
        let record = NewRecord {
            owner: owner.into(),
            id: id.clone(),
            held: false,
            ..NewRecord::new(RecordKind::Approval, json!(asked))
        };
        if self.records.put(record, Most::Refuse(MOST)).await?.is_none() {
            return Ok(None);
        }
        let record = self.records.get(RecordKind::Approval, owner, &id).await?;
        Ok(record.and_then(|record| self.read(record)))
    }

    /// Decides an approval that waits. Of several decisions the first counts.
    pub async fn decide(&self, id: &str, decision: Decision) -> Result<WaitingApproval, Undecided> {
        let failed = |error: StoreError| Undecided::Failed(error.to_string());
        let waiting = self.waiting().await.map_err(failed)?;
        let found = waiting.into_iter().find(|one| one.id() == id);
        let WaitingApproval { mut record, mut asked, left } = found.ok_or(Undecided::Unknown)?;
        if decision.verdict == Verdict::AllowForSession && !asked.lasting {
            return Err(Undecided::Unfit("this is approved for one call only, not for a session"));
        }
        if decision.answer.is_some() && !asked.takes_answer {
            return Err(Undecided::Unfit("this takes a yes or a no, and no other answer"));
        }
        tracing::info!(id, subject = %asked.subject, verdict = ?decision.verdict, by = %decision.by, "the user decided an approval");
        asked.decision = Some(decision);
        record.body = json!(asked);
        match self.records.change(record.clone()).await.map_err(failed)? {
            true => {
                self.decided.notify_waiters();
                Ok(WaitingApproval { record, asked, left })
            }
            false => Err(Undecided::Unknown),
        }
    }

    /// Waits until an approval is decided, for at most `limit`, and returns it as it is then; none if it is gone.
    pub async fn wait(
        &self,
        mut one: WaitingApproval,
        limit: Duration,
        cancel: &CancellationToken,
    ) -> Result<Option<WaitingApproval>, StoreError> {
        let until = Instant::now() + limit;
        while one.decision().is_none() && Instant::now() < until {
            tokio::select! {
                () = cancel.cancelled() => return Ok(Some(one)),
                () = self.decided.notified() => {}
                () = tokio::time::sleep(LOOK.min(until - Instant::now())) => {}
            }
            let Record { owner, id, .. } = &one.record;
            let record = self.records.get(RecordKind::Approval, owner, id).await?;
            match record.and_then(|record| self.read(record)) {
                Some(now) => one = now,
                None => return Ok(None),
            }
        }
        Ok(Some(one))
    }

    /// Uses up a decided approval. Of several calls one gets it.
    pub async fn take(&self, one: WaitingApproval) -> Result<bool, StoreError> {
        self.records.remove(one.record).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Retention, SqliteStore};

    fn approvals(clock: &Clock, config: &str) -> Approvals {
        let retention = Retention { bytes: 1_000, age: Duration::MAX };
        let records = SqliteStore::new(None, retention, clock.clone());
        Approvals::new(Arc::new(records), clock.clone(), config)
    }

    fn asked(key: &str) -> Asked {
        Asked { key: key.into(), question: "May it?".into(), ..Asked::default() }
    }

    fn decision(verdict: Verdict) -> Decision {
        Decision { verdict, answer: None, by: "command".into() }
    }

    #[tokio::test]
    async fn an_approval_is_decided_once_and_used_once() {
        let clock = Clock::default();
        let approvals = approvals(&clock, "/a");
        let one = approvals.ask("", asked("k")).await.expect("kept").expect("room");
        let id = one.id().to_string();
        assert_eq!(approvals.waiting().await.expect("read").len(), 1);
        let for_session = approvals.decide(&id, decision(Verdict::AllowForSession)).await;
        assert!(matches!(for_session, Err(Undecided::Unfit(_))), "{for_session:?}");
        approvals.decide(&id, decision(Verdict::Allow)).await.expect("decided");
        assert_eq!(approvals.decide(&id, decision(Verdict::Deny)).await.unwrap_err(), Undecided::Unknown);
        assert!(approvals.waiting().await.expect("read").is_empty());
        assert!(approvals.of_key("other", "k").await.expect("read").is_none(), "another owner");
        let cancel = CancellationToken::new();
        let decided =
            approvals.wait(one, Duration::from_secs(5), &cancel).await.expect("read").expect("there");
        assert_eq!(decided.decision().map(|one| one.verdict), Some(Verdict::Allow));
        assert!(approvals.take(decided.clone()).await.expect("taken"));
        assert!(!approvals.take(decided).await.expect("gone"));
        assert!(approvals.of_key("", "k").await.expect("read").is_none());
    }

    #[tokio::test]
    async fn an_approval_has_an_end_and_an_owner_has_a_bound() {
        let clock = Clock::default();
        let approvals = approvals(&clock, "/a");
        for n in 0..MOST {
            assert!(approvals.ask("", asked(&n.to_string())).await.expect("kept").is_some());
        }
        assert!(approvals.ask("", asked("more")).await.expect("kept").is_none());
        assert!(approvals.ask("other", asked("more")).await.expect("kept").is_some());
        clock.advance(AGE);
        assert!(approvals.waiting().await.expect("read").is_empty());
        clock.advance(Duration::from_secs(1));
        assert!(approvals.ask("", asked("more")).await.expect("kept").is_some());
    }
}
