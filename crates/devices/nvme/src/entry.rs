//! Entries of queues: commands of 64 bytes, completion entries of 16 (NVMe base specification 2.0, sections 3.3.3.1 and 3.3.3.2).
//!
//! Both consist of words as they are in memory, little-endian; the driver supports only little-endian machines.

use crate::status::Status;

const _: () = assert!(cfg!(target_endian = "little"), "entries are copied as words");

/// Operations of the admin queue.
pub mod admin {
    #![allow(missing_docs, reason = "the names are the specification's")]
    /// Admin command: deletes an I/O submission queue.
    pub const DELETE_SQ: u8 = 0x00;
    /// Admin command: creates an I/O submission queue.
    pub const CREATE_SQ: u8 = 0x01;
    /// Admin command: reads a log page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Admin command: deletes an I/O completion queue.
    pub const DELETE_CQ: u8 = 0x04;
    /// Admin command: creates an I/O completion queue.
    pub const CREATE_CQ: u8 = 0x05;
    /// Admin command: reads an Identify data structure.
    pub const IDENTIFY: u8 = 0x06;
    /// Admin command: aborts an earlier command.
    pub const ABORT: u8 = 0x08;
    /// Admin command: sets a feature's value.
    pub const SET_FEATURES: u8 = 0x09;
    /// Admin command: reads a feature's value.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Admin command: completes when the controller reports an asynchronous event.
    pub const ASYNC_EVENT: u8 = 0x0c;
    /// Admin command: attaches a namespace to controllers, or detaches it.
    pub const NAMESPACE_ATTACHMENT: u8 = 0x15;
    /// Admin command: gives the controller the memory of the shadow doorbells.
    pub const DOORBELL_BUFFER: u8 = 0x7c;
}

/// Operations of the NVM command set.
pub mod nvm {
    #![allow(missing_docs, reason = "the names are the specification's")]
    /// I/O command: writes the volatile write cache to the medium.
    pub const FLUSH: u8 = 0x00;
    /// I/O command: writes logical blocks to the namespace.
    pub const WRITE: u8 = 0x01;
    /// I/O command: reads logical blocks of the namespace.
    pub const READ: u8 = 0x02;
    /// I/O command: sets logical blocks to zero without a data transfer.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// I/O command: describes ranges of blocks; used to deallocate them.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
}

/// Feature identifiers of Set Features and Get Features.
pub mod feature {
    #![allow(missing_docs, reason = "the names are the specification's")]
    /// Feature: whether the volatile write cache is enabled.
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    /// Feature: the number of I/O queues, requested and allocated.
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    /// Feature: the asynchronous events that the controller reports.
    pub const ASYNC_EVENTS: u8 = 0x0b;
}

/// Log page identifiers of Get Log Page.
pub mod log {
    #![allow(missing_docs, reason = "the names are the specification's")]
    /// Log page: the most recent errors of the controller.
    pub const ERRORS: u8 = 0x01;
    /// Log page: SMART and health information.
    pub const SMART: u8 = 0x02;
    /// Log page: the namespaces that changed since it was last read.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
}

/// A command, without its identifier until it is put into a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Entry(pub [u64; 8]);

impl Entry {
    /// Creates a command with this opcode and namespace; all other fields are zero.
    #[inline]
    pub const fn new(opcode: u8, namespace: u32) -> Entry {
        Entry([opcode as u64 | (namespace as u64) << 32, 0, 0, 0, 0, 0, 0, 0])
    }

    /// Sets the command identifier (CID).
    #[inline]
    #[must_use]
    pub const fn with_cid(mut self, cid: u16) -> Entry {
        self.0[0] = self.0[0] & !(0xffff << 16) | (cid as u64) << 16;
        self
    }

    /// Sets both PRP entries, the addresses of the command's memory.
    #[inline]
    #[must_use]
    pub const fn with_data(mut self, prp1: u64, prp2: u64) -> Entry {
        self.0[3] = prp1;
        self.0[4] = prp2;
        self
    }

    /// Sets a command double word, 10 to 15.
    #[inline]
    #[must_use]
    pub const fn with_dw(mut self, number: usize, value: u32) -> Entry {
        let shift = (number & 1) * 32;
        self.0[number / 2] = self.0[number / 2] & !(0xffff_ffff << shift) | (value as u64) << shift;
        self
    }

    /// Returns a command double word, 0 to 15.
    pub const fn dw(&self, number: usize) -> u32 {
        (self.0[number / 2] >> ((number & 1) * 32)) as u32
    }

    /// Returns the opcode of the command.
    pub const fn opcode(&self) -> u8 {
        self.0[0] as u8
    }

    /// Returns the command identifier (CID).
    pub const fn cid(&self) -> u16 {
        (self.0[0] >> 16) as u16
    }

