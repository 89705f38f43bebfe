//! The state of a gateway: its sessions, its world of servers and where their programs run, the snapshot of
//! what they offer, the questions to the user, and the notices that wait for clients. The operations that make
//! calls are in `nonet-core`.

pub mod added_servers;
mod approving;
pub mod asking;
pub mod conditions;
pub mod faults;
pub mod feed;
pub mod give_way;
pub mod grants;
pub mod known_secrets;
pub mod last_seen;
pub mod limit;
pub mod links;
pub mod lists;
pub mod mail;
pub mod mailbox;
pub mod outward;
pub mod people;
pub mod personal;
pub mod placing;
pub mod publisher;
pub mod questions;
pub mod sampling;
pub mod servers;
pub mod session;
pub mod sessions;
pub mod signing_in;
pub mod snapshot;
pub mod suggesting;
pub mod trust;
pub mod trying;
pub mod unmatched;
pub mod waiting_room;
pub mod world;
