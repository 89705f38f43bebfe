//! The lease of a gateway: a key that expires unless the gateway renews it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use nonet_base::clock::Clock;
use redis::{ScriptInvocation, cmd, pipe};

use super::{super::StoreError, link::RedisLink};

/// How long the key lasts. After that, the work of a gateway that ended silently is taken over.
pub(super) const LASTS: Duration = Duration::from_secs(10);
/// How often it is renewed.
pub(super) const BEAT: Duration = Duration::from_secs(3);

/// This gateway's lease on everything that it holds.
#[derive(Debug)]
pub(super) struct Lease {
    link: Arc<RedisLink>,
    key: String,
    holder: u32,
    number: String,
    /// The name of the replica, for people.
    pub name: String,
    clock: Clock,
    /// Whether a task renews it.
    is_renewed: AtomicBool,
    has_ended: AtomicBool,
}

impl Lease {
    /// Returns a lease that starts when something is first held.
    pub(super) fn new(link: Arc<RedisLink>, base: &str, number: u32, name: String, clock: Clock) -> Self {
        let (key, holder, number) = (format!("{base}holder:{number}"), number, number.to_string());
        let (is_renewed, has_ended) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { link, key, holder, number, name, clock, is_renewed, has_ended }
    }

    /// Returns the number of this gateway.
    pub(super) fn number(&self) -> u32 {
        self.holder
    }

    /// Returns whether the gateway has released everything.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Adds the lease and the clock to a script call, and starts to renew the lease.
    pub(super) fn sign(self: &Arc<Self>, call: &mut ScriptInvocation<'_>) {
        call.arg(&self.number).arg(&self.name).arg(LASTS.as_millis() as u64).arg(self.clock.ahead_ms());
        if !self.is_renewed.swap(true, Ordering::Relaxed) {
            let lease = Arc::downgrade(self);
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(BEAT).await;
                    let Some(lease) = lease.upgrade().filter(|lease| !lease.has_ended()) else {
                        return;
                    };
                    // The link warns about trouble.
                    let _ = lease.renew().await;
                }
            });
        }
    }

    async fn renew(&self) -> Result<(), StoreError> {
        let mut set = cmd("SET");
        set.arg(&self.key).arg(&self.name).arg("PX").arg(LASTS.as_millis() as u64);
        self.link.send(pipe().add_command(set)).await
    }

    /// Ends the lease, which releases everything that this gateway holds.
    pub(super) async fn end(&self) -> Result<(), StoreError> {
        self.has_ended.store(true, Ordering::Relaxed);
        if !self.is_renewed.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.link.send(pipe().del(&self.key)).await
    }
}
