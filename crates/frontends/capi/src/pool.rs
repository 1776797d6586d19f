//! Device-accessible memory, lent to the program in whole pages.
//!
//! A request with lent memory needs no copy. It is recognised by its address without a lock: each page knows its loan, and each loan
//! counts the requests that use it. A loan freed while in use is kept until the last request has released it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use block::buffer::UNIT_BYTES;
use block::{Arena, Buf, Span};
use parking_lot::{Mutex, RwLock};

use crate::api_error::{ApiError, ApiResult};
use crate::memory::Memory;

/// Added to the user count of a freed loan.
const GIVEN_BACK: u32 = 1 << 31;

/// The pool of one device.
pub struct Pool {
    arena: Arena,
    pages: Box<[Page]>,
    loans: Mutex<HashMap<u32, Buf>>,
}

#[derive(Default)]
struct Page {
    /// First page of the loan plus one; 0: not lent.
    loan: AtomicU32,
    /// Number of requests that use the loan, in its first page.
    users: AtomicU32,
}

/// Pools with loans, and of open devices: nvmed_put_buffer gets only an address.
static POOLS: RwLock<Vec<Weak<Pool>>> = RwLock::new(Vec::new());
/// Pools whose devices were closed before their loans were freed.
static ORPHANS: Mutex<Vec<Arc<Pool>>> = Mutex::new(Vec::new());

/// The kind of a memory range for a device.
pub enum Found {
    /// Lent by the pool: counted as used until `Pool::release`.
    Lent(Span),
    /// The program's own memory.
    Foreign,
}

/// The kind of memory of a request.
#[derive(Clone, Copy, Debug)]
pub enum LentData {
    Lent(Span),
    Copied,
}

impl Pool {
    /// Creates a pool of this size.
    pub fn new(bytes: u64) -> ApiResult<Arc<Pool>> {
        let wrong = || ApiError::new(libc::EINVAL, format!("buffer_bytes is {bytes}: it needs 4096 or more, below 16 TiB"));
        let len = usize::try_from(bytes).ok().filter(|bytes| (UNIT_BYTES..1 << 44).contains(bytes)).ok_or_else(wrong)?;
        let arena = Arena::private(len).map_err(|error| ApiError::new(libc::ENOMEM, format!("{bytes} bytes of memory: {error}")))?;
        let pages = (0..arena.region().len() / UNIT_BYTES).map(|_| Page::default()).collect();
        let pool = Arc::new(Pool { arena, pages, loans: Mutex::default() });
        let mut pools = POOLS.write();
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(Arc::downgrade(&pool));
        Ok(pool)
    }

    /// Returns the arena to register with queues.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Allocates pages and returns their address.
    pub fn allocate(&self, pages: u32) -> ApiResult<*mut u8> {
        let bytes = pages as usize * UNIT_BYTES;
        if pages == 0 {
            return Err(ApiError::new(libc::EINVAL, "a buffer has one page or more"));
        }
        let full = || {
            let free = self.arena.free_bytes();
            let what = format!("no {bytes} bytes in a row are left of the device's memory ({free} free): open it with more buffer_bytes");
            ApiError::new(libc::ENOMEM, what)
        };
        let buf = self.arena.allocate(bytes).ok_or_else(full)?;
        let (first, address) = (page_of(buf.span().at), buf.address());
        buf.arena().region().fill(buf.span().at as usize..buf.span().at as usize + bytes, 0);
        self.loans.lock().insert(first, buf);
        self.pages[first as usize].users.store(0, Ordering::Release);
        for page in first..first + pages {
            self.pages[page as usize].loan.store(first + 1, Ordering::Release);
        }
        Ok(address)
    }

    /// Frees a loan by its address; false: not in this pool.
    fn free_address(&self, address: *const u8) -> ApiResult<bool> {
        let Some(at) = self.arena.region().position(address) else { return Ok(false) };
        let wrong = || ApiError::new(libc::EINVAL, "this is not the begin of a buffer of nvmed_get_buffer, or it was put back before");
        let first = page_of(at as u64);
        if !at.is_multiple_of(UNIT_BYTES) || self.pages[first as usize].loan.load(Ordering::Acquire) != first + 1 {
            return Err(wrong());
        }
        let before = self.pages[first as usize].users.fetch_or(GIVEN_BACK, Ordering::AcqRel);
        if before & GIVEN_BACK != 0 {
            return Err(wrong());
        }
        if before == 0 {
            self.free(first);
        }
        Ok(true)
    }

    /// Returns the kind of a memory range; lent memory counts as used from now on.
    pub fn find(&self, memory: &Memory) -> ApiResult<Found> {
        let Some(at) = self.arena.region().position(memory.address()) else { return Ok(Found::Foreign) };
        let stray = || ApiError::new(libc::EFAULT, "the memory is not within one buffer of nvmed_get_buffer, or that was put back");
        let last = at.checked_add(memory.len().max(1) - 1).filter(|last| *last < self.arena.region().len()).ok_or_else(stray)?;
        let loan = self.pages[at / UNIT_BYTES].loan.load(Ordering::Acquire);
        if loan == 0 || self.pages[last / UNIT_BYTES].loan.load(Ordering::Acquire) != loan {
            return Err(stray());
        }
        let users = &self.pages[loan as usize - 1].users;
        if users.fetch_add(1, Ordering::AcqRel) & GIVEN_BACK != 0 {
            self.end_use(loan - 1);
            return Err(stray());
        }
        let bytes = u32::try_from(memory.len()).map_err(|_| ApiError::new(libc::EINVAL, "more than 4 GiB in one request"))?;
        Ok(Found::Lent(self.arena.span(at, bytes)))
    }

