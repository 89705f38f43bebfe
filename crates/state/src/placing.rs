//! Programs that one replica of a cluster runs for all (`placement`): leases in Redis decide which replica
//! that is.
//!
//! Every replica checks the leases every two seconds. A free lease first goes to the replica that a hash of
//! both names prefers, which spreads the programs; if that replica does not take the lease, any other may. A
//! lease ends with its replica: when the replica has been silent for ten seconds, or for four if nothing
//! listens at its address either. While Redis is away, every program stays where it is.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use http::HeaderMap;
use nonet_config::Placement;
use nonet_parts::cluster::{Cluster, MARK};
use nonet_servers::downstream::{Connection, ProgramHolder, ProgramPlace, ProgramPlacement};
use nonet_store::{LeaseClaim, Replica};
use sha2::{Digest, Sha256};
use tokio::{select, time::sleep};

use crate::{servers::Servers, world::World};

/// The path of a server's program on the replica that runs it, without the server's name.
pub const RELAYS: &str = "/cluster/servers";
/// How often a replica checks the leases, and how often while a program has no place.
const LOOK: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// The minimum time between two checks.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a free lease is reserved for the replica that the hash prefers.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a lease that Redis has lost is reserved for its holder, which may ask Redis again only after
/// three seconds and looks at the leases every two.
const LOST_PATIENCE: Duration = Duration::from_secs(8);

/// The state of the placed programs.
struct PlacementState {
    cluster: Arc<Cluster>,
    programs: BTreeMap<Arc<str>, Program>,
    /// A replica that does not respond.
    gone: Option<u32>,
}

#[derive(Default)]
struct Program {
    /// The last holder of the lease.
    holder: Option<u32>,
    /// Since when the lease has been free.
    free_since: Option<Instant>,
}

impl Servers {
    /// Maintains the places of programs until the gateway stops.
    pub fn keep_places(self: &Arc<Self>, cluster: Arc<Cluster>) {
        let servers = self.clone();
        self.life.tasks.spawn(async move {
            let mut placing = PlacementState { cluster, programs: BTreeMap::new(), gone: None };
            let (mut reloads, stop) = (servers.reloads(), servers.stopping().clone());
            loop {
                placing.look(&servers.world()).await;
                let wait = if placing.is_settled() { LOOK } else { LOOK_AGAIN };
                select! {
                    () = sleep(wait) => {}
                    () = servers.around.placements.has_trouble() => sleep(PAUSE).await,
                    _ = reloads.changed() => {}
                    () = stop.cancelled() => return,
                }
            }
        });
    }

    /// Hands programs over to other replicas that may run them. Returns once the programs have stopped here.
    pub async fn hand_programs_over(&self, cluster: &Cluster) {
        let own = cluster.replicas().number();
        loop {
            let known = cluster.replicas().known();
            let stays = |connection: &Arc<Connection>| {
                let is_here = connection
                    .placed()
                    .is_some_and(|placed| matches!(placed.get(), ProgramPlace::Here | ProgramPlace::Leaving));
                let placement = &connection.settings().placement;
                is_here && known.iter().any(|other| other.number != own && is_fit(other, placement))
            };
            if !self.connections().values().any(stays) {
                return;
            }
            self.around.placements.look_soon();
            sleep(PAUSE).await;
        }
    }

    /// Returns the connection to a program that this replica runs for others.
    pub fn placed_here(&self, server: &str) -> Option<Arc<Connection>> {
        let world = self.world();
        let connection = world.connections.get(server)?;
        let place = connection.placed()?.get();
        matches!(place, ProgramPlace::Here | ProgramPlace::Leaving).then(|| connection.clone())
    }
}

/// Returns the name of the replica that runs a server's program for all.
pub fn runs_at(cluster: Option<&Cluster>, connection: &Connection) -> Option<String> {
    match connection.placed()?.get() {
        ProgramPlace::Unknown => None,
        ProgramPlace::Here | ProgramPlace::Leaving => Some(cluster?.replicas().name().into()),
        ProgramPlace::At(holder) => Some(holder.name.clone()),
    }
}

/// Returns the name of a program's lease.
fn lease(server: &str) -> String {
    format!("server:{server}")
}

impl PlacementState {
    /// Whether every program has a place.
    fn is_settled(&self) -> bool {
        let own = self.cluster.replicas().number();
        let is_free = |program: &Program| program.holder.is_none() || program.free_since.is_some();
        let leaves = self.cluster.replicas().is_leaving()
            && self.programs.values().any(|program| program.holder == Some(own));
        self.gone.is_none() && !leaves && !self.programs.values().any(is_free)
    }

