//! Open files and directories: opening, listing, and the end of a write.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use super::convert::{kind, to_wire_attr};
use fuser::{FileType, FopenFlags, OpenFlags, WriteFlags};
use hybridfs::{Attr, Caller, DOTS, FileHandle, Listing, behind, first_at};
use rustix::io::Errno;

use super::{FuseFilesystem, O_ACCMODE, O_WRONLY, WRITE_ONLY};
use crate::direct_writes::CompletedDirectWrite;
use crate::handles::OpenFile;
use crate::late_errors::may_be_late;
use crate::wire::{self, ReplyDirectory, ReplyDirectoryPlus, ReplyOpen, ReplyWrite};

impl FuseFilesystem {
    pub(super) fn open_now(&self, caller: Caller, ino: u64, flags: OpenFlags, reply: ReplyOpen) {
        let access = flags.0 & O_ACCMODE;
        let (read, write) = (access != O_WRONLY, access != 0);
        let handle = match self.inner.fs.open(caller, ino, read, write) {
            Ok(handle) => handle,
            Err(error) => return reply.error(error),
        };
        let fs = &self.inner.fs;
        let inode = handle.inode.clone();
        let register = |file: &OwnedFd| fs.as_bypassing(&handle, || reply.open_backing(file))?;
        let new = || self.inner.direct_writes.cached();
        let (backing, cached) = self.inner.modes.enter(&inode, || fs.may_bypass(&handle), register, new);
        let mut fopen = self.no_flush(&handle, backing.is_some());
        match backing {
            Some(backing) => {
                if write {
                    // From now on data may change without a request; what the kernel knew was for longer.
                    self.inner.changed.invalidate_attributes(ino);
                    fs.stamp_cache(ino, None);
                }
                let fh = self.inner.handles.files.add(OpenFile { handle, bypass: true, cached });
                reply.opened_passthrough(fh, fopen, &backing);
            }
            None => {
                if fs.handle_attr(&handle).is_ok_and(|attr| fs.cache_is_current(ino, &attr.stat)) {
                    fopen |= FopenFlags::FOPEN_KEEP_CACHE;
                    cached.has_pages();
                }
                fopen |= self.write_only(&handle, access);
                let fh = self.inner.handles.files.add(OpenFile { handle, bypass: false, cached });
                reply.opened(fh, fopen);
            }
        }
    }

    /// Returns the flag that spares a request at each close(2); none where the file system may tell an error of a write not before that.
    pub(super) fn no_flush(&self, handle: &FileHandle, bypass: bool) -> FopenFlags {
        // A file whose data bypasses the daemon stays on its side; others may move while they are open.
        let may_move = || !bypass && self.inner.is_remote;
        let has_late_errors = handle.write && (may_move() || may_be_late(&*handle.inode.any_fd().1).unwrap_or(true));
        if has_late_errors { FopenFlags::empty() } else { FopenFlags::FOPEN_NOFLUSH }
    }

    /// How a handle that goes through us and was opened with this access is written to.
    pub(super) fn write_only(&self, handle: &FileHandle, access: i32) -> FopenFlags {
        let direct = match self.inner.gathers {
            false => access == O_WRONLY,
            // To cache a partial page the kernel must read the rest of it.
            true => access != 0 && !handle.inode.can_read(),
        };
        if direct { WRITE_ONLY } else { FopenFlags::empty() }
    }

    pub(super) fn list(&self, listing: &Listing, ino: u64, offset: u64, reply: &mut ReplyDirectory) -> Result<(), Errno> {
        let fs = &self.inner.fs;
        let entries = fs.entries(listing, offset == 0)?;
        for at in first_at(&entries, offset).. {
            let full = match at {
                0 => reply.add(ino, 1, FileType::Directory, "."),
                1 => reply.add(fs.parent_of(ino), 2, FileType::Directory, ".."),
                _ => {
                    let Some(entry) = entries.get(at - DOTS) else { break };
                    match fs.entry_attr(&listing.dir, entry, false)? {
                        Some(attr) => reply.add(attr.ino, behind(&entries, at), kind(attr.stat.kind()), OsStr::from_bytes(&entry.name)),
                        None => false,
                    }
                }
            };
            if full {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn list_with_attributes(
        &self,
        listing: &Listing,
        ino: u64,
        offset: u64,
        reply: &mut ReplyDirectoryPlus,
    ) -> Result<(), Errno> {
        let fs = &self.inner.fs;
        let entries = fs.entries(listing, offset == 0)?;
        let begin = first_at(&entries, offset);
        for at in begin.. {
            let full = match at {
                0 | 1 => {
                    // The kernel takes no reference for these two.
                    let (number, name) = if at == 0 { (ino, ".") } else { (fs.parent_of(ino), "..") };
                    let attr = wire::Attr { ino: number, ..to_wire_attr(&fs.getattr(number)?) };
                    reply.add(behind(&entries, at), name, Duration::ZERO, &attr)
                }
                _ => {
                    let Some(entry) = entries.get(at - DOTS) else { break };
                    match fs.entry_attr(&listing.dir, entry, true) {
                        Ok(Some(attr)) => self.entry_in(reply, behind(&entries, at), OsStr::from_bytes(&entry.name), &attr),
                        Ok(None) => false,
                        // Entries that already have references must be sent; the error occurs again at the next read.
                        Err(_) if at > begin => true,
                        Err(error) => return Err(error),
                    }
                }
            };
            if full {
                break;
            }
        }
        Ok(())
    }

    /// Adds an entry that has a reference, which is given back if there is no room: true.
    fn entry_in(&self, reply: &mut ReplyDirectoryPlus, next: u64, name: &OsStr, attr: &Attr) -> bool {
        let full = reply.add(next, name, self.attr_ttl(attr), &to_wire_attr(attr));
        if full {
            self.inner.fs.forget(attr.ino, 1);
        }
        full
    }

    /// Replies to a write whose data is in the file.
    pub(super) fn written(
        &self,
        file: &OpenFile,
        direct: bool,
        (offset, length): (u64, usize),
        may_wait: impl FnOnce() -> bool,
        reply: ReplyWrite,
    ) {
        let answer = move || reply.written(length as u32);
        if direct {
            let landed = CompletedDirectWrite { ino: file.handle.inode.ino, offset, length, cached: &file.cached };
            self.inner.direct_writes.answer(&landed, may_wait, answer);
        } else {
            answer();
        }
    }

    pub(super) fn write_done(&self, file: &OpenFile, flags: WriteFlags) {
        // Written back from a shared mapping: the kernel has not seen the time change.
        if flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            self.inner.changed.invalidate_attributes(file.handle.inode.ino);
        }
    }
}
