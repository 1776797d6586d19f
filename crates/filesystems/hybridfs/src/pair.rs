//! The pair of directories as one file system.

mod notes;

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Instant;

use hashbrown::HashMap;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rustix::io::Errno;

use crate::clock::now_s;
use crate::config::{Config, Promotion};
use crate::dirs::DirCache;
use crate::errno::Result;
use crate::forgotten_files::table::ForgottenFiles;
use crate::intent::IntentLog;
use crate::moves::job::MoveReason;
use crate::moves::queue::Mover;
use crate::nodes::{KeptFor, Nodes};
use crate::number::ROOT;
use crate::numbers::NumberTable;
use crate::open::OpenInode;
use crate::persist::Journal;
use crate::placement::{Placement, TouchResult};
use crate::report::TierName;
use crate::settings::tunables::Tunables;
use crate::space::SpaceUsage;
use crate::stat::Stat;
use crate::tier::Tier;
use crate::times::passes::DirTimes;

const GATES: usize = 256;
/// Paths on both sides that are listed by name.
const CONFLICTS_MAX: usize = 1000;

/// Told when the file system changed something the kernel may have cached.
pub trait Listener: Send + Sync {
    /// Attributes of `ino` changed without the kernel asking (it moved), or by a call that the kernel does not order with looks at them:
    /// what it was answered before the change, and considers after it, must not count.
    fn attributes_changed(&self, ino: u64);
}

/// The file system over a pair. All methods may be called from many threads.
pub struct TieredFs {
    pub(crate) config: Config,
    tiers: [Tier; 2],
    pub(crate) nodes: Nodes,
    pub(crate) dirs: DirCache,
    /// Shared by calls that use a file by its number, exclusive for the moment it changes sides.
    gates: Vec<RwLock<()>>,
    /// Held by whoever changes the shape of the tree of directories on one side.
    pub(crate) shape: Mutex<()>,
    pub(crate) opens: Mutex<HashMap<u64, Arc<OpenInode>>>,
    /// Numbers of backing inodes whose own number another file has.
    pub(crate) substitutes: Mutex<HashMap<(TierName, u64), u64>>,
    pub(crate) any_substitute: AtomicBool,
    /// Files without a name that the kernel may still ask about.
    pub(crate) held: Mutex<HashMap<u64, (TierName, Arc<OwnedFd>)>>,
    /// File capabilities that the kernel has just removed in the name of a privileged process, by number: a write follows, or a change
    /// of the owner.
    pub(crate) capabilities_removed: Mutex<HashMap<u64, u32>>,
    pub(crate) placement: Placement,
    pub(crate) space: SpaceUsage,
    pub(crate) mover: Mover,
    pub(crate) journal: Journal,
    pub(crate) intents: IntentLog,
    pub(crate) times: DirTimes,
    /// When files come up, and which.
    pub(crate) tunables: Tunables,
    /// Held while a side is being retired.
    pub(crate) retirement: Mutex<()>,
    /// The side that gets nothing new, plus one; 0: none.
    pub(crate) retiring: AtomicU8,
    pub(crate) numbers: ForgottenFiles,
    /// Counts moves that changed where a name is found.
    pub(crate) moves_seen: AtomicU64,
    pub(crate) privileged: bool,
    pub(crate) started: Instant,
    pub(crate) counters: FsCounters,
    pub(crate) notes: Mutex<StatusNotes>,
    pub(crate) listener: RwLock<Option<Arc<dyn Listener>>>,
    /// Read at the start, until the scan takes it.
    pub(crate) history: Mutex<Vec<crate::persist::HistoryRecord>>,
    tmp_names: AtomicU64,
    pub(crate) _locks: [Option<OwnedFd>; 2],
}

/// What `status` counts.
#[derive(Debug, Default)]
pub(crate) struct FsCounters {
    /// Opens of regular files that were on the SSD.
    pub hits: AtomicU64,
    /// Opens of regular files that were on the HDD.
    pub misses: AtomicU64,
    /// Moves from the HDD to the SSD that finished.
    pub promotions: AtomicU64,
    /// Moves from the SSD to the HDD that finished.
    pub demotions: AtomicU64,
    /// Bytes that were moved in both directions.
    pub moved_bytes: AtomicU64,
    /// Moves that were dropped because the file was in use or changed.
    pub dropped: AtomicU64,
    /// Moves that failed with an error.
    pub failed: AtomicU64,
    /// Whether the background scan of the SSD has finished.
    pub scan_done: AtomicBool,
}

