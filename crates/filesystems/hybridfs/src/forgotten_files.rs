//! Requests for files by an inode number that is no longer known: an NFS client, or open_by_handle_at(2).
//!
//! Where they were is in `numbers`. What is not in there is looked for once in the whole tree, unless it is sure
//! that every forgotten file is in there: after the first mount of a pair, or one that ended well.

pub(crate) mod table;

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::dirs::DirPair;
use crate::errno::Result;
use crate::known_files::KnownFiles;
use crate::names::{Attr, FoundName};
use crate::nodes::NodeKind;
use crate::number::ROOT;
use crate::numbers::{NumberEntry, NumberTable};
use crate::pair::TieredFs;
use crate::read_dir::names_like;
use crate::report::TierName;

/// Forgotten files that wait to be noted by the watching thread; more are noted at once.
const WAITING_MAX: usize = 1 << 17;
/// No more than this share of the time goes into walks over the whole tree.
const WALK_SHARE: u32 = 10;

impl TieredFs {
    /// Whether a file of this number is known; to find another may take long.
    pub fn is_known(&self, ino: u64) -> bool {
        ino == ROOT || self.nodes.with(ino, |_| ()).is_some()
    }

    /// The kernel has forgotten a file.
    pub(crate) fn forgot_some(&self) {
        if self.nodes.forgotten_len() >= WAITING_MAX {
            self.note_forgotten();
        }
    }

    /// Records where forgotten files were.
    pub(crate) fn note_forgotten(&self) {
        if self.nodes.forgotten_len() == 0 {
            return;
        }
        let mut table = self.numbers.table.lock();
        // Taken under the lock: in order.
        let files = self.nodes.take_forgotten();
        self.note(&mut table, &files);
    }

    fn note(&self, table: &mut Option<NumberTable>, files: &[(u64, Option<NumberEntry>)]) {
        let Some(table) = table else { return };
        for (number, entry) in files {
            if let Err(error) = table.set(*number, *entry) {
                // A full SSD, say. What is missing is looked for in the tree.
                if self.numbers.complete.swap(false, Ordering::AcqRel) {
                    tracing::warn!(%error, ".hotshelf/numbers cannot be written: files of old handles are looked for in the whole tree");
                }
                return;
            }
        }
    }

    /// Keeps what is known for the next mount.
    pub(crate) fn close_numbers(&self) {
        self.note_forgotten();
        let mut table = self.numbers.table.lock();
        if table.is_none() {
            return;
        }
        let files = self.nodes.all_last_seen();
        self.note(&mut table, &files);
        let complete = self.numbers.complete.load(Ordering::Acquire);
        if let Some(table) = table.take()
            && let Err(error) = table.close(self.tier(TierName::Ssd).hidden.as_fd(), complete)
        {
            tracing::warn!(%error, ".hotshelf/numbers could not be kept");
        }
    }

    /// Finds a file by a number that is not known, or known at a place where it is not any more. Adds a reference.
    pub(crate) fn lookup_forgotten(&self, ino: u64) -> Result<Attr> {
        if let Some(found) = self.follow(ino)? {
            return Ok(found);
        }
        // Files on the SSD are known again when it is scanned.
        while !self.counters.scan_done.load(Ordering::Acquire) && !self.mover.stopping() {
            self.mover.pause(Duration::from_millis(20));
        }
        if let Some(found) = self.follow(ino)? {
            return Ok(found);
        }
        if self.look_everywhere(ino)?
            && let Some(found) = self.follow(ino)?
        {
            return Ok(found);
        }
        Err(Errno::STALE)
    }