    /// Releases lent memory after a request.
    pub fn release(&self, span: Span) {
        let loan = self.pages[page_of(span.at) as usize].loan.load(Ordering::Acquire);
        assert!(loan > 0, "memory of a request was freed under it");
        self.end_use(loan - 1);
    }

    fn end_use(&self, first: u32) {
        let before = self.pages[first as usize].users.fetch_sub(1, Ordering::AcqRel);
        if before == GIVEN_BACK + 1 {
            self.free(first);
        }
    }

    /// Frees a loan that is returned and unused. Only the first thread that finds this frees it.
    fn free(&self, first: u32) {
        let mut loans = self.loans.lock();
        // A late lookup of a returned loan counts in and out again.
        if self.pages[first as usize].users.load(Ordering::Acquire) != GIVEN_BACK {
            return;
        }
        let Some(buf) = loans.remove(&first) else { return };
        for page in first..first + (buf.len() / UNIT_BYTES) as u32 {
            self.pages[page as usize].loan.store(0, Ordering::Release);
        }
    }

    /// Returns the number of loans.
    pub fn loans(&self) -> usize {
        self.loans.lock().len()
    }

    /// Keeps the pool of a closed device until its loans are freed.
    pub fn orphan(self: &Arc<Pool>) {
        if self.loans() > 0 {
            ORPHANS.lock().push(Arc::clone(self));
        }
    }
}

/// Frees a loan of any pool.
pub fn put_back(address: *const u8) -> ApiResult<i32> {
    let pools: Vec<Arc<Pool>> = POOLS.read().iter().filter_map(Weak::upgrade).collect();
    for pool in &pools {
        if pool.free_address(address)? {
            drop(pools);
            ORPHANS.lock().retain(|pool| pool.loans() > 0);
            return Ok(0);
        }
    }
    Err(ApiError::new(libc::EINVAL, "this memory is not from nvmed_get_buffer"))
}

fn page_of(at: u64) -> u32 {
    (at / UNIT_BYTES as u64) as u32
}

#[cfg(test)]
mod test {
    use super::*;

    fn memory(address: *const u8, bytes: usize) -> Memory {
        #[expect(unsafe_code, reason = "an address for a test, whose bytes are not looked at")]
        // SAFETY: nothing is read or written through it.
        unsafe { Memory::new(address.cast_mut().cast(), bytes) }.expect("memory")
    }

    #[test]
    fn a_loan_in_use_is_kept_until_its_last_user_lets_go() {
        let pool = Pool::new(16 * 4096).expect("memory");
        let address = pool.allocate(2).expect("room");
        let Ok(Found::Lent(span)) = pool.find(&memory(address.wrapping_add(512), 4096)) else { panic!("not found") };
        assert_eq!(put_back(address), Ok(0));
        assert_eq!(pool.arena().free_bytes(), 14 * 4096, "in use");
        assert_eq!(put_back(address).err().map(|fail| fail.errno), Some(libc::EINVAL), "twice");
        assert_eq!(pool.find(&memory(address, 512)).err().map(|fail| fail.errno), Some(libc::EFAULT), "new requests are refused");
        pool.release(span);
        assert_eq!(pool.arena().free_bytes(), 16 * 4096);
        let own = [0_u8; 8];
        assert!(matches!(pool.find(&memory(own.as_ptr(), 8)), Ok(Found::Foreign)));
    }

    #[test]
    fn only_what_is_within_one_loan_is_lent() {
        let pool = Pool::new(8 * 4096).expect("memory");
        let (first, second) = (pool.allocate(1).expect("room"), pool.allocate(1).expect("room"));
        let errno = |address, bytes| pool.find(&memory(address, bytes)).err().map(|fail| fail.errno);
        assert_eq!(errno(first, 4097), Some(libc::EFAULT), "over two loans");
        assert_eq!(errno(second.wrapping_add(4096), 1), Some(libc::EFAULT), "not lent");
        assert_eq!(errno(second, 9 * 4096), Some(libc::EFAULT), "over the end");
        assert_eq!(pool.allocate(7).err().map(|fail| fail.errno), Some(libc::ENOMEM));
        assert_eq!(put_back(first.wrapping_add(512)).err().map(|fail| fail.errno), Some(libc::EINVAL), "not its begin");
    }

    #[test]
    fn loans_outlive_their_device() {
        let pool = Pool::new(4 * 4096).expect("memory");
        let address = pool.allocate(1).expect("room");
        pool.orphan();
        let alive = Arc::downgrade(&pool);
        drop(pool);
        assert_eq!(alive.strong_count(), 1);
        assert_eq!(put_back(address), Ok(0));
        assert_eq!(alive.strong_count(), 0);
    }
}