    /// Finds out where each program runs, and takes over the programs for this replica.
    async fn look(&mut self, world: &World) {
        let wanted: Vec<(&Arc<str>, Placement, Arc<ProgramPlacement>)> = world
            .connections
            .iter()
            .filter_map(|(name, connection)| {
                let placed = connection.placed()?.clone();
                Some((name, connection.settings().placement.clone(), placed))
            })
            .collect();
        self.forget(world).await;
        if wanted.is_empty() {
            return;
        }
        let replicas = self.cluster.replicas().clone();
        let known = replicas.known();
        let own = replicas.number();
        self.find_gone(&wanted, &known).await;
        let mut asked = Vec::new();
        for (name, placement, placed) in &wanted {
            let program = self.programs.entry((*name).clone()).or_default();
            let others = known.iter().filter(|other| other.number != own && Some(other.number) != self.gone);
            let mut others = others.filter(|other| is_fit(other, placement)).map(|other| other.number);
            let can = replicas.has_joined()
                && known.iter().any(|replica| replica.number == own && has_label(replica, placement));
            let has_other = others.clone().next().is_some();
            let may = can && !(replicas.is_leaving() && has_other);
            if program.holder == Some(own) && !may && (has_other || !can) {
                // Another replica takes over once its calls have ended and it has stopped.
                placed.set(ProgramPlace::Leaving);
                if !placed.is_in_use() {
                    // First, so that no call begins while the lease ends.
                    placed.set(ProgramPlace::Unknown);
                    match replicas.end_lease(&lease(name)).await {
                        Ok(_) => program.holder = None,
                        Err(_) => placed.set(ProgramPlace::Leaving),
                    }
                }
            }
            // Whoever comes back first after an outage takes no program of a replica that has yet to register
            // again.
            let is_first =
                others.all(|other| rank(name, other) <= rank(name, own)) && !replicas.may_miss_others();
            asked.push((lease(name), program.claim(own, self.gone, &known, may, is_first)));
        }
        if replicas.meet().await.is_err() {
            return;
        }
        // Without Redis, everything stays where it is.
        let Ok(holders) = replicas.take_leases(self.gone, &asked).await else { return };
        if holders.contains(&None) {
            // The next holder depends on whether the last holder is stopping.
            let _ = replicas.look().await;
        }
        for ((name, _, placed), holder) in wanted.iter().zip(holders) {
            let program = self.programs.entry((*name).clone()).or_default();
            let Some(number) = holder else {
                program.free_since.get_or_insert_with(Instant::now);
                if placed.get() != ProgramPlace::Leaving {
                    placed.set(ProgramPlace::Unknown);
                }
                continue;
            };
            if program.holder != Some(number) {
                tracing::debug!(server = %name, replica = number, "a program has a place");
            }
            *program = Program { holder: Some(number), free_since: None };
            if number == own {
                if placed.get() != ProgramPlace::Leaving {
                    placed.set(ProgramPlace::Here);
                }
            } else if let Some(replica) = replicas.get(number).await
                && let Some(mark) = self.cluster.mark()
            {
                placed.set(ProgramPlace::At(Arc::new(ProgramHolder {
                    number,
                    url: format!("{}{RELAYS}/{name}", replica.address.trim_end_matches('/')),
                    name: replica.name,
                    headers: HeaderMap::from_iter([(MARK, mark)]),
                })));
            }
        }
        if self.gone.is_some_and(|gone| self.programs.values().all(|program| program.holder != Some(gone))) {
            self.gone = None;
        }
    }

    /// Releases the leases of programs that no longer have a place.
    async fn forget(&mut self, world: &World) {
        let has =
            |name: &str| world.connections.get(name).is_some_and(|connection| connection.placed().is_some());
        let gone: Vec<Arc<str>> = self.programs.keys().filter(|name| !has(name)).cloned().collect();
        for name in gone {
            // The holder no longer runs it either, because its file is the same.
            let _ = self.cluster.replicas().end_lease(&lease(&name)).await;
            self.programs.remove(&name);
        }
    }

