//! A program's files past the page cache: preloaded, this library takes over the C library's calls that move file data. What was
//! read is dropped from the page cache, what was written is on the device before the call returns, and then dropped.
//! `hotshelf nocache` sets it up; docs/decisions/34-measuring-without-the-page-cache.md says why it is as it is.
//!
//! - `config.rs`: what is chosen. `files.rs`: which descriptors are. `evict.rs`: what is done around one access; read it first.
//!   `behind.rs`: writes that may be on their direction.
//! - `transfer.rs`, `copy.rs`, `stdio.rs`, `printf.rs`, `aio.rs`, `raw.rs`, `rings.rs`: the calls. `maps.rs`: what is mapped.
//! - `descriptors.rs`, `programs.rs`: numbers that change, programs that are started, the end.
//! - `next.rs`: the functions behind ours. `sys.rs`: system calls that nobody sees.
//!
//! Hooks allocate nothing, take no lock, leave errno alone, and may be called in signal handlers and after a fork. They are
//! `C-unwind` without destructors, since a thread may be cancelled inside of the call behind.

#![allow(unsafe_code)]

mod aio;
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
