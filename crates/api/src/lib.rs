//! Every answer, notice and fault of the gateway as a type. The gateway fills the types; the model, the
//! shell, the live page and the tests read them.
//!
//! A field that is not known is absent, unless its comment says `null`. [`mod@reference`] describes what the
//! live page's HTTP API returns; other programs can rely on that description.

pub mod fault;
pub mod notice;
pub mod page;
pub mod question;
pub mod reference;
pub mod schedules;
pub mod servers;
pub mod setup;
pub mod status;
pub mod tools;
pub mod work;

/// Whether a count is left out.
fn is_zero<T: Default + PartialEq>(count: &T) -> bool {
    *count == T::default()
}
