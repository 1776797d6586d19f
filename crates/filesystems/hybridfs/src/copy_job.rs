//! One move: the copy, and the steps that make it the file. The states are drawn in `moves`.

use std::cell::OnceCell;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard, RwLockWriteGuard};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::abilities::NamingMethod;
use crate::clock::now_s;
use crate::copy::{self, AttributeLoss};
use crate::dirs::DirPair;
use crate::errno::{Result, errno};
use crate::moves::job::{Duplicate, MoveJob, MoveOutcome, MoveReason};
use crate::nodes::{KeptFor, NodeLocation};
use crate::open::{ChangedRanges, OpenInode};
use crate::pair::TieredFs;
use crate::path::NAME_ONLY;
use crate::persist::MoveRecord;
use crate::report::TierName;
use crate::stat::{InodeId, Stat};

/// What changed during a copy is copied again while the writers go on, until it is this little.
const CATCH_UP_BYTES: u64 = 8 << 20;
const CATCH_UP_ROUNDS: usize = 6;
const GATE_WAIT: Duration = Duration::from_millis(20);

const TOO_LARGE: &str = "the other side cannot hold a file as large as this";
const BAD_NAME: &str = "the other side does not allow its name";
const BAD_DIRECTORY: &str = "the other side does not allow the name of a directory it is in";
const NAME_TAKEN: &str = "another file has its name on the other side";
const NAME_TAKEN_ABOVE: &str = "on the other side something else has the name of a directory it is in";

/// What a file system answers to a name that it does not allow.
pub(crate) fn bad_name(error: Errno) -> bool {
    matches!(error, Errno::INVAL | Errno::NAMETOOLONG | Errno::ILSEQ | Errno::PERM | Errno::OPNOTSUPP)
}

impl TieredFs {
    /// Whether a copy could be run, by its name on the other side, with rights that the file does not give now: whoever prepared a disk
    /// that is mounted nosuid chose its bits.
    pub(crate) fn would_gain_rights(&self, to: TierName, source: BorrowedFd<'_>, mode: u32) -> bool {
        let gives = |tier: TierName, file: BorrowedFd<'_>| self.tier(tier).gives_rights(file).unwrap_or(tier == to);
        let has_rights = || mode & 0o6000 != 0 || crate::attrs::value_exists(source, "security.capability");
        !gives(to.other(), source) && gives(to, self.tier(to).root.as_fd()) && has_rights()
    }
}

/// A move between its first look at the file and its end.
pub(crate) struct CopyJob {
    ino: u64,
    place: NodeLocation,
    to: TierName,
    source_dir: Arc<DirPair>,
    source: OwnedFd,
    pub(crate) before: Stat,
    tmp: Option<TemporaryCopy>,
}

/// The copy before it has its name.
struct TemporaryCopy {
    name: OsString,
    id: InodeId,
    /// Closed when its temporary name must go where a name of an open file would stay.
    file: Mutex<Option<Arc<OwnedFd>>>,
}

impl CopyJob {
    fn tmp(&self) -> Result<&TemporaryCopy> {
        self.tmp.as_ref().ok_or(Errno::STALE)
    }

    /// The copy, open for reading and writing.
    fn tmp_file(&self, fs: &TieredFs) -> Result<Arc<OwnedFd>> {
        let tmp = self.tmp()?;
        let mut file = tmp.file.lock();
        if let Some(file) = &*file {
            return Ok(file.clone());
        }
        let target = fs.tier(self.to);
        let again = Arc::new(target.open_at(target.tmp.as_fd(), &tmp.name, OFlags::RDWR)?);
        if !tmp.id.is(&target.stat_fd(again.as_fd())?) {
            return Err(Errno::STALE);
        }
        *file = Some(again.clone());
        Ok(again)
    }

    /// Before the temporary name is removed: what is open would be renamed instead, and keep a second link.
    fn close_tmp(&self, fs: &TieredFs) -> Result<()> {
        let target = fs.tier(self.to);
        if target.hides_open_files() && target.abilities.naming_method() == NamingMethod::Link {
            let mut file = self.tmp()?.file.lock();
            let owner_may_write = |stat: Stat| stat.mode & 0o600 == 0o600 || rustix::process::geteuid().is_root();
            if file.as_ref().is_some_and(|file| target.stat_fd(file.as_fd()).is_ok_and(owner_may_write)) {
                *file = None;
            }
        }
        Ok(())
    }

