//! Requests to Redis for which a call waits only a moment. After a late answer, no request is sent for a
//! while, so that a slow Redis delays a call now and then, but not every call.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redis::{FromRedisValue, ScriptInvocation};

use super::{super::StoreError, link::RedisLink};

/// How long a call waits for Redis.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long no request is sent after a late answer.
const PAUSE: Duration = Duration::from_secs(1);

/// The link to Redis for requests that must not wait.
#[derive(Debug)]
pub(super) struct BriskLink {
    pub link: Arc<RedisLink>,
    patience: Duration,
    /// What each replica does on its own if Redis is late, for people.
    what: &'static str,
    /// Until when no request is sent, after a late answer.
    paused: Mutex<Option<Instant>>,
}

impl BriskLink {
    pub(super) fn new(link: Arc<RedisLink>, what: &'static str) -> Self {
        Self { link, patience: PATIENCE, what, paused: Mutex::default() }
    }

    /// Sets how long to wait for Redis.
    pub(super) fn wait_for(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Runs a method of a script.
    pub(super) async fn run<T: FromRedisValue + Send + 'static>(
        &self,
        call: ScriptInvocation<'static>,
    ) -> Result<T, StoreError> {
        if self.paused.lock().is_some_and(|until| Instant::now() < until) {
            return Err(self.late());
        }
        let link = self.link.clone();
        // In a separate task: even if the answer is late, the task connects and notes the trouble.
        let answer = tokio::spawn(async move { link.run::<T>(&call).await });
        let Ok(answer) = tokio::time::timeout(self.patience, answer).await else {
            let before = self.paused.lock().replace(Instant::now() + PAUSE);
            if before.is_none() {
                tracing::warn!(redis = %self.link.place, "Redis answers late: for now, each replica applies {} by itself", self.what);
            }
            return Err(self.late());
        };
        let answer = answer.map_err(|_| StoreError::Unusable)??;
        if self.paused.lock().take().is_some() {
            tracing::info!(redis = %self.link.place, "Redis answers in time: the replicas share {} again", self.what);
        }
        Ok(answer)
    }

    fn late(&self) -> StoreError {
        StoreError::Away { place: self.link.place.clone(), what: "answers late".into() }
    }
}
