//! The doors of this user's gateways over HTTP: the token that opens them, the ports that are theirs, and who
//! is at the other end of a connection on this machine. Knows files and the system's tables of sockets; knows
//! nothing of HTTP and MCP.

mod owner_token;
mod ports;
#[cfg(target_os = "linux")]
mod sockets;

use std::net::SocketAddr;

pub use owner_token::{OwnerKey, OwnerToken, PresentedToken};
#[cfg(target_os = "linux")]
pub use ports::is_door;
pub use ports::{DoorPort, take_port};

/// Who is at the other end of a connection, as far as the system says.
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "no other system says it"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Another machine, or a system that does not say.
    Unknown,
    /// A program of the same user, with the number of its socket.
    Own {
        /// The socket's inode.
        socket: u64,
    },
    /// A program of another user.
    OfUser(u32),
    /// A program of this machine that closed its socket at once, so that nobody can say who it was.
    Gone,
}

/// Returns who is at the other end of a connection `from` an address `to` one of this machine's. Blocks.
#[cfg(target_os = "linux")]
pub fn peer(from: SocketAddr, to: SocketAddr) -> Peer {
    sockets::peer(from, to)
}

/// Returns that the system does not say who is at the other end.
#[cfg(not(target_os = "linux"))]
pub fn peer(_from: SocketAddr, _to: SocketAddr) -> Peer {
    Peer::Unknown
}

/// Who listens at a port of this machine's loopback address.
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "no other system says it"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PortListener {
    /// Only programs of this user.
    Own,
    /// A program of another user.
    Another,
    Nobody,
}

/// Returns who listens at a port, if the system says so. Blocks.
#[cfg(target_os = "linux")]
fn listens(port: u16) -> Option<PortListener> {
    sockets::listens(port)
}

#[cfg(not(target_os = "linux"))]
fn listens(_port: u16) -> Option<PortListener> {
    None
}
