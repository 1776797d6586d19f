//! Writes to open files, and what a write needs first.

use std::io::IoSlice;
use std::os::fd::AsFd;

use fusedev::Caller;
use rustix::io::{Errno, ReadWriteFlags};

use super::WriteOutcome;
use crate::errno::Result;
use crate::open::{FileHandle, OpenDescriptors, OpenInode};
use crate::pair::TieredFs;
use crate::report::TierName;

impl TieredFs {
    /// Writes at `at`. `kill`: by whom, when the kernel leaves it to us to take set-id bits.
    pub fn write(&self, handle: &FileHandle, at: u64, data: &[u8], flags: ReadWriteFlags, kill: Option<Caller>) -> Result<WriteOutcome> {
        let inode = &handle.inode;
        let io = inode.io.read();
        if io.tier == TierName::Ssd && self.space.tight() && !self.overwrites(&io, at, data.len())? {
            return Ok(WriteOutcome::Full);
        }
        self.take_before_write(inode, &io, kill)?;
        let (done, outcome) = self.write_charged(handle, &io, at, data, flags)?;
        // What was written before the disk was full is written again with the rest.
        match outcome.map(|()| done) {
            Ok(n) => Ok(WriteOutcome::Done(n)),
            Err(Errno::NOSPC) => Ok(WriteOutcome::Full),
            // No file that leaves makes room in a quota.
            Err(Errno::DQUOT) if done > 0 => Ok(WriteOutcome::Done(done)),
            Err(error) => {
                self.note_failure_at(io.tier, io.any().as_fd(), error);
                if error == Errno::IO {
                    inode.failed.lock().get_or_insert(error);
                }
                Err(error)
            }
        }
    }

    /// Takes set-id bits before the data that ends them: nobody runs it with their rights.
    fn take_before_write(&self, inode: &OpenInode, io: &OpenDescriptors, kill: Option<Caller>) -> Result<()> {
        let Some(caller) = kill else { return Ok(()) };
        self.take_set_id(caller, inode.ino, io.tier, io.must_rw()?.as_fd())
    }

    /// As [`TieredFs::write_io`]; near the blocks that are kept for root, in the name of whoever opened the file. (A quota is the owner's
    /// in any case.)
    fn write_charged(
        &self,
        handle: &FileHandle,
        io: &OpenDescriptors,
        at: u64,
        data: &[u8],
        flags: ReadWriteFlags,
    ) -> Result<(usize, Result<()>)> {
        let write = || self.write_io(&handle.inode, io, at, data, flags);
        if handle.caller.uid == 0 || !self.space.is_near_reserved(io.tier) {
            return Ok(write());
        }
        self.in_the_name_of((handle.caller.uid, handle.caller.gid), write)
    }

    /// How much was written, and why no more.
    fn write_io(&self, inode: &OpenInode, io: &OpenDescriptors, at: u64, data: &[u8], flags: ReadWriteFlags) -> (usize, Result<()>) {
        let file = match io.must_rw() {
            Ok(file) => file,
            Err(error) => return (0, Err(error)),
        };
        let mut done = 0;
        let outcome = loop {
            if done == data.len() {
                break Ok(());
            }
            let offset = at + done as u64;
            let wrote = if flags.is_empty() {
                rustix::io::pwrite(file, &data[done..], offset)
            } else {
                rustix::io::pwritev2(file, &[IoSlice::new(&data[done..])], offset, flags)
            };
            match wrote {
                Ok(0) => break Err(Errno::IO),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(error) => break Err(error),
            }
        };
        if done > 0 {
            inode.note_written(at, done as u64);
            self.space.wrote(io.tier, done as u64);
        }
        (done, outcome)
    }

    /// A write inside the file takes no new space, but for holes, which the file system will report.
    fn overwrites(&self, io: &OpenDescriptors, at: u64, len: usize) -> Result<bool> {
        let stat = self.tier(io.tier).stat_fd(io.any().as_fd())?;
        Ok(at + len as u64 <= stat.size && stat.blocks * 512 >= stat.size)
    }

    /// Writes although the side is full: waits until files are demoted, or demotes this one.
    pub fn write_waiting(&self, handle: &FileHandle, at: u64, data: &[u8], flags: ReadWriteFlags, kill: Option<Caller>) -> Result<usize> {
        for _ in 0..64 {
            if self.make_room(handle, data.len() as u64).is_err() {
                // What is kept in reserve is for this: better than an error while there is any room. Why no
                // room could be made is in the log; to the writer its side is full.
                let io = handle.inode.io.read();
                self.take_before_write(&handle.inode, &io, kill)?;
                return match self.write_charged(handle, &io, at, data, flags)? {
                    (0, Err(error)) => self.noted_at(io.tier, io.any().as_fd(), Err(error)),
                    (done, _) => Ok(done),
                };
            }
            if let WriteOutcome::Done(n) = self.write(handle, at, data, flags, kill)? {
                return Ok(n);
            }
        }
        Err(Errno::NOSPC)
    }
}
