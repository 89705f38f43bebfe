//! Approvals that the model cannot give (`approve_by = "user"`): the live page, `nonet approve` or a webhook
//! decides them if the client has no forms.
//!
//! The first call asks and fails at once, so that the model can inform the user; the same call, repeated,
//! waits for the decision.

use std::time::Duration;

use nonet_api::question::{Approver, UserVerdict, WebhookQuestion};
use nonet_config::{ApprovalHook, ApproveBy, shell};
use nonet_parts::approvals::{AnswerError, ApprovalDecision, ApprovalQuestion, WaitingApproval};
use nonet_servers::catalog::Tool;
use nonet_store::StoreError;
use nonet_text::fault::{Fault, FaultCode};
use serde_json::{Map, Value, json};

use crate::{
    asking::Asking,
    grants::{Approval, RequiredApproval, RunApproval, RunGrants},
    limit::Limit,
    outward,
    questions::{ApprovalOutcome, ApprovalRequest, FormDecision, patience},
    session::Caller,
};

/// How long a call waits for a webhook, which may answer at once.
const HOOK: Duration = Duration::from_secs(10);

impl Asking {
    /// Asks before a call: by a form, or elsewhere if only the user's own answer counts. Otherwise, and in a
    /// run, the caller of this asks.
    pub async fn approve(
        &self,
        caller: &Caller,
        tool: &Tool,
        params: &Map<String, Value>,
        asked: RequiredApproval,
    ) -> Result<ApprovalOutcome, Fault> {
        let mut unasked = match self.questions.approve(caller, tool, params, asked).await? {
            by @ ApprovalOutcome::By(_) => return Ok(by),
            ApprovalOutcome::Unasked(unasked) => unasked,
        };
        if caller.run.is_some() || unasked.by == ApproveBy::Chat || unasked.fault.is_some() {
            return Ok(ApprovalOutcome::Unasked(unasked));
        }
        let asked = ApprovalQuestion {
            key: unasked.approval.key(&self.approvals.nonce),
            question: unasked.message.clone(),
            subject: tool.full.to_string(),
            rule: unasked.rule.clone(),
            client: match &caller.person {
                Some(person) => format!("{} ({})", caller.client, person.name),
                None => caller.client.to_string(),
            },
            lasting: unasked.lasting,
            ..ApprovalQuestion::default()
        };
        let one = self.answered_elsewhere(caller, asked).await?;
        match one.decision() {
            Some(ApprovalDecision { verdict: UserVerdict::Deny, .. }) => Err(unasked.refused(None)),
            Some(decision) => {
                if decision.verdict == UserVerdict::AllowForSession && unasked.lasting {
                    caller.session.approve(&tool.full, &tool.hash);
                }
                Ok(ApprovalOutcome::By(approver(decision)))
            }
            None => {
                let message = format!(
                    "`{}` runs only if the user approves it ({}); an answer in this chat does not count. {} Tell the user \
                     what would run; then make the same call again: it waits for the decision.",
                    tool.full,
                    unasked.rule,
                    self.where_to_answer(&one)
                );
                let fault = Fault::new(FaultCode::NeedsApproval, message)
                    .details(json!({ "approval": one.id(), "left_s": one.left.as_secs() }));
                unasked.fault = Some(Box::new(fault));
                Ok(ApprovalOutcome::Unasked(unasked))
            }
        }
    }

    /// Asks about the calls of a tool in a run, by a form if the client has forms. Returns once the user has
    /// answered the question, or with the question that stays open.
    pub async fn ask_in_run(
        &self,
        caller: &Caller,
        limit: Option<&Limit>,
        unasked: ApprovalRequest,
    ) -> Result<(), Box<RunApproval>> {
        let asked = unasked.in_run();
        let Some(run) = &caller.run else { return Err(asked.into()) };
        let _turn = run.turn.lock().await;
        if run.has_answered(&asked) {
            return Ok(());
        }
        if !run.is_open(&asked) {
            let paused = limit.map(Limit::pause);
            let decided = self.decided_by_form(caller, run, &asked).await;
            drop(paused);
            if decided {
                return Ok(());
            }
            run.leave_open(&asked);
        }
        Err(asked.into())
    }

