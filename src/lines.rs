//! Lines of a byte stream, of bounded length: what both ends of the stdio transport read from.

use bytes::BytesMut;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt};

/// How much of both ends of a line that is too long is kept, in bytes: enough to find the id of its request.
const HEAD: usize = 512;
/// From this length on, in bytes, a line takes its memory with it.
const LARGE: usize = 1 << 20;
/// How much is read at a time, in bytes.
const CHUNK: usize = 64 << 10;

/// One line.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// Without its end.
    Whole(BytesMut),
    /// Longer than the limit; only its beginning. The rest is thrown away.
    TooLong(String),
    /// The end of such a line, where ids may stand as well.
    TooLongEnd(String),
}

/// Reads lines.
pub struct LineReader<R> {
    from: R,
    buffer: BytesMut,
    /// How much of `buffer` holds no line end.
    scanned: usize,
    limit: usize,
    /// Set while the rest of a line that is too long is thrown away.
    skipping: bool,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    /// Reads lines of at most `limit` bytes.
    pub fn new(from: R, limit: usize) -> Self {
        Self { from, buffer: BytesMut::with_capacity(CHUNK), scanned: 0, limit, skipping: false }
    }

    /// From now on lines may have this many bytes.
    pub fn allow(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// The next line that is not empty, `None` at the end of the stream or if it breaks. Nothing is lost if the future is
    /// dropped before it is done.
    pub async fn next(&mut self) -> Option<Line> {
        loop {
            match self.next_or_empty().await? {
                Line::Whole(line) if line.is_empty() => {}
                line => return Some(line),
            }
        }
    }

    /// The same, with lines that are empty or white space, which come as empty ones.
    pub async fn next_or_empty(&mut self) -> Option<Line> {
        loop {
            if let Some(at) = self.buffer[self.scanned..].iter().position(|byte| *byte == b'\n') {
                let mut line = self.buffer.split_to(self.scanned + at + 1);
                self.scanned = 0;
                // What is left of the buffer would hold the memory of a large line for good.
                if line.len() > LARGE {
                    let mut rest = BytesMut::with_capacity(CHUNK.max(self.buffer.len()));
                    rest.extend_from_slice(&self.buffer);
                    self.buffer = rest;
                }
                if std::mem::take(&mut self.skipping) {
                    let tail = &line[line.len().saturating_sub(HEAD)..];
                    return Some(Line::TooLongEnd(String::from_utf8_lossy(tail).into_owned()));
                }
                line.truncate(line.trim_ascii_end().len());
                return Some(Line::Whole(line));
            }
            self.scanned = self.buffer.len();
            if self.buffer.len() > self.limit {
                let head = String::from_utf8_lossy(&self.buffer[..HEAD.min(self.buffer.len())]).into_owned();
                self.buffer = BytesMut::with_capacity(CHUNK);
                self.scanned = 0;
                if !std::mem::replace(&mut self.skipping, true) {
                    return Some(Line::TooLong(head));
                }
                continue;
            }
            self.buffer.reserve(CHUNK);
            match self.from.read_buf(&mut self.buffer).await {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(%error, "the stream broke");
                    return None;
                }
            }
        }
    }
}

/// The id of a JSON-RPC message, or of the beginning of one, that need not be whole or right: a number, or a text without
/// escapes. Only the message's own: what is inside of its result may have ids too.
pub fn id_in(message: &str) -> Option<Value> {
    let bytes = message.as_bytes();
    let (mut depth, mut at) = (0_usize, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let end = string_end(bytes, at)?;
                if depth == 1 && &message[at..end] == "\"id\"" {
                    let value = message[end..].trim_start().strip_prefix(':')?.trim_start();
                    return id_at(value);
                }
                at = end;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// The id at the end of a message whose beginning is not known.
pub fn id_at_end(tail: &str) -> Option<Value> {
    let (_, value) = tail.rsplit_once("\"id\"")?;
    let value = value.trim_start().strip_prefix(':')?.trim_start();
    // The message's own is its last member, or followed by members without braces.
    (value.matches('}').count() == 1).then(|| id_at(value)).flatten()
}

/// Where the string ends that begins at `at`; none if it does not.
fn string_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    at += 1;
    loop {
        match bytes.get(at)? {
            b'\\' => at += 2,
            b'"' => return Some(at + 1),
            _ => at += 1,
        }
    }
}

fn id_at(value: &str) -> Option<Value> {
    if let Some(text) = value.strip_prefix('"') {
        let text = text.split_once('"')?.0;
        return (!text.contains('\\')).then(|| text.into());
    }
    let end = value.find(|c: char| !c.is_ascii_digit() && c != '-')?;
    value[..end].parse::<i64>().ok().map(Value::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(text: &[u8], limit: usize) -> Vec<Line> {
        let mut reader = LineReader::new(std::io::Cursor::new(text.to_vec()), limit);
        let mut lines = Vec::new();
        while let Some(line) = reader.next().await {
            lines.push(line);
        }
        lines
    }

    fn whole(text: &str) -> Line {
        Line::Whole(text.into())
    }

    #[tokio::test]
    async fn lines_come_without_their_ends_and_empty_ones_not_at_all() {
        assert_eq!(all(b"a\r\n\n  \nb \nc", 100).await, [whole("a"), whole("b")]);
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_told_once_and_skipped() {
        let mut text = b"{\"id\":7,".to_vec();
        text.extend(std::iter::repeat_n(b'x', 300_000));
        text.extend(b"\nafter\n");
        let lines = all(&text, 1_000).await;
        assert!(matches!(&lines[0], Line::TooLong(head) if head.starts_with("{\"id\":7,xx")), "{lines:?}");
        assert!(matches!(&lines[1], Line::TooLongEnd(tail) if tail.ends_with("xx\n")), "{lines:?}");
        assert_eq!(lines[2..], [whole("after")]);
    }

    #[test]
    fn ids_at_the_end_are_found() {
        let check = |tail: &str, id: Value| assert_eq!(id_at_end(tail).unwrap_or_default(), id, "{tail}");
        check("xxx\"}]},\"jsonrpc\":\"2.0\",\"id\":7}", 7.into());
        check("xxx\"}]},\"id\": 7, \"jsonrpc\":\"2.0\"}\n", 7.into());
        check("x\",\"id\":7}]}}", Value::Null);
        check("xxx}}}", Value::Null);
    }

    #[test]
    fn ids_are_found() {
        let check = |head: &str, id: Value| assert_eq!(id_in(head).unwrap_or_default(), id, "{head}");
        check("{\"jsonrpc\":\"2.0\",\"id\": 12,", 12.into());
        check("{\"id\":\"a-1\",\"x", "a-1".into());
        check("{\"id\":-3}", (-3).into());
        check("{\"id\":1", Value::Null);
        check("{\"params\":{}", Value::Null);
        // Not the id of something inside.
        check("{\"result\":{\"id\":5,\"x\":[{\"id\":6}]},\"jsonrpc\":\"2.0\",\"id\":7}", 7.into());
        check("{\"result\":{\"text\":\"{\\\"id\\\":5}\",\"id\":6,", Value::Null);
    }
}
