//! Signals that end a command.

/// The exit code for SIGINT: 128 plus its number, as in shells.
pub(super) const INTERRUPTED: u8 = 130;
/// The exit code for SIGTERM.
const TERMINATED: u8 = 143;

/// Whether an exit code says that the user has stopped the command.
pub(super) fn is_stop(code: u8) -> bool {
    code == INTERRUPTED || code == TERMINATED
}

/// Waits for SIGINT (Ctrl-C) or SIGTERM. Returns the exit code for it.
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
