//! What is in a directory.
//!
//! A position in a directory follows from names alone: entries are listed in the order of [`position`], a hash of the name, and the
//! position behind an entry is one more. So it is the same for every open directory, after a remount and in another process, and
//! whatever is made or removed meanwhile: what was there all the time is listed once. The store has names in their own order, so a
//! listing reads the whole directory, and keeps as many entries as there is memory for ([`WINDOW_MAX`]); a larger directory is read
//! several times. What resumes on another handle uses the entries that the last one read, unless a name has changed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::core::{FsCore, ROOT};
use super::error::{Error, Result};
use super::key::{BELOW, ENTRY, unescape};
use super::name::Name;
use super::record::{FileKind, NameValue};
use crate::{ScanStep, TreeId};

/// Entries of a window, about.
const WINDOW_MAX: usize = 1 << 16;
/// Windows that are kept for the next handle.
const WINDOWS: usize = 4;
/// Positions of `.` and `..` are before this.
pub const DOTS: u64 = 2;

/// An entry of a directory listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// The name of the entry.
    pub name: Vec<u8>,
    /// The number of its file.
    pub ino: u64,
    /// The type of the file it names.
    pub kind: FileKind,
}

/// Where an entry with this name is among the others: 3 to 2^62 + 2. Clients of NFS keep it over restarts, so it must not change.
pub fn position(name: &[u8]) -> u64 {
    // FNV-1a, and the last step of MurmurHash3 for its upper bits.
    let mut hash = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    ((hash ^ hash >> 33) >> 2) + DOTS + 1
}

/// Entries of a directory, in the order of their positions.
pub struct DirWindow {
    /// All entries with positions from the first on, before the second.
    from: u64,
    until: u64,
    entries: Vec<(u64, DirEntry)>,
    /// What could not be read.
    wrong: Option<Error>,
}

/// A window that was read.
pub struct CachedWindow {
    ino: u64,
    version: u64,
    window: Arc<DirWindow>,
}

impl DirWindow {
    fn new(from: u64) -> DirWindow {
        DirWindow { from, until: u64::MAX, entries: Vec::new(), wrong: None }
    }

    fn add(&mut self, at: u64, entry: DirEntry, most: usize) {
        if at >= self.from && at < self.until {
            self.entries.push((at, entry));
            if self.entries.len() >= 2 * most {
                self.cut(most);
            }
        }
    }

    /// The first so many stay; entries of one position together.
    fn cut(&mut self, most: usize) {
        if self.entries.len() <= most {
            return;
        }
        let (_, (until, _), _) = self.entries.select_nth_unstable_by_key(most, |(at, _)| *at);
        let until = *until;
        // All of them may have one position.
        if self.entries.iter().any(|(at, _)| *at < until) {
            self.until = until;
            self.entries.retain(|(at, _)| *at < until);
        }
    }

    fn finish(&mut self, most: usize) {
        self.cut(most);
        self.entries.sort_unstable_by(|(at, entry), (other_at, other)| (at, &entry.name).cmp(&(other_at, &other.name)));
    }

    /// Whether a listing can go on here from a position.
    pub fn covers(&self, at: u64) -> bool {
        self.from <= at && at < self.until
    }

    /// The number of the first entry from a position on.
    pub fn first(&self, at: u64) -> usize {
        self.entries.partition_point(|(of, _)| *of < at)
    }

    /// An entry by number, with the position behind it: that of the entry itself if another has the same, which is listed twice then,
    /// rather than not at all.
    pub fn get(&self, n: usize) -> Option<(&DirEntry, u64)> {
        let (at, entry) = self.entries.get(n)?;
        let shared = self.entries.get(n + 1).is_some_and(|(next, _)| next == at);
        Some((entry, if shared { *at } else { at + 1 }))
    }

    /// Where the next window begins.
    pub fn end(&self) -> Option<u64> {
        (self.until < u64::MAX).then_some(self.until)
    }

    /// What could not be read of the directory.
    pub fn outcome(&self) -> Result<()> {
        self.wrong.clone().map_or(Ok(()), Err)
    }
}

impl FsCore {
    /// The entries from a position on, as many as a window has. `shared`: one that was read before is as good.
    pub fn window(&self, dir: &Arc<Name>, ino: u64, from: u64, shared: bool) -> Result<Arc<DirWindow>> {
        let version = {
            // With the lock: of a change that is under way nothing is counted yet, or all of it is there.
            let names = self.locks.shared();
            let _dir = self.locks.look(&names, dir);
            self.names_changed.load(Ordering::SeqCst)
        };
        let is_known = |known: &CachedWindow| known.ino == ino && known.version == version && known.window.covers(from);
        if shared && let Some(known) = self.windows.lock().iter().find(|known| is_known(known)) {
            return Ok(Arc::clone(&known.window));
        }
        let window = Arc::new(self.read_window(dir, from)?);
        let mut known = self.windows.lock();
        known.retain(|known| known.ino != ino);
        known.push_front(CachedWindow { ino, version, window: Arc::clone(&window) });
        known.truncate(WINDOWS);
        Ok(window)
    }

