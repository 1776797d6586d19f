//! The times of directories while files move.
//!
//! A move changes the names in directories, and no user should see their times change by it. So it puts them back; but
//! a user may change the same directory meanwhile, and the change must show. There is one pass at a time, and it says of which directory:
//!
//! ```text
//!   the mover ("a pass")                    a user's change
//!   passes += 1: odd                        note passes
//!   this directory, unchanged               the system call; when it fails, no more
//!   note the times                          a pass of this directory: it is changed
//!   the system call                         passes odd at first, or not the same: modified now,
//!   put the times back                          between two passes, else changed once more
//!   changed: modified now
//!   no directory; passes += 1: even
//! ```
//!
//! If the user's note comes before the mover's last look, the mover sees it; if it comes after, the user sees the pass.
//!
//! Directories share counters of passes: by a pass of another one a change is dated a little later, and a look is repeated. What is
//! noted as changed is this very directory, for an unchanged one must keep its times.

pub(crate) mod passes;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::dirs::DirPair;
use crate::errno::Result;
use crate::pair::TieredFs;
use crate::tier::Tier;
use passes::ActiveDirectory;

/// A pass is two calls on a disk, which may be slow, or dead.
const PASS: Duration = Duration::from_millis(20);
const TRIES_MAX: usize = 100;

