//! What the tests of several crates start. Nothing here is part of the program.

mod redis_server;

pub use redis_server::{RedisServer, free_port};
