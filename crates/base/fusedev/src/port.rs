//! One slot of a queue of FUSE over io_uring.
#![expect(unsafe_code, reason = "hands memory to the kernel")]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use crate::entry::Entry;

/// The kernel's `FUSE_IO_URING_CMD_REGISTER` and `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Where a `io_uring_sqe` has its `len`.
const SQE_LEN: usize = 24;

/// An `iovec`.
#[repr(C)]
struct Vector {
    base: *mut u8,
    len: usize,
}

/// One slot of one CPU's queue: a separate ring, for one thread and one entry at a time. What the kernel does for it, it
/// does when this thread asks (no interruption of others), so requests wait while the thread is busy and never for another's ring.
pub struct Port {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    /// Of the mount, since there is an entry.
    device: Option<Arc<OwnedFd>>,
    queue: u16,
    /// The kernel still has an entry, and will not say when it is done.
    lost: bool,
}

impl std::fmt::Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Port").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl Port {
    /// Creates an unregistered slot of this CPU's queue. The thread that calls [`Port::register`] is the one that may use it.
    pub fn new(queue: u16) -> io::Result<Port> {
        let mut builder = IoUring::<squeue::Entry128, cqueue::Entry>::builder();
        builder.setup_r_disabled().setup_single_issuer().setup_defer_taskrun();
        Ok(Port { ring: builder.build(1)?, device: None, queue, lost: false })
    }

    /// Gives the kernel an entry and waits for the first request in it. When it refuses one, it ends FUSE over io_uring for this mount
    /// if that has not started yet (not every CPU has an entry): all comes through the device then.
    pub fn register(&mut self, device: &Arc<OwnedFd>, entry: Entry) -> io::Result<Entry> {
        if self.device.is_none() {
            self.ring.submitter().register_enable_rings()?;
        }
        let fd = types::Fd(self.device.insert(Arc::clone(device)).as_raw_fd());
        let vectors = entry.addresses().map(|(base, len)| Vector { base, len });
        let command = opcode::UringCmd80::new(fd, REGISTER).cmd(self.command(0)).addr(Some(vectors.as_ptr() as u64)).build();
        self.exchange(entry, with_length(command, vectors.len() as u32))
    }

    /// Gives an answered entry back, and waits for the next request in it.
    pub fn answer(&mut self, entry: Entry) -> io::Result<Entry> {
        let Some(device) = &self.device else { return Err(io::ErrorKind::NotConnected.into()) };
        let fd = types::Fd(device.as_raw_fd());
        let command = opcode::UringCmd80::new(fd, COMMIT_AND_FETCH).cmd(self.command(entry.commit_id())).build();
        self.exchange(entry, command)
    }

    /// The kernel's `fuse_uring_cmd_req`.
    fn command(&self, commit_id: u64) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[8..16].copy_from_slice(&commit_id.to_ne_bytes());
        bytes[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        bytes
    }

    /// The kernel has the entry from here until it completes the command.
    fn exchange(&mut self, entry: Entry, command: squeue::Entry128) -> io::Result<Entry> {
        if self.lost {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let entry = ManuallyDrop::new(entry);
        // SAFETY: the entry's memory stays mapped until the completion is here, and when it does not come, for ever.
        let pushed = unsafe { self.ring.submission().push(&command) };
        assert!(pushed.is_ok(), "one command at a time");
        let result = loop {
            if let Some(done) = self.ring.completion().next() {
                break done.result();
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if matches!(error.raw_os_error(), Some(EINTR | EAGAIN | EBUSY)) => {}
                Err(error) => {
                    self.lost = true;
                    return Err(error);
                }
            }
        };
        let entry = ManuallyDrop::into_inner(entry);
        if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(entry) }
    }
}

const EINTR: i32 = rustix::io::Errno::INTR.raw_os_error();
const EAGAIN: i32 = rustix::io::Errno::AGAIN.raw_os_error();
const EBUSY: i32 = rustix::io::Errno::BUSY.raw_os_error();

/// The io_uring crate has no such setting for this command.
fn with_length(mut command: squeue::Entry128, length: u32) -> squeue::Entry128 {
    const { assert!(size_of::<squeue::Entry128>() == 128, "the kernel's struct and nothing else") };
    // SAFETY: an `Entry128` is the kernel's `io_uring_sqe` of 128 bytes, in C layout, with a 32-bit `len` at this place.
    unsafe { (&raw mut command).cast::<u8>().add(SQE_LEN).cast::<u32>().write(length) };
    command
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_is_no_fuse_device_is_an_error_and_gives_the_memory_back() {
        let (file, _other) = std::io::pipe().expect("a pipe");
        let mut port = match Port::new(0) {
            Ok(port) => port,
            Err(error) => return println!("SKIP: this machine forbids io_uring ({error})"),
        };
        assert!(port.answer(Entry::new(8192).expect("memory")).is_err());
        let device = Arc::new(file.into());
        for _ in 0..3 {
            let refused = port.register(&device, Entry::new(8192).expect("memory"));
            assert!(refused.is_err());
        }
    }
}