    /// Goes from directory to directory to where the file was.
    fn follow(&self, ino: u64) -> Result<Option<Attr>> {
        match self.followed(ino).and_then(|known| self.lookup_known(ino).map(|attr| (attr, known))) {
            Ok((attr, _known)) => Ok(Some(attr)),
            Err(Errno::STALE | Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn followed(&self, ino: u64) -> Result<KnownFiles<'_>> {
        const DEPTH_MAX: usize = 4096;
        self.note_forgotten();
        let mut known = KnownFiles::new(self);
        if self.lookup_known(ino).is_ok() {
            known.adopt(ino);
            return Ok(known);
        }
        let mut chain = Vec::new();
        let mut at = ino;
        while at == ino || !self.is_known(at) {
            let entry = self.entry(at)?.filter(|_| chain.len() < DEPTH_MAX).ok_or(Errno::STALE)?;
            chain.push((at, entry));
            at = entry.parent;
        }
        while let Some((number, entry)) = chain.pop() {
            let (found, name) = self.child(&*self.dir(at)?, number, entry.hint)?.ok_or(Errno::STALE)?;
            known.place(&found, at, OsStr::from_bytes(&name));
            at = number;
        }
        Ok(known)
    }

    fn entry(&self, number: u64) -> Result<Option<NumberEntry>> {
        self.numbers.table.lock().as_ref().map_or(Ok(None), |table| table.get(number))
    }

    /// The name in a directory that has this number: first of those whose backing inode looks right, then of all.
    fn child(&self, dir: &DirPair, number: u64, hint: u64) -> Result<Option<(FoundName, Box<[u8]>)>> {
        for all in [false, true] {
            for tier in [TierName::Ssd, TierName::Hdd] {
                let Some(fd) = dir.on(tier) else { continue };
                let names = self.noted_at(tier, fd, names_like(fd, |ino| all || NumberEntry::hint_of(ino) == hint))?;
                for name in names {
                    match self.find(dir, OsStr::from_bytes(&name)) {
                        Ok(found) if found.ino == number => return Ok(Some((found, name))),
                        _ => {}
                    }
                }
            }
        }
        Ok(None)
    }

    /// Walks over the whole tree and notes where everything is, if the file may be somewhere all the same. Answers whether it did.
    fn look_everywhere(&self, ino: u64) -> Result<bool> {
        let asked = Instant::now();
        let mut walked = self.numbers.walked.lock();
        if walked.is_some_and(|(ended, _)| ended > asked) {
            // Somebody else has walked while we waited.
            return Ok(true);
        }
        let linked = self.entry(ino)?.is_some_and(|entry| entry.linked);
        let has_table = self.numbers.table.lock().is_some();
        let complete = self.numbers.complete.load(Ordering::Acquire);
        let too_soon = walked.is_some_and(|(ended, took)| ended.elapsed() < took * WALK_SHARE);
        if !has_table || too_soon || complete && !linked {
            return Ok(false);
        }
        tracing::info!("walking over the tree for a file handle that nothing is known of");
        self.numbers.complete.store(true, Ordering::Release);
        let whole = self.walk();
        if whole.is_err() || self.mover.stopping() {
            self.numbers.complete.store(false, Ordering::Release);
        }
        if linked && self.entry(ino)?.is_some_and(|entry| entry.linked) {
            // It has no other name any more.
            self.note(&mut self.numbers.table.lock(), &[(ino, None)]);
        }
        *walked = Some((Instant::now(), asked.elapsed()));
        whole.map(|()| true)
    }

    fn walk(&self) -> Result<()> {
        let mut known = KnownFiles::new(self);
        let mut todo = vec![ROOT];
        while let Some(at) = todo.pop() {
            if self.mover.stopping() {
                return Ok(());
            }
            let dir = match self.dir(at) {
                Ok(dir) => dir,
                // Removed since it was found.
                Err(Errno::STALE | Errno::NOENT | Errno::NOTDIR) if at != ROOT => continue,
                Err(error) => return Err(error),
            };
            let mut files = Vec::new();
            for tier in [TierName::Ssd, TierName::Hdd] {
                let Some(fd) = dir.on(tier) else { continue };
                for name in self.noted_at(tier, fd, names_like(fd, |_| true))? {
                    let name = OsStr::from_bytes(&name);
                    let Ok(found) = self.find(&dir, name) else { continue };
                    let hint = NumberEntry::hint_of(found.backing[found.tier as usize]);
                    files.push((found.ino, Some(NumberEntry { parent: at, hint, linked: false })));
                    // A directory on both sides is met twice.
                    if found.kind == NodeKind::Directory && (tier == TierName::Ssd || found.backing[0] == 0) {
                        known.upsert(&found, at, name);
                        todo.push(found.ino);
                    }
                }
            }
            self.note(&mut self.numbers.table.lock(), &files);
        }
        Ok(())
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::testing::{TestPair, me};

    /// Only root's mounts have handles.
    fn pair(files: &[&str]) -> Option<TestPair> {
        rustix::process::geteuid().is_root().then(|| {
            let fs = TestPair::with(files);
            fs.scan();
            fs
        })
    }

    fn number(fs: &TestPair, path: &str) -> u64 {
        fs.known_at(path.as_bytes()).expect("there").0
    }

    fn again(fs: TestPair) -> TestPair {
        fs.close_numbers();
        let fs = fs.again();
        fs.scan();
        fs
    }

    fn found(fs: &TestPair, ino: u64) -> Option<String> {
        let attr = fs.lookup_again(ino).ok()?;
        assert_eq!(attr.ino, ino);
        let path = fs.nodes.path(ino).map(|path| String::from_utf8(path).expect("text"));
        fs.forget(ino, 1);
        path
    }

    #[test]
    fn forgotten_files_are_found_by_number_also_after_a_remount_and_moves() {
        let paths = ["a/b/file", "a/other", "top"];
        let Some(fs) = pair(&paths.map(|path| format!("hdd/{path}")).each_ref().map(String::as_str)) else { return };
        let mut inos: Vec<(u64, &str)> = paths.iter().map(|path| (number(&fs, path), *path)).collect();
        inos.push((number(&fs, "a/b"), "a/b"));
        let check = |fs: &TestPair, inos: &[(u64, &str)]| {
            for (ino, path) in inos {
                assert_eq!(found(fs, *ino).as_deref(), Some(*path));
            }
        };
        check(&fs, &inos);
        fs.migrate(b"a/b/file", TierName::Ssd, &mut |_, _, _, _| true).expect("moved");
        check(&fs, &inos);
        let fs = again(fs);
        assert!(fs.numbers.complete.load(Ordering::Relaxed));
        check(&fs, &inos);
        fs.migrate(b"a/b/file", TierName::Hdd, &mut |_, _, _, _| true).expect("moved");
        fs.rename(me(), ROOT, OsStr::new("a"), ROOT, OsStr::new("new"), rustix::fs::RenameFlags::empty()).expect("renamed");
        let renamed: Vec<(u64, String)> = inos.iter().map(|(ino, path)| (*ino, path.replacen("a/", "new/", 1))).collect();
        let renamed: Vec<(u64, &str)> = renamed.iter().map(|(ino, path)| (*ino, path.as_str())).collect();
        check(&fs, &renamed);
        let fs = again(fs);
        check(&fs, &renamed);
    }

    #[test]
    fn after_a_crash_the_tree_is_walked_once() {
        let Some(fs) = pair(&["hdd/a/file"]) else { return };
        let ino = number(&fs, "a/file");
        let fs = fs.again();
        fs.scan();
        assert!(!fs.numbers.complete.load(Ordering::Relaxed));
        assert_eq!(found(&fs, ino).as_deref(), Some("a/file"));
        assert!(fs.numbers.complete.load(Ordering::Relaxed));
        assert_eq!(fs.lookup_again(ino ^ 0x55).expect_err("no such file"), Errno::STALE);
    }

    #[test]
    fn a_file_is_found_by_its_other_name_when_the_first_is_gone() {
        for (first, second) in [("file", "linked"), ("file", "sub/linked"), ("sub/file", "linked")] {
            let Some(fs) = pair(&["hdd/file", "hdd/sub/file"]) else { return };
            let ino = number(&fs, first);
            let link = |path: &str| std::fs::hard_link(fs.at("hdd").join(first), fs.at("hdd").join(path)).expect("linked");
            link(second);
            let (parent, name) = first.rsplit_once('/').map_or((ROOT, first), |(dir, name)| (number(&fs, dir), name));
            let known = fs.known_at(first.as_bytes()).expect("known");
            fs.unlink(me(), parent, OsStr::new(name)).expect("removed");
            drop(known);
            assert_eq!(found(&fs, ino).as_deref(), Some(second), "{first} {second}");
            let fs = again(fs);
            assert_eq!(found(&fs, ino).as_deref(), Some(second), "{first} {second}");
        }
    }

    #[test]
    fn a_removed_file_is_stale() {
        let Some(fs) = pair(&["hdd/file"]) else { return };
        let ino = number(&fs, "file");
        assert!(found(&fs, ino).is_some());
        let known = fs.known_at(b"file").expect("known");
        fs.unlink(me(), ROOT, OsStr::new("file")).expect("removed");
        drop(known);
        assert_eq!(fs.lookup_again(ino).expect_err("gone"), Errno::STALE);
        let fs = again(fs);
        assert_eq!(fs.lookup_again(ino).expect_err("gone"), Errno::STALE);
    }
}