    /// Checks whether the holder of an unreachable program is gone.
    async fn find_gone(
        &mut self,
        wanted: &[(&Arc<str>, Placement, Arc<ProgramPlacement>)],
        known: &[Replica],
    ) {
        let own = self.cluster.replicas().number();
        let mut suspects = Vec::from_iter(self.gone);
        for (name, _, placed) in wanted {
            if placed.take_trouble()
                && let Some(holder) = self.programs.get(*name).and_then(|program| program.holder)
                && holder != own
                && !suspects.contains(&holder)
            {
                suspects.push(holder);
            }
        }
        self.gone = None;
        for suspect in suspects {
            if let Some(replica) = known.iter().find(|replica| replica.number == suspect)
                && self.cluster.is_gone(replica).await
            {
                self.gone = Some(suspect);
                return;
            }
        }
    }
}

impl Program {
    /// Decides which lease this replica may take.
    fn claim(&self, own: u32, gone: Option<u32>, known: &[Replica], may: bool, is_first: bool) -> LeaseClaim {
        if !may {
            return LeaseClaim::No;
        }
        let runs = |last: u32| {
            Some(last) != gone && known.iter().any(|replica| replica.number == last && !replica.leaving)
        };
        let has_holder = self.holder.is_some_and(runs);
        let patience = if has_holder { LOST_PATIENCE } else { PATIENCE };
        // Redis may have lost the lease, but the program still runs here.
        if self.holder == Some(own) || self.free_since.is_some_and(|since| since.elapsed() >= patience) {
            return LeaseClaim::Free;
        }
        match (is_first, has_holder) {
            (true, false) => LeaseClaim::Free,
            (true, true) => LeaseClaim::OfEnded,
            (false, _) => LeaseClaim::No,
        }
    }
}

/// Whether a replica may run a program.
fn is_fit(replica: &Replica, placement: &Placement) -> bool {
    !replica.leaving && has_label(replica, placement)
}

fn has_label(replica: &Replica, placement: &Placement) -> bool {
    match placement {
        Placement::Each | Placement::One => true,
        Placement::Label(label) => replica.labels.contains(label),
    }
}

/// Ranks a replica for a program; the highest rank is preferred.
fn rank(server: &str, replica: u32) -> ([u8; 8], u32) {
    let hash = Sha256::digest(format!("{server}/{replica}"));
    let mut first = [0; 8];
    first.copy_from_slice(&hash[..8]);
    (first, replica)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(number: u32, labels: &[&str], leaving: bool) -> Replica {
        Replica {
            number,
            name: String::new(),
            address: String::new(),
            version: String::new(),
            config: String::new(),
            labels: labels.iter().map(|label| (*label).into()).collect(),
            leaving,
        }
    }

    #[test]
    fn a_label_says_where_a_program_may_run() {
        let check = |replica: Replica, placement: Placement, expected: bool| {
            assert_eq!(is_fit(&replica, &placement), expected, "{replica:?} {placement:?}");
        };
        check(replica(1, &[], false), Placement::One, true);
        check(replica(1, &[], true), Placement::One, false);
        check(replica(1, &[], false), Placement::Label("gpu".into()), false);
        check(replica(1, &["disk", "gpu"], false), Placement::Label("gpu".into()), true);
    }

    #[test]
    fn a_lease_is_taken_at_once_only_by_the_first_and_from_the_ended() {
        let known = [replica(1, &[], false), replica(2, &[], false), replica(3, &[], true)];
        let long_ago = Instant::now().checked_sub(PATIENCE);
        let check =
            |holder: Option<u32>, is_first: bool, gone: Option<u32>, free: bool, expected: LeaseClaim| {
                let program = Program { holder, free_since: long_ago.filter(|_| free) };
                assert_eq!(
                    program.claim(1, gone, &known, true, is_first),
                    expected,
                    "{holder:?} {is_first} {gone:?} {free}"
                );
                assert_eq!(program.claim(1, gone, &known, false, is_first), LeaseClaim::No);
            };
        check(None, true, None, false, LeaseClaim::Free);
        check(None, false, None, false, LeaseClaim::No);
        check(None, false, None, true, LeaseClaim::Free);
        // The other replica is running: if Redis has lost its lease, it takes the lease again.
        check(Some(2), true, None, false, LeaseClaim::OfEnded);
        check(Some(2), true, Some(2), false, LeaseClaim::Free);
        check(Some(2), false, Some(2), false, LeaseClaim::No);
        check(Some(3), true, None, false, LeaseClaim::Free);
        check(Some(1), false, None, false, LeaseClaim::Free);
    }
}
