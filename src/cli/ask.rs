//! `nonet search`, `tools`, `get` and `call`.
//!
//! A running gateway answers first: the gateway at `--url`, else this machine's shared gateway. Without a
//! running gateway, a gateway in this process answers (`local`).

#[cfg(unix)]
use std::time::Duration;
use std::{
    path::Path,
    sync::{Arc, Once},
};

use nonet_base::json::take_member;
use nonet_config::{ConfigFault, LoadedConfig, shell};
use nonet_core::{
    Gateway,
    inquiry::{CLIENT, Inquiry, METHOD},
};
use nonet_servers::catalog::{APPS, GATEWAY};
use nonet_state::session::Caller;
use nonet_text::{
    fault::{Fault, FaultCode},
    name::RESERVED,
};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::{
    FAILED, INDEX_LIMIT, answers,
    args::{Command, GatewayArgs},
    call::{self, CommandParams, QuestionDesk},
    connect,
    local::LocalGateway,
    script, show,
    signal::stopped,
    usable,
};
use nonet_bridge::{RequestFailure, RunningGateway};

/// How long a running gateway may take to greet.
#[cfg(unix)]
const GREETING: Duration = Duration::from_secs(2);

/// The answer to an inquiry, or its fault.
pub(super) type InquiryAnswer = Result<Value, Fault>;

/// An inquiry, the gateway to ask, and the format of the answer.
struct InquiryCommand {
    inquiry: Inquiry,
    /// The params of a call.
    params: Option<CommandParams>,
    way: GatewayArgs,
    refresh: bool,
    json: bool,
    table: fn(&Value) -> anyhow::Result<()>,
}

impl InquiryCommand {
    fn of(command: Command) -> anyhow::Result<Self> {
        Ok(match command {
            Command::Search { query, limit, category, explain, json, refresh, way } => Self {
                inquiry: Inquiry::Search { query, category, limit: limit.into(), explain },
                params: None,
                table: if explain { answers::explained_table } else { answers::search_table },
                json,
                refresh,
                way,
            },
            Command::Tools { json, refresh, way } => {
                let (inquiry, params) = (Inquiry::Tools, None);
                Self { inquiry, params, table: answers::tools_table, json, refresh, way }
            }
            Command::Get { name, json, refresh, way } => {
                let (inquiry, params) = (Inquiry::Describe { name }, None);
                Self { inquiry, params, table: show::whole::<Value>, json, refresh, way }
            }
            Command::Call { name, params, select, json, way } => {
                let typed = CommandParams::read(&params)?;
                let params = match &typed {
                    CommandParams::Json(params) => params.clone(),
                    CommandParams::Words(_) => json!({}),
                };
                let inquiry = Inquiry::Call { name, params, select };
                Self { inquiry, params: Some(typed), table: show::whole::<Value>, json, refresh: false, way }
            }
            Command::Run(run) => {
                let (json, way) = (run.json, run.way.clone());
                let params = script::params(run)?;
                let inquiry =
                    Inquiry::Call { name: script::RUN.into(), params: params.clone(), select: None };
                let params = Some(CommandParams::Json(params));
                Self { inquiry, params, table: show::whole::<Value>, json, refresh: false, way }
            }
            Command::Types { names, way } => {
                let params = json!({ "names": names, "full": true });
                let inquiry = Inquiry::Call { name: script::TYPES.into(), params, select: None };
                Self { inquiry, params: None, table: show::whole::<Value>, json: false, refresh: false, way }
            }
            _ => anyhow::bail!("this command sends no inquiry"),
        })
    }

    /// Sends the inquiry by `ask`.
    async fn ask(
        &self,
        ask: impl AsyncFn(Inquiry) -> Result<InquiryAnswer, AskFailure>,
        desk: QuestionDesk<'_>,
    ) -> Result<InquiryAnswer, AskFailure> {
        match &self.params {
            Some(params) => {
                let answer = call::make(self.inquiry.clone(), params, desk, &ask).await?;
                script::answered(answer, &ask).await
            }
            None => ask(self.inquiry.clone()).await,
        }
    }

