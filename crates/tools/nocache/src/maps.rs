//! Mapped files. Their pages appear without a call of the program, so a thread evicts them ten times a second. It uses only calls that do
//! not change what the program sees, whatever is mapped there by now.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use libc::{c_int, c_void, off_t, size_t};

use crate::evict;
use crate::files::{self, File};
use crate::next::hooks;
use crate::sys;

const PERIOD_MS: u64 = 100;
const PAGE: usize = 4096;
const PATH: usize = 512;

const FREE: u32 = 0;
const BUSY: u32 = 1;
const LIVE: u32 = 2;
/// No longer mapped; the file's pages are still to be evicted.
const GONE: u32 = 3;

struct Mapping {
    state: AtomicU32,
    at: AtomicUsize,
    length: AtomicUsize,
    shared: AtomicBool,
    device: AtomicU64,
    inode: AtomicU64,
    /// Path of the file with a zero byte; empty if it is too long.
    path: UnsafeCell<[u8; PATH]>,
}

// SAFETY: the path is written by who took `state` from FREE to BUSY, and read while it is LIVE or GONE, which only the thread ends.
unsafe impl Sync for Mapping {}

static MAPS: [Mapping; 256] = [const {
    Mapping {
        state: AtomicU32::new(FREE),
        at: AtomicUsize::new(0),
        length: AtomicUsize::new(0),
        shared: AtomicBool::new(false),
        device: AtomicU64::new(0),
        inode: AtomicU64::new(0),
        path: UnsafeCell::new([0; PATH]),
    }
}; 256];

impl Mapping {
    fn is(&self, state: u32) -> bool {
        self.state.load(Ordering::Acquire) == state
    }

    fn begin(&self) -> usize {
        self.at.load(Ordering::Relaxed)
    }

    fn end(&self) -> usize {
        self.begin().saturating_add(self.length.load(Ordering::Relaxed))
    }

    fn overlaps(&self, at: usize, length: usize) -> bool {
        self.is(LIVE) && self.begin() < at.saturating_add(length) && at < self.end()
    }

    fn fill(&self, file: File, at: usize, length: usize, shared: bool) {
        self.at.store(at, Ordering::Relaxed);
        self.length.store(length, Ordering::Relaxed);
        self.shared.store(shared, Ordering::Relaxed);
        if let Some(status) = sys::status(file.fd) {
            self.device.store(status.st_dev, Ordering::Relaxed);
            self.inode.store(status.st_ino, Ordering::Relaxed);
        }
        // SAFETY: BUSY is ours.
        let path = unsafe { &mut *self.path.get() };
        let known = path.get_mut(..PATH - 1).and_then(|room| sys::path_of(file.fd, room)).map_or(0, <[u8]>::len);
        if let Some(end) = path.get_mut(known) {
            *end = 0;
        }
    }

    /// Evicts the file's pages: the mapped ones, then the read-ahead.
    fn clear(&self, pagemap: c_int) {
        if self.is(LIVE) {
            if self.shared.load(Ordering::Relaxed) {
                sys::write_mapping(self.begin(), self.end() - self.begin());
            }
            page_out_files(pagemap, self.begin(), self.end());
        }
        if let Some(fd) = self.reopen() {
            let _ = sys::write_out(fd, 0, 0);
            let _ = sys::drop_pages(fd, 0, 0);
            sys::close(fd);
        }
    }

    fn reopen(&self) -> Option<c_int> {
        // SAFETY: LIVE or GONE, and only this thread makes it FREE.
        let path = unsafe { &*self.path.get() };
        let end = path.iter().position(|byte| *byte == 0).filter(|end| *end > 0)?;
        let fd = sys::open(path.get(..=end)?).ok()?;
        let same = |status: libc::stat| {
            status.st_dev == self.device.load(Ordering::Relaxed) && status.st_ino == self.inode.load(Ordering::Relaxed)
        };
        if sys::status(fd).is_some_and(same) {
            return Some(fd);
        }
        sys::close(fd);
        None
    }
}

/// Pages out present file pages, in runs. Modified pages of a private mapping are the program's memory, and stay.
fn page_out_files(pagemap: c_int, begin: usize, end: usize) {
    const PRESENT_OF_FILE: u64 = 1 << 63 | 1 << 61;
    let mut words = [0_u64; 512];
    let mut page = begin / PAGE;
    let last = end.div_ceil(PAGE);
    while page < last {
        let wanted = words.len().min(last - page);
        let some = words.get_mut(..wanted).unwrap_or(&mut []);
        let got = sys::read_words(pagemap, some, page as u64 * 8);
        if got == 0 {
            return;
        }
        runs(words.get(..got).unwrap_or(&[]), PRESENT_OF_FILE, |from, to| sys::page_out((page + from) * PAGE, (to - from) * PAGE));
        page += got;
    }
}

/// Calls `each` with the bounds of each run of words that have all the bits.
fn runs(words: &[u64], bits: u64, mut each: impl FnMut(usize, usize)) {
    let mut from = None;
    for (at, word) in words.iter().enumerate() {
        match (word & bits == bits, from) {
            (true, None) => from = Some(at),
            (false, Some(begin)) => {
                each(begin, at);
                from = None;
            }
            _ => {}
        }
    }
    if let Some(begin) = from {
        each(begin, words.len());
    }
}

/// Counts requests; the thread waits for a change.
static ASKED: AtomicU32 = AtomicU32::new(0);
static ANSWERED: AtomicU32 = AtomicU32::new(0);
static RUNNING: AtomicBool = AtomicBool::new(false);
static HANDLED: AtomicBool = AtomicBool::new(false);

