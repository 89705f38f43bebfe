//! Signals that end a command.

/// SIGINT: 128 and its number, as shells report it.
pub(super) const INTERRUPTED: u8 = 130;
/// The same of SIGTERM.
#[cfg(unix)]
const TERMINATED: u8 = 143;

/// Ends with SIGINT (Ctrl-C) or SIGTERM: the exit code for it.
pub(super) async fn stopped() -> u8 {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => {
                return tokio::select! {
                    _ = tokio::signal::ctrl_c() => INTERRUPTED,
                    _ = terminate.recv() => TERMINATED,
                };
            }
            Err(error) => tracing::warn!(%error, "SIGTERM cannot be caught"),
        }
    }
    let _ = tokio::signal::ctrl_c().await;
    INTERRUPTED
}
