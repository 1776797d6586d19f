//! Stopping the threads that read the device between two requests, and letting them go on or end.
//!
//! ```text
//!   reading --request--> serving --reply--> reading
//!      |  interrupted, or before the next read(2)
//!      '-----------------> paused --resume--> reading
//!                            '-----end------> the thread returns
//! ```
//!
//! Requests that come meanwhile stay in the kernel, which has only given out those that were read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::thread::Pid;

/// How often threads that still read are interrupted: the signal may have come before the system call.
const RETRY: Duration = Duration::from_millis(1);

/// Pauses the readers of one mount.
#[derive(Debug, Default)]
pub struct ReaderPause {
    is_wanted: AtomicBool,
    command: Mutex<Command>,
    changed: Condvar,
    readers: Mutex<Vec<Arc<ReaderThread>>>,
    /// How many readers wait for the next command.
    paused: AtomicUsize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Command {
    #[default]
    Run,
    Pause,
    End,
}

/// A thread that reads requests.
#[derive(Debug)]
pub struct ReaderThread {
    thread: Pid,
    /// Locked from the arrival of a request to its reply: only reading is interrupted.
    serving: Mutex<()>,
    has_ended: AtomicBool,
}

/// Registers a reading thread while it exists.
#[derive(Debug)]
pub struct RegisteredReader<'a> {
    pause: &'a ReaderPause,
    me: Arc<ReaderThread>,
}

impl RegisteredReader<'_> {
    /// Notes that the thread has a request, until the returned value is dropped.
    pub fn serving(&self) -> MutexGuard<'_, ()> {
        self.me.serving.lock()
    }

    /// Waits while the readers are paused. Returns whether the thread shall end.
    pub fn has_to_end(&self) -> bool {
        if !self.pause.is_wanted.load(SeqCst) {
            return false;
        }
        let mut command = self.pause.command.lock();
        self.pause.paused.fetch_add(1, SeqCst);
        while *command == Command::Pause {
            self.pause.changed.wait(&mut command);
        }
        self.pause.paused.fetch_sub(1, SeqCst);
        *command == Command::End
    }
}

impl Drop for RegisteredReader<'_> {
    fn drop(&mut self) {
        let _serving = self.me.serving.lock();
        self.me.has_ended.store(true, SeqCst);
        self.pause.readers.lock().retain(|other| !Arc::ptr_eq(other, &self.me));
    }
}

impl ReaderPause {
    /// Registers the calling thread as one that reads requests.
    pub fn register(&self) -> RegisteredReader<'_> {
        let me = Arc::new(ReaderThread { thread: rustix::thread::gettid(), serving: Mutex::default(), has_ended: AtomicBool::new(false) });
        self.readers.lock().push(Arc::clone(&me));
        RegisteredReader { pause: self, me }
    }

    fn set(&self, command: Command) {
        self.is_wanted.store(command != Command::Run, SeqCst);
        *self.command.lock() = command;
        self.changed.notify_all();
    }

    /// Pauses all readers until the deadline, each after the request that it serves. `wake` calls those that rest. Returns whether all are
    /// paused; if not, some go on serving.
    pub fn pause(&self, deadline: Instant, wake: &dyn Fn()) -> bool {
        self.set(Command::Pause);
        loop {
            let readers = self.readers.lock().clone();
            if self.paused.load(SeqCst) >= readers.len() {
                return true;
            }
            if Instant::now() > deadline {
                return false;
            }
            wake();
            for reader in readers {
                // A thread that serves may wait in a call for which an interruption would be an error.
                if let Some(_reads) = reader.serving.try_lock()
                    && !reader.has_ended.load(SeqCst)
                {
                    fusedev::interrupt_thread(reader.thread);
                }
            }
            std::thread::sleep(RETRY);
        }
    }

    /// Lets all readers go on.
    pub fn resume(&self) {
        self.set(Command::Run);
    }

    /// Makes all readers end before their next request.
    pub fn end(&self) {
        self.set(Command::End);
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use rustix::io::Errno;
    use std::os::fd::OwnedFd;

    /// Reads bytes until told to end, and returns their number.
    fn read_all(pause: &ReaderPause, from: &OwnedFd) -> usize {
        let (me, mut count) = (pause.register(), 0);
        loop {
            if me.has_to_end() {
                return count;
            }
            match rustix::io::read(from, &mut [0_u8; 1]) {
                Ok(1) => {
                    let _serving = me.serving();
                    count += 1;
                }
                Ok(_) => return count,
                Err(error) => assert_eq!(error, Errno::INTR, "only interrupted"),
            }
        }
    }

    #[test]
    fn readers_are_paused_go_on_and_end_and_nothing_is_lost() {
        let pause = ReaderPause::default();
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe");
        let soon = || Instant::now() + Duration::from_secs(30);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| read_all(&pause, &reader))).collect();
            while pause.readers.lock().len() < 4 {
                std::thread::yield_now();
            }
            for _ in 0..20 {
                assert!(pause.pause(soon(), &|| ()));
                rustix::io::write(&writer, &[1; 10]).expect("written");
                pause.resume();
            }
            while rustix::io::ioctl_fionread(&reader).expect("a number") > 0 {
                std::thread::yield_now();
            }
            assert!(pause.pause(soon(), &|| ()));
            pause.end();
            let read: usize = threads.into_iter().map(|thread| thread.join().expect("ended")).sum();
            assert_eq!(read, 200);
        });
    }

    #[test]
    fn a_thread_that_serves_is_waited_for_until_the_deadline() {
        let pause = ReaderPause::default();
        let me = pause.register();
        let serving = me.serving();
        assert!(!pause.pause(Instant::now() + Duration::from_millis(20), &|| ()));
        pause.resume();
        drop(serving);
        assert!(!me.has_to_end());
    }
}
