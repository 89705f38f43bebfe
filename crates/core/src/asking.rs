//! Questions to the user: in a form, in the chat, and outside of both.

use std::sync::{Arc, OnceLock};

use nonet_parts::approvals::Approvals;
use nonet_state::{page_questions::OpenQuestions, servers::Servers};

use crate::questions::Questions;

/// Questions to the user.
pub struct Asking {
    pub(crate) servers: Arc<Servers>,
    /// Open questions and the approvals already given.
    pub questions: Questions,
    /// Approvals that wait for the user outside of the chat.
    pub approvals: Arc<Approvals>,
    /// Questions of servers, during calls that the page's user makes.
    pub page_questions: Arc<OpenQuestions>,
    /// Nonet's HTTP address, such as `http://127.0.0.1:8931`, once it serves HTTP.
    pub(crate) http: OnceLock<String>,
    /// The address of the live page without its token.
    page: OnceLock<String>,
}

impl Asking {
    pub(crate) fn new(servers: Arc<Servers>, questions: Questions, approvals: Approvals) -> Arc<Self> {
        let (http, page) = (OnceLock::new(), OnceLock::new());
        let (approvals, page_questions) = (Arc::new(approvals), Arc::default());
        Arc::new(Self { servers, questions, approvals, page_questions, http, page })
    }

    /// Records its HTTP address, so that faults can name the live page, and questions the address for their answer.
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
    pub(crate) fn page_address(&self) -> Option<&str> {
        self.page.get().map(String::as_str)
    }
}
