//! libhotshelf: the library for C programs, and through C for every other language.
//!
//! The functions are documented once, for users: these comments become `include/hotshelf.h` and the manual page hotshelf(3) (`cargo xtask
//! header`). They are thin: each validates its arguments, calls one method of an object, and converts the result to a return value and
//! errno.
//!
//! - `guard.rs`: results to errno; panics stop here. `api_error.rs`: errors with messages. `table.rs`: opaque pointers are numbers,
//!   checked at each call, so that a wrong one is EBADF and no crash.
//! - `library.rs` (`hs_*`), `device.rs`, `queue.rs`, `handle.rs`: the objects, and the functions that create and destroy them.
//! - `pool.rs`: memory that is lent to the program, and accessed by the device without a copy.
//! - `transfer.rs`: synchronous calls. `aio.rs`: asynchronous ones. `cached.rs`: a handle's state in the cache.
//! - `options.rs`: versioned structs. `params.rs`: parameters by key. `quota.rs`: queue quotas.
//! - The u calls, files through the cache: `ufd.rs` and `hazard.rs` are the table of file numbers, `open.rs` an open file, `cache.rs` the
//!   instance; `uopen.rs`, `ufile.rs`, `ustate.rs`, `upin.rs`, `umap.rs`, `ulock.rs`, `udir.rs` and `uqueue.rs` the calls by noun.
//!   `fork.rs`: forked children.
//! - The library file system (`nvmedfs_*`): `nmkfs.rs`, `nmount.rs`, `nplace.rs` (base directories of paths), `nfd.rs` (file numbers),
//!   `nfile.rs`, `nname.rs`, `nattr.rs`, `nxattr.rs`, `ndir.rs`, `nlock.rs` the calls by noun, `ntx.rs` transactions, `naio.rs` and
//!   `nrequests.rs` asynchronous requests. `rawfs` does the work.
//!
//! Unsafe code is in the functions that C calls, in `table.rs`, and in `memory.rs`, where the program's pointers become bytes.

mod aio;
mod api_error;
mod cache;
mod cached;
mod config;
mod device;
mod fork;
mod guard;
mod handle;
mod hazard;
mod library;
mod memory;
mod naio;
mod nattr;
mod ndir;
mod nfd;
mod nfile;
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
mod open;
mod options;
mod params;
mod pool;
mod queue;
mod quota;
mod table;
#[cfg(test)]
mod test;
mod threads;
mod transfer;
mod types;
mod udir;
mod ufd;
mod ufile;
mod ulock;
mod umap;
mod uopen;
mod upin;
mod uqueue;
mod urequests;
mod ustate;

pub use ntypes::*;
pub use types::*;
