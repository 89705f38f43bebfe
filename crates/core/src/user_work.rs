//! The work of all clients, for the user of the machine: tasks, watches, schedules, facts, kept results and
//! waiting workflows.
//!
//! The user sees and ends clients' work regardless of their profiles, through the same functions as the
//! clients' own tools.

use std::time::Duration;

use nonet_api::work::{
    AllWork, FactList, FactView, KeptDetails, Owned, TaskDetails, WorkAction, WorkDetails, WorkKind,
};
use nonet_auth::Owner;
use nonet_base::text::clip;
use nonet_parts::{approvals::AnswerError, jobs::JobOwner};
use nonet_store::{RecordKind, StoreError};
use nonet_text::{
    fault::{Fault, FaultCode},
    results::json_len,
};
use serde_json::{Map, Value, json};

use super::{
    Gateway,
    builtin::watch as watches,
    scheduling::{schedule_in_full, schedule_in_list},
};
use nonet_state::{faults::of_store, questions::SettledQuestion};

/// How many of each kind are listed.
const LISTED: usize = 100;
/// Of how many people the page shows tasks and facts.
const PEOPLE: usize = 100;
/// How many facts are listed.
const FACTS: usize = 50;
/// Facts below this share of the best score are left out.
const FAR: f32 = 0.5;
/// How much of a result is shown, in bytes.
const SHOWN: usize = 20_000;
/// How much of a fact in the list, and of an input, is shown, in characters.
const CLIPPED: usize = 400;
/// How long a cancelled task may take to end.
const CANCEL_WAIT: Duration = Duration::from_secs(2);

/// A piece of work: its owner as the store knows it, and its id.
#[derive(Clone, Copy, Debug)]
pub struct WorkItem<'a> {
    /// Its kind.
    pub kind: WorkKind,
    /// The profile of its clients; empty without one.
    pub owner: &'a str,
    /// Its id.
    pub id: &'a str,
}

impl Gateway {
    /// Returns all work except facts: one list for each kind, latest first, with the total number.
    pub async fn user_work(&self) -> Result<AllWork, Fault> {
        let tasks = self.keeping.jobs.of_everybody(&self.owners().await, LISTED).await;
        let watches = self.keeping.records.of_kind(RecordKind::Watch).await.map_err(unread)?;
        let schedules = self.keeping.records.of_kind(RecordKind::Schedule).await.map_err(unread)?;
        let watches = watches.iter().rev().filter_map(|one| owned(watches::in_list(one)?, &one.owner));
        let schedules = schedules.iter().rev().filter_map(|one| owned(schedule_in_list(one)?, &one.owner));
        Ok(AllWork {
            tasks: tasks.into_iter().map(|(owner, work)| Owned { work, owner }).collect(),
            watches: watches.take(LISTED).collect(),
            schedules: schedules.take(LISTED).collect(),
            results: self.keeping.store.results(LISTED).await.map_err(unread)?,
            workflows: self.apps.waiting(LISTED).await?,
            kept: self.keeping.kept.counts().await,
        })
    }

    /// Returns the facts that fit a query best, or the newest without a query.
    pub async fn user_facts(&self, query: &str) -> Result<FactList, Fault> {
        let (mut facts, mut total) = (Vec::new(), 0);
        let embedder = self.publisher.embedder();
        for owner in self.owners().await {
            let found = self.keeping.memory.recall(&owner, query, &[], Some(FACTS), embedder.as_ref()).await;
            let found = found.map_err(unread)?;
            total += found.of;
            facts.extend(found.facts.into_iter().map(|(fact, score)| (score, owner.clone(), fact)));
        }
        facts.sort_by(|(score, _, fact), (other_score, _, other)| {
            other_score
                .unwrap_or_default()
                .total_cmp(&score.unwrap_or_default())
                .then(other.at_ms.cmp(&fact.at_ms))
        });
        let best = facts.first().and_then(|(score, ..)| *score).unwrap_or_default();
        facts.retain(|(score, ..)| score.is_none_or(|score| score >= FAR * best));
        let shown = facts.into_iter().take(FACTS).map(|(_, owner, fact)| FactView {
            id: fact.document.id.to_string(),
            owner,
            text: clip(&fact.document.description, CLIPPED),
            tags: fact.document.terms.clone(),
            at_ms: fact.at_ms,
        });
        Ok(FactList { facts: shown.collect(), total, remembers: self.servers.config().gateway.memory })
    }

    /// Returns one piece of work in full; of a kept result, as much as can be shown, from `offset` on.
    pub async fn work_in_full(&self, item: WorkItem<'_>, offset: u64) -> Result<WorkDetails, Fault> {
        let WorkItem { kind, owner, id } = item;
        Ok(match kind {
            WorkKind::Task => {
                let by = self.job_owner(owner, id);
                let found = self.keeping.jobs.find(id, &by).await.map_err(unread)?;
                let task = found.ok_or_else(|| not_there(id))?;
                let result = match task.state.has_result() {
                    true => Some(self.keeping.kept.of_task(&by, id, SHOWN).await.unwrap_or_default()),
                    false => None,
                };
                WorkDetails::Task(Box::new(TaskDetails { task, result }))
            }
            WorkKind::Watch => {
                let (record, watch) = self.errands.watch_of(owner, id).await?;
                WorkDetails::Watch(Box::new(watches::in_full(&record, &watch)))
            }
            WorkKind::Schedule => {
                let record =
                    self.keeping.records.get(RecordKind::Schedule, owner, id).await.map_err(unread)?;
                let schedule = record.as_ref().and_then(schedule_in_full).ok_or_else(|| not_there(id))?;
                WorkDetails::Schedule(Box::new(schedule))
            }
            WorkKind::Fact => {
                let record = self.keeping.records.get(RecordKind::Fact, owner, id).await.map_err(unread)?;
                WorkDetails::Fact(record.ok_or_else(|| not_there(id))?.body)
            }
            WorkKind::Result => {
                let query = Map::from_iter([("ref".into(), json!(id)), ("offset".into(), json!(offset))]);
                WorkDetails::Result(KeptDetails {
                    result: self.keeping.kept.fetch(&user(owner), query, SHOWN).await?,
                })
            }
            WorkKind::Workflow => {
                let mut flow =
                    self.apps.runs_of(id).in_full(owner, id).await?.ok_or_else(|| not_there(id))?;
                if let Some(input) = flow.input.as_mut().filter(|input| json_len(input) > SHOWN) {
                    *input = json!(clip(&input.to_string(), CLIPPED));
                }
                WorkDetails::Workflow(Box::new(flow))
            }
        })
    }

