//! Slots shared by all replicas, in Redis: the number of concurrent calls to a server. The keys are described
//! in `slots.lua`.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use nonet_base::{
    clock::Clock,
    turns::{SharedSlot, SharedSlots, SharedTake},
};
use parking_lot::Mutex;

use super::{
    brisk::BriskLink,
    link::{Methods, RedisLink, script},
};

static METHODS: Methods = Methods::new(|| script(include_str!("slots.lua")));

/// How long a slot is taken unless its replica renews it.
const LIFE: Duration = Duration::from_secs(15);
/// How often replicas renew their slots.
const KEEP: Duration = Duration::from_secs(5);

/// The slots under a prefix.
#[derive(Debug)]
pub(crate) struct SlotKeys(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    brisk: BriskLink,
    base: Arc<str>,
    clock: Clock,
    /// The number of this replica.
    holder: u32,
    next: AtomicU64,
    /// The slots that this replica has taken: name and slot.
    taken: Mutex<HashSet<(Arc<str>, String)>>,
    /// Whether a task renews them.
    is_kept: AtomicBool,
}

impl SlotKeys {
    pub(super) fn new(link: Arc<RedisLink>, base: Arc<str>, clock: Clock, holder: u32) -> Self {
        Self(Arc::new(Inner {
            brisk: BriskLink::new(link, "`max_concurrency`"),
            base,
            clock,
            holder,
            next: AtomicU64::new(1),
            taken: Mutex::default(),
            is_kept: AtomicBool::new(false),
        }))
    }
}

impl SharedSlots for SlotKeys {
    fn take<'a>(&'a self, name: &'a str, most: usize) -> BoxFuture<'a, SharedTake> {
        self.0.take(name, most).boxed()
    }
}

impl Inner {
    async fn take(self: &Arc<Self>, name: &str, most: usize) -> SharedTake {
        let name: Arc<str> = name.into();
        let slot = format!("{}:{}", self.holder, self.next.fetch_add(1, Ordering::Relaxed));
        // Released if dropped early, because it may have been taken.
        let given = SharedSlot::new({
            let (slots, name, slot) = (self.clone(), name.clone(), slot.clone());
            move || slots.give_back(name, slot)
        });
        let mut call = METHODS.call(&self.base, "take");
        call.arg(self.clock.ahead_ms()).arg(LIFE.as_millis() as u64).arg(&*name).arg(most).arg(&slot);
        match self.brisk.run::<bool>(call).await {
            Ok(true) => {
                self.taken.lock().insert((name, slot));
                self.keep();
                SharedTake::Taken(given)
            }
            Ok(false) => {
                given.forget();
                SharedTake::Full
            }
            Err(error) => {
                tracing::debug!(%error, "the calls of this replica are counted separately");
                SharedTake::Alone
            }
        }
    }

    fn give_back(self: Arc<Self>, name: Arc<str>, slot: String) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let mut call = METHODS.call(&self.base, "give");
        call.arg(&*name).arg(&slot);
        self.taken.lock().remove(&(name, slot));
        // A slot that is not released expires by itself.
        runtime.spawn(async move { self.brisk.link.run::<()>(&call).await });
    }

    /// Starts to renew the taken slots, as long as there are any.
    fn keep(self: &Arc<Self>) {
        if self.is_kept.swap(true, Ordering::AcqRel) {
            return;
        }
        let slots = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(KEEP).await;
                let Some(slots) = slots.upgrade() else { return };
                let kept: Vec<(Arc<str>, String)> = {
                    let taken = slots.taken.lock();
                    if taken.is_empty() {
                        slots.is_kept.store(false, Ordering::Release);
                        return;
                    }
                    taken.iter().cloned().collect()
                };
                let mut call = METHODS.call(&slots.base, "keep");
                call.arg(slots.clock.ahead_ms()).arg(LIFE.as_millis() as u64);
                for (name, slot) in &kept {
                    call.arg(&**name).arg(slot);
                }
                // The link warns about trouble.
                let _ = slots.brisk.link.run::<()>(&call).await;
                // One that was given back meanwhile may have been taken again by that.
                for (name, slot) in kept {
                    let is_taken = slots.taken.lock().contains(&(name.clone(), slot.clone()));
                    if !is_taken {
                        slots.clone().give_back(name, slot);
                    }
                }
            }
        });
    }
}
