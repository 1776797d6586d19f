//! Entries of a directory in the order of their positions.
//!
//! A position in a directory follows from names alone: entries are listed in the order of [`position`], a hash of the name, and the
//! position behind an entry is one more. So it is the same for every open directory, after a remount and in another process, and
//! whatever is made or removed meanwhile: an entry that exists during the whole listing is listed once.

use std::sync::Arc;

use super::error::{Error, Result};
use super::record::FileKind;

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
    wrong: Option<Error>,
}

/// A window that is kept for the next handle.
pub struct CachedWindow {
    /// The number of the directory.
    pub ino: u64,
    /// The count of changed names when it was read.
    pub version: u64,
    /// The entries of the directory.
    pub window: Arc<DirWindow>,
}

impl DirWindow {
    /// Makes an empty window that begins at a position.
    pub fn new(from: u64) -> DirWindow {
        DirWindow { from, until: u64::MAX, entries: Vec::new(), wrong: None }
    }

    /// Adds an entry, unless it lies outside the window or behind the first `most`.
    pub fn add(&mut self, at: u64, entry: DirEntry, most: usize) {
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

    /// Sorts the entries once all were added.
    pub fn finish(&mut self, most: usize) {
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

    /// Records why some entries could not be read.
    pub fn set_error(&mut self, error: Option<Error>) {
        self.wrong = error;
    }

    /// Fails if some entries could not be read.
    pub fn outcome(&self) -> Result<()> {
        self.wrong.clone().map_or(Ok(()), Err)
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
            let mut seen: Vec<u64> = before.iter().map(|(name, _)| *name).collect();
            seen.sort_unstable();
            let mut all = names.clone();
            all.sort_unstable();
            assert_eq!(seen, all, "each once");
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
