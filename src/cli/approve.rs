//! `nonet approve`: lists what waits for the user's approval, and records the user's decision.

use std::{path::Path, time::Duration};

use clap::Args;
use serde_json::{Value, json};

use super::{FAILED, OK, found, show};
use crate::{
    approvals::{Approvals, Decision, Verdict, WaitingApproval},
    clock::Clock,
    fault::Code,
    gateway,
    pins::plain,
    shell,
    store::{self, Retention},
};

/// What to decide.
#[derive(Debug, Args)]
pub(super) struct ApproveArgs {
    /// Id of an approval (default: list what waits)
    pub id: Option<String>,
    /// Deny it
    #[arg(long, requires = "id", conflicts_with_all = ["session", "answer"])]
    pub deny: bool,
    /// Approve further calls of the tool in the client's session too
    #[arg(long, requires = "id")]
    pub session: bool,
    /// Answer the question of a workflow in words
    #[arg(long, value_name = "TEXT", requires = "id")]
    pub answer: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Lists what waits, or records a decision. A waiting gateway sees the decision within a second.
pub(super) async fn run(args: ApproveArgs, config: Option<&Path>) -> anyhow::Result<u8> {
    let file = found::path(config)?;
    let clock = Clock::default();
    // This command does not touch results.
    let retention = Retention { bytes: u64::MAX, age: Duration::MAX };
    let cluster = super::cluster_of(&file)?;
    let place = gateway::place_in_store(&file, cluster.as_ref());
    let (_, records) = gateway::open_store(cluster.as_ref(), store::folder(), retention, &clock, &place);
    let approvals = Approvals::new(records, clock, &place);
    let Some(id) = args.id else {
        let waiting = approvals.waiting().await?;
        list(&waiting, args.json, &file);
        return Ok(OK);
    };
    let verdict = match (args.deny, args.session) {
        (true, _) => Verdict::Deny,
        (false, true) => Verdict::AllowForSession,
        (false, false) => Verdict::Allow,
    };
    let decision = Decision { verdict, answer: args.answer.map(Value::String), by: "command".into() };
    match approvals.decide(id.trim(), decision).await {
        Ok(one) => {
            match args.json {
                true => say!("{}", json!({ "id": id, "decision": verdict, "for": one.asked.subject })),
                false => {
                    let done = if verdict == Verdict::Deny { "Denied" } else { "Approved" };
                    say!("{done}:");
                    one.asked.question.lines().for_each(|line| say!("    {}", plain(line)));
                }
            }
            Ok(OK)
        }
        Err(why) => {
            show::refuse(Code::NotFound, format_args!("`{id}`: {why}"), args.json);
            Ok(FAILED)
        }
    }
}

fn list(waiting: &[WaitingApproval], as_json: bool, file: &Path) {
    if as_json {
        let all: Vec<Value> = waiting.iter().map(WaitingApproval::to_json).collect();
        return show::line(&json!({ "waiting": all }).to_string());
    }
    if waiting.is_empty() {
        return say!("Nothing is waiting for your approval.");
    }
    for one in waiting {
        let WaitingApproval { asked, left, .. } = one;
        say!("{} ({}, {} left)", one.id(), plain(&asked.client), show::age(*left));
        asked.question.lines().for_each(|line| say!("    {}", plain(line)));
    }
    let first = waiting.first().map_or("ID", |one| one.id());
    say!("\nRun `{}` to approve; add `--deny` to deny.", shell::nonet(&format!("approve {first}"), file));
}
