//! This user's gateways, for commands: what they say of themselves, what waits in them for the user, and the
//! user's answers. The requests are those of the page, over the sockets by which gateways answer each other's
//! page.

use std::path::Path;

#[cfg(unix)]
use nonet_api::page::ErrorAnswer;
use nonet_api::{page::GatewayAbout, question::WaitingForUser};
#[cfg(unix)]
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

#[cfg(unix)]
use super::page::gateways;
pub use super::page::gateways::SilentGateway;
#[cfg(unix)]
use nonet_store::shared::PageSockets;

/// The running gateways of this user.
#[derive(Debug)]
pub struct Neighbours {
    #[cfg(unix)]
    sockets: PageSockets,
}

#[cfg(unix)]
impl Neighbours {
    /// Returns the gateways with a socket below a state folder.
    ///
    /// # Errors
    ///
    /// If the folder belongs to another user or cannot be made.
    pub fn of(state: &Path) -> anyhow::Result<Self> {
        Ok(Self { sockets: PageSockets::of(state)? })
    }

    /// Returns what each says of itself. Then those that say nothing, such as those whose page is switched
    /// off.
    pub async fn all(&self) -> (Vec<GatewayAbout>, Vec<SilentGateway>) {
        gateways::told(&self.sockets, "").await
    }

    /// Returns what waits for the user in a gateway.
    ///
    /// # Errors
    ///
    /// Why the gateway does not say it.
    pub async fn waiting(&self, id: &str) -> anyhow::Result<WaitingForUser> {
        let (status, told) = gateways::ask(&self.sockets, id, "/ui/api/waiting", None).await?;
        anyhow::ensure!(status.is_success(), "{}", why(told).unwrap_or_else(|| "it failed".into()));
        Ok(serde_json::from_value(told)?)
    }

    /// Answers a question that a client of a gateway has put in its chat.
    ///
    /// # Errors
    ///
    /// Why the answer does not count.
    pub async fn answer(&self, id: &str, token: &str, said: &Value) -> anyhow::Result<()> {
        let path = format!("/ui/api/client-questions/{}", utf8_percent_encode(token, NON_ALPHANUMERIC));
        let body = serde_json::json!({ "answer": said });
        let (status, told) = gateways::ask(&self.sockets, id, &path, Some(&body)).await?;
        let unknown = || "the gateway did not take the answer".into();
        anyhow::ensure!(status.is_success(), "{}", why(told).unwrap_or_else(unknown));
        Ok(())
    }
}

/// Returns why a request failed.
#[cfg(unix)]
fn why(told: Value) -> Option<String> {
    Some(serde_json::from_value::<ErrorAnswer>(told).ok()?.error.message)
}

#[cfg(not(unix))]
impl Neighbours {
    /// Other systems have no such sockets yet.
    ///
    /// # Errors
    ///
    /// Never.
    pub fn of(_state: &Path) -> anyhow::Result<Self> {
        Ok(Self {})
    }

    /// Returns none.
    pub async fn all(&self) -> (Vec<GatewayAbout>, Vec<SilentGateway>) {
        (Vec::new(), Vec::new())
    }

    /// Fails.
    ///
    /// # Errors
    ///
    /// Always.
    pub async fn waiting(&self, _id: &str) -> anyhow::Result<WaitingForUser> {
        anyhow::bail!("this system has no sockets of gateways yet")
    }

    /// Fails.
    ///
    /// # Errors
    ///
    /// Always.
    pub async fn answer(&self, _id: &str, _token: &str, _said: &Value) -> anyhow::Result<()> {
        anyhow::bail!("this system has no sockets of gateways yet")
    }
}
