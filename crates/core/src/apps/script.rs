//! Scripts: JavaScript whose calls take the road of every call.
//!
//! The script runs in a worker ([`nonet_script`]). Everything that it asks for is carried out here, and each
//! answer goes into the script's record, its ledger, before anything is sent that may change something. A
//! script that waits for the user, or that was cut off, runs again from the beginning and gets these answers,
//! so that nothing happens twice.

mod answer;
mod drive;
mod ended;
mod requests;

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::FutureExt;
use nonet_base::{
    clock::millis,
    files,
    json::set_member,
    text::clip,
    turns::{Slot, Turns},
};
use nonet_parts::quotas::Admission;
use nonet_script::{frames::Start, names, process::Worker};
use nonet_servers::{downstream::ProgressSink, policy::PolicyVerdict};
use nonet_state::{
    grants::RunGrants,
    limit::Limit,
    session::{Caller, TaskMode},
};
use nonet_text::{
    fault::{Fault, FaultCode, NextStep},
    results::json_len,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::to_raw_value};

use self::drive::{Driver, Open, ScriptEnd};
pub(crate) use self::{answer::said, drive::DoneRequest, ended::EndedScripts};
use super::{
    AnswerMode, AppRun, Apps,
    parked::{ScriptRecord, answerer, digest_of},
    unknown_app,
};
use crate::{interrupt::Interrupt, run::Run};

/// The own tool that runs a script.
pub(crate) const RUN_SCRIPT: &str = "run_script";
/// The longest script, in bytes.
const LONGEST: usize = 256 << 10;
/// The largest input, in bytes of JSON.
const MAX_INPUT: usize = 8 << 20;
/// How long a script may take by default and at most, without the time in which the user is asked.
const TIMEOUT: Duration = Duration::from_secs(300);
const MAX_TIMEOUT: Duration = Duration::from_secs(3_600);
/// How long a script may compute.
const CPU: Duration = Duration::from_secs(10);
/// How much memory a script may use, in bytes.
const MEMORY: usize = 128 << 20;
/// How many scripts run at the same time, over all clients; how many may wait, and for how long.
const AT_ONCE: usize = 16;
const LONGEST_QUEUE: usize = 256;
const PATIENCE: Duration = Duration::from_secs(30);
/// How many calls a script may make.
const MAX_CALLS: usize = 500;
/// How many hex digits the id of a script has: enough that no two meet by chance.
pub(crate) const ID: usize = 20;
/// How many tools a script may name, and how many unknown ones are told.
const MAX_NAMES: usize = 200;
const MAX_WRONG: usize = 5;
/// The longest label, in characters.
const LABEL: usize = 80;

/// The arguments of `gateway.run_script`.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct ScriptArguments {
    /// The text; of a script that goes on, a corrected one.
    script: Option<String>,
    #[serde(default)]
    input: Value,
    /// How long it may take, in seconds.
    timeout: Option<u64>,
    /// What it does, for people.
    label: Option<String>,
    /// The token of a script that has stopped early, to go on.
    resume: Option<String>,
}

/// What a script does at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ScriptState {
    /// It runs, or was cut off with its gateway.
    #[default]
    Running,
    /// It waits for the user.
    Waiting,
    /// It has failed, and who called it knows how to go on.
    Stopped,
    /// It was cancelled, perhaps because its client is gone: the same script goes on.
    Cancelled,
}

/// A script as its record has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct KeptScript {
    pub script: String,
    pub label: String,
    /// What its random numbers are made from, and when it began, in milliseconds since 1970.
    pub seed: u64,
    pub began_ms: u64,
    #[serde(default)]
    pub state: ScriptState,
    /// The place of the question that waits for the user, unless it is about calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<String>,
    /// The tools that it names whose calls need an approval.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asks_about: Vec<Arc<str>>,
}

impl KeptScript {
    /// Adds to a question what the script is, and which further tools of it need an approval.
    pub(crate) fn tell(&self, asked: &mut Value) {
        if !self.label.is_empty() {
            set_member(asked, "script", &*self.label);
        }
        if !self.asks_about.is_empty() {
            set_member(asked, "also_needs_approval", json!(self.asks_about));
        }
    }

    /// Returns what is written in place of a step's name.
    pub(crate) fn name(&self) -> &str {
        if self.label.is_empty() { "script" } else { &self.label }
    }
}

