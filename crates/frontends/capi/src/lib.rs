//! libhotshelf: the library for C programs, and through C for every other language.
//!
//! The functions are documented once, for users: these comments become `include/hotshelf.h` and the manual page hotshelf(3) (`cargo xtask
//! header`). They are thin: each validates its arguments, calls one method of an object, and converts the result to a return value and
//! errno.
//!
//! A file uses only files further up in this list:
//!
//! - `api_error.rs`: errors with messages. `memory.rs`: the program's pointers become bytes, offsets and paths. `types.rs`, `ntypes.rs`:
//!   what C sees. `fork.rs`: whether this is a forked child. `guard.rs`: results to errno; panics stop here.
//! - `table.rs`: opaque pointers are numbers, checked at each call, so that a wrong one is EBADF and no crash. `objects.rs`: the objects
//!   behind them, of any type. `config.rs`: defaults. `options.rs`: versioned structs.
//! - `hazard.rs`, `ufd.rs`: the table of file numbers. `pins.rs`, `open.rs`, `ulock.rs`, `ufiles.rs`: the open files of the u calls.
//!   `cache.rs`: the instance that they use.
//! - `mounted.rs`, `flocks.rs`, `nfiles.rs`, `nplace.rs`: mounts of the library file system, their open files, base directories of paths.
//! - `atfork.rs`: the fork handlers. `library.rs` (`hs_*`): initialisation and shutdown.
//! - `pool.rs`: memory that is lent to the program, and accessed by the device without a copy. `cached.rs`: the cache of a device.
//!   `device.rs`, `queue.rs`, `drequests.rs`, `handle.rs`: the objects of a device, and the functions that create and destroy them.
//! - `sync_io.rs`, `aio.rs`, `transfer.rs`: synchronous and asynchronous I/O of a handle. `params.rs`: parameters by key. `quota.rs`: queue
//!   quotas.
//! - The u calls, files through the cache: `uopen.rs`, `ufile.rs`, `ustate.rs`, `upin.rs`, `umap.rs`, `udir.rs`, and `uqueue.rs` over
//!   `urequests.rs`, by noun.
//! - The library file system (`nvmedfs_*`): `nmkfs.rs`, `nmount.rs`, `nfd.rs` (file numbers), `nfile.rs`, `nname.rs`, `nattr.rs`,
//!   `nxattr.rs`, `ndir.rs`, `nlock.rs`, the calls by noun, `ntx.rs` and `ntxname.rs` transactions, `naio.rs` over `nrequests.rs`
//!   asynchronous requests. `rawfs` does the work.
//!
//! Unsafe code is in the functions that C calls, in the tables (`table.rs`, `ufd.rs`, `pins.rs`), and in `memory.rs`.

mod aio;
mod api_error;
mod atfork;
mod cache;
mod cached;
mod config;
mod device;
mod drequests;
mod flocks;
mod fork;
mod guard;
mod handle;
mod hazard;
mod library;
mod memory;
mod mounted;
mod naio;
mod nattr;
mod ndir;
mod nfd;
mod nfile;
mod nfiles;
mod nlock;
mod nmkfs;
mod nmount;
mod nname;
mod nplace;
mod nrequests;
#[cfg(test)]
mod ntest;
mod ntx;
mod ntxname;
mod ntypes;
mod nxattr;
mod objects;
mod open;
mod options;
mod params;
mod pins;
mod pool;
mod queue;
mod quota;
mod sync_io;
mod table;
#[cfg(test)]
mod test;
mod threads;
mod transfer;
mod types;
mod udir;
mod ufd;
mod ufile;
mod ufiles;
mod ulock;
mod umap;
mod uopen;
mod upin;
mod uqueue;
mod urequests;
mod ustate;

pub use ntypes::*;
pub use types::*;
