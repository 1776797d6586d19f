//! Requests as commands of an NVMe drive, through its character node (`IORING_OP_URING_CMD`, `struct nvme_uring_cmd` of
//! linux/nvme_ioctl.h; the commands: NVM command set specification 1.0, section 3).

use std::fs::File;
use std::sync::Arc;

use io_uring::{cqueue, opcode, squeue, types};
use rustix::io::Errno;

use super::commands::{Commands, Memory, Outcome, Rest};
use crate::buffer::Arena;
use crate::driver::passthrough::status;
use crate::error::Error;
use crate::geometry::Geometry;
use crate::request::{Op, Request};

/// `_IOWR('N', 0x80, struct nvme_uring_cmd)`: memory in one piece.
const NVME_URING_CMD_IO: u32 = 0xc048_4e80;
/// `_IOWR('N', 0x81, struct nvme_uring_cmd)`: memory in several pieces.
const NVME_URING_CMD_IO_VEC: u32 = 0xc048_4e81;

const FLUSH: u8 = 0x00;
const WRITE: u8 = 0x01;
const READ: u8 = 0x02;
const WRITE_ZEROES: u8 = 0x08;
const DATASET_MANAGEMENT: u8 = 0x09;
/// Dataset Management, command dword 11: deallocate.
const DEALLOCATE: u32 = 1 << 2;
/// Write, command dword 12: force unit access.
const FORCE_UNIT_ACCESS: u32 = 1 << 30;
/// The block count of a command has 16 bits and is zero-based.
const BLOCKS_MAX: u64 = 1 << 16;
/// The size of a range of Dataset Management, in bytes.
const RANGE_BYTES: usize = 16;

/// An open namespace of an NVMe drive.
#[derive(Debug)]
pub(crate) struct NvmeTarget {
    /// The open character node of the namespace.
    pub node: File,
    /// The namespace ID of the node.
    pub nsid: u32,
    /// The geometry of the namespace.
    pub geometry: Geometry,
}

/// Translates requests into commands of an NVMe drive.
pub(crate) struct NvmeCommands {
    target: Arc<NvmeTarget>,
    /// One Dataset Management range for each slot.
    ranges: Arena,
}

impl NvmeCommands {
    /// Creates the commands of a queue of this depth.
    pub(crate) fn new(target: Arc<NvmeTarget>, depth: u32) -> std::io::Result<NvmeCommands> {
        Ok(NvmeCommands { target, ranges: Arena::private(depth as usize * RANGE_BYTES)? })
    }

    /// Writes the range of a slot, and returns its address.
    fn range(&self, index: u32, request: &Request) -> u64 {
        let at = index as usize * RANGE_BYTES;
        let mut range = [0; RANGE_BYTES];
        range[4..8].copy_from_slice(&request.blocks.to_le_bytes());
        range[8..].copy_from_slice(&request.lba.0.to_le_bytes());
        self.ranges.region().write(at, &range);
        self.ranges.region().address(at) as u64
    }
}

/// The fields of `struct nvme_uring_cmd` that this driver sets.
#[derive(Default)]
struct Command {
    opcode: u8,
    nsid: u32,
    addr: u64,
    data_len: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
}

impl Command {
    /// Returns the command in the layout of the kernel.
    #[inline]
    fn bytes(&self) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[0] = self.opcode;
        bytes[4..8].copy_from_slice(&self.nsid.to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.addr.to_ne_bytes());
        bytes[36..40].copy_from_slice(&self.data_len.to_ne_bytes());
        bytes[40..44].copy_from_slice(&self.cdw10.to_ne_bytes());
        bytes[44..48].copy_from_slice(&self.cdw11.to_ne_bytes());
        bytes[48..52].copy_from_slice(&self.cdw12.to_ne_bytes());
        bytes
    }

    /// Sets the block range `lba..lba + blocks`.
    #[inline]
    fn set_blocks(&mut self, lba: u64, blocks: u64) {
        self.cdw10 = (lba & u64::from(u32::MAX)) as u32;
        self.cdw11 = (lba >> 32) as u32;
        self.cdw12 = u32::try_from(blocks - 1).expect("no more than a command takes");
    }
}

