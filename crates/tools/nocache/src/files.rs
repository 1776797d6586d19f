//! Per-descriptor state: whether the file is selected, and where the last access ended. A fixed table of atomics, for threads, signal
//! handlers and child processes. It is a cache, not the truth: a wrong entry costs one eviction.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libc::c_int;

use crate::{config, sys};

/// Number of descriptors with an entry; higher ones are checked each time.
const LINES: usize = 1 << 16;

const UNKNOWN: u32 = 0;
const OTHER: u32 = 1;
const CHOSEN: u32 = 2;
const VERDICT: u32 = 3;
/// Every write appends.
const APPEND: u32 = 4;
/// The file system cannot write back ranges.
const WHOLE: u32 = 8;

struct FileEntry {
    /// Selection state and flags.
    state: AtomicU32,
    /// End of the last read and of the last write, times four, plus what remains in memory.
    last: [AtomicU64; 2],
    /// Written bytes whose write-back was not started.
    waiting: AtomicU64,
}

static TABLE: [FileEntry; LINES] =
    [const { FileEntry { state: AtomicU32::new(UNKNOWN), last: [AtomicU64::new(0), AtomicU64::new(0)], waiting: AtomicU64::new(0) } };
        LINES];
static HIGHEST: AtomicU32 = AtomicU32::new(0);

/// An open file that is selected.
#[derive(Clone, Copy)]
pub struct File {
    /// Descriptor of the open file.
    pub fd: c_int,
    state: u32,
}

impl File {
    /// Returns whether every write appends.
    pub fn appends(self) -> bool {
        self.state & APPEND != 0
    }

    /// Returns whether only the whole file can be written back.
    pub fn is_whole(self) -> bool {
        self.state & WHOLE != 0
    }

    /// Returns the end of the last access in this direction, and what remains in memory.
    pub fn last(self, direction: Direction) -> (u64, ResidualPages) {
        let last = line(self.fd).and_then(|line| line.last.get(direction as usize)).map_or(0, |last| last.load(Ordering::Relaxed));
        let left = match last & 3 {
            1 => ResidualPages::Behind,
            2 => ResidualPages::InFlight,
            _ => ResidualPages::Nothing,
        };
        (last >> 2, left)
    }

    /// Adds written bytes that wait for write-back. Returns whether `enough` are waiting, and resets the count then.
    pub fn has_written(self, bytes: u64, enough: u64) -> bool {
        let Some(line) = line(self.fd) else { return true };
        let is_enough = line.waiting.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) >= enough;
        if is_enough {
            line.waiting.store(0, Ordering::Relaxed);
        }
        is_enough
    }

    /// Records the end of an access.
    pub fn set_last(self, direction: Direction, at: u64, left: ResidualPages) {
        if let Some(last) = line(self.fd).and_then(|line| line.last.get(direction as usize)) {
            last.store(at << 2 | left as u64, Ordering::Relaxed);
        }
    }
}

/// Direction of an access. Reads and writes are separate streams: a copy within a file advances at two offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Data is read from the file.
    Read = 0,
    /// Data is written to the file.
    Write = 1,
}

/// What accesses left in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResidualPages {
    /// Nothing is left in memory.
    Nothing = 0,
    /// The page they stopped in and the read-ahead, for the next access.
    Behind = 1,
    /// These were evicted, except for read-ahead that was still in flight.
    InFlight = 2,
}

fn line(fd: c_int) -> Option<&'static FileEntry> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// Returns the descriptor's file if it is selected.
#[inline]
pub fn look(fd: c_int) -> Option<File> {
    let state = line(fd).map_or(UNKNOWN, |line| line.state.load(Ordering::Relaxed));
    if state & VERDICT != UNKNOWN {
        return (state & VERDICT == CHOSEN).then_some(File { fd, state });
    }
    first_stat(fd)
}

#[cold]
fn first_stat(fd: c_int) -> Option<File> {
    let config = config::chosen()?;
    let Some(flags) = judge(fd, config) else {
        note(fd, OTHER);
        return None;
    };
    let state = flags | CHOSEN;
    let file = File { fd, state };
    note(fd, state);
    file.set_last(Direction::Read, 0, ResidualPages::Nothing);
    file.set_last(Direction::Write, 0, ResidualPages::Nothing);
    // Pages that others have read are evicted too.
    if flags & WHOLE == 0 {
        let _ = sys::write_out(fd, 0, 0);
    }
    let _ = sys::drop_pages(fd, 0, 0);
    Some(file)
}

