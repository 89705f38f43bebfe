//! The answer to a request, as it goes out.

use bytes::Bytes;
use nonet_text::results::CallResult;
use nonet_wire::Message;
use rmcp::{
    ErrorData,
    model::{CreateTaskResult, InputRequiredResult, RequestId},
};
use serde_json::Value;

/// The answer to a request: of a call, or any other as a result that is complete.
pub enum Reply {
    /// The result, verbatim.
    Verbatim(CallResult),
    /// The client has to answer first.
    Asks(Box<InputRequiredResult>),
    /// The call continues as a task of the extension.
    Task(CreateTaskResult),
}

impl Reply {
    /// Returns the request's result as JSON in pieces, between two given ones.
    pub fn written(self, before: &[u8], after: &[u8]) -> Vec<Bytes> {
        let other = |json: serde_json::Result<Value>| CallResult::from(json.expect("its types are JSON"));
        let result = match self {
            Self::Verbatim(result) => result,
            Self::Asks(asked) => other(serde_json::to_value(asked)),
            Self::Task(task) => other(serde_json::to_value(task)),
        };
        result.written(before, after)
    }
}

/// Returns the message that answers a request, in pieces; with a line break at its end if it is a line.
pub fn message(id: &RequestId, answered: Result<Reply, ErrorData>, is_line: bool) -> Vec<Bytes> {
    let end: &[u8] = if is_line { b"}\n" } else { b"}" };
    let id_text = serde_json::to_string(id).unwrap_or_default();
    match answered {
        Ok(reply) => {
            let before = ["{\"jsonrpc\":\"2.0\",\"id\":", &id_text, ",\"result\":"].concat();
            reply.written(before.as_bytes(), end)
        }
        Err(error) => {
            tracing::warn!(%id, ?error, "response error");
            let error = serde_json::to_vec(&error).unwrap_or_default();
            vec![Message::failure_of(&id_text, &error), Bytes::copy_from_slice(&end[1..])]
        }
    }
}
