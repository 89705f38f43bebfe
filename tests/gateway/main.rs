//! The gateway driven as a client would.
