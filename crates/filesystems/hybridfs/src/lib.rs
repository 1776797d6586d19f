//! One namespace over an SSD directory and an HDD directory (paper 003, HyCache).
//!
//! Knows nothing of FUSE: the front door in `mount` translates requests into calls on [`Hybrid`]. Errors are
//! errnos, the vocabulary of a POSIX file layer; only opening a pair has sentences ([`StartError`]).
//!
//! Where to find what: `names` and `listing` look over both sides; `create`, `remove`, `rename`, `attrs` and
//! `files` are what users do; `moves` takes files from side to side; `placement` and `space` decide which and
//! when; `start`, `recover` and `scan` are the way up after a mount; `persist` and `intent` are what we keep
//! on disk ourselves.
#![forbid(unsafe_code)]

pub mod abilities;
mod again;
mod attrs;
pub mod check;
pub mod config;
mod copy;
mod copying;
pub mod crash;
mod create;
mod dirs;
mod files;
mod intent;
mod listing;
mod moves;
mod names;
mod nodes;
mod number;
mod numbers;
mod open;
mod pair;
pub mod persist;
mod pinning;
mod placement;
mod recover;
mod remove;
mod rename;
pub mod report;
mod retire;
mod room;
mod scan;
mod settings;
mod space;
mod start;
mod status;
#[cfg(test)]
mod testing;
mod tier;
mod times;

pub use attrs::{Caller, SetAttr, SetTime};
pub use config::{Config, Honours, Promotion, Size};
pub use create::Make;
pub use dirs::Dir;
pub use files::Written;
pub use listing::{DOTS, Entry, Listing, behind, first_at};
pub use moves::{Outcome, Reason, give_way};
pub use names::Attr;
pub use number::ROOT;
pub use open::{Handle, OpenInode};
pub use pair::{Hybrid, Listener};
pub use settings::SETTINGS;
pub use start::{Running, StartError, open, refuse_nested, start};
pub use tier::{NotOurs, OpenError, Result, Stat, make_hidden, open_hidden};