/// Returns the block count of the next command of a request whose first `done` blocks are done.
fn step(request: &Request, done: u64) -> u64 {
    (u64::from(request.blocks) - done).min(BLOCKS_MAX)
}

impl Commands for NvmeCommands {
    type Entry = squeue::Entry128;
    type End = cqueue::Entry32;

    #[inline]
    fn geometry(&self) -> &Geometry {
        &self.target.geometry
    }

    /// In Linux 6.1 a command without data on a polled ring follows an uninitialized pointer: the kernel panics in `bio_poll`, because
    /// there is no bio. Such a command gains nothing from polling either.
    fn may_poll(&self, rest: &Rest<'_>) -> bool {
        rest.request.op.has_data()
    }

    /// Kernels before 6.16 count all pages of a registered piece as segments of the command, regardless of its length. If those exceed the
    /// drive's limit, the command fails with EINVAL.
    fn piece_shift(&self) -> u32 {
        self.target.geometry.transfer_bytes_max.max(4096).ilog2()
    }

    fn memory(&self) -> Option<&Arena> {
        Some(&self.ranges)
    }

    #[inline]
    fn entry(&mut self, index: u32, name: u64, rest: &Rest<'_>) -> squeue::Entry128 {
        let request = rest.request;
        let mut command = Command { nsid: self.target.nsid, ..Command::default() };
        let (mut kind, mut fixed) = (NVME_URING_CMD_IO, None);
        match request.op {
            Op::Flush => command.opcode = FLUSH,
            Op::Read | Op::Write => {
                command.opcode = if request.op == Op::Read { READ } else { WRITE };
                command.set_blocks(request.lba.0, u64::from(request.blocks));
                if request.fua && request.op == Op::Write {
                    command.cdw12 |= FORCE_UNIT_ACCESS;
                }
                match rest.memory {
                    Memory::One(piece) => (command.addr, command.data_len, fixed) = (piece.address, piece.bytes, piece.fixed.index()),
                    Memory::Many(vectors, count) => (kind, command.addr, command.data_len) = (NVME_URING_CMD_IO_VEC, vectors as u64, count),
                    Memory::None => unreachable!("it has memory: the geometry says so"),
                }
            }
            Op::WriteZeroes => {
                command.opcode = WRITE_ZEROES;
                command.set_blocks(request.lba.0 + rest.done, step(request, rest.done));
            }
            Op::Discard => {
                command.opcode = DATASET_MANAGEMENT;
                command.cdw11 = DEALLOCATE; // and dword 10 counts the ranges from 1
                (command.addr, command.data_len) = (self.range(index, request), RANGE_BYTES as u32);
            }
        }
        opcode::UringCmd80::new(types::Fixed(0), kind).buf_index(fixed).cmd(command.bytes()).build().user_data(name)
    }

    #[inline]
    fn whole(&self, request: &Request) -> Option<i32> {
        (request.op != Op::WriteZeroes).then_some(0)
    }

    #[inline]
    fn outcome(&mut self, request: &Request, done: u64, answer: i32) -> Outcome {
        match answer {
            0 if request.op == Op::WriteZeroes && done + step(request, done) < u64::from(request.blocks) => {
                Outcome::Stepped(step(request, done))
            }
            0 => Outcome::Done,
            // The kernel's driver aborted the command: it reset the drive, or the drive is gone.
            answer if answer == -Errno::INTR.raw_os_error() => Outcome::Failed(Error::Reset),
            answer if answer < 0 => Outcome::Failed(Error::from_errno(-answer)),
            answer => Outcome::Failed(status::error((answer & 0xffff) as u16)),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_command_is_laid_out_as_the_kernel_reads_it() {
        let mut command = Command { opcode: WRITE, nsid: 1, addr: 0x1234_5678_9abc_d000, data_len: 4096, ..Command::default() };
        command.set_blocks(0x2_0000_0003, 8);
        let bytes = command.bytes();
        assert_eq!(bytes[0], 1);
        assert_eq!(bytes[24..32], 0x1234_5678_9abc_d000_u64.to_ne_bytes());
        assert_eq!([bytes[40], bytes[44], bytes[48]], [3, 2, 7]);
    }
}
