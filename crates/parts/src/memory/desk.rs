//! The goal and the tasks of an owner's work.

use nonet_api::tools::TodoState;
use nonet_store::{NewRecord, Record, RecordKind, RecordQuota, StoreError};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Memory;

/// The maximum number of tasks on a desk.
pub const MOST_TASKS: usize = 200;
/// How many notes a task keeps; the oldest are dropped first.
const MOST_NOTES: usize = 20;
/// How often a change is retried after another gateway was faster.
const TRIES: usize = 5;
/// The id of the only goal.
const GOAL: &str = "goal";

/// Where an owner's goal and tasks are kept.
#[derive(Clone, Copy, Debug)]
pub enum WorkPlace<'a> {
    /// In the store, for later sessions too.
    Kept {
        /// The profile that the desk belongs to; empty without one.
        owner: &'a str,
    },
    /// In the session, until it ends.
    Session(&'a Worklist),
}

/// The work of one session.
#[derive(Debug, Default)]
pub struct Worklist(Mutex<Work>);

/// A goal and tasks, oldest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Work {
    /// What the work is for, in the model's words; `None` until it is set, and after it is removed.
    pub goal: Option<String>,
    /// The tasks in every state, at most [`MOST_TASKS`].
    pub tasks: Vec<Todo>,
}

/// A task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Todo {
    /// `todo-` and 8 hex digits.
    #[serde(rename = "task_id", default)]
    pub id: String,
    /// What to do, in a line.
    pub subject: String,
    /// Details, if the subject does not say enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Set by the model; a new task is pending.
    #[serde(rename = "status")]
    pub state: TodoState,
    /// Comments from updates, oldest first, at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The outcome of adding a task.
#[derive(Debug, PartialEq)]
pub enum TaskAddition {
    /// The task was added; the oldest completed task may have made room for it.
    Added {
        /// The id of the new task.
        id: String,
        /// The completed task that was dropped, if there was no room.
        removed: Option<Todo>,
    },
    /// The desk is full of uncompleted tasks.
    Full,
}

impl Work {
    /// Returns the uncompleted tasks: tasks in progress first, then the oldest.
    pub fn open(&self) -> Vec<&Todo> {
        let mut open: Vec<&Todo> =
            self.tasks.iter().filter(|task| task.state != TodoState::Completed).collect();
        open.sort_by_key(|task| task.state);
        open
    }
}

impl Todo {
    fn new(subject: &str, description: Option<&str>) -> Todo {
        Todo {
            id: format!("todo-{}", &uuid::Uuid::new_v4().simple().to_string()[..8]),
            subject: subject.into(),
            description: description.map(str::to_owned),
            state: TodoState::Pending,
            notes: Vec::new(),
        }
    }

    fn of(record: &Record) -> Option<Todo> {
        let task: Todo = serde_json::from_value(record.body.clone()).ok()?;
        Some(Todo { id: record.id.clone(), ..task })
    }

    fn update(&mut self, state: Option<TodoState>, note: Option<&str>) {
        self.state = state.unwrap_or(self.state);
        self.notes.extend(note.map(str::to_owned));
        let extra = self.notes.len().saturating_sub(MOST_NOTES);
        self.notes.drain(..extra);
    }
}

/// Returns the oldest completed task if the list has no room.
fn in_the_way(tasks: &[Todo]) -> Option<Option<&Todo>> {
    (tasks.len() >= MOST_TASKS).then(|| tasks.iter().find(|task| task.state == TodoState::Completed))
}

impl Memory {
    /// Returns the work on a desk.
    pub async fn work(&self, desk: WorkPlace<'_>) -> Result<Work, StoreError> {
        match desk {
            WorkPlace::Session(list) => Ok(list.0.lock().clone()),
            WorkPlace::Kept { owner } => {
                let goal = self.records.get(RecordKind::Goal, owner, GOAL).await?;
                let goal = goal.and_then(|record| record.body["goal"].as_str().map(str::to_owned));
                Ok(Work { goal, tasks: self.kept_tasks(owner).await? })
            }
        }
    }

