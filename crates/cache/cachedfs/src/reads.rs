//! Asynchronous reads.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use block::{Arena, Armed};
use datapath::engine::{self, Open};

pub use datapath::engine::{AsyncReaderOptions, Outcome};

use crate::cached::Cached;
use crate::file::File;
use crate::forks;

/// Asynchronous reads of cached files. Hits in memory complete at once; hits on the SSD go through one queue, many pages in one submission.
/// A read that needs the backing file, or would have to wait, returns [`Outcome::Slow`]: the caller then calls [`File::read_at`] in a
/// separate thread.
///
/// `B` is the buffer, which the read owns until it completes; `T` is a token of the caller. One thread at a time may use it, in the process
/// that created it: in a forked child every read is slow. [`AsyncReader::with`] takes the promise that only one thread uses it.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use cachedfs::{AsyncReader, Config, Instance, Options, Outcome, SubmitResult};
/// use rustix::fs::{CWD, Mode, OFlags};
/// let instance = Instance::open(&Config::default())?;
/// let file = instance.open_file(CWD, "data".as_ref(), OFlags::RDONLY, Mode::empty(), &Options::default())?;
/// let mut reads = AsyncReader::new(32);
/// for page in 0..32 {
///     if let SubmitResult::Ended(mut ended) = reads.begin(&file, page * 4096, vec![0; 4096], page)
///         && ended.outcome == Outcome::Slow
///     {
///         file.read_at(page * 4096, &mut ended.buffer)?;
///     }
/// }
/// while reads.under_way() > 0 {
///     reads.wait(std::time::Duration::MAX);
///     while let Some(ended) = reads.take() {
///         println!("page {}: {:?}", ended.token, ended.outcome);
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub struct AsyncReader<T, B> {
    depth: u32,
    options: AsyncReaderOptions,
    generation: u32,
    memory: Vec<Arena>,
    /// The reader of the instance whose file was read last; none before the first read.
    engine: ManuallyDrop<Option<DeviceReader<T, B>>>,
}

/// A read that has completed or needs the slow path.
#[derive(Debug)]
pub struct Ended<T, B> {
    /// The token that the caller gave.
    pub token: T,
    /// The buffer that the caller gave. Its content is undefined after [`Outcome::Slow`].
    pub buffer: B,
    /// The result of the read.
    pub outcome: Outcome,
}

/// The result of starting a read.
#[derive(Debug)]
#[must_use]
pub enum SubmitResult<T, B> {
    /// The read has completed at once.
    Ended(Ended<T, B>),
    /// The read is in flight: [`AsyncReader::take`] returns its completion.
    UnderWay,
    /// The queue is full: its depth counts reads in flight and completed reads that were not taken.
    Full(T, B),
}

type DeviceReader<T, B> = engine::AsyncReader<Share, Job<T, B>>;

struct Share(Arc<Cached>);

impl AsRef<Open> for Share {
    fn as_ref(&self) -> &Open {
        &self.0.open
    }
}

struct Job<T, B> {
    buffer: B,
    token: T,
}

impl<T, B: AsMut<[u8]>> AsMut<[u8]> for Job<T, B> {
    #[inline]
    fn as_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut()
    }
}

/// A file for several reads in a row with [`AsyncReader::begin_next`]. Do not keep it between calls.
#[derive(Clone, Copy)]
pub struct Reading<'a>(Option<&'a Arc<Cached>>);

impl<'a> Reading<'a> {
    /// Announces a read at this byte, some reads ahead, so that its metadata can be prefetched. Returns none if there is nothing to
    /// prefetch; the read starts with [`AsyncReader::begin_next`].
    #[inline(always)]
    pub fn expect(self, at: u64) -> Option<PreparedRead<'a>> {
        let file = self.0?;
        Some(PreparedRead { file, read: file.open.expect(at)? })
    }
}

/// A read that was announced. Do not keep it.
#[derive(Clone, Copy, Debug)]
pub struct PreparedRead<'a> {
    file: &'a Arc<Cached>,
    read: engine::PreparedRead<'a>,
}

impl PreparedRead<'_> {
    /// Hints that the read is one of the next, to prefetch more of its metadata.
    #[inline]
    pub fn is_next(&self) {
        self.read.is_next();
    }
}

#[inline]
fn begun<T, B>(begun: engine::SubmitResult<Job<T, B>>) -> SubmitResult<T, B> {
    match begun {
        engine::SubmitResult::Ended(job, outcome) => SubmitResult::Ended(ended((job, outcome))),
        engine::SubmitResult::UnderWay => SubmitResult::UnderWay,
        engine::SubmitResult::Full(job) => SubmitResult::Full(job.token, job.buffer),
    }
}

#[inline]
fn ended<T, B>((job, outcome): (Job<T, B>, Outcome)) -> Ended<T, B> {
    Ended { token: job.token, buffer: job.buffer, outcome }
}

impl<T, B: AsMut<[u8]>> AsyncReader<T, B> {
    /// Creates a reader for this number of reads, in flight or completed and not taken.
    pub fn new(depth: u32) -> AsyncReader<T, B> {
        AsyncReader::with(depth, AsyncReaderOptions::default())
    }

    /// Creates a reader with options. If it is limited to one thread and another thread drops it, it waits for reads in flight only if the
    /// first thread has ended; until then the SSD's file stays open.
    pub fn with(depth: u32, options: AsyncReaderOptions) -> AsyncReader<T, B> {
        AsyncReader { depth, options, generation: forks::now(), memory: Vec::new(), engine: ManuallyDrop::new(None) }
    }

