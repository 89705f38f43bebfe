//! The skills of the folders, as the skills extension serves them to clients.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use nonet_base::text::clip;
use nonet_parts::skills::served::{self, ServedSkill};
use nonet_servers::catalog::EntryKind;
use rmcp::ErrorData;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{calls::Calls, gate::Gate};
use nonet_state::session::Caller;

/// How long an answer is fresh, which is also how often the folders are read again.
pub const FRESH: Duration = Duration::from_secs(10);
/// How long the files may take to be read.
const READING: Duration = Duration::from_secs(5);

impl Calls {
    /// Returns the skills that a caller may use.
    pub async fn served_skills(&self, caller: &Caller) -> Result<Vec<ServedSkill>, ErrorData> {
        self.fresh_skills().await;
        let gate = Gate::of(&self.publisher, &caller.session);
        let all = self.guides.served(READING).await;
        let all =
            all.ok_or_else(|| ErrorData::internal_error("the folders of skills do not respond", None))?;
        let is_shown = |skill: &&ServedSkill| gate.kept_from(EntryKind::Skill, &skill.name).is_none();
        Ok(all.iter().filter(is_shown).cloned().collect())
    }

    /// Answers `skills/get` and `resources/directory/read`.
    pub async fn served_skill(&self, caller: &Caller, method: &str, uri: &str) -> Result<Value, ErrorData> {
        let skills = self.served_skills(caller).await?;
        if method == "skills/get" {
            let found = skills.iter().find(|skill| skill.entry["uri"] == uri);
            return found.map(|skill| json!({ "skill": skill.entry })).ok_or_else(|| unknown(uri, "skill"));
        }
        let found = skills.iter().find_map(|skill| skill.directory(uri));
        found
            .map(|resources| json!({ "resources": resources }))
            .ok_or_else(|| unknown(uri, "folder of a skill"))
    }

    /// Returns a file of a skill of the folders.
    pub(crate) async fn skill_file(&self, caller: &Caller, uri: &str) -> Result<Value, ErrorData> {
        let (skills, wanted) = (self.served_skills(caller).await?, uri.to_owned());
        let reading =
            tokio::task::spawn_blocking(move || skills.iter().find_map(|skill| skill.file(&wanted)));
        match timeout(READING, reading).await {
            Ok(Ok(Some(content))) => Ok(json!({ "contents": [content] })),
            Ok(_) => Err(unknown(uri, "file of a skill")),
            Err(_) => Err(ErrorData::internal_error("the skill's folder does not respond", None)),
        }
    }
}

fn unknown(uri: &str, what: &str) -> ErrorData {
    ErrorData::invalid_params(format!("`{}` is no {what} here", clip(uri, 200)), Some(json!({ "uri": uri })))
}

/// The skills with their digests, for as long as the folders are not read again.
#[derive(Debug, Default)]
pub(crate) struct Digests(tokio::sync::Mutex<Option<(Instant, Arc<Vec<ServedSkill>>)>>);

impl Digests {
    /// Returns the skills with the digests of all files; none if reading takes too long.
    pub(crate) async fn of(
        &self,
        skills: Arc<Vec<nonet_parts::skills::Skill>>,
        limit: Duration,
    ) -> Option<Arc<Vec<ServedSkill>>> {
        let mut known = self.0.lock().await;
        if let Some((_, served)) = known.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return Some(served.clone());
        }
        let reading = tokio::task::spawn_blocking(move || Arc::new(served::served(&skills)));
        let served = timeout(limit, reading).await.ok()?.ok()?;
        *known = Some((Instant::now(), served.clone()));
        Some(served)
    }
}