    fn is_call(&self) -> bool {
        matches!(self.inquiry, Inquiry::Call { .. })
    }

    /// Prints the answer. Returns the exit code.
    fn show(&self, answer: InquiryAnswer) -> anyhow::Result<u8> {
        let manner = show::OutputStyle { json: self.json, verbose: self.way.verbose };
        match self.inquiry {
            Inquiry::Call { ref name, .. } if name == script::RUN && !self.json => {
                script::show(answer, manner)
            }
            Inquiry::Call { .. } => show::result(answer, manner),
            _ => show::answer(answer, manner, self.table),
        }
    }
}

/// Runs a command that sends one inquiry to a gateway.
pub(super) async fn run(
    command: Command,
    config: Option<&Path>,
    profile: Option<String>,
) -> anyhow::Result<u8> {
    let asked = InquiryCommand::of(command)?;
    if let Some(url) = &asked.way.url {
        let target = connect::target(url, &asked.way.header, profile.as_deref())?;
        let ask = async |inquiry: Inquiry| match RunningGateway::at(target.clone(), CLIENT) {
            Ok(running) => inquire(running, &inquiry).await,
            Err(error) => Err(AskFailure::Unanswered(RequestFailure::Refused {
                code: 0,
                message: show::causes(&error),
            })),
        };
        return match asked.ask(ask, QuestionDesk::Away).await {
            Ok(answer) => asked.show(answer),
            Err(other) => told(other, asked.json),
        };
    }
    let found = super::found_or_begun(config)?;
    if !asked.refresh
        && let Some(running) = running(&found.path, profile.clone()).await
    {
        // One connection: what the user approves belongs to its session.
        let connection = Mutex::new(Some(running));
        let ask = async |inquiry: Inquiry| {
            let mut connection = connection.lock().await;
            let running = connection.take().ok_or(AskFailure::Unanswered(RequestFailure::Lost))?;
            let (answer, running) = inquire_on(running, &inquiry).await?;
            *connection = Some(running);
            Ok(answer)
        };
        match asked.ask(ask, QuestionDesk::Running(&found.path)).await {
            Ok(answer) => return asked.show(answer),
            // The inquiry had no effect, so this process can answer it.
            Err(AskFailure::Unanswered(error)) if !asked.is_call() || error.is_unknown_method() => {
                tracing::debug!(%error, "the running gateway did not answer");
            }
            Err(other) => return told(other, asked.json),
        }
    }
    let Some(loaded) = usable(&found, profile.as_deref(), asked.json)? else { return Ok(super::UNUSABLE) };
    // Faults of entries that the command does not use are not printed.
    match asked.inquiry {
        Inquiry::Describe { .. } | Inquiry::Call { .. } => loaded.remarks().for_each(show::complain),
        _ => tell_faults(&loaded),
    }
    Box::pin(here(loaded, profile, &asked)).await
}

/// Why a running gateway gave no answer.
pub(super) enum AskFailure {
    /// The gateway did not answer.
    Unanswered(RequestFailure),
    /// The user interrupted the command: the exit code.
    Stopped(u8),
    /// The user did not let the call run.
    Denied,
}

/// Prints why there is no answer. Returns the exit code.
pub(super) fn told(other: AskFailure, as_json: bool) -> anyhow::Result<u8> {
    match other {
        AskFailure::Stopped(code) => Ok(code),
        AskFailure::Denied => {
            eprintln!("Nothing was called.");
            Ok(FAILED)
        }
        AskFailure::Unanswered(error) => {
            let code = match error {
                RequestFailure::Refused { .. } => FaultCode::ServerDown,
                // The call may have taken effect.
                RequestFailure::Lost => FaultCode::UpstreamError,
            };
            show::refuse(code, error, as_json);
            Ok(FAILED)
        }
    }
}

