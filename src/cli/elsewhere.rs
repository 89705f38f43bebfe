//! What waits for the user in the running gateways of a servers.toml: questions in the chats of clients, and
//! questions on the page.

use std::{fs, path::Path};

use futures::future::join_all;
use nonet_api::{
    page::GatewayAbout,
    question::{ClientQuestion, PageQuestion, WaitingForUser},
};
use nonet_store as store;
use serde_json::Value;

use super::show;
use crate::serve::{Neighbours, SilentGateway};

/// The running gateways of one servers.toml, with what waits in each.
pub(super) struct OtherGateways {
    neighbours: Neighbours,
    /// Their ids, and what waits.
    gateways: Vec<(String, WaitingForUser)>,
    /// Why other gateways do not say what waits in them.
    pub unasked: Vec<String>,
}

/// Returns what every running gateway of this user says of itself, the last started first.
pub(super) async fn gateways() -> Vec<GatewayAbout> {
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
        let is_of = |gateway: &&GatewayAbout| is_same(&gateway.config, file);
        let asked =
            all.iter().filter(is_of).map(async |gateway| (gateway, neighbours.waiting(&gateway.id).await));
        let may_be_of =
            |one: &SilentGateway| one.config.as_deref().is_none_or(|config| is_same(config, file));
        let mut unasked: Vec<String> =
            silent.into_iter().filter(may_be_of).map(|gateway| gateway.why).collect();
        let mut gateways = Vec::new();
        for (gateway, waiting) in join_all(asked).await {
            match waiting {
                Ok(waiting) => gateways.push((gateway.id.clone(), waiting)),
                Err(why) => unasked.push(format!("process {}: {why:#}", gateway.pid)),
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
    pub(super) fn in_chats(&self) -> impl Iterator<Item = &ClientQuestion> {
        self.gateways.iter().flat_map(|(_, waiting)| &waiting.client_questions)
    }

    /// Returns the questions of servers that wait on the page.
    pub(super) fn on_pages(&self) -> impl Iterator<Item = &PageQuestion> {
        self.gateways.iter().flat_map(|(_, waiting)| &waiting.questions)
    }

    /// Returns how many definitions of servers wait to be trusted.
    pub(super) fn definitions(&self) -> u64 {
        self.gateways.iter().map(|(_, waiting)| waiting.total as u64).max().unwrap_or(0)
    }

    /// Returns the question with this token.
    pub(super) fn question(&self, token: &str) -> Option<&ClientQuestion> {
        self.in_chats().find(|question| question.token == token)
    }

    /// Answers the question with this token.
    pub(super) async fn answer(&self, token: &str, said: &Value) -> anyhow::Result<()> {
        let has_it = |waiting: &WaitingForUser| {
            waiting.client_questions.iter().any(|question| question.token == token)
        };
        let (id, _) = self
            .gateways
            .iter()
            .find(|(_, waiting)| has_it(waiting))
            .ok_or_else(|| anyhow::anyhow!("this question is no longer open"))?;
        self.neighbours.answer(id, token, said).await
    }
}
