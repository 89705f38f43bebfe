//! Parked runs that continue: what the user has answered, and what has ended before.

use std::{sync::Arc, time::Duration};

use nonet_api::{notice::Notice, question::Approver};
use nonet_config::{AppKind, ApproveBy, Step, workflow::Plan};
use nonet_parts::quotas::Admission;
use nonet_store::Record;
use nonet_text::{
    answers::{self, Decision},
    fault::{Fault, FaultCode, NextStep},
};
use serde_json::{Value, json};

use super::{ANY_CLIENT, ParkedFlow, Token, answerer};
use crate::{
    ParallelArguments,
    apps::{
        AnswerMode, Apps,
        script::{RUN_SCRIPT, ScriptState},
        workflow::{Flow, definition, plan},
    },
    graph::{ActionResult, ParallelRun, place, plan_of, refused_plan},
    interrupt::Interrupt,
};
use nonet_state::{
    grants::RunGrants,
    questions::{by_chat, no_question},
    session::Caller,
};

impl Apps {
    /// Returns what the user has said to a parked run's question outside of this call, and where: in an
    /// earlier call, in a form, or elsewhere.
    async fn known_answer(
        &self,
        caller: &Caller,
        record: &Record,
        parked: &ParkedFlow,
        grants: &RunGrants,
    ) -> Result<Option<(Value, Approver)>, Fault> {
        if let Some(answer) = &parked.answer {
            return Ok(Some((answer.clone(), parked.by_whom.unwrap_or(Approver::Chat))));
        }
        if let Some(answer) = self.parked.timed_out(record, &parked.ask) {
            return Ok(Some((answer, Approver::Chat)));
        }
        if let Some(asked) = &parked.approval
            && asked.by == ApproveBy::Chat
            && caller.forms().is_some()
        {
            // A model does not answer for a user who has forms.
            let decided = self.asking.decided_by_form(caller, grants, asked).await;
            let status = if grants.allows(asked) { "approved" } else { "denied" };
            let answer = if decided { json!({ "status": status }) } else { Value::Null };
            return Ok(Some((answer, Approver::Form)));
        }
        let token = Token::of(&record.id, parked.answered);
        let asks_user = self.asking.asks_the_user_only();
        let Some(asked) = parked.for_user(caller, &token, asks_user) else { return Ok(None) };
        let (said, by) = self.asking.step_answered(caller, &token, asked).await?;
        // A denial answers any question.
        if said == json!({ "status": "denied" }) {
            return Ok(Some((said, by)));
        }
        let answer = parked.question().read(&token, &said, None);
        Ok(Some((json!(answer.unwrap_or_else(|again| *again)), by)))
    }

    /// Continues a run with the user's answer. Without a clear answer, asks again.
    pub(in crate::apps) async fn go_on(
        self: &Arc<Self>,
        caller: &Caller,
        token: &str,
        said: Option<&Value>,
        content: Option<&str>,
    ) -> Result<Value, Interrupt> {
        let owner = caller.owner();
        let (record, parked) = self.runs_of(token).get(owner.key(), token).await?;
        if parked.by.as_deref() != Some(ANY_CLIENT) && parked.by != answerer(caller) {
            return Err(no_question(token).into());
        }
        match parked.script.as_ref().map(|script| script.state) {
            None | Some(ScriptState::Waiting) => {}
            // Cut off or cancelled after the user's answer, which the record has.
            Some(ScriptState::Running | ScriptState::Cancelled) => {
                let run = self.scripts.stopped(caller, token).await?;
                let admission = self.calls.admit(caller, false)?;
                return self.script_for_client(caller, run, AnswerMode::default(), admission).await;
            }
            Some(ScriptState::Stopped) => {
                let message = "The script does not wait for an answer.";
                let on = NextStep::own(RUN_SCRIPT, json!({ "resume": token }));
                return Err(Fault::new(FaultCode::InvalidParams, message).then(on).into());
            }
        }
        let question = parked.question();
        let now = Token::of(&record.id, parked.answered);
        let is_of_now = Token::read(token).answered == parked.answered;
        // Checked before the answer is accepted.
        let admission = self.calls.admit(caller, false)?;
        let grants = RunGrants::new(!caller.unasked, &parked.grants);
        let known = match is_of_now || parked.answer.is_some() {
            true => self.known_answer(caller, &record, &parked, &grants).await?,
            false => None,
        };
        let (answer, by) = match (known, said.filter(|_| is_of_now)) {
            (Some((Value::Null, _)), _) | (None, None) => return Ok(parked.put(caller, &now, &question)),
            (Some((answer, _)), _) if answer["status"] == "needs_user" => return Ok(parked.told(answer)),
            (Some(known), _) => known,
            (None, Some(said)) => match question.read(token, said, content) {
                Ok(answer) => {
                    let answer = json!(answer);
                    self.note_run_answer(caller, &parked, &answer, said);
                    (answer, Approver::Chat)
                }
                Err(again) => return Ok(parked.told(json!(again))),
            },
        };
        if let Some(asked) = &parked.approval {
            let allowed = (answer["status"] == "approved").then_some(by);
            grants.give(asked, allowed, answer["user_feedback"].as_str().map(String::from));
        }
        let mut parked =
            ParkedFlow { grants: grants.kept(), answer: Some(answer), by_whom: Some(by), ..parked };
        if let Some(script) = parked.script.clone() {
            let checkpoints = self.scripts.answered(record, &parked).await?;
            let run = self.scripts.answered_run(parked, script, checkpoints).await?;
            return self.script_for_client(caller, run, AnswerMode::default(), admission).await;
        }
        match parked.actions.take() {
            Some(arguments) => self.continue_actions(caller, record, parked, arguments, admission).await,
            None => self.continue_workflow(caller, record, parked, admission).await,
        }
    }

