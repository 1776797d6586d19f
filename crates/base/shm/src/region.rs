//! One mapping, private or shared.
#![expect(unsafe_code, reason = "maps memory and copies to and from it")]

#[cfg(not(miri))]
mod map;
#[cfg(miri)]
mod map_miri;

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

#[cfg(miri)]
use map_miri as map;

/// Bytes of a small page.
const PAGE_BYTES: usize = 4096;
/// Bytes of a huge page on the machines we know (x86-64, AArch64 with 4 KiB pages).
pub(crate) const HUGE_BYTES: usize = 2 << 20;

/// Which pages a private region is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageSize {
    /// 4 KiB.
    Small,
    /// 2 MiB where the kernel has them free (hugetlb), else small ones which the kernel may join (THP).
    HugeIfFree,
}

/// Why shared memory of another process was not attached.
#[derive(Debug)]
pub enum AttachError {
    /// It could shrink below us: not sealed against that (F_SEAL_SHRINK).
    MayShrink,
    /// It is of huge pages, of which the kernel may have none when they are touched: that would end us (SIGBUS).
    HugePages,
    /// It is smaller than what its owner said.
    TooSmall {
        /// Bytes that are there.
        bytes: u64,
        /// Bytes that were announced.
        wanted: u64,
    },
    /// It is no regular file: a link, a directory, a pipe, a device.
    NotAFile,
    /// It belongs to a user whom nobody named as trusted.
    Foreign {
        /// Its owner.
        user: u32,
    },
    /// Everybody may write to it.
    OpenToAll,
    /// Not all its bytes are there: who touches one that is not may be ended (SIGBUS).
    NotWhole,
    /// The kernel refused.
    System(io::Error),
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttachError::MayShrink => f.write_str("the shared memory is not sealed: its owner could cut it off below us"),
            AttachError::HugePages => f.write_str("the shared memory is of huge pages, which may run out below us"),
            AttachError::TooSmall { bytes, wanted } => write!(f, "the shared memory has {bytes} bytes, {wanted} were announced"),
            AttachError::NotAFile => f.write_str("it is no regular file"),
            AttachError::Foreign { user } => {
                write!(f, "it belongs to user {user}, who is neither us nor root, and not to the group it is shared with")
            }
            AttachError::OpenToAll => f.write_str("everybody may write to it: take that right away (chmod o-w)"),
            AttachError::NotWhole => f.write_str("it is empty, cut off or has holes: nobody could rely on its memory"),
            AttachError::System(error) => write!(f, "mapping the shared memory: {error}"),
        }
    }
}

impl std::error::Error for AttachError {}

/// Mapped memory, unmapped when dropped. Positions are bytes from its begin; one that is out of range is our own mistake
/// and panics: what came from outside is checked before.
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    fd: Option<OwnedFd>,
}

// SAFETY: the bytes are only reached by copying from and to raw pointers and as atomics, from any thread.
unsafe impl Send for Region {}
// SAFETY: as above; no method needs the memory for itself.
unsafe impl Sync for Region {}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes)", self.len)
    }
}

impl Region {
    /// Memory of this process alone, zeroed, at least `bytes` long (rounded up to whole pages), on a page's border.
    ///
    /// # Errors
    /// No memory, or no address space.
    pub fn private(bytes: usize, pages: PageSize) -> io::Result<Region> {
        if pages == PageSize::HugeIfFree
            && let Some(region) = map::huge(round_up(bytes, HUGE_BYTES))
        {
            return Ok(region);
        }
        map::private(round_up(bytes, PAGE_BYTES), pages == PageSize::HugeIfFree)
    }

    /// Asks that a child forked from this process find zeroes here. False: the kernel cannot (before Linux 4.14).
    pub(crate) fn wiped_by_fork(&self) -> bool {
        map::wiped_by_fork(self.base, self.len)
    }

    /// Memory that can be handed to other processes by its descriptor: a sealed memfd that neither grows nor shrinks.
    /// Every page is there from the begin, so that a full /dev/shm is an error here and no SIGBUS later.
    ///
    /// # Errors
    /// No memory, or none allowed.
    pub fn shared(name: &str, bytes: usize) -> io::Result<Region> {
        map::shared(name, round_up(bytes, PAGE_BYTES))
    }

    /// Makes it of huge pages as far as the kernel has them at once (MADV_COLLAPSE, Linux 6.1): an access then misses the TLB less
    /// often. For a new file that nobody else has mapped yet; later mappings get them, too. Takes at most `most` of CPU time.
    pub(crate) fn join_pages(&self, most: std::time::Duration) {
        map::join_pages(self.base, self.len, most);
    }

    /// Maps a file whose bytes are all there, for several processes. Core dumps leave it out.
    pub(crate) fn over_file(fd: OwnedFd, len: usize) -> io::Result<Region> {
        map::file(fd, len)
    }

