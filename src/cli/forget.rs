//! `nonet forget`: empties the store.

use std::{path::Path, time::Duration};

use anyhow::Context;

use super::{OK, found, show};
use crate::{
    clock::Clock,
    config::ClusterSettings,
    gateway, sandbox,
    store::{self, Forget, Forgotten, PinsDb, Retention, Store},
};

/// Deletes search outcomes, tools' figures, kept results, tasks, facts and other records: watches, schedules, goals, notices;
/// and the home folders of sandboxed servers that do not run. A
/// running gateway continues with its in-memory copies of outcomes, figures and results.
/// Trust in definitions is deleted only on request: without it, whatever servers list next would be trusted.
/// Data shared by replicas is deleted only on request.
pub(super) async fn run(trust: bool, cluster: bool, config: Option<&Path>) -> anyhow::Result<u8> {
    let shared = match cluster {
        true => Some(
            super::cluster_of(&found::path(config)?)?
                .context("there is no [cluster] in servers.toml, so nothing is shared")?,
        ),
        false => None,
    };
    let folder = store::folder().context("there is no home folder, so nothing is stored")?;
    match trust {
        true => forget_trust(&folder)?,
        false => forget_kept(&folder)?,
    }
    if let Some(shared) = shared {
        return forget_shared(&shared, trust).await;
    }
    // Without a usable file there is nothing to report.
    let file = found::silently(config);
    if file.and_then(|file| super::cluster_of(&file).ok()?).is_some() {
        let flags = if trust { "--trust --cluster" } else { "--cluster" };
        say!(
            "kept the data that the replicas of [cluster] share; `nonet forget {flags}` deletes it for all of them"
        );
    }
    Ok(OK)
}

fn forget_trust(folder: &Path) -> anyhow::Result<()> {
    let pins = if PinsDb::exists(folder) { PinsDb::open(folder)?.forget()? } else { 0 };
    say!(
        "deleted the trust in {} from {}; what servers list next is trusted at first sight",
        show::count(pins as u64, "definition"),
        folder.display()
    );
    Ok(())
}

fn forget_kept(folder: &Path) -> anyhow::Result<()> {
    let Forgotten { outcomes, tools, kept, facts, records } = store::forget(folder)?;
    say!(
        "deleted {}, the figures of {}, {} ({}), {} and {} from {}",
        show::count(outcomes as u64, "search outcome"),
        show::count(tools as u64, "tool"),
        show::count(kept.entries, "kept result"),
        show::count(kept.bytes, "byte"),
        show::count(facts, "fact"),
        show::count(records, "other record"),
        folder.display()
    );
    let homes =
        sandbox::forget_homes(folder).context("the home folders of sandboxes could not be deleted")?;
    if homes.deleted > 0 {
        say!("deleted {} of sandboxed servers", show::count(homes.deleted, "home folder"));
    }
    for home in &homes.kept {
        say!("kept {}: its server is running; stop it and run this again", home.display());
    }
    if PinsDb::exists(folder) {
        say!("kept the trust in servers' definitions; `nonet forget --trust` deletes it");
    }
    Ok(())
}

/// Deletes data shared by the replicas.
async fn forget_shared(cluster: &ClusterSettings, trust: bool) -> anyhow::Result<u8> {
    // Results are not touched otherwise.
    let retention = Retention { bytes: u64::MAX, age: Duration::MAX };
    let store = gateway::open_redis(cluster, retention, Clock::default());
    let what = if trust { Forget::Trust } else { Forget::Kept };
    let removed = store.forget(what).await?;
    let at = store.shared().map_or_else(String::new, |shared| shared.at);
    say!("deleted {} of `{}` from Redis at {at}", show::count(removed as u64, "key"), cluster.prefix);
    if !trust {
        say!("kept the replicas' trust in definitions; `nonet forget --trust --cluster` deletes it");
    }
    Ok(OK)
}