    /// The same for the original, of which no more is read: a handle that only names it will do.
    fn close_source(&mut self, fs: &TieredFs) -> Result<()> {
        let from = fs.tier(self.to.other());
        if from.hides_open_files() {
            let named = from.open_at(self.source_dir.must(from.name)?, &self.place.name, NAME_ONLY)?;
            if !self.before.id().is(&from.stat_fd(named.as_fd())?) {
                return Err(Errno::STALE);
            }
            self.source = named;
        }
        Ok(())
    }

    pub(crate) fn begin(fs: &TieredFs, ino: u64, place: NodeLocation, to: TierName) -> Result<CopyJob> {
        let from = fs.tier(to.other());
        let source_dir = fs.dir(place.parent)?;
        let dir = source_dir.must(from.name)?;
        let quiet = from.open_at(dir, &place.name, OFlags::RDONLY | OFlags::NOATIME | OFlags::NONBLOCK);
        let opened = match quiet {
            Err(Errno::PERM) => from.open_at(dir, &place.name, OFlags::RDONLY | OFlags::NONBLOCK),
            other => other,
        };
        let source = fs.noted_at(from.name, dir, opened)?;
        let before = fs.noted_at(from.name, source.as_fd(), from.stat_fd(source.as_fd()))?;
        let same = Some(before.ino) == place.on(from.name) && fs.is_numbered(from.name, source.as_fd(), &before, ino);
        if !same || !before.is_file() {
            return Err(Errno::STALE);
        }
        Ok(CopyJob { ino, place, to, source_dir, source, before, tmp: None })
    }

    /// Why this file does not move at all.
    pub(crate) fn stays(&self, fs: &TieredFs, reason: MoveReason) -> Option<MoveOutcome> {
        if self.before.nlink > 1 {
            return Some(MoveOutcome::Stays("it has several hard links"));
        }
        if self.before.fixed {
            return Some(MoveOutcome::Stays("it is immutable or append-only (chattr)"));
        }
        if self.before.foreign {
            return Some(MoveOutcome::Stays("it is on a file system mounted below the directory"));
        }
        if fs.would_gain_rights(self.to, self.source.as_fd(), self.before.mode) {
            return Some(MoveOutcome::Stays("it has set-id bits or capabilities that its file system, mounted nosuid, does not honour"));
        }
        let small = self.before.size < fs.tunables.min_file_bytes();
        if small && matches!(reason, MoveReason::SecondTouch | MoveReason::OnOpen | MoveReason::HighMark) {
            return Some(MoveOutcome::Stays("it is smaller than the smallest file that moves"));
        }
        if reason == MoveReason::TooBig && (self.before.size <= fs.space.max_file() || fs.is_pinned(self.ino)) {
            return Some(MoveOutcome::Dropped);
        }
        match self.to {
            TierName::Hdd if !fs.space.fits_hdd(self.before.blocks * 512) => Some(MoveOutcome::Failed(Errno::NOSPC)),
            TierName::Hdd => None,
            TierName::Ssd => self.stays_below(fs, reason),
        }
    }