/// What people should know.
#[derive(Debug, Default)]
pub(crate) struct StatusNotes {
    /// Paths that exist on both sides although hotshelf did not put them there.
    pub conflicts: Vec<String>,
    /// Number of conflicts beyond those that are listed.
    pub conflicts_more: u64,
    /// Warnings that `status` shows, one sentence each.
    pub warnings: Vec<String>,
}

/// What `TieredFs::build` is given by the opening code.
pub(crate) struct TieredFsParts {
    /// The configuration of the pair.
    pub config: Config,
    /// The opened SSD and HDD directories.
    pub tiers: [Tier; 2],
    /// Eviction policy, rules and pins of the pair.
    pub placement: Placement,
    /// The log of unfinished moves.
    pub journal: Journal,
    /// The log of unfinished renames across both sides.
    pub intents: IntentLog,
    /// Locks that keep other daemons off the pair.
    pub locks: [Option<OwnedFd>; 2],
    /// Table of forgotten inode numbers and whether it is complete.
    pub numbers: Option<(NumberTable, bool)>,
    /// Warnings that `status` shows, one sentence each.
    pub warnings: Vec<String>,
}

impl TieredFs {
    pub(crate) fn build(parts: TieredFsParts) -> Result<TieredFs> {
        let backing = |tier: &Tier| tier.stat_fd(tier.root.as_fd()).map(|stat| stat.ino);
        let roots = [backing(&parts.tiers[0])?, backing(&parts.tiers[1])?];
        let space = SpaceUsage::default();
        space.refresh(&parts.tiers, &parts.config).map_err(|(_, error)| error)?;
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1 << 20);
        // A quarter of the descriptors for directories, two each; the rest is for open files.
        let directories = (limit / 8).clamp(16, 8192) as usize;
        let mover = Mover::new(parts.config.move_bytes_per_s);
        let nodes = Nodes::new(roots);
        if parts.numbers.is_some() {
            nodes.remember_forgotten();
        }
        let tunables = Tunables::of(&parts.config);
        Ok(TieredFs {
            tunables,
            config: parts.config,
            tiers: parts.tiers,
            nodes,
            numbers: ForgottenFiles::new(parts.numbers),
            dirs: DirCache::new(directories),
            gates: (0..GATES).map(|_| RwLock::new(())).collect(),
            shape: Mutex::new(()),
            opens: Mutex::new(HashMap::new()),
            substitutes: Mutex::new(HashMap::new()),
            any_substitute: AtomicBool::new(false),
            held: Mutex::new(HashMap::new()),
            capabilities_removed: Mutex::new(HashMap::new()),
            placement: parts.placement,
            space,
            mover,
            journal: parts.journal,
            intents: parts.intents,
            times: DirTimes::new(),
            retirement: Mutex::new(()),
            retiring: AtomicU8::new(0),
            moves_seen: AtomicU64::new(0),
            privileged: rustix::process::geteuid().is_root(),
            started: Instant::now(),
            counters: FsCounters::default(),
            notes: Mutex::new(StatusNotes { warnings: parts.warnings, ..StatusNotes::default() }),
            listener: RwLock::new(None),
            history: Mutex::default(),
            tmp_names: AtomicU64::new(1),
            _locks: parts.locks,
        })
    }

    /// Returns the tier of this name.
    pub fn tier(&self, name: TierName) -> &Tier {
        &self.tiers[name as usize]
    }

    /// A side that can do less than the test's file system.
    #[cfg(test)]
    pub(crate) fn limit(&mut self, name: TierName, limit: impl FnOnce(&mut crate::abilities::Abilities)) {
        let abilities = &mut self.tiers[name as usize].abilities;
        assert!(abilities.probed, "it is known what it can do");
        limit(abilities);
    }

    /// Both sides.
    pub(crate) fn tiers(&self) -> &[Tier; 2] {
        &self.tiers
    }

    /// The gate of a file: see [`TieredFs`]'s field.
    pub(crate) fn gate(&self, ino: u64) -> &RwLock<()> {
        &self.gates[(ino % GATES as u64) as usize]
    }

    /// Several gates, shared, in one order.
    pub(crate) fn gates(&self, inos: &[Option<u64>]) -> Vec<RwLockReadGuard<'_, ()>> {
        let mut at: Vec<usize> = inos.iter().flatten().map(|ino| (ino % GATES as u64) as usize).collect();
        at.sort_unstable();
        at.dedup();
        at.into_iter().map(|at| self.gates[at].read_recursive()).collect()
    }

    /// An error when nothing may be changed.
    pub(crate) fn writable(&self) -> Result<()> {
        if self.config.read_only { Err(Errno::ROFS) } else { Ok(()) }
    }

    /// A name for a temporary file that no other has.
    pub(crate) fn tmp_name(&self, ino: u64) -> String {
        format!("{ino:016x}.{}", self.tmp_names.fetch_add(1, Ordering::Relaxed))
    }

    /// Another handle on a side's hidden directory.
    pub fn hidden_dir(&self, tier: TierName) -> std::io::Result<OwnedFd> {
        self.tier(tier).hidden.try_clone()
    }

    /// Sets the listener for changes that the kernel did not request.
    pub fn set_listener(&self, listener: Arc<dyn Listener>) {
        *self.listener.write() = Some(listener);
    }

    /// Removes the listener for changes.
    pub fn clear_listener(&self) {
        *self.listener.write() = None;
    }

    pub(crate) fn tell_changed(&self, ino: u64) {
        if let Some(listener) = self.listener.read().clone() {
            listener.attributes_changed(ino);
        }
    }

    /// Whether `promotion = on-open` wants this file moved before it is opened.
    pub fn promotes_on_open(&self, ino: u64) -> bool {
        let on_hdd = || self.nodes.with(ino, |node| node.tier() == TierName::Hdd).unwrap_or(false);
        let may = || !self.mover.rests(ino) && self.mover.side_rests(TierName::Ssd).is_none();
        let closed = || !self.opens.lock().contains_key(&ino);
        !self.is_retiring(TierName::Ssd)
            && self.tunables.promotion() == Promotion::OnOpen
            && on_hdd()
            && closed()
            && may()
            && self.may_come_up(ino)
    }

    /// Where a new file goes.
    pub(crate) fn tier_for_new(&self, parent: u64, name: &OsStr) -> TierName {
        let ssd = self.tier(TierName::Ssd);
        if self.is_retiring(TierName::Ssd) {
            return TierName::Hdd;
        }
        if self.is_retiring(TierName::Hdd) {
            return TierName::Ssd;
        }
        if self.space.tight() && self.space.fits_hdd(0) || ssd.is_troubled() {
            return TierName::Hdd;
        }
        if self.placement.has_hdd_rules()
            && let Some(mut path) = self.nodes.path(parent)
        {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name.as_bytes());
            if self.placement.belongs_on_hdd(&path) {
                return TierName::Hdd;
            }
        }
        TierName::Ssd
    }

    /// A new file is on the SSD.
    pub(crate) fn remember_new(&self, ino: u64, size: u64) {
        self.placement.arrived(ino, size, now_s(), 1);
        self.nodes.keep(ino, KeptFor::Policy, true);
    }

    /// A file is gone.
    pub(crate) fn forget_file(&self, ino: u64) {
        self.mover.promotion_feedback.lock().left(ino, self.space.high(), now_s());
        self.placement.left(ino);
        self.mover.demotion_history.lock().forget(ino);
        self.nodes.keep(ino, KeptFor::Policy, false);
    }

    /// A file was opened.
    pub(crate) fn touched(&self, ino: u64, tier: TierName) {
        let now = now_s();
        match tier {
            TierName::Ssd => {
                self.counters.hits.fetch_add(1, Ordering::Relaxed);
                self.placement.touch_ssd(ino, now);
                self.mover.promotion_feedback.lock().used(ino, self.space.high(), now);
            }
            TierName::Hdd => {
                self.counters.misses.fetch_add(1, Ordering::Relaxed);
                let may = || match self.tunables.promotion() {
                    // This open was counted when it was decided whether it waits for the promotion.
                    Promotion::OnOpen => self.mover.opens_wanted() == 0,
                    _ => self.may_come_up(ino),
                };
                if self.placement.touch_hdd(ino, now, self.tunables.promotion()) == TouchResult::Promote && may() {
                    self.ask_move(ino, TierName::Ssd, MoveReason::SecondTouch);
                }
            }
        }
    }

    /// A writer closed a file.
    pub(crate) fn resized(&self, ino: u64, tier: TierName, stat: &Stat) {
        if tier == TierName::Ssd && stat.nlink > 0 {
            self.placement.resized(ino, stat.size);
            if stat.size > self.space.max_file() && !self.is_pinned(ino) {
                self.ask_move(ino, TierName::Hdd, MoveReason::TooBig);
            }
        }
        if self.space.above_high() {
            self.mover.wake();
        }
    }

    /// Nobody has the file open any more.
    pub(crate) fn closed(&self, ino: u64) {
        self.mover.closed(ino);
    }

    /// Why a file stays on the SSD, if it does.
    pub(crate) fn pinned(&self, ino: u64) -> Option<String> {
        if !self.placement.has_pins() {
            return None;
        }
        self.placement.pinned(&self.nodes.path(ino)?)
    }

    pub(crate) fn is_pinned(&self, ino: u64) -> bool {
        self.pinned(ino).is_some()
    }

    /// The real path of a file on a side, for messages.
    pub(crate) fn real_path(&self, tier: TierName, path: &[u8]) -> PathBuf {
        self.tier(tier).path.join(Path::new(OsStr::from_bytes(path)))
    }

    /// Space of both sides together (once, when they share a file system).
    pub fn statfs(&self) -> Result<rustix::fs::StatVfs> {
        let mut sum = rustix::fs::fstatvfs(&self.tier(TierName::Ssd).root)?;
        if self.tier(TierName::Ssd).dev == self.tier(TierName::Hdd).dev {
            return Ok(sum);
        }
        let hdd = rustix::fs::fstatvfs(&self.tier(TierName::Hdd).root)?;
        let scale = |blocks: u64| (u128::from(blocks) * u128::from(hdd.f_frsize) / u128::from(sum.f_frsize.max(1))) as u64;
        sum.f_blocks += scale(hdd.f_blocks);
        sum.f_bfree += scale(hdd.f_bfree);
        sum.f_bavail += scale(hdd.f_bavail);
        sum.f_files += hdd.f_files;
        sum.f_ffree += hdd.f_ffree;
        sum.f_favail += hdd.f_favail;
        sum.f_namemax = sum.f_namemax.min(hdd.f_namemax);
        Ok(sum)
    }

    /// Stamp of a file's data for the kernel's page cache: `true` when the cache may be kept.
    pub fn cache_is_current(&self, ino: u64, stat: &Stat) -> bool {
        let stamp = cache_stamp(stat);
        self.nodes.with(ino, |node| node.cache_stamp.load(Ordering::Relaxed) == stamp).unwrap_or(false)
    }

    /// Records what the kernel's page cache holds when the last open through us ends; `None`: not known.
    pub fn stamp_cache(&self, ino: u64, stat: Option<&Stat>) {
        let stamp = stat.map_or(0, cache_stamp);
        self.nodes.with(ino, |node| node.cache_stamp.store(stamp, Ordering::Relaxed));
    }

    /// Whether nothing above the root needs a stored identity.
    pub fn is_root(ino: u64) -> bool {
        ino == ROOT
    }
}

