//! The times of directories while files move.
//!
//! A move changes the names in directories, and no user should see their times change by it. So it puts them back; but
//! a user may change the same directory meanwhile, and the change must show. Who changes and who moves tell each other by
//! two counters of the directory, with no lock between them:
//!
//! ```text
//!   the mover ("a pass")                    a user's change
//!   passes += 1: odd                        note passes
//!   note changes, and the times             the system call; when it fails, no more
//!   the system call                         changes += 1
//!   put the times back                      passes odd at first, or not the same: modified now,
//!   changes not the same: modified now          between two passes, else changes += 1 again
//!   passes += 1: even
//! ```
//!
//! If the user's count comes before the mover's last look, the mover sees it; if it comes after, the user sees the pass.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::dirs::Dir;
use crate::pair::Hybrid;
use crate::tier::{Result, Tier};

/// Many: directories that share one see each other's changes, and then times change for nothing.
const COUNTS: u64 = 1 << 14;
/// A pass is two calls on a disk, which may be slow, or dead.
const PASS: Duration = Duration::from_millis(20);
const LOOKS_MAX: usize = 100;

/// Who has his hands on the times of which directory.
#[derive(Debug)]
pub(crate) struct DirTimes {
    counts: Vec<Counts>,
    /// Held by whoever sets a directory's times, so that none that a user sets are lost.
    setting: Mutex<()>,
    /// The passes of all directories.
    passes: AtomicU64,
}

#[derive(Debug, Default)]
struct Counts {
    /// Changes that users have made.
    changes: AtomicU64,
    /// Odd while a move has changed the directory and not yet put its times back.
    passes: AtomicU64,
}

impl DirTimes {
    pub(crate) fn new() -> DirTimes {
        DirTimes { counts: (0..COUNTS).map(|_| Counts::default()).collect(), setting: Mutex::new(()), passes: AtomicU64::new(0) }
    }

    /// While this is held, no times of directories are set.
    pub(crate) fn hold(&self) -> MutexGuard<'_, ()> {
        self.setting.lock()
    }

    fn of(&self, dir: u64) -> &Counts {
        &self.counts[(dir % COUNTS) as usize]
    }
}

impl Hybrid {
    /// Around every change a user makes to the names in a directory.
    pub(crate) fn changing<T>(&self, dir: &Dir, change: impl FnOnce() -> Result<T>) -> Result<T> {
        let counts = self.times.of(dir.ino);
        let passes = counts.passes.load(SeqCst);
        let changed = change()?;
        counts.changes.fetch_add(1, SeqCst);
        let disturbed = !passes.is_multiple_of(2) || counts.passes.load(SeqCst) != passes;
        // The later of both halves' times is shown: one that lies ahead would hide the change.
        let ahead = dir.is_ahead();
        if disturbed || ahead {
            // A pass that begins now would put back what it saw before this.
            let alone = self.times.setting.try_lock_for(PASS);
            for side in dir.sides.iter().flatten() {
                let _ = crate::copy::set_times(side.as_fd(), &crate::copy::modified_now());
            }
            if alone.is_none() {
                // One that lasts has looked already, and looks at this when it has put them back.
                counts.changes.fetch_add(1, SeqCst);
            }
        }
        if ahead {
            self.dirs.ask_again(dir.ino);
        }
        Ok(changed)
    }

    /// Changes a directory on one side without users seeing its times change, unless a user changes it meanwhile.
    pub(crate) fn keeping_times<T>(&self, ino: u64, tier: &Tier, dir: BorrowedFd<'_>, change: impl FnOnce() -> Result<T>) -> Result<T> {
        let _setting = self.times.hold();
        let counts = self.times.of(ino);
        self.times.passes.fetch_add(1, SeqCst);
        counts.passes.fetch_add(1, SeqCst);
        let changes = counts.changes.load(SeqCst);
        let before = tier.stat_fd(dir);
        let changed = change();
        if let Ok(before) = before {
            let _ = crate::copy::set_times(dir, &crate::copy::times(&before));
            if counts.changes.load(SeqCst) != changes {
                let _ = crate::copy::set_times(dir, &crate::copy::modified_now());
            }
        }
        counts.passes.fetch_add(1, SeqCst);
        self.times.passes.fetch_add(1, SeqCst);
        changed
    }

    /// Looks again when a move had its hands on a directory's times, for the kernel keeps what it is told. `dir` answers
    /// the number of what was seen, if it is a directory.
    pub(crate) fn times_kept<T>(&self, dir: impl Fn(&T) -> Option<u64>, look: impl Fn() -> Result<T>) -> Result<T> {
        let before = self.times.passes.load(SeqCst);
        let mut seen = look()?;
        if before.is_multiple_of(2) && self.times.passes.load(SeqCst) == before {
            return Ok(seen);
        }
        // Some directory's: this one's?
        for _ in 0..LOOKS_MAX {
            let Some(ino) = dir(&seen) else { break };
            let counts = self.times.of(ino);
            let passes = counts.passes.load(SeqCst);
            if !passes.is_multiple_of(2) {
                drop(self.times.setting.try_lock_for(PASS));
                continue;
            }
            seen = look()?;
            if dir(&seen) == Some(ino) && counts.passes.load(SeqCst) == passes {
                break;
            }
        }
        Ok(seen)
    }
}

