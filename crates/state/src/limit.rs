//! The time limit of a run.

use std::time::Duration;

use tokio::{sync::watch, time::Instant};

/// How long a run may take, except for the time in which its user is asked.
#[derive(Debug)]
pub struct Limit {
    state: watch::Sender<TimeBudget>,
}

#[derive(Clone, Copy, Debug)]
struct TimeBudget {
    ends: Instant,
    /// When the current question to the user began.
    paused: Option<Instant>,
}

/// A pause in the time limit, until it is dropped.
pub struct LimitPause<'a>(&'a Limit);

impl Limit {
    /// Creates a limit that starts now.
    pub fn new(time: Duration) -> Self {
        Self { state: watch::Sender::new(TimeBudget { ends: Instant::now() + time, paused: None }) }
    }

    /// Returns when the time is over.
    pub async fn over(&self) {
        let mut changes = self.state.subscribe();
        loop {
            let TimeBudget { ends, paused } = *changes.borrow_and_update();
            let time = async {
                match paused {
                    Some(_) => std::future::pending().await,
                    None => tokio::time::sleep_until(ends).await,
                }
            };
            tokio::select! {
                () = time => return,
                // The sender is `self`.
                _ = changes.changed() => {}
            }
        }
    }

    /// Returns the remaining time.
    pub fn left(&self) -> Duration {
        let TimeBudget { ends, paused } = *self.state.borrow();
        ends.saturating_duration_since(paused.unwrap_or_else(Instant::now))
    }

    /// Pauses the limit while the user is asked. Only one question is asked at a time.
    pub fn pause(&self) -> LimitPause<'_> {
        self.state.send_modify(|state| state.paused = Some(Instant::now()));
        LimitPause(self)
    }
}

impl Drop for LimitPause<'_> {
    fn drop(&mut self) {
        self.0.state.send_modify(|state| {
            state.ends += state.paused.take().map_or(Duration::ZERO, |since| since.elapsed());
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_time_in_which_the_user_is_asked_does_not_count() {
        let second = Duration::from_secs(1);
        let (began, limit) = (Instant::now(), Limit::new(second * 10));
        tokio::join!(limit.over(), async {
            tokio::time::sleep(second * 4).await;
            let paused = limit.pause();
            tokio::time::sleep(second * 60).await;
            assert_eq!(limit.left(), second * 6);
            drop(paused);
            assert_eq!(limit.left(), second * 6);
        });
        assert_eq!(began.elapsed().as_secs(), 70);
    }
}
