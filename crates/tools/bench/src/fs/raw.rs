//! rawfs as a library, on its own device.

use std::io;
use std::path::Path;
use std::time::Duration;

use block::driver::{FileDevice, FileOptions};
use rawfs::fs::{Creds, Error, Fs, FsSettings, Memory, Timestamp};
use rawfs::{Disk, FormatOptions, Settings, Store};
use rustix::fs::OFlags;

use super::Files;

/// An open rawfs file system.
pub struct Raw {
    fs: Fs,
    creds: Creds,
}

pub(super) fn wrong(error: &Error) -> io::Error {
    io::Error::from_raw_os_error(error.errno().raw_os_error())
}

/// Options of the file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawOptions {
    /// Memory limit of everything, in bytes.
    pub memory: usize,
    /// Maximum age of dirty data before write-back.
    pub write_back: Duration,
    /// Memory for metadata in bytes; `None`: the default.
    pub metadata: Option<u64>,
}

impl Raw {
    /// Formats and opens the device; its data is lost.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn make(device: &Path, options: RawOptions) -> anyhow::Result<Raw> {
        let device = FileDevice::open(device, &FileOptions { locked: true, ..FileOptions::default() })?;
        let memory = Memory::of(options.memory);
        let disk = || Disk::open(&device, &memory.disk());
        Store::format(&disk()?, &FormatOptions { metadata_bytes: options.metadata, ..FormatOptions::default() })?;
        let mut settings = Settings { discard: false, ..Settings::default() };
        let mut files = FsSettings { write_back: options.write_back, ..FsSettings::default() };
        memory.divide(disk()?.blocks(), &mut settings, &mut files)?;
        let (store, _) = Store::open(disk()?, &settings)?;
        Fs::format(&store, Timestamp::now())?;
        let (fs, _) = Fs::open(store, files)?;
        Ok(Raw { fs, creds: Creds::root() })
    }

    /// Returns the file system itself.
    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    /// Writes everything and closes the file system.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn close(self) -> anyhow::Result<()> {
        Ok(self.fs.close()?)
    }

    pub(super) fn open(&self, path: &str, flags: OFlags) -> io::Result<rawfs::fs::File> {
        self.fs.open_at(self.fs.root(), path.as_bytes(), flags, 0o644, &self.creds).map_err(|error| wrong(&error))
    }

    fn write(file: &rawfs::fs::File, data: &[u8], at: u64, sync: bool) -> io::Result<()> {
        if file.write_at(data, at).map_err(|error| wrong(&error))? < data.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if sync { file.sync().map_err(|error| wrong(&error)) } else { Ok(()) }
    }
}

impl Files for Raw {
    fn make_dir(&self, path: &str) -> io::Result<()> {
        self.fs.mkdir(self.fs.root(), path.as_bytes(), 0o755, &self.creds).map(drop).map_err(|error| wrong(&error))
    }

    fn create(&self, path: &str, data: &[u8], sync: bool) -> io::Result<()> {
        Raw::write(&self.open(path, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?, data, 0, sync)
    }

    fn append(&self, path: &str, data: &[u8], sync: bool) -> io::Result<()> {
        Raw::write(&self.open(path, OFlags::WRONLY | OFlags::APPEND)?, data, 0, sync)
    }

    fn read(&self, path: &str, at: u64, to: &mut [u8]) -> io::Result<usize> {
        self.open(path, OFlags::RDONLY)?.read_at(to, at).map_err(|error| wrong(&error))
    }

    fn delete(&self, dir: &str, path: &str, sync: bool) -> io::Result<()> {
        self.fs.unlink(self.fs.root(), path.as_bytes(), &self.creds).map_err(|error| wrong(&error))?;
        if sync { self.open(dir, OFlags::RDONLY)?.sync().map_err(|error| wrong(&error)) } else { Ok(()) }
    }

    fn sync(&self) -> io::Result<()> {
        self.fs.sync().map_err(|error| wrong(&error))
    }
}
