//! `nonet search`, `tools`, `get` and `call`: who answers.
//!
//! A gateway that runs is asked first: the one of `--url`, else the one that serves the clients of this machine. Without one
//! a gateway in this process answers from the last lists on disk and starts only the servers that it needs: those of which
//! no list is known, and the one that is called.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use anyhow::Context;
use serde_json::{Value, json};

use super::{
    FAILED, INDEX_LIMIT,
    args::{Command, Where},
    connect, show,
    signal::stopped,
    usable,
};
use crate::{
    bridge::{Running, Unanswered},
    catalog::GATEWAY,
    config::{ConfigFault, Loaded},
    fault::Code,
    gateway::{
        Gateway,
        inquiry::{CLIENT, Inquiry, METHOD},
        last_seen::LastSeen,
        session::Caller,
    },
};

/// How old a list may be: an older one is asked for again.
const LIST_AGE: Duration = Duration::from_secs(7 * 86_400);
/// How old a list may be that proves that a server has no such tool.
const FRESH: Duration = Duration::from_secs(600);
/// How long a gateway that runs may take to greet.
#[cfg(unix)]
const GREETING: Duration = Duration::from_secs(2);

/// An answer, or the object of its fault.
pub(super) type InquiryAnswer = Result<Value, Value>;

/// What is asked, of whom, and how the answer is shown.
struct Asked {
    inquiry: Inquiry,
    way: Where,
    refresh: bool,
    json: bool,
    table: fn(&Value),
}

impl Asked {
    fn of(command: Command) -> anyhow::Result<Self> {
        Ok(match command {
            Command::Search { query, limit, category, explain, json, refresh, way } => Self {
                inquiry: Inquiry::Search { query, category, limit: limit.into(), explain },
                table: if explain { show::explained_table } else { show::search_table },
                json,
                refresh,
                way,
            },
            Command::Tools { json, refresh, way } => {
                Self { inquiry: Inquiry::Tools, table: show::tools_table, json, refresh, way }
            }
            Command::Get { name, json, refresh, way } => {
                Self { inquiry: Inquiry::Describe { name }, table: show::whole, json, refresh, way }
            }
            Command::Call { name, params, select, json, way } => {
                let params = serde_json::from_str(&params)
                    .with_context(|| format!("the params are not JSON: {params}"))?;
                let inquiry = Inquiry::Call { name, params, select };
                Self { inquiry, table: show::whole, json, refresh: false, way }
            }
            _ => anyhow::bail!("this command asks nothing"),
        })
    }

    fn is_call(&self) -> bool {
        matches!(self.inquiry, Inquiry::Call { .. })
    }

    /// Shows the answer; gives the exit code.
    fn show(&self, answer: InquiryAnswer) -> anyhow::Result<u8> {
        let manner = show::Style { json: self.json, verbose: self.way.verbose };
        match self.inquiry {
            Inquiry::Call { .. } => show::result(answer, manner),
            _ => show::answer(answer, manner, self.table),
        }
    }
}

/// Runs one of the commands that ask a gateway one thing.
pub(super) async fn run(
    command: Command,
    config: Option<&Path>,
    profile: Option<String>,
) -> anyhow::Result<u8> {
    let asked = Asked::of(command)?;
    if let Some(url) = &asked.way.url {
        let target = connect::target(url, &asked.way.header, profile.as_deref())?;
        return match inquire(Running::at(target, CLIENT)?, &asked.inquiry).await {
            Ok(answer) => asked.show(answer),
            Err(other) => told(other, asked.json),
        };
    }
    let file = crate::config::find(config)?;
    if !asked.refresh
        && let Some(running) = running(&file, profile.clone()).await
    {
        match inquire(running, &asked.inquiry).await {
            Ok(answer) => return asked.show(answer),
            // Nothing was done yet, or nothing that matters: it can be asked here.
            Err(Other::Unanswered(error)) if !asked.is_call() || error.is_unknown_method() => {
                tracing::debug!(%error, "the gateway that runs did not answer");
            }
            Err(other) => return told(other, asked.json),
        }
    }
    let Some(loaded) = usable(&file, profile.as_deref(), asked.json)? else { return Ok(super::UNUSABLE) };
    tell_faults(&loaded);
    here(loaded, profile, &asked).await
}

/// Why a gateway that runs gave no answer.
pub(super) enum Other {
    /// It did not answer.
    Unanswered(Unanswered),
    /// The user did not wait: the exit code.
    Stopped(u8),
}

/// Says why there is no answer; gives the exit code.
pub(super) fn told(other: Other, as_json: bool) -> anyhow::Result<u8> {
    match other {
        Other::Stopped(code) => Ok(code),
        Other::Unanswered(error) => {
            let code = match error {
                Unanswered::Refused { .. } => Code::ServerDown,
                // It may have been carried out.
                Unanswered::Lost => Code::UpstreamError,
            };
            show::refuse(code, error, as_json);
            Ok(FAILED)
        }
    }
}

