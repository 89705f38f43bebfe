//! Announces changed lists and resources to subscribed clients.

use std::{sync::Arc, time::Duration};

use nonet_base::json::set_member;
use nonet_core::{FollowedResource, Gateway};
use nonet_peer::request::RequestContext;
use nonet_state::session::Caller;
use rmcp::{ErrorData, model::SubscriptionFilter};
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinSet};

use super::{
    NonetServer,
    list_changes::{AnnouncedLists, ChangedLists},
};

/// The maximum number of resource changes queued for a slow client.
const UPDATES_QUEUE: usize = 64;
/// The delay before resubscribing to a resource whose connection was replaced, and the maximum number of
/// attempts.
pub(super) const REFOLLOW: Duration = Duration::from_millis(500);
pub(super) const REFOLLOWS: usize = 60;

/// The notification that a resource has changed.
pub(super) const UPDATED: &str = "notifications/resources/updated";
/// The `_meta` key that names the request to which a notification belongs.
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// Sends the announcements of a stateless subscription until the subscription ends.
pub(super) async fn listen(
    handler: &NonetServer,
    accepted: SubscriptionFilter,
    context: &RequestContext,
) -> Result<(), ErrorData> {
    let of = json!({ SUBSCRIPTION: context.id });
    let tell = async |method: &str, mut params: Value| {
        set_member(&mut params, "_meta", of.clone());
        context.way.notify(method, params).await
    };
    tell("notifications/subscriptions/acknowledged", json!({ "notifications": accepted })).await.map_err(
        |error| ErrorData::internal_error(format!("failed to acknowledge subscription: {error}"), None),
    )?;
    let mut lists = AnnouncedLists::new(handler);
    let (updated, mut updates) = mpsc::channel(UPDATES_QUEUE);
    let mut following = JoinSet::new();
    let caller = handler.who(context);
    // What a person listens to ends with their token.
    let ends = async {
        match caller.person.as_ref().map(|person| person.expires_at).filter(|at| *at > 0) {
            Some(at) => tokio::time::sleep(super::http::left_until(at)).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(ends);
    for uri in accepted.resource_subscriptions.iter().flatten() {
        match handler.gateway.calls.follow_resource(&caller, uri).await {
            Ok(one) => {
                let (told, updated) = (uri.clone(), updated.clone());
                let tell = async move || updated.send(told.clone()).await.is_ok();
                following.spawn(follow(handler.gateway.clone(), caller.clone(), uri.clone(), one, tell));
            }
            Err(error) => tracing::info!(%error, "a subscription to a resource was refused"),
        }
    }
    loop {
        let changed = tokio::select! {
            changed = lists.changed() => changed,
            Some(uri) = updates.recv() => {
                if tell(UPDATED, json!({ "uri": uri })).await.is_err() {
                    return Ok(());
                }
                continue;
            }
            () = context.cancel.cancelled() => return Ok(()),
            () = &mut ends => return Ok(()),
            () = handler.gateway.servers.stopping().cancelled() => return Ok(()),
        };
        let Some(changed) = changed else { return Ok(()) };
        let changed = ChangedLists {
            tools: changed.tools && accepted.tools_list_changed == Some(true),
            prompts: changed.prompts && accepted.prompts_list_changed == Some(true),
            resources: changed.resources && accepted.resources_list_changed == Some(true),
        };
        for method in changed.methods() {
            if tell(method, json!({})).await.is_err() {
                return Ok(());
            }
        }
    }
}

/// Announces each change of a resource until the client is gone. Resubscribes if the connection is replaced.
pub(super) async fn follow(
    gateway: Arc<Gateway>,
    caller: Caller,
    uri: String,
    mut following: FollowedResource,
    mut tell: impl AsyncFnMut() -> bool,
) {
    loop {
        if following.updated().await.is_none() {
            let mut tries = 0;
            following = loop {
                tokio::time::sleep(REFOLLOW).await;
                tries += 1;
                match gateway.calls.follow_resource(&caller, &uri).await {
                    Ok(following) => break following,
                    Err(_) if tries < REFOLLOWS => {}
                    Err(error) => {
                        tracing::info!(%error, "a subscription to a resource ended");
                        return;
                    }
                }
            };
        }
        if !tell().await {
            return;
        }
    }
}
