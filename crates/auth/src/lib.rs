//! Who calls: checks access tokens (OAuth 2.1, MCP's authorization) and returns the people that they name.
//!
//! [`Issuers`] is the one way in: a token, and a [`Person`] or a [`TokenFault`]. Signatures and claims of JSON
//! Web Tokens are in `jwt`, the keys of an issuer in `keys`, questions about opaque tokens in
//! `introspection`. A browser signs in by `browser`. [`metadata`] is what clients read about the gateway, and [`opening`] which profile a person
//! gets. This crate knows nothing of MCP messages, sessions and servers, and never passes a token on.

mod browser;
pub mod cookies;
mod introspection;
mod issuers;
mod jwt;
mod keys;
pub mod metadata;
pub mod opening;
mod person;
#[cfg(test)]
mod tests;

pub use self::{
    browser::{BroughtBack, BrowserFault, BrowserSignIn, local_target},
    issuers::{IssuerCheck, Issuers, TokenFault},
    person::{Owner, Person, PersonName},
};
