//! libhotshelf: what C programs link, and what every other language reaches through C.
//!
//! The functions are documented once, for their users: the comments here become `include/hotshelf.h` and the manual page
//! hotshelf(3) (`cargo xtask header`). They are thin: each checks what it was given, calls one method of an object, and turns
//! the outcome into -1 and errno.
//!
//! - `guard.rs`: outcome to errno, panics stop here. `api_error.rs`: what went wrong, in words. `table.rs`: what the opaque pointers
//!   are: numbers, checked at each call, so that a wrong one is EBADF and no crash.
//! - `library.rs` (`hs_*`), `device.rs`, `queue.rs`, `handle.rs`: the objects, and the functions that make and end them.
//! - `pool.rs`: memory that is lent to the program, and reaches the device without a copy.
//! - `transfer.rs`: calls that return when it is done. `aio.rs`: those that do not. `cached.rs`: a handle's place in the cache.
//! - `options.rs`: structs with versions. `params.rs`: parameters by key. `quota.rs`: whose queues.
//! - The u calls, files through the cache: `ufd.rs` and `hazard.rs` are their numbers, `open.rs` what a number stands for, `cache.rs` the
//!   instance; `uopen.rs`, `ufile.rs`, `ustate.rs`, `upin.rs`, `umap.rs`, `ulock.rs`, `udir.rs` and
//!   `uqueue.rs` the calls by noun. `fork.rs`: what a child may do.
//! - The library file system (`nvmedfs_*`): `nmkfs.rs`, `nmount.rs`, `nplace.rs` (where a path counts from), `nfd.rs` (file numbers),
//!   `nfile.rs`, `nname.rs`, `nattr.rs`, `nxattr.rs`, `ndir.rs`, `nlock.rs` the calls by noun, `ntx.rs` transactions, `naio.rs` and
//!   `nrequests.rs` what does not wait. The work is `rawfs`'s.
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
