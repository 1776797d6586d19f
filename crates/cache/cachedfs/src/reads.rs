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
/// use cachedfs::{Begun, Config, Instance, Options, Outcome, Reads};
/// use rustix::fs::{CWD, Mode, OFlags};
/// let instance = Instance::open(&Config::default())?;
/// let file = instance.open_file(CWD, "data".as_ref(), OFlags::RDONLY, Mode::empty(), &Options::default())?;
/// let mut reads = Reads::new(32);
/// for page in 0..32 {
///     if let Begun::Ended(mut ended) = reads.begin(&file, page * 4096, vec![0; 4096], page)
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
    /// Of the instance whose file was read last; none before the first.
    engine: ManuallyDrop<Option<DeviceReader<T, B>>>,
}

/// A read that has ended.
#[derive(Debug)]
pub struct Ended<T, B> {
    /// The token that the caller gave.
    pub token: T,
    /// The buffer that the caller gave. Its content is undefined after [`Outcome::Slow`].
    pub buffer: B,
    /// The result of the read.
    pub outcome: Outcome,
}

/// What became of a read.
#[derive(Debug)]
#[must_use]
pub enum SubmitResult<T, B> {
    /// It ended at once.
    Ended(Ended<T, B>),
    /// It will end: [`AsyncReader::take`].
    UnderWay,
    /// No place: as many as it was made for are under way, or ended and not taken.
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

/// A file for several reads in a row with [`AsyncReader::begin_next`]. Not to be kept between calls.
#[derive(Clone, Copy)]
pub struct Reading<'a>(Option<&'a Arc<Cached>>);

impl<'a> Reading<'a> {
    /// Announces a read at this byte, some reads ahead, so that its metadata can be prefetched. None: nothing to prefetch; the read starts
    /// with [`AsyncReader::begin_next`].
    #[inline(always)]
    pub fn expect(self, at: u64) -> Option<PreparedRead<'a>> {
        let file = self.0?;
        Some(PreparedRead { file, read: file.open.expect(at)? })
    }
}

/// A read that was announced. Not to be kept.
#[derive(Clone, Copy, Debug)]
pub struct PreparedRead<'a> {
    file: &'a Arc<Cached>,
    read: engine::PreparedRead<'a>,
}

impl PreparedRead<'_> {
    /// It is one of the next. Only a hint.
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
    /// Creates it for so many reads, in flight or completed and not taken.
    pub fn new(depth: u32) -> AsyncReader<T, B> {
        AsyncReader::with(depth, AsyncReaderOptions::default())
    }

    /// Creates it with options. If it is limited to one thread and another thread drops it, reads in flight are waited for only if the
    /// first thread has ended; until then the SSD's file stays open.
    pub fn with(depth: u32, options: AsyncReaderOptions) -> AsyncReader<T, B> {
        AsyncReader { depth, options, generation: forks::now(), memory: Vec::new(), engine: ManuallyDrop::new(None) }
    }

    /// Memory into which the device itself writes pages of the SSD that are read whole, at multiples of their size: without a copy. Else
    /// it is like any other. It is there as long as this object, or longer if the device does not let go of it. A read into it waits
    /// for a device that hangs until its queue was reset, and may be [`Outcome::Lost`].
    ///
    /// # Errors
    /// No memory.
    pub fn memory(&mut self, bytes: usize) -> io::Result<Arena> {
        let arena = Arena::private(bytes)?;
        self.memory.push(arena.clone());
        if let Some(engine) = &mut *self.engine {
            engine.know(&arena);
        }
        Ok(arena)
    }

    /// Begins a read as [`File::read_at`] has it. The device hears of it at the next `ring`, `take` or `wait`.
    pub fn begin(&mut self, file: &File, at: u64, buffer: B, token: T) -> SubmitResult<T, B> {
        self.begin_next(self.reading(file), at, buffer, token)
    }

    /// Returns a file as [`AsyncReader::begin_next`] takes it.
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

    /// Not in a child of the process that made it, whose ring it is. (Before the first open no generation is known.)
    #[inline]
    fn is_here(&mut self) -> bool {
        if self.engine.is_none() {
            self.generation = forks::now();
        }
        self.generation == forks::now()
    }

    /// None: there is one of another instance, which is busy.
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

    /// Rings, and sees what has ended, unless some that were seen were not taken.
    pub fn poll(&mut self) {
        if let Some(engine) = &mut *self.engine {
            engine.poll();
        }
    }

    /// Rings, waits until one may have ended, or for `at_most`, and sees which have. Returns early at will; at once if some that were
    /// seen were not taken.
    pub fn wait(&mut self, at_most: Duration) {
        if let Some(engine) = &mut *self.engine {
            engine.wait(at_most);
        }
    }

    /// Returns a descriptor for poll(2). It is readable when a read may have completed since [`AsyncReader::arm`] returned `Waiting`.
    /// None: there
    /// is no such descriptor.
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
        // What is another process's is not ours to give back.
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
