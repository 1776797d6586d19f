//! Stands for a backing file that is not open, of which only cached data can be read.

use std::io;

use rustix::io::Errno;

use super::{BackingFile, Stamp};

/// A backing file that is not open.
pub(super) struct NotOpen {
    /// The last known stamp of the file.
    pub stamp: Stamp,
    /// The error of each call on the file.
    pub error: Errno,
}

impl NotOpen {
    fn refuse<T>(&self) -> io::Result<T> {
        Err(self.error.into())
    }
}

impl BackingFile for NotOpen {
    fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<usize> {
        self.refuse()
    }
    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        self.refuse()
    }
    fn sync(&self) -> io::Result<()> {
        self.refuse()
    }
    fn set_len(&self, _: u64) -> io::Result<()> {
        self.refuse()
    }
    fn punch(&self, _: u64, _: u64) -> io::Result<()> {
        self.refuse()
    }
    fn set_mtime(&self, _: u64) -> io::Result<()> {
        self.refuse()
    }
    fn stamp(&self) -> io::Result<Stamp> {
        Ok(self.stamp)
    }
    fn is_open(&self) -> bool {
        false
    }
}