fn note(fd: c_int, state: u32) {
    if let Some(line) = line(fd) {
        line.state.store(state, Ordering::Relaxed);
        HIGHEST.fetch_max(fd as u32, Ordering::Relaxed);
    }
}

/// Returns the flags of a selected file. `None`: not selected.
fn judge(fd: c_int, config: &config::Config) -> Option<u32> {
    let status = sys::status(fd)?;
    let flags = sys::open_flags(fd)?;
    if flags & (libc::O_DIRECT | libc::O_PATH) != 0 {
        return None;
    }
    let append = if flags & libc::O_APPEND != 0 { APPEND } else { 0 };
    match status.st_mode & libc::S_IFMT {
        libc::S_IFBLK => (config.all || config.has_device(status.st_rdev) || named(fd, &status, config)).then_some(0),
        libc::S_IFREG => {
            let kind = StorageKind::of(status.st_dev, sys::file_system(fd)?);
            let chosen = match kind {
                StorageKind::Memory => false,
                StorageKind::Block | StorageKind::Stacked if config.all => true,
                _ => config.has_device(status.st_dev) || named(fd, &status, config),
            };
            let whole = if kind == StorageKind::Block { 0 } else { WHOLE };
            chosen.then_some(append | whole)
        }
        _ => None,
    }
}

fn named(fd: c_int, status: &libc::stat, config: &config::Config) -> bool {
    if config.has_file(status.st_dev, status.st_ino) {
        return true;
    }
    let mut buffer = [0_u8; 4097];
    config.has_trees() && sys::path_of(fd, &mut buffer).is_some_and(|path| config.has_path(path))
}

/// The storage below a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StorageKind {
    /// A block device.
    Block,
    /// Memory: the pages are the file.
    Memory,
    /// Another file system.
    Stacked,
    /// A network or another process.
    Far,
}

impl StorageKind {
    fn of(device: u64, magic: u32) -> Self {
        const TMPFS: u32 = 0x0102_1994;
        const RAMFS: u32 = 0x8584_58f6;
        const HUGETLBFS: u32 = 0x9584_58f6;
        const PROC: u32 = 0x9fa0;
        const SYSFS: u32 = 0x6265_6572;
        const CGROUPS: [u32; 2] = [0x0027_e0eb, 0x6367_7270];
        const BTRFS: u32 = 0x9123_683e;
        const OVERLAY: u32 = 0x794c_7630;
        match magic {
            TMPFS | RAMFS | HUGETLBFS | PROC | SYSFS => Self::Memory,
            magic if CGROUPS.contains(&magic) => Self::Memory,
            OVERLAY => Self::Stacked,
            BTRFS => Self::Block,
            _ if libc::major(device) != 0 => Self::Block,
            _ => Self::Far,
        }
    }
}

/// Resets the entry of a descriptor that is reused.
pub fn forget(fd: c_int) {
    if let Some(line) = line(fd) {
        line.state.store(UNKNOWN, Ordering::Relaxed);
    }
}

/// Returns a selected file used through the descriptor, without a system call.
pub fn used(fd: c_int) -> Option<File> {
    let state = line(fd)?.state.load(Ordering::Relaxed);
    (state & VERDICT == CHOSEN).then_some(File { fd, state })
}

/// Returns the highest descriptor with an entry.
pub fn highest() -> c_int {
    HIGHEST.load(Ordering::Relaxed) as c_int
}

#[cfg(test)]
mod test {
    use super::{StorageKind, line};

    #[test]
    fn what_lies_below_is_known_by_its_number() {
        assert_eq!(StorageKind::of(libc::makedev(8, 1), 0xef53), StorageKind::Block);
        assert_eq!(StorageKind::of(libc::makedev(0, 40), 0x9123_683e), StorageKind::Block);
        assert_eq!(StorageKind::of(libc::makedev(0, 25), 0x0102_1994), StorageKind::Memory);
        assert_eq!(StorageKind::of(libc::makedev(0, 50), 0x794c_7630), StorageKind::Stacked);
        assert_eq!(StorageKind::of(libc::makedev(0, 60), 0x6969), StorageKind::Far);
    }

    #[test]
    fn strange_descriptors_have_no_line() {
        assert!(line(-1).is_none() && line(i32::MAX).is_none() && line(0).is_some());
    }
}
