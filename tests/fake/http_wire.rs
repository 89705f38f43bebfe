//! HTTP/1.1 by hand: requests in, answers out.

use std::{collections::BTreeMap, io};

use serde_json::{Value, json};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};

pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    /// Headers by lower-case name.
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: Vec<u8>,
}

pub(super) async fn read_request(reader: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Request>> {
    let Some(line) = read_line(reader).await? else { return Ok(None) };
    let mut words = line.split(' ').map(str::to_owned);
    let method = words.next().unwrap_or_default();
    let path = words.next().unwrap_or_default();
    let mut headers = BTreeMap::new();
    while let Some(line) = read_line(reader).await?.filter(|line| !line.is_empty()) {
        if let Some((name, value)) = line.split_once(':') {
            headers.insert(name.trim().to_lowercase(), value.trim().to_owned());
        }
    }
    let mut body = Vec::new();
    if headers.get("transfer-encoding").is_some_and(|coding| coding.contains("chunked")) {
        loop {
            let size = read_line(reader).await?.unwrap_or_default();
            let size = size.split(';').next().unwrap_or_default();
            let size = u64::from_str_radix(size, 16).map_err(io::Error::other)?;
            reader.take(size).read_to_end(&mut body).await?;
            read_line(reader).await?;
            if size == 0 {
                break;
            }
        }
    } else if let Some(length) = headers.get("content-length") {
        let length = length.parse().map_err(io::Error::other)?;
        reader.take(length).read_to_end(&mut body).await?;
    }
    Ok(Some(Request { method, path, headers, body }))
}

async fn read_line(reader: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<String>> {
    let mut line = String::new();
    let read = reader.read_line(&mut line).await?;
    Ok((read > 0).then(|| line.trim_end().to_owned()))
}

/// Waits until the client hangs up.
pub(super) async fn closed(reader: &mut (impl AsyncBufRead + Unpin)) -> io::Result<()> {
    loop {
        match reader.fill_buf().await?.len() {
            0 => return Err(io::ErrorKind::ConnectionAborted.into()),
            seen => reader.consume(seen),
        }
    }
}

pub(super) async fn write_status(
    writer: &mut (impl AsyncWrite + Unpin),
    status: u16,
    message: &str,
) -> io::Result<()> {
    let header = match status {
        401 => "WWW-Authenticate: Bearer realm=\"fake\"\r\n",
        429 | 503 => "Retry-After: 1\r\n",
        _ => "",
    };
    if message.is_empty() {
        let head = format!("HTTP/1.1 {status} Scripted\r\nContent-Length: 0\r\n{header}\r\n");
        writer.write_all(head.as_bytes()).await?;
        return writer.flush().await;
    }
    write_json(writer, status, header, &json!({ "error": message })).await
}

pub(super) async fn write_json(
    writer: &mut (impl AsyncWrite + Unpin),
    status: u16,
    header: &str,
    body: &Value,
) -> io::Result<()> {
    let body = body.to_string();
    let length = body.len();
    let kind = "Content-Type: application/json";
    let head = format!("HTTP/1.1 {status} Scripted\r\n{kind}\r\nContent-Length: {length}\r\n{header}\r\n");
    writer.write_all((head + &body).as_bytes()).await?;
    writer.flush().await
}

pub(super) async fn write_stream_head(
    writer: &mut (impl AsyncWrite + Unpin),
    kind: &str,
    header: &str,
) -> io::Result<()> {
    let head =
        format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n{header}\r\n");
    writer.write_all(head.as_bytes()).await?;
    writer.flush().await
}

/// An empty chunk ends the stream.
pub(super) async fn write_chunk(writer: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
    chunk.extend_from_slice(bytes);
    chunk.extend_from_slice(b"\r\n");
    writer.write_all(&chunk).await?;
    writer.flush().await
}