    /// Continues a `run_parallel`, whose user has answered.
    async fn continue_actions(
        self: &Arc<Self>,
        caller: &Caller,
        record: Record,
        parked: ParkedFlow,
        arguments: ParallelArguments,
        admission: Admission,
    ) -> Result<Value, Interrupt> {
        let plan = plan_of(&arguments)?;
        let before = self.ended_before(&record, &parked, &plan).await?;
        let checkpoints = Some(Arc::new(self.parked.answered(record, &parked).await?));
        let (plan, grants) = (Arc::new(plan), parked.grants);
        let run = ParallelRun { arguments, plan, before, grants, checkpoints };
        self.run_actions(caller, run, admission).await
    }

    /// Continues a workflow, whose user has answered.
    async fn continue_workflow(
        self: &Arc<Self>,
        caller: &Caller,
        record: Record,
        parked: ParkedFlow,
        admission: Admission,
    ) -> Result<Value, Interrupt> {
        let (steps, output) = self.definition(&parked)?;
        let plan = plan(&steps).map_err(|flaw| refused_plan(&flaw))?;
        let before = self.ended_before(&record, &parked, &plan).await?;
        let mut flow = Flow {
            id: parked.app_id.clone(),
            steps,
            output,
            plan: Arc::new(plan),
            input: parked.input.clone(),
            began: std::time::Instant::now(),
            timeout: Duration::from_millis(parked.timeout_ms),
            left: Duration::from_millis(parked.left_ms),
            before,
            checkpoints: None,
            log: None,
            grants: parked.grants.clone(),
            handing: AnswerMode::default(),
            waiting: None,
        };
        self.check_steps(caller, &flow).await?;
        flow.checkpoints = Some(Arc::new(self.parked.answered(record, &parked).await?));
        self.run_workflow(caller, flow, admission).await
    }

    /// Returns the calls of a parked run that have ended, the answered question among them.
    async fn ended_before(
        &self,
        record: &Record,
        parked: &ParkedFlow,
        plan: &Plan,
    ) -> Result<Vec<(usize, ActionResult)>, Fault> {
        let at = |id: &str| plan.calls().iter().position(|call| call.id == id);
        let mut before: Vec<(usize, ActionResult)> = Vec::new();
        if let (None, Some(answer)) = (&parked.approval, &parked.answer) {
            let step = at(&parked.step);
            before.extend(step.map(|at| (at, ActionResult::answered(&plan.calls()[at], answer.clone()))));
        }
        for step in &parked.ended {
            before.extend(at(&step.id).map(|at| (at, step.clone().into_result())));
        }
        let mut parts = self.parked.parts(&record.id).await?;
        for (at, call) in plan.calls().iter().enumerate() {
            if before.iter().all(|(ended, _)| *ended != at)
                && let Some(step) = parts.remove(&place(&[json!(call.id)]))
            {
                before.push((at, step.into_result()));
            }
        }
        Ok(before)
    }

    /// Remembers an approval for the rest of the session, if that is what the user said, and says how long
    /// the approval holds.
    fn note_run_answer(&self, caller: &Caller, parked: &ParkedFlow, answer: &Value, said: &Value) {
        let Some(asked) = parked.approval.as_ref().filter(|_| answer["status"] == "approved") else { return };
        let always = asked.lasting && answers::decision(said).decision == Decision::Always;
        if always {
            caller.session.approve(&asked.tool, &by_chat(&asked.hash));
        }
        let holds = match always {
            true => "every call for the rest of this session",
            false => "every call of this run",
        };
        caller.session.notify(Notice::Approved { tool: asked.tool.to_string(), holds_for: holds.into() });
    }

    /// Returns the configured workflow, if it has not changed since it was parked.
    fn definition(&self, parked: &ParkedFlow) -> Result<(Vec<Step>, Option<Value>), Fault> {
        let config = self.servers.config();
        let id = &parked.app_id;
        if let Some(AppKind::Workflow { steps, output }) = config.apps.get(id).map(|app| &app.kind)
            && definition(steps, output.as_ref()) == parked.digest
        {
            return Ok((steps.clone(), output.clone()));
        }
        let message = format!(
            "The app `{id}` has changed in servers.toml since it asked, so it does not continue: its steps \
             may mean something else now. Call it again from the beginning."
        );
        let again = json!({ "app_id": id, "input": parked.input });
        Err(Fault::new(FaultCode::InvalidParams, message).next("call_app", again))
    }
}
