//! Questions to the user: in a form, in the chat, and outside of both.

use std::sync::{Arc, OnceLock};

use crate::{
    questions::{Questions, Room},
    servers::Servers,
};
use nonet_parts::{approvals::Approvals, cluster::Cluster};

/// Questions to the user.
pub struct Asking {
    pub(crate) servers: Arc<Servers>,
    /// What waits in this process for an answer.
    pub room: Arc<Room>,
    /// Questions in forms and in chats.
    pub questions: Questions,
    /// Approvals that wait for the user outside of the chat.
    pub approvals: Arc<Approvals>,
    /// Nonet's HTTP address, such as `http://127.0.0.1:8931`, once it serves HTTP.
    pub(crate) http: OnceLock<String>,
    /// The address of the live page without its token.
    page: OnceLock<String>,
}

impl Asking {
    /// Creates the questions of a gateway.
    pub fn new(servers: Arc<Servers>, approvals: Approvals, cluster: Option<Arc<Cluster>>) -> Arc<Self> {
        let (http, page) = (OnceLock::new(), OnceLock::new());
        let room = Arc::new(Room::new(cluster));
        let questions = Questions::new(room.clone());
        Arc::new(Self { servers, room, questions, approvals: Arc::new(approvals), http, page })
    }

    /// Records its HTTP address, so that faults can name the live page, and questions the address for their
    /// answer.
    pub fn serves_at(&self, address: &str, has_page: bool) {
        let _ = self.http.set(address.into());
        if has_page {
            self.shows_page_at(address);
        }
    }

    /// Records the address of the live page.
    pub fn shows_page_at(&self, address: &str) {
        let _ = self.page.set(format!("{address}/ui"));
    }

    /// Returns the address of the live page without its token, which no model may see.
    pub fn page_address(&self) -> Option<&str> {
        self.page.get().map(String::as_str)
    }
}