/// Prints the faults of a configuration on stderr. Left-out servers are only named.
fn tell_faults(loaded: &LoadedConfig) {
    let left_out: Vec<String> = loaded.config.left_out.keys().map(|name| format!("`{name}`")).collect();
    let is_of_server = |fault: &ConfigFault| {
        let server = fault.entry.as_deref().and_then(|entry| entry.strip_prefix("servers."));
        server.is_some_and(|server| loaded.config.left_out.contains_key(server))
    };
    let others = loaded.faults.iter().filter(|fault| !is_of_server(fault));
    others.chain(loaded.remarks()).for_each(show::complain);
    tell_left_out(&left_out);
}

fn tell_left_out(names: &[String]) {
    if !names.is_empty() {
        let are = if names.len() == 1 { "is" } else { "are" };
        show::complain(format_args!("{} {are} left out; `nonet check` reports why", show::names(names)));
    }
}

/// Returns this machine's shared gateway of the configuration, if it is running. Tells if it is another
/// version.
pub(super) async fn running(file: &Path, profile: Option<String>) -> Option<RunningGateway> {
    let running = quietly_running(file, profile).await;
    if let Some(running) = &running {
        tell_version(&running.version, file);
    }
    running
}

/// Tells once that the running gateway is another version than this program, with the command that helps.
pub(super) fn tell_version(version: &str, file: &Path) {
    static TOLD: Once = Once::new();
    let own = env!("CARGO_PKG_VERSION");
    if version.is_empty() || version == own {
        return;
    }
    let number = |version: &str| semver::Version::parse(version).ok();
    let is_older = number(version) < number(own);
    let remedy = match is_older {
        true => format!("run `{}` to start this one", shell::nonet("restart", file)),
        false => "update this one, as docs/upgrade.md says".into(),
    };
    TOLD.call_once(|| {
        show::complain(format_args!(
            "the running gateway is Nonet {version}, this program is {own}: {remedy}"
        ));
    });
}

/// Returns this machine's shared gateway of the configuration, if it is running.
#[cfg(unix)]
pub(super) async fn quietly_running(file: &Path, profile: Option<String>) -> Option<RunningGateway> {
    use nonet_store::shared::{Hello, SharedPlace};
    let place = match SharedPlace::of(file) {
        Ok(place) => place,
        Err(error) => {
            tracing::debug!("no place for a shared gateway: {error:#}");
            return None;
        }
    };
    let hello = Hello::new(profile);
    match tokio::time::timeout(GREETING, RunningGateway::shared(&place, &hello, CLIENT)).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => {
            show::complain(format_args!("cannot use the running gateway: {}", show::causes(&error)));
            None
        }
        Err(_) => {
            show::complain("the running gateway does not answer");
            None
        }
    }
}

#[cfg(not(unix))]
pub(super) async fn quietly_running(_file: &Path, _profile: Option<String>) -> Option<RunningGateway> {
    None
}

/// Sends an inquiry to a running gateway.
pub(super) async fn inquire(running: RunningGateway, inquiry: &Inquiry) -> Result<InquiryAnswer, AskFailure> {
    Ok(inquire_on(running, inquiry).await?.0)
}

/// Sends an inquiry to a running gateway. Returns the connection with the answer.
async fn inquire_on(
    mut running: RunningGateway,
    inquiry: &Inquiry,
) -> Result<(InquiryAnswer, RunningGateway), AskFailure> {
    let answer = tokio::select! {
        answer = running.request(METHOD, json!(inquiry)) => answer,
        code = stopped() => {
            running.cancel().await;
            return Err(AskFailure::Stopped(code));
        }
    };
    let mut answer = answer.map_err(AskFailure::Unanswered)?;
    let answer = match answer.get_mut("fault") {
        Some(fault) => Err(show::fault_of(fault)),
        None => Ok(take_member(&mut answer, "answer")),
    };
    Ok((answer, running))
}

