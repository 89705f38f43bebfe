//! What passes through a gateway, as text and bytes: names, templates, results, faults, the answers of
//! people; and the secrets and leaks in them.

pub mod aliases;
pub mod answers;
pub mod leaks;
pub mod name;
pub mod prose;
pub mod results;
pub mod secrets;
pub mod template;

pub use nonet_api::fault;
