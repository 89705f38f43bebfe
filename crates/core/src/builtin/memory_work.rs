//! `gateway.set_goal`, `gateway.task_create`, `gateway.task_update` and `gateway.task_list`: the goal of the
//! work, and the remaining tasks.

use futures::FutureExt;
use nonet_api::tools::{CategoryList, OpenTask, TodoState};
use nonet_base::text::clip;
use nonet_parts::memory::{MOST_TASKS, TaskAddition, Todo, Work, WorkPlace};
use nonet_servers::catalog::GATEWAY;
use nonet_text::{
    aliases::Aliases,
    fault::{Fault, FaultCode, NextStep},
    name::full_name,
};
use serde_json::{Value, json};

use super::{
    Access, OwnTool,
    memory_facts::{MaskedSecrets, full, store_fault},
    read,
};
use crate::{Gate, Gateway, call::text_result, find::Find};
use nonet_state::session::Caller;

/// The longest goal, subject, description and note, in characters.
const MAX_GOAL: usize = 2_000;
const MAX_SUBJECT: usize = 200;
const MAX_TEXT: usize = 2_000;
/// How much of the goal, and how many tasks, other answers show.
const SHOWN_GOAL: usize = 300;
const SHOWN_TASKS: usize = 5;
/// How many completed tasks a list shows, latest first.
const SHOWN_COMPLETED: usize = 20;

pub(super) const SET_GOAL: OwnTool = OwnTool {
    name: "set_goal",
    title: "Set the goal of the work",
    description: "Set the goal of the current work. list_categories and the next session show it. An empty goal removes it.",
    properties: || json!({ "goal": { "type": "string", "maxLength": MAX_GOAL } }),
    required: &["goal"],
    access: Access::Reversible,
    aliases: Aliases(&[("goal", &["text", "content", "objective", "description"])]),
    run: |gateway, caller, params| async move { set_goal(gateway, caller, read(params)?).await }.boxed(),
};

pub(super) const TASK_CREATE: OwnTool = OwnTool {
    name: "task_create",
    title: "Add a task to the to-do list",
    description: "Add a task to your own to-do list: something to do later. Gives its task_id.",
    properties: || {
        json!({
            "subject": { "type": "string", "minLength": 1, "maxLength": MAX_SUBJECT },
            "description": { "type": "string", "maxLength": MAX_TEXT },
        })
    },
    required: &["subject"],
    access: Access::Reversible,
    aliases: Aliases(&[
        ("subject", &["title", "task", "name", "content", "text"]),
        ("description", &["details", "body"]),
    ]),
    run: |gateway, caller, params| async move { task_create(gateway, caller, read(params)?).await }.boxed(),
};

pub(super) const TASK_UPDATE: OwnTool = OwnTool {
    name: "task_update",
    title: "Update a task of the to-do list",
    description: "Set the status of a step of your to-do list: done (completed), in progress or blocked; or comment it.",
    properties: || {
        json!({
            "task_id": { "type": "string", "description": "From task_create or task_list" },
            "status": { "type": "string", "enum": ["pending", "in_progress", "completed", "blocked"] },
            "note": { "type": "string", "minLength": 1, "maxLength": MAX_TEXT },
        })
    },
    required: &["task_id"],
    access: Access::Reversible,
    aliases: Aliases(&[
        ("task_id", &["id", "task", "todoid"]),
        ("status", &["state"]),
        ("note", &["comment", "notes", "text"]),
    ]),
    run: |gateway, caller, params| async move { task_update(gateway, caller, read(params)?).await }.boxed(),
};

pub(super) const TASK_LIST: OwnTool = OwnTool {
    name: "task_list",
    title: "What is left to do",
    description: "List the goal and the tasks of your to-do list: what is left to do first, then what is completed.",
    properties: || json!({}),
    required: &[],
    access: Access::ReadOnly,
    aliases: Aliases::NONE,
    run: |gateway, caller, _| async move { task_list(gateway, caller).await }.boxed(),
};

#[derive(serde::Deserialize)]
struct GoalArguments {
    goal: String,
}

#[derive(serde::Deserialize)]
struct CreateArguments {
    subject: String,
    description: Option<String>,
}

#[derive(serde::Deserialize)]
struct UpdateArguments {
    task_id: String,
    status: Option<TodoState>,
    note: Option<String>,
}

async fn set_goal(gateway: &Gateway, caller: &Caller, arguments: GoalArguments) -> Result<Value, Fault> {
    let mut left_out = MaskedSecrets::default();
    let goal = match arguments.goal.trim() {
        "" => None,
        goal => Some(left_out.clean("goal", goal)?),
    };
    let before = gateway.keeping.memory.set_goal(desk(caller)?, goal.as_deref()).await;
    let before = before.map_err(|error| store_fault(&error))?;
    let mut answer = json!({ "goal": goal });
    if let Some(before) = before.filter(|before| Some(before) != goal.as_ref()) {
        answer["before"] = json!(before);
    }
    left_out.tell(&mut answer);
    Ok(text_result(answer.to_string()))
}

async fn task_create(gateway: &Gateway, caller: &Caller, arguments: CreateArguments) -> Result<Value, Fault> {
    let mut left_out = MaskedSecrets::default();
    let subject = left_out.clean("subject", &arguments.subject)?;
    let description = match arguments.description.as_deref().map(str::trim) {
        None | Some("") => None,
        Some(text) => Some(left_out.clean("description", text)?),
    };
    let added = gateway.keeping.memory.add_task(desk(caller)?, &subject, description.as_deref()).await;
    let mut answer = match added.map_err(|error| store_fault(&error))? {
        TaskAddition::Added { id, removed: None } => json!({ "task_id": id }),
        // The answer reports the task that made room, because that task is gone.
        TaskAddition::Added { id, removed: Some(removed) } => json!({ "task_id": id, "removed": removed }),
        TaskAddition::Full => {
            let message =
                format!("{MOST_TASKS} tasks are already open, which is the maximum. Complete some first.");
            return Err(full(message, list_call()));
        }
    };
    left_out.tell(&mut answer);
    Ok(text_result(answer.to_string()))
}

