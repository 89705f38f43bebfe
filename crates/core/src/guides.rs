//! Skills, servers' prompts and apps in the catalogue, and how they are kept fresh.
//!
//! They are listed like the tools of two more servers, `skills` and `apps`, so the index finds them by
//! meaning. Prompts follow the lists of their servers, and apps follow the configuration. Changes in a folder
//! of skills raise no event, so a search reads the folders again.

use std::{
    collections::HashSet,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use nonet_config::{App, AppKind, Config, LONGEST_TIME};
use nonet_parts::skills::{self, FoundSkills, Skill, served::ServedSkill};
use nonet_servers::{
    catalog::{APPS, EntryKind, Listing, SKILLS, Tool, guide},
    downstream::CallError,
};
use nonet_text::fault::{Fault, FaultCode};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::{sync::Mutex, task::JoinHandle, time::timeout};

use super::{AppArguments, SkillArguments, interrupt::Interrupt};
use crate::{calls::Calls, serving_skills::Digests};
use nonet_state::{
    faults::call_fault,
    publisher::{KnownList, KnownLists},
    session::{Caller, TaskMode},
};

/// How long the result of reading the folders stays fresh.
const FRESH: Duration = Duration::from_secs(10);
/// How many skills and prompts are listed at most.
const MAX_SKILLS: usize = 5_000;
/// How many steps of a workflow replace a missing description.
const STEPS: usize = 10;

/// How long reading may take; slower reading continues in the background, and a later search uses its result.
const READING: Duration = Duration::from_secs(2);

/// The skills last found in the folders.
#[derive(Debug, Default)]
pub(super) struct Guides {
    state: Mutex<FolderScan>,
    skills: ArcSwap<Vec<Skill>>,
    /// Whether the listed skills are out of date.
    is_behind: AtomicBool,
    digests: Digests,
}

#[derive(Debug, Default)]
struct FolderScan {
    /// When the folders were last read, and which folders.
    last: Option<(Instant, Vec<PathBuf>)>,
    /// A slow reading in progress, because a folder does not respond.
    late: Option<JoinHandle<FoundSkills>>,
    /// The problems with folders reported so far.
    told: HashSet<String>,
}

impl Guides {
    /// Reads the folders, unless the same folders were read less than `age` ago.
    pub(super) async fn read(&self, folders: &[PathBuf], age: Duration) {
        if folders.is_empty() && self.skills.load().is_empty() {
            return;
        }
        let mut state = self.state.lock().await;
        let is_same = |(_, last): &(Instant, Vec<PathBuf>)| last == folders;
        let same = state.last.as_ref().filter(|last| is_same(last)).map(|(at, _)| at.elapsed());
        if same.is_some_and(|elapsed| elapsed < age) {
            return;
        }
        let mut reading = match state.late.take().filter(|_| same.is_some()) {
            Some(late) if !late.is_finished() => {
                state.late = Some(late);
                return;
            }
            Some(ended) => ended,
            None => {
                let own = folders.to_vec();
                tokio::task::spawn_blocking(move || skills::load(&own))
            }
        };
        state.last = Some((Instant::now(), folders.to_vec()));
        let Ok(read) = timeout(READING, &mut reading).await else {
            tracing::warn!(?folders, "a folder of skills does not respond; its skills stay as they were");
            state.late = Some(reading);
            return;
        };
        let FoundSkills { skills, left_out } = read.unwrap_or_default();
        left_out.iter().filter(|why| !state.told.contains(*why)).for_each(|why| tracing::warn!("{why}"));
        state.told = left_out.into_iter().collect();
        if **self.skills.load() != skills {
            self.skills.store(Arc::new(skills));
            self.is_behind.store(true, Ordering::Release);
        }
    }

    /// Returns the skills last found in the folders.
    pub(super) fn skills(&self) -> Arc<Vec<Skill>> {
        self.skills.load_full()
    }

    /// Returns these skills with the digests of their files; none if reading takes longer than `limit`.
    pub(super) async fn served(&self, limit: Duration) -> Option<Arc<Vec<ServedSkill>>> {
        self.digests.of(self.skills(), limit).await
    }

    /// Whether the listed skills are out of date.
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Acquire)
    }

    /// Adds skills and apps to the lists of servers. Returns whether they have changed.
    pub(super) fn list(&self, known: &mut KnownLists, config: &Config) -> bool {
        self.is_behind.store(false, Ordering::Release);
        let skills = list_of_skills(&self.skills.load(), known);
        let apps = config
            .apps
            .iter()
            .map(|(id, app)| guide::app(id, &description_of(app), app.input_schema.as_ref()));
        let about = "Apps to run with call_app: workflows, models and tools that the user has set up";
        let apps = listing(apps, about);
        put(known, SKILLS, skills) | put(known, APPS, apps)
    }
}

