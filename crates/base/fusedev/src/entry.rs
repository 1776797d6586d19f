//! The memory of one request and its reply.
#![expect(unsafe_code, reason = "memory that the kernel writes to")]

use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// The kernel's `fuse_uring_req_header`: the message's header, the request's arguments, and about the entry.
const ARGS: usize = 128;
const ABOUT: usize = 256;
const COMMIT: usize = ABOUT + 8;
const LENGTH: usize = ABOUT + 16;
pub(crate) const HEADER: usize = 288;
/// The offset of the payload: page-aligned, so that it can be passed on.
const PAYLOAD: usize = 4096;
/// Of the message's header.
const IN_HEADER: usize = 40;

/// The memory of one request and its reply. The holder of the value owns it; a [`crate::Port`] takes the value while the kernel uses it.
#[derive(Debug)]
pub struct Entry {
    memory: NonNull<u8>,
    bytes: usize,
}

/// A request as the kernel put it into an entry.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The header of the FUSE message.
    pub header: &'a [u8; IN_HEADER],
    /// The arguments of fixed size, and what was there before behind them.
    pub args: &'a [u8; ARGS],
    /// Names and data that follow the arguments.
    pub rest: &'a [u8],
}

// SAFETY: the memory belongs to the value alone, and its address means the same on every thread.
unsafe impl Send for Entry {}

impl Entry {
    /// Allocates an entry with `payload` bytes for names or data, in either direction.
    pub fn new(payload: usize) -> rustix::io::Result<Entry> {
        let bytes = PAYLOAD + payload;
        // SAFETY: fresh memory, at an address of the kernel's choice.
        let memory = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }?;
        let memory = NonNull::new(memory.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Entry { memory, bytes })
    }

    fn all(&self) -> &[u8] {
        // SAFETY: mapped and initialised (zeros, or by the kernel) for as long as the value lives; a port takes the value while the
        // kernel may write.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.bytes) }
    }

    fn all_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else has the value.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.bytes) }
    }

    pub(crate) fn addresses(&self) -> [(*mut u8, usize); 2] {
        let start = self.memory.as_ptr();
        [(start, HEADER), (start.wrapping_add(PAYLOAD), self.bytes - PAYLOAD)]
    }

    fn number<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|byte| self.all()[at + byte])
    }

    /// Returns the request, if its stated size fits.
    pub fn request(&self) -> Option<Request<'_>> {
        let length = u32::from_ne_bytes(self.number(LENGTH)) as usize;
        let all = self.all();
        Some(Request {
            header: all.first_chunk()?,
            args: all.get(ARGS..)?.first_chunk()?,
            rest: all.get(PAYLOAD..PAYLOAD.checked_add(length)?)?,
        })
    }

    /// Returns the number by which the kernel finds the request again.
    pub(crate) fn commit_id(&self) -> u64 {
        u64::from_ne_bytes(self.number(COMMIT))
    }

    /// Returns the buffer for the data of the reply.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.all_mut()[PAYLOAD..]
    }

    /// Addresses the answer: a header of the kernel's `fuse_out_header`, and how many bytes of the room go with it.
    pub fn address(&mut self, header: [u8; 16], length: usize) {
        assert!(length <= self.bytes - PAYLOAD, "an answer of {length} bytes is longer than its room");
        let all = self.all_mut();
        all[..header.len()].copy_from_slice(&header);
        all[LENGTH..LENGTH + 4].copy_from_slice(&(length as u32).to_ne_bytes());
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this size; nobody has a reference any more.
        let unmapped = unsafe { munmap(self.memory.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "our own memory");
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_length_beyond_the_room_is_no_request() {
        let mut entry = Entry::new(8192).expect("memory");
        entry.all_mut()[LENGTH..LENGTH + 4].copy_from_slice(&8192_u32.to_ne_bytes());
        assert_eq!(entry.request().expect("fits").rest.len(), 8192);
        for length in [8193, u32::MAX] {
            entry.all_mut()[LENGTH..LENGTH + 4].copy_from_slice(&length.to_ne_bytes());
            assert!(entry.request().is_none(), "{length}");
        }
    }

    #[test]
    fn an_answer_is_where_the_kernel_looks() {
        let mut entry = Entry::new(8192).expect("memory");
        entry.room()[..3].copy_from_slice(b"abc");
        entry.address([7; 16], 3);
        let request = entry.request().expect("fits");
        assert_eq!((&request.header[..17], request.rest), (&[7_u8; 16].iter().copied().chain([0]).collect::<Vec<_>>()[..], &b"abc"[..]));
    }
}
