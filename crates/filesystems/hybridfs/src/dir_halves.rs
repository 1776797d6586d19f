//! Directories on both sides: making the other half, and the attributes of both together.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;

use crate::backing::Backing;
use crate::dirs::DirPair;
use crate::errno::Result;
use crate::pair::TieredFs;
use crate::report::TierName;
use crate::stat::Stat;

impl TieredFs {
    /// The directory on a side, made with all directories above it where it is missing.
    pub(crate) fn ensure_dir(&self, ino: u64, tier: TierName) -> Result<Arc<DirPair>> {
        let dir = self.dir(ino)?;
        if dir.on(tier).is_some() {
            return Ok(dir);
        }
        let _shape = self.shape.lock();
        self.ensure_chain(ino, tier)
    }

    fn ensure_chain(&self, ino: u64, tier: TierName) -> Result<Arc<DirPair>> {
        let mut missing = Vec::new();
        let mut at = ino;
        let mut dir = loop {
            let dir = self.dir(at)?;
            if dir.on(tier).is_some() {
                break dir;
            }
            missing.push(dir);
            at = self.nodes.place(at).ok_or(Errno::STALE)?.parent;
        };
        while let Some(without_counterpart) = missing.pop() {
            dir = self.create_counterpart(&dir, &without_counterpart, tier)?;
        }
        Ok(dir)
    }

    /// Makes the other half of a directory: in the temporary directory, then in place, complete.
    fn create_counterpart(&self, parent: &DirPair, dir: &DirPair, tier: TierName) -> Result<Arc<DirPair>> {
        let place = self.nodes.place(dir.ino).ok_or(Errno::STALE)?;
        let (source_tier, source) = dir.primary()?;
        let target = self.tier(tier);
        self.note_marks(tier)?;
        let tmp_name = self.tmp_name(dir.ino);
        rustix::fs::mkdirat(&target.tmp, &*tmp_name, rustix::fs::Mode::RWXU)?;
        let made = self.prepare_counterpart(dir.ino, source_tier, source, tier, OsStr::new(&tmp_name)).and_then(|counterpart| {
            let into = parent.must(tier)?;
            self.keeping_times(parent.ino, target, into, || {
                // Times that a user sets go to the halves that are known: none are set between this look and the moment
                // when both are.
                let stat = self.tier(source_tier).stat_fd(source)?;
                crate::copy::set_times(counterpart.as_fd(), &crate::copy::times(&stat))?;
                target.place_dir(OsStr::new(&tmp_name), into, &place.name)?;
                self.adopt_counterpart(dir, tier, &counterpart)
            })
        });
        if made.is_err() {
            let _ = rustix::fs::unlinkat(&target.tmp, &*tmp_name, rustix::fs::AtFlags::REMOVEDIR);
        }
        made
    }

    /// From now on both halves are used: the very directories that were made and copied, whatever has their name by now.
    fn adopt_counterpart(&self, dir: &DirPair, tier: TierName, counterpart: &OwnedFd) -> Result<Arc<DirPair>> {
        let (mut sides, mut backing) = ([None, None], Backing::default());
        let known = dir.on(tier.other()).ok_or(Errno::STALE)?;
        for (side, fd) in [(tier, counterpart.as_fd()), (tier.other(), known)] {
            backing = backing.and(side, &self.tier(side).stat_fd(fd)?);
            sides[side as usize] = Some(fd.try_clone_to_owned().map_err(|_| Errno::MFILE)?);
        }
        self.nodes.change(dir.ino, |node| node.backing = backing);
        let dir = DirPair::new(dir.ino, sides, backing.inos());
        self.dirs.put(dir.clone());
        Ok(dir)
    }

    fn prepare_counterpart(&self, ino: u64, from: TierName, source: BorrowedFd<'_>, tier: TierName, tmp_name: &OsStr) -> Result<OwnedFd> {
        let target = self.tier(tier);
        let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::RDONLY;
        let counterpart = target.open_at(target.tmp.as_fd(), tmp_name, flags)?;
        let stat = self.tier(from).stat_fd(source)?;
        match crate::copy::attributes(source, counterpart.as_fd(), &stat) {
            // Of a directory on both sides the SSD's attributes count: these do no file_damage.
            Err(crate::copy::AttributeLoss::Cannot(_)) if tier == TierName::Hdd => {}
            other => other?,
        }
        self.mark_or_warn(tier, counterpart.as_fd(), ino)?;
        Ok(counterpart)
    }

    /// Whether nobody else owns the other half of a directory. Where file systems have no owners nobody has made it in another's name.
    pub(crate) fn have_one_owner(&self, ssd: &Stat, hdd: &Stat) -> bool {
        ssd.uid == hdd.uid || !self.have_owners()
    }

    /// Whether files on both sides can belong to others than the daemon's user.
    pub(crate) fn have_owners(&self) -> bool {
        self.privileged && self.tier(TierName::Ssd).keeps_owners() && self.tier(TierName::Hdd).keeps_owners()
    }

    /// Attributes of a directory on both sides. Whoever owns the SSD's half alone has no more rights to what is in the other one than its
    /// mode gives to all.
    pub(crate) fn merged_stat(&self, ssd: Stat, hdd: Stat) -> Stat {
        let merged = merge_dir_stat(ssd, hdd);
        let owner = if self.have_one_owner(&ssd, &hdd) { 0o700 } else { (hdd.mode & 0o007) << 6 };
        Stat { mode: merged.mode & (owner | !0o700), ..merged }
    }
}

/// A directory on both sides: the SSD's owner, what both modes allow, the later times. Whoever may rename one of them must not make a
/// closed directory of one side a half of an open one of the other. The number of links counts
/// a directory on both sides twice: too many is harmless, too few makes find(1) skip directories.
fn merge_dir_stat(ssd: Stat, hdd: Stat) -> Stat {
    Stat {
        mode: ssd.mode & (allowed_by(&hdd, ssd.gid) | !0o777),
        nlink: (ssd.nlink + hdd.nlink).saturating_sub(2).max(2),
        size: ssd.size.max(hdd.size),
        blocks: ssd.blocks + hdd.blocks,
        atime: ssd.atime.max(hdd.atime),
        mtime: ssd.mtime.max(hdd.mtime),
        ctime: ssd.ctime.max(hdd.ctime),
        ..ssd
    }
}

/// What a mode allows, for members of a group that may not be the file's.
fn allowed_by(stat: &Stat, group: u32) -> u32 {
    if stat.gid == group {
        return stat.mode;
    }
    // Some of them are in its group, of which may be asked less than of all others.
    let others = stat.mode & stat.mode >> 3 & 0o007;
    stat.mode & !0o077 | others << 3 | others
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_directory_on_both_sides_is_no_more_open_than_either() {
        let half = |mode: u32, gid: u32| Stat { mode: 0o040000 | mode, gid, ..Stat::default() };
        for (ssd, hdd, same_group, other_group) in [
            (0o755, 0o700, 0o700, 0o700),
            (0o700, 0o755, 0o700, 0o700),
            (0o1777, 0o755, 0o1755, 0o1755),
            (0o2775, 0o775, 0o2775, 0o2755),
            (0o775, 0o770, 0o770, 0o700),
            (0o777, 0o707, 0o707, 0o700),
        ] {
            assert_eq!(merge_dir_stat(half(ssd, 5), half(hdd, 5)).mode, 0o040000 | same_group, "{ssd:o} {hdd:o}");
            assert_eq!(merge_dir_stat(half(ssd, 5), half(hdd, 6)).mode, 0o040000 | other_group, "{ssd:o} {hdd:o}");
        }
    }
}
