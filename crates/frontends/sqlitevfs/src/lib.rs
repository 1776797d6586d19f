//! SQLite on a raw image: a loadable extension with a VFS named `hotshelf`, directly on `rawfs`.
//!
//! ```text
//! .load libhotshelf_sqlite
//! .open 'file:/db?vfs=hotshelf&image=/path/to.img'
//! ```
//!
//! `&memory=256MiB` bounds the memory of an image; the first open of the image decides.
//!
//! - `entry.rs`, `api.rs`: how SQLite finds us, and which of its functions we call (through its own pointers: no second SQLite).
//! - `vfs.rs`, `methods.rs`, `control.rs`: what SQLite calls, each a few lines around one method of what follows; `ffi_guard.rs` turns
//!   outcomes into SQLite's codes. `opened_file.rs`: a file that SQLite has open.
//! - `name.rs`, [`image`]: a name leads to an image, opened once a process, and to a file in it. `databases.rs`: the databases in use.
//!   `super_journal.rs`: transactions over several of them.
//! - `database.rs`: a database that connections of this process share: what is written and not committed, in memory
//!   (`pending.rs`), and its rollback journal (`journal.rs`), which reaches the device only if a transaction is large.
//! - `locks.rs`: SQLite's five locks; `gate.rs`: waiting for one. `wal_state.rs`, `shm.rs`: the WAL; its index and its locks, in memory
//!   of this process.
//! - `error.rs`: what went wrong, as SQLite's codes and in words.
//!
//! Unsafe code is in the first two lines' files and in `shm.rs`.

mod api;
mod control;
mod database;
mod databases;
mod entry;
mod error;
mod ffi_guard;
mod gate;
pub mod image;
mod journal;
mod locks;
mod methods;
mod name;
mod opened_file;
mod pending;
mod shm;
mod super_journal;
mod vfs;
mod wal_state;

pub use api::Api;
pub use vfs::register;

/// For what this library allocates; SQLite and the program keep theirs.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;
