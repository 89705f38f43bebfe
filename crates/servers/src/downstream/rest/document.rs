//! Reading the document of a REST service: a file, or an address.

use std::{
    io,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};
use nonet_base::files::{self, FileStamp};
use nonet_config::Globs;
use nonet_rest::{MAX_DOCUMENT, RestRequest, Service};
use nonet_wire::http::HttpFault;
use reqwest::Url;
use serde_json::Map;

use super::{
    super::{link::LinkError, refusal::Refusal},
    send::{SendError, Sender, is_same_host},
};

/// The accepted formats of documents.
const FORMATS: HeaderValue =
    HeaderValue::from_static("application/json, application/yaml, text/yaml, text/plain;q=0.9, */*;q=0.5");

/// Reads a document from a file.
pub(super) async fn read_file(path: &Path, wanted: Option<Globs>) -> Result<(Service, FileStamp), LinkError> {
    let path: PathBuf = path.into();
    let read = tokio::task::spawn_blocking(move || {
        let unread = |why: String| format!("its document {} cannot be read: {why}", path.display());
        // The stamp is taken before the text is read, so that a change in between is noticed.
        let stamp = FileStamp::of(&path);
        let text = files::read_at_most(&path, MAX_DOCUMENT).map_err(|error| match error.kind() {
            io::ErrorKind::FileTooLarge => {
                unread(format!("it is longer than the limit of {MAX_DOCUMENT} bytes"))
            }
            _ => unread(error.to_string()),
        })?;
        let stamp = stamp.ok_or_else(|| unread("it has just been removed".into()))?;
        let service = Service::read(&text, None, wanted.as_ref());
        let unusable = |why| format!("its document {} cannot be used: {why}", path.display());
        Ok((service.map_err(unusable)?, stamp))
    });
    let read = read.await.unwrap_or_else(|_| Err("its document could not be read: an internal error".into()));
    read.map_err(LinkError::Failed)
}

/// Reads a document from an address. Credentials are sent only to the service's host, as the configuration
/// names it.
pub(super) async fn fetch(
    sender: &Sender,
    url: &str,
    base_url: Option<&str>,
    wanted: Option<Globs>,
) -> Result<Service, SendError> {
    let headers = HeaderMap::from_iter([(header::ACCEPT, FORMATS)]);
    let request = RestRequest { method: Method::GET, url: url.into(), headers, body: None };
    let url = |text: &str| Url::parse(text).ok();
    let is_home =
        base_url.and_then(url).zip(url(&request.url)).is_some_and(|(home, to)| is_same_host(&home, &to));
    let reply = sender.send(&request, is_home, &Map::new()).await?;
    let from = reply.url.to_string();
    if !reply.status.is_success() {
        return Err(match reply.refused().await {
            HttpFault::AuthRequired(challenge) if is_home => {
                SendError::SignIn(sender.refused(&Refusal { challenge, scope: None }).await)
            }
            HttpFault::AuthRequired(_) => unread(
                "it is not public (HTTP 401), and credentials are sent only to the host of `base_url`: set \
                 `base_url` to that host, or save the document as a file",
            ),
            fault => unread(fault.to_string()),
        });
    }
    let text: Bytes = reply.body(MAX_DOCUMENT).await.map_err(|fault| unread(fault.to_string()))?;
    let read = tokio::task::spawn_blocking(move || Service::read(&text, Some(&from), wanted.as_ref()));
    match read.await {
        Ok(Ok(service)) => Ok(service),
        Ok(Err(why)) => Err(unread(why)),
        Err(_) => Err(unread("an internal error")),
    }
}

fn unread(why: impl Into<String>) -> SendError {
    SendError::Failed { why: why.into(), is_sent: true }
}