#[cfg(test)]
mod test {
    use std::ffi::OsStr;
    use std::sync::Arc;

    use rustix::io::Errno;

    use super::*;
    use crate::attrs::{SetAttr, SetTime};
    use crate::create::Make;
    use crate::moves::Duplicate;
    use crate::report::TierName;
    use crate::testing::{TestPair, as_nobody, me};

    const OLD: (i64, u32) = (1_000_000_000, 5);

    /// A directory on both sides, modified long ago.
    struct Tree {
        fs: TestPair,
        ino: u64,
    }

    impl Tree {
        fn new() -> Tree {
            let fs = TestPair::with(&["ssd/dir/", "hdd/dir/copy"]);
            let tree = Tree { ino: fs.look_up("dir"), fs };
            tree.set(tree.ino);
            tree
        }

        fn set(&self, ino: u64) {
            let set = SetAttr { mtime: Some(SetTime::At(OLD.0, OLD.1)), ..SetAttr::default() };
            self.fs.setattr(me(), ino, &set, None).expect("set");
        }

        fn dir(&self) -> Arc<Dir> {
            self.fs.dir(self.ino).expect("open")
        }

        /// Moves something in, and does something else meanwhile.
        fn pass<T>(&self, meanwhile: impl FnOnce() -> T) {
            let (hdd, dir) = (self.fs.tier(TierName::Hdd), self.dir());
            let at = self.fs.at("hdd/dir/moved");
            let moved = self.fs.keeping_times(self.ino, hdd, dir.must(TierName::Hdd).expect("there"), || {
                std::fs::write(at, "moved").expect("moved");
                meanwhile();
                Ok(())
            });
            moved.expect("moved");
        }

        fn mtime(&self) -> (i64, u32) {
            self.fs.getattr(self.ino).expect("there").stat.mtime
        }
    }

    #[test]
    fn a_copy_taken_back_leaves_the_times() {
        let tree = Tree::new();
        let hdd_ino =
            tree.fs.tier(TierName::Hdd).stat(tree.dir().must(TierName::Hdd).expect("there"), OsStr::new("copy")).expect("there").ino;
        tree.fs.remove_duplicate(&Duplicate { dir: tree.dir(), name: "copy".into(), hdd_ino });
        assert!(!tree.fs.at("hdd/dir/copy").exists());
        assert_eq!(tree.mtime(), OLD);
    }

    #[test]
    fn a_copy_is_taken_back_from_a_directory_its_owner_may_not_write_to() {
        as_nobody(|| {
            let tree = Tree::new();
            let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
            tree.fs.setattr(me(), tree.ino, &mode(0o500), None).expect("set");
            let dir = tree.dir();
            let on_hdd = dir.must(TierName::Hdd).expect("there");
            let hdd_ino = tree.fs.tier(TierName::Hdd).stat(on_hdd, OsStr::new("copy")).expect("there").ino;
            tree.fs.remove_duplicate(&Duplicate { dir: dir.clone(), name: "copy".into(), hdd_ino });
            assert!(!tree.fs.at("hdd/dir/copy").exists());
            assert_eq!(rustix::fs::fstat(on_hdd).expect("there").st_mode & 0o7777, 0o500);
            assert_eq!(tree.mtime(), OLD);
            tree.fs.setattr(me(), tree.ino, &mode(0o700), None).expect("set");
        });
    }

    #[test]
    fn only_a_change_that_succeeds_shows() {
        let tree = Tree::new();
        tree.pass(|| tree.fs.changing(&tree.dir(), || Err::<(), _>(Errno::NOTEMPTY)).expect_err("fails"));
        assert_eq!(tree.mtime(), OLD);
        tree.pass(|| tree.fs.make(me(), tree.ino, OsStr::new("new"), Make::Directory(0o755), 0).expect("made"));
        assert_ne!(tree.mtime(), OLD);
    }

    #[test]
    fn a_move_around_or_within_a_change_decides_nothing() {
        let tree = Tree::new();
        let _ = tree.fs.changing(&tree.dir(), || {
            tree.pass(|| ());
            Err::<(), _>(Errno::NOTEMPTY)
        });
        assert_eq!(tree.mtime(), OLD);
        // A change is counted when it ends, which is after the pass has put the times back.
        let changed = tree.fs.changing(&tree.dir(), || {
            tree.pass(|| std::fs::write(tree.fs.at("ssd/dir/new"), "").expect("made"));
            tree.set(tree.ino);
            Ok(())
        });
        changed.expect("made");
        assert_ne!(tree.mtime(), OLD);
    }

    #[test]
    fn the_other_half_of_a_directory_has_its_times() {
        let tree = Tree::new();
        let made = tree.fs.make(me(), tree.ino, OsStr::new("below"), Make::Directory(0o755), 0).expect("made");
        tree.set(made.ino);
        tree.set(tree.ino);
        tree.fs.ensure_dir(made.ino, TierName::Hdd).expect("made");
        assert_eq!(tree.fs.getattr(made.ino).expect("there").stat.mtime, OLD);
        assert_eq!(tree.mtime(), OLD);
        let set = SetAttr { mtime: Some(SetTime::At(7, 7)), ..SetAttr::default() };
        let seen = tree.fs.setattr(me(), made.ino, &set, None).expect("set");
        assert_eq!(seen.stat.mtime, (7, 7));
    }
}