/// A script that is about to run, from the beginning or with the answers that it had.
pub(crate) struct ScriptRun {
    pub kept: KeptScript,
    /// The app that it is, or [`RUN_SCRIPT`].
    pub app_id: String,
    pub input: Value,
    pub timeout: Duration,
    pub left: Duration,
    /// The user's answers about its calls.
    pub grants: Value,
    pub record: ScriptRecord,
}

/// Creates the turns in which scripts of all clients run.
pub(crate) fn turns() -> Arc<Turns> {
    Turns::new(AT_ONCE, LONGEST_QUEUE)
}

impl Apps {
    /// Implements `gateway.run_script`.
    pub(crate) async fn run_script(
        self: &Arc<Self>,
        caller: &Caller,
        arguments: ScriptArguments,
    ) -> Result<Value, Fault> {
        if caller.run.is_some() {
            return Err(nested());
        }
        // Nonet's own tools have no place in the quotas, but a script works as much as its calls.
        let _place = self.calls.admit(caller, false)?;
        let run = match arguments.resume.clone() {
            Some(token) => self.resumed(caller, &token, arguments).await?,
            None => {
                let ScriptArguments { script, input, timeout, label, .. } = arguments;
                let script = script.filter(|script| !script.trim().is_empty()).ok_or_else(no_script)?;
                let timeout = timeout.map(Duration::from_secs);
                self.new_script(caller, RUN_SCRIPT, script, input, timeout, label).await?
            }
        };
        // The call of this tool becomes a task if it takes long.
        let sink = caller.sink.clone().unwrap_or_else(|| ProgressSink::new(caller.progress.clone()));
        Ok(Box::pin(self.carry_out(caller, run, &sink)).await)
    }

    /// Prepares a script that begins, or goes on with the same script where its gateway was killed.
    pub(super) async fn new_script(
        &self,
        caller: &Caller,
        app_id: &str,
        script: String,
        input: Value,
        timeout: Option<Duration>,
        label: Option<String>,
    ) -> Result<ScriptRun, Fault> {
        if caller.run.is_some() {
            return Err(nested());
        }
        if json_len(&input) > MAX_INPUT {
            let message = format!(
                "`input` has more than {MAX_INPUT} bytes. Keep the data as a result, and read it with result(ref)."
            );
            return Err(Fault::new(FaultCode::InvalidParams, message));
        }
        let input =
            self.keeping.kept.fill(&caller.owner(), &input).await?.map_or(input, |filled| filled.value);
        // Without an input, `input.x` is undefined.
        let input = if input.is_null() { json!({}) } else { input };
        let asks_about = self.check_script(caller, &script).await?;
        let timeout = timeout.unwrap_or(TIMEOUT).clamp(Duration::from_secs(1), MAX_TIMEOUT);
        let kept = KeptScript {
            script,
            label: clip(label.unwrap_or_default().trim(), LABEL),
            seed: uuid::Uuid::new_v4().as_u64_pair().0,
            began_ms: self.keeping.clock.unix_ms(),
            state: ScriptState::Running,
            open: None,
            asks_about,
        };
        if let Some(mut run) = self.scripts.cut_off(caller, &digest_of(app_id, &kept.script, &input)).await? {
            (run.timeout, run.left) = (timeout, timeout);
            (run.kept.label, run.kept.asks_about) = (kept.label, kept.asks_about);
            return Ok(run);
        }
        Ok(ScriptRun {
            kept,
            app_id: app_id.into(),
            input,
            timeout,
            left: timeout,
            grants: Value::Null,
            record: self.scripts.record(caller),
        })
    }

    /// Prepares a script that has stopped early, perhaps with a corrected text.
    async fn resumed(
        &self,
        caller: &Caller,
        token: &str,
        arguments: ScriptArguments,
    ) -> Result<ScriptRun, Fault> {
        let mut run = self.scripts.stopped(caller, token).await?;
        let new = arguments.script.filter(|script| !script.trim().is_empty() && *script != run.kept.script);
        if let Some(script) = new {
            run.kept.script = script;
            // The user has approved the calls of another text.
            run.grants = Value::Null;
        }
        run.kept.asks_about = match self.check_script(caller, &run.kept.script).await {
            Ok(asks_about) => asks_about,
            Err(fault) => {
                run.record.free().await;
                return Err(fault);
            }
        };
        run.timeout = arguments
            .timeout
            .map_or(run.timeout, Duration::from_secs)
            .clamp(Duration::from_secs(1), MAX_TIMEOUT);
        run.left = run.timeout;
        if let Some(label) = arguments.label {
            run.kept.label = clip(label.trim(), LABEL);
        }
        Ok(run)
    }

