//! `[[servers.NAME.setup]]`: the calls that put a new link into the state that its clients expect.

use std::{sync::Arc, time::Duration};

use nonet_base::text::clip;
use nonet_config::SetupCall;
use nonet_text::name;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{
    CallControl, CallError, Connection,
    link::{Input, Link, LinkError, LinkRequest, RequestError},
};
use crate::catalog::Listing;

/// How many characters of a failed call's text are shown.
const SAID: usize = 300;
/// How many names are suggested for an unknown one.
const NEAREST: usize = 3;

/// Why a call of the setup did not succeed.
enum Failure {
    /// The failure is ignored if the call is optional.
    Call(String),
    /// The link is unusable.
    Link(LinkError),
}

impl From<LinkError> for Failure {
    fn from(lost: LinkError) -> Self {
        Self::Link(lost)
    }
}

impl Connection {
    /// Makes the calls of the setup, in order. `until` is the deadline of the start.
    pub(super) async fn set_up(
        &self,
        link: &Arc<dyn Link>,
        until: Instant,
        stop: &CancellationToken,
    ) -> Result<(), LinkError> {
        let settings = self.settings();
        let mut listed = None;
        for call in &settings.setup {
            let made = tokio::select! {
                made = timeout_at(until, self.set_up_by(link, call, &mut listed, until)) => made,
                () = stop.cancelled() => return Err("stopped".into()),
                lost = link.lost() => return Err(left(call, lost)),
            };
            let why = match made {
                Ok(Ok(())) => continue,
                Ok(Err(Failure::Link(lost))) => return Err(lost),
                Ok(Err(Failure::Call(why))) => why,
                Err(_) => format!(
                    "did not end within the `start_timeout` of [servers.{}], {:?}",
                    self.name, settings.start_timeout
                ),
            };
            let why = self.connector.mask(&format!("its setup call `{}` {why}", call.tool));
            if !call.optional {
                return Err(LinkError::Failed(why));
            }
            tracing::warn!(server = %self.name, "{why}; the call is optional");
        }
        Ok(())
    }

    /// Makes one call. `listed` holds the tools as they were before the last call.
    async fn set_up_by(
        &self,
        link: &Arc<dyn Link>,
        call: &SetupCall,
        listed: &mut Option<Listing>,
        until: Instant,
    ) -> Result<(), Failure> {
        if !listed.as_ref().is_some_and(|listed| has(listed, &call.tool)) {
            // An earlier call may have added the tool.
            let now = match link.list().await {
                Ok(now) => now,
                Err(LinkError::Failed(error)) => {
                    return Err(LinkError::Failed(format!("its tools could not be listed: {error}")).into());
                }
                Err(lost) => return Err(lost.into()),
            };
            if !has(&now, &call.tool) {
                return Err(Failure::Call(unknown(&now, &call.tool)));
            }
            *listed = Some(now);
        }
        let request = LinkRequest::CallTool {
            tool: (*call.tool).into(),
            arguments: call.params.clone(),
            as_task: false,
        };
        let timeout = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let control = CallControl { timeout, ..CallControl::default() };
        let result = match link.request(request, Input::default(), &control).await {
            Ok(result) => result.into_tree().await,
            Err(RequestError::SignIn(needed)) => return Err(LinkError::SignIn(needed).into()),
            Err(RequestError::Lost | RequestError::NotThere(_)) => {
                return Err(left(call, link.lost().await).into());
            }
            Err(RequestError::Call(CallError::Rpc(error))) => {
                return Err(Failure::Call(format!("was refused: {}", clip(&error.message, SAID))));
            }
            Err(RequestError::Call(error)) => return Err(Failure::Call(format!("failed: {error}"))),
        };
        let is_result = result.get("content").is_some() || result.get("structuredContent").is_some();
        match result.get("isError") == Some(&Value::Bool(true)) {
            true => Err(Failure::Call(format!("failed: {}", clip(&text_of(&result), SAID)))),
            false if is_result => Ok(()),
            // A task, or a question to a user.
            false => Err(Failure::Call("returned no result, and nobody can be asked for input".into())),
        }
    }
}

/// Returns the loss of a link during a call.
fn left(call: &SetupCall, lost: LinkError) -> LinkError {
    match lost {
        LinkError::Failed(reason) => {
            LinkError::Failed(format!("it disconnected during its setup call `{}`: {reason}", call.tool))
        }
        other @ (LinkError::SignIn(_) | LinkError::Moved { .. }) => other,
    }
}

fn names(listing: &Listing) -> impl Iterator<Item = &str> {
    listing.tools.iter().filter_map(|tool| tool.get("name")?.as_str())
}

fn has(listing: &Listing, tool: &str) -> bool {
    names(listing).any(|name| name == tool)
}

fn unknown(listing: &Listing, tool: &str) -> String {
    let near = name::nearest(tool, names(listing), NEAREST);
    match near.is_empty() {
        true => "names a tool that the server does not have".into(),
        false => {
            format!("names a tool that the server does not have; the nearest are `{}`", near.join("`, `"))
        }
    }
}

fn text_of(result: &Value) -> String {
    let blocks = result.get("content").and_then(Value::as_array).into_iter().flatten();
    let texts: Vec<&str> = blocks.filter_map(|block| block.get("text")?.as_str()).collect();
    if texts.is_empty() { "it does not say why".into() } else { texts.join(" ") }
}
