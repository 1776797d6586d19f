//! Handles on the backing files of a number, checked to be the file itself.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;

use crate::errno::Result;
use crate::nodes::NodeLocation;
use crate::number::ROOT;
use crate::pair::TieredFs;
use crate::path::NAME_ONLY;
use crate::report::TierName;
use crate::stat::Stat;

impl TieredFs {
    /// An open file of this number, or the one kept of a removed name.
    pub(crate) fn open_or_held(&self, ino: u64) -> Option<(TierName, Arc<OwnedFd>)> {
        if let Some(open) = self.opens.lock().get(&ino) {
            return Some(open.any_fd());
        }
        self.held.lock().get(&ino).cloned()
    }

    /// Name-only handles on every side a file exists on, checked to be the file itself.
    pub(crate) fn handles(&self, ino: u64) -> Result<Vec<(TierName, Arc<OwnedFd>)>> {
        if let Some(open) = self.open_or_held(ino) {
            return Ok(vec![open]);
        }
        if ino == ROOT {
            let root = |tier: TierName| -> Result<(TierName, Arc<OwnedFd>)> {
                let fd = self.tier(tier).root.try_clone().map_err(|_| Errno::MFILE)?;
                Ok((tier, Arc::new(fd)))
            };
            let (ssd, hdd) = (root(TierName::Ssd)?, root(TierName::Hdd)?);
            let stat = |(tier, fd): &(TierName, Arc<OwnedFd>)| self.tier(*tier).stat_fd(fd.as_fd());
            // The attributes shown are the SSD's; its owner does not change another user's directory on the HDD.
            let both = self.have_one_owner(&stat(&ssd)?, &stat(&hdd)?);
            return Ok(if both { vec![ssd, hdd] } else { vec![ssd] });
        }
        if let Some(dir) = self.open_dir_of(ino) {
            // Also when an ordinary user may not go there any more.
            let sides = [TierName::Ssd, TierName::Hdd].into_iter().filter_map(|tier| Some((tier, dir.on(tier)?)));
            let again = |(tier, fd): (TierName, BorrowedFd<'_>)| Ok((tier, Arc::new(fd.try_clone_to_owned().map_err(|_| Errno::MFILE)?)));
            return sides.map(again).collect();
        }
        let mut last_error = Errno::STALE;
        for _ in 0..8 {
            let place = self.nodes.place(ino).ok_or(Errno::STALE)?;
            if place.nameless {
                return Err(Errno::NOENT);
            }
            match self.handles_at(ino, &place) {
                Ok(handles) => return Ok(handles),
                Err(error) => last_error = error,
            }
            self.refind(ino)?;
        }
        Err(last_error)
    }

    pub(crate) fn handles_at(&self, ino: u64, place: &NodeLocation) -> Result<Vec<(TierName, Arc<OwnedFd>)>> {
        let dir = self.dir(place.parent)?;
        let mut handles = Vec::with_capacity(2);
        for tier in [TierName::Ssd, TierName::Hdd] {
            if place.on(tier).is_none() {
                continue;
            }
            let fd = self.tier(tier).open_at(dir.must(tier)?, &place.name, NAME_ONLY)?;
            let stat = self.tier(tier).stat_fd(fd.as_fd())?;
            if !place.backing.is(tier, &stat) || !self.is_numbered(tier, fd.as_fd(), &stat, ino) {
                return Err(Errno::STALE);
            }
            handles.push((tier, Arc::new(fd)));
        }
        if handles.is_empty() { Err(Errno::STALE) } else { Ok(handles) }
    }

    /// Whether an open file, whose backing inode is the known one, is the file of this number.
    pub(crate) fn is_numbered(&self, tier: TierName, file: BorrowedFd<'_>, stat: &Stat, ino: u64) -> bool {
        let substitute = || self.substitutes.lock().get(&(tier, stat.ino)) == Some(&ino);
        self.tier(tier).may_be_numbered(file, stat, ino) || substitute()
    }
}
