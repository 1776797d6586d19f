//! Watches open files with inotify(7). After an event, the cache compares the backing file with its record.
//!
//! An event is only a hint: it comes late, network file systems send none for changes by other clients, and the number of watches is
//! limited. Open and sync always compare.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify;
use rustix::io::Errno;

/// The interval at which files with their own dirty age are checked.
const TICK: Duration = Duration::from_millis(100);
/// Events of one file that are closer together than this are handled as one.
const GATHER: Duration = Duration::from_millis(10);

/// Receives the events of a file.
pub trait Watched: Send + Sync {
    /// Handles a change of the file's data, attributes or name.
    fn touched(&self);
    /// Handles a tick of the timer. Returns whether it wants the next one.
    fn tick(&self, now: Instant) -> bool;
}

type Files = HashMap<i32, Vec<Weak<dyn Watched>>>;

struct Inner {
    fd: OwnedFd,
    stop: OwnedFd,
    files: Mutex<Files>,
    timed: Mutex<Vec<Weak<dyn Watched>>>,
}

impl Inner {
    /// Watches a file; returns the same number as before if it is watched already.
    fn watch(&self, fd: BorrowedFd<'_>, writes: bool) -> Result<i32, Errno> {
        let mut which = inotify::WatchFlags::ATTRIB | inotify::WatchFlags::MOVE_SELF;
        which.set(inotify::WatchFlags::MODIFY, writes);
        inotify::add_watch(&self.fd, format!("/proc/self/fd/{}", fd.as_raw_fd()), which)
    }
}

/// Watches open files. Without inotify it does nothing.
pub struct Watch {
    inner: Option<Arc<Inner>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Watch {
    /// Creates a watch without files and without a thread.
    pub fn new() -> Watch {
        let made = || -> Result<Inner, Errno> {
            let fd = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
            let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            Ok(Inner { fd, stop, files: Mutex::default(), timed: Mutex::default() })
        };
        Watch { inner: made().ok().map(Arc::new), thread: Mutex::new(None) }
    }

    /// Watches an open file. Returns a number for [`Watch::remove`], or none if the kernel does not watch the file.
    pub fn add(&self, fd: BorrowedFd<'_>, file: &Weak<dyn Watched>) -> Option<i32> {
        let inner = self.inner.as_ref()?;
        let mut files = inner.files.lock();
        let number = inner.watch(fd, true).ok()?;
        files.entry(number).or_default().push(Weak::clone(file));
        drop(files);
        self.begin(inner);
        Some(number)
    }

    /// Watches a directory on the path of the file: its permissions and its name.
    pub fn add_directory(&self, fd: BorrowedFd<'_>, file: &Weak<dyn Watched>) -> Option<i32> {
        let inner = self.inner.as_ref()?;
        let mut files = inner.files.lock();
        let number = inner.watch(fd, false).ok()?;
        files.entry(number).or_default().push(Weak::clone(file));
        drop(files);
        self.begin(inner);
        Some(number)
    }

    /// Sets whether writes to a watched file cause events. In pass-through mode most writes are the instance's, and each event costs time.
    pub fn mind_writes(&self, fd: BorrowedFd<'_>, have_events: bool) {
        let Some(inner) = &self.inner else { return };
        let files = inner.files.lock();
        if let Ok(number) = inner.watch(fd, have_events)
            && !files.contains_key(&number)
        {
            let _ = inotify::remove_watch(&inner.fd, number);
        }
    }

    /// Calls the file at each tick of the timer from now on.
    pub fn add_timed(&self, file: &Weak<dyn Watched>) {
        let Some(inner) = &self.inner else { return };
        inner.timed.lock().push(Weak::clone(file));
        self.begin(inner);
        wake(inner);
    }

    /// Removes one watcher of a file.
    pub fn remove(&self, number: i32) {
        let Some(inner) = &self.inner else { return };
        let mut files = inner.files.lock();
        let Some(watching) = files.get_mut(&number) else { return };
        watching.retain(|file| file.strong_count() > 0);
        if watching.is_empty() {
            files.remove(&number);
            let _ = inotify::remove_watch(&inner.fd, number);
        }
    }

    /// Starts the thread again after `stop`.
    pub fn go_on(&self) {
        if let Some(inner) = &self.inner {
            self.begin(inner);
        }
    }

    /// Stops the watching thread, and waits for its end unless it is the caller.
    pub fn stop(&self) {
        let Some(inner) = &self.inner else { return };
        let Some(thread) = self.thread.lock().take() else { return };
        let _ = rustix::io::write(&inner.stop, &STOP.to_ne_bytes());
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }

    fn begin(&self, inner: &Arc<Inner>) {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let inner = Arc::clone(inner);
            // Without a thread there is no hint.
            *thread = std::thread::Builder::new().name("hotshelf-watch".into()).spawn(move || watch(&inner)).ok();
        }
    }
}

fn wake(inner: &Inner) {
    let _ = rustix::io::write(&inner.stop, &1_u64.to_ne_bytes());
}

/// Handles events until the thread is stopped.
fn watch(inner: &Inner) {
    loop {
        let tick = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as i64 };
        let tick = if inner.timed.lock().is_empty() { None } else { Some(&tick) };
        let mut polled = [PollFd::new(&inner.fd, PollFlags::IN), PollFd::new(&inner.stop, PollFlags::IN)];
        match poll(&mut polled, tick) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        let [events, is_woken] = polled.map(|fd| fd.revents().contains(PollFlags::IN));
        if is_woken && is_stopped(inner) {
            return;
        }
        if events {
            std::thread::sleep(GATHER);
            tell(inner);
        }
        let now = Instant::now();
        let timed = std::mem::take(&mut *inner.timed.lock());
        let again = timed.into_iter().filter(|file| file.upgrade().is_some_and(|file| file.tick(now)));
        let again: Vec<_> = again.collect();
        inner.timed.lock().extend(again);
    }
}

fn is_stopped(inner: &Inner) -> bool {
    let mut count = [0; 8];
    rustix::io::read(&inner.stop, &mut count).is_ok() && u64::from_ne_bytes(count) >= STOP
}

/// The counter value that stops the thread; a wakeup adds one.
const STOP: u64 = 1 << 32;

fn tell(inner: &Inner) {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(&inner.fd, &mut buffer);
    let mut numbers = Vec::new();
    while let Ok(event) = reader.next() {
        // An event with a name concerns a file in a directory that is watched for itself.
        if event.file_name().is_none() {
            numbers.push(event.wd());
        }
        // Some events were lost: every file is checked.
        if event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW) {
            numbers.extend(inner.files.lock().keys());
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    for number in numbers {
        let files: Vec<_> = inner.files.lock().get(&number).into_iter().flatten().filter_map(Weak::upgrade).collect();
        files.iter().for_each(|file| file.touched());
    }
}
