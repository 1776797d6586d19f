//! An open file that goes through the cache, in one process.
//!
//! *Pass-through*: while it is in force, calls go to the file as they are, past the engine. Before the first of them that writes,
//! what is cached of the file is dropped; when the mode changes while one is under way, what it wrote is dropped once more;
//! and when it is over, the file is looked at as if others had written it.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use datapath::shelf::{Advice, How, Open, OpenFailed, Shelf};
use pagecache::shared::Pin;
use parking_lot::Mutex;
use rustix::fs::fstat;
use rustix::io::Errno;
use ssdcache::{Mode, PAGE_BYTES};

use crate::attach::Attachment;
use crate::below::{Local, path_of, stamp_of};
use crate::watch::Watched;

/// See the module.
pub struct Cached {
    /// The engine's.
    pub open: Open,
    /// The file below, to read and, if we may, to write.
    pub local: Arc<Local>,
    /// Of the process that took it in.
    pub generation: u32,
    /// The last change of the mode that was looked at; and the same again if the file goes through the cache since.
    changes: AtomicU32,
    is_through: AtomicU32,
    is_bare: AtomicBool,
    is_dropped: AtomicBool,
    settling: Mutex<()>,
    age: Option<(Duration, Mutex<Instant>)>,
    watched: OnceLock<i32>,
    /// Pages that stay.
    pins: Mutex<Vec<Pin>>,
    part: Arc<Attachment>,
    /// Dropped last.
    _counted: Counted,
}

/// One of those that are open in this process.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl std::fmt::Debug for Cached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cached({:?}, {:?})", self.open.key(), self.open.mode())
    }
}

/// What is opened.
#[derive(Debug)]
pub struct Opening {
    /// The file below.
    pub local: Arc<Local>,
    /// As the rules have it.
    pub how: How,
    /// How it will be read.
    pub advice: Advice,
    /// Its pages stay in memory, as far as there is room for such.
    pub pin: bool,
    /// After a conflict, what is below counts.
    pub discard: bool,
    /// What it writes is below after so long.
    pub dirty_age: Option<Duration>,
}

impl Cached {
    /// Takes it in.
    ///
    /// # Errors
    /// As [`OpenFailed`] says.
    pub fn open(to: &Arc<Attachment>, opening: &Opening, count: &Arc<AtomicUsize>) -> Result<Arc<Cached>, OpenFailed> {
        let Opening { local, how, advice, pin, discard, dirty_age } = opening;
        let key = crate::key::key_of(local.fd()).map_err(OpenFailed::Failed)?;
        let path = path_of(local.fd()).ok_or(OpenFailed::Failed(Errno::NOENT))?;
        let open = || to.shelf.open(key, &path, *how, Arc::clone(local) as Arc<dyn datapath::shelf::Below>);
        let open = match open() {
            Err(OpenFailed::Conflict) if *discard => {
                to.shelf.discard(key, stamp_of(&fstat(local.fd()).map_err(OpenFailed::Failed)?))?;
                open()?
            }
            opened => opened?,
        };
        count.fetch_add(1, Ordering::AcqRel);
        let counted = Counted(Arc::clone(count));
        let made = Arc::new(Cached {
            changes: AtomicU32::new(to.shelf.mode_changes().wrapping_sub(1)),
            is_through: AtomicU32::new(to.shelf.mode_changes().wrapping_sub(1)),
            is_bare: AtomicBool::new(false),
            is_dropped: AtomicBool::new(false),
            settling: Mutex::new(()),
            local: Arc::clone(local),
            generation: crate::forks::now(),
            age: dirty_age.map(|age| (age, Mutex::new(Instant::now()))),
            watched: OnceLock::new(),
            pins: Mutex::default(),
            part: Arc::clone(to),
            _counted: counted,
            open,
        });
        let watched: Weak<dyn Watched> = Arc::downgrade(&made) as _;
        if let Some(number) = to.watch.add(local.fd(), &watched) {
            let _ = made.watched.set(number);
        }
        if dirty_age.is_some() {
            to.watch.add_timed(&watched);
        }
        made.open.advise(*advice);
        let is_bare = made.is_bare().map_err(OpenFailed::Failed)?;
        if *pin && !is_bare {
            made.keep_pages();
        }
        Ok(made)
    }

    /// The engine.
    #[inline]
    pub fn shelf(&self) -> &Arc<Shelf> {
        self.open.shelf()
    }

    /// Whether calls go through the cache, for certain.
    #[inline]
    pub fn is_through(&self) -> bool {
        self.is_through.load(Ordering::Acquire) == self.shelf().mode_changes()
    }

