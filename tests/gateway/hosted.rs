//! A gateway in this process that a client talks to over lines or HTTP, as it would to the program.

use std::{
    io::{self, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nonet::serve::{self, HttpOptions, ServeAddress};
use nonet_api::status::ServeMode;
use nonet_core::{Gateway, GatewayOptions};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::{
    client::{Client, Host},
    setup::{PATIENCE, Setup},
    web::{Site, give_token, note_token},
};

/// How long a gateway may take to stop.
const STOPPING: Duration = Duration::from_secs(6);

struct Hosted {
    stop: CancellationToken,
    serving: Option<JoinHandle<()>>,
}

/// The client's end. Dropping it is what closing stdin is to a program.
struct Writer(UnixStream);

impl Setup {
    /// Serves a gateway in this process and shakes hands.
    pub fn start(self) -> Client {
        self.start_with(json!({}))
    }

    /// Serves a gateway in this process and shakes hands as a client with these capabilities.
    pub fn start_with(self, capabilities: Value) -> Client {
        let mut client = self.start_silently();
        client.shake_hands(capabilities);
        client
    }

    /// Serves a gateway in this process, without sending anything yet.
    pub fn start_silently(self) -> Client {
        let (folder, mut hosted, writer, reader) = Hosted::serve(self);
        Client::new(folder, Host::Here(Box::new(move || hosted.end())), writer, reader)
    }

    /// Serves a gateway in this process over HTTP, on a free port.
    pub fn serve(self) -> Site {
        give_token(self.folder.path());
        let written = self.text(|_, _| String::new());
        let (ready, address) = std::sync::mpsc::sync_channel(1);
        let (folder, mut hosted) = Hosted::run(self, move |gateway, stop| async move {
            let options = HttpOptions { address: ([127, 0, 0, 1], 0).into(), profile: None };
            let ready = |at: ServeAddress| ready.send((at.address, at.page)).expect("the test waits");
            serve::serve_http(gateway, options, ready, stop.cancelled_owned()).await.expect("it serves");
        });
        let (address, page) = address.recv_timeout(PATIENCE).expect("it serves");
        let address = address.to_string();
        note_token(&written, &address);
        Site { folder, address, host: Host::Here(Box::new(move || hosted.end())), page }
    }
}

impl Hosted {
    /// Serves one client in the background. Returns the folder and the client's two ends.
    fn serve(setup: Setup) -> (Arc<TempDir>, Self, Writer, UnixStream) {
        let (client, server) = UnixStream::pair().expect("a pair of sockets");
        server.set_nonblocking(true).expect("a socket");
        let (folder, hosted) = Self::run(setup, |gateway, stop| async move {
            let _ = gateway.serves.set(ServeMode::Stdio);
            let server = tokio::net::UnixStream::from_std(server).expect("a socket");
            let (reader, writer) = server.into_split();
            let served = serve::serve_lines(gateway, None, reader, writer, stop.cancelled_owned()).await;
            served.expect("the client is served");
        });
        let reader = client.try_clone().expect("a socket");
        (folder, hosted, Writer(client), reader)
    }

    /// Runs a gateway in the background, in a runtime of its own.
    fn run<F: Future<Output = ()>>(
        setup: Setup,
        serve: impl FnOnce(Arc<Gateway>, CancellationToken) -> F + Send + 'static,
    ) -> (Arc<TempDir>, Self) {
        let stop = CancellationToken::new();
        let options = GatewayOptions {
            executable: Some(env!("CARGO_BIN_EXE_nonet").into()),
            cache: Some(setup.path("cache")),
            state: Some(setup.path(".local/state/nonet")),
            ..GatewayOptions::default()
        };
        let (config, options, folder) = setup.config_and_options(options);
        let stopped = stop.clone();
        let serving = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async move { serve(Gateway::new(config, options), stopped).await });
            runtime.shutdown_background();
        });
        (Arc::new(folder), Self { stop, serving: Some(serving) })
    }

    /// Waits until the gateway, whose client has left, has stopped.
    fn end(&mut self) {
        self.stop.cancel();
        let Some(serving) = self.serving.take() else { return };
        let began = Instant::now();
        while !serving.is_finished() && began.elapsed() < STOPPING {
            std::thread::sleep(Duration::from_millis(5));
        }
        if serving.is_finished() {
            let served = serving.join();
            assert!(served.is_ok() || std::thread::panicking(), "the gateway has panicked");
        }
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Write);
    }
}
