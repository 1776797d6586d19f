//! One namespace over an SSD directory and an HDD directory, after HyCache.
//!
//! The crate does not know FUSE: the front end in `mount` translates requests into calls on [`TieredFs`]. Errors are errnos; only
//! opening a pair fails with a sentence ([`StartError`]).
//!
//! Each file uses only files of the layers below its own:
//!
//! - Users' calls: `create`, `remove`, `rename`, `attrs`, `files`, `listing`; before them a mount with `start`, `recover` and `scan`.
//! - Moves: `moves` and `copy_job` take files from side to side, `pinning` and `retire` request moves.
//! - Names on both sides: `names`, `known_files`, `handles`, `dir_halves`, `forgotten_files`, `times`.
//! - The state of a mounted pair: `pair`, with `moves/queue`, `placement`, `space`, `nodes`, `dirs` and `open`.
//! - One side: `tier`, `hidden_dir`, `abilities`; the files that hotshelf keeps there: `persist`, `intent`, `numbers`.
//! - Below all: `stat`, `path`, `errno`, `clock`, `read_dir`, `config`.
#![forbid(unsafe_code)]

pub mod abilities;
mod attrs;
mod backing;
pub mod check;
mod clock;
pub mod config;
mod copy;
mod copy_job;
pub mod crash;
mod create;
mod dir_halves;
mod dirs;
mod errno;
mod files;
mod forgotten_files;
mod handles;
mod hidden_dir;
mod intent;
mod known_files;
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

pub use config::{Config, HonouredFeatures, Promotion, Size};
pub use create::NewNode;
pub use dirs::DirPair;
pub use errno::Result;
pub use files::WriteOutcome;
pub use fusedev::{Caller, SetAttr, SetTime};
pub use hidden_dir::{OpenError, UntrustedHiddenDirError, make_hidden, open_hidden};
pub use listing::{DOTS, Listing, ListingEntry, behind, first_at};
pub use moves::job::{MoveOutcome, MoveReason};
pub use moves::queue::yield_to_foreground;
pub use names::Attr;
pub use number::ROOT;
pub use open::{FileHandle, OpenInode};
pub use pair::{Listener, TieredFs};
pub use settings::SETTINGS;
pub use start::{RunningFs, StartError, open, refuse_nested, start};
pub use stat::Stat;