/// Answers with a gateway in this process.
async fn here(loaded: LoadedConfig, profile: Option<String>, asked: &InquiryCommand) -> anyhow::Result<u8> {
    let gateway = super::gateway(loaded, matches!(asked.inquiry, Inquiry::Search { .. }));
    gateway.errands.ends_with_client();
    let caller = gateway.sessions.caller(gateway.sessions.open(profile), CLIENT);
    let caller = Caller { local: true, ..caller };
    let code = tokio::select! {
        code = answer_here(&gateway, caller, asked) => code,
        code = stopped() => Ok(code),
    };
    // No server was started, so none has to be stopped.
    if gateway.servers.connections().values().all(|connection| connection.is_held()) {
        return code;
    }
    // A second Ctrl-C does not wait for slow servers; the guard ends them.
    tokio::select! {
        () = gateway.stop() => code,
        code = stopped() => Ok(code),
    }
}

async fn answer_here(gateway: &Arc<Gateway>, caller: Caller, asked: &InquiryCommand) -> anyhow::Result<u8> {
    let here = LocalGateway { gateway, seen: gateway.publisher.last_seen() };
    let all = || here.seen.keys().cloned().collect::<Vec<_>>();
    let first = match &asked.inquiry {
        _ if asked.refresh => all(),
        Inquiry::Describe { .. } | Inquiry::Call { .. } => Vec::new(),
        _ => here.unlisted(),
    };
    here.connect(&first).await;
    gateway.calls.fresh_skills().await;
    let mut started = first;
    let mut of: Option<Arc<str>> = None;
    if let Inquiry::Describe { name } | Inquiry::Call { name, .. } = &asked.inquiry {
        let mut more = match gateway.server_of(&caller, name) {
            // Apps may use tools of any server.
            Ok(category) if &*category == APPS && asked.is_call() => all(),
            Ok(_) if name == script::RUN => all(),
            Ok(_) if name == script::TYPES => here.unlisted(),
            Ok(server) if RESERVED.contains(&&*server) => Vec::new(),
            Ok(server) if asked.is_call() || here.is_old(&server) => vec![server],
            // A fresh list of the named server proves that the tool does not exist.
            Err(fault) if fault.code == FaultCode::UnknownTool && here.is_fresh(name) => Vec::new(),
            Err(fault) if fault.code == FaultCode::UnknownTool => here.that_may_have(name),
            _ => Vec::new(),
        };
        more.retain(|server| !started.contains(server));
        here.start(&more).await;
        started.extend(more);
        // Also covers a started server without that tool.
        of = gateway.server_of(&caller, name).ok().or_else(|| match &started[..] {
            [only] => Some(only.clone()),
            _ => None,
        });
        if asked.is_call()
            && let Some(fault) = of.as_ref().and_then(|server| gateway.out_of_order(server))
        {
            return asked.show(Err(fault));
        }
    }
    if let Inquiry::Search { .. } = asked.inquiry {
        show::indexing(gateway, INDEX_LIMIT).await;
        gateway.observing.recalled().await;
    }
    let ask = async |inquiry: Inquiry| Ok(gateway.inquire(caller.clone(), inquiry).await);
    let file = gateway.servers.config().file.clone();
    let mut answer = match asked.ask(ask, QuestionDesk::Here(gateway, &file)).await {
        Ok(answer) => answer,
        Err(other) => return told(other, asked.json),
    };
    if answer.as_ref().is_err_and(|fault| fault.code == FaultCode::UnknownTool) {
        let config = gateway.servers.config();
        tell_left_out(&config.left_out.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>());
    }
    if let Ok(answer) = &mut answer {
        without_held(answer);
        if asked.is_call() && of.as_deref() == Some(GATEWAY) {
            each_text(answer, without_held);
        }
    }
    // A fault about a single server already says why it is missing.
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

/// Removes the state of held servers from an answer: the user did not ask for it.
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
