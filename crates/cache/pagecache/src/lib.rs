//! The page cache: 4 KiB frames of memory, which page of which file is in which, and which leaves next.
//!
//! (Paper 000, section III.C; paper 001, section III.B, "Block cache".) It never does I/O, waits for nobody and reads no clock:
//! it answers questions and keeps books. Whoever moves the bytes (`datapath`) asks for a frame ([`PageCache::allocate`]), names
//! its memory in a request ([`PageCache::span`]), and tells what became of it. See [`cache`] for the life of a page.
//!
//! Everything is sized when it is opened; no call allocates memory but [`PageCache::new`]. Beside the 4096 bytes a frame costs
//! 32 of books ([`frame`]), 11 of index and up to 15 of ghosts: 1.4 %.
//!
//! **Towards shared memory.** Frames, index, ghosts and files are arrays of fixed width, linked by number, without a pointer, and
//! zero is empty; the bytes are in a `Region` already. Private to the process as yet, and what has to be done about it:
//! - the arrays are boxed slices: they become ranges of the region, words become atomics (`Region::u32`);
//! - changes need `&mut`: they need a lock that a dead process cannot keep. Readers need none: probe the index, take the
//!   frame's word, compare page and file, copy, compare the word again. That wants a version beside the state: the six bits of
//!   the age and the sixteen of the pins are what a word of 64 bits would keep;
//! - pins do not know who holds them: a dead process's pins have to be found again;
//! - the number of the arena in a `Span` is the process's own: each process makes its own `Span`s, by frame;
//! - the seed of the hash is 0: shared, it has to be secret from who chooses file names.
#![forbid(unsafe_code)]

pub mod cache;
mod files;
pub mod frame;
mod ghost;
mod index;
#[cfg(test)]
mod oracle;
pub mod order;
pub mod shared;
pub mod units;

pub use cache::{Config, Gave, Lookup, PageCache, Purpose, Room};
pub use files::Failures;
pub use frame::State;
pub use order::Replacement;
pub use units::{FileKey, FileNo, FrameId, PAGE_BYTES, PageIndex};
