//! `hotshelf check`: looks over an unmounted pair.
//!
//! Changes nothing unless asked to repair; repairing removes temporaries and copies on the HDD that are
//! byte for byte the SSD's file. What differs is reported and kept: which one is right only people know.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;

use crate::errno::Result;
use crate::hidden_dir::{OpenError, UntrustedHiddenDirError};
use crate::path::{HIDDEN, NAME_ONLY};
use crate::persist::{self, PersistError};
use crate::read_dir::read_names;
use crate::report::TierName;
use crate::stat::Stat;
use crate::tier::Tier;

/// What was looked at and found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CheckReport {
    /// Files of all kinds, both sides.
    pub files: u64,
    /// Number of directories checked on both sides.
    pub dirs: u64,
    /// The problems that the check found.
    pub findings: Vec<CheckFinding>,
}

/// Describes one problem that the check found.
#[derive(Clone, Debug, Serialize)]
pub struct CheckFinding {
    /// Path below the roots, or of our own file.
    pub path: String,
    /// `duplicate`, `conflict`, `temporary`, `damaged`, `unfinished`, `unreadable`.
    pub kind: &'static str,
    /// Description of the problem in one sentence.
    pub detail: String,
    /// Whether the check repaired the problem.
    pub repaired: bool,
}

/// Why nothing could be checked.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// A directory cannot be looked at.
    #[error("{path}: {source}: give the SSD directory and the HDD directory of a pair that was mounted before")]
    Directory {
        /// As given.
        path: PathBuf,
        /// What the kernel said.
        source: Errno,
    },
    /// Somebody else prepared it.
    #[error("{path}/.hotshelf {what}, so it may have been prepared by somebody else: check as that user")]
    UntrustedHiddenDirError {
        /// As given.
        path: PathBuf,
        /// Its owner and mode.
        what: UntrustedHiddenDirError,
    },
    /// A state file cannot be used at all.
    #[error("{path}/{source}")]
    Persist {
        /// As given.
        path: PathBuf,
        /// What is wrong.
        source: PersistError,
    },
    /// The same directory was given twice, or one inside the other.
    #[error("{ssd} and {hdd} must be two directories, neither inside the other: give the SSD directory, then the HDD directory")]
    Nested {
        /// As given.
        ssd: PathBuf,
        /// As given.
        hdd: PathBuf,
    },
    /// The arguments are swapped.
    #[error("{path} is the {is} directory of its pair, not the {wanted} directory: exchange the two arguments")]
    Swapped {
        /// As given.
        path: PathBuf,
        /// What its identity says.
        is: TierName,
        /// What it was given as.
        wanted: TierName,
    },
    /// They do not belong together.
    #[error("{ssd} and {hdd} belong to different pairs: check which directories go together")]
    OtherPair {
        /// As given.
        ssd: PathBuf,
        /// As given.
        hdd: PathBuf,
    },
    /// Nothing says which side this is.
    #[error("{path} has no identity that can be read, so nothing is repaired: mount the pair once with --adopt, or check without --repair")]
    NoIdentity {
        /// As given.
        path: PathBuf,
    },
    /// It is mounted.
    #[error("{path} is mounted: `hotshelf unmount` it first")]
    MountEntry {
        /// As given.
        path: PathBuf,
    },
}

/// Checks a pair; calls `progress` with the number of files checked.
pub fn check_pair(ssd: &Path, hdd: &Path, repair: bool, progress: &mut dyn FnMut(u64)) -> std::result::Result<CheckReport, CheckError> {
    let open = |name, path: &Path| {
        Tier::open(name, path, false).map_err(|error| match error {
            OpenError::Os(source) => CheckError::Directory { path: path.to_owned(), source },
            OpenError::UntrustedHiddenDirError(what) => CheckError::UntrustedHiddenDirError { path: path.to_owned(), what },
            // Only of what is opened to be written.
            OpenError::NotHidden { .. } => CheckError::NoIdentity { path: path.to_owned() },
            OpenError::Persist(source) => CheckError::Persist { path: path.to_owned(), source },
        })
    };
    let tiers = [open(TierName::Ssd, ssd)?, open(TierName::Hdd, hdd)?];
    refuse_wrong_sides(&tiers, repair)?;
    let _locks = [lock(&tiers[0])?, lock(&tiers[1])?];
    let mut check = PairCheck { tiers: &tiers, repair, report: CheckReport::default(), progress };
    check.own_files();
    check.temporaries();
    let roots = [tiers[0].root.try_clone().ok(), tiers[1].root.try_clone().ok()];
    check.tree(roots);
    Ok(check.report)
}

