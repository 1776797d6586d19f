//! The selected files, from the environment: parsed once, kept in fixed memory, never changed.
//!
//! `HOTSHELF_NOCACHE` is `off`, or a comma-separated list: `all`; `dMAJOR:MINOR`, a device; `fDEV:INODE`, a file; `tPATH`, a tree, with
//! `%XX` for special bytes; `u`, no io_uring; `wBYTES`, the limit of written bytes in flight. The command `hotshelf nocache` sets it.

use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU8, Ordering};

/// Name of the environment variable.
pub const VARIABLE: &CStr = c"HOTSHELF_NOCACHE";

const MOST: usize = 64;
const BYTES: usize = 32 << 10;

/// The selected files and options.
pub struct Config {
    /// Selects all regular files on block devices, and all block devices.
    pub all: bool,
    /// Denies io_uring to the program.
    pub no_rings: bool,
    /// Maximum bytes of recent writes in flight; 0: none.
    pub write_cache: u64,
    devices: [u64; MOST],
    device_count: usize,
    files: [(u64, u64); MOST],
    file_count: usize,
    trees: [(usize, usize); MOST],
    tree_count: usize,
    paths: [u8; BYTES],
    used: usize,
    /// The whole variable, `NAME=value` with a zero byte, for children whose environment lost it.
    kept: [u8; BYTES],
}

impl Config {
    const fn empty() -> Self {
        Self {
            all: false,
            no_rings: false,
            write_cache: 0,
            devices: [0; MOST],
            device_count: 0,
            files: [(0, 0); MOST],
            file_count: 0,
            trees: [(0, 0); MOST],
            tree_count: 0,
            paths: [0; BYTES],
            used: 0,
            kept: [0; BYTES],
        }
    }

    /// Returns whether the device is selected.
    pub fn has_device(&self, device: u64) -> bool {
        self.devices.iter().take(self.device_count).any(|one| *one == device)
    }

    /// Returns whether the file is selected.
    pub fn has_file(&self, device: u64, inode: u64) -> bool {
        self.files.iter().take(self.file_count).any(|one| *one == (device, inode))
    }

    /// Returns whether any tree is selected.
    pub fn has_trees(&self) -> bool {
        self.tree_count > 0
    }

    /// Returns whether the path is in a selected tree.
    pub fn has_path(&self, path: &[u8]) -> bool {
        let trees = self.trees.iter().take(self.tree_count).filter_map(|(from, to)| self.paths.get(*from..*to));
        let inside = |tree: &[u8]| path.strip_prefix(tree).is_some_and(|rest| tree == b"/" || rest.is_empty() || rest.starts_with(b"/"));
        trees.into_iter().any(inside)
    }

    /// Returns the variable with its name and the final zero byte.
    pub fn kept(&self) -> &[u8] {
        let end = self.kept.iter().position(|byte| *byte == 0).map_or(0, |at| at + 1);
        self.kept.get(..end).unwrap_or(&[])
    }

    /// Parses the value. `None`: invalid, or nothing is selected.
    fn read(&mut self, value: &[u8]) -> Option<()> {
        if value == b"off" || value.is_empty() {
            return None;
        }
        let name = VARIABLE.to_bytes();
        self.kept.get_mut(..name.len())?.copy_from_slice(name);
        *self.kept.get_mut(name.len())? = b'=';
        let rest = self.kept.get_mut(name.len() + 1..)?;
        rest.get_mut(..value.len())?.copy_from_slice(value);
        *rest.get_mut(value.len())? = 0;
        value.split(|byte| *byte == b',').try_for_each(|entry| self.entry(entry))
    }

    fn entry(&mut self, entry: &[u8]) -> Option<()> {
        match entry {
            b"all" => self.all = true,
            b"u" => self.no_rings = true,
            _ => return self.named(entry),
        }
        Some(())
    }

    fn named(&mut self, entry: &[u8]) -> Option<()> {
        let (kind, rest) = entry.split_first()?;
        match kind {
            b'd' => {
                let (major, minor) = pair(rest)?;
                *self.devices.get_mut(self.device_count)? = libc::makedev(major as u32, minor as u32);
                self.device_count += 1;
            }
            b'f' => {
                *self.files.get_mut(self.file_count)? = pair(rest)?;
                self.file_count += 1;
            }
            b't' => self.tree(rest)?,
            b'w' => self.write_cache = number(rest)?,
            _ => return None,
        }
        Some(())
    }