/// Says on stderr what is wrong with a configuration: of servers that are left out only that they are.
fn tell_faults(loaded: &Loaded) {
    let left_out: Vec<String> = loaded.config.left_out.keys().map(|name| format!("`{name}`")).collect();
    let is_of_server = |fault: &ConfigFault| {
        let server = fault.entry.as_deref().and_then(|entry| entry.strip_prefix("servers."));
        server.is_some_and(|server| loaded.config.left_out.contains_key(server))
    };
    let others = loaded.faults.iter().filter(|fault| !is_of_server(fault));
    others.chain(&loaded.warnings).for_each(show::complain);
    if !left_out.is_empty() {
        let are = if left_out.len() == 1 { "is" } else { "are" };
        show::complain(format_args!("{} {are} left out; `nonet check` says why", show::names(&left_out)));
    }
}

/// The gateway that serves the clients of this machine, if one runs for this configuration.
#[cfg(unix)]
pub(super) async fn running(file: &Path, profile: Option<String>) -> Option<Running> {
    use crate::shared::{Hello, SharedPlace};
    let place = match SharedPlace::of(file) {
        Ok(place) => place,
        Err(error) => {
            tracing::debug!("no place for a shared gateway: {error:#}");
            return None;
        }
    };
    let hello = Hello { profile };
    match tokio::time::timeout(GREETING, Running::shared(&place, &hello, CLIENT)).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => {
            show::complain(format_args!("the gateway that runs is not asked: {}", show::causes(&error)));
            None
        }
        Err(_) => {
            show::complain("the gateway that runs does not answer, and is not asked");
            None
        }
    }
}

#[cfg(not(unix))]
pub(super) async fn running(_file: &Path, _profile: Option<String>) -> Option<Running> {
    None
}

/// Asks a gateway that runs.
pub(super) async fn inquire(mut running: Running, inquiry: &Inquiry) -> Result<InquiryAnswer, Other> {
    let answer = tokio::select! {
        answer = running.request(METHOD, json!(inquiry)) => answer,
        code = stopped() => {
            running.cancel().await;
            return Err(Other::Stopped(code));
        }
    };
    let mut answer = answer.map_err(Other::Unanswered)?;
    Ok(match answer.get_mut("fault") {
        Some(fault) => Err(fault.take()),
        None => Ok(answer["answer"].take()),
    })
}

/// Asks a gateway in this process.
async fn here(loaded: Loaded, profile: Option<String>, asked: &Asked) -> anyhow::Result<u8> {
    let gateway = super::gateway(loaded, matches!(asked.inquiry, Inquiry::Search { .. }));
    let caller = gateway.caller(gateway.open_session(profile), CLIENT);
    let code = tokio::select! {
        code = answer_here(&gateway, caller, asked) => code,
        code = stopped() => Ok(code),
    };
    // Nothing was started, so nothing has to be stopped.
    if gateway.connections().values().all(|connection| connection.is_held()) {
        return code;
    }
    // Who presses Ctrl-C again does not wait for servers that take their time; the guard ends them.
    tokio::select! {
        () = gateway.stop() => code,
        code = stopped() => Ok(code),
    }
}

async fn answer_here(gateway: &Arc<Gateway>, caller: Caller, asked: &Asked) -> anyhow::Result<u8> {
    let here = LocalGateway { gateway, seen: gateway.last_seen() };
    let all = || here.seen.keys().cloned().collect::<Vec<_>>();
    let first = match &asked.inquiry {
        _ if asked.refresh => all(),
        Inquiry::Describe { .. } | Inquiry::Call { .. } => Vec::new(),
        _ => here.unlisted(),
    };
    here.connect(&first).await;
    let mut started = first;
    let mut of: Option<Arc<str>> = None;
    if let Inquiry::Describe { name } | Inquiry::Call { name, .. } = &asked.inquiry {
        let mut more = match gateway.server_of(&caller, name) {
            Ok(server) if &*server == GATEWAY => Vec::new(),
            Ok(server) if asked.is_call() || here.is_old(&server) => vec![server],
            // A fresh list of the server that the name says is believed.
            Err(fault) if fault.code == Code::UnknownTool && here.is_fresh(name) => Vec::new(),
            Err(fault) if fault.code == Code::UnknownTool => here.that_may_have(name),
            _ => Vec::new(),
        };
        more.retain(|server| !started.contains(server));
        here.start(&more).await;
        started.extend(more);
        // One that was asked for a tool that it has not answers too.
        of = gateway.server_of(&caller, name).ok().or_else(|| match &started[..] {
            [only] => Some(only.clone()),
            _ => None,
        });
        if asked.is_call()
            && let Some(fault) = of.as_ref().and_then(|server| gateway.out_of_order(server))
        {
            return asked.show(Err(show::fault_value(&fault)));
        }
    }
    if let Inquiry::Search { .. } = asked.inquiry {
        show::indexing(gateway, INDEX_LIMIT).await;
        gateway.recalled().await;
    }
    let mut answer =
        gateway.inquire(caller, asked.inquiry.clone()).await.map_err(|fault| show::fault_value(&fault));
    if let Ok(answer) = &mut answer {
        without_held(answer);
        if asked.is_call() && of.as_deref() == Some(GATEWAY) {
            each_text(answer, without_held);
        }
    }
    // The sentence of a fault about one server says why it is missing.
    if answer.is_ok() || started.len() > 1 {
        show::missing(gateway, &started, asked.way.verbose);
    }
    let from_lists = answer.is_err() || !asked.is_call();
    let code = asked.show(answer)?;
    if from_lists {
        let refresh = if asked.is_call() { "`nonet tools --refresh`" } else { "--refresh" };
        here.tell_age(&started, of.as_ref(), refresh);
    }
    Ok(code)
}

