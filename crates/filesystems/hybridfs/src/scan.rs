//! The scan: finds in the background what is on the SSD, so that the policy knows every file it may
//! choose, and what both sides hold.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering;

use rustix::fs::FileType;

use crate::dirs::DirPair;
use crate::errno::Result;
use crate::known_files::KnownFiles;
use crate::nodes::{KeptFor, NodeKind};
use crate::number::ROOT;
use crate::pair::TieredFs;
use crate::path::HIDDEN;
use crate::persist::HistoryRecord;
use crate::read_dir::read_names;
use crate::report::TierName;

/// A file found on the SSD.
struct FoundFile {
    ino: u64,
    size: u64,
    last_open_s: u32,
    opens: u16,
    /// Position in the saved order, for files that have one.
    order: u32,
}

impl TieredFs {
    /// Walks the SSD once, then feeds the policy: the saved history in its order, the rest by access time.
    pub(crate) fn scan(&self) {
        let history = std::mem::take(&mut *self.history.lock());
        let known: HashMap<u64, (u32, HistoryRecord)> = (0u32..).zip(history).map(|(order, row)| (row.ino, (order, row))).collect();
        let mut files = Vec::new();
        let mut todo = vec![ROOT];
        // The kernel may look at a directory and forget it before its turn comes.
        let mut seen = KnownFiles::new(self);
        while let Some(ino) = todo.pop() {
            if self.mover.stopping() {
                return;
            }
            if let Err(error) = self.scan_dir(ino, &known, &mut seen, &mut files, &mut todo) {
                tracing::debug!(ino, %error, "a directory went away during the scan");
            }
        }
        files.sort_by_key(|file| (file.last_open_s, file.order));
        for file in &files {
            self.placement.arrived(file.ino, file.size, file.last_open_s, file.opens);
        }
        self.counters.scan_done.store(true, Ordering::Release);
        tracing::info!(files = files.len(), "the SSD is scanned");
        drop(seen);
        self.look_at_all_pins();
        self.mover.wake();
    }

    fn scan_dir(
        &self,
        ino: u64,
        known: &HashMap<u64, (u32, HistoryRecord)>,
        seen: &mut KnownFiles<'_>,
        files: &mut Vec<FoundFile>,
        todo: &mut Vec<u64>,
    ) -> Result<()> {
        let dir = self.dir(ino)?;
        let Some(fd) = dir.on(TierName::Ssd) else { return Ok(()) };
        let mut names: Vec<(Box<[u8]>, FileType)> = Vec::new();
        read_names(fd, &mut |name, kind| {
            if ino != ROOT || name != HIDDEN.as_bytes() {
                names.push((name.into(), kind));
            }
        })?;
        self.find_conflicts(&dir, &names)?;
        for (name, _) in names.iter().filter(|(_, kind)| matches!(kind, FileType::RegularFile | FileType::Directory | FileType::Unknown)) {
            let name = OsStr::from_bytes(name);
            let Ok(found) = self.find(&dir, name) else { continue };
            match found.kind {
                NodeKind::Directory => {
                    seen.upsert(&found, ino, name);
                    todo.push(found.ino);
                }
                NodeKind::Regular if found.tier == TierName::Ssd => {
                    let mut file = KnownFiles::new(self);
                    file.upsert(&found, ino, name);
                    self.nodes.keep(found.ino, KeptFor::Policy, true);
                    files.push(self.remembered(found.ino, &found.stat, known));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn remembered(&self, ino: u64, stat: &crate::stat::Stat, known: &HashMap<u64, (u32, HistoryRecord)>) -> FoundFile {
        let touched = stat.atime.0.max(stat.mtime.0).clamp(0, i64::from(u32::MAX)) as u32;
        match known.get(&ino) {
            Some((order, row)) => {
                if row.last_move != 0 {
                    self.nodes.change(ino, |node| node.last_move = (row.last_move_s, row.last_move));
                }
                FoundFile { ino, size: stat.size, last_open_s: row.last_open_s, opens: row.opens, order: *order }
            }
            None => FoundFile { ino, size: stat.size, last_open_s: touched, opens: 1, order: u32::MAX },
        }
    }

    /// Names that are on the HDD too and are not directories on both sides.
    fn find_conflicts(&self, dir: &DirPair, names: &[(Box<[u8]>, FileType)]) -> Result<()> {
        let Some(hdd) = dir.on(TierName::Hdd) else { return Ok(()) };
        let on_ssd: HashSet<&[u8]> = names.iter().map(|(name, _)| &**name).collect();
        let mut both = Vec::new();
        read_names(hdd, &mut |name, _| {
            if on_ssd.contains(name) {
                both.push(Box::<[u8]>::from(name));
            }
        })?;
        for name in both {
            let name_os = OsStr::from_bytes(&name);
            let kinds = [TierName::Ssd, TierName::Hdd].map(|tier| {
                let stat = dir.on(tier).and_then(|fd| self.tier(tier).look(fd, name_os).ok().flatten());
                stat.map(|stat| (stat.is_dir(), stat.ino))
            });
            let [Some((ssd_dir, ssd_ino)), Some((hdd_dir, hdd_ino))] = kinds else { continue };
            if ssd_dir && hdd_dir {
                continue;
            }
            if !self.moving(ssd_ino, hdd_ino) {
                let mut path = self.nodes.path(dir.ino).unwrap_or_default();
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(&name);
                self.note_conflict(&path);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::testing::TestPair;

    #[test]
    fn directories_are_scanned_also_when_the_kernel_forgets_them_before_their_turn() {
        let fs = TestPair::with(&["ssd/a/file"]);
        let (mut seen, mut files, mut todo) = (KnownFiles::new(&fs), Vec::new(), Vec::new());
        fs.scan_dir(ROOT, &HashMap::new(), &mut seen, &mut files, &mut todo).expect("scanned");
        let ino = fs.look_up("a");
        fs.forget(ino, 1);
        fs.dirs.drop_dir(ino);
        fs.scan_dir(todo[0], &HashMap::new(), &mut seen, &mut files, &mut todo).expect("still known");
        assert_eq!(files.len(), 1);
    }
}
