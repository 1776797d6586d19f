//! From names to files: lookups over both sides.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::FileType;
use rustix::io::Errno;

use crate::backing::Backing;
use crate::dirs::DirPair;
use crate::errno::Result;
use crate::nodes::{NodeKind, NodeLocation};
use crate::number::ROOT;
use crate::pair::TieredFs;
use crate::path::{HIDDEN, valid_name};
use crate::report::TierName;
use crate::stat::Stat;

/// What a name stands for.
#[derive(Clone, Copy, Debug)]
pub struct FoundName {
    /// The inode number that users see.
    pub ino: u64,
    /// The side whose attributes count.
    pub tier: TierName,
    /// Backing inodes on both sides (a file has one).
    pub backing: Backing,
    /// Attributes, merged for a directory on both sides.
    pub stat: Stat,
    /// Type of the file, as far as moves depend on it.
    pub kind: NodeKind,
}

/// One look at both sides.
enum PairLookup {
    Is(FoundName),
    None,
    /// It was taken away between two looks.
    Moved,
}

impl FoundName {
    /// Its number, if it is a directory.
    pub(crate) fn dir(&self) -> Option<u64> {
        (self.kind == NodeKind::Directory).then_some(self.ino)
    }
}

/// Attributes for a front door.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attr {
    /// The inode number that users see.
    pub ino: u64,
    /// All attributes except the inode number.
    pub stat: Stat,
    /// May change without a call to us (data bypasses the daemon, or a writable mapping may exist).
    pub unsettled: bool,
}

impl TieredFs {
    /// Finds `name` in `parent` and adds a reference for the caller, given back by [`TieredFs::forget`].
    pub fn lookup(&self, parent: u64, name: &OsStr) -> Result<Attr> {
        let dir = self.dir(parent)?;
        let found = self.times_kept(FoundName::dir, || self.find(&dir, name))?;
        self.nodes.upsert(found.ino, parent, name, found.backing, found.kind, 1);
        Ok(self.attr_of(&found))
    }

    /// Adds a reference to a known file, for a caller that has only its number.
    pub fn lookup_again(&self, ino: u64) -> Result<Attr> {
        if ino == ROOT {
            return self.getattr(ROOT);
        }
        match self.lookup_known(ino) {
            Err(Errno::STALE | Errno::NOENT | Errno::NOTDIR) => self.lookup_forgotten(ino),
            other => other,
        }
    }

    pub(crate) fn lookup_known(&self, ino: u64) -> Result<Attr> {
        let (place, found) = self.times_kept(|(_, found): &(NodeLocation, FoundName)| found.dir(), || self.refind(ino))?;
        self.nodes.upsert(ino, place.parent, &place.name, found.backing, found.kind, 1);
        Ok(self.attr_of(&found))
    }

    /// Releases references that the kernel held on a file.
    pub fn forget(&self, ino: u64, count: u64) {
        if self.nodes.forget(ino, count) {
            self.forgot_some();
            // Dropped after the lock: closing the last handle of a removed file frees its blocks.
            let _held = self.held.lock().remove(&ino);
        }
    }

    pub(crate) fn attr_of(&self, found: &FoundName) -> Attr {
        let unsettled = found.kind == NodeKind::Regular && self.has_writers(found.ino);
        Attr { ino: found.ino, stat: found.stat, unsettled }
    }

    /// An open directory by number.
    pub fn dir(&self, ino: u64) -> Result<Arc<DirPair>> {
        if let Some(dir) = self.open_dir_of(ino) {
            return Ok(dir);
        }
        if ino == ROOT {
            let root = |tier: TierName| self.tier(tier).root.try_clone().map(Some).map_err(|_| Errno::MFILE);
            let dir = DirPair::new(ROOT, [root(TierName::Ssd)?, root(TierName::Hdd)?], [0, 0]);
            self.dirs.put(dir.clone());
            return Ok(dir);
        }
        self.open_chain(ino)
    }

    /// Returns a directory that is open already, if it still is the one that the number names.
    pub(crate) fn open_dir_of(&self, ino: u64) -> Option<Arc<DirPair>> {
        let dir = self.dirs.get(ino)?;
        let same = ino == ROOT || self.nodes.with(ino, |node| share_a_half(node.backing.inos(), dir.backing)).unwrap_or(true);
        same.then_some(dir)
    }

