//! `nonet approve`: lists what waits for the user, wherever it was asked, and records the user's decision.

use std::{path::Path, time::Duration};

use clap::Args;
use nonet_api::question::{ApprovalView, ClientQuestion, PageQuestion, QuestionKind, UserVerdict};
use nonet_base::clock::Clock;
use nonet_config::shell;
use nonet_core as gateway;
use nonet_parts::approvals::{ApprovalDecision, Approvals, WaitingApproval};
use nonet_servers::pins::plain;
use nonet_store::{self as store, Retention};
use nonet_text::fault::FaultCode;
use serde_json::{Value, json};

use super::{FAILED, OK, elsewhere::OtherGateways, found, show};

/// What to decide.
#[derive(Debug, Args)]
pub(super) struct ApproveArgs {
    /// Id of an approval, or token of a question in a chat (default: list what waits)
    pub id: Option<String>,
    /// Deny it
    #[arg(long, requires = "id", conflicts_with_all = ["session", "answer"])]
    pub deny: bool,
    /// Approve further calls of the tool in the client's session too
    #[arg(long, requires = "id")]
    pub session: bool,
    /// Answer a question in words
    #[arg(long, value_name = "TEXT", requires = "id")]
    pub answer: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// How the token of a question in a chat begins.
const IN_CHAT: &str = "ask-";

/// Lists what waits, or records a decision. A waiting gateway sees the decision within a second.
pub(super) async fn run(args: ApproveArgs, config: Option<&Path>) -> anyhow::Result<u8> {
    let file = found::path(config)?;
    let verdict = match (args.deny, args.session) {
        (true, _) => UserVerdict::Deny,
        (false, true) => UserVerdict::AllowForSession,
        (false, false) => UserVerdict::Allow,
    };
    let answer = args.answer.map(Value::String);
    match args.id.as_deref().map(str::trim) {
        None => {
            let waiting = approvals(&file)?.waiting().await?;
            let elsewhere = OtherGateways::look(&file).await;
            match args.json {
                true => show::raw(&as_json(&waiting, elsewhere.as_ref()).to_string()),
                false => list(&waiting, elsewhere.as_ref(), &file),
            }
            Ok(OK)
        }
        Some(token) if token.starts_with(IN_CHAT) => {
            let elsewhere = OtherGateways::look(&file).await;
            let question = elsewhere.as_ref().and_then(|elsewhere| elsewhere.question(token)).cloned();
            let (Some(elsewhere), Some(question)) = (&elsewhere, question) else {
                elsewhere.iter().for_each(OtherGateways::tell_unasked);
                let why = "no question with this token is open; `nonet approve` lists the open ones";
                return Ok(refuse(FaultCode::NotFound, token, &why, args.json));
            };
            if answer.is_none() && question.kind == QuestionKind::Free {
                let why = "this question has no yes or no: add `--answer TEXT`";
                return Ok(refuse(FaultCode::InvalidParams, token, &why, args.json));
            }
            let said = answer.clone().unwrap_or_else(|| json!(verdict));
            match elsewhere.answer(token, &said).await {
                Ok(()) => {
                    let subject = question.tool.as_deref().unwrap_or_default();
                    tell_done(token, verdict, answer, subject, &question.message, args.json);
                    Ok(OK)
                }
                Err(why) => Ok(refuse(FaultCode::InvalidParams, token, &format_args!("{why:#}"), args.json)),
            }
        }
        Some(id) => {
            let decision = ApprovalDecision { verdict, answer: answer.clone(), by: "command".into() };
            match approvals(&file)?.decide(id, decision).await {
                Ok(one) => {
                    tell_done(id, verdict, answer, &one.asked.subject, &one.asked.question, args.json);
                    Ok(OK)
                }
                Err(why) => Ok(refuse(FaultCode::NotFound, id, &why, args.json)),
            }
        }
    }
}

/// Prints why nothing was decided. Returns the exit code.
fn refuse(code: FaultCode, id: &str, why: &dyn std::fmt::Display, as_json: bool) -> u8 {
    show::refuse(code, format_args!("`{id}`: {why}"), as_json);
    FAILED
}

/// Returns the approvals of a servers.toml.
pub(super) fn approvals(file: &Path) -> anyhow::Result<Approvals> {
    let clock = Clock::default();
    // This command does not touch results.
    let retention = Retention { bytes: u64::MAX, age: Duration::MAX };
    let cluster = super::cluster_of(file)?;
    let place = gateway::place_in_store(file, cluster.as_ref());
    let store = gateway::open_store(cluster.as_ref(), store::folder(), retention, &clock, &place);
    Ok(Approvals::new(store.records, clock, &place))
}

fn tell_done(
    id: &str,
    verdict: UserVerdict,
    answer: Option<Value>,
    subject: &str,
    question: &str,
    as_json: bool,
) {
    if as_json {
        let mut told = json!({ "id": id, "for": subject });
        match answer {
            Some(answer) => told["answer"] = answer,
            None => told["decision"] = json!(verdict),
        }
        return show::raw(&told.to_string());
    }
    let done = match (answer, verdict) {
        (Some(_), _) => "Answered",
        (None, UserVerdict::Deny) => "Denied",
        (None, UserVerdict::Allow | UserVerdict::AllowForSession) => "Approved",
    };
    say!("{done}:");
    question.lines().for_each(|line| say!("    {}", plain(line)));
}

fn as_json(waiting: &[WaitingApproval], elsewhere: Option<&OtherGateways>) -> Value {
    let all: Vec<ApprovalView> = waiting.iter().map(WaitingApproval::view).collect();
    let mut told = json!({ "waiting": all });
    if let Some(elsewhere) = elsewhere {
        told["in_chats"] = json!(elsewhere.in_chats().collect::<Vec<_>>());
        told["on_page"] = json!(elsewhere.on_pages().collect::<Vec<_>>());
        told["definitions"] = json!(elsewhere.definitions());
        told["not_asked"] = json!(elsewhere.unasked);
    }
    told
}

fn list(waiting: &[WaitingApproval], elsewhere: Option<&OtherGateways>, file: &Path) {
    let show_text = |text: &str| text.lines().for_each(|line| say!("    {}", plain(line)));
    for one in waiting {
        let WaitingApproval { asked, left, .. } = one;
        say!("{} ({}, {} left)", one.id(), plain(&asked.client), show::age(*left));
        show_text(&asked.question);
    }
    let in_chats: Vec<&ClientQuestion> =
        elsewhere.iter().flat_map(|elsewhere| elsewhere.in_chats()).collect();
    for question in &in_chats {
        say!("{} ({}, asked in its chat)", question.token, plain(&question.client));
        show_text(&question.message);
    }
    let on_pages: Vec<&PageQuestion> = elsewhere.iter().flat_map(|elsewhere| elsewhere.on_pages()).collect();
    for question in &on_pages {
        say!("on the page (`{}`, called there)", plain(&question.tool));
        show_text(question.message.as_str().unwrap_or_default());
    }
    let first = waiting.first().map(WaitingApproval::id);
    let first = first.or_else(|| in_chats.first().map(|question| &*question.token));
    if let Some(first) = first {
        let approve = shell::nonet(&format!("approve {first}"), file);
        say!("\nRun `{approve}` to approve; add `--deny` to deny, or `--answer TEXT` to answer in words.");
    }
    if !on_pages.is_empty() {
        say!("`{}` opens the page, where its own questions are answered.", shell::nonet("ui", file));
    }
    elsewhere.iter().for_each(|elsewhere| elsewhere.tell_unasked());
    let is_whole = elsewhere.is_none_or(|elsewhere| elsewhere.unasked.is_empty());
    match elsewhere.map_or(0, OtherGateways::definitions) {
        0 if first.is_none() && on_pages.is_empty() && !is_whole => {
            say!("Nothing is waiting for your approval in the gateways that answered.");
        }
        0 if first.is_none() && on_pages.is_empty() => say!("Nothing is waiting for your approval."),
        0 => {}
        number => say!(
            "{} of servers {} for your trust: run `{}`.",
            show::count(number, "definition"),
            if number == 1 { "waits" } else { "wait" },
            shell::nonet("trust --list", file)
        ),
    }
}
