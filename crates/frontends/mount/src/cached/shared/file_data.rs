//! The data of open files.

use cachedfs::{File, Mode};
use directoryfs::{Node, Stat};
use fusedev::Caller;
use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::Errno;

use super::CachedShared;
use super::open_file::OpenCachedFile;
use crate::cached::data::errno;
use crate::late_errors::close_and_report;
use crate::wire::check_wanted;

/// Where in the file a write goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum WritePlace {
    /// To its offset.
    Anywhere,
    /// To the end of the file, which another program may have moved.
    End,
    /// To its offset, and not past the end of the file: what the kernel writes back from a mapping.
    WithinFile,
}

impl CachedShared {
    /// Appends `data` at the present end of a file, which another program may have moved since the kernel looked. Returns the length
    /// and the offset.
    fn append(&self, opened: &OpenCachedFile, data: &[u8]) -> Result<(usize, u64), Errno> {
        // A network file system asks its server at each append. The cache takes what that told from the file system's memory.
        if self.is_remote {
            Stat::newest_of(opened.file.fd())?;
        }
        opened.file.stat().map_err(|error| errno(&error))?;
        check_wanted()?;
        opened.file.append_some(data).map(|(at, length)| (length, at)).map_err(|error| errno(&error))
    }

    /// Writes all of `data`, which the kernel takes for one write. Returns the length, and the offset.
    pub fn write(&self, opened: &OpenCachedFile, offset: u64, data: &[u8], place: WritePlace) -> Result<(usize, u64), Errno> {
        let written = self.fs.as_caller(opened.opener, || match place {
            WritePlace::End => self.append(opened, data),
            WritePlace::Anywhere => Ok((self.write_at(opened, offset, data)?, offset)),
            WritePlace::WithinFile => {
                opened.file.write_within(offset, data).map_err(|error| errno(&error))?;
                // The kernel does not need to know that the rest is past the end.
                Ok((data.len(), offset))
            }
        });
        match &written {
            Ok(_) if place == WritePlace::WithinFile => opened.node.note_changed(),
            Ok((length, at)) => opened.node.note_written(at + *length as u64),
            Err(_) => opened.node.note_changed(),
        }
        self.note_write_time(&opened.file);
        written
    }

    fn write_at(&self, opened: &OpenCachedFile, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        let mut done = 0;
        while done < data.len() {
            check_wanted()?;
            match opened.file.write_at(offset + done as u64, &data[done..]) {
                Ok(0) => break,
                Ok(written) => done += written,
                Err(_) if done > 0 => break,
                Err(error) => return Err(errno(&error)),
            }
        }
        Ok(done)
    }

    /// Lets programs see a change by its time. Writes that go through have the time of the file system.
    fn note_write_time(&self, file: &File) {
        if self.mode == Mode::WriteBack {
            file.note_exact_write_time();
        }
    }

    /// Reads all of `to` that the file has. A part before an error is not given out: the kernel takes a short reply for the end of the
    /// file, and fills the rest of the page with zeroes.
    pub fn read(&self, opened: &OpenCachedFile, offset: u64, to: &mut [u8]) -> Result<usize, Errno> {
        let mut done = 0;
        while done < to.len() {
            match opened.file.read_at(offset + done as u64, &mut to[done..]).map_err(|error| errno(&error))? {
                0 => break,
                read => done += read,
            }
        }
        Ok(done)
    }

    /// Returns whether a read needs nothing of the slow side.
    pub fn has_all(&self, opened: &OpenCachedFile, offset: u64, size: usize) -> bool {
        let Ok(len) = opened.file.len() else { return false };
        let range = offset..offset.saturating_add(size as u64).min(len);
        range.is_empty() || matches!(opened.file.residency_in(range), Ok(Some(part)) if part.cached == part.pages)
    }