    /// The same, also of a directory that was removed while somebody has it open.
    pub(crate) fn dir_or_held(&self, ino: u64) -> Result<Arc<DirPair>> {
        let error = match self.dir(ino) {
            Ok(dir) => return Ok(dir),
            Err(error) => error,
        };
        let Some((tier, fd)) = self.held.lock().get(&ino).cloned() else { return Err(error) };
        let mut sides = [None, None];
        sides[tier as usize] = Some(fd.try_clone().map_err(|_| Errno::MFILE)?);
        let mut backing = [0, 0];
        backing[tier as usize] = self.tier(tier).stat_fd(fd.as_fd())?.ino;
        Ok(DirPair::new(ino, sides, backing))
    }

    /// Opens a directory from the nearest open one above it; deep trees make no deep recursion.
    fn open_chain(&self, ino: u64) -> Result<Arc<DirPair>> {
        let mut chain: Vec<(u64, NodeLocation)> = Vec::new();
        let mut at = ino;
        let mut dir = loop {
            let place = self.nodes.place(at).ok_or(Errno::STALE)?;
            if place.nameless {
                return Err(Errno::NOENT);
            }
            if place.kind != NodeKind::Directory {
                return Err(Errno::NOTDIR);
            }
            let parent = place.parent;
            chain.push((at, place));
            if parent == ROOT || self.open_dir_of(parent).is_some() {
                break self.dir(parent)?;
            }
            at = parent;
        };
        while let Some((ino, place)) = chain.pop() {
            dir = self.open_child(&dir, ino, &place)?;
        }
        Ok(dir)
    }

    fn open_child(&self, parent: &DirPair, ino: u64, place: &NodeLocation) -> Result<Arc<DirPair>> {
        loop {
            let mut sides = [None, None];
            for tier in [TierName::Ssd, TierName::Hdd] {
                let Some(fd) = parent.on(tier) else { continue };
                match self.noted_at(tier, fd, self.tier(tier).open_dir(fd, &place.name)) {
                    Ok(fd) => sides[tier as usize] = Some(fd),
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                    Err(error) => return Err(error),
                }
            }
            let known = || self.nodes.with(ino, |node| node.backing).ok_or(Errno::STALE);
            let backing = known()?;
            // A half that is not the known one is somebody else's directory: attributes that are set through it would be set there.
            for tier in [TierName::Ssd, TierName::Hdd] {
                let Some(fd) = &sides[tier as usize] else { continue };
                let same = backing.is(tier, &self.tier(tier).stat_fd(fd.as_fd())?);
                // Numbers that are not permanent tell only whether there was such a half.
                if !same && (self.tier(tier).keeps_inodes() || backing[tier as usize] == 0) {
                    sides[tier as usize] = None;
                }
            }
            if sides.iter().all(Option::is_none) {
                return Err(Errno::STALE);
            }
            let opened = [0, 1].map(|side| if sides[side].is_some() { backing[side] } else { 0 });
            let dir = DirPair::new(ino, sides, opened);
            self.dirs.put(dir.clone());
            // Another thread may have made the other half meanwhile, and put the whole directory there before us.
            if known()? == backing {
                return Ok(dir);
            }
        }
    }

    /// Finds a name on both sides. The SSD's file wins over the HDD's; directories are merged.
    pub(crate) fn find(&self, dir: &DirPair, name: &OsStr) -> Result<FoundName> {
        valid_name(name)?;
        if dir.ino == ROOT && name.as_bytes() == HIDDEN.as_bytes() {
            return Err(Errno::NOENT);
        }
        let mut fresh = None;
        loop {
            let moves = self.moves_seen.load(Ordering::Acquire);
            match self.find_once(fresh.as_deref().unwrap_or(dir), name)? {
                Some(found) => return Ok(found),
                // A move that ended between the two looks hides the file from both.
                None if self.moves_seen.load(Ordering::Acquire) == moves => return Err(Errno::NOENT),
                // It may have gone to a half that the directory has only now.
                None => fresh = self.open_dir_of(dir.ino),
            }
        }
    }