    /// Maps what another process made with [`Region::shared`].
    ///
    /// # Errors
    /// See [`AttachError`]: the descriptor is not trusted.
    pub fn attach(fd: OwnedFd, bytes: usize) -> Result<Region, AttachError> {
        map::attach(fd, bytes)
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a region has at least one page.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// To hand it to another process; none for a private one.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// The address of a byte, for those who tell a kernel or a device about it. Stays the same while the region lives.
    #[inline]
    pub fn address(&self, at: usize) -> *mut u8 {
        self.check(at, 0);
        // SAFETY: within the mapping, or one past it.
        unsafe { self.base.as_ptr().add(at) }
    }

    /// Returns the position of an address, if it is in this region.
    pub fn position(&self, address: *const u8) -> Option<usize> {
        let at = (address as usize).checked_sub(self.base.as_ptr() as usize)?;
        (at < self.len).then_some(at)
    }

    /// Copies out. Bytes that somebody changes meanwhile have no meaning.
    #[inline]
    pub fn read(&self, at: usize, to: &mut [u8]) {
        self.check(at, to.len());
        // SAFETY: both ends are in range; `to` is ours alone, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(self.base.as_ptr().add(at), to.as_mut_ptr(), to.len()) }
    }

    /// Copies bytes into the region.
    #[inline]
    pub fn write(&self, at: usize, from: &[u8]) {
        self.check(at, from.len());
        // SAFETY: both ends are in range; `from` is a reference, so it is no part of a region.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.base.as_ptr().add(at), from.len()) }
    }

    /// As `write`, past the CPU's caches where it can: for whole lines of memory that is larger than they are, and that is not
    /// read again at once. What is stored next in this memory is seen after it, as always. `at`: a multiple of 64.
    #[inline]
    pub fn write_past(&self, at: usize, from: &[u8]) {
        self.check(at, from.len());
        assert!(at.is_multiple_of(64), "byte {at} is not the first of a line");
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: both ends are in range, as for `write`; the place is aligned (the mapping begins on a page), and what is left over of
        // the last line is written as usual. The fence orders these stores like others. CPU features are detected.
        unsafe {
            let (to, whole) = (self.base.as_ptr().add(at), from.len() / 64 * 64);
            if std::arch::is_x86_feature_detected!("avx512f") {
                stream::lines(to, from.as_ptr(), whole);
            } else {
                stream::quarters(to, from.as_ptr(), whole);
            }
            std::ptr::copy_nonoverlapping(from.as_ptr().add(whole), to.add(whole), from.len() - whole);
            std::arch::x86_64::_mm_sfence();
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        self.write(at, from);
    }

    /// Prefetches the cache line of this byte into the CPU's caches, where the CPU can. Returns the address.
    #[inline]
    pub fn prefetch(&self, at: usize) -> *const u8 {
        let address = self.address(at);
        prefetch_line(address);
        address
    }

    /// Sets a range to one byte value.
    pub fn fill(&self, range: Range<usize>, byte: u8) {
        self.check(range.start, range.len());
        // SAFETY: in range.
        unsafe { std::ptr::write_bytes(self.address(range.start), byte, range.len()) }
    }

    /// Copies from one region to another, or within one (then the two may overlap).
    pub fn copy(&self, at: usize, to: &Region, to_at: usize, bytes: usize) {
        self.check(at, bytes);
        to.check(to_at, bytes);
        // SAFETY: both ends are in range; `copy` allows overlap.
        unsafe { std::ptr::copy(self.address(at), to.address(to_at), bytes) }
    }

    /// The four bytes at a position that is a multiple of four.
    #[inline]
    pub fn u32(&self, at: usize) -> &AtomicU32 {
        self.check(at, 4);
        assert!(at.is_multiple_of(4), "byte {at} is no place for a u32");
        // SAFETY: in range, aligned (the mapping begins on a page), alive as long as `self`; others that change it are
        // other processes or atomics of this one. `read` and `write` over the same bytes give bytes of no meaning at worst.
        unsafe { AtomicU32::from_ptr(self.address(at).cast()) }
    }

    /// The eight bytes at a position that is a multiple of eight.
    #[inline]
    pub fn u64(&self, at: usize) -> &AtomicU64 {
        self.check(at, 8);
        assert!(at.is_multiple_of(8), "byte {at} is no place for a u64");
        // SAFETY: as for `u32`.
        unsafe { AtomicU64::from_ptr(self.address(at).cast()) }
    }

    #[inline]
    fn check(&self, at: usize, bytes: usize) {
        if at > self.len || bytes > self.len - at {
            self.out_of_range(at, bytes);
        }
    }

    #[cold]
    #[inline(never)]
    fn out_of_range(&self, at: usize, bytes: usize) -> ! {
        panic!("{bytes} bytes at {at} of a region of {} bytes", self.len)
    }
}

/// Prefetches the cache line of any address: the program reads nothing, and the prefetch cannot fail.
#[inline(always)]
pub(crate) fn prefetch_line(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: see above.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Stores past the CPU's caches.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod stream {
    use std::arch::x86_64::*;

    /// A line with each store: a sixth less time than with quarters of lines, where the memory is far. Eight of them in each round:
    /// what follows starts while these stores wait only if the CPU sees that far ahead.
    ///
    /// # Safety
    /// The CPU has AVX-512F; both ends have so many bytes, a multiple of 64, and `to` is aligned to it.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn lines(to: *mut u8, from: *const u8, bytes: usize) {
        let mut done = 0;
        while bytes - done >= 512 {
            // SAFETY: eight lines, within the caller's promise.
            unsafe {
                line(to, from, done);
                line(to, from, done + 64);
                line(to, from, done + 128);
                line(to, from, done + 192);
                line(to, from, done + 256);
                line(to, from, done + 320);
                line(to, from, done + 384);
                line(to, from, done + 448);
            }
            done += 512;
        }
        while done < bytes {
            // SAFETY: the caller's promise.
            unsafe { line(to, from, done) };
            done += 64;
        }
    }

    /// # Safety
    /// As `lines`, of 64 bytes at `at`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn line(to: *mut u8, from: *const u8, at: usize) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_stream_si512(to.add(at).cast(), _mm512_loadu_si512(from.add(at).cast())) };
    }

