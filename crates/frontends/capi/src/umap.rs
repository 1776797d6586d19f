//! Files as memory: read-only copies, and the kernel's own mappings.
#![expect(unsafe_code, reason = "called by C; maps memory")]

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::LazyLock;

use libc::off_t;
use parking_lot::Mutex;

use crate::api_error::{ApiError, ApiResult};
use crate::guard::guard_files as ffi_guard;
use crate::memory::{Memory, offset_of};
use crate::open::Open;
use crate::ufiles::share;

const PAGE_BYTES: usize = 4096;

/// Addresses and lengths of the views.
static VIEWS: LazyLock<Mutex<HashMap<usize, usize>>> = LazyLock::new(Mutex::default);

/// Private zeroed memory, freed on drop.
struct Fresh {
    address: *mut c_void,
    bytes: usize,
}

impl Fresh {
    fn new(n: usize) -> ApiResult<Fresh> {
        let full = || ApiError::new(libc::ENOMEM, format!("no memory for a view of {n} bytes"));
        let bytes = n.checked_next_multiple_of(PAGE_BYTES).filter(|bytes| *bytes <= isize::MAX as usize).ok_or_else(full)?;
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory wherever there is room.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
        if address == libc::MAP_FAILED { Err(full()) } else { Ok(Fresh { address, bytes }) }
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        // SAFETY: it is ours, and nobody knows of it.
        unsafe { libc::munmap(self.address, self.bytes) };
    }
}

fn fill(open: &Open, at: u64, to: &mut [u8]) -> ApiResult<()> {
    let mut done = 0;
    while done < to.len() {
        match open.read_at(at + done as u64, &mut to[done..])? {
            0 => break,
            got => done += got,
        }
    }
    Ok(())
}

/// Returns a read-only copy of `n` bytes of a file from any `off` on; bytes beyond the end of the file are 0. It does not change with the
/// file, stays valid when the file is closed, and never raises SIGBUS. For pages of the cache without a copy see upin. Thread-safe.
///
/// Returns its page-aligned address, or NULL: any error of upread; EINVAL (no bytes, or a negative offset); ENOMEM.
#[unsafe(no_mangle)]
pub extern "C" fn umap(ufd: c_int, off: off_t, n: usize) -> *const c_void {
    ffi_guard(|| {
        let at = offset_of(off)?;
        if n == 0 {
            return Err(ApiError::new(libc::EINVAL, "a view of no bytes"));
        }
        let open = share(ufd)?;
        let fresh = Fresh::new(n)?;
        // SAFETY: `n` bytes of new memory.
        let memory = unsafe { Memory::new(fresh.address, n) }?;
        open.run(|open| memory.with_mut(|bytes| fill(open, at, bytes)))?;
        // SAFETY: the memory is ours.
        unsafe { libc::mprotect(fresh.address, fresh.bytes, libc::PROT_READ) };
        let fresh = std::mem::ManuallyDrop::new(fresh);
        VIEWS.lock().insert(fresh.address.addr(), fresh.bytes);
        Ok(fresh.address.cast_const())
    })
}

/// Frees a view of umap. Thread-safe.
///
/// Returns 0, or -1: EINVAL (there is none at this address).
#[unsafe(no_mangle)]
pub extern "C" fn uunmap(p: *const c_void) -> c_int {
    ffi_guard(|| {
        let bytes = VIEWS.lock().remove(&p.addr());
        let bytes = bytes.ok_or_else(|| ApiError::new(libc::EINVAL, "there is no view at this address: given back before?"))?;
        drop(Fresh { address: p.cast_mut(), bytes });
        Ok(0)
    })
}

/// Works like mmap(2), for a ufd (or -1): the kernel's mapping of the backing file. It shows the same data as uread: earlier writes are
/// written back first, and from then on every write to the file through the cache is write-through. A file that is mapped shared and
/// writable bypasses the cache from then on: no other program should be writing it at that moment. As with mmap(2), a page beyond the end
/// of the file raises SIGBUS, also after another program truncated the file; up to the end there is none. Unmap it with munmap(2).
/// Thread-safe.
///
/// Returns the address, or MAP_FAILED: EBADF; EROFS (writable, and the cache is read-only); any error of mmap(2) and ufsync.
///
/// # Safety
/// Works like mmap(2): a fixed address belongs to the program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ummap(addr: *mut c_void, n: usize, prot: c_int, flags: c_int, ufd: c_int, off: off_t) -> *mut c_void {
    let mapped = ffi_guard(|| {
        let open = if ufd == -1 { None } else { Some(share(ufd)?) };
        if let Some(open) = &open {
            open.run(|open| settle(open, prot & libc::PROT_WRITE != 0 && flags & libc::MAP_SHARED != 0))?;
        }
        let fd = open.as_ref().map_or(-1, |open| open.fd().as_raw_fd());
        // SAFETY: the caller's promise.
        let mapped = unsafe { libc::mmap(addr, n, prot, flags, fd, off) };
        if mapped == libc::MAP_FAILED { Err(ApiError::last("mapping")) } else { Ok(mapped.expose_provenance() as isize) }
    });
    std::ptr::with_exposed_provenance_mut(mapped as usize)
}

/// Writes dirty data back, and takes the file out of the cache if the mapping is writable.
fn settle(open: &Open, past_cache: bool) -> ApiResult<()> {
    let Some(file) = open.cached() else { return Ok(()) };
    Ok(file.prepare_mapping(past_cache)?)
}
