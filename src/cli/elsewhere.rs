//! What waits for the user in the running gateways of a servers.toml: questions in the chats of clients, and questions on the page.

use std::{fs, path::Path};

use futures::future::join_all;
use nonet_store as store;
use serde_json::Value;

use super::show;
use crate::serve::{Neighbours, SilentGateway};

/// The running gateways of one servers.toml, with what waits in each.
pub(super) struct OtherGateways {
    neighbours: Neighbours,
    /// Their ids, and what waits.
    gateways: Vec<(String, Value)>,
    /// Why other gateways do not say what waits in them.
    pub unasked: Vec<String>,
}

/// Returns what every running gateway of this user says of itself, the last started first.
pub(super) async fn gateways() -> Vec<Value> {
    match store::folder().and_then(|state| Neighbours::of(&state).ok()) {
        Some(neighbours) => neighbours.all().await.0,
        None => Vec::new(),
    }
}

/// Whether two paths are the same file.
fn is_same(one: &Path, other: &Path) -> bool {
    let whole = |path: &Path| fs::canonicalize(path).or_else(|_| std::path::absolute(path)).ok();
    one == other || whole(one) == whole(other)
}

impl OtherGateways {
    /// Asks the gateways of a file. None if gateways cannot be asked here.
    pub(super) async fn look(file: &Path) -> Option<Self> {
        let neighbours = Neighbours::of(&store::folder()?).ok()?;
        let (all, silent) = neighbours.all().await;
        let is_of =
            |gateway: &&Value| gateway["config"].as_str().is_some_and(|of| is_same(Path::new(of), file));
        let asked = all.iter().filter(is_of).map(async |gateway| {
            let id = gateway["id"].as_str().unwrap_or_default();
            (gateway, id.to_string(), neighbours.waiting(id).await)
        });
        let may_be_of =
            |one: &SilentGateway| one.config.as_deref().is_none_or(|config| is_same(config, file));
        let mut unasked: Vec<String> =
            silent.into_iter().filter(may_be_of).map(|gateway| gateway.why).collect();
        let mut gateways = Vec::new();
        for (gateway, id, waiting) in join_all(asked).await {
            match waiting {
                Ok(waiting) => gateways.push((id, waiting)),
                Err(why) => unasked.push(format!("process {}: {why:#}", gateway["pid"])),
            }
        }
        Some(Self { neighbours, gateways, unasked })
    }

    /// Prints which gateways do not say what waits in them.
    pub(super) fn tell_unasked(&self) {
        for why in &self.unasked {
            show::complain(format_args!("a gateway does not say what waits in it: {why}"));
        }
    }

    /// Returns the questions that clients have put in their chats, each with its `token`.
    pub(super) fn in_chats(&self) -> impl Iterator<Item = &Value> {
        self.listed("client_questions").map(|(_, question)| question)
    }

    /// Returns the questions of servers that wait on the page.
    pub(super) fn on_pages(&self) -> impl Iterator<Item = &Value> {
        self.listed("questions").map(|(_, question)| question)
    }

    /// Returns what is in a list of the gateways, each with the id of its gateway.
    fn listed(&self, list: &'static str) -> impl Iterator<Item = (&String, &Value)> {
        let listed = self.gateways.iter().map(move |(id, waiting)| (id, waiting[list].as_array()));
        listed.flat_map(|(id, all)| all.into_iter().flatten().map(move |one| (id, one)))
    }

    /// Returns how many definitions of servers wait to be trusted.
    pub(super) fn definitions(&self) -> u64 {
        self.gateways.iter().filter_map(|(_, waiting)| waiting["total"].as_u64()).max().unwrap_or(0)
    }

    /// Returns the question with this token.
    pub(super) fn question(&self, token: &str) -> Option<&Value> {
        self.in_chats().find(|question| question["token"] == token)
    }

    /// Answers the question with this token.
    pub(super) async fn answer(&self, token: &str, said: &Value) -> anyhow::Result<()> {
        let asked = self.listed("client_questions").find(|(_, question)| question["token"] == token);
        let (id, _) = asked.ok_or_else(|| anyhow::anyhow!("this question is no longer open"))?;
        self.neighbours.answer(id, token, said).await
    }
}
