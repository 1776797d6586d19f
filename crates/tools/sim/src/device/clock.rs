//! Time as a parameter: virtual time, which advances only while a caller waits, and real time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use block::clock::Monotonic;
use block::{Clock, Time};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

/// Most alarms of one virtual clock: one per queue.
const ALARMS: usize = 64;

/// A virtual clock that advances only when told. Clones share the clock.
///
/// Each queue registers the time of its next completion ([`Alarm`]), so that a wait on one queue does not skip a completion of another.
#[derive(Clone, Debug, Default)]
pub struct VirtualClock {
    inner: Arc<ClockState>,
}

#[derive(Debug)]
struct ClockState {
    now: AtomicU64,
    alarms: [AtomicU64; ALARMS],
    taken: [AtomicBool; ALARMS],
}

impl Default for ClockState {
    fn default() -> Self {
        ClockState {
            now: AtomicU64::new(0),
            alarms: std::array::from_fn(|_| AtomicU64::new(Time::NEVER.0)),
            taken: std::array::from_fn(|_| AtomicBool::new(false)),
        }
    }
}

impl VirtualClock {
    /// Advances the clock by this duration.
    pub fn advance(&self, by: Duration) {
        self.advance_to(self.now().after(by));
    }

    /// Advances the clock to `time` if that is in the future. `Time::NEVER` is ignored.
    pub fn advance_to(&self, time: Time) {
        if time != Time::NEVER {
            self.inner.now.fetch_max(time.0, Ordering::Relaxed);
        }
    }

    /// Returns the next time after now at which a queue has a completion.
    pub fn next_alarm(&self) -> Time {
        let now = self.now().0;
        let later = self.inner.alarms.iter().map(|alarm| alarm.load(Ordering::Relaxed)).filter(|alarm| *alarm > now);
        Time(later.min().unwrap_or(Time::NEVER.0))
    }

    /// Allocates an alarm, which waits do not skip.
    ///
    /// # Panics
    /// If all 64 alarms are in use.
    pub fn alarm(&self) -> Alarm {
        let free = |taken: &AtomicBool| taken.compare_exchange(false, true, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let index = self.inner.taken.iter().position(free).expect("at most 64 queues on one virtual clock");
        Alarm { clock: self.clone(), index }
    }
}

impl Clock for VirtualClock {
    #[inline]
    fn now(&self) -> Time {
        Time(self.inner.now.load(Ordering::Relaxed))
    }
}

/// One alarm of a [`VirtualClock`]; freed on drop.
#[derive(Debug)]
pub struct Alarm {
    clock: VirtualClock,
    index: usize,
}

impl Alarm {
    fn set(&self, time: Time) {
        self.clock.inner.alarms[self.index].store(time.0, Ordering::Relaxed);
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.set(Time::NEVER);
        self.clock.inner.taken[self.index].store(false, Ordering::Relaxed);
    }
}

/// A clock that a simulated queue can sleep on.
pub trait DeviceClock: Clock {
    /// Sets the time of the next completion.
    fn set_due(&mut self, due: Time);

    /// Sleeps until `time`, or slightly less.
    fn sleep_until(&mut self, time: Time);

    /// Returns a descriptor that is readable once the time given to [`DeviceClock::arm`] has passed. `None`: time does not pass by itself.
    fn event(&self) -> Option<BorrowedFd<'_>>;

    /// Clears the event and arms it for `due`.
    fn arm(&mut self, due: Time);
}

/// Virtual time: a sleep advances the clock.
#[derive(Debug)]
pub struct Virtual {
    clock: VirtualClock,
    alarm: Alarm,
}

impl Virtual {
    /// Creates virtual timing on this clock.
    pub fn new(clock: &VirtualClock) -> Virtual {
        Virtual { clock: clock.clone(), alarm: clock.alarm() }
    }
}

impl Clock for Virtual {
    #[inline]
    fn now(&self) -> Time {
        self.clock.now()
    }
}

impl DeviceClock for Virtual {
    #[inline]
    fn set_due(&mut self, due: Time) {
        self.alarm.set(due);
    }

    fn sleep_until(&mut self, time: Time) {
        self.clock.advance_to(time.min(self.clock.next_alarm()));
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn arm(&mut self, _: Time) {}
}

/// Real time, with a timerfd for the event and for sleeping: unlike nanosleep(2) and the timeout of poll(2) it has no timer
/// slack (prctl(2), PR_SET_TIMERSLACK: 50 us by default).
#[derive(Debug)]
pub struct Real {
    clock: Monotonic,
    timer: OwnedFd,
}

impl Real {
    /// Creates real timing that starts now.
    ///
    /// # Errors
    /// No timer descriptor is available.
    pub fn new() -> io::Result<Real> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        Ok(Real { clock: Monotonic::default(), timer })
    }
}

impl Clock for Real {
    #[inline]
    fn now(&self) -> Time {
        self.clock.now()
    }
}

impl DeviceClock for Real {
    #[inline]
    fn set_due(&mut self, _: Time) {}

    fn sleep_until(&mut self, time: Time) {
        if time <= self.now() {
            return;
        }
        self.arm(time);
        let mut descriptors = [PollFd::new(&self.timer, PollFlags::IN)];
        // A signal ends the wait early, which `Queue::wait` allows.
        let _ = poll(&mut descriptors, None);
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        Some(self.timer.as_fd())
    }

    fn arm(&mut self, due: Time) {
        let after = match due {
            // Zero disarms it.
            Time::NEVER => Duration::ZERO,
            due => due.since(self.now()).max(Duration::from_nanos(1)),
        };
        let spec = Itimerspec { it_interval: timespec(Duration::ZERO), it_value: timespec(after) };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec).expect("a timer takes every time");
    }
}

/// Converts a duration, at most about 68 years.
fn timespec(duration: Duration) -> Timespec {
    let seconds = duration.as_secs().min(i32::MAX as u64);
    Timespec { tv_sec: seconds.cast_signed(), tv_nsec: duration.subsec_nanos().into() }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn virtual_time_stops_at_what_happens_on_other_queues() {
        let clock = VirtualClock::default();
        let (mut a, mut b) = (Virtual::new(&clock), Virtual::new(&clock));
        a.set_due(Time(900));
        b.set_due(Time(500));
        a.sleep_until(Time(900));
        assert_eq!(clock.now(), Time(500));
        a.sleep_until(Time(900));
        assert_eq!(clock.now(), Time(900), "what b does not look at holds nobody up");
        drop(a);
        b.set_due(Time::NEVER);
        b.sleep_until(Time::NEVER);
        assert_eq!(clock.now(), Time(900), "there is nothing to wait for");
        b.sleep_until(Time(1000));
        assert_eq!(clock.now(), Time(1000));
    }

    #[test]
    fn the_event_of_real_time_comes_once_and_is_cleared_by_arming() {
        let mut real = Real::new().expect("a timer");
        let readable = |real: &Real, wait: Option<&Timespec>| {
            let event = real.event().expect("real time has one");
            poll(&mut [PollFd::new(&event, PollFlags::IN)], wait).expect("polled") == 1
        };
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        real.arm(real.now().after(Duration::from_micros(100)));
        assert!(readable(&real, None));
        real.arm(Time::NEVER);
        assert!(!readable(&real, Some(&at_once)));
        let until = real.now().after(Duration::from_micros(100));
        real.sleep_until(until);
        assert!(real.now() >= until);
    }
}