    fn stays_below(&self, fs: &TieredFs, reason: MoveReason) -> Option<MoveOutcome> {
        let need = self.before.blocks * 512;
        let by_itself = matches!(reason, MoveReason::SecondTouch | MoveReason::OnOpen);
        if fs.is_retiring(TierName::Hdd) {
            // Nothing may leave for it.
            let _ = fs.space.refresh(fs.tiers(), &fs.config);
            return (!fs.space.fits_ssd(need)).then_some(MoveOutcome::Failed(Errno::NOSPC));
        }
        if by_itself && (self.before.size > fs.space.max_file() || need > fs.space.high()) {
            return Some(MoveOutcome::Stays("it is larger than the largest file for the SSD"));
        }
        if by_itself && fs.nodes.path(self.ino).is_some_and(|path| fs.placement.belongs_on_hdd(&path)) {
            return Some(MoveOutcome::Stays("a rule keeps it on the HDD"));
        }
        // Nobody has to leave for a file that cannot fit.
        if need.saturating_add(fs.space.reserve()) > fs.space.of(TierName::Ssd).capacity {
            return Some(MoveOutcome::Failed(Errno::NOSPC));
        }
        // Algorithm 1: files leave until the new one fits below the mark.
        for round in 0..10_000 {
            // Asked before the figures: a move that ends in between is in them.
            let leaving = fs.mover.is_leaving();
            let _ = fs.space.refresh(fs.tiers(), &fs.config);
            if need <= fs.space.room_below_high() && fs.space.fits_ssd(need) {
                return None;
            }
            let Some(victim) = fs.next_victim().filter(|victim| *victim != self.ino) else {
                // What leaves by itself, or was removed while it left, makes room when its move ends.
                let on_its_way = leaving || (reason == MoveReason::Asked && round < 50 && fs.mover.removed_lately());
                if on_its_way && !fs.mover.stopping() {
                    fs.mover.wait_for_any(Duration::from_millis(100));
                    continue;
                }
                break;
            };
            let outcome = fs.move_file(victim, TierName::Hdd, MoveReason::HighMark, &mut |_, _| true);
            fs.after(MoveJob::new(victim, TierName::Hdd, MoveReason::HighMark), outcome);
            if fs.mover.stopping() {
                return Some(MoveOutcome::Dropped);
            }
            if matches!(outcome, MoveOutcome::Failed(_)) {
                break;
            }
        }
        (!fs.space.fits_ssd(need)).then_some(MoveOutcome::Failed(Errno::NOSPC))
    }