    /// Whether calls go to the file as they are.
    #[inline]
    pub fn is_bare(&self) -> Result<bool, Errno> {
        if self.changes.load(Ordering::Acquire) == self.shelf().mode_changes() {
            return Ok(self.is_bare.load(Ordering::Relaxed));
        }
        self.settle()
    }

    /// The mode changed since the last call.
    #[cold]
    #[inline(never)]
    fn settle(&self) -> Result<bool, Errno> {
        let _settling = self.settling.lock();
        loop {
            let changes = self.shelf().mode_changes();
            let is_bare = self.open.mode() == Mode::PassThrough;
            let was_bare = self.is_bare.swap(is_bare, Ordering::AcqRel);
            if is_bare != was_bare && self.watched.get().is_some() {
                self.part.watch.mind_writes(self.fd(), !is_bare);
            }
            self.is_dropped.store(false, Ordering::Release);
            if was_bare {
                self.look_below()?;
            }
            self.changes.store(changes, Ordering::Release);
            self.is_through.store(if is_bare { changes.wrapping_sub(1) } else { changes }, Ordering::Release);
            // Somebody else who has the file open may have settled meanwhile, as it is now.
            if self.shelf().mode_changes() == changes {
                return Ok(is_bare);
            }
        }
    }

    /// Looks whether somebody else changed the file.
    ///
    /// # Errors
    /// ESTALE: and there were changes of ours.
    pub fn look_below(&self) -> Result<(), Errno> {
        self.open.look_below().map_err(|failed| match failed {
            OpenFailed::Conflict => Errno::STALE,
            OpenFailed::Failed(errno) => errno,
            _ => Errno::IO,
        })
    }

    /// A call that changes the file past the cache: in pass-through. `range`: of bytes.
    ///
    /// # Errors
    /// What was cached could not be dropped, or the call's own.
    #[inline]
    pub fn past<T>(&self, range: std::ops::Range<u64>, call: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        if !self.is_dropped.load(Ordering::Acquire) {
            self.drop_all()?;
        }
        let result = call();
        if self.changes.load(Ordering::Acquire) != self.shelf().mode_changes() {
            self.open.drop_pages(range.start / PAGE_BYTES as u64..range.end.div_ceil(PAGE_BYTES as u64))?;
        }
        result
    }

    /// Before the first change past the cache.
    #[cold]
    #[inline(never)]
    fn drop_all(&self) -> Result<(), Errno> {
        self.open.clean()?;
        self.open.discard()?;
        self.is_dropped.store(true, Ordering::Release);
        Ok(())
    }

    /// Reads all its pages and pins them, until a quarter of the memory is pinned by this process.
    fn keep_pages(&self) {
        let most = self.shelf().sizes().frames.frames as usize / 4;
        let mut pins = self.pins.lock();
        for page in 0..self.open.size().div_ceil(PAGE_BYTES as u64) {
            if self.part.pinned.fetch_add(1, Ordering::AcqRel) >= most {
                self.part.pinned.fetch_sub(1, Ordering::AcqRel);
                return;
            }
            match self.open.pin(page * PAGE_BYTES as u64, PAGE_BYTES) {
                Ok((pin, ..)) => pins.push(pin),
                // No room, or it cannot be read: whoever reads it is told.
                Err(_) => {
                    self.part.pinned.fetch_sub(1, Ordering::AcqRel);
                    return;
                }
            }
        }
    }

    /// Its name may be another, or gone.
    pub fn look_for_name(&self) {
        match path_of(self.fd()) {
            Some(path) => self.open.renamed(&path),
            None if fstat(self.fd()).is_ok_and(|stat| stat.st_nlink == 0) => self.open.unlinked(),
            None => {}
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.local.fd()
    }
}

impl Watched for Cached {
    fn touched(&self) {
        // A conflict stays marked, and is told by the next sync.
        let _ = self.look_below();
        self.look_for_name();
    }

    fn tick(&self, now: Instant) -> bool {
        let Some((age, last)) = &self.age else { return false };
        let mut last = last.lock();
        if now.duration_since(*last) >= *age / 2 {
            *last = now;
            // What fails is told by the next sync.
            let _ = self.open.clean();
        }
        true
    }
}

impl Drop for Cached {
    fn drop(&mut self) {
        if fstat(self.fd()).is_ok_and(|stat| stat.st_nlink == 0) {
            self.open.unlinked();
        }
        if let Some(number) = self.watched.get() {
            self.part.watch.remove(*number);
        }
        for pin in self.pins.get_mut().drain(..) {
            self.open.unpin(pin);
            self.part.pinned.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