async fn task_update(gateway: &Gateway, caller: &Caller, arguments: UpdateArguments) -> Result<Value, Fault> {
    let UpdateArguments { task_id, status, note } = arguments;
    let mut left_out = MaskedSecrets::default();
    let note = match note {
        Some(note) => Some(left_out.clean("note", &note)?),
        None if status.is_some() => None,
        None => return Err(Fault::new(FaultCode::InvalidParams, "Give a `status`, a `note` or both.")),
    };
    let task =
        gateway.keeping.memory.update_task(desk(caller)?, task_id.trim(), status, note.as_deref()).await;
    let Some(task) = task.map_err(|error| store_fault(&error))? else {
        let message = format!(
            "There is no task `{}` on this list. Tasks of calls in the background are gateway.background_run's.",
            clip(&task_id, 60)
        );
        return Err(Fault::new(FaultCode::NotFound, message).then(list_call()));
    };
    let mut answer = json!(task);
    left_out.tell(&mut answer);
    Ok(text_result(answer.to_string()))
}

async fn task_list(gateway: &Gateway, caller: &Caller) -> Result<Value, Fault> {
    let work = gateway.keeping.memory.work(desk(caller)?).await.map_err(|error| store_fault(&error))?;
    let open = work.open();
    let completed: Vec<&Todo> =
        work.tasks.iter().rev().filter(|task| task.state == TodoState::Completed).collect();
    let mut answer = json!({});
    if let Some(goal) = &work.goal {
        answer["goal"] = json!(goal);
    }
    answer["open"] = json!(open.len());
    answer["completed"] = json!(completed.len());
    answer["tasks"] =
        open.iter().chain(completed.iter().take(SHOWN_COMPLETED)).map(|task| json!(task)).collect();
    if work.tasks.is_empty() {
        answer["hint"] = json!("There are no tasks. gateway.task_create adds one.");
    }
    Ok(text_result(answer.to_string()))
}

fn list_call() -> NextStep {
    NextStep::own("task_list", json!({}))
}

/// Returns the desk of a caller. A client of this machine, and whoever has signed in, finds the work again in the
/// next session.
fn desk(caller: &Caller) -> Result<WorkPlace<'_>, Fault> {
    match (caller.local, caller.lasting) {
        _ if caller.local || caller.person.is_some() => Ok(WorkPlace::Kept { owner: caller.session.owner() }),
        (_, true) => Ok(WorkPlace::Session(&caller.session.work)),
        (_, false) => {
            let message = "Goal and tasks belong to a session, and a stateless client over HTTP has none. gateway.remember keeps facts for every session.";
            Err(Fault::new(FaultCode::Forbidden, message))
        }
    }
}

/// The goal and the first open tasks, as other answers show them.
pub struct WorkSummary {
    /// The goal on one line, shortened.
    pub goal: Option<String>,
    /// The first open tasks.
    pub open: Vec<OpenTask>,
    /// The number of open tasks.
    pub total: usize,
}

impl WorkSummary {
    /// Returns `None` if there is nothing to show.
    fn of(work: &Work) -> Option<WorkSummary> {
        // One line each, because several lines could look like something else.
        let line = |text: &str, most| clip(&text.split_whitespace().collect::<Vec<_>>().join(" "), most);
        let open = work.open();
        let short = |task: &&Todo| OpenTask {
            task_id: task.id.clone(),
            subject: line(&task.subject, MAX_SUBJECT),
            status: task.state,
        };
        let goal = work.goal.as_ref().map(|goal| line(goal, SHOWN_GOAL));
        let shown =
            WorkSummary { goal, open: open.iter().take(SHOWN_TASKS).map(short).collect(), total: open.len() };
        (shown.goal.is_some() || shown.total > 0).then_some(shown)
    }
}

impl Gate {
    /// Whether the caller may use one of Nonet's own tools.
    pub(super) fn offers(&self, tool: &OwnTool) -> bool {
        self.catalog().get(&full_name(GATEWAY, tool.name)).is_some_and(|tool| self.allows(tool))
    }
}

impl Find {
    /// Returns the goal and the open tasks of a caller, if the caller's profile shows the tools for them.
    pub async fn at_work(&self, caller: &Caller) -> Option<WorkSummary> {
        let gate = Gate::of(&self.publisher, &caller.session);
        let (goal, tasks) = (gate.offers(&SET_GOAL), gate.offers(&TASK_LIST));
        if !goal && !tasks {
            return None;
        }
        let mut work = self.keeping.memory.work(desk(caller).ok()?).await.ok()?;
        if !goal {
            work.goal = None;
        }
        if !tasks {
            work.tasks.clear();
        }
        WorkSummary::of(&work)
    }

    /// Adds the goal, the open tasks and the number of facts to an answer.
    pub async fn with_work(&self, caller: &Caller, answer: CategoryList) -> CategoryList {
        let (work, remembered_facts) = tokio::join!(self.at_work(caller), self.count_facts(caller));
        let Some(WorkSummary { goal, open, total }) = work else {
            return CategoryList { remembered_facts, ..answer };
        };
        let open_tasks_total = (total > open.len()).then_some(total);
        CategoryList { goal, open_tasks: open, open_tasks_total, remembered_facts, ..answer }
    }
}