/// A gateway in this process, and what is known of its servers.
struct LocalGateway<'a> {
    gateway: &'a Arc<Gateway>,
    seen: BTreeMap<Arc<str>, LastSeen>,
}

impl LocalGateway<'_> {
    /// Takes the last lists up and starts these servers; the others are held.
    async fn connect(&self, servers: &[Arc<str>]) {
        for (name, connection) in self.gateway.connections().iter() {
            if !servers.contains(name) {
                connection.hold();
            }
        }
        self.gateway.connect();
        self.settle(servers).await;
    }

    /// Starts these servers too.
    async fn start(&self, servers: &[Arc<str>]) {
        for server in servers {
            if let Some(connection) = self.gateway.connections().get(server) {
                connection.release();
            }
        }
        self.settle(servers).await;
    }

    /// Waits until these servers are ready or have failed, and until what is known is published.
    async fn settle(&self, servers: &[Arc<str>]) {
        if servers.is_empty() {
            return self.gateway.recalled_lists().await;
        }
        let connections = self.gateway.connections();
        let settings = servers.iter().filter_map(|server| Some(connections.get(server)?.settings()));
        // A person has more patience than a model: a first start may download.
        let slowest = settings.map(|settings| settings.start_timeout).max().unwrap_or_default();
        show::starting(self.gateway, servers, slowest).await;
        servers.iter().for_each(|server| self.gateway.note_failure(server));
        self.gateway.published().await;
    }

    /// Whether the list of a server is missing or too old to be believed.
    fn is_old(&self, server: &str) -> bool {
        self.seen.get(server).is_none_or(|seen| seen.listed.is_none_or(|age| age > LIST_AGE))
    }

    /// Whether a name is `SERVER.TOOL`, and the list of that server is a moment old.
    fn is_fresh(&self, name: &str) -> bool {
        let server = name.split_once('.').and_then(|(server, _)| self.seen.get(server));
        server.and_then(|seen| seen.listed).is_some_and(|age| age < FRESH)
    }

    /// The servers that have to be asked for their lists, without those that failed a moment ago.
    fn unlisted(&self) -> Vec<Arc<str>> {
        let old = self.seen.iter().filter(|(name, seen)| self.is_old(name) && seen.failed.is_none());
        old.map(|(name, _)| name.clone()).collect()
    }

    /// The servers that may have a tool of which no list knows: those whose name it begins with, else those without a list.
    fn that_may_have(&self, tool: &str) -> Vec<Arc<str>> {
        let tool = crate::name::fold(tool);
        let named = |server: &&Arc<str>| {
            tool.strip_prefix(&*crate::name::fold(server)).is_some_and(|rest| rest.starts_with('_'))
        };
        match self.seen.keys().filter(named).max_by_key(|server| server.len()) {
            Some(server) => vec![server.clone()],
            None => self.unlisted(),
        }
    }

    /// Says that an answer came from last lists, and what is not in it. `of`: the one server that it is about; `refresh`:
    /// what asks the servers.
    fn tell_age(&self, started: &[Arc<str>], of: Option<&Arc<str>>, refresh: &str) {
        let asked =
            self.seen.iter().filter(|(name, _)| !started.contains(name) && of.is_none_or(|of| of == *name));
        let (mut oldest, mut failed) = (None, Vec::new());
        for (name, seen) in asked {
            oldest = oldest.max(seen.listed);
            if seen.listed.is_none() && seen.failed.is_some() {
                failed.push(name);
            }
        }
        if let Some(age) = oldest {
            let age = show::age(age);
            eprintln!(
                "nonet: from the last lists (up to {age} old), no gateway runs; {refresh} asks the servers"
            );
        }
        if !failed.is_empty() {
            eprintln!("nonet: not available a moment ago: {}; `nonet status` says why", show::names(&failed));
        }
    }
}

/// Changes the JSON in the text blocks of a result.
fn each_text(result: &mut Value, change: fn(&mut Value)) {
    let blocks = result.get_mut("content").and_then(Value::as_array_mut);
    for text in blocks.into_iter().flatten().filter_map(|block| block.get_mut("text")) {
        let said = text.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
        if let Some(mut said) = said.filter(Value::is_object) {
            change(&mut said);
            *text = json!(said.to_string());
        }
    }
}

/// Takes out of an answer the state of servers that were only held: nobody has asked how they are.
fn without_held(answer: &mut Value) {
    let strip = |tool: &mut Value| {
        if tool["state"] == "stopped"
            && let Some(fields) = tool.as_object_mut()
        {
            fields.remove("state");
        }
    };
    for list in ["results", "categories", "tools", "servers"] {
        answer.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten().for_each(strip);
    }
    strip(answer);
}