    fn find_once(&self, dir: &DirPair, name: &OsStr) -> Result<Option<FoundName>> {
        loop {
            match self.look_once(dir, name)? {
                PairLookup::Is(found) => return Ok(Some(found)),
                PairLookup::None => return Ok(None),
                PairLookup::Moved => {}
            }
        }
    }

    fn look_once(&self, dir: &DirPair, name: &OsStr) -> Result<PairLookup> {
        let look = |tier: TierName| -> Result<Option<Stat>> {
            let Some(fd) = dir.on(tier) else { return Ok(None) };
            let seen = self.look_visible(tier, fd, name)?;
            // Ours by another name: in another case, or the short one of vfat; or the owner of the top has renamed it.
            Ok(seen.filter(|stat| dir.ino != ROOT || !self.tier(tier).is_hidden(stat)))
        };
        let ssd = look(TierName::Ssd)?;
        let hdd = match &ssd {
            Some(stat) if !stat.is_dir() => None,
            _ => look(TierName::Hdd)?,
        };
        Ok(self.merge(dir, name, ssd, hdd))
    }

    /// As [`crate::tier::Tier::look`], without what [`TieredFs::is_removed_file`] hides.
    pub(crate) fn look_visible(&self, tier: TierName, fd: BorrowedFd<'_>, name: &OsStr) -> Result<Option<Stat>> {
        let stat = self.noted_by_name(tier, fd, name, self.tier(tier).look(fd, name))?;
        Ok(stat.filter(|stat| !(self.is_nfs_client_name(tier, name.as_bytes()) && self.is_removed_file(tier, name, stat))))
    }

    /// Whether a name on this side may be one that the kernel's NFS client gave to an open file when it was removed or replaced.
    pub(crate) fn is_nfs_client_name(&self, tier: TierName, name: &[u8]) -> bool {
        let digits = name.strip_prefix(b".nfs");
        digits.is_some_and(|digits| digits.len() == 24 && digits.iter().all(u8::is_ascii_hexdigit))
            && self.tier(tier).abilities.file_system == "nfs"
    }

    /// Whether a name that the NFS client made stands for a file that was removed or replaced through this mount and is still open or
    /// remembered. Such a name must not be found: the kernel would remember the file by it, and the client could never remove it. What
    /// other clients left is an ordinary file.
    pub(crate) fn is_removed_file(&self, tier: TierName, name: &OsStr, stat: &Stat) -> bool {
        // By the backing inode: where a side keeps no marks, a file may be known by the number it had on the other side.
        let mut numbers: Vec<u64> = self.held.lock().keys().copied().collect();
        numbers.extend(self.opens.lock().keys().copied());
        let is_it = |place: NodeLocation| place.on(tier) == Some(stat.ino) && (place.nameless || place.name != name);
        numbers.into_iter().any(|ino| self.nodes.place(ino).is_some_and(is_it))
    }

    fn merge(&self, dir: &DirPair, name: &OsStr, ssd: Option<Stat>, hdd: Option<Stat>) -> PairLookup {
        let found = match (ssd, hdd) {
            (Some(ssd), Some(hdd)) if ssd.is_dir() && hdd.is_dir() && self.belong_together(dir, name, &ssd, &hdd) => {
                Some(self.merged_dir(dir, name, ssd, hdd))
            }
            (Some(stat), _) => self.found_on(TierName::Ssd, dir, name, stat),
            (None, Some(stat)) => self.found_on(TierName::Hdd, dir, name, stat),
            (None, None) => return PairLookup::None,
        };
        found.map_or(PairLookup::Moved, PairLookup::Is)
    }

    /// What a name on a side stands for; `None`: it is gone since.
    pub(crate) fn found_on(&self, tier: TierName, dir: &DirPair, name: &OsStr, stat: Stat) -> Option<FoundName> {
        let (ino, marked) = match dir.on(tier) {
            Some(fd) => self.tier(tier).number_of(fd, name, &stat)?,
            None => (crate::number::natural(tier, &stat), false),
        };
        let backing = Backing::default().and(tier, &stat);
        let ino = self.own_number(ino, marked, backing.inos(), dir.ino, name);
        Some(FoundName { ino, tier, backing, stat, kind: kind_of(&stat) })
    }