/// How the lock is opened to be looked at.
const LOCK: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Two directories are a pair by what their identities say, not by the order in which they are given.
fn refuse_wrong_sides(tiers: &[Tier; 2], repair: bool) -> std::result::Result<(), CheckError> {
    let [ssd, hdd] = tiers.each_ref().map(|tier| tier.path.clone());
    let inode = |tier: &Tier| tier.stat_fd(tier.root.as_fd()).map(|stat| (stat.dev, stat.ino));
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let (a, b) = (real(&ssd), real(&hdd));
    if inode(&tiers[0]) == inode(&tiers[1]) || a.starts_with(&b) || b.starts_with(&a) {
        return Err(CheckError::Nested { ssd, hdd });
    }
    let identities = tiers.each_ref().map(|tier| persist::read_identity(tier.hidden.as_fd()).ok().flatten());
    for (tier, identity) in tiers.iter().zip(&identities) {
        match identity {
            Some(identity) if identity.tier != tier.name => {
                return Err(CheckError::Swapped { path: tier.path.clone(), is: identity.tier, wanted: tier.name });
            }
            None if repair => return Err(CheckError::NoIdentity { path: tier.path.clone() }),
            _ => {}
        }
    }
    match &identities {
        [Some(one), Some(other)] if one.pair != other.pair => Err(CheckError::OtherPair { ssd, hdd }),
        _ => Ok(()),
    }
}

/// Whether a daemon has the pair with this SSD directory, also one that is just ending.
pub fn is_in_use(ssd: &Path) -> bool {
    // Root also waits for the mount of somebody else, whose directory is not believed: nothing is read from it.
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let hidden = rustix::fs::open(ssd, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let hidden = hidden.and_then(|root| rustix::fs::openat(root, HIDDEN, flags, Mode::empty()));
    let Ok(file) = hidden.and_then(|hidden| rustix::fs::openat(hidden, "lock", LOCK, Mode::empty())) else { return false };
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
}

fn lock(tier: &Tier) -> std::result::Result<Option<OwnedFd>, CheckError> {
    let Ok(file) = rustix::fs::openat(&tier.hidden, "lock", LOCK, Mode::empty()) else {
        return Ok(None);
    };
    persist::must_be_ours(tier.hidden.as_fd(), &file, "lock").map_err(|source| CheckError::Persist { path: tier.path.clone(), source })?;
    match crate::start::lock_patiently(file.as_fd()) {
        Err(Errno::WOULDBLOCK) => Err(CheckError::MountEntry { path: tier.path.clone() }),
        _ => Ok(Some(file)),
    }
}

struct PairCheck<'a> {
    tiers: &'a [Tier; 2],
    repair: bool,
    report: CheckReport,
    progress: &'a mut dyn FnMut(u64),
}