    pub(crate) fn run(
        &mut self,
        fs: &TieredFs,
        open: Option<&Arc<OpenInode>>,
        reason: MoveReason,
        done: &Arc<AtomicU64>,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<MoveOutcome> {
        if let Some(open) = open {
            let mut track = open.track.lock();
            if track.is_some() {
                return Ok(MoveOutcome::Busy);
            }
            *track = Some(ChangedRanges::default());
        }
        let outcome = self.run_tracked(fs, open, reason, done, progress);
        if let Some(open) = open {
            *open.track.lock() = None;
        }
        outcome
    }

    fn run_tracked(
        &mut self,
        fs: &TieredFs,
        open: Option<&Arc<OpenInode>>,
        reason: MoveReason,
        done: &Arc<AtomicU64>,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<MoveOutcome> {
        let target_dir = match fs.ensure_dir(self.place.parent, self.to) {
            Err(error) if bad_name(error) && !fs.tier(self.to).abilities.keeps_all() => return Ok(MoveOutcome::Stays(BAD_DIRECTORY)),
            Err(Errno::NOENT) if !fs.tier(self.to).abilities.any_name && fs.tier(self.to).abilities.probed => {
                return Ok(MoveOutcome::Stays(BAD_DIRECTORY));
            }
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => return Ok(MoveOutcome::Stays(NAME_TAKEN_ABOVE)),
            other => fs.noted(self.to, other)?,
        };
        if fs.tier(self.to).stat_fd(target_dir.must(self.to)?)?.foreign {
            return Ok(MoveOutcome::Stays("on the other side its directory is on a file system mounted there"));
        }
        fs.noted(self.to, fs.note_marks(self.to))?;
        self.make_temporary(fs)?;
        if let Some(why) = self.does_not_fit(fs)? {
            return Ok(MoveOutcome::Stays(why));
        }
        match self.copy_all(fs, reason, done, progress) {
            Err(Errno::FBIG) => return Ok(MoveOutcome::Stays(TOO_LARGE)),
            other => other?,
        }
        if let Some(open) = open {
            self.catch_up(fs, open, reason, &mut || progress(self.before.size, self.before.size))?;
        }
        if open.is_none() {
            let file = self.tmp_file(fs)?;
            match self.dress(fs, &file) {
                Err(AttributeLoss::Cannot(why)) => return Ok(MoveOutcome::Stays(why)),
                other => other?,
            }
            fs.noted(self.to, rustix::fs::fsync(&*file))?;
            drop(file);
            self.close_tmp(fs)?;
            self.close_source(fs)?;
        }
        let target = self.tmp()?.id;
        crate::crash::point("move copied");
        let record = MoveRecord {
            to: self.to,
            path: fs.nodes.path(self.ino).ok_or(Errno::STALE)?,
            ino: self.ino,
            source: self.before.id(),
            target,
            size: self.before.size,
            mtime: self.before.mtime,
        };
        let entry = fs.noted(TierName::Ssd, fs.journal.begin(&record).map_err(errno))?;
        crate::crash::point("move journaled");
        let placed = OnceCell::new();
        let step = PlacementStep { copying: self, fs, open, target_dir, placed, path: &record.path, entry };
        let outcome = match self.to {
            TierName::Hdd => step.demote(),
            TierName::Ssd => step.promote(),
        };
        crate::crash::point("move ended");
        // What could not be removed stays in the journal: the next mount tries again.
        let placed_ino = step.placed.get().map_or(target.ino, |placed| placed.ino);
        let left_behind = fs.mover.left_behind.lock().remove(&placed_ino) || outcome == Ok(PlacementEnd::OnBothSides);
        if !left_behind && let Err(error) = fs.journal.end(entry, false) {
            // The move is over all the same, and its recovery changes nothing.
            tracing::warn!(%error, "the end of a move could not be journaled");
        }
        let outcome = match outcome {
            // Another program made a file of that name meanwhile; it is that program's.
            Err(Errno::EXIST) => return Ok(MoveOutcome::Stays(NAME_TAKEN)),
            other => other?,
        };
        Ok(match outcome {
            PlacementEnd::Done | PlacementEnd::OnBothSides => {
                self.tmp = None;
                MoveOutcome::Done
            }
            PlacementEnd::Dropped => MoveOutcome::Dropped,
        })
    }

    fn make_temporary(&mut self, fs: &TieredFs) -> Result<()> {
        let target = fs.tier(self.to);
        let name = OsString::from(fs.tmp_name(self.ino));
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // The copy belongs to the file's owner from the start: an exceeded quota ends the move before any data is copied.
        let make = || rustix::fs::openat(&target.tmp, &*name, flags, Mode::RUSR | Mode::WUSR);
        let file = fs.noted(self.to, fs.in_the_name_of(self.payer(), make)?)?;
        let id = target.stat_fd(file.as_fd())?.id();
        self.tmp = Some(TemporaryCopy { name, id, file: Mutex::new(Some(Arc::new(file))) });
        crate::crash::point("move temporary made");
        Ok(())
    }

    fn copy_all(&self, fs: &TieredFs, reason: MoveReason, done: &Arc<AtomicU64>, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        let file = self.tmp_file(fs)?;
        let total = self.before.size;
        let mut pacer = Pacer::new(fs, self.ino, reason);
        let mut pace = |bytes| {
            pacer.wait(bytes)?;
            let so_far = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
            if progress(so_far.min(total), total) { Ok(()) } else { Err(Errno::CANCELED) }
        };
        let (source, file) = (self.source.as_fd(), file.as_fd());
        let copied = fs.in_the_name_of(self.payer(), || copy::data(source, file, total, &mut pace))?;
        self.blame(fs, copied)
    }

    /// Whose blocks the copy takes: not those that are kept for root.
    fn payer(&self) -> (u32, u32) {
        (self.before.uid, self.before.gid)
    }

    /// Records a failed copy against the side that failed.
    fn blame<T>(&self, fs: &TieredFs, copied: copy::CopyResult<T>) -> Result<T> {
        copied.map_err(|failed| match failed {
            copy::CopyError::Source(error) => {
                fs.note_failure(self.to.other(), error);
                error
            }
            copy::CopyError::Target(error) => {
                fs.note_failure(self.to, error);
                error
            }
            copy::CopyError::Ended(error) => error,
        })
    }

    /// Copies again what was written meanwhile, until it is little.
    fn catch_up(&self, fs: &TieredFs, open: &Arc<OpenInode>, reason: MoveReason, goes_on: &mut dyn FnMut() -> bool) -> Result<()> {
        let file = &*self.tmp_file(fs)?;
        for _ in 0..CATCH_UP_ROUNDS {
            let changed = open.track.lock().replace(ChangedRanges::default()).unwrap_or_default();
            if !changed.all && changed.bytes() <= CATCH_UP_BYTES {
                if let Some(track) = open.track.lock().as_mut() {
                    track.ranges.extend(changed.ranges);
                }
                break;
            }
            let mut pacer = Pacer::new(fs, self.ino, reason);
            let mut pace = |bytes| {
                pacer.wait(bytes)?;
                if goes_on() { Ok(()) } else { Err(Errno::CANCELED) }
            };
            self.copy_changed(fs, file, &changed, &mut pace)?;
        }
        // The bulk is safe before the writers are stopped for the rest.
        fs.noted(self.to, rustix::fs::fdatasync(file))
    }

    fn copy_changed(&self, fs: &TieredFs, file: &OwnedFd, changed: &ChangedRanges, pace: &mut copy::Pace<'_>) -> Result<()> {
        fs.in_the_name_of(self.payer(), || self.copy_changed_now(fs, file, changed, pace))?
    }

    fn copy_changed_now(&self, fs: &TieredFs, file: &OwnedFd, changed: &ChangedRanges, pace: &mut copy::Pace<'_>) -> Result<()> {
        let size = rustix::fs::fstat(&self.source)?.st_size as u64;
        if changed.all {
            rustix::fs::ftruncate(file, 0)?;
            let copied = copy::data(self.source.as_fd(), file.as_fd(), size, pace);
            return self.blame(fs, copied);
        }
        rustix::fs::ftruncate(file, size)?;
        let mut buffer = vec![0u8; copy::CHUNK];
        for (start, end) in &changed.ranges {
            let mut at = *start;
            while at < *end {
                let want = (end - at).min(copy::CHUNK as u64) as usize;
                pace(want as u64)?;
                match self.blame(fs, copy::range(self.source.as_fd(), file.as_fd(), at, &mut buffer[..want]))? {
                    0 => break,
                    copied => at += copied,
                }
            }
        }
        Ok(())
    }

    fn dress(&self, fs: &TieredFs, file: &OwnedFd) -> std::result::Result<(), AttributeLoss> {
        let stat = fs.tier(self.to.other()).stat_fd(self.source.as_fd())?;
        fs.mark_or_warn(self.to, file.as_fd(), self.ino)?;
        if fs.tier(self.to).abilities.keeps_all() {
            copy::attributes(self.source.as_fd(), file.as_fd(), &stat)
        } else {
            copy::attributes_checked(self.source.as_fd(), file.as_fd(), &stat)
        }
    }

    /// Why the other side cannot hold this file, found out before anything is copied.
    fn does_not_fit(&self, fs: &TieredFs) -> Result<Option<&'static str>> {
        let target = fs.tier(self.to);
        if target.abilities.keeps_all() {
            return Ok(None);
        }
        if target.abilities.largest_file_bytes.is_some_and(|largest| self.before.size > largest) {
            return Ok(Some(TOO_LARGE));
        }
        if !target.abilities.any_name {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match rustix::fs::openat(&target.tmp, &*self.place.name, flags, Mode::RUSR | Mode::WUSR) {
                Ok(_) => target.unlink(target.tmp.as_fd(), &self.place.name)?,
                // Somebody else tries the same name.
                Err(Errno::EXIST) => {}
                // A new file in a directory that is there: only its name can be what does not exist.
                Err(error) if bad_name(error) || error == Errno::NOENT => return Ok(Some(BAD_NAME)),
                Err(error) => return Err(error),
            }
        }
        match self.dress(fs, &*self.tmp_file(fs)?) {
            Ok(()) => Ok(None),
            Err(AttributeLoss::Cannot(why)) => Ok(Some(why)),
            Err(AttributeLoss::Failed(error)) => Err(error),
        }
    }

    /// Removes the temporary of a move that did not end well.
    pub(crate) fn clean_up(&mut self, fs: &TieredFs) {
        if let Some(tmp) = self.tmp.take() {
            let target = fs.tier(self.to);
            // Closed first; no other has this name, and a number may not be permanent.
            drop(tmp.file);
            let _ = target.unlink(target.tmp.as_fd(), &tmp.name);
        }
    }
}

/// How the last steps ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlacementEnd {
    Done,
    /// It is on the SSD, and the HDD's original could not be removed.
    OnBothSides,
    Dropped,
}