    /// Carries out the user's action on a piece of work.
    pub async fn act_on_work(&self, item: WorkItem<'_>, action: WorkAction) -> Result<(), Fault> {
        let WorkItem { kind, owner, id } = item;
        match (kind, action) {
            (WorkKind::Task, WorkAction::Cancel) => {
                let by = self.job_owner(owner, id);
                if self.keeping.jobs.find(id, &by).await.map_err(unread)?.is_none() {
                    return Err(not_there(id));
                }
                self.keeping.jobs.cancel(id, &by, CANCEL_WAIT).await;
            }
            (WorkKind::Task, WorkAction::Delete) => {
                let by = self.job_owner(owner, id);
                self.keeping
                    .jobs
                    .remove_ended(id, &by)
                    .await
                    .map_err(unread)?
                    .then_some(())
                    .ok_or_else(|| not_ended(id))?;
            }
            (WorkKind::Watch, WorkAction::Pause) => drop(watches::pause(self, owner, id).await?),
            (WorkKind::Watch, WorkAction::Resume) => drop(watches::resume(self, owner, id).await?),
            (WorkKind::Watch, WorkAction::Delete) => drop(self.errands.stop_watch(owner, id).await?),
            (WorkKind::Schedule, WorkAction::Delete) => drop(self.errands.cancel_schedule(owner, id).await?),
            (WorkKind::Fact, WorkAction::Delete) => {
                let forgotten = self.keeping.memory.forget(owner, id).await.map_err(unread)?;
                forgotten.map(drop).ok_or_else(|| not_there(id))?;
            }
            (WorkKind::Result, WorkAction::Delete) => {
                self.keeping
                    .store
                    .remove_kept(id, owner)
                    .await
                    .map_err(unread)?
                    .then_some(())
                    .ok_or_else(|| not_there(id))?;
            }
            (WorkKind::Workflow, WorkAction::Delete) => {
                let removed = self.apps.runs_of(id).remove(owner, id).await.map_err(unread)?;
                removed.then_some(()).ok_or_else(|| not_there(id))?;
            }
            (_, WorkAction::Cancel | WorkAction::Pause | WorkAction::Resume) => {
                let message = "Only a task can be cancelled, and only a watch be paused and resumed.";
                return Err(Fault::new(FaultCode::InvalidParams, message));
            }
        }
        Ok(())
    }

    /// Answers a client's question. The client is told with its next answer, and when it asks again.
    ///
    /// # Errors
    ///
    /// `not_found` if the question is no longer open, `invalid_params` if the answer does not fit it.
    pub async fn answer_question(&self, token: &str, said: &Value) -> Result<SettledQuestion, Fault> {
        let settled = self.asking.questions.settle(token, said, |id| self.sessions.get(id)).await;
        settled.map_err(|why| match why {
            AnswerError::Unfit(why) => Fault::new(FaultCode::InvalidParams, why),
            _ => Fault::new(FaultCode::NotFound, "This question is no longer open."),
        })
    }

    /// Returns every possible owner, as the store knows owners; of people, those who signed in last.
    async fn owners(&self) -> Vec<String> {
        let profiles = self.servers.config().profiles.keys().cloned().collect::<Vec<_>>();
        let people = self.sessions.people.owners(PEOPLE).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "the people who signed in cannot be listed");
            Vec::new()
        });
        let people = people.iter().map(|owner| owner.as_str().to_owned());
        [String::new()].into_iter().chain(profiles).chain(people).collect()
    }

    /// Returns the owner of a task: its client while the table has the task.
    fn job_owner(&self, owner: &str, id: &str) -> JobOwner {
        self.keeping.jobs.owner_of(id).filter(|of| of.key() == owner).unwrap_or_else(|| user(owner))
    }
}

/// Returns the user in place of the clients under a profile.
fn user(owner: &str) -> JobOwner {
    JobOwner { owner: Owner::of(owner), local: true, ..JobOwner::default() }
}

fn owned<T>(work: T, owner: &str) -> Option<Owned<T>> {
    Some(Owned { work, owner: owner.into() })
}

fn not_there(id: &str) -> Fault {
    Fault::new(FaultCode::NotFound, format!("`{}` no longer exists.", clip(id, 100)))
}

fn not_ended(id: &str) -> Fault {
    let message = format!("`{}` no longer exists, or is still running: cancel it first.", clip(id, 100));
    Fault::new(FaultCode::NotFound, message)
}

fn unread(error: StoreError) -> Fault {
    of_store("The work of clients cannot be read or changed", &error)
}