/// Lists the skills of the folders, then the prompts of servers. Of two entries with the same name the first
/// one counts.
fn list_of_skills(local: &[Skill], known: &KnownLists) -> Listing {
    let local = local.iter().map(|skill| guide::skill(&skill.name, &skill.description));
    // Prompts of sessions' servers come last, so that they do not displace prompts that everybody sees.
    let (of_sessions, of_all): (Vec<_>, Vec<_>) =
        known.iter().partition(|(_, known)| known.session.is_some());
    let prompts = of_all.into_iter().chain(of_sessions).flat_map(|(server, known)| {
        let prompts = known.listing.prompts.iter().filter_map(move |prompt| guide::prompt(server, prompt));
        prompts.chain(known.listing.skills.iter().filter_map(move |entry| guide::server_skill(server, entry)))
    });
    let about = "Instructions to follow, read with use_skill: the user's skills and the prompts of servers";
    let mut listed = listing(local.chain(prompts).take(MAX_SKILLS), about);
    let mut seen = HashSet::new();
    listed.tools.retain(|skill| seen.insert(skill["name"].as_str().unwrap_or_default().to_owned()));
    listed
}

fn listing(entries: impl Iterator<Item = Value>, about: &str) -> Listing {
    Listing { tools: entries.map(Arc::new).collect(), about: about.into(), ..Listing::default() }
}

fn put(known: &mut KnownLists, category: &str, listing: Listing) -> bool {
    match known.get(category) {
        _ if listing.tools.is_empty() => known.remove(category).is_some(),
        Some(before) if *before.listing == listing => false,
        before => {
            let listing = match before {
                Some(before) => listing.sharing(&before.listing),
                None => listing,
            };
            known.insert(category.into(), KnownList::of_all(listing));
            true
        }
    }
}

/// Describes what an app does; without a description, what it runs.
fn description_of(app: &App) -> String {
    if !app.description.trim().is_empty() {
        return app.description.clone();
    }
    match &app.kind {
        AppKind::Tool { tool } => format!("Runs {tool}"),
        AppKind::Workflow { steps, .. } => {
            let steps: Vec<&str> = steps.iter().take(STEPS).map(|step| step.called()).collect();
            format!("Runs {}", steps.join(", "))
        }
        AppKind::Script { file } => {
            format!("Runs the script {}", file.file_name().unwrap_or_default().display())
        }
        AppKind::Model(app) => app.system.clone(),
    }
}

impl Calls {
    /// Updates the skills in the catalogue, unless that was done a moment ago.
    pub async fn fresh_skills(&self) {
        self.skills_younger_than(FRESH).await;
    }

    /// Updates the skills in the catalogue to their current state.
    pub(super) async fn skills_of_now(&self) {
        self.skills_younger_than(Duration::ZERO).await;
    }

    async fn skills_younger_than(&self, age: Duration) {
        self.guides.read(&self.servers.config().gateway.skills, age).await;
        if self.guides.is_behind() {
            // The publisher lists the skills before it replies.
            self.publisher.published().await;
        }
    }

    /// Runs a skill or an app that was called like a tool, in the same way as its meta-tool.
    pub(super) async fn guide(
        self: &Arc<Self>,
        caller: &Caller,
        tool: &Tool,
        params: &Map<String, Value>,
        limit: Duration,
    ) -> Result<Value, Fault> {
        let (_, arguments) = tool.meta_call(params);
        let work = async {
            match tool.kind {
                EntryKind::App => {
                    let mut caller = Caller { as_task: TaskMode::Never, ..caller.clone() };
                    caller.limits.soft_deadline = LONGEST_TIME;
                    self.gateway()?.apps.run_app(&caller, read::<AppArguments>(arguments)?).await
                }
                EntryKind::Skill | EntryKind::Tool => {
                    // The user was asked before this point.
                    self.follow_skill(caller, read::<SkillArguments>(arguments)?, true).await
                }
            }
        };
        match timeout(limit, work).await {
            Err(_) => Err(call_fault(tool, CallError::TimedOut(limit))),
            Ok(Ok(result)) => Ok(result),
            Ok(Err(Interrupt::Fault(fault))) => Err(*fault),
            // A skill or an app called here never becomes a task, and is never verbatim.
            Ok(Err(Interrupt::Task(_) | Interrupt::Refused(_))) => {
                Err(Fault::new(FaultCode::Internal, "It was not run; call it with its own meta-tool."))
            }
        }
    }
}

fn read<T: DeserializeOwned>(arguments: Map<String, Value>) -> Result<T, Fault> {
    serde_json::from_value(Value::Object(arguments))
        .map_err(|error| Fault::new(FaultCode::InvalidParams, error.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_prompts_of_a_sessions_server_take_no_place_from_others() {
        let prompts = |count: usize| (0..count).map(|n| json!({ "name": format!("p{n}") })).collect();
        let of = |session: Option<u64>, count: usize| {
            KnownList::new(Listing { prompts: prompts(count), ..Listing::default() }, 1, session)
        };
        let known = KnownLists::from([("a".into(), of(Some(1), MAX_SKILLS)), ("z".into(), of(None, 2))]);
        let listed = list_of_skills(&[], &known).tools;
        assert_eq!(listed.len(), MAX_SKILLS);
        for name in ["z/p0", "z/p1", "a/p0"] {
            assert!(listed.iter().any(|one| one["name"] == name), "{name}");
        }
    }
}
