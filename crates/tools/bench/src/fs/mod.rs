//! rawfs beside a kernel file system: the small files of the NVMeDFS paper (section IV.C) and a key-value store over a file (IV.D).
//!
//! One process measures one side and prints one line of `name=value`. The scripts in `bench/` run both sides in turn on the same loop
//! device and read the kernel's counters of it.

pub mod args;
pub mod kernel;
pub mod kv;
pub mod raw;
pub mod small;
pub mod zipf;

use std::io;

/// Size of one read or append, in bytes.
pub const BLOCK: usize = 4096;

/// The file system calls of the small-files workload.
pub trait Files: Sync {
    /// Creates a directory.
    ///
    /// # Errors
    /// Errors of the file system.
    fn make_dir(&self, path: &str) -> io::Result<()>;
    /// Creates a file with this content. `sync`: file and name are durable on return.
    ///
    /// # Errors
    /// Errors of the file system.
    fn create(&self, path: &str, data: &[u8], sync: bool) -> io::Result<()>;
    /// Appends data to a file.
    ///
    /// # Errors
    /// Errors of the file system.
    fn append(&self, path: &str, data: &[u8], sync: bool) -> io::Result<()>;
    /// Reads from an offset; returns the number of bytes.
    ///
    /// # Errors
    /// Errors of the file system.
    fn read(&self, path: &str, at: u64, to: &mut [u8]) -> io::Result<usize>;
    /// Removes a file. `sync`: the removal is durable on return.
    ///
    /// # Errors
    /// Errors of the file system.
    fn delete(&self, dir: &str, path: &str, sync: bool) -> io::Result<()>;
    /// Makes everything durable before it returns.
    ///
    /// # Errors
    /// Errors of the file system.
    fn sync(&self) -> io::Result<()>;
}
