//! `nonet forget`: empties the store, or parts of it.

use std::{io, path::Path, time::Duration};

use anyhow::Context;
use clap::{Args, ValueEnum};
use nonet_base::clock::Clock;
use nonet_config::ClusterSettings;
use nonet_core as gateway;
use nonet_sandbox as sandbox;
use nonet_store::{self as store, ForgetCount, ForgetScope, ForgetTarget, Retention, Store};

use super::{FAILED, OK, found, setup::agree, show};

/// What to delete, and how.
#[derive(Debug, Args)]
pub(super) struct ForgetArgs {
    /// What to delete (default: all of these)
    #[arg(value_enum, value_name = "WHAT", conflicts_with_all = ["trust", "cluster"])]
    what: Vec<KeptPart>,
    /// Delete which definitions of servers are trusted, and nothing else: what servers list next is trusted
    /// at first sight
    #[arg(long)]
    trust: bool,
    /// Delete the same of all replicas from the Redis of `[cluster]` too
    #[arg(long)]
    cluster: bool,
    /// Show what would be deleted
    #[arg(long)]
    dry_run: bool,
    /// Delete without asking
    #[arg(long, short, conflicts_with = "dry_run")]
    yes: bool,
}

/// A part of what is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KeptPart {
    /// Outcomes of searches, and figures of tools
    Learned,
    /// Kept results, and tasks
    Results,
    /// Facts, goals and to-do lists
    Memory,
    /// Watches, schedules and workflows that wait
    Plans,
    /// Notices and approvals
    Messages,
    /// Home folders of sandboxed servers that do not run
    Homes,
}

impl KeptPart {
    fn in_store(self) -> Option<ForgetTarget> {
        Some(match self {
            Self::Learned => ForgetTarget::Learned,
            Self::Results => ForgetTarget::Results,
            Self::Memory => ForgetTarget::Memory,
            Self::Plans => ForgetTarget::Plans,
            Self::Messages => ForgetTarget::Messages,
            Self::Homes => return None,
        })
    }

    /// Describes how much of it there is.
    fn counted(self, folder: &Path) -> anyhow::Result<String> {
        let homes = || -> anyhow::Result<String> {
            let homes =
                sandbox::count_homes(folder).context("the home folders of sandboxes cannot be read")?;
            Ok(format!("{} of sandboxed servers", show::count(homes, "home folder")))
        };
        let Some(kept) = self.in_store() else { return homes() };
        Ok(match (store::forgettable(folder, kept)?, self) {
            (ForgetCount::Learned { outcomes, tools }, _) => format!(
                "{}, the figures of {}",
                show::count(outcomes as u64, "search outcome"),
                show::count(tools as u64, "tool")
            ),
            (ForgetCount::Results(kept), _) => {
                format!("{} kept results and tasks ({})", kept.entries, show::count(kept.bytes, "byte"))
            }
            (ForgetCount::Records(records), Self::Memory) => {
                format!("{records} facts, goals and to-dos")
            }
            (ForgetCount::Records(records), Self::Plans) => {
                format!("{records} watches, schedules and waiting workflows")
            }
            (ForgetCount::Records(records), _) => format!("{records} notices and approvals"),
        })
    }

    fn delete(self, folder: &Path) -> anyhow::Result<()> {
        if let Some(kept) = self.in_store() {
            return Ok(store::forget(folder, kept)?);
        }
        let homes =
            sandbox::forget_homes(folder).context("the home folders of sandboxes could not be deleted")?;
        if homes.deleted > 0 {
            say!("deleted {} of sandboxed servers", show::count(homes.deleted, "home folder"));
        }
        for home in &homes.kept {
            say!("kept {}: its server is running; stop it and run this again", home.display());
        }
        Ok(())
    }
}

/// Shows what is kept on this machine, asks, and deletes it. A running gateway continues with its in-memory
/// copies of outcomes, figures and results. Trust in definitions is deleted only on request: without it,
/// whatever servers list next would be trusted. Data shared by replicas is deleted only on request.
pub(super) async fn run(args: &ForgetArgs, config: Option<&Path>) -> anyhow::Result<u8> {
    let shared = match args.cluster {
        true => Some(
            super::cluster_of(&found::path(config)?)?
                .context("there is no [cluster] in servers.toml, so nothing is shared")?,
        ),
        false => None,
    };
    let folder = store::folder().context("there is no home folder, so nothing is stored")?;
    let what = match args.what.as_slice() {
        [] => KeptPart::value_variants(),
        what => what,
    };
    say!("In {}:", folder.display());
    match args.trust {
        true => say!(
            "  trust     in {}",
            show::count(store::trusted(&folder)?.unwrap_or_default() as u64, "definition")
        ),
        false => {
            for part in what {
                let name = part.to_possible_value().map(|value| value.get_name().to_string());
                say!("  {:9} {}", name.unwrap_or_default(), part.counted(&folder)?);
            }
        }
    }
    if let Some(cluster) = &shared {
        say!("In Redis, for all replicas: the same of `{}`", cluster.prefix);
    }
    if args.dry_run {
        say!("Nothing was deleted (--dry-run).");
        return Ok(OK);
    }
    if !args.yes && !is_agreed()? {
        say!("Nothing was deleted.");
        return Ok(FAILED);
    }
    match args.trust {
        true => forget_trust(&folder)?,
        false => forget_kept(&folder, what)?,
    }
    if let Some(shared) = shared {
        return forget_shared(&shared, args.trust).await;
    }
    // Without a usable file there is nothing to report.
    let file = found::silently(config);
    if file.and_then(|file| super::cluster_of(&file).ok()?).is_some() {
        let flags = if args.trust { "--trust --cluster" } else { "--cluster" };
        say!(
            "kept the data that the replicas of [cluster] share; `nonet forget {flags}` deletes it for all of them"
        );
    }
    Ok(OK)
}

fn is_agreed() -> anyhow::Result<bool> {
    anyhow::ensure!(
        found::is_at_terminal(),
        "`nonet forget` asks before it deletes anything, but there is no terminal for your answer: add `--yes` to delete, \
         or `--dry-run` to see what there is"
    );
    agree("Delete this for good?", false, &mut io::stdin().lock(), &mut io::stderr())
}

fn forget_trust(folder: &Path) -> anyhow::Result<()> {
    say!(
        "deleted the trust in {}; what servers list next is trusted at first sight",
        show::count(store::forget_trust(folder)? as u64, "definition")
    );
    Ok(())
}

fn forget_kept(folder: &Path, what: &[KeptPart]) -> anyhow::Result<()> {
    for part in what {
        part.delete(folder)?;
    }
    say!("Deleted.");
    if store::trusted(folder)?.is_some() {
        say!("kept the trust in servers' definitions; `nonet forget --trust` deletes it");
    }
    Ok(())
}

/// Deletes data shared by the replicas.
async fn forget_shared(cluster: &ClusterSettings, trust: bool) -> anyhow::Result<u8> {
    // Results are not touched otherwise.
    let retention = Retention { bytes: u64::MAX, age: Duration::MAX };
    let store = gateway::open_redis(cluster, retention, Clock::default());
    let what = if trust { ForgetScope::Trust } else { ForgetScope::Kept };
    let removed = store.forget_shared(what).await?;
    let at = store.shared().map_or_else(String::new, |shared| shared.at);
    say!("deleted {} of `{}` from Redis at {at}", show::count(removed as u64, "key"), cluster.prefix);
    if !trust {
        say!("kept the replicas' trust in definitions; `nonet forget --trust --cluster` deletes it");
    }
    Ok(OK)
}
