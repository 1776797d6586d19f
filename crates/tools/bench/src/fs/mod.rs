//! `rawfs` beside a kernel file system: the paper's small files (001, section IV.C) and a key-value store over a file (IV.D).
//!
//! One process measures one side and prints one line of `name=value`; the scripts in `bench/` run both sides in turn on the same
//! loop device and count what reached it by the kernel's own counters.

pub mod args;
pub mod kernel;
pub mod kv;
pub mod raw;
pub mod small;
pub mod zipf;

use std::io;

/// Bytes of one read or append.
pub const BLOCK: usize = 4096;

/// What the small files are made in.
pub trait Files: Sync {
    /// Makes a directory.
    ///
    /// # Errors
    /// The file system's.
    fn make_dir(&self, path: &str) -> io::Result<()>;
    /// Makes a file with this content. `sync`: it is durable when this returns, and its name.
    ///
    /// # Errors
    /// The file system's.
    fn create(&self, path: &str, data: &[u8], sync: bool) -> io::Result<()>;
    /// Adds to a file's end.
    ///
    /// # Errors
    /// The file system's.
    fn append(&self, path: &str, data: &[u8], sync: bool) -> io::Result<()>;
    /// Reads a piece; returns how much.
    ///
    /// # Errors
    /// The file system's.
    fn read(&self, path: &str, at: u64, to: &mut [u8]) -> io::Result<usize>;
    /// Removes a file. `sync`: it is gone for good.
    ///
    /// # Errors
    /// The file system's.
    fn delete(&self, dir: &str, path: &str, sync: bool) -> io::Result<()>;
    /// Everything is durable when this returns.
    ///
    /// # Errors
    /// The file system's.
    fn sync(&self) -> io::Result<()>;
}
