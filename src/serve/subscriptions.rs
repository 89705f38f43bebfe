//! Changes of lists and resources on their way to clients that follow them.

use std::{sync::Arc, time::Duration};

use rmcp::{
    ErrorData,
    service::{SubscriptionContext, SubscriptionSendError},
};
use tokio::{sync::mpsc, task::JoinSet};

use super::{NonetServer, list_changes::Lists};
use crate::{
    downstream::ResourceSubscription,
    gateway::{Gateway, session::Caller},
};

/// How many changes of resources wait for a client that is slow to hear of them.
const UPDATES_QUEUE: usize = 64;
/// How long before a resource is followed anew whose connection was replaced, and how often that is tried.
const REFOLLOW: Duration = Duration::from_millis(500);
const REFOLLOWS: usize = 60;

/// Tells a client of the stateless era what it has subscribed to, until it hears no more.
pub(super) async fn listen(handler: &NonetServer, context: SubscriptionContext) -> Result<(), ErrorData> {
    let mut lists = Lists::new(handler);
    let (updated, mut updates) = mpsc::channel(UPDATES_QUEUE);
    let mut following = JoinSet::new();
    let session = handler.session.clone();
    let caller = Caller { session, lasting: !handler.http, local: !handler.http, ..Caller::default() };
    for uri in context.accepted().resource_subscriptions.iter().flatten() {
        match handler.gateway.follow_resource(&caller, uri).await {
            Ok(one) => {
                let (told, updated) = (uri.clone(), updated.clone());
                let tell = async move || updated.send(told.clone()).await.is_ok();
                following.spawn(follow(handler.gateway.clone(), caller.clone(), uri.clone(), one, tell));
            }
            Err(error) => tracing::info!(%error, "a resource cannot be followed"),
        }
    }
    loop {
        let changed = tokio::select! {
            changed = lists.changed() => changed,
            Some(uri) = updates.recv() => {
                if context.sink().notify_resource_updated(uri).await.is_err() {
                    return Ok(());
                }
                continue;
            }
            () = context.cancelled() => return Ok(()),
            () = handler.gateway.stopping().cancelled() => return Ok(()),
        };
        let Some(changed) = changed else { return Ok(()) };
        let (accepted, sink) = (context.accepted(), context.sink());
        let told = async {
            if changed.tools && accepted.tools_list_changed == Some(true) {
                sink.notify_tool_list_changed().await?;
            }
            if changed.prompts && accepted.prompts_list_changed == Some(true) {
                sink.notify_prompt_list_changed().await?;
            }
            if changed.resources && accepted.resources_list_changed == Some(true) {
                sink.notify_resource_list_changed().await?;
            }
            Ok::<(), SubscriptionSendError>(())
        };
        if told.await.is_err() {
            return Ok(());
        }
    }
}

/// Tells of each change of a resource until nobody hears it. A server whose connection was replaced is followed anew.
pub(super) async fn follow(
    gateway: Arc<Gateway>,
    caller: Caller,
    uri: String,
    mut following: ResourceSubscription,
    mut tell: impl AsyncFnMut() -> bool,
) {
    loop {
        if following.updated().await.is_none() {
            let mut tries = 0;
            following = loop {
                tokio::time::sleep(REFOLLOW).await;
                tries += 1;
                match gateway.follow_resource(&caller, &uri).await {
                    Ok(following) => break following,
                    Err(_) if tries < REFOLLOWS => {}
                    Err(error) => {
                        tracing::info!(%error, "a resource cannot be followed any more");
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
