//! Questions in the store, which outlive their process. Among these are approvals that wait for the user
//! outside the chat: the live page, `nonet approve` or a webhook decides them.
//!
//! An approval is a record, so the process that decides does not have to be the gateway that asks. An
//! approval belongs to a key, which the gateway derives from whatever the user approves, and works once. This
//! room knows records; it knows nothing about tools or clients.

use std::{sync::Arc, time::Duration};

use nonet_api::question::{ApprovalView, UserVerdict};
use nonet_auth::Owner;
use nonet_base::clock::{Clock, millis};
use nonet_store::{NewRecord, Record, RecordKind, RecordQuota, Records, StoreError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

/// How long an approval waits, first for the user and then for its call.
pub const AGE: Duration = Duration::from_secs(900);
/// How many approvals may wait for one owner.
const MOST: usize = 50;
/// How often a waiting call checks for a decision by another process.
const LOOK: Duration = Duration::from_millis(500);

/// A decision, and where it was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ApprovalDecision {
    /// The user's verdict.
    pub verdict: UserVerdict,
    /// The answer to a question that is not a yes-or-no question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Value>,
    /// Where it was made: `page`, `command` or `webhook`.
    pub by: String,
}

/// The question that the user decides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ApprovalQuestion {
    /// The digest of whatever is approved: the call, its definition, its params and its session.
    pub key: String,
    /// The whole question.
    pub question: String,
    /// The waiting tool or app.
    pub subject: String,
    /// The rule that requires the approval.
    pub rule: String,
    /// The client.
    pub client: String,
    /// Whether a yes can hold for the rest of the session.
    pub lasting: bool,
    /// Whether the question accepts an answer in words, as a step of a workflow may.
    pub takes_answer: bool,
    /// The last part of the one-time address for the answer; empty without an address.
    pub address: String,
    /// The servers.toml of the gateway that asks. [`Approvals::ask`] sets it.
    pub config: String,
    /// The user's decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<ApprovalDecision>,
}

/// An approval that waits.
#[derive(Clone, Debug)]
pub struct WaitingApproval {
    record: Record,
    /// The question.
    pub asked: ApprovalQuestion,
    /// The remaining time.
    pub left: Duration,
}

/// The questions of one kind in the store. Each has an end, and an owner has a quota.
#[derive(Debug)]
pub struct KeptQuestions {
    /// The store.
    pub records: Arc<Records>,
    /// The clock.
    pub clock: Clock,
    /// The kind.
    pub kind: RecordKind,
    lasts: Duration,
    most: usize,
}

/// The waiting approvals of one configuration.
#[derive(Debug)]
pub struct Approvals {
    kept: KeptQuestions,
    config: String,
    /// Different for each process, because each process numbers its own sessions.
    pub nonce: String,
    decided: Notify,
}

/// Why an answer to a question does not count.
#[derive(Debug, PartialEq, Eq)]
pub enum AnswerError {
    /// No question with this id waits.
    Unknown,
    /// The question does not accept such an answer, for this reason.
    Unfit(String),
    /// The store failed.
    Failed(String),
}

impl std::fmt::Display for AnswerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown => {
                f.write_str("no approval with this id is pending: it was decided or has expired; `nonet approve` lists the pending ones")
            }
            Self::Unfit(why) => f.write_str(why),
            Self::Failed(why) => write!(f, "the decision could not be stored: {why}"),
        }
    }
}

impl WaitingApproval {
    /// Returns the id, which is short enough to type.
    pub fn id(&self) -> &str {
        &self.record.id
    }

    /// Returns the approval as answers show it.
    pub fn view(&self) -> ApprovalView {
        ApprovalView {
            id: self.id().into(),
            question: self.asked.question.clone(),
            subject: self.asked.subject.clone(),
            rule: self.asked.rule.clone(),
            client: self.asked.client.clone(),
            profile: Owner::of(&self.record.owner).profile().map(Into::into),
            for_session: self.asked.lasting,
            takes_answer: self.asked.takes_answer,
            left_s: self.left.as_secs(),
            age_s: AGE.saturating_sub(self.left).as_secs(),
        }
    }

    /// Returns the user's decision, if there is one.
    pub fn decision(&self) -> Option<&ApprovalDecision> {
        self.asked.decision.as_ref()
    }
}

