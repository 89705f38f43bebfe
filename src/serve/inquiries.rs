//! The request of Nonet's own command line ([`METHOD`](nonet_core::inquiry::METHOD)).

use nonet_core::inquiry::Inquiry;
use nonet_peer::request::RequestContext;
use rmcp::ErrorData;
use serde_json::{Value, json};

use super::NonetServer;

impl NonetServer {
    /// Answers the command line with its session's profile: `{answer}` or `{fault}`.
    pub(super) async fn inquire(
        &self,
        inquiry: Inquiry,
        context: &RequestContext,
    ) -> Result<Value, ErrorData> {
        // Lists already received may not be published yet.
        self.gateway.publisher.published().await;
        Ok(match self.gateway.inquire(self.who(context), inquiry).await {
            Ok(answer) => json!({ "resultType": "complete", "answer": answer }),
            Err(fault) => json!({ "resultType": "complete", "fault": fault.to_value()["error"] }),
        })
    }
}