    /// # Safety
    /// Both ends have so many bytes, a multiple of 16, and `to` is aligned to it.
    #[inline]
    pub unsafe fn quarters(to: *mut u8, from: *const u8, bytes: usize) {
        for n in (0..bytes).step_by(16) {
            // SAFETY: the caller's promise.
            unsafe { _mm_stream_si128(to.add(n).cast(), _mm_loadu_si128(from.add(n).cast())) };
        }
    }
}

pub(crate) fn whole_pages(bytes: usize) -> usize {
    round_up(bytes, PAGE_BYTES)
}

fn round_up(bytes: usize, unit: usize) -> usize {
    bytes.max(1).checked_next_multiple_of(unit).unwrap_or(usize::MAX / unit * unit)
}

#[cfg(test)]
mod test {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn bytes_and_atomics_are_the_same_memory() {
        let region = Region::private(10_000, PageSize::Small).expect("memory");
        assert_eq!(region.len(), 12_288, "whole pages");
        region.write(4096, &7_u64.to_ne_bytes());
        assert_eq!(region.u64(4096).load(Ordering::Relaxed), 7);
        region.copy(4096, &region, 4098, 8);
        let mut out = [0; 2];
        region.read(4098, &mut out);
        assert_eq!(u16::from_ne_bytes(out), 7);
        assert_eq!(region.position(region.address(5)), Some(5));
        assert_eq!(region.position(std::ptr::null()), None);
    }

    #[test]
    fn what_is_written_past_the_caches_is_all_there_and_nothing_else() {
        let region = Region::private(8192, PageSize::Small).expect("memory");
        let from: Vec<u8> = (0..1200_u32).map(|n| n as u8 | 1).collect();
        for (at, begin, len) in [(0, 0, 256), (64, 3, 37), (4096, 1, 16), (4160, 5, 0), (8128, 7, 64), (2048, 5, 1171)] {
            region.fill(0..8192, 0);
            region.write_past(at, &from[begin..begin + len]);
            let mut all = vec![0; 8192];
            region.read(0, &mut all);
            assert_eq!(all[at..at + len], from[begin..begin + len]);
            assert!(all[..at].iter().chain(&all[at + len..]).all(|byte| *byte == 0), "{len} bytes at {at}");
        }
    }

    #[test]
    #[should_panic(expected = "1 bytes at 4096 of a region of 4096 bytes")]
    fn out_of_range_is_our_own_mistake() {
        Region::private(1, PageSize::Small).expect("memory").write(4096, &[1]);
    }

    #[test]
    #[cfg(not(miri))]
    fn another_mapping_sees_the_same_bytes_and_lies_are_refused() {
        let ours = Region::shared("hotshelf-test", 8192).expect("memory");
        let fd = || ours.fd().expect("shared").try_clone_to_owned().expect("a descriptor");
        let theirs = Region::attach(fd(), 8192).expect("attached");
        ours.write(8000, b"hello");
        let mut out = [0; 5];
        theirs.read(8000, &mut out);
        assert_eq!(&out, b"hello");
        assert!(matches!(Region::attach(fd(), 8193), Err(AttachError::TooSmall { bytes: 8192, wanted: 8193 })));
        let open = rustix::fs::memfd_create("open", rustix::fs::MemfdFlags::ALLOW_SEALING).expect("memfd");
        assert!(matches!(Region::attach(open, 1), Err(AttachError::MayShrink)));
        let flags = rustix::fs::MemfdFlags::ALLOW_SEALING | rustix::fs::MemfdFlags::HUGETLB;
        // Not every kernel has such pages.
        if let Ok(huge) = rustix::fs::memfd_create("huge", flags) {
            rustix::fs::fcntl_add_seals(&huge, rustix::fs::SealFlags::SHRINK).expect("sealed");
            assert!(matches!(Region::attach(huge, 1), Err(AttachError::HugePages)));
        }
    }
}
