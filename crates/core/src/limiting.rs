//! Rates of calls, and resting tools and servers: what callers learn about both.

use std::sync::Arc;

use nonet_api::notice::Notice;
use nonet_base::clock::millis;
use nonet_parts::rates::{RateExceeded, RatedCall};
use nonet_servers::{
    catalog::Tool,
    downstream::{BreakerNews, Connection},
};
use nonet_text::fault::{Fault, FaultCode};

use crate::{calls::Calls, gate::Gate};
use nonet_state::session::Caller;

impl Calls {
    /// Counts a call of a server's tool against every rate that applies.
    pub(super) async fn take_rate(&self, caller: &Caller, tool: &Tool) -> Result<(), Fault> {
        if !tool.is_of_server() {
            return Ok(());
        }
        let call = RatedCall {
            server: &tool.server,
            tool: &tool.own,
            profile: caller.session.profile.as_deref(),
            token: caller.token.as_ref().map(|token| token.token),
            person: caller.person.as_ref().map(|person| &*person.key),
        };
        let rates = self.rates.load_full();
        rates.take(&call, &*self.keeping.store).await.map_err(|exceeded| used_up(tool, &exceeded))
    }

    /// Notifies the sessions that see all servers when a tool or server rests, and when it recovers.
    pub(super) fn tell_of_breaker(&self, caller: &Caller, gate: &Gate, connection: &Arc<Connection>) {
        if !connection.has_breaker_news() {
            return;
        }
        let is_shared =
            gate.connection(&connection.name).is_some_and(|shared| Arc::ptr_eq(shared, connection));
        let is_private = connection.settings().session.is_some() || !is_shared;
        for news in connection.breaker_news() {
            let server = connection.name.to_string();
            let notice = match news {
                BreakerNews::Rests(tool, resting) => {
                    let wait = millis(resting.wait);
                    tracing::warn!(
                        server = %connection.name,
                        tool = tool.as_deref(),
                        failures = resting.failures,
                        wait_ms = wait,
                        error = resting.error,
                        "it keeps failing, so its calls are paused"
                    );
                    let message = format!(
                        "{} calls in a row got no answer, so its calls are paused. One call may try again after `retry_after_ms`.",
                        resting.failures
                    );
                    let (last_error, retry_after_ms) = (resting.error, wait);
                    let tool = tool.map(|tool| tool.to_string());
                    Notice::CallsPaused { server, message, last_error, retry_after_ms, tool }
                }
                BreakerNews::Answers(tool) => {
                    tracing::info!(server = %connection.name, tool = tool.as_deref(), "it answers again, so its calls are resumed");
                    Notice::CallsResumed { server, tool: tool.map(|tool| tool.to_string()) }
                }
            };
            match is_private {
                true => caller.session.notify(notice),
                false => self.sessions.notify_unrestricted(&notice.into()),
            }
        }
    }
}

/// Builds the fault for a call beyond a rate.
fn used_up(tool: &Tool, exceeded: &RateExceeded) -> Fault {
    let RateExceeded { rule, rate, wait } = exceeded;
    let message = format!(
        "`{}` was not called: the rule `{rule} = \"{rate}\"` of the configuration allows no more calls for now. Wait for `retry_after_ms`, then call again.",
        tool.full
    );
    // Rounds up, because before that time the call would be refused again.
    let wait = wait.saturating_add(std::time::Duration::from_millis(1));
    Fault::new(FaultCode::RateLimited, message).retry_after(wait)
}