impl PairCheck<'_> {
    fn find(&mut self, path: &[u8], kind: &'static str, detail: String, repaired: bool) {
        self.report.findings.push(CheckFinding { path: String::from_utf8_lossy(path).into_owned(), kind, detail, repaired });
    }

    fn own_files(&mut self) {
        let mut pairs = Vec::new();
        for tier in self.tiers {
            match persist::read_identity(tier.hidden.as_fd()) {
                Ok(Some(identity)) => pairs.push(identity.pair),
                Ok(None) => self.find(b".hotshelf/id", "damaged", format!("the {} directory has no identity", tier.name), false),
                Err(error) => self.find(b".hotshelf/id", "damaged", format!("{}: {error}", tier.name), false),
            }
        }
        if let [ssd, hdd] = pairs[..]
            && ssd != hdd
        {
            self.find(b".hotshelf/id", "damaged", "the directories belong to different pairs".into(), false);
        }
        let mut kept: Vec<Box<[u8]>> = Vec::new();
        let _ = read_names(self.tiers[0].hidden.as_fd(), &mut |name, _| {
            if name.windows(9).any(|part| part == b".damaged-") {
                kept.push(name.into());
            }
        });
        for name in kept {
            let path = [HIDDEN.as_bytes(), b"/", &*name].concat();
            self.find(&path, "damaged", "was found damaged and put aside; delete it when it is of no use".into(), false);
        }
        let hidden = self.tiers[0].hidden.as_fd();
        let intent = match crate::intent::probe_intent(hidden) {
            Ok(Ok(steps)) => Ok(u64::from(!steps.is_empty())),
            Ok(Err(detail)) => Err(PersistError::Damaged { file: "intent", detail }),
            Err(error) => Err(error),
        };
        for (file, problem) in [
            ("journal", persist::probe_journal(hidden)),
            ("intent", intent),
            ("history", persist::probe_history(hidden)),
            ("pins", persist::probe_pins(hidden).map(|()| 0)),
        ] {
            let path = format!("{HIDDEN}/{file}");
            match problem {
                Ok(0) => {}
                Ok(open) => {
                    let what = if file == "intent" { "renames" } else { "moves" };
                    self.find(path.as_bytes(), "unfinished", format!("{open} {what} cut off; the next mount puts this right"), false)
                }
                Err(PersistError::Damaged { detail, .. }) => {
                    self.find(path.as_bytes(), "damaged", format!("{detail}; the next mount puts it aside"), false)
                }
                Err(error) => self.find(path.as_bytes(), "damaged", error.to_string(), false),
            }
        }
    }

    fn temporaries(&mut self) {
        for tier in self.tiers {
            let mut names: Vec<Box<[u8]>> = Vec::new();
            let _ = read_names(tier.tmp.as_fd(), &mut |name, _| names.push(name.into()));
            for name in names {
                let os = OsStr::from_bytes(&name);
                let remove = || tier.unlink(tier.tmp.as_fd(), os).or_else(|_| crate::recover::remove_dir(tier, os));
                let repaired = self.repair && remove().is_ok();
                let path = [HIDDEN.as_bytes(), b"/tmp/", &*name].concat();
                self.find(&path, "temporary", format!("a copy that was cut off, on the {}", tier.name), repaired);
            }
        }
    }

    fn tree(&mut self, roots: [Option<OwnedFd>; 2]) {
        let mut todo = vec![(Vec::new(), roots)];
        while let Some((path, sides)) = todo.pop() {
            let names = [self.names(&path, &sides, 0), self.names(&path, &sides, 1)];
            // As the mount shows them: a directory is one, whichever sides have it.
            self.report.dirs += 1;
            self.report.files += names.iter().flatten().filter(|(_, kind)| *kind != FileType::Directory).count() as u64;
            (self.progress)(self.report.files);
            let on_hdd: std::collections::HashMap<&[u8], FileType> = names[1].iter().map(|(name, kind)| (&**name, *kind)).collect();
            for (name, kind) in &names[0] {
                let both = on_hdd.get(&**name);
                match (kind, both) {
                    (FileType::Directory, None | Some(FileType::Directory)) => {
                        let (path, sides) = child(&path, name, &sides);
                        // Whoever made one of them has no say in the other: what has the same name in it is no copy.
                        match sides {
                            [Some(ssd), Some(hdd)] if self.are_of_two_owners(&ssd, &hdd) => {
                                todo.extend([(path.clone(), [Some(ssd), None]), (path, [None, Some(hdd)])]);
                            }
                            sides => todo.push((path, sides)),
                        }
                    }
                    (_, None) => {}
                    (_, Some(_)) => self.both_hold(&join(&path, name), &sides, name),
                }
            }
            let on_ssd: std::collections::HashSet<&[u8]> = names[0].iter().map(|(name, _)| &**name).collect();
            for (name, kind) in &names[1] {
                if *kind == FileType::Directory && !on_ssd.contains(&**name) {
                    todo.push(child(&path, name, &sides));
                }
            }
        }
    }

    fn names(&mut self, path: &[u8], sides: &[Option<OwnedFd>; 2], side: usize) -> Vec<(Box<[u8]>, FileType)> {
        let mut names = Vec::new();
        let Some(dir) = &sides[side] else { return names };
        let tier = &self.tiers[side];
        let read = read_names(dir.as_fd(), &mut |name, kind| {
            if !(path.is_empty() && name == HIDDEN.as_bytes()) {
                names.push((Box::<[u8]>::from(name), kind));
            }
        });
        for (name, kind) in names.iter_mut().filter(|(_, kind)| *kind == FileType::Unknown) {
            *kind = tier.stat(dir.as_fd(), OsStr::from_bytes(name)).map_or(FileType::Unknown, |stat| stat.kind());
        }
        if let Err(error) = read {
            self.find(path, "unreadable", format!("the directory cannot be listed on the {}: {error}", tier.name), false);
        }
        names
    }

    fn both_hold(&mut self, path: &[u8], sides: &[Option<OwnedFd>; 2], name: &[u8]) {
        let os = OsStr::from_bytes(name);
        let (Some(ssd), Some(hdd)) = (&sides[0], &sides[1]) else { return };
        let stats = (self.tiers[0].stat(ssd.as_fd(), os), self.tiers[1].stat(hdd.as_fd(), os));
        let (Ok(a), Ok(b)) = stats else { return };
        match self.same(ssd, hdd, os, &a, &b) {
            Ok(true) => {
                let repaired = self.repair && self.tiers[1].unlink_if(hdd.as_fd(), os, b.id()) == Ok(true);
                self.find(path, "duplicate", "both sides hold the same bytes; the HDD's is not needed".into(), repaired);
            }
            Ok(false) => {
                self.find(path, "conflict", "both sides hold it and they differ; the SSD's is shown, the HDD's is kept".into(), false)
            }
            Err(error) => self.find(path, "unreadable", format!("the two cannot be compared: {error}"), false),
        }
    }

    fn are_of_two_owners(&self, ssd: &OwnedFd, hdd: &OwnedFd) -> bool {
        let owner = |side: usize, dir: &OwnedFd| self.tiers[side].stat_fd(dir.as_fd()).map(|stat| stat.uid);
        // Only what is removed must be sure; whether a file system has owners is found out by writing.
        self.repair && rustix::process::geteuid().is_root() && owner(0, ssd) != owner(1, hdd) && self.tiers.iter().all(Tier::keeps_owners)
    }

    fn same(&self, ssd: &OwnedFd, hdd: &OwnedFd, name: &OsStr, a: &Stat, b: &Stat) -> Result<bool> {
        if !a.is_file() || !b.is_file() || a.size != b.size || a.nlink > 1 || b.nlink > 1 {
            return Ok(false);
        }
        // A copy has its owner and mode before it has its name. Anybody can make a file that holds what another's does.
        if rustix::process::geteuid().is_root() && (a.uid, a.gid, a.mode) != (b.uid, b.gid, b.mode) {
            return Ok(false);
        }
        // A pipe or a device may have taken the name since: opening one could wait for ever.
        let open = |side: usize, dir: &OwnedFd, seen: &Stat| -> Result<OwnedFd> {
            let file = self.tiers[side].open_at(dir.as_fd(), name, OFlags::RDONLY | OFlags::NONBLOCK)?;
            let stat = self.tiers[side].stat_fd(file.as_fd())?;
            if stat.is_file() && stat.is_same_file(seen) { Ok(file) } else { Err(Errno::STALE) }
        };
        let files = [open(0, ssd, a)?, open(1, hdd, b)?];
        crate::copy::same_content(files[0].as_fd(), files[1].as_fd(), a.size)
    }
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

