//! Keeps a program's files out of the page cache. When preloaded, this library intercepts the C library's calls that move file data. Data
//! that was read is evicted from the page cache; written data is on the device before the call returns, and then evicted. `hotshelf
//! nocache` sets it up; docs/decisions/34-measuring-without-the-page-cache.md gives the reasons.
//!
//! - `config.rs`: the selection. `files.rs`: state of descriptors. `byte_range.rs`: write-back and eviction of a range.
//! - `evict.rs`: what happens around one access; read it first. `write_behind.rs`: writes in flight.
//! - `transfer.rs`, `copy.rs`, `stdio.rs`, `printf.rs`, `aio.rs`, `raw.rs`, `rings.rs`: the calls. `maps.rs`: mappings.
//! - `descriptors.rs`, `programs.rs`: reused descriptors, started programs, exit.
//! - `next.rs`: the intercepted functions. `sys.rs`: system calls that cannot be intercepted.
//!
//! Hooks do not allocate, take no lock, preserve errno, and may be called in signal handlers and after a fork. They are `C-unwind` without
//! destructors, because a thread may be cancelled inside the intercepted call.

#![allow(unsafe_code)]

mod aio;
mod byte_range;
mod config;
mod copy;
mod descriptors;
mod evict;
mod files;
mod maps;
mod next;
#[cfg(target_arch = "x86_64")]
mod printf;
mod programs;
mod raw;
mod rings;
mod stdio;
mod sys;
mod transfer;
mod write_behind;