impl KeptQuestions {
    /// Opens the questions of a kind. Each waits as long as `lasts`; `most` may wait for one owner.
    pub fn new(records: Arc<Records>, clock: Clock, kind: RecordKind, lasts: Duration, most: usize) -> Self {
        Self { records, clock, kind, lasts, most }
    }

    /// Returns how long a question has waited.
    pub fn age(&self, record: &Record) -> Duration {
        Duration::from_millis(self.clock.unix_ms().saturating_sub(record.put_ms))
    }

    /// Stores a question under an id, in place of the one that has the id; `held` by this gateway as long as
    /// it works on it. Returns whether there is room for it.
    pub async fn put(&self, owner: &str, id: &str, body: Value, held: bool) -> Result<bool, StoreError> {
        self.drop_expired(owner).await;
        let (owner, id) = (owner.into(), id.into());
        let record = NewRecord { owner, id, held, ..NewRecord::new(self.kind, body) };
        Ok(self.records.put(record, RecordQuota::Refuse(self.most)).await?.is_some())
    }

    /// Returns a question that waits.
    pub async fn get(&self, owner: &str, id: &str) -> Result<Option<Record>, StoreError> {
        let record = self.records.get(self.kind, owner, id).await?;
        if record.as_ref().is_some_and(|record| self.age(record) >= self.lasts) {
            self.drop_expired(owner).await;
            return Ok(None);
        }
        Ok(record)
    }

    /// Returns the questions of an owner that wait, oldest first.
    async fn of_owner(&self, owner: &str) -> Result<Vec<Record>, StoreError> {
        let mut own = self.records.all(self.kind, owner).await?;
        own.retain(|record| self.age(record) < self.lasts);
        Ok(own)
    }

    /// Returns the questions of all owners that wait, oldest first.
    pub async fn all(&self) -> Result<Vec<Record>, StoreError> {
        let mut all = self.records.of_kind(self.kind).await?;
        all.retain(|record| self.age(record) < self.lasts);
        Ok(all)
    }

    async fn drop_expired(&self, owner: &str) {
        let before = self.clock.unix_ms().saturating_sub(millis(self.lasts)).saturating_add(1);
        if let Err(error) = self.records.drop_old(self.kind, owner, before).await {
            tracing::warn!(%error, "questions that have waited too long were not removed");
        }
    }
}

impl Approvals {
    /// Opens the approvals of a configuration, which is identified by its path.
    pub fn new(records: Arc<Records>, clock: Clock, config: &str) -> Self {
        let nonce = uuid::Uuid::new_v4().simple().to_string();
        let kept = KeptQuestions::new(records, clock, RecordKind::Approval, AGE, MOST);
        Self { kept, config: config.into(), nonce, decided: Notify::new() }
    }

    /// Reads a record. Returns `None` if it belongs to another configuration.
    fn read(&self, record: Record) -> Option<WaitingApproval> {
        let asked = ApprovalQuestion::deserialize(&record.body).ok()?;
        let left = AGE.saturating_sub(self.kept.age(&record));
        (asked.config == self.config).then_some(WaitingApproval { record, asked, left })
    }

    /// Returns every approval, decided or not.
    async fn every(&self) -> Result<Vec<WaitingApproval>, StoreError> {
        Ok(self.kept.all().await?.into_iter().filter_map(|record| self.read(record)).collect())
    }

    /// Returns the undecided approvals, oldest first.
    pub async fn waiting(&self) -> Result<Vec<WaitingApproval>, StoreError> {
        let mut all = self.every().await?;
        all.retain(|one| one.decision().is_none());
        Ok(all)
    }

    /// Returns the approval with this key.
    pub async fn of_key(&self, owner: &str, key: &str) -> Result<Option<WaitingApproval>, StoreError> {
        let own = self.kept.of_owner(owner).await?;
        Ok(own.into_iter().filter_map(|record| self.read(record)).find(|one| one.asked.key == key))
    }

    /// Returns the id of the approval that expects an answer at this one-time address.
    pub async fn at_address(&self, address: &str) -> Result<Option<String>, StoreError> {
        let waiting = self.waiting().await?;
        let found = waiting.iter().find(|one| !address.is_empty() && one.asked.address == address);
        Ok(found.map(|one| one.id().to_string()))
    }

