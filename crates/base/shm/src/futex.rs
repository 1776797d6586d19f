//! Waiting for a word of shared memory to change: futexes that work across processes (futex(2)).

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::thread::futex::{self, Flags};

/// Sleeps while the word is `expected`, for `timeout` at most (`None`: without end). False: the time is up, or a signal came. True is no
/// promise either: look at the word again. Who sleeps on a word that lies in a region is woken by other processes too.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> bool {
    // A time that no clock can tell is without end.
    let timeout = timeout.and_then(|time| time.try_into().ok());
    match futex::wait(word, Flags::empty(), expected, timeout.as_ref()) {
        Ok(()) | Err(rustix::io::Errno::AGAIN) => true,
        Err(_) => false,
    }
}

/// Wakes up to `n` of those who sleep on the word. A system call: ask first whether anybody sleeps.
pub fn wake(word: &AtomicU32, n: u32) {
    // It only fails for an address that is none. The kernel counts in i32.
    let _ = futex::wake(word, Flags::empty(), n.min(i32::MAX as u32));
}