impl TieredFs {
    /// Around every change a user makes to the names in a directory.
    pub(crate) fn changing<T>(&self, dir: &DirPair, change: impl FnOnce() -> Result<T>) -> Result<T> {
        let counted = self.times.passes_of(dir.ino);
        let passes = counted.load(SeqCst);
        let changed = change()?;
        self.times.note_change(dir.ino);
        let disturbed = !passes.is_multiple_of(2) || counted.load(SeqCst) != passes;
        // The later of both halves' times is shown: one that lies ahead would hide the change.
        let ahead = dir.is_ahead();
        if disturbed || ahead {
            // A pass that begins now would put back what it saw before this.
            let alone = self.times.setting.try_lock_for(PASS);
            for side in dir.sides.iter().flatten() {
                note_unset(dir.ino, crate::copy::set_times(side.as_fd(), &crate::copy::modified_now()));
            }
            if alone.is_none() {
                // One that lasts has looked already, and looks at this when it has put them back.
                self.times.note_change(dir.ino);
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
        let counted = self.times.passes_of(ino);
        // Before this is odd nobody looks at what runs.
        *self.times.running.lock() = Some(ActiveDirectory { dir: ino, changed: false });
        self.times.passes.fetch_add(1, SeqCst);
        counted.fetch_add(1, SeqCst);
        let before = tier.stat_fd(dir);
        let changed = change();
        if let Ok(before) = before {
            note_unset(ino, crate::copy::set_times(dir, &crate::copy::times(&before)));
            if self.times.is_changed() {
                note_unset(ino, crate::copy::set_times(dir, &crate::copy::modified_now()));
            }
        }
        counted.fetch_add(1, SeqCst);
        self.times.passes.fetch_add(1, SeqCst);
        *self.times.running.lock() = None;
        changed
    }

    /// Reads again when a move was restoring a directory's times, for the kernel caches what it receives. `dir` answers
    /// the number of what was seen, if it is a directory.
    pub(crate) fn times_kept<T>(&self, dir: impl Fn(&T) -> Option<u64>, look: impl Fn() -> Result<T>) -> Result<T> {
        let before = self.times.passes.load(SeqCst);
        let mut seen = look()?;
        if before.is_multiple_of(2) && self.times.passes.load(SeqCst) == before {
            return Ok(seen);
        }
        // Some directory's: this one's?
        for _ in 0..TRIES_MAX {
            let Some(ino) = dir(&seen) else { break };
            let counted = self.times.passes_of(ino);
            let passes = counted.load(SeqCst);
            if !passes.is_multiple_of(2) {
                drop(self.times.setting.try_lock_for(PASS));
                continue;
            }
            seen = look()?;
            if dir(&seen) == Some(ino) && counted.load(SeqCst) == passes {
                break;
            }
        }
        Ok(seen)
    }
}

/// Another user's directory keeps the time of the move. Nothing else can be done about it.
fn note_unset(dir: u64, outcome: Result<()>) {
    if let Err(error) = outcome {
        tracing::debug!(dir, %error, "the times of a directory could not be set");
    }
}

#[cfg(test)]
mod test {
    use std::ffi::OsStr;
    use std::sync::Arc;

    use rustix::io::Errno;

    use super::passes::COUNTS;
    use super::*;
    use crate::create::NewNode;
    use crate::moves::job::Duplicate;
    use crate::report::TierName;
    use crate::testing::{TestPair, as_nobody, me};
    use fusedev::{SetAttr, SetTime};

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

        fn dir(&self) -> Arc<DirPair> {
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
        let on_hdd =
            tree.fs.tier(TierName::Hdd).stat(tree.dir().must(TierName::Hdd).expect("there"), OsStr::new("copy")).expect("there").id();
        tree.fs.remove_duplicate(&Duplicate { dir: tree.dir(), name: "copy".into(), on_hdd });
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
            let copy = tree.fs.tier(TierName::Hdd).stat(on_hdd, OsStr::new("copy")).expect("there").id();
            tree.fs.remove_duplicate(&Duplicate { dir: dir.clone(), name: "copy".into(), on_hdd: copy });
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
        tree.pass(|| tree.fs.make(me(), tree.ino, OsStr::new("new"), NewNode::Directory(0o755), 0).expect("made"));
        assert_ne!(tree.mtime(), OLD);
    }

    #[test]
    fn a_change_of_another_directory_does_not_show() {
        let tree = Tree::new();
        let other = tree.fs.make(me(), crate::number::ROOT, OsStr::new("other"), NewNode::Directory(0o755), 0).expect("made");
        let other = tree.fs.dir(other.ino).expect("open");
        // The worst number that it may have.
        let sides = other.sides.each_ref().map(|side| side.as_ref().map(|fd| fd.try_clone().expect("a descriptor")));
        let other = DirPair::new(tree.ino.wrapping_add(COUNTS), sides, other.backing);
        tree.pass(|| tree.fs.changing(&other, || Ok(())).expect("changed"));
        assert_eq!(tree.mtime(), OLD);
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

    /// Looks at a directory in every way that the kernel has, while a file in it and one below it move up and down.
    fn look_beside_moves(mode: u32, moves: usize) {
        let tree = Tree::new();
        std::fs::create_dir_all(tree.fs.at("ssd/dir/below")).expect("made");
        for name in ["moving", "below/moving"] {
            std::fs::write(tree.fs.at("ssd/dir").join(name), "moves").expect("written");
        }
        let (below, _known) = tree.fs.known_at(b"dir/below").expect("there");
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        tree.fs.setattr(me(), tree.ino, &set, None).expect("set");
        tree.set(below);
        tree.set(tree.ino);
        let fs = &tree.fs.fs;
        let ends = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mover = scope.spawn(|| {
                for n in 0..moves {
                    let to = if n % 4 < 2 { TierName::Hdd } else { TierName::Ssd };
                    let path: &[u8] = if n % 2 == 0 { b"dir/moving" } else { b"dir/below/moving" };
                    let _ = fs.migrate(path, to, &mut |_, _, _, _| true);
                }
                ends.store(true, SeqCst);
            });
            let mut tries = 0;
            while !ends.load(SeqCst) {
                tries += 1;
                let root = fs.open_listing(crate::number::ROOT).expect("open");
                let entries = fs.entries(&root, true).expect("listed");
                for entry in entries.iter() {
                    let attr = fs.entry_attr(&root.dir, entry, false).expect("looked").expect("there");
                    assert_eq!(attr.stat.mtime, OLD, "listed, look {tries}, mode {mode:o}");
                }
                let found = fs.lookup(crate::number::ROOT, OsStr::new("dir")).expect("there");
                assert_eq!((found.ino, found.stat.mtime), (tree.ino, OLD), "looked up, look {tries}, mode {mode:o}");
                fs.forget(found.ino, 1);
                assert_eq!(fs.getattr(tree.ino).expect("there").stat.mtime, OLD, "by number, look {tries}, mode {mode:o}");
                assert_eq!(fs.lookup_again(tree.ino).expect("there").stat.mtime, OLD, "again, look {tries}, mode {mode:o}");
                fs.forget(tree.ino, 1);
                if let Ok(inner) = fs.lookup(tree.ino, OsStr::new("below")) {
                    assert_eq!(inner.stat.mtime, OLD, "below, look {tries}, mode {mode:o}");
                    fs.forget(inner.ino, 1);
                }
            }
            mover.join().expect("no panic");
        });
    }

    #[test]
    fn nobody_sees_the_times_of_a_move() {
        for mode in [0o700, 0o500, 0o300, 0o755] {
            as_nobody(|| look_beside_moves(mode, 60));
            look_beside_moves(mode, 30);
        }
    }

    #[test]
    fn the_other_half_of_a_directory_has_its_times() {
        let tree = Tree::new();
        let made = tree.fs.make(me(), tree.ino, OsStr::new("below"), NewNode::Directory(0o755), 0).expect("made");
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