    /// Allocates memory into which the device itself can write pages of the SSD, without a copy: pages that are read whole, at multiples of
    /// their size. For other reads it is ordinary memory. It lives as long as this object, or longer if the device does not release it. If
    /// the device hangs, a read into it waits until its queue was reset, and may be [`Outcome::Lost`].
    ///
    /// # Errors
    /// There is no memory.
    pub fn memory(&mut self, bytes: usize) -> io::Result<Arena> {
        let arena = Arena::private(bytes)?;
        self.memory.push(arena.clone());
        if let Some(engine) = &mut *self.engine {
            engine.know(&arena);
        }
        Ok(arena)
    }

    /// Starts a read as [`File::read_at`] does. The device sees it at the next `ring`, `take` or `wait`.
    pub fn begin(&mut self, file: &File, at: u64, buffer: B, token: T) -> SubmitResult<T, B> {
        self.begin_next(self.reading(file), at, buffer, token)
    }

    /// Returns a file for [`AsyncReader::begin_next`].
    pub fn reading<'a>(&self, file: &'a File) -> Reading<'a> {
        Reading(file.to_read())
    }

    /// Starts one of several reads of the same file, which is checked only once.
    #[inline]
    pub fn begin_next(&mut self, file: Reading<'_>, at: u64, buffer: B, token: T) -> SubmitResult<T, B> {
        let Some(cached) = file.0.filter(|_| self.is_here()) else { return slow(buffer, token) };
        let Some(engine) = self.engine_for(cached) else { return slow(buffer, token) };
        begun(engine.begin(&cached.open, || Share(Arc::clone(cached)), at, Job { buffer, token }))
    }

    /// Starts a read that was announced.
    #[inline]
    pub fn submit_prepared(&mut self, PreparedRead { file, read }: &PreparedRead<'_>, buffer: B, token: T) -> SubmitResult<T, B> {
        if !self.is_here() {
            return slow(buffer, token);
        }
        let Some(engine) = self.engine_for(file) else { return slow(buffer, token) };
        begun(engine.submit_prepared(read, || Share(Arc::clone(file)), Job { buffer, token }))
    }

    /// Returns false in a child of the process that created it, which owns the ring. (Before the first open no generation is known.)
    #[inline]
    fn is_here(&mut self) -> bool {
        if self.engine.is_none() {
            self.generation = forks::now();
        }
        self.generation == forks::now()
    }

    /// Returns none if a reader of another instance is busy.
    #[inline]
    fn engine_for(&mut self, file: &Cached) -> Option<&mut DeviceReader<T, B>> {
        if self.engine.as_ref().is_none_or(|engine| !Arc::ptr_eq(engine.engine(), file.engine())) {
            self.make_engine_for(file)?;
        }
        self.engine.as_mut()
    }

    #[cold]
    fn make_engine_for(&mut self, file: &Cached) -> Option<()> {
        if self.engine.as_ref().is_some_and(|engine| !engine.is_idle()) {
            return None;
        }
        *self.engine = None;
        let mut engine = engine::AsyncReader::new(file.engine(), self.depth, self.options);
        self.memory.iter().for_each(|memory| engine.know(memory));
        *self.engine = Some(engine);
        Some(())
    }

    /// Returns the number of reads in flight.
    pub fn under_way(&self) -> usize {
        self.engine.as_ref().map_or(0, engine::AsyncReader::under_way)
    }

    /// Submits all started reads to the device.
    pub fn ring(&mut self) {
        if let Some(engine) = &mut *self.engine {
            engine.ring();
        }
    }

    /// Returns a completed read, if there is one. Submits and polls if necessary.
    pub fn take(&mut self) -> Option<Ended<T, B>> {
        self.engine.as_mut()?.take().map(ended)
    }

    /// Returns a read that [`AsyncReader::poll`] or [`AsyncReader::wait`] found completed. Does not poll.
    #[inline]
    pub fn take_seen(&mut self) -> Option<Ended<T, B>> {
        self.engine.as_mut()?.take_seen().map(ended)
    }

    /// Rings, and polls for completions, unless completions that were found before were not taken.
    pub fn poll(&mut self) {
        if let Some(engine) = &mut *self.engine {
            engine.poll();
        }
    }

    /// Rings, waits until a read may have completed, or for `at_most`, and polls. May return early; returns at once if completions that
    /// were found before were not taken.
    pub fn wait(&mut self, at_most: Duration) {
        if let Some(engine) = &mut *self.engine {
            engine.wait(at_most);
        }
    }

    /// Returns a descriptor for poll(2), or none if there is no such descriptor. It is readable when a read may have completed since
    /// [`AsyncReader::arm`] returned `Waiting`.
    pub fn event(&self) -> Option<BorrowedFd<'_>> {
        self.engine.as_ref()?.event()
    }

    /// Arms the descriptor of [`AsyncReader::event`].
    pub fn arm(&mut self) -> Armed {
        self.engine.as_mut().map_or(Armed::Ready, engine::AsyncReader::arm)
    }
}

fn slow<T, B>(buffer: B, token: T) -> SubmitResult<T, B> {
    SubmitResult::Ended(Ended { token, buffer, outcome: Outcome::Slow })
}

impl<T, B> Drop for AsyncReader<T, B> {
    fn drop(&mut self) {
        // A forked child must not release what its parent owns.
        if self.generation == forks::now() {
            *self.engine = None;
        }
    }
}

impl<T, B> std::fmt::Debug for AsyncReader<T, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reads({} at most)", self.depth)
    }
}
