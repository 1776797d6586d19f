//! What is known of each descriptor: whether its file is chosen, and where the last access ended. A fixed table of atomics, so that
//! threads, signal handlers and children may use it at any moment. It is knowledge, never truth: a wrong line costs one eviction.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libc::c_int;

use crate::{config, sys};

/// Descriptors with a line; those above are looked at each time.
const LINES: usize = 1 << 16;

const UNKNOWN: u32 = 0;
const OTHER: u32 = 1;
const CHOSEN: u32 = 2;
const VERDICT: u32 = 3;
/// Every write goes to the end.
const APPEND: u32 = 4;
/// Its file system has no ranges to write out.
const WHOLE: u32 = 8;

struct FileEntry {
    /// Verdict and flags.
    state: AtomicU32,
    /// Where the last read, and the last write, ended, four times, and what is left of it.
    last: [AtomicU64; 2],
    /// Bytes written whose writing out was not begun.
    waiting: AtomicU64,
}

static TABLE: [FileEntry; LINES] =
    [const { FileEntry { state: AtomicU32::new(UNKNOWN), last: [AtomicU64::new(0), AtomicU64::new(0)], waiting: AtomicU64::new(0) } };
        LINES];
static HIGHEST: AtomicU32 = AtomicU32::new(0);

/// An open file that is chosen.
#[derive(Clone, Copy)]
pub struct File {
    /// Its descriptor.
    pub fd: c_int,
    state: u32,
}

impl File {
    /// Writes go to the end.
    pub fn appends(self) -> bool {
        self.state & APPEND != 0
    }

    /// Only as a whole can it be written out.
    pub fn is_whole(self) -> bool {
        self.state & WHOLE != 0
    }

    /// Where the last access of that direction ended, and what is left of it.
    pub fn last(self, direction: Direction) -> (u64, ResidualPages) {
        let last = line(self.fd).and_then(|line| line.last.get(direction as usize)).map_or(0, |last| last.load(Ordering::Relaxed));
        let left = match last & 3 {
            1 => ResidualPages::Behind,
            2 => ResidualPages::InFlight,
            _ => ResidualPages::Nothing,
        };
        (last >> 2, left)
    }

    /// Notes bytes that were written and wait; whether they are `enough` by now, and then they wait no longer.
    pub fn has_written(self, bytes: u64, enough: u64) -> bool {
        let Some(line) = line(self.fd) else { return true };
        let is_enough = line.waiting.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) >= enough;
        if is_enough {
            line.waiting.store(0, Ordering::Relaxed);
        }
        is_enough
    }

    /// Notes where an access ended.
    pub fn set_last(self, direction: Direction, at: u64, left: ResidualPages) {
        if let Some(last) = line(self.fd).and_then(|line| line.last.get(direction as usize)) {
            last.store(at << 2 | left as u64, Ordering::Relaxed);
        }
    }
}

/// Which direction the data goes. Each is a stream of its own: copying within a file goes on in two places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Out of the file.
    Read = 0,
    /// Into it.
    Write = 1,
}

/// What accesses have left in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResidualPages {
    /// Nothing.
    Nothing = 0,
    /// The page they stopped in, and what was read ahead: for the next one.
    Behind = 1,
    /// That was dropped, but what was still being read ahead just then could not be.
    InFlight = 2,
}

fn line(fd: c_int) -> Option<&'static FileEntry> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// The descriptor's file, if it is chosen.
#[inline]
pub fn look(fd: c_int) -> Option<File> {
    let state = line(fd).map_or(UNKNOWN, |line| line.state.load(Ordering::Relaxed));
    if state & VERDICT != UNKNOWN {
        return (state & VERDICT == CHOSEN).then_some(File { fd, state });
    }
    first_look(fd)
}

#[cold]
fn first_look(fd: c_int) -> Option<File> {
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
    // What others have read before is not there either.
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

/// The flags of a chosen file; `None` for what is not.
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

/// What lies below a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StorageKind {
    /// A block device.
    Block,
    /// Nothing: its pages are the file.
    Memory,
    /// Another file system.
    Stacked,
    /// A network, or another process.
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

/// The number will be, or is, another file.
pub fn forget(fd: c_int) {
    if let Some(line) = line(fd) {
        line.state.store(UNKNOWN, Ordering::Relaxed);
    }
}

/// A chosen file that was used through the descriptor; asks nobody.
pub fn used(fd: c_int) -> Option<File> {
    let state = line(fd)?.state.load(Ordering::Relaxed);
    (state & VERDICT == CHOSEN).then_some(File { fd, state })
}

/// The largest descriptor that has a line.
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