    /// Adds an approval and returns it; `None` if too many approvals of the owner wait.
    pub async fn ask(
        &self,
        owner: &str,
        asked: ApprovalQuestion,
    ) -> Result<Option<WaitingApproval>, StoreError> {
        let asked = ApprovalQuestion { config: self.config.clone(), ..asked };
        let id = uuid::Uuid::new_v4().simple().to_string();
        // Short enough to type, because only a few approvals wait at a time.
        let id = id.get(..8).unwrap_or(&id);
        if !self.kept.put(owner, id, json!(asked), false).await? {
            return Ok(None);
        }
        Ok(self.kept.get(owner, id).await?.and_then(|record| self.read(record)))
    }

    /// Decides a waiting approval. Of several decisions the first one counts.
    pub async fn decide(&self, id: &str, decision: ApprovalDecision) -> Result<WaitingApproval, AnswerError> {
        let failed = |error: StoreError| AnswerError::Failed(error.to_string());
        let waiting = self.waiting().await.map_err(failed)?;
        let found = waiting.into_iter().find(|one| one.id() == id);
        let WaitingApproval { mut record, mut asked, left } = found.ok_or(AnswerError::Unknown)?;
        if decision.verdict == UserVerdict::AllowForSession && !asked.lasting {
            return Err(AnswerError::Unfit(
                "this can be approved for one call only, not for a session".into(),
            ));
        }
        if decision.answer.is_some() && !asked.takes_answer {
            return Err(AnswerError::Unfit("this accepts only a yes or a no".into()));
        }
        tracing::info!(id, subject = %asked.subject, verdict = ?decision.verdict, by = %decision.by, "the user decided an approval");
        asked.decision = Some(decision);
        record.body = json!(asked);
        match self.kept.records.change(record.clone()).await.map_err(failed)? {
            true => {
                self.decided.notify_waiters();
                Ok(WaitingApproval { record, asked, left })
            }
            false => Err(AnswerError::Unknown),
        }
    }

    /// Waits up to `limit` for a decision and returns the approval in its new state; `None` if the approval
    /// is gone.
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
            match self.kept.get(owner, id).await?.and_then(|record| self.read(record)) {
                Some(now) => one = now,
                None => return Ok(None),
            }
        }
        Ok(Some(one))
    }

    /// Consumes a decided approval. Of several calls only one gets it.
    pub async fn take(&self, one: WaitingApproval) -> Result<bool, StoreError> {
        self.kept.records.remove(one.record).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nonet_store::{GatewayStore, Retention};

    fn approvals(clock: &Clock, config: &str) -> Approvals {
        let retention = Retention { bytes: 1_000, age: Duration::MAX };
        let store = GatewayStore::in_files(None, retention, clock.clone(), "");
        Approvals::new(store.records, clock.clone(), config)
    }

    fn asked(key: &str) -> ApprovalQuestion {
        ApprovalQuestion { key: key.into(), question: "May it?".into(), ..ApprovalQuestion::default() }
    }

    fn decision(verdict: UserVerdict) -> ApprovalDecision {
        ApprovalDecision { verdict, answer: None, by: "command".into() }
    }

    #[tokio::test]
    async fn an_approval_is_decided_once_and_used_once() {
        let clock = Clock::default();
        let approvals = approvals(&clock, "/a");
        let one = approvals.ask("", asked("k")).await.expect("kept").expect("room");
        let id = one.id().to_string();
        assert_eq!(approvals.waiting().await.expect("read").len(), 1);
        let for_session = approvals.decide(&id, decision(UserVerdict::AllowForSession)).await;
        assert!(matches!(for_session, Err(AnswerError::Unfit(_))), "{for_session:?}");
        approvals.decide(&id, decision(UserVerdict::Allow)).await.expect("decided");
        assert_eq!(
            approvals.decide(&id, decision(UserVerdict::Deny)).await.unwrap_err(),
            AnswerError::Unknown
        );
        assert!(approvals.waiting().await.expect("read").is_empty());
        assert!(approvals.of_key("other", "k").await.expect("read").is_none(), "another owner");
        let cancel = CancellationToken::new();
        let decided =
            approvals.wait(one, Duration::from_secs(5), &cancel).await.expect("read").expect("there");
        assert_eq!(decided.decision().map(|one| one.verdict), Some(UserVerdict::Allow));
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
