//! A stream of events from a server, over streamable HTTP or the legacy SSE transport.

use std::sync::Arc;

use nonet_wire::{BodyStream, EventReader, Expectations, Inbox, Weight, judge, off_thread, scan};

use super::{
    incoming::{Incoming, SendSoon},
    server_requests::RelatedCall,
};

/// A stream of events, whose messages go where they belong. Answers to the server go `back`.
pub(super) struct EventStream<B> {
    events: EventReader<BodyStream>,
    inbox: Inbox,
    back: B,
    incoming: Arc<Incoming>,
}

/// What one event had.
pub(super) struct EventRead {
    pub has_message: bool,
    pub id: Option<String>,
    pub retry: Option<u64>,
}

impl<B: SendSoon> EventStream<B> {
    pub(super) fn new(events: EventReader<BodyStream>, incoming: Arc<Incoming>, back: B) -> Self {
        let inbox = Inbox::new(incoming.server.clone(), "an event");
        Self { events, inbox, back, incoming }
    }

    /// Reads the next event, `None` at the end of the stream. `about` is the call that the stream belongs to,
    /// if that is known.
    pub(super) async fn next(&mut self, about: Option<&RelatedCall>) -> Option<EventRead> {
        let Self { events, inbox, back, incoming } = self;
        let pending = &incoming.pending;
        let event = events.next(|beginning| judge(beginning, pending)).await?;
        let (id, retry) = (event.id.clone(), event.retry);
        if let Some(text) = inbox.take_event(event, pending) {
            let most = pending.limits().answer.values;
            let (scan, _) = off_thread(Weight::of(text.len()), move || scan(text, most)).await;
            inbox.take(scan, pending);
        }
        let has_message = incoming.take_all(inbox, about, back).await;
        Some(EventRead { has_message, id, retry })
    }
}
