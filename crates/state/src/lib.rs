//! The state of a gateway: its sessions, its world of servers, the snapshot of what they offer, the gate that
//! says what a caller may see, and the notices that wait for clients. The operations on it are in
//! `nonet-core`.

pub mod asking;
pub mod faults;
pub mod feed;
pub mod grants;
pub mod known_secrets;
pub mod last_seen;
pub mod links;
pub mod lists;
pub mod mail;
pub mod mailbox;
pub mod outward;
pub mod placing;
pub mod publisher;
pub mod servers;
pub mod session;
pub mod sessions;
mod signing_in;
pub mod snapshot;
pub mod trust;
pub mod unmatched;
pub mod world;
