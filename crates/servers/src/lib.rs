//! Connections to servers and what is known of them: their lists in one catalogue, whether these are trusted,
//! and who may use what.

pub mod catalog;
pub mod downstream;
pub mod oauth;
pub mod pins;
pub mod policy;
pub mod prompts_resources;
