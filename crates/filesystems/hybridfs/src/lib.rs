//! One namespace over an SSD directory and an HDD directory (paper 003, HyCache).
//!
//! Knows nothing of FUSE: the front door in `mount` translates requests into calls on [`TieredFs`]. Errors are
//! errnos, the vocabulary of a POSIX file layer; only opening a pair has sentences ([`StartError`]).
//!
//! Where to find what: `names` and `listing` look over both sides; `create`, `remove`, `rename`, `attrs` and
//! `files` are what users do; `moves` takes files from side to side; `placement` and `space` decide which and
//! when; `start`, `recover` and `scan` are the way up after a mount; `persist` and `intent` are what we keep
//! on disk ourselves.
#![forbid(unsafe_code)]

pub mod abilities;
mod attrs;
mod caller;
pub mod check;
mod clock;
pub mod config;
mod copy;
mod copy_job;
pub mod crash;
mod create;
mod dirs;
mod errno;
mod files;
mod forgotten_files;
mod hidden_dir;
mod intent;
mod listing;
mod moves;
mod names;
mod nodes;
mod number;
mod numbers;
mod open;
mod pair;
mod path;
pub mod persist;
mod pinning;
mod placement;
mod read_dir;
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
mod stat;
mod status;
#[cfg(test)]
mod testing;
mod tier;
mod times;

pub use attrs::{SetAttr, SetTime};
pub use caller::Caller;
pub use config::{Config, HonouredFeatures, Promotion, Size};
pub use create::NewNode;
pub use dirs::DirPair;
pub use errno::Result;
pub use files::WriteOutcome;
pub use hidden_dir::{OpenError, UntrustedHiddenDirError, make_hidden, open_hidden};
pub use listing::{DOTS, Listing, ListingEntry, behind, first_at};
pub use moves::{MoveOutcome, MoveReason, yield_to_foreground};
pub use names::Attr;
pub use number::ROOT;
pub use open::{FileHandle, OpenInode};
pub use pair::{Listener, TieredFs};
pub use settings::SETTINGS;
pub use start::{RunningFs, StartError, open, refuse_nested, start};
pub use stat::Stat;
