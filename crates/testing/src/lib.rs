//! What the tests of several crates start. Nothing here is part of the program.

mod issuer;
mod redis_server;

pub use issuer::{TokenIssuer, TokenKey, unsigned};
pub use redis_server::{RedisServer, free_port};
