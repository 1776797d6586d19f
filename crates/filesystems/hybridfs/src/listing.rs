//! Listing directories: the union of both sides, as it was when the listing began.
//!
//! A position follows from names alone: entries are listed in the order of a hash of their names, and the position behind an entry is one
//! more. So it is the same for every open directory and after a remount, whatever is made, moved or removed meanwhile.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::dirs::DirPair;
use crate::errno::Result;
use crate::names::{Attr, FoundName};
use crate::nodes::NodeKind;
use crate::number::ROOT;
use crate::pair::TieredFs;
use crate::path::HIDDEN;
use crate::read_dir::{list_names, read_names};
use crate::report::TierName;

/// One name of a listing.
#[derive(Clone, Debug)]
pub struct ListingEntry {
    /// Where it is among the others.
    position: u64,
    /// Name of the directory entry.
    pub name: Box<[u8]>,
    /// What the directory says it is.
    pub kind: FileType,
    /// The side it was found on; a directory on both is listed once, for the SSD.
    pub tier: TierName,
    both: bool,
}

/// An open directory being listed. Positions are stable until it is rewound.
#[derive(Debug)]
pub struct Listing {
    /// The directory that is listed.
    pub dir: Arc<DirPair>,
    entries: Mutex<Option<Arc<Vec<ListingEntry>>>>,
}

/// Entries that every directory has, at the positions 0 and 1.
pub const DOTS: usize = 2;

/// The number of the first entry from a position on; `.` and `..` are 0 and 1.
pub fn first_at(entries: &[ListingEntry], position: u64) -> usize {
    match usize::try_from(position) {
        Ok(dots) if dots <= DOTS => dots,
        _ => DOTS + entries.partition_point(|entry| entry.position < position),
    }
}

/// The position behind an entry. That of the entry itself if the next one has the same: it is listed twice then, if a listing resumes
/// there, rather than not at all.
pub fn behind(entries: &[ListingEntry], n: usize) -> u64 {
    let Some(entry) = n.checked_sub(DOTS).and_then(|n| entries.get(n)) else { return n as u64 + 1 };
    let shared = entries.get(n - DOTS + 1).is_some_and(|next| next.position == entry.position);
    if shared { entry.position } else { entry.position + 1 }
}

/// Where a name is among the others: 3 to 2^62 + 2. Clients of NFS have it over restarts, so it must not change.
fn position(name: &[u8]) -> u64 {
    // FNV-1a, and the last step of MurmurHash3 for its upper bits.
    let mut hash = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    ((hash ^ hash >> 33) >> 2) + DOTS as u64 + 1
}

/// Times that both sides are read while files move; names that are gone by then are left out later.
const TRIES_MAX: usize = 8;

impl TieredFs {
    /// Opens a directory for listing.
    pub fn open_listing(&self, ino: u64) -> Result<Listing> {
        Ok(Listing { dir: self.dir_or_held(ino)?, entries: Mutex::new(None) })
    }

    /// The entries; read anew when `rewind`.
    pub fn entries(&self, listing: &Listing, rewind: bool) -> Result<Arc<Vec<ListingEntry>>> {
        let mut cached = listing.entries.lock();
        match &*cached {
            Some(entries) if !rewind => Ok(entries.clone()),
            _ => {
                let entries = Arc::new(self.union(&listing.dir)?);
                *cached = Some(entries.clone());
                Ok(entries)
            }
        }
    }

    fn union(&self, opened: &Arc<DirPair>) -> Result<Vec<ListingEntry>> {
        let mut all = Vec::new();
        let mut seen: HashSet<Box<[u8]>> = HashSet::new();
        for look in 0..TRIES_MAX {
            let moves = self.moves_seen.load(Ordering::Acquire);
            // The directory may have got its other half since it was opened.
            let dir = self.dir(opened.ino).unwrap_or_else(|_| opened.clone());
            if look > 0 {
                seen = all.iter().map(|entry: &ListingEntry| entry.name.clone()).collect();
            }
            self.add_names(&dir, look > 0, &mut all, &mut seen)?;
            if self.moves_seen.load(Ordering::Acquire) == moves {
                break;
            }
            // A file that came to the SSD after that was read and left the HDD before that was read was missed.
        }
        all.sort_unstable_by(|a, b| (a.position, &a.name).cmp(&(b.position, &b.name)));
        Ok(all)
    }