fn child(path: &[u8], name: &[u8], sides: &[Option<OwnedFd>; 2]) -> (Vec<u8>, [Option<OwnedFd>; 2]) {
    let open = |side: usize| -> Option<OwnedFd> {
        let dir = sides[side].as_ref()?;
        rustix::fs::openat(dir, OsStr::from_bytes(name), NAME_ONLY | OFlags::DIRECTORY, Mode::empty()).ok()
    };
    (join(path, name), [open(0), open(1)])
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::testing::TestPair;

    fn checked(ssd: &Path, hdd: &Path, repair: bool) -> std::result::Result<usize, CheckError> {
        check_pair(ssd, hdd, repair, &mut |_| {}).map(|report| report.findings.len())
    }

    #[test]
    fn only_the_right_sides_of_one_pair_are_checked_and_only_while_nobody_uses_them() {
        let pair = TestPair::with(&["ssd/a", "hdd/b"]);
        let other = TestPair::empty();
        let (ssd, hdd, other_hdd) = (pair.at("ssd"), pair.at("hdd"), other.at("hdd"));
        // Of a move that runs.
        std::fs::write(pair.at("hdd/.hotshelf/tmp/running"), "half").expect("written");
        std::fs::write(pair.at("ssd/.hotshelf/tmp/running"), "half").expect("written");
        for repair in [false, true] {
            assert!(matches!(checked(&hdd, &ssd, repair), Err(CheckError::Swapped { .. })));
            assert!(matches!(checked(&ssd, &hdd, repair), Err(CheckError::MountEntry { .. })));
            assert!(matches!(checked(&ssd, &ssd, repair), Err(CheckError::Nested { .. })));
            assert!(matches!(checked(&hdd, &hdd, repair), Err(CheckError::Nested { .. })));
            assert!(matches!(checked(&ssd, &other_hdd, repair), Err(CheckError::OtherPair { .. })));
        }
        assert!(pair.at("hdd/.hotshelf/tmp/running").exists() && pair.at("ssd/.hotshelf/tmp/running").exists());
        let TestPair { fs, temp } = pair;
        drop(fs);
        assert_eq!(checked(&ssd, &hdd, true).expect("checked"), 2);
        assert_eq!(checked(&ssd, &hdd, false).expect("checked"), 0);
        std::fs::remove_file(temp.path().join("hdd/.hotshelf/id")).expect("removed");
        assert!(matches!(checked(&ssd, &hdd, true), Err(CheckError::NoIdentity { .. })));
        assert_eq!(checked(&ssd, &hdd, false).expect("checked"), 1);
    }

    #[test]
    fn what_a_stranger_made_like_it_does_not_make_a_file_needless() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: needs root");
            return;
        }
        let pair = TestPair::with(&["ssd/same/file", "hdd/same/file", "ssd/theirs/file", "hdd/theirs/file", "ssd/copy", "hdd/copy"]);
        for path in ["same/file", "theirs/file", "copy"] {
            for side in ["ssd", "hdd"] {
                std::fs::write(pair.at(side).join(path), "known to all").expect("written");
            }
        }
        let give = |path: &str| std::os::unix::fs::chown(pair.at(path), Some(4242), None).expect("given");
        give("ssd/same/file");
        give("ssd/theirs");
        let TestPair { fs, temp } = pair;
        drop(fs);
        let [ssd, hdd] = ["ssd", "hdd"].map(|side| temp.path().join(side));
        let report = check_pair(&ssd, &hdd, true, &mut |_| ()).expect("checked");
        assert!(hdd.join("same/file").exists() && hdd.join("theirs/file").exists(), "{report:?}");
        assert!(!hdd.join("copy").exists(), "{report:?}");
    }
}
