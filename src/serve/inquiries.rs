//! The request of Nonet's own command line ([`METHOD`](nonet_core::inquiry::METHOD)).

use nonet_core::inquiry::Inquiry;
use rmcp::{
    ErrorData, RoleServer,
    model::{CustomRequest, CustomResult},
    service::RequestContext,
};
use serde_json::json;

use super::NonetServer;

impl NonetServer {
    /// Answers the command line with its session's profile: `{answer}` or `{fault}`.
    pub(super) async fn inquire(
        &self,
        request: CustomRequest,
        context: &RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let inquiry: Inquiry = serde_json::from_value(request.params.unwrap_or_default())
            .map_err(|error| ErrorData::invalid_params(error.to_string(), None))?;
        // Lists already received may not be published yet.
        self.gateway.published().await;
        let answer = match self.gateway.inquire(self.who(context), inquiry).await {
            Ok(answer) => json!({ "resultType": "complete", "answer": answer }),
            Err(fault) => json!({ "resultType": "complete", "fault": fault.to_value()["error"] }),
        };
        Ok(CustomResult::new(answer))
    }
}