    fn read_window(&self, dir: &Name, from: u64) -> Result<DirWindow> {
        let _names = self.locks.shared();
        let mut window = DirWindow::new(from);
        if dir.is_gone() {
            return Ok(window);
        }
        let enc = dir.enc();
        let begin = enc.prefix(ENTRY).len();
        let mut wrong = None;
        let scanned = self.store.scan(TreeId::Names, &enc.prefix(ENTRY), &enc.prefix(BELOW), &mut |key, value| {
            match (unescape(&key[begin.min(key.len())..]), NameValue::parse(value)) {
                (Some(name), Ok(value)) => window.add(position(&name), DirEntry { name, ino: value.ino(), kind: value.kind() }, WINDOW_MAX),
                (_, Err(malformed)) => wrong = Some(malformed.0),
                (None, _) => wrong = Some("a name that is none"),
            }
            ScanStep::Go
        });
        let wrong = wrong.map(|what| Error::Malformed { ino: 0, what });
        // What could be read is listed first.
        window.wrong = scanned.err().map(Error::from).or(wrong);
        window.finish(WINDOW_MAX);
        Ok(window)
    }

    /// The numbers of a directory, and of the one it is in.
    pub fn dots(&self, dir: &Arc<Name>) -> Result<[u64; 2]> {
        let number = |name: &Name| if name.is_root() { Ok(ROOT) } else { self.dir_record(name).map(|record| record.ino) };
        let above = number(&dir.parent());
        Ok([number(dir)?, above?])
    }

    /// Returns the name of a directory in use.
    pub fn dir_of(&self, inode: &super::table::Inode) -> Result<Arc<Name>> {
        match &*inode.state.read() {
            super::table::InodeState { record, at: Some(super::table::RecordLocation::Name(name)), .. } if record.kind == FileKind::Dir => {
                Ok(Arc::clone(name))
            }
            _ => Err(Errno::NOTDIR.into()),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn listed(names: &[u64], from: u64, most: usize, weak: u64) -> Vec<(u64, u64)> {
        let (mut all, mut at) = (Vec::new(), from);
        loop {
            let mut window = DirWindow::new(at);
            for name in names {
                window.add(name % weak + 3, DirEntry { name: name.to_be_bytes().to_vec(), ino: *name, kind: FileKind::File }, most);
            }
            window.finish(most);
            let mut n = window.first(at);
            while let Some((entry, behind)) = window.get(n) {
                all.push((entry.ino, behind));
                n += 1;
            }
            match window.end() {
                Some(end) => at = end,
                None => return all,
            }
        }
    }

    /// Positions that collide as much as can be, windows of any size, resumed anywhere in another state of the directory.
    #[test]
    fn what_was_there_all_the_time_is_listed_after_every_position() {
        let mut rng = crate::testing::rng();
        for _ in 0..300 {
            let (weak, most) = ([2, 50, u64::MAX - 9][rng.usize(..3)], rng.usize(1..40));
            let mut names: Vec<u64> = (0..rng.u64(0..120)).collect();
            rng.shuffle(&mut names);
            let before = listed(&names, 3, most, weak);
            let mut told: Vec<u64> = before.iter().map(|(name, _)| *name).collect();
            told.sort_unstable();
            let mut all = names.clone();
            all.sort_unstable();
            assert_eq!(told, all, "each once");
            let stop = rng.usize(..=before.len());
            let place = if stop == 0 { 3 } else { before[stop - 1].1 };
            let new = 1000..1000 + rng.u64(0..30);
            let kept: Vec<u64> = names.iter().copied().filter(|_| rng.u8(..4) > 0).chain(new).collect();
            let after = listed(&kept, place, rng.usize(1..40), weak);
            for (n, (name, _)) in before.iter().enumerate().filter(|(_, (name, _))| kept.contains(name)) {
                let times = after.iter().filter(|(other, _)| other == name).count();
                let same = |other: u64| other % weak == name % weak;
                let tied = n < stop && stop < before.len() && same(before[stop - 1].0) && same(before[stop].0);
                assert!(times == usize::from(n >= stop) || tied, "{name} {times} times, {n} of {stop}");
            }
        }
    }

    #[test]
    fn positions_stay_what_they_are() {
        assert_eq!([position(b"a"), position(b"file 2")], [0x20a8_aa56_2a6f_b399, 0x1af7_fb11_e790_27c8]);
        assert!([&b""[..], b"a", &[255; 255]].iter().all(|name| (3..=(1 << 62) + 2).contains(&position(name))));
    }
}
