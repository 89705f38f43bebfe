//! `nonet stop` and `nonet restart`: ends this machine's shared gateway of a servers.toml, and starts it
//! again.

use std::path::Path;

use clap::Args;

/// How to end it.
#[derive(Debug, Args)]
pub(super) struct StopArgs {
    /// End it although tasks are running
    #[arg(long, short)]
    pub yes: bool,
}

#[cfg(not(unix))]
pub(super) async fn run(_args: &StopArgs, _config: Option<&Path>, _starts_again: bool) -> anyhow::Result<u8> {
    anyhow::bail!("a shared gateway is not supported on this system yet")
}

/// Ends the shared gateway. Exit code 1: it was not ended.
#[cfg(unix)]
pub(super) async fn run(args: &StopArgs, config: Option<&Path>, starts_again: bool) -> anyhow::Result<u8> {
    unix::run(args, config, starts_again).await
}

#[cfg(unix)]
mod unix {
    use std::{path::Path, time::Duration};

    use anyhow::Context;
    use nix::{
        sys::signal::{Signal, kill},
        unistd::Pid,
    };
    use nonet_api::status::{ProcessStatus, ProcessWork, ServeMode};
    use tokio::time::{Instant, sleep};

    use super::{
        super::{
            FAILED, OK,
            ask::{self, AskFailure},
            elsewhere, found,
            show::{self, count},
        },
        StopArgs,
    };
    use nonet_core::inquiry::Inquiry;
    use nonet_store::shared::{Hello, SharedPlace};

    /// How long a gateway may take to end, and how often to look.
    const LIMIT: Duration = Duration::from_secs(30);
    const LOOK: Duration = Duration::from_millis(20);

    pub(super) async fn run(
        args: &StopArgs,
        config: Option<&Path>,
        starts_again: bool,
    ) -> anyhow::Result<u8> {
        let found = found::find(config)?;
        let file = found.path.display();
        let Some(running) = ask::quietly_running(&found.path, None).await else {
            say!("No shared gateway is running for {file}.");
            return Ok(OK);
        };
        let status = match ask::inquire(running, &Inquiry::Status).await {
            Ok(Ok(status)) => show::read::<ProcessStatus>(&status)?,
            Ok(Err(fault)) => anyhow::bail!("{}", fault.message),
            Err(AskFailure::Stopped(code)) => return Ok(code),
            Err(AskFailure::Unanswered(error)) => {
                anyhow::bail!("the gateway of {file} did not say which process it is: {error}")
            }
            Err(AskFailure::Denied) => return Ok(FAILED),
        };
        let ProcessStatus { gateway, process } = status;
        let process = process.context("the gateway did not say which process it is")?;
        let pid = i32::try_from(process.pid).ok().filter(|pid| *pid > 1);
        let pid = pid.context("the gateway did not say which process it is")?;
        if serves_http(&process).await {
            show::complain(format_args!(
                "the gateway of {file} serves HTTP: end its process {pid} where it was started"
            ));
            return Ok(FAILED);
        }
        let tasks = gateway.tasks_running as u64;
        if tasks > 0 && !args.yes {
            show::complain(format_args!(
                "{} would be cancelled; `nonet status` shows what runs. Add `--yes` to end the gateway nevertheless",
                count(tasks, "running task")
            ));
            return Ok(FAILED);
        }
        end(pid).await?;
        say!("The gateway of {file} has ended (Nonet {}, process {pid}).", gateway.version);
        let clients = process.clients;
        if !starts_again {
            if clients > 0 {
                say!(
                    "{} connected to it: each starts it again as soon as it reconnects. To keep it stopped, quit them.",
                    match clients {
                        1 => "1 client was".into(),
                        many => format!("{many} clients were"),
                    }
                );
            }
            return Ok(OK);
        }
        let place = SharedPlace::of(&found.path)?.by_trust(found.by_trust);
        // Clients that have lost it may be faster.
        place.join(&Hello::new(None)).await?;
        tell_started(&found.path).await;
        Ok(OK)
    }

    /// Whether the gateway serves HTTP, and was thus started by somebody. Versions before `serves` say it to
    /// the page only.
    async fn serves_http(process: &ProcessWork) -> bool {
        if let Some(serves) = process.serves {
            return serves == ServeMode::Http;
        }
        let gateways = elsewhere::gateways().await;
        gateways.iter().any(|one| one.pid == process.pid && one.serves == Some(ServeMode::Http))
    }

    /// Ends a process, and waits until it has ended.
    async fn end(pid: i32) -> anyhow::Result<()> {
        let process = Pid::from_raw(pid);
        kill(process, Signal::SIGTERM).with_context(|| format!("process {pid} cannot be ended"))?;
        let began = Instant::now();
        while kill(process, None).is_ok() {
            anyhow::ensure!(
                began.elapsed() < LIMIT,
                "process {pid} has not ended within {} s; its log is what `nonet logs` shows",
                LIMIT.as_secs()
            );
            sleep(LOOK).await;
        }
        Ok(())
    }

    async fn tell_started(file: &Path) {
        let Some(running) = ask::quietly_running(file, None).await else {
            return show::complain("the gateway was started, but does not answer yet");
        };
        let status = match ask::inquire(running, &Inquiry::Status).await {
            Ok(Ok(status)) => show::read::<ProcessStatus>(&status).unwrap_or_default(),
            _ => ProcessStatus::default(),
        };
        let process = status.process.map_or(0, |process| process.pid);
        say!("It runs again: Nonet {}, process {process}.", status.gateway.version);
    }
}