    /// Asks about the calls of a tool in a run by a form. Returns whether the user has decided.
    pub async fn decided_by_form(&self, caller: &Caller, run: &RunGrants, asked: &RunApproval) -> bool {
        let asking = Caller { unasked: !run.may_ask, ..caller.clone() };
        match self.questions.by_form(&asking, &asked.message, asked.lasting).await {
            FormDecision::Yes { always } => {
                if always {
                    caller.session.approve(&asked.tool, &asked.hash);
                }
                run.give(asked, Some(Approver::Form), None);
                true
            }
            FormDecision::No => {
                run.give(asked, None, None);
                true
            }
            FormDecision::Unanswered(_) | FormDecision::NoForm => false,
        }
    }

    /// Tells the model where the user answers.
    fn where_to_answer(&self, one: &WaitingApproval) -> String {
        let command = shell::nonet(&format!("approve {}", one.id()), &self.servers.config().file);
        let page =
            self.page_address().map_or_else(String::new, |page| format!("on the live page ({page}) or "));
        let minutes = one.left.as_secs().div_ceil(60).max(1);
        format!("The user decides {page}with `{command}` in a terminal, within {minutes} minutes.")
    }

    /// Returns the approval for a subject, decided or waiting. A repeated request waits for the user.
    async fn asked_elsewhere(
        &self,
        caller: &Caller,
        asked: ApprovalQuestion,
    ) -> Result<WaitingApproval, Fault> {
        let owner = caller.session.owner();
        let known = self.approvals.of_key(owner, &asked.key).await.map_err(not_kept)?;
        let one = match known {
            Some(one) => {
                let waited = self.approvals.wait(one, patience(caller), &caller.cancel).await;
                waited.map_err(not_kept)?
            }
            None => {
                let hook = self.servers.config().gateway.approve_webhook.clone();
                let address = match (&hook, self.http.get()) {
                    (Some(_), Some(_)) => uuid::Uuid::new_v4().simple().to_string(),
                    _ => String::new(),
                };
                let asked = ApprovalQuestion { address, ..asked };
                let Some(one) = self.approvals.ask(owner, asked).await.map_err(not_kept)? else {
                    let message = "Too many approvals are already waiting for the user. They are decided \
                                   with `nonet approve`, or expire after some minutes.";
                    return Err(Fault::new(FaultCode::RateLimited, message));
                };
                match hook {
                    Some(hook) => self.consult(caller, hook, one).await?,
                    None => Some(one),
                }
            }
        };
        one.ok_or_else(over)
    }

    /// Returns the approval for a subject. If it is decided, the decision is consumed.
    async fn answered_elsewhere(
        &self,
        caller: &Caller,
        asked: ApprovalQuestion,
    ) -> Result<WaitingApproval, Fault> {
        let one = self.asked_elsewhere(caller, asked).await?;
        let is_own = one.decision().is_none() || self.approvals.take(one.clone()).await.map_err(not_kept)?;
        // Else the same call, made at the same time, has consumed it.
        is_own.then_some(one).ok_or_else(over)
    }

    /// Sends a question to the webhook and waits briefly for an answer.
    async fn consult(
        &self,
        caller: &Caller,
        hook: ApprovalHook,
        one: WaitingApproval,
    ) -> Result<Option<WaitingApproval>, Fault> {
        let answer_url = self.http.get().map(|address| format!("{address}/approve/{}", one.asked.address));
        let question = json!(WebhookQuestion { approval: one.view(), kind: "approval".into(), answer_url });
        let (approvals, id) = (self.approvals.clone(), one.id().to_string());
        let asking = self.servers.life.tasks.spawn(async move {
            let answer = match outward::consult(&hook, &question).await {
                Ok(answer) => answer,
                Err(why) => {
                    tracing::warn!("`gateway.approve_webhook` could not be asked: {why}");
                    return;
                }
            };
            if let Some(decision) = decision_of(&answer, "webhook")
                && let Err(why) = approvals.decide(&id, decision).await
            {
                tracing::warn!(%id, "the answer of `gateway.approve_webhook` was ignored: {why}");
            }
        });
        let _ = tokio::time::timeout(HOOK.min(patience(caller)), asking).await;
        self.approvals.of_key(caller.session.owner(), &one.asked.key).await.map_err(not_kept)
    }

