//! The file system above the store: POSIX as ext4 does it, by path, by held directory, and by open file.
//!
//! ```text
//!  a path  --walk-->  a key of Names  --the store-->  a record: attributes and content, or where that is
//!                                                        |
//!  a file in use: table.rs, one lock each; pages that are not written yet; written back to runs of blocks (flush.rs)
//! ```
//!
//! - [`calls`]: the calls. `node`, [`file`]: held files and open files. `walk`, `open`, `make`, `remove`, `rename`, `attrs`, `xattr`,
//!   `acl`, `list`: one kind of call each.
//! - `core`: the state that all calls share; its parts are in the files below it (`table`, `name`, `locks`, `cache`, `recent`,
//!   `dir_window`, `number_hints`, `trial_context`, `write_back_signal`).
//! - `read`, `write`, `space`, `flush`, `group`, `job`, `writer`: the path of data.
//! - [`transaction`]: writes to many files that happen all or not at all; `commit`: how. `name_change`, [`changes`]: names and attributes
//!   in transactions; `trial`: how those are tried first.
//! - [`key`], [`record`], [`extent`], `xattr_list`: what is on the device. `map`: which blocks a file has. `orphan`: what a crash left.
//! - `read_dir`, `vectored`, `copy`, `advice`: more that an open file can do. `async_calls`, `async_thread`: calls that return at once.
//! - `number`: files by their numbers, for handles.
//! - [`check`]: whether all of it is consistent.
//!
//! Metadata changes are in the store, in order, when a call returns; data and sizes follow with write-back or a sync.

mod acl;
mod advice;
mod async_calls;
mod async_thread;
pub mod attrs;
mod cache;
pub mod calls;
pub mod changes;
pub mod check;
mod commit;
mod copy;
mod core;
pub mod creds;
pub mod describe;
mod dir_cursor;
mod dir_window;
pub mod error;
pub mod extent;
pub mod file;
mod fill;
mod flush;
mod group;
mod job;
pub mod key;
pub mod list;
mod locks;
mod make;
mod map;
pub mod memory;
mod name;
mod name_change;
mod node;
mod number;
mod number_hints;
mod open;
mod open_files;
mod orphan;
mod read;
mod read_ahead;
mod read_dir;
pub mod recent;
pub mod record;
mod relocate;
mod remove;
mod rename;
pub mod repair;
pub mod resize;
pub mod scrub;
pub mod settings;
pub mod show;
mod space;
mod table;
pub mod time;
pub mod transaction;
mod trial;
mod trial_context;
mod vectored;
mod walk;
mod write;
mod write_back_signal;
mod writer;
mod xattr;
mod xattr_list;
mod xattr_store;

pub use self::advice::Advice;
pub use self::attrs::{SetAttr, Stat, StatFs};
pub use self::calls::Fs;
pub use self::creds::Creds;
pub use self::dir_window::DirEntry;
pub use self::error::{Error, Result};
pub use self::file::File;
pub use self::memory::Memory;
pub use self::node::Node;
pub use self::record::FileKind;
pub use self::settings::{Atime, FsSettings};
pub use self::time::{SetTime, Timestamp};
pub use self::transaction::Transaction;

/// Bytes of a name, at most.
pub const NAME_MAX: usize = 255;
/// Bytes of a path, at most.
pub const PATH_MAX: usize = 4095;
/// Blocks of a file, at most: 16 TiB as ext4 has it.
pub const BLOCKS_MAX: u64 = (1 << 32) - 1;
/// Bytes of a file, at most.
pub const SIZE_MAX: u64 = BLOCKS_MAX * crate::BLOCK_BYTES as u64;

#[cfg(test)]
mod test;