    /// Adds the names of both sides that are not seen yet.
    fn add_names(&self, dir: &DirPair, again: bool, all: &mut Vec<ListingEntry>, seen: &mut HashSet<Box<[u8]>>) -> Result<()> {
        let both = dir.on(TierName::Ssd).is_some() && dir.on(TierName::Hdd).is_some();
        for tier in [TierName::Ssd, TierName::Hdd] {
            let Some(fd) = dir.on(tier) else { continue };
            let quiet = self.config.noatime;
            let read = if quiet { read_names } else { list_names }(fd, &mut |name, kind| {
                if dir.ino == ROOT && name == HIDDEN.as_bytes() {
                    return;
                }
                if self.is_nfs_client_name(tier, name) && matches!(self.look_visible(tier, fd, OsStr::from_bytes(name)), Ok(None)) {
                    return;
                }
                if (both || again) && !seen.insert(name.into()) {
                    return;
                }
                all.push(ListingEntry {
                    position: position(name),
                    name: name.into(),
                    kind,
                    tier,
                    both: both && kind == FileType::Directory,
                });
            });
            self.noted_at(tier, fd, read)?;
        }
        Ok(())
    }

    /// Number and attributes of a listed name; `None` when it is gone by now. Adds a reference if `refer`.
    pub fn entry_attr(&self, dir: &DirPair, entry: &ListingEntry, refer: bool) -> Result<Option<Attr>> {
        let name = OsStr::from_bytes(&entry.name);
        let found = match self.times_kept(FoundName::dir, || self.entry_found(dir, entry, name)) {
            Ok(found) => found,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error),
        };
        if refer {
            self.nodes.upsert(found.ino, dir.ino, name, found.backing, found.kind, 1);
        }
        Ok(Some(self.attr_of(&found)))
    }

    /// One look where the listing has seen it; the long way only when it is not there any more.
    fn entry_found(&self, dir: &DirPair, entry: &ListingEntry, name: &OsStr) -> Result<FoundName> {
        if !entry.both
            && let Some(fd) = dir.on(entry.tier)
            && let Some(stat) = self.look_visible(entry.tier, fd, name)?
        {
            let found = self.found_on(entry.tier, dir, name, stat);
            if let Some(found) = found.filter(|found| found.kind != NodeKind::Directory || dir.on(entry.tier.other()).is_none()) {
                return Ok(found);
            }
        }
        // The directory may have got its other half since it was listed.
        match self.dir(dir.ino) {
            Ok(now) => self.find(&now, name),
            Err(_) => self.find(dir, name),
        }
    }

    /// The number of the directory above.
    pub fn parent_of(&self, ino: u64) -> u64 {
        self.nodes.with(ino, |node| node.parent).unwrap_or(ROOT)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_position_leads_to_the_entry_behind_it_whatever_else_is_there() {
        let entry = |name: &str| ListingEntry {
            position: position(name.as_bytes()),
            name: name.as_bytes().into(),
            kind: FileType::RegularFile,
            tier: TierName::Ssd,
            both: false,
        };
        let sorted = |names: &mut dyn Iterator<Item = u32>| {
            let mut all: Vec<ListingEntry> = names.map(|n| entry(&format!("file {n}"))).collect();
            all.sort_unstable_by_key(|entry| entry.position);
            all
        };
        let (before, after) = (sorted(&mut (0..300)), sorted(&mut (0..900).filter(|n| n % 3 > 0)));
        assert_eq!([0, 1, 2].map(|at| first_at(&before, at)), [0, 1, 2]);
        assert_eq!([0, 1].map(|n| behind(&before, n)), [1, 2]);
        for n in DOTS..DOTS + before.len() {
            let at = behind(&before, n);
            assert_eq!(first_at(&before, at), n + 1);
            let rest: Vec<_> = after[first_at(&after, at) - DOTS..].iter().map(|entry| &entry.name).collect();
            let is_there = |entry: &&ListingEntry| after.iter().any(|other| other.name == entry.name);
            let wanted: Vec<_> = before[n + 1 - DOTS..].iter().filter(is_there).map(|entry| &entry.name).collect();
            assert!(wanted.iter().all(|name| rest.contains(name)));
            assert!(!before[..=n - DOTS].iter().any(|entry| rest.contains(&&entry.name)));
        }
        // The constants are a promise.
        assert_eq!(position(b"a"), 0x20a8_aa56_2a6f_b399);
    }
}