    /// Asks a parked run's question outside the chat. Returns where the user answers.
    pub async fn ask_step(&self, caller: &Caller, asked: ApprovalQuestion) -> Result<String, Fault> {
        let one = self.asked_elsewhere(caller, asked).await?;
        Ok(self.where_to_answer(&one))
    }

    /// Whether the rates already counted this very call when the user was asked about it.
    pub async fn was_rated(
        &self,
        caller: &Caller,
        tool: &Tool,
        params: &Map<String, Value>,
        by: ApproveBy,
    ) -> bool {
        let approval = Approval::of(caller, tool, params);
        match by {
            ApproveBy::Chat => self.questions.is_approved(&approval),
            ApproveBy::User => {
                let key = approval.key(&self.approvals.nonce);
                matches!(self.approvals.of_key(caller.session.owner(), &key).await, Ok(Some(_)))
            }
        }
    }

    /// Returns the answer that the user gave outside the chat to a parked run's question, and where.
    pub async fn step_answered(
        &self,
        caller: &Caller,
        token: &str,
        asked: ApprovalQuestion,
    ) -> Result<(Value, Approver), Fault> {
        let one = self.answered_elsewhere(caller, asked).await?;
        if let Some(decision) = one.decision() {
            let answer = match decision {
                ApprovalDecision { verdict: UserVerdict::Deny, .. } => json!({ "status": "denied" }),
                ApprovalDecision { answer: Some(answer), .. } => answer.clone(),
                _ => json!("approve"),
            };
            return Ok((answer, approver(decision)));
        }
        let told = format!(
            "`{}` waits for the user's own answer; an answer in this chat does not count \
             (`approve_by`). {} Tell the user; then call ask_user with the token: it waits for the answer.",
            one.asked.subject,
            self.where_to_answer(&one)
        );
        let (left, question) = (one.left.as_secs(), &one.asked.question);
        Err(Fault::new(FaultCode::NeedsApproval, told)
            .details(json!({ "approval": one.id(), "left_s": left, "question": question }))
            .next("ask_user", json!({ "token": token })))
    }

    /// Whether the questions of workflows accept only the user's own answers.
    pub fn asks_the_user_only(&self) -> bool {
        self.servers.config().gateway.approve_by == ApproveBy::User
    }

    /// Accepts the answer sent to a one-time address.
    pub async fn answer_at(&self, address: &str, answer: &Value) -> Result<(), AnswerError> {
        let failed = |error: StoreError| AnswerError::Failed(error.to_string());
        let id = self.approvals.at_address(address).await.map_err(failed)?.ok_or(AnswerError::Unknown)?;
        let unfit = "the answer must be {\"decision\": \"allow\"} or {\"decision\": \"deny\"}";
        let decision = decision_of(answer, "webhook").ok_or_else(|| AnswerError::Unfit(unfit.into()))?;
        self.approvals.decide(&id, decision).await.map(drop)
    }
}

/// Returns where a decision was made.
fn approver(decision: &ApprovalDecision) -> Approver {
    match decision.by.as_str() {
        "page" => Approver::Page,
        "webhook" => Approver::Webhook,
        _ => Approver::Command,
    }
}

/// Reads the decision in a program's answer; `None` if the answer is not clear.
fn decision_of(answer: &Value, by: &str) -> Option<ApprovalDecision> {
    let verdict = match answer.get("decision")?.as_str()? {
        "allow" => UserVerdict::Allow,
        "allow_for_session" => UserVerdict::AllowForSession,
        "deny" => UserVerdict::Deny,
        _ => return None,
    };
    Some(ApprovalDecision { verdict, answer: answer.get("answer").cloned(), by: by.into() })
}

fn not_kept(error: StoreError) -> Fault {
    crate::faults::of_store("The approval cannot be stored or read", &error)
}

fn over() -> Fault {
    let message = "The approval was used by another call, or has expired. Make the call again to ask again.";
    Fault::new(FaultCode::NeedsApproval, message)
}