    /// Runs an app that is a script.
    pub(super) async fn call_script(
        self: &Arc<Self>,
        caller: &Caller,
        app: AppRun,
        file: &Path,
    ) -> Result<Value, Interrupt> {
        let unread = |why: String| {
            let message = format!(
                "The script of the app `{}`, {}, cannot be read: {why}. The user can check `script` of [apps.{}].",
                app.id,
                file.display(),
                app.id
            );
            Fault::new(FaultCode::NotFound, message)
        };
        let path = file.to_path_buf();
        let read = tokio::task::spawn_blocking(move || files::read_at_most(&path, LONGEST + 1)).await;
        let bytes =
            read.map_err(|error| unread(error.to_string()))?.map_err(|error| unread(error.to_string()))?;
        let script = String::from_utf8(bytes).map_err(|_| unread("it is not UTF-8".into()))?;
        let admission = self.calls.admit(caller, app.handing.background)?;
        let (id, input, timeout) = (app.id.clone(), app.input, Some(app.timeout));
        let run = self.new_script(caller, &id, script, input, timeout, None).await?;
        self.script_for_client(caller, run, app.handing, admission).await
    }

    /// Runs a script whose client waits until the soft deadline: then it continues as a job.
    pub(super) async fn script_for_client(
        self: &Arc<Self>,
        caller: &Caller,
        run: ScriptRun,
        handing: AnswerMode,
        admission: Admission,
    ) -> Result<Value, Interrupt> {
        let label = match run.app_id == RUN_SCRIPT {
            true => format!("script {}", run.kept.label),
            false => format!("app {}", run.app_id),
        };
        let (waiting, sink) = Run::of_caller(label.trim_end(), caller);
        let waiting = Run { admission, background: handing.background, ..waiting };
        let own = Caller { cancel: waiting.cancel.clone(), ..caller.clone() };
        let (apps, went_on) = (self.clone(), waiting.went_on.clone());
        let work = async move {
            let answer = Box::pin(apps.carry_out(&own, run, &sink)).await;
            apps.calls.hand_out(&own, answer, handing.select.as_deref(), &went_on).await
        };
        Ok(waiting.wait(&self.keeping.jobs, caller, work.boxed()).await?.into_tree().await)
    }

    /// Refuses a script that names tools which its caller cannot call, before anything runs. Returns the tools
    /// whose calls need an approval.
    async fn check_script(&self, caller: &Caller, script: &str) -> Result<Vec<Arc<str>>, Fault> {
        if script.len() > LONGEST {
            let message = format!("The script has {} bytes; at most {LONGEST} are taken.", script.len());
            return Err(Fault::new(FaultCode::InvalidParams, message));
        }
        let (mut wrong, mut asks_about) = (Vec::new(), Vec::new());
        let all = names::named_tools(script);
        if all.len() > MAX_NAMES {
            let message = format!("The script names {} tools; at most {MAX_NAMES} are taken.", all.len());
            return Err(Fault::new(FaultCode::InvalidParams, message));
        }
        for named in all {
            if wrong.len() >= MAX_WRONG {
                break;
            }
            let (gate, tool) = match self.calls.find_tool(caller, &named.name).await {
                Ok(found) => found,
                Err(fault) => {
                    wrong.push((named, fault));
                    continue;
                }
            };
            let PolicyVerdict::Approve(rule) = gate.verdict(&tool) else { continue };
            if caller.session.app.is_some() || caller.session.unattended {
                wrong.push((named, crate::call::needs_user(&tool.full, &rule)));
            } else if !asks_about.contains(&tool.full) {
                asks_about.push(tool.full.clone());
            }
        }
        let mut wrong = wrong.into_iter();
        let Some((first, fault)) = wrong.next() else { return Ok(asks_about) };
        let rest: Vec<String> =
            wrong.map(|(named, fault)| format!("line {}: {}", named.line, fault.message)).collect();
        let more = if rest.is_empty() { String::new() } else { format!(" And {}", rest.join(" ")) };
        let message = format!("Nothing was run. Line {} of the script: {}{more}", first.line, fault.message);
        Err(Fault { message, ..fault })
    }