    async fn kept_tasks(&self, owner: &str) -> Result<Vec<Todo>, StoreError> {
        Ok(self.records.all(RecordKind::Todo, owner).await?.iter().filter_map(Todo::of).collect())
    }

    /// Sets or removes the goal. Returns the previous goal.
    pub async fn set_goal(
        &self,
        desk: WorkPlace<'_>,
        goal: Option<&str>,
    ) -> Result<Option<String>, StoreError> {
        match desk {
            WorkPlace::Session(list) => {
                Ok(std::mem::replace(&mut list.0.lock().goal, goal.map(str::to_owned)))
            }
            WorkPlace::Kept { owner } => {
                let before = self.records.get(RecordKind::Goal, owner, GOAL).await?;
                match goal {
                    Some(goal) => {
                        let record = kept(RecordKind::Goal, owner, GOAL, json!({ "goal": goal }));
                        self.records.put(record, RecordQuota::DropOldest(1)).await?;
                    }
                    None => drop(self.records.take(RecordKind::Goal, owner, GOAL).await?),
                }
                Ok(before.and_then(|record| record.body["goal"].as_str().map(str::to_owned)))
            }
        }
    }

    /// Adds a task.
    pub async fn add_task(
        &self,
        desk: WorkPlace<'_>,
        subject: &str,
        description: Option<&str>,
    ) -> Result<TaskAddition, StoreError> {
        let task = Todo::new(subject, description);
        let id = task.id.clone();
        match desk {
            WorkPlace::Session(list) => {
                let mut work = list.0.lock();
                let removed = match in_the_way(&work.tasks) {
                    None => None,
                    Some(None) => return Ok(TaskAddition::Full),
                    Some(Some(done)) => Some(done.clone()),
                };
                work.tasks.retain(|task| removed.as_ref().is_none_or(|removed| removed.id != task.id));
                work.tasks.push(task);
                Ok(TaskAddition::Added { id, removed })
            }
            WorkPlace::Kept { owner } => {
                let tasks = self.kept_tasks(owner).await?;
                let removed = match in_the_way(&tasks) {
                    None => None,
                    Some(None) => return Ok(TaskAddition::Full),
                    Some(Some(done)) => self
                        .records
                        .take(RecordKind::Todo, owner, &done.id)
                        .await?
                        .as_ref()
                        .and_then(Todo::of),
                };
                let record = kept(RecordKind::Todo, owner, &id, json!(task));
                Ok(match self.records.put(record, RecordQuota::Refuse(MOST_TASKS)).await? {
                    Some(_) => TaskAddition::Added { id, removed },
                    None => TaskAddition::Full,
                })
            }
        }
    }

    /// Changes a task and returns it; `None` if there is no such task.
    pub async fn update_task(
        &self,
        desk: WorkPlace<'_>,
        id: &str,
        state: Option<TodoState>,
        note: Option<&str>,
    ) -> Result<Option<Todo>, StoreError> {
        let owner = match desk {
            WorkPlace::Kept { owner } => owner,
            WorkPlace::Session(list) => {
                let mut work = list.0.lock();
                let task = work.tasks.iter_mut().find(|task| task.id == id);
                return Ok(task.map(|task| {
                    task.update(state, note);
                    task.clone()
                }));
            }
        };
        for _ in 0..TRIES {
            let Some(mut record) = self.records.get(RecordKind::Todo, owner, id).await? else {
                return Ok(None);
            };
            let Some(mut task) = Todo::of(&record) else { return Ok(None) };
            task.update(state, note);
            record.body = json!(task);
            if self.records.change(record).await? {
                return Ok(Some(task));
            }
        }
        Err(StoreError::Unusable)
    }
}

/// Creates a record that no gateway holds.
fn kept(kind: RecordKind, owner: &str, id: &str, body: serde_json::Value) -> NewRecord {
    NewRecord { owner: owner.into(), id: id.into(), held: false, ..NewRecord::new(kind, body) }
}