/// The last steps of a move, from a complete copy on.
struct PlacementStep<'a> {
    copying: &'a CopyJob,
    fs: &'a TieredFs,
    open: Option<&'a Arc<OpenInode>>,
    target_dir: Arc<DirPair>,
    placed: OnceCell<NamedCopy>,
    /// What the journal has for it: where recovery looks for the copy.
    path: &'a [u8],
    /// In the journal.
    entry: u64,
}

/// The copy by the name it was given.
struct NamedCopy {
    ino: u64,
    /// Opened by that name where the handle that made the copy may stand for another inode: what is written now goes here.
    file: Option<Arc<OwnedFd>>,
    /// Keeps the number that it has by that name.
    _pin: Option<OwnedFd>,
}

impl PlacementStep<'_> {
    /// Gives the copy its name. After an error it does not have it.
    fn place(&self, to: BorrowedFd<'_>) -> Result<InodeId> {
        let (fs, copying) = (self.fs, self.copying);
        let target = fs.tier(copying.to);
        let name = &copying.place.name;
        let tmp = copying.tmp()?;
        copying.close_tmp(fs)?;
        let id = fs.keeping_times(copying.place.parent, target, to, || target.place((&tmp.name, tmp.id), to, name, copying.ino))?;
        match self.open_placed(to, id.ino) {
            Ok(placed) => {
                let _ = self.placed.set(placed);
                Ok(id)
            }
            Err(error) => {
                let undone = fs.keeping_times(copying.place.parent, target, to, || target.unlink(to, name));
                if undone.is_err() && copying.to == TierName::Hdd {
                    fs.mover.left_behind.lock().insert(tmp.id.ino);
                }
                Err(error)
            }
        }
    }

    fn open_placed(&self, to: BorrowedFd<'_>, ino: u64) -> Result<NamedCopy> {
        let target = self.fs.tier(self.copying.to);
        let mut placed = NamedCopy { ino, file: None, _pin: None };
        if target.keeps_inodes() && target.abilities.naming_method() == NamingMethod::Rename {
            return Ok(placed);
        }
        let name = &self.copying.place.name;
        placed._pin = Some(target.open_at(to, name, NAME_ONLY)?);
        if self.open.is_some() {
            placed.file = match target.open_at(to, name, OFlags::RDWR | OFlags::NONBLOCK) {
                // An ordinary user's file that may not be written by opening it again.
                Err(Errno::ACCESS) => None,
                other => Some(Arc::new(other?)),
            };
        }
        Ok(placed)
    }

    /// The copy, to be written to.
    fn file(&self) -> Result<Arc<OwnedFd>> {
        match self.placed.get().and_then(|placed| placed.file.clone()) {
            Some(file) => Ok(file),
            None => self.copying.tmp_file(self.fs),
        }
    }

    fn target_ino(&self) -> Result<u64> {
        self.placed.get().map(|placed| placed.ino).ok_or(Errno::STALE)
    }

    fn demote(&self) -> Result<PlacementEnd> {
        let (fs, copying) = (self.fs, self.copying);
        let (ssd, hdd) = (fs.tier(TierName::Ssd), fs.tier(TierName::Hdd));
        let target = self.target_dir.must(TierName::Hdd)?;
        {
            let _alone = self.alone();
            if !self.is_at_its_path() || !self.unchanged()? {
                return Ok(PlacementEnd::Dropped);
            }
            let on_hdd = fs.noted(TierName::Hdd, self.place(target))?;
            let duplicate = Duplicate { dir: self.target_dir.clone(), name: copying.place.name.clone(), on_hdd };
            fs.mover.duplicates.lock().insert(copying.ino, duplicate);
        }
        crate::crash::point("demotion placed");
        let synced = fs.noted(TierName::Hdd, hdd.sync_dir(target));
        let _gate = fs.gate(copying.ino).write();
        let mine = fs.mover.duplicates.lock().remove(&copying.ino);
        let Some(duplicate) = mine else { return Ok(PlacementEnd::Dropped) };
        let committed = synced.and_then(|()| {
            self.with_writers_stopped(|| {
                let source = copying.source_dir.must(TierName::Ssd)?;
                let name = &copying.place.name;
                let gone = fs.keeping_times(copying.place.parent, ssd, source, || ssd.unlink_if(source, name, copying.before.id()));
                if !fs.noted(TierName::Ssd, gone)? {
                    // Something else has the name: it has no copy.
                    return Err(Errno::STALE);
                }
                crate::crash::point("demotion unlinked");
                if let Err(error) = ssd.sync_dir(source) {
                    // The name is gone, so the HDD's copy is the file now; but the name may come back after a
                    // power cut, and recovery must not then take the HDD's for a needless copy.
                    fs.note_failure(TierName::Ssd, error);
                    if let Err(error) = fs.journal.end(self.entry, true) {
                        // No reason to give up the copy: it is the only file now.
                        fs.warn(format!(".hotshelf/journal cannot be written: {error}"));
                    }
                }
                Ok(())
            })
        });
        match committed {
            Ok(true) => {
                fs.placement.left(copying.ino);
                self.changed_sides([0, self.target_ino()?]);
                // On the HDD only the kernel's interest keeps a node.
                fs.nodes.keep(copying.ino, KeptFor::Policy, false);
                Ok(PlacementEnd::Done)
            }
            Ok(false) => {
                fs.remove_duplicate(&duplicate);
                Ok(PlacementEnd::Dropped)
            }
            Err(error) => {
                fs.remove_duplicate(&duplicate);
                Err(error)
            }
        }
    }

    fn promote(&self) -> Result<PlacementEnd> {
        let (fs, copying) = (self.fs, self.copying);
        let (ssd, hdd) = (fs.tier(TierName::Ssd), fs.tier(TierName::Hdd));
        let target = self.target_dir.must(TierName::Ssd)?;
        let mut safe = Ok(());
        {
            let _alone = self.alone();
            if !self.is_at_its_path() {
                return Ok(PlacementEnd::Dropped);
            }
            let committed = self.with_writers_stopped(|| {
                fs.noted(TierName::Ssd, self.place(target))?;
                crate::crash::point("promotion placed");
                // From here on the SSD's file counts; it must not be lost again once it may be written to.
                safe = fs.noted(TierName::Ssd, ssd.sync_dir(target));
                Ok(())
            })?;
            if !committed {
                return Ok(PlacementEnd::Dropped);
            }
            // A call that removes the name from now on removes the original first.
            let (dir, name) = (copying.source_dir.clone(), copying.place.name.clone());
            fs.mover.duplicates.lock().insert(copying.ino, Duplicate { dir, name, on_hdd: copying.before.id() });
            self.changed_sides([self.target_ino()?, 0]);
            // While nobody can remove it: the policy would remember a file that is gone.
            let (last_open, opens) = fs.placement.heat(copying.ino).unwrap_or((now_s(), 1));
            fs.placement.arrived(copying.ino, copying.before.size, last_open, opens);
            fs.nodes.keep(copying.ino, KeptFor::Policy, true);
        }
        crate::crash::point("promotion synced");
        // A name that may not be safe is no reason to give up the copy on the HDD.
        let removed = safe.and_then(|()| {
            let source = copying.source_dir.must(TierName::Hdd)?;
            let name = &copying.place.name;
            let gone = fs.keeping_times(copying.place.parent, hdd, source, || {
                hdd.as_owner(source, || hdd.unlink_if(source, name, copying.before.id()))
            });
            fs.noted(TierName::Hdd, gone)?;
            crate::crash::point("promotion unlinked");
            fs.noted(TierName::Hdd, hdd.sync_dir(source))
        });
        {
            // Whoever found it in the list and removes it too has done so when the gate opens.
            let _gate = fs.gate(copying.ino).write();
            fs.mover.duplicates.lock().remove(&copying.ino);
        }
        if let Err(error) = removed {
            let path = fs.nodes.path(copying.ino).unwrap_or_default();
            let shown = String::from_utf8_lossy(&path).into_owned();
            fs.warn(format!("{shown} is on the SSD now, but its original on the HDD stays: {error}; the next mount removes it"));
            fs.note_conflict(&path);
            return Ok(PlacementEnd::OnBothSides);
        }
        Ok(PlacementEnd::Done)
    }

    /// Nobody uses the file, and no directory above it is renamed, between a look at its path and the note of its copy, which such
    /// a rename would remove. Other threads hold gates when they lock the shape: so this one releases it repeatedly.
    fn alone(&self) -> (MutexGuard<'_, ()>, RwLockWriteGuard<'_, ()>) {
        loop {
            let shape = self.fs.shape.lock();
            if let Some(gate) = self.fs.gate(self.copying.ino).try_write_for(GATE_WAIT) {
                return (shape, gate);
            }
        }
    }

    fn is_at_its_path(&self) -> bool {
        self.fs.nodes.path(self.copying.ino).as_deref() == Some(self.path)
    }

    /// Whether the file is still the one that was copied, under the name it had. The caller holds its gate, so that nobody
    /// can open it meanwhile.
    fn unchanged(&self) -> Result<bool> {
        let copying = self.copying;
        let place = self.fs.nodes.place(copying.ino);
        let same_name = place.is_some_and(|place| place == copying.place);
        let now = self.fs.tier(copying.to.other()).stat_fd(copying.source.as_fd())?;
        Ok(same_name && now.nlink == 1 && self.all_is_known(&now))
    }

    /// Whether what was written since the copy began is in the copy, or on the list of the open file that the move knows.
    fn all_is_known(&self, now: &Stat) -> bool {
        let untouched = !now.changed_since(&self.copying.before);
        let current = self.fs.opens.lock().get(&self.copying.ino).cloned();
        match (self.open, current) {
            (None, None) => untouched,
            (Some(known), Some(current)) => Arc::ptr_eq(known, &current),
            // Closed since: what else was done to it is on nobody's list.
            (Some(_), None) => untouched,
            // Opened since, maybe for the second time: its writes are on nobody's list.
            (_, Some(_)) => false,
        }
    }

    /// Does `commit` while nobody can write the file; an open file goes on with the copy. `false`: it
    /// changed in a way that was not copied.
    fn with_writers_stopped(&self, commit: impl FnOnce() -> Result<()>) -> Result<bool> {
        if !self.unchanged()? {
            return Ok(false);
        }
        let Some(open) = self.open else { return commit().map(|()| true) };
        let mut io = open.io.write();
        if open.held_in_place() {
            return Ok(false);
        }
        let changed = open.track.lock().replace(ChangedRanges::default()).unwrap_or_default();
        let file = self.file()?;
        // Little, and the writers wait.
        self.copying.copy_changed(self.fs, &file, &changed, &mut |_| Ok(()))?;
        self.copying.dress(self.fs, &file)?;
        self.fs.noted(self.copying.to, rustix::fs::fsync(&*file))?;
        drop(file);
        commit()?;
        // By its name, if it has got that only now.
        let file = self.file()?;
        io.tier = self.copying.to;
        io.backing = self.target_ino()?;
        io.rd = None;
        io.wr = None;
        io.rw = Some(file);
        Ok(true)
    }

    fn changed_sides(&self, backing: [u64; 2]) {
        self.fs.nodes.change(self.copying.ino, |node| node.backing = backing.into());
        // Kept when the file lost another name, it is a handle on the copy that is gone.
        let _held = self.fs.held.lock().remove(&self.copying.ino);
        self.fs.moves_seen.fetch_add(1, Ordering::AcqRel);
    }
}

/// Keeps a copy within its limits and out of the way.
struct Pacer<'a> {
    fs: &'a TieredFs,
    ino: u64,
    urgent: bool,
    last: Instant,
}

impl<'a> Pacer<'a> {
    fn new(fs: &'a TieredFs, ino: u64, reason: MoveReason) -> Pacer<'a> {
        // Somebody waits for these.
        let urgent = matches!(reason, MoveReason::Full | MoveReason::OnOpen) || fs.space.tight();
        Pacer { fs, ino, urgent, last: Instant::now() }
    }

    fn wait(&mut self, bytes: u64) -> Result<()> {
        if self.fs.mover.stopping() || self.fs.is_in_place(self.ino) {
            return Err(Errno::CANCELED);
        }
        self.fs.mover.spend(bytes);
        if !self.urgent && !self.fs.opens.lock().is_empty() {
            // Others are at work: use no more than half of the time.
            std::thread::sleep(self.last.elapsed().min(Duration::from_millis(50)));
        }
        self.last = Instant::now();
        Ok(())
    }
}