    /// Whether two directories of one name are the halves of one: they have one owner, who decides about both; or we have made one of them
    /// for the other. Otherwise whoever may make a directory on one side would get at what is in somebody else's on the other.
    fn belong_together(&self, dir: &DirPair, name: &OsStr, ssd: &Stat, hdd: &Stat) -> bool {
        if self.have_one_owner(ssd, hdd) {
            return true;
        }
        let number = |tier: TierName, stat: &Stat| {
            let mark = dir.on(tier).and_then(|fd| self.tier(tier).mark_of(fd, name, stat));
            mark.unwrap_or_else(|| crate::number::natural(tier, stat))
        };
        if number(TierName::Ssd, ssd) == number(TierName::Hdd, hdd) {
            return true;
        }
        if let Some(mut path) = self.nodes.path(dir.ino) {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name.as_bytes());
            self.note_conflict(&path);
        }
        false
    }

    fn merged_dir(&self, dir: &DirPair, name: &OsStr, ssd: Stat, hdd: Stat) -> FoundName {
        let mark = |tier: TierName, stat: &Stat| dir.on(tier).and_then(|fd| self.tier(tier).mark_of(fd, name, stat));
        let marked = mark(TierName::Ssd, &ssd).or_else(|| mark(TierName::Hdd, &hdd));
        let ino = marked.unwrap_or_else(|| crate::number::natural(TierName::Hdd, &hdd));
        let ino = self.own_number(ino, marked.is_some(), [ssd.ino, hdd.ino], dir.ino, name);
        let stat = self.merged_stat(ssd, hdd);
        FoundName {
            ino,
            tier: TierName::Ssd,
            backing: Backing::default().and(TierName::Ssd, &ssd).and(TierName::Hdd, &hdd),
            stat,
            kind: NodeKind::Directory,
        }
    }

    /// Returns the number that a backing inode has among the known files: its own number or that of its mark, unless that one names
    /// another backing inode. Files must never be joined by a number alone.
    pub(crate) fn own_number(&self, number: u64, marked: bool, backing: [u64; 2], parent: u64, name: &OsStr) -> u64 {
        if self.any_substitute.load(Ordering::Acquire) {
            let substitutes = self.substitutes.lock();
            let known = |tier: TierName| substitutes.get(&(tier, backing[tier as usize])).copied();
            if let Some(number) = known(TierName::Ssd).or_else(|| known(TierName::Hdd)) {
                return number;
            }
        }
        match self.nodes.with(number, |node| share_a_half(node.backing.inos(), backing)) {
            None | Some(true) => number,
            // A move has changed its backing inode meanwhile. Nobody but us writes marks.
            Some(false) if marked && !self.is_elsewhere(number, parent, name) => number,
            Some(false) => self.substitute(number, backing),
        }
    }

    /// Whether the backing inode that is known by this number is still there, under another name or without one.
    fn is_elsewhere(&self, number: u64, parent: u64, name: &OsStr) -> bool {
        let Some(place) = self.nodes.place(number) else { return false };
        if place.nameless {
            return self.held.lock().contains_key(&number);
        }
        if place.parent == parent && place.name == name {
            return false;
        }
        let Ok(dir) = self.dir(place.parent) else { return false };
        [TierName::Ssd, TierName::Hdd].into_iter().any(|tier| {
            let seen = dir.on(tier).and_then(|fd| self.tier(tier).look(fd, &place.name).ok().flatten());
            seen.is_some_and(|stat| Some(stat.ino) == place.on(tier))
        })
    }

    /// Gives a backing inode a unique number for the duration of the mount.
    fn substitute(&self, taken: u64, backing: [u64; 2]) -> u64 {
        const MOST: usize = 1 << 16;
        let tier = if backing[0] != 0 { TierName::Ssd } else { TierName::Hdd };
        let mut substitutes = self.substitutes.lock();
        if substitutes.len() >= MOST {
            substitutes.clear();
        }
        let free = |number: &u64| self.nodes.with(*number, |node| share_a_half(node.backing.inos(), backing)).unwrap_or(true);
        let numbers = (0..).map(|attempt| self.tier(tier).substitute_number(backing[tier as usize], attempt));
        let number = *substitutes.entry((tier, backing[tier as usize])).or_insert_with(|| {
            tracing::warn!(taken, "two files have the same number: one of them gets another");
            numbers.into_iter().find(free).expect("some number is free")
        });
        self.any_substitute.store(true, Ordering::Release);
        number
    }

    /// Attributes by number, through an open handle where there is one.
    pub fn getattr(&self, ino: u64) -> Result<Attr> {
        self.times_kept(|attr: &Attr| attr.stat.is_dir().then_some(ino), || self.getattr_now(ino))
    }

    fn getattr_now(&self, ino: u64) -> Result<Attr> {
        if ino == ROOT {
            let ssd = self.tier(TierName::Ssd).stat_fd(self.tier(TierName::Ssd).root.as_fd())?;
            let hdd = self.tier(TierName::Hdd).stat_fd(self.tier(TierName::Hdd).root.as_fd())?;
            let merged = self.merged_stat(ssd, hdd);
            // Of the tops of one owner the SSD's mode says who may.
            let mode = if self.have_one_owner(&ssd, &hdd) { ssd.mode } else { merged.mode };
            return Ok(Attr { ino, stat: Stat { mode, ..merged }, unsettled: false });
        }
        if let Some((tier, file)) = self.open_or_held(ino) {
            let stat = self.tier(tier).stat_fd(file.as_fd())?;
            if stat.nlink > 0 {
                return Ok(Attr { ino, stat, unsettled: self.has_writers(ino) });
            }
            // Without a name, or of the copy that a move has just removed.
            let _gate = self.gate(ino).read_recursive();
            if let Some((tier, file)) = self.open_or_held(ino) {
                let stat = self.tier(tier).stat_fd(file.as_fd())?;
                return Ok(Attr { ino, stat, unsettled: self.has_writers(ino) });
            }
        }
        if let Some(dir) = self.open_dir_of(ino) {
            return self.dir_attr(&dir);
        }
        let (_, found) = self.refind(ino)?;
        Ok(self.attr_of(&found))
    }

    pub(crate) fn dir_attr(&self, dir: &DirPair) -> Result<Attr> {
        let look = |tier: TierName| dir.on(tier).map(|fd| self.tier(tier).stat_fd(fd)).transpose();
        let stat = match (look(TierName::Ssd)?, look(TierName::Hdd)?) {
            (Some(ssd), Some(hdd)) => self.merged_stat(ssd, hdd),
            (one, other) => one.or(other).ok_or(Errno::STALE)?,
        };
        Ok(Attr { ino: dir.ino, stat, unsettled: false })
    }

    /// Looks a known file up again by the place where it was last seen.
    pub(crate) fn refind(&self, ino: u64) -> Result<(NodeLocation, FoundName)> {
        let mut last = None;
        loop {
            let place = self.nodes.place(ino).ok_or(Errno::STALE)?;
            if last.as_ref() == Some(&place) || place.nameless {
                return Err(Errno::STALE);
            }
            let outcome = self.dir(place.parent).and_then(|dir| self.find(&dir, &place.name));
            match outcome {
                Ok(found) if found.ino == ino => {
                    if found.backing != place.backing {
                        self.nodes.upsert(ino, place.parent, &place.name, found.backing, found.kind, 0);
                    }
                    return Ok((place, found));
                }
                Ok(_) | Err(Errno::NOENT | Errno::STALE | Errno::NOTDIR) => last = Some(place),
                Err(error) => return Err(error),
            }
        }
    }
}

