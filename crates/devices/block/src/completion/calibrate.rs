//! Measures what sleeping and waking cost on this machine.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::sleeper::{Sleeper, System};
use crate::clock::{Clock, Monotonic, Time};

/// Samples of each figure: enough for a ninth decile, and done in a few milliseconds.
const SAMPLES: usize = 32;

/// The sleep that is measured: about the wait for an SSD, so that the CPU enters the same idle state as in real waits.
const ASKED: Duration = Duration::from_micros(50);

/// The wakeup latency of this machine: how much later than requested a thread runs again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WakeupLatency {
    /// The lateness after a timed sleep: the first quartile, so that momentary load does not count.
    pub timer: Duration,
    /// The lateness after a timed sleep: the ninth decile.
    pub timer_late: Duration,
    /// The lateness after another thread wrote to an eventfd that this thread reads: the first quartile.
    pub event: Duration,
}

impl WakeupLatency {
    /// Measures the latency now, in about five milliseconds; longer on a busy machine.
    pub fn measure() -> WakeupLatency {
        let mut timer = timer_lateness();
        timer.sort_unstable();
        let timer_late = timer[SAMPLES * 9 / 10];
        let event = event_lateness().map_or(timer_late, |mut event| {
            event.sort_unstable();
            event[SAMPLES / 4]
        });
        WakeupLatency { timer: timer[SAMPLES / 4], timer_late, event }
    }

    /// Returns the latency of this machine, which is measured once per process, at the first call.
    pub fn of_machine() -> WakeupLatency {
        static MEASURED: OnceLock<WakeupLatency> = OnceLock::new();
        *MEASURED.get_or_init(WakeupLatency::measure)
    }
}

fn timer_lateness() -> [Duration; SAMPLES] {
    let clock = Monotonic::default();
    let mut sleeper = System::default();
    sleeper.sleep(ASKED);
    [(); SAMPLES].map(|()| {
        let begin = clock.now();
        sleeper.sleep(ASKED);
        clock.now().since(begin.after(ASKED))
    })
}

/// Measures wakeups by eventfd: one thread writes, the other has been asleep in a read.
fn event_lateness() -> io::Result<[Duration; SAMPLES]> {
    let clock = Monotonic::default();
    let (call, answer) = (eventfd(0, EventfdFlags::CLOEXEC)?, eventfd(0, EventfdFlags::CLOEXEC)?);
    let called = AtomicU64::new(0);
    let count = |fd| rustix::io::read(fd, &mut [0_u8; 8]);
    let mut sleeper = System::default();
    std::thread::scope(|scope| {
        let woken = std::thread::Builder::new().spawn_scoped(scope, || -> io::Result<[Duration; SAMPLES]> {
            let mut late = [Duration::ZERO; SAMPLES];
            for late in &mut late {
                count(&call)?;
                *late = clock.now().since(Time(called.load(Ordering::Acquire)));
                rustix::io::write(&answer, &1_u64.to_ne_bytes())?;
            }
            Ok(late)
        })?;
        for _ in 0..SAMPLES {
            sleeper.sleep(ASKED);
            called.store(clock.now().0, Ordering::Release);
            rustix::io::write(&call, &1_u64.to_ne_bytes())?;
            count(&answer)?;
        }
        woken.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
    })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn it_takes_time_to_be_woken() {
        let floor = WakeupLatency::of_machine();
        assert!(floor.timer > Duration::ZERO && floor.timer <= floor.timer_late && floor.event > Duration::ZERO, "{floor:?}");
        assert_eq!(floor, WakeupLatency::of_machine(), "measured once");
    }
}
