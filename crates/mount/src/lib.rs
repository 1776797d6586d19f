//! Mount.