extern "C" fn thread(_: *mut c_void) -> *mut c_void {
    // A descriptor in the program's table could be seen, and closing it would drop the program's record locks.
    let pagemap = sys::own_descriptors().and_then(|()| sys::open(b"/proc/self/pagemap\0")).unwrap_or(-1);
    if pagemap >= 0 {
        loop {
            let asked = ASKED.load(Ordering::Acquire);
            for map in MAPS.iter().filter(|map| map.is(LIVE) || map.is(GONE)) {
                let gone = map.is(GONE);
                map.clear(pagemap);
                if gone {
                    map.state.store(FREE, Ordering::Release);
                }
            }
            ANSWERED.store(asked, Ordering::Release);
            sys::wake(&ANSWERED);
            sys::wait(&ASKED, asked, PERIOD_MS);
        }
    }
    RUNNING.store(false, Ordering::Release);
    core::ptr::null_mut()
}

fn start() {
    if RUNNING.swap(true, Ordering::AcqRel) {
        return;
    }
    if !HANDLED.swap(true, Ordering::AcqRel) {
        // SAFETY: the handler is a plain function.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
    // SAFETY: all zeros is a valid set and valid attributes for the calls that fill them in; all live as long as the calls.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = core::mem::zeroed();
        let mut how: libc::pthread_attr_t = core::mem::zeroed();
        let mut which: libc::pthread_t = core::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        libc::pthread_attr_init(&raw mut how);
        libc::pthread_attr_setdetachstate(&raw mut how, libc::PTHREAD_CREATE_DETACHED);
        libc::pthread_attr_setstacksize(&raw mut how, 128 << 10);
        if libc::pthread_create(&raw mut which, &raw const how, thread, core::ptr::null_mut()) != 0 {
            RUNNING.store(false, Ordering::Release);
        }
        libc::pthread_attr_destroy(&raw mut how);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, core::ptr::null_mut());
    }
}

/// The thread stays in the parent; the mappings are also the child's.
unsafe extern "C" fn in_child() {
    RUNNING.store(false, Ordering::Relaxed);
    for map in MAPS.iter().filter(|map| map.is(BUSY) || map.is(GONE)) {
        map.state.store(FREE, Ordering::Relaxed);
    }
    if MAPS.iter().any(|map| map.is(LIVE)) {
        start();
    }
}

/// Makes the thread scan everything once more, and waits for it with a limit.
pub fn finish() {
    if !RUNNING.load(Ordering::Acquire) {
        return;
    }
    let asked = ASKED.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
    sys::wake(&ASKED);
    for _ in 0..20 {
        let answered = ANSWERED.load(Ordering::Acquire);
        if answered == asked {
            return;
        }
        sys::wait(&ANSWERED, answered, 100);
    }
}

fn mapped(result: *mut c_void, length: usize, flags: c_int, fd: c_int) -> *mut c_void {
    if result == libc::MAP_FAILED || flags & libc::MAP_ANONYMOUS != 0 {
        return result;
    }
    let Some(file) = files::look(fd) else { return result };
    evict::all(file);
    let free = |map: &&Mapping| map.state.compare_exchange(FREE, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok();
    if let Some(map) = MAPS.iter().find(free) {
        map.fill(file, result as usize, length, flags & libc::MAP_TYPE != libc::MAP_PRIVATE);
        map.state.store(LIVE, Ordering::Release);
        start();
    }
    result
}

fn moved(from: usize, to: *mut c_void, length: usize) -> *mut c_void {
    if to != libc::MAP_FAILED {
        for map in MAPS.iter().filter(|map| map.is(LIVE) && map.begin() == from) {
            map.at.store(to as usize, Ordering::Relaxed);
            map.length.store(length, Ordering::Relaxed);
        }
    }
    to
}

/// Writes back a range that is about to be unmapped; the thread evicts it.
fn leaving(at: usize, length: usize) {
    for map in MAPS.iter().filter(|map| map.overlaps(at, length)) {
        if map.shared.load(Ordering::Relaxed) {
            sys::write_mapping(at, length);
        }
        if at <= map.begin() && map.end() <= at.saturating_add(length) {
            let _ = map.state.compare_exchange(LIVE, GONE, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

fn written(at: usize, length: usize) {
    if MAPS.iter().any(|map| map.overlaps(at, length)) {
        sys::write_mapping(at, length);
        sys::page_out(at, length);
    }
}

hooks! {
    fn mmap[real](at: *mut c_void, length: size_t, how: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void {
        mapped(real(at, length, how, flags, fd, offset), length, flags, fd)
    }
    fn mmap64[real](at: *mut c_void, length: size_t, how: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void {
        mapped(real(at, length, how, flags, fd, offset), length, flags, fd)
    }
    fn mremap[real](at: *mut c_void, length: size_t, new: size_t, flags: c_int, to: *mut c_void) -> *mut c_void {
        moved(at as usize, real(at, length, new, flags, to), new)
    }
    fn munmap[real](at: *mut c_void, length: size_t) -> c_int {
        leaving(at as usize, length);
        real(at, length)
    }
    fn msync[real](at: *mut c_void, length: size_t, flags: c_int) -> c_int {
        let result = real(at, length, flags);
        if result == 0 {
            written(at as usize, length);
        }
        result
    }
}

#[cfg(test)]
mod test {
    use super::runs;

    #[test]
    fn runs_are_found_whole() {
        let mut found = Vec::new();
        runs(&[3, 3, 1, 0, 3, 2, 3, 3], 3, |from, to| found.push((from, to)));
        assert_eq!(found, [(0, 2), (4, 5), (6, 8)]);
        runs(&[], 3, |_, _| panic!("nothing is there"));
    }
}