    fn tree(&mut self, mut text: &[u8]) -> Option<()> {
        let from = self.used;
        while let Some((first, rest)) = text.split_first() {
            let byte = match (first, rest) {
                (b'%', [high, low, ..]) => hex(*high)? << 4 | hex(*low)?,
                (b'%', _) => return None,
                (plain, _) => *plain,
            };
            text = if *first == b'%' { rest.get(2..)? } else { rest };
            *self.paths.get_mut(self.used)? = byte;
            self.used += 1;
        }
        *self.trees.get_mut(self.tree_count)? = (from, self.used);
        self.tree_count += 1;
        Some(())
    }
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

fn pair(text: &[u8]) -> Option<(u64, u64)> {
    let colon = text.iter().position(|byte| *byte == b':')?;
    Some((number(text.get(..colon)?)?, number(text.get(colon + 1..)?)?))
}

fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |sum, digit| sum.checked_mul(10)?.checked_add(u64::from(digit.checked_sub(b'0').filter(|d| *d < 10)?)))
}

struct ConfigCell {
    state: AtomicU8,
    config: UnsafeCell<Config>,
}

// SAFETY: written only by the thread that took `state` from NEW to BUSY, read only after it says READY.
unsafe impl Sync for ConfigCell {}

const NEW: u8 = 0;
const BUSY: u8 = 1;
const READY: u8 = 2;
const OFF: u8 = 3;

static ONCE: ConfigCell = ConfigCell { state: AtomicU8::new(NEW), config: UnsafeCell::new(Config::empty()) };

/// Returns the configuration. `None`: nothing is selected, or another thread is parsing it.
#[inline]
pub fn chosen() -> Option<&'static Config> {
    match ONCE.state.load(Ordering::Acquire) {
        // SAFETY: READY was stored after the last write to it.
        READY => Some(unsafe { &*ONCE.config.get() }),
        NEW => begin(),
        _ => None,
    }
}

#[cold]
fn begin() -> Option<&'static Config> {
    ONCE.state.compare_exchange(NEW, BUSY, Ordering::Acquire, Ordering::Relaxed).ok()?;
    // A set-uid program does not obey its caller; /etc/ld.so.preload brings the library into such programs too.
    // SAFETY: reads one value of the auxiliary vector, which does not change.
    let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    // SAFETY: the name ends with a zero byte.
    let value = if is_secure { std::ptr::null_mut() } else { unsafe { libc::getenv(VARIABLE.as_ptr()) } };
    // SAFETY: BUSY is ours alone, nobody else reads or writes it.
    let config = unsafe { &mut *ONCE.config.get() };
    // SAFETY: a variable of the environment ends with a zero byte.
    let understood = !value.is_null() && config.read(unsafe { CStr::from_ptr(value) }.to_bytes()).is_some();
    ONCE.state.store(if understood { READY } else { OFF }, Ordering::Release);
    understood.then(chosen).flatten()
}

#[cfg(test)]
mod test {
    use super::Config;

    fn read(value: &str) -> Option<Box<Config>> {
        let mut config = Box::new(Config::empty());
        config.read(value.as_bytes()).map(|()| config)
    }

    #[test]
    fn what_the_command_writes_is_understood() {
        let config = read("d7:3,f2049:77,t/a%20b,t/c").expect("a good value");
        assert!(config.has_device(libc::makedev(7, 3)) && !config.has_device(libc::makedev(7, 4)));
        assert!(config.has_file(2049, 77) && !config.has_file(2049, 78));
        assert!(config.has_path(b"/a b/file") && config.has_path(b"/c") && !config.has_path(b"/cc"));
        assert!(!config.all && config.has_trees());
        assert_eq!(config.kept(), b"HOTSHELF_NOCACHE=d7:3,f2049:77,t/a%20b,t/c\0");
    }

    #[test]
    fn the_root_is_a_tree_too() {
        assert!(read("t/").expect("a good value").has_path(b"/anything"));
    }

    #[test]
    fn nonsense_chooses_nothing() {
        for value in ["", "off", "x", "d7", "d7:", "d:3", "f1", "t/a%2", "t/a%zz", "d1:2,", "d99999999999999999999:1", "w", "wx", "all,w-1"]
        {
            assert!(read(value).is_none(), "{value}");
        }
        assert!(read(&["d1:1"; 65].join(",")).is_none());
        assert!(read(&format!("t{}", "/".repeat(40 << 10))).is_none());
        let all = read("all,u,w65536").expect("a good value");
        assert!(all.all && all.no_rings && all.write_cache == 65536);
    }
}