    /// Returns the namespace identifier of the command.
    pub const fn namespace(&self) -> u32 {
        self.dw(1)
    }

    /// Returns both PRP entries, the addresses of the command's memory.
    pub const fn data(&self) -> (u64, u64) {
        (self.0[3], self.0[4])
    }

    /// Builds an Identify command: `what` is the CNS value. Structures of a command set are those of the NVM command set.
    pub const fn identify(what: u8, namespace: u32) -> Entry {
        Entry::new(admin::IDENTIFY, namespace).with_dw(10, what as u32)
    }

    /// Builds a command that reads a log page's first bytes, for the whole controller. Reading it re-enables events of its kind.
    pub const fn log_page(page: u8, bytes: u32) -> Entry {
        Entry::new(admin::GET_LOG_PAGE, u32::MAX).with_dw(10, page as u32 | (bytes / 4 - 1) << 16)
    }

    /// Builds a Set Features command for one feature.
    pub const fn set_feature(feature: u8, value: u32) -> Entry {
        Entry::new(admin::SET_FEATURES, 0).with_dw(10, feature as u32).with_dw(11, value)
    }

    /// Builds a command that creates a contiguous completion queue at address `at`. With a `vector` the queue raises interrupts.
    pub fn create_cq(queue: u16, entries: u32, at: u64, vector: Option<u16>) -> Entry {
        let interrupts = vector.map_or(0, |vector| u32::from(vector) << 16 | 2);
        Entry::new(admin::CREATE_CQ, 0).with_data(at, 0).with_dw(10, u32::from(queue) | (entries - 1) << 16).with_dw(11, interrupts | 1)
    }

    /// Builds a command that creates a contiguous submission queue at address `at`. Its completion queue has the same number.
    pub fn create_sq(queue: u16, entries: u32, at: u64) -> Entry {
        Entry::new(admin::CREATE_SQ, 0)
            .with_data(at, 0)
            .with_dw(10, u32::from(queue) | (entries - 1) << 16)
            .with_dw(11, u32::from(queue) << 16 | 1)
    }

    /// Builds a command that deletes a queue; `opcode` says which kind.
    pub fn delete(opcode: u8, queue: u16) -> Entry {
        Entry::new(opcode, 0).with_dw(10, u32::from(queue))
    }

    /// Builds an Abort command for a command of a submission queue.
    pub fn abort(queue: u16, cid: u16) -> Entry {
        Entry::new(admin::ABORT, 0).with_dw(10, u32::from(queue) | u32::from(cid) << 16)
    }
}

/// A completion entry: the controller's result of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompletionEntry(pub [u64; 2]);

impl CompletionEntry {
    /// Builds a completion entry, as a controller does.
    pub fn new(result: u32, head: u16, queue: u16, cid: u16, status: Status, phase: bool) -> CompletionEntry {
        let upper = u64::from(head) | u64::from(queue) << 16 | u64::from(cid) << 32;
        CompletionEntry([u64::from(result), upper | u64::from(phase) << 48 | u64::from(status.0) << 49])
    }

    /// Returns the command-specific result (double word 0).
    pub const fn result(&self) -> u32 {
        self.0[0] as u32
    }

    /// Returns the number of the submission queue of the command.
    pub const fn queue(&self) -> u16 {
        (self.0[1] >> 16) as u16
    }

    /// Returns the identifier of the completed command (CID).
    #[inline]
    pub const fn cid(&self) -> u16 {
        (self.0[1] >> 32) as u16
    }

    /// Returns the status with which the command completed.
    #[inline]
    pub const fn status(&self) -> Status {
        Status((self.0[1] >> 49) as u16)
    }

    /// Returns the phase bit, which flips with each round of the ring.
    #[inline]
    pub const fn phase(upper: u64) -> bool {
        upper >> 48 & 1 != 0
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn fields_are_where_the_specification_has_them() {
        let entry = Entry::new(nvm::READ, 3).with_cid(0x1234).with_data(0xaaaa, 0xbbbb).with_dw(12, 7).with_dw(11, 9);
        assert_eq!(entry.0, [0x0000_0003_1234_0002, 0, 0, 0xaaaa, 0xbbbb, 9 << 32, 7, 0]);
        assert_eq!((entry.dw(12), entry.dw(11), entry.cid(), entry.namespace()), (7, 9, 0x1234, 3));
        let create = Entry::create_cq(2, 64, 0x1000, Some(5));
        assert_eq!((create.dw(10), create.dw(11)), (0x003f_0002, 0x0005_0003));
        let answer = CompletionEntry::new(1, 2, 3, 4, Status(0x4281), true);
        assert_eq!((answer.result(), answer.queue(), answer.cid(), answer.status()), (1, 3, 4, Status(0x4281)));
        assert!(CompletionEntry::phase(answer.0[1]));
    }
}
