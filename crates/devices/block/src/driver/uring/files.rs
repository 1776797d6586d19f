//! Requests as operations on a file or block device.

use std::sync::Arc;

use io_uring::{cqueue, opcode, squeue, types};
use rustix::fs::FallocateFlags;
use rustix::io::{Errno, ReadWriteFlags};

use super::buffers::Piece;
use super::commands::{Commands, Memory, Outcome, Rest};
use crate::driver::target::FileTarget;
use crate::error::Error;
use crate::geometry::Geometry;
use crate::request::{Op, Request};

/// The only file registered with the ring.
const FILE: types::Fixed = types::Fixed(0);

/// Translates requests into operations on a file or block device.
pub(crate) struct FileCommands {
    /// The open file and its geometry.
    pub target: Arc<FileTarget>,
}

impl Commands for FileCommands {
    type Entry = squeue::Entry;
    type End = cqueue::Entry;

    #[inline]
    fn geometry(&self) -> &Geometry {
        self.target.geometry()
    }

    /// Admits only transfers that the drive accepts unsplit. A polled transfer that the kernel has to split, by its length or by gaps
    /// between pages, fails with EAGAIN. A kernel thread then retries it for ever (seen in Linux 6.1). A write with `fua` may end in a
    /// flush, which cannot be polled.
    fn may_poll(&self, rest: &Rest<'_>) -> bool {
        match rest.memory {
            Memory::One(piece) => !rest.request.fua && piece.bytes <= self.target.polled_bytes_max(),
            Memory::None | Memory::Many(..) => false,
        }
    }

    #[inline]
    fn entry(&mut self, _: u32, name: u64, rest: &Rest<'_>) -> squeue::Entry {
        let block_bytes = u64::from(self.geometry().block_bytes);
        let offset = rest.request.lba.0 * block_bytes;
        let entry = match rest.request.op {
            Op::Read => read(offset + rest.done, rest.memory),
            Op::Write => write(offset + rest.done, rest.memory, rest.request.fua),
            // File times and owners need not be durable; fdatasync(2) syncs the metadata that is needed to find the data.
            Op::Flush => opcode::Fsync::new(FILE).flags(types::FsyncFlags::DATASYNC).build(),
            Op::Discard | Op::WriteZeroes => {
                // The second attempt to zero punches holes.
                let mode = self.target.fallocate_mode(rest.request.op, rest.done > 0);
                allocate(offset, u64::from(rest.request.blocks) * block_bytes, mode)
            }
        };
        entry.user_data(name)
    }

    #[inline]
    fn whole(&self, request: &Request) -> Option<i32> {
        let blocks = if request.op.has_data() { request.blocks } else { 0 };
        blocks.checked_mul(self.geometry().block_bytes)?.try_into().ok()
    }

    #[inline]
    fn outcome(&mut self, request: &Request, done: u64, answer: i32) -> Outcome {
        if answer < 0 {
            return match Errno::from_raw_os_error(-answer) {
                // The kernel's result for work that was cancelled during a wait.
                Errno::INTR => Outcome::Failed(Error::Cancelled),
                Errno::OPNOTSUPP if request.op == Op::WriteZeroes && done == 0 && self.target.zero_by_holes() => Outcome::Stepped(1),
                _ => Outcome::Failed(Error::from_errno(-answer)),
            };
        }
        if !request.op.has_data() {
            return Outcome::Done;
        }
        let wanted = u64::from(request.blocks) * u64::from(self.geometry().block_bytes) - done;
        let did = u64::from(answer.unsigned_abs());
        match self.target.after(did, wanted) {
            Ok(true) => Outcome::Done,
            Ok(false) => Outcome::Did(did),
            Err(error) => Outcome::Failed(error),
        }
    }
}

#[inline]
fn read(offset: u64, memory: Memory) -> squeue::Entry {
    match memory {
        Memory::One(Piece { address, bytes, fixed }) => match fixed.index() {
            Some(index) => opcode::ReadFixed::new(FILE, address as *mut u8, bytes, index).offset(offset).build(),
            None => opcode::Read::new(FILE, address as *mut u8, bytes).offset(offset).build(),
        },
        Memory::Many(vectors, count) => opcode::Readv::new(FILE, vectors, count).offset(offset).build(),
        Memory::None => unreachable!("a read has memory: the geometry says so"),
    }
}

#[inline]
fn write(offset: u64, memory: Memory, fua: bool) -> squeue::Entry {
    let flags = if fua { ReadWriteFlags::DSYNC.bits().cast_signed() } else { 0 };
    match memory {
        Memory::One(Piece { address, bytes, fixed }) => match fixed.index() {
            Some(index) => opcode::WriteFixed::new(FILE, address as *const u8, bytes, index).offset(offset).rw_flags(flags).build(),
            None => opcode::Write::new(FILE, address as *const u8, bytes).offset(offset).rw_flags(flags).build(),
        },
        Memory::Many(vectors, count) => opcode::Writev::new(FILE, vectors, count).offset(offset).rw_flags(flags).build(),
        Memory::None => unreachable!("a write has memory: the geometry says so"),
    }
}

fn allocate(offset: u64, bytes: u64, mode: FallocateFlags) -> squeue::Entry {
    opcode::Fallocate::new(FILE, bytes).offset(offset).mode(mode.bits().cast_signed()).build()
}