    /// Returns an error of earlier writes that nobody has got yet.
    pub fn flush(&self, opened: &OpenCachedFile) -> Result<(), Errno> {
        opened.take_late_error()?;
        opened.file.take_unreported().map_err(|error| errno(&error))?;
        if !self.is_remote {
            return Ok(());
        }
        let again = || rustix::io::fcntl_dupfd_cloexec(opened.file.written_fd(), 0);
        close_and_report(self.fs.with_descriptors(again)?)
    }

    /// Makes the written data of an open file durable.
    pub fn sync(&self, opened: &OpenCachedFile, data_only: bool) -> Result<(), Errno> {
        opened.take_late_error()?;
        // A file system in another process may tell the error of a write only to the descriptor that made it; the leader has its own.
        if self.is_remote && opened.is_written {
            rustix::fs::fsync(opened.file.written_fd())?;
        }
        // Meanwhile a flush whose reply came too late may have been told the error, which the file system tells once.
        opened.take_late_error()?;
        opened.file.sync(data_only).map_err(|error| errno(&error))
    }

    /// Changes the size through the cache, by the open file of the request or by another. `takes_set_id`: set-ID bits go before, unless the
    /// file cannot have this size.
    pub(super) fn set_len(
        &self,
        caller: Caller,
        node: &Node,
        open: Option<&OpenCachedFile>,
        (size, takes_set_id): (u64, bool),
    ) -> Result<(), Errno> {
        let to_errno = |error: cachedfs::Error| errno(&error);
        let resize = |file: &File| {
            file.may_have_len(size).map_err(to_errno)?;
            check_wanted()?;
            if takes_set_id {
                self.take_set_id(caller, node)?;
                check_wanted()?;
            }
            file.set_len(size).map_err(to_errno)?;
            self.note_write_time(file);
            Ok(())
        };
        if let Some(open) = open.filter(|open| open.is_written) {
            return resize(&open.file);
        }
        let file = self.open_file(caller, node, OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK)?;
        resize(&file)?;
        file.close().map_err(to_errno)
    }

    /// Reserves, zeroes or frees a range of a file, as fallocate(2).
    pub fn allocate(
        &self,
        caller: Caller,
        opened: &OpenCachedFile,
        range: std::ops::Range<u64>,
        mode: FallocateFlags,
    ) -> Result<(), Errno> {
        if !caller.is_root() {
            self.take_set_id(caller, &opened.node)?;
        }
        let keep_size = mode.contains(FallocateFlags::KEEP_SIZE);
        let file = &opened.file;
        check_wanted()?;
        let done = match mode - FallocateFlags::KEEP_SIZE {
            // Only the times change.
            FallocateFlags::PUNCH_HOLE if keep_size && self.is_beyond(file, range.start)? => {
                let call = || rustix::fs::fallocate(file.fd(), mode, range.start, range.end - range.start);
                return self.instance.change_times(file.fd(), call);
            }
            FallocateFlags::PUNCH_HOLE if keep_size => file.punch_hole(range),
            FallocateFlags::ZERO_RANGE => file.punch_hole(range.clone()).and_then(|()| file.allocate(range, keep_size)),
            plain if plain.is_empty() => file.allocate(range, keep_size),
            _ => return Err(Errno::OPNOTSUPP),
        };
        self.note_write_time(file);
        done.map_err(|error| errno(&error))
    }

    /// Returns whether a file ends at or before an offset.
    fn is_beyond(&self, file: &File, offset: u64) -> Result<bool, Errno> {
        Ok(offset >= file.len().map_err(|error| errno(&error))?)
    }

    /// Returns where the next data or the next hole begins.
    pub fn seek(&self, opened: &OpenCachedFile, to: SeekFrom) -> Result<u64, Errno> {
        // The slow side knows its holes, once it has all data.
        if self.instance.stat_if_newer(opened.file.fd())?.is_some() {
            opened.file.clean().map_err(|error| errno(&error))?;
        }
        rustix::fs::seek(opened.file.fd(), to)
    }
}