impl std::fmt::Debug for TieredFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TieredFs").field("config", &self.config).finish_non_exhaustive()
    }
}

fn cache_stamp(stat: &Stat) -> u32 {
    let mut key = [0u8; 36];
    key[..8].copy_from_slice(&stat.size.to_le_bytes());
    key[8..16].copy_from_slice(&stat.mtime.0.to_le_bytes());
    key[16..20].copy_from_slice(&stat.mtime.1.to_le_bytes());
    key[20..28].copy_from_slice(&stat.ctime.0.to_le_bytes());
    key[28..32].copy_from_slice(&stat.ctime.1.to_le_bytes());
    crc32c::crc32c(&key).max(1)
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::testing::TestPair;

    /// Counts what is logged.
    #[derive(Default)]
    struct Lines(AtomicU64);

    impl tracing::Subscriber for Lines {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() <= tracing::Level::INFO
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }

    #[test]
    fn what_users_cause_again_and_again_is_not_logged_again_and_again() {
        let fs = TestPair::empty();
        let lines = Arc::new(Lines::default());
        let logged = || lines.0.load(Ordering::Relaxed);
        tracing::subscriber::with_default(lines.clone(), || {
            for _ in 0..3 {
                (0..CONFLICTS_MAX + 500).for_each(|n| fs.note_conflict(n.to_string().as_bytes()));
            }
            assert!(logged() <= CONFLICTS_MAX as u64 + 1, "{}", logged());
            assert_eq!(fs.status().conflicts.len(), CONFLICTS_MAX);
            let before = logged();
            (0..10).for_each(|_| fs.warn("the same".into()));
            assert_eq!(logged(), before + 1);
        });
    }

    #[test]
    fn a_side_that_takes_files_is_not_broken_by_what_is_below_it() {
        let fs = TestPair::with(&["ssd/file"]);
        for error in [Errno::ROFS, Errno::NXIO, Errno::NODEV] {
            fs.note_failure(TierName::Ssd, error);
            assert_eq!(fs.tier(TierName::Ssd).trouble(), None, "{error}");
        }
        fs.note_failure(TierName::Ssd, Errno::IO);
        assert!(fs.tier(TierName::Ssd).trouble().is_some());
    }
}
