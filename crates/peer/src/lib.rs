//! The server's side of MCP over [`nonet_wire`]: both eras, over lines and over streamable HTTP. What answers
//! the requests is a [`Handler`]; results go out as their servers wrote them. rmcp has the types of the
//! protocol.
//!
//! A transport ([`lines`], [`session`]) reads messages into requests ([`request`]), checks them against their
//! era ([`eras`]) and sends the answers ([`reply`]). [`client`] is the way back: notifications and questions.

pub mod client;
pub mod eras;
pub mod headers;
pub mod lines;
pub mod reply;
pub mod request;
pub mod session;
pub mod streams;

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc};

use futures::FutureExt;
use rmcp::ErrorData;

use self::{
    client::ClientPeer,
    reply::Reply,
    request::{RequestBody, RequestContext},
};

/// The answer to a request.
pub type Answered = Result<Reply, ErrorData>;

/// What answers the requests of one client.
pub trait Handler: Send + Sync + 'static {
    /// Answers a request that [`eras::check`] has admitted.
    fn handle(&self, request: RequestBody, context: &RequestContext)
    -> impl Future<Output = Answered> + Send;

    /// Takes note that the client has completed its handshake.
    fn initialized(&self, peer: &Arc<ClientPeer>);

    /// Takes note that the session has ended.
    fn ended(&self);
}

/// Answers a request. A panic costs only this request.
async fn answered<H: Handler>(handler: &H, request: RequestBody, context: &RequestContext) -> Answered {
    let answered = AssertUnwindSafe(handler.handle(request, context)).catch_unwind().await;
    let why = "the request failed inside of the server; its log has the place";
    answered.unwrap_or_else(|_| Err(ErrorData::internal_error(why, None)))
}
