//! What waits for the user in the running gateways of a servers.toml: questions in the chats of clients, and questions on the page.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{serve::Neighbours, store};

/// The running gateways of one servers.toml, with what waits in each.
pub(super) struct Elsewhere {
    neighbours: Neighbours,
    /// Their ids, and what waits.
    gateways: Vec<(String, Value)>,
}

/// Returns what every running gateway of this user says of itself, the last started first.
pub(super) async fn gateways() -> Vec<Value> {
    match store::folder().and_then(|state| Neighbours::of(&state).ok()) {
        Some(neighbours) => neighbours.all().await,
        None => Vec::new(),
    }
}

/// Whether a gateway uses a file.
pub(super) fn is_of(gateway: &Value, file: &Path) -> bool {
    let whole = |path: &Path| fs::canonicalize(path).or_else(|_| std::path::absolute(path));
    let config = gateway["config"].as_str().map(PathBuf::from);
    config.is_some_and(|config| config == file || whole(&config).ok() == whole(file).ok())
}

impl Elsewhere {
    /// Asks the gateways of a file. None if gateways cannot be asked here.
    pub async fn look(file: &Path) -> Option<Self> {
        let neighbours = Neighbours::of(&store::folder()?).ok()?;
        let mut gateways = Vec::new();
        for gateway in neighbours.all().await.iter().filter(|gateway| is_of(gateway, file)) {
            let id = gateway["id"].as_str().unwrap_or_default();
            if let Some(waiting) = neighbours.waiting(id).await {
                gateways.push((id.to_string(), waiting));
            }
        }
        Some(Self { neighbours, gateways })
    }

    /// Returns the questions that clients have put in their chats, each with its `token`.
    pub fn in_chats(&self) -> impl Iterator<Item = &Value> {
        self.listed("client_questions")
    }

    /// Returns the questions of servers that wait on the page.
    pub fn on_pages(&self) -> impl Iterator<Item = &Value> {
        self.listed("questions")
    }

    fn listed(&self, list: &'static str) -> impl Iterator<Item = &Value> {
        self.gateways.iter().flat_map(move |(_, waiting)| waiting[list].as_array().into_iter().flatten())
    }

    /// Returns how many definitions of servers wait to be trusted.
    pub fn definitions(&self) -> u64 {
        self.gateways.iter().filter_map(|(_, waiting)| waiting["total"].as_u64()).max().unwrap_or(0)
    }

    /// Returns the question with this token.
    pub fn question(&self, token: &str) -> Option<&Value> {
        self.in_chats().find(|question| question["token"] == token)
    }

    /// Answers the question with this token.
    pub async fn answer(&self, token: &str, said: &Value) -> anyhow::Result<()> {
        let has_it = |waiting: &Value| {
            let questions = waiting["client_questions"].as_array().into_iter().flatten();
            questions.into_iter().any(|question| question["token"] == token)
        };
        let (id, _) = self
            .gateways
            .iter()
            .find(|(_, waiting)| has_it(waiting))
            .ok_or_else(|| anyhow::anyhow!("this question is no longer open"))?;
        self.neighbours.answer(id, token, said).await
    }
}
