//! One move: the copy, and the steps that make it the file. The states are drawn in `moves`.

mod placement_step;

use std::cell::OnceCell;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::abilities::NamingMethod;
use crate::copy::{self, AttributeLoss};
use crate::dirs::DirPair;
use crate::errno::{Result, errno};
use crate::moves::job::{MoveJob, MoveOutcome, MoveReason};
use crate::nodes::NodeLocation;
use crate::open::{ChangedRanges, OpenInode};
use crate::pair::TieredFs;
use crate::path::NAME_ONLY;
use crate::persist::MoveRecord;
use crate::report::TierName;
use crate::stat::{InodeId, Stat};
use placement_step::{PlacementEnd, PlacementStep};

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
        self.give_name(fs, open, target_dir)
    }

    /// Journals the move, gives the copy its name, and removes the other side's.
    fn give_name(&mut self, fs: &TieredFs, open: Option<&Arc<OpenInode>>, target_dir: Arc<DirPair>) -> Result<MoveOutcome> {
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
        let placed_ino = step.placed.get().map_or(target.ino, |placed| placed.id.ino);
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
