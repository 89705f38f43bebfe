//! The page of a gateway that serves its clients on a socket: requested by `nonet ui`, on a local port.
//!
//! The token is never a program's argument, because others on the machine can see arguments. A browser is
//! started with the name of a file that only its user can read and that leads to the link.

use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::{body::Body, extract::Request, middleware::Next, response::Response};
use http::StatusCode;
use http_body_util::BodyExt;
use nonet_api::status::ServeMode;
use nonet_base::files;
use nonet_core::Gateway;
use nonet_peer::headers::AllowedSites;
use nonet_store::shared::{PageFiles, PageLink};
use tokio::{
    net::TcpListener,
    sync::{Notify, OnceCell, watch},
};

use super::{
    http::{allowed_hosts, is_allowed_host, take_port, wrong_host},
    listen, page,
};

/// The port of the page, and how many following ports are tried if it is in use.
const PORT: u16 = 8930;
const MORE_PORTS: u16 = 10;
/// How long the file for a browser exists, and how long the gateway waits for the page at least.
const COMING: Duration = Duration::from_secs(60);
/// The stream that an open page reads.
const STREAM: &str = "/ui/api/calls";

/// The number of clients and open pages, which keep the gateway running.
#[derive(Clone, Default)]
pub(super) struct PresenceCount(Arc<watch::Sender<usize>>);

/// Counts one client or page until dropped.
pub(super) struct PresenceGuard(PresenceCount);

impl PresenceCount {
    pub(super) fn enter(&self) -> PresenceGuard {
        self.0.send_modify(|count| *count += 1);
        PresenceGuard(self.clone())
    }

    #[cfg(unix)]
    pub(super) fn count(&self) -> watch::Receiver<usize> {
        self.0.subscribe()
    }
}

impl Drop for PresenceGuard {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

/// The page of a gateway, served from the first request for it.
pub struct UserPage {
    gateway: Arc<Gateway>,
    files: PageFiles,
    presence: PresenceCount,
    /// Its address with the token.
    link: OnceCell<String>,
    /// Whether the gateway serves clients over HTTP.
    over_http: bool,
    /// Notified when a page is opened.
    opened: Arc<Notify>,
}

impl UserPage {
    /// Returns the page for a gateway that has none yet, with these files.
    pub fn new(gateway: Arc<Gateway>, files: PageFiles) -> Self {
        Self {
            gateway,
            files,
            presence: PresenceCount::default(),
            link: OnceCell::new(),
            over_http: false,
            opened: Arc::default(),
        }
    }

    /// Returns the page for a gateway that serves HTTP, which already has one unless others can reach its
    /// address.
    #[cfg(unix)]
    pub(super) fn beside_http(gateway: Arc<Gateway>, files: PageFiles, link: Option<String>) -> Self {
        Self { over_http: true, link: OnceCell::new_with(link), ..Self::new(gateway, files) }
    }

    /// Returns this page, counting open pages in `presence`.
    #[cfg(unix)]
    pub(super) fn with(self, presence: PresenceCount) -> Self {
        Self { presence, ..self }
    }

    /// Returns the link to the page, which is served from now on; or why there is none. The gateway waits a
    /// minute for a browser.
    pub async fn open(&self) -> Result<PageLink, String> {
        let config = self.gateway.servers.config();
        if !config.gateway.page {
            let file = config.file.display();
            return Err(format!("the page is switched off: remove `page = false` from [gateway] in {file}"));
        }
        let link = self.link.get_or_try_init(|| self.serve()).await;
        let link = link.map_err(|error| format!("the page cannot be served at 127.0.0.1: {error}"))?;
        let file = match files::replace_private(&self.files.link, redirect(link).as_bytes()) {
            Ok(()) => Some(self.files.link.clone()),
            Err(error) => {
                tracing::warn!(%error, "cannot write the file that a browser opens");
                None
            }
        };
        let (here, opened) = (self.presence.enter(), self.opened.clone());
        let (stop, file_there) = (self.gateway.servers.stopping().clone(), file.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = opened.notified() => {}
                () = tokio::time::sleep(COMING) => {}
                () = stop.cancelled() => {}
            }
            if let Some(file) = file_there {
                let _ = fs::remove_file(file);
            }
            drop(here);
        });
        Ok(PageLink { link: link.clone(), file, over_http: self.over_http })
    }

    /// Serves only the page, until the gateway stops. Returns its address with the token.
    async fn serve(&self) -> io::Result<String> {
        let listener = self.listen().await?;
        let address = listener.local_addr()?;
        let token = uuid::Uuid::new_v4().simple().to_string();
        let sites = Arc::new(AllowedSites::new(&allowed_hosts(address, &[]), &[]));
        let (presence, opened) = (self.presence.clone(), self.opened.clone());
        let router = page::of_user(&self.gateway, &token).layer(axum::middleware::from_fn(
            move |request: Request, next: Next| {
                let allowed = is_allowed_host(&request, &sites);
                let (presence, opened) = (presence.clone(), opened.clone());
                async move {
                    let is_stream = request.uri().path() == STREAM;
                    match allowed {
                        false => wrong_host(),
                        true => {
                            let response = next.run(request).await;
                            if is_stream && response.status() == StatusCode::OK {
                                opened.notify_waiters();
                                return while_open(response, presence.enter());
                            }
                            response
                        }
                    }
                }
            },
        ));
        // Unless it serves clients as well, and did so before.
        super::offer_page(&self.gateway, ServeMode::Page);
        self.gateway.observing.calls.switch_on();
        self.gateway.asking.shows_page_at(&format!("http://{address}"));
        let settings = self.gateway.clone();
        let config = move || settings.servers.config();
        let (port, ending) = (take_port(&self.gateway, address), self.gateway.servers.stopping().clone());
        tokio::spawn(async move {
            listen::serve(listener, router, config, |_| false, ending).await;
            drop(port);
        });
        tracing::info!(%address, "the page is served");
        Ok(page::link(address, &token))
    }

    /// Listens at the last port used, else at the first free one.
    async fn listen(&self) -> io::Result<TcpListener> {
        let last = fs::read_to_string(&self.files.port).ok().and_then(|port| port.trim().parse().ok());
        let mut failed = None;
        for port in last.into_iter().chain(PORT..PORT + MORE_PORTS).chain([0]) {
            match TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await {
                Ok(listener) => {
                    let port = listener.local_addr()?.port();
                    if last != Some(port)
                        && let Err(error) =
                            files::replace_private(&self.files.port, port.to_string().as_bytes())
                    {
                        tracing::debug!(%error, "the port of the page was not saved");
                    }
                    return Ok(listener);
                }
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| io::ErrorKind::AddrInUse.into()))
    }
}

/// Returns a document that redirects to the link. The link contains only letters, digits and characters that
/// need no escaping.
fn redirect(link: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"referrer\" content=\"no-referrer\">\
         <meta http-equiv=\"refresh\" content=\"0;url={link}\"><title>Nonet</title>\
         <p><a href=\"{link}\">Open Nonet's page</a></p></html>\n"
    )
}

/// Returns a response that counts as present until it ends.
fn while_open(response: Response, here: PresenceGuard) -> Response {
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _ = &here;
            frame
        }))
    })
}
