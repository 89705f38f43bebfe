//! `gateway.status`: the servers and the gateway itself.

use futures::FutureExt;
use nonet_api::status::GatewayStatus;
use nonet_text::aliases::Aliases;
use serde_json::json;

use super::{Access, OwnTool};
use crate::call::answer_of;

pub(super) const TOOL: OwnTool = OwnTool {
    name: "status",
    title: "State of the gateway",
    description: "Shows every server behind the gateway with its state, protocol version, last error and number of tools, and the background tasks, kept results and version of the gateway.",
    properties: || json!({}),
    required: &[],
    access: Access::ReadOnly,
    aliases: Aliases::NONE,
    run: |gateway, caller, _| {
        async move {
            let kept = gateway.keeping.kept.counts().await;
            Ok(answer_of(&GatewayStatus { kept, ..gateway.status(caller) }))
        }
        .boxed()
    },
};
