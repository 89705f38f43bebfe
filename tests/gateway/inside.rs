//! A gateway in this process, with scripted servers at the other end of a pipe.

use std::{path::Path, sync::Arc, time::Duration};

use nonet_base::clock::Clock;
use nonet_config::{self as config, Config};
use nonet_core::{Gateway, GatewayOptions};
use nonet_meta::{self as meta, MetaAnswer};
use nonet_state::session::Caller;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{net::TcpListener, task::JoinHandle};

use crate::{
    fake,
    setup::{PATIENCE, Setup, golden, json_of},
};

pub struct Inside {
    pub folder: TempDir,
    pub gateway: Arc<Gateway>,
    pub caller: Caller,
}

impl Setup {
    /// Opens a gateway whose servers have all listed their tools.
    pub async fn open(self) -> Inside {
        let names: Vec<String> = self.servers.iter().map(|server| server.name.clone()).collect();
        let inside = self.open_at_once();
        for name in &names {
            inside.until_listed(name).await;
        }
        inside
    }

    /// Opens a gateway that has Nonet's program, which runs its scripts.
    pub async fn open_with_program(self) -> Inside {
        let names: Vec<String> = self.servers.iter().map(|server| server.name.clone()).collect();
        let executable = Some(env!("CARGO_BIN_EXE_nonet").into());
        let inside = self.open_with(GatewayOptions { executable, ..GatewayOptions::default() });
        for name in &names {
            inside.until_listed(name).await;
        }
        inside
    }

    /// Opens a gateway with a test's clock and its state in a folder.
    pub async fn open_with_clock(self, clock: &Clock, state: &Path) -> Inside {
        self.open_keeping_time(GatewayOptions {
            clock: clock.clone(),
            state: Some(state.into()),
            ..GatewayOptions::default()
        })
        .await
    }

    /// The same, with Nonet's program.
    pub async fn open_program_with_clock(self, clock: &Clock, state: &Path) -> Inside {
        self.open_keeping_time(GatewayOptions {
            executable: Some(env!("CARGO_BIN_EXE_nonet").into()),
            clock: clock.clone(),
            state: Some(state.into()),
            ..GatewayOptions::default()
        })
        .await
    }

    async fn open_keeping_time(self, options: GatewayOptions) -> Inside {
        let names: Vec<String> = self.servers.iter().map(|server| server.name.clone()).collect();
        let inside = self.open_with(options);
        for name in &names {
            inside.until_listed(name).await;
        }
        inside.gateway.errands.keep_time();
        inside
    }

    /// Opens a gateway with its servers still starting.
    pub fn open_at_once(self) -> Inside {
        self.open_with(GatewayOptions::default())
    }

    fn open_with(self, options: GatewayOptions) -> Inside {
        let (config, options, folder) = self.config_and_options(options);
        let gateway = Gateway::new(config, options);
        gateway.connect();
        let caller = gateway.sessions.caller(gateway.sessions.open(None), "test");
        let caller = Caller { lasting: true, ..caller };
        Inside { folder, gateway, caller }
    }

    /// Returns what a gateway in this process is made of; scripted servers are dialled.
    pub fn config_and_options(self, options: GatewayOptions) -> (Config, GatewayOptions, TempDir) {
        let text = self.text(|_, _| "command = 'true'".into());
        let file = self.path("servers.toml");
        let loaded = config::parse(&text, &file, config::ValueSources::NONE)
            .unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert!(loaded.faults.is_empty(), "{:?}", loaded.faults);
        let mut options = GatewayOptions { without_embedder: !self.embeds(), ..options };
        for server in self.servers {
            let Some(script) = server.script else { continue };
            let dial = move || {
                let stream = fake::duplex(script.clone().into());
                let (reader, writer) = tokio::io::split(stream);
                (Box::new(reader) as Box<_>, Box::new(writer) as Box<_>)
            };
            options.dials.insert(server.name, Box::new(dial));
        }
        nonet_search::bring(nonet_search::BuiltInModels {
            tools: &nonet_model::TOOLS,
            languages: &nonet_model::LANGUAGES,
        });
        (loaded.config, options, self.folder)
    }
}

impl Inside {
    /// Waits until a server's tools or prompts are published.
    pub async fn until_listed(&self, server: &str) {
        eventually(&format!("`{server}` is listed"), async || {
            let ready = self.gateway.servers.connections()[server].state().shown().as_str() == "ready";
            (ready && self.gateway.publisher.snapshot().catalog.servers().contains_key(server)).then_some(())
        })
        .await;
    }

    /// Returns a caller with its own session under a profile.
    pub fn under(&self, profile: &str) -> Caller {
        self.gateway.sessions.caller(self.gateway.sessions.open(Some(profile.into())), "test")
    }

    /// Calls as another caller. Returns the result.
    pub async fn call_as(&self, caller: &Caller, tool: &str, arguments: Value) -> Value {
        let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
        match meta::call(&self.gateway, caller, tool, arguments).await {
            MetaAnswer::Result(result) => result.into_tree().await,
            MetaAnswer::Task(job) => panic!("it goes on as a task: {job:?}"),
            MetaAnswer::Refused(error) => panic!("the server refuses it: {error:?}"),
        }
    }

    /// Calls a tool. Returns its result.
    pub async fn call(&self, tool: &str, arguments: Value) -> Value {
        self.call_as(&self.caller, tool, arguments).await
    }

    /// Calls a tool. Returns the JSON in the first text block.
    pub async fn answer(&self, tool: &str, arguments: Value) -> Value {
        json_of(&self.call(tool, arguments).await)
    }

    /// Calls a tool. Returns its JSON with run-dependent values replaced.
    pub async fn golden(&self, tool: &str, arguments: Value) -> Value {
        golden(self.answer(tool, arguments).await)
    }

    /// Runs a server's tool. Returns its result.
    pub async fn execute(&self, name: &str, params: Value) -> Value {
        self.call("execute_tool", json!({ "name": name, "params": params })).await
    }

    /// Makes a failing call. Returns the fault.
    pub async fn fault(&self, tool: &str, arguments: Value) -> Value {
        let result = self.call(tool, arguments).await;
        assert_eq!(result["isError"], true, "{result}");
        json_of(&result)["error"].take()
    }

    /// Waits until a server is in this state.
    pub async fn until(&self, server: &str, state: &str) {
        eventually(&format!("`{server}` is {state}"), async || {
            (self.gateway.servers.connections()[server].state().shown().as_str() == state).then_some(())
        })
        .await;
    }
}

/// Retries until there is a value.
pub async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let tries = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, tries).await.unwrap_or_else(|_| panic!("this did not happen: {what}"))
}

/// Serves a script over HTTP in this process; returns its address, and the task to await.
pub async fn serve_script(address: &str, script: Value) -> (String, JoinHandle<i32>) {
    let listener = TcpListener::bind(address).await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    (address.to_string(), tokio::spawn(fake::serve_http(script.into(), listener)))
}

/// Returns a result with fields that a client may not know.
pub fn strange() -> Value {
    json!({
        "extra": [1, { "b": null }],
        "content": [{ "type": "hologram", "depth": 3 }, { "type": "text", "text": "früh\n\u{1f600}" }],
        "structuredContent": { "big": 12345678901234567890u64 },
        "isError": false,
        "_meta": { "vendor/key": 1 },
    })
}