/// The kinds the table tells apart.
pub(crate) fn kind_of(stat: &Stat) -> NodeKind {
    match stat.kind() {
        FileType::Directory => NodeKind::Directory,
        FileType::RegularFile => NodeKind::Regular,
        _ => NodeKind::Special,
    }
}

/// Whether two looks at a file have seen the same backing inode on some side; a directory may get or lose its other half.
pub(crate) fn share_a_half(a: [u64; 2], b: [u64; 2]) -> bool {
    (0..2).any(|side| a[side] != 0 && a[side] == b[side])
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::testing::{TestPair, me};

    #[test]
    fn the_hidden_directory_is_hidden_by_any_name() {
        let fs = TestPair::empty();
        std::fs::rename(fs.at("hdd/.hotshelf"), fs.at("hdd/renamed")).expect("renamed");
        assert_eq!(fs.known_at(b"renamed/key").map(drop), Err(Errno::NOENT));
        assert_eq!(fs.lookup(ROOT, OsStr::new("renamed")).map(drop), Err(Errno::NOENT));
    }

    #[test]
    fn the_owner_of_one_top_has_no_rights_to_the_other() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: needs root");
            return;
        }
        use std::os::unix::fs::{PermissionsExt, chown};
        let fs = TestPair::empty();
        let mode = |ssd: u32, hdd: u32| {
            for (side, mode) in [("ssd", ssd), ("hdd", hdd)] {
                std::fs::set_permissions(fs.at(side), std::fs::Permissions::from_mode(mode)).expect("set");
            }
            fs.getattr(ROOT).expect("there").stat.mode & 0o7777
        };
        assert_eq!((mode(0o700, 0o755), mode(0o1777, 0o755)), (0o700, 0o1777));
        chown(fs.at("ssd"), Some(4242), None).expect("given");
        assert_eq!((mode(0o755, 0o755), mode(0o777, 0o700), mode(0o775, 0o777)), (0o555, 0, 0o775));
        chown(fs.at("hdd"), Some(4242), None).expect("given");
        assert_eq!(mode(0o755, 0o700), 0o755);
    }

    #[test]
    fn a_reused_backing_inode_is_not_the_known_file() {
        let fs = TestPair::with(&["ssd/file", "ssd/dir/inner"]);
        for name in ["file", "dir"] {
            let ino = fs.look_up(name);
            assert!(fs.handles(ino).is_ok());
            // As if its number had come to another file that has its name now.
            let look = fs.tier(TierName::Ssd).stat(fs.tier(TierName::Ssd).root.as_fd(), OsStr::new(name)).expect("there");
            let older = Stat { birth: (1, 1), ..look };
            fs.nodes.change(ino, |node| node.backing = Backing::default().and(TierName::Ssd, &older));
            let place = fs.nodes.place(ino).expect("known");
            assert!(fs.handles_at(ino, &place).is_err(), "{name}");
        }
    }

    fn backing(fs: &TestPair, ino: u64) -> [u64; 2] {
        fs.nodes.place(ino).expect("known").backing.inos()
    }

    #[test]
    fn a_number_that_is_known_is_not_given_to_another_file() {
        let fs = TestPair::with(&["ssd/mine", "ssd/victim"]);
        let (mine, victim) = (fs.look_up("mine"), fs.look_up("victim"));
        let of_mine = backing(&fs, mine);
        let name = OsStr::new("mine");
        assert_eq!(fs.own_number(mine, false, of_mine, ROOT, name), mine);
        for marked in [false, true] {
            let given = fs.own_number(victim, marked, of_mine, ROOT, name);
            assert_ne!(given, victim);
            // It stays the same as long as we are mounted.
            assert_eq!(fs.look_up("mine"), given);
            assert_eq!(fs.lookup_again(given).expect("found again").ino, given);
        }
    }

    #[test]
    fn a_mark_moves_a_number_only_when_the_old_inode_is_gone_from_its_place() {
        let fs = TestPair::with(&["ssd/file", "ssd/other"]);
        let (file, other) = (fs.look_up("file"), fs.look_up("other"));
        let of_other = backing(&fs, other);
        assert_ne!(fs.own_number(file, true, of_other, ROOT, OsStr::new("other")), file);
        fs.substitutes.lock().clear();
        std::fs::remove_file(fs.at("ssd/file")).expect("removed");
        assert_eq!(fs.own_number(file, true, of_other, ROOT, OsStr::new("other")), file);
    }

    #[test]
    fn open_directories_and_files_are_not_joined_by_number_alone() {
        let fs = TestPair::with(&["ssd/secret/inner", "ssd/mine/x", "ssd/private", "ssd/own"]);
        let (secret, mine) = (fs.look_up("secret"), fs.look_up("mine"));
        let (private, own) = (fs.look_up("private"), fs.look_up("own"));
        fs.dir(secret).expect("open");
        let handle = fs.open(me(), private, true, true).expect("open");
        // As if the numbers had come to name the other's backing inodes.
        let (of_mine, of_own) = (backing(&fs, mine), backing(&fs, own));
        fs.nodes.change(secret, |node| node.backing = of_mine.into());
        fs.nodes.change(private, |node| node.backing = of_own.into());
        assert!(fs.dir(secret).is_err());
        assert_eq!(fs.open(me(), private, true, false).expect_err("not joined"), Errno::STALE);
        fs.release(&handle, None);
    }

    #[test]
    fn forged_copied_and_old_marks_are_ignored() {
        let fs = TestPair::with(&["ssd/file", "hdd/mine"]);
        let ino = fs.look_up("file");
        fs.migrate(b"file", TierName::Hdd, &mut |_, _, _, _| true).expect("moved");
        assert_eq!(fs.look_up("file"), ino);
        let name = ["trusted.hotshelf.ino", "user.hotshelf.ino"]
            .into_iter()
            .find(|name| rustix::fs::getxattr(fs.at("hdd/file"), *name, &mut [0u8; 64][..]).is_ok());
        // A file system without attributes is no place for this.
        let Some(name) = name else { return };
        let mut mark = [0u8; 64];
        let len = rustix::fs::getxattr(fs.at("hdd/file"), name, &mut mark[..]).expect("marked");
        let set = |name: &str, mark: &[u8]| {
            rustix::fs::setxattr(fs.at("hdd/mine"), name, mark, rustix::fs::XattrFlags::empty()).expect("set");
            assert_ne!(fs.look_up("mine"), ino);
        };
        set(name, &mark[..len]);
        let mine = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(fs.at("hdd/mine")).expect("there"));
        mark[4..12].copy_from_slice(&mine.to_le_bytes());
        set(name, &mark[..len]);
        set("user.hotshelf.ino", &mark[..len]);
    }

    #[test]
    fn directories_of_two_owners_are_not_halves_of_one() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: needs root");
            return;
        }
        let fs = TestPair::open(crate::testing::sides_with(&["ssd/a/mine", "hdd/a/secret", "ssd/b/own", "hdd/b/planted", "hdd/c/file"]));
        std::os::unix::fs::chown(fs.at("ssd/a"), Some(65534), None).expect("given");
        std::os::unix::fs::chown(fs.at("hdd/b"), Some(65534), None).expect("given");
        assert!(fs.known_at(b"a/mine").is_ok() && fs.known_at(b"b/own").is_ok());
        assert_eq!(fs.known_at(b"a/secret").map(drop), Err(Errno::NOENT));
        assert_eq!(fs.known_at(b"b/planted").map(drop), Err(Errno::NOENT));
        // Not even of one that was open before the other appeared.
        let (c, _known) = fs.known_at(b"c").expect("there");
        fs.dir(c).expect("open");
        std::fs::create_dir(fs.at("ssd/c")).expect("made");
        std::fs::write(fs.at("ssd/c/planted"), "").expect("made");
        std::os::unix::fs::chown(fs.at("ssd/c"), Some(65534), None).expect("given");
        fs.dirs.drop_dir(c);
        let dir = fs.dir(c).expect("open again");
        assert!(dir.on(TierName::Ssd).is_none() && dir.on(TierName::Hdd).is_some());
        assert_eq!(fs.status().conflicts.len(), 2);
    }

    #[test]
    fn halves_that_we_made_stay_together_whoever_owns_them() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: needs root");
            return;
        }
        let fs = TestPair::with(&["hdd/a/file", "hdd/a/other"]);
        fs.migrate(b"a/file", TierName::Ssd, &mut |_, _, _, _| true).expect("moved");
        std::os::unix::fs::chown(fs.at("ssd/a"), Some(65534), None).expect("given");
        let fs = fs.again();
        if rustix::fs::getxattr(fs.at("ssd/a"), "trusted.hotshelf.ino", &mut [0u8; 64][..]).is_ok() {
            assert!(fs.known_at(b"a/file").is_ok() && fs.known_at(b"a/other").is_ok());
        }
    }
}