    /// Runs a script, and returns its answer: what it returned, why it failed, or the question that it waits
    /// with.
    async fn carry_out(self: &Arc<Self>, caller: &Caller, run: ScriptRun, sink: &ProgressSink) -> Value {
        let began = Instant::now();
        let mut own = Caller {
            is_admitted: true,
            as_task: TaskMode::Never,
            run: Some(RunGrants::new(!caller.unasked, &run.grants)),
            within: super::inside(caller, &run.record.id),
            ..caller.clone()
        };
        own.limits.max_result_bytes = usize::MAX;
        let limit = Limit::new(run.left);
        let driver = Driver::new(self, &own, &run, &limit, sink);
        let (end, has_run) = match self.worker(&own, &run).await {
            Ok((worker, _turn)) => (driver.run(worker).await, true),
            Err(fault) => (ScriptEnd::Fault(Box::new(fault)), false),
        };
        let (done, unused) = (driver.done(), driver.unused());
        match end {
            ScriptEnd::Open(open) => {
                let Open { question, place } = *open;
                self.park_script(&own, run, question, place, limit.left()).await
            }
            ScriptEnd::Returned { value, log } => {
                run.record.forget().await;
                self.ended_scripts.add(caller, &run);
                self.returned(caller, &run, value, log, (done, unused), began.elapsed()).await
            }
            end => {
                let is_cut_off =
                    !has_run || caller.cancel.is_cancelled() || self.servers.stopping().is_cancelled();
                let state = if is_cut_off { ScriptState::Cancelled } else { ScriptState::Stopped };
                let fault = self.stopped_script(&own, &run, (end, state), done, limit.left()).await;
                fault.to_result()
            }
        }
    }

    /// Starts the process of a script when it is the client's turn.
    async fn worker(&self, caller: &Caller, run: &ScriptRun) -> Result<(Worker, Slot), Fault> {
        if run.record.is_continued() {
            if run.app_id != RUN_SCRIPT {
                let config = self.servers.config();
                let app = config.apps.get(&run.app_id);
                let app = app.ok_or_else(|| unknown_app(&config, &run.app_id, run.input.clone()))?;
                self.may_run(caller, &run.app_id, app)?;
            }
            self.scripts.store_script(run).await?;
        }
        let busy = || {
            let message = format!("Not run: {AT_ONCE} scripts are running, and others wait.");
            Fault::new(FaultCode::RateLimited, message).retry_after(Duration::from_secs(5))
        };
        let turn = tokio::select! {
            turn = tokio::time::timeout(PATIENCE, self.script_turns.take(caller.account.id)) => turn,
            () = caller.cancel.cancelled() => {
                return Err(Fault::new(FaultCode::Cancelled, "The script was cancelled."));
            }
        };
        let Ok(Ok(turn)) = turn else { return Err(busy()) };
        let Some(executable) = &self.executable else {
            let message = "Scripts run in a process of Nonet's program, which this gateway does not have.";
            return Err(Fault::new(FaultCode::Internal, message));
        };
        let input =
            to_raw_value(&run.input).map_err(|error| Fault::new(FaultCode::Internal, error.to_string()))?;
        let start = Start {
            script: run.kept.script.clone(),
            input,
            seed: run.kept.seed,
            now_ms: run.kept.began_ms,
            max_calls: MAX_CALLS,
            cpu_ms: millis(CPU),
            memory: MEMORY,
        };
        let started = Worker::start(executable, &start).await;
        let fault = |error| Fault::new(FaultCode::Internal, format!("The script was not run: {error}."));
        Ok((started.map_err(fault)?, turn))
    }
}

fn nested() -> Fault {
    let message = "A script does not run inside of a graph, a workflow or another script. Call the tools from one script.";
    Fault::new(FaultCode::InvalidParams, message)
}

fn no_script() -> Fault {
    let message = "`script` is required: JavaScript, such as `return await tools.SERVER.TOOL({...})`.";
    Fault::new(FaultCode::InvalidParams, message)
}

/// Returns the call that goes on with a script that has stopped early.
fn way_on(token: &str) -> NextStep {
    NextStep::own(RUN_SCRIPT, json!({ "resume": token }))
}
