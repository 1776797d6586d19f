//! The parameters of a handle, by name: the keys of `nvmed_set_param` and of the configuration.

use std::time::Duration;

use crate::device::QueueOptions;
use crate::request::{Class, Urgency};
use crate::scheduler::Scheduler;
use crate::tracked::Timeouts;

/// How a handle waits for completions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Completion {
    /// The queue's own wait, as the queue was opened.
    #[default]
    OfQueue,
    /// The handle polls in a loop while it waits.
    Polling,
    /// The queue sleeps until the device signals.
    Interrupt,
    /// The queue decides for each wait: [`crate::completion::Adaptive`].
    Adaptive,
    /// A completion thread reaps shared queues: [`crate::handle::Served`]. A dedicated queue is adaptive instead.
    Thread,
}

/// The parameters of a handle and of its queue. Those of the queue are fixed once it is open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Params {
    /// Whether I/O goes through the block cache. The layer above, which has the cache, evaluates this; handles themselves do direct
    /// I/O.
    pub cached: bool,
    /// Whether [`super::Handle::issue`] waits for the request.
    pub synchronous: bool,
    /// The timeout of requests that do not set one; `None`: no timeout.
    pub timeout: Option<Duration>,
    /// The class of requests that do not set one, whose share of the device they use.
    pub class: Class,
    /// The urgency of requests that do not set one.
    pub urgency: Urgency,
    /// Whether writes that do not set `fua` complete only once they survive a power loss.
    pub fua: bool,
    /// How the handle waits for completions. Polling can be set at any time; the other modes belong to the queue and are fixed at
    /// open.
    pub completion: Completion,
    /// The most uncollected asynchronous requests; 0: the depth of the queue. Fixed at open.
    pub requests_max: u32,
    /// The depth of the queue: a power of two. Fixed at open.
    pub queue_depth: u32,
    /// The scheduler of the queue. Fixed at open.
    pub scheduler: Scheduler,
    /// Whether the device is polled instead of sending interrupts. Fixed at open.
    pub device_polled: bool,
    /// Whether a kernel thread takes submissions. Fixed at open.
    pub kernel_submits: bool,
    /// The shortest sleep of adaptive completion. Fixed at open.
    pub poll_min: Duration,
    /// The longest sleep of adaptive completion. Fixed at open.
    pub poll_max: Duration,
    /// How long the device may take to cancel a request after its deadline. Fixed at open.
    pub cancel_grace: Duration,
    /// How long the device may hold memory of timed-out requests before the queue is reset; `None`: no limit. Fixed at open.
    pub reset_after: Option<Duration>,
    /// The size of the block cache in bytes. Fixed at open.
    pub cache_bytes: u64,
    /// The read-ahead of the block cache in bytes.
    pub readahead_bytes: u64,
}

impl Default for Params {
    fn default() -> Self {
        let (timeouts, options) = (Timeouts::default(), QueueOptions::default());
        Params {
            cached: false,
            synchronous: true,
            timeout: timeouts.timeout,
            class: Class(0),
            urgency: Urgency::Normal,
            fua: false,
            completion: Completion::OfQueue,
            requests_max: 0,
            queue_depth: options.depth,
            scheduler: Scheduler::None,
            device_polled: options.device_polled,
            kernel_submits: options.kernel_submits,
            poll_min: Duration::ZERO,
            poll_max: Duration::from_millis(10),
            cancel_grace: timeouts.cancel_grace,
            reset_after: timeouts.reset_after,
            cache_bytes: 64 << 20,
            readahead_bytes: 128 << 10,
        }
    }
}

impl Params {
    /// Returns the options with which to open the queue.
    pub fn queue_options(&self) -> QueueOptions {
        QueueOptions {
            depth: self.queue_depth,
            device_polled: self.device_polled,
            kernel_submits: self.kernel_submits,
            ..QueueOptions::default()
        }
    }

    /// Returns how long the queue waits for a device that does not respond.
    pub fn timeouts(&self) -> Timeouts {
        Timeouts { timeout: self.timeout, cancel_grace: self.cancel_grace, reset_after: self.reset_after }
    }

    /// Returns the defaults of requests.
    pub(super) fn defaults(&self) -> Defaults {
        Defaults { timeout: self.timeout, urgency: self.urgency, class: self.class, fua: self.fua }
    }

    /// Returns the value of a key.
    pub fn get(&self, key: Key) -> u64 {
        match key {
            Key::Cached => u64::from(self.cached),
            Key::Synchronous => u64::from(self.synchronous),
            Key::TimeoutMs => self.timeout.map_or(0, millis),
            Key::Class => u64::from(self.class.0),
            Key::Urgency => number(&URGENCIES, self.urgency),
            Key::Fua => u64::from(self.fua),
            Key::Completion => number(&COMPLETIONS, self.completion),
            Key::RequestsMax => u64::from(self.requests_max),
            Key::QueueDepth => u64::from(self.queue_depth),
            Key::Scheduler => number(&SCHEDULERS, Some(self.scheduler)),
            Key::DevicePolled => u64::from(self.device_polled),
            Key::KernelSubmits => u64::from(self.kernel_submits),
            Key::PollMinNs => nanos(self.poll_min),
            Key::PollMaxNs => nanos(self.poll_max),
            Key::CancelGraceMs => millis(self.cancel_grace),
            Key::ResetAfterMs => self.reset_after.map_or(0, millis),
            Key::CacheBytes => self.cache_bytes,
            Key::ReadaheadBytes => self.readahead_bytes,
        }
    }

    /// Sets a key before the queue is open.
    ///
    /// # Errors
    /// The value is invalid for this key.
    pub fn set(&mut self, key: Key, value: u64) -> Result<(), ParamError> {
        let wrong = ParamError::Value { key, value };
        let flag = if value <= 1 { Ok(value == 1) } else { Err(wrong) };
        match key {
            Key::Cached => self.cached = flag?,
            Key::Synchronous => self.synchronous = flag?,
            Key::TimeoutMs => self.timeout = some_millis(value),
            Key::Class => self.class = Class(u8::try_from(value).map_err(|_| wrong)?),
            Key::Urgency => self.urgency = *at(&URGENCIES, value).ok_or(wrong)?,
            Key::Fua => self.fua = flag?,
            Key::Completion => self.completion = *at(&COMPLETIONS, value).ok_or(wrong)?,
            Key::RequestsMax if value <= u64::from(REQUESTS_MAX) => self.requests_max = value as u32,
            Key::QueueDepth if value.is_power_of_two() && value <= u64::from(DEPTH_MAX) => self.queue_depth = value as u32,
            Key::RequestsMax | Key::QueueDepth => return Err(wrong),
            Key::Scheduler => self.scheduler = at(&SCHEDULERS, value).copied().flatten().ok_or(wrong)?,
            Key::DevicePolled => self.device_polled = flag?,
            Key::KernelSubmits => self.kernel_submits = flag?,
            Key::PollMinNs => self.poll_min = Duration::from_nanos(value),
            Key::PollMaxNs => self.poll_max = Duration::from_nanos(value),
            Key::CancelGraceMs => self.cancel_grace = Duration::from_millis(value),
            Key::ResetAfterMs => self.reset_after = some_millis(value),
            Key::CacheBytes => self.cache_bytes = value,
            Key::ReadaheadBytes => self.readahead_bytes = value,
        }
        Ok(())
    }

    /// Sets a key of an open handle.
    ///
    /// # Errors
    /// As [`Params::set`], or the key is fixed once the queue is open.
    pub(super) fn set_open(&mut self, key: Key, value: u64) -> Result<(), ParamError> {
        let mut changed = self.clone();
        changed.set(key, value)?;
        let polling = [self.completion, changed.completion].contains(&Completion::Polling);
        let settable = !key.is_fixed() || (key == Key::Completion && polling);
        if changed != *self && !settable {
            return Err(ParamError::Fixed(key));
        }
        *self = changed;
        Ok(())
    }
}

/// The most requests of one handle.
const REQUESTS_MAX: u32 = 32_768;
/// The largest [`QueueOptions::depth`].
const DEPTH_MAX: u32 = 4096;

const URGENCIES: [Urgency; 3] = [Urgency::Normal, Urgency::Urgent, Urgency::Batch];
const COMPLETIONS: [Completion; 5] =
    [Completion::OfQueue, Completion::Polling, Completion::Interrupt, Completion::Adaptive, Completion::Thread];
/// The numbers 1 and 2 belonged to schedulers that were removed.
const SCHEDULERS: [Option<Scheduler>; 4] = [Some(Scheduler::None), None, None, Some(Scheduler::Classes)];

fn number<T: PartialEq>(all: &[T], value: T) -> u64 {
    all.iter().position(|known| *known == value).expect("all are listed") as u64
}

fn at<T>(all: &[T], value: u64) -> Option<&T> {
    all.get(usize::try_from(value).ok()?)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn some_millis(value: u64) -> Option<Duration> {
    (value > 0).then(|| Duration::from_millis(value))
}

/// The defaults that requests take from their handle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defaults {
    pub(super) timeout: Option<Duration>,
    pub(super) urgency: Urgency,
    pub(super) class: Class,
    pub(super) fua: bool,
}

macro_rules! keys {
    ($($(#[$doc:meta])* $key:ident = $number:literal, $name:literal;)*) => {
        /// A parameter, by number and by name. The numbers are fixed, because the C interface has them. Values are numbers; flags
        /// are 0 or 1.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u32)]
        pub enum Key {
            $($(#[$doc])* $key = $number,)*
        }

        impl Key {
            /// All keys, in the order of their numbers.
            pub const ALL: &[Key] = &[$(Key::$key),*];

            /// Returns the name of the key, with the unit last.
            pub fn name(self) -> &'static str {
                match self { $(Key::$key => $name,)* }
            }
        }
    };
}

keys! {
    /// [`Params::cached`].
    Cached = 1, "cached";
    /// [`Params::synchronous`].
    Synchronous = 2, "synchronous";
    /// [`Params::timeout`]; 0: no timeout.
    TimeoutMs = 3, "timeout_ms";
    /// [`Params::class`].
    Class = 4, "class";
    /// [`Params::urgency`]: 0 normal, 1 urgent, 2 batch.
    Urgency = 5, "urgency";
    /// [`Params::fua`].
    Fua = 6, "fua";
    /// [`Params::completion`]: 0 of the queue, 1 polling, 2 interrupt, 3 adaptive, 4 thread.
    Completion = 7, "completion";
    /// [`Params::requests_max`].
    RequestsMax = 8, "requests_max";
    /// [`Params::queue_depth`].
    QueueDepth = 9, "queue_depth";
    /// [`Params::scheduler`]: 0 none, 3 classes.
    Scheduler = 10, "scheduler";
    /// [`Params::device_polled`].
    DevicePolled = 11, "device_polled";
    /// [`Params::kernel_submits`].
    KernelSubmits = 12, "kernel_submits";
    /// [`Params::poll_min`].
    PollMinNs = 13, "poll_min_ns";
    /// [`Params::poll_max`].
    PollMaxNs = 14, "poll_max_ns";
    /// [`Params::cancel_grace`].
    CancelGraceMs = 15, "cancel_grace_ms";
    /// [`Params::reset_after`]; 0: never.
    ResetAfterMs = 16, "reset_after_ms";
    /// [`Params::cache_bytes`].
    CacheBytes = 17, "cache_bytes";
    /// [`Params::readahead_bytes`].
    ReadaheadBytes = 18, "readahead_bytes";
}

impl Key {
    /// Returns the key of a name.
    ///
    /// # Errors
    /// There is no such key.
    pub fn from_name(name: &str) -> Result<Key, ParamError> {
        Key::ALL.iter().copied().find(|key| key.name() == name).ok_or(ParamError::Unknown)
    }

    /// Returns the key of a number.
    ///
    /// # Errors
    /// There is no such key.
    pub fn from_number(number: u32) -> Result<Key, ParamError> {
        Key::ALL.iter().copied().find(|key| *key as u32 == number).ok_or(ParamError::Unknown)
    }

    /// Returns whether the key is fixed once the queue is open.
    pub fn is_fixed(self) -> bool {
        !matches!(self, Key::Cached | Key::Synchronous | Key::TimeoutMs | Key::Class | Key::Urgency | Key::Fua | Key::ReadaheadBytes)
    }
}

/// The reason why a parameter was not set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParamError {
    /// There is no key with this name or number.
    #[error("there is no such parameter")]
    Unknown,
    /// The value is invalid for this key.
    #[error("{value} is no value of `{}`", key.name())]
    Value {
        /// The key that was to be set.
        key: Key,
        /// The invalid value for this key.
        value: u64,
    },
    /// The key can be set only before the queue is opened.
    #[error("`{}` cannot be changed once the queue is open", .0.name())]
    Fixed(Key),
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn every_key_keeps_what_it_is_set_to_and_refuses_what_it_cannot_be() {
        for &key in Key::ALL {
            assert_eq!((Key::from_name(key.name()), Key::from_number(key as u32)), (Ok(key), Ok(key)));
            let mut params = Params::default();
            let before = params.get(key);
            assert_eq!(params.set(key, before), Ok(()));
            assert_eq!(params, Params::default(), "{key:?} is set to what it was");
            let value = if key == Key::Scheduler { 3 } else { 1 };
            assert_eq!(params.set(key, value), Ok(()));
            assert_eq!(params.get(key), value, "{key:?}");
            let now = params.set_open(key, 0);
            assert!(now.is_ok() || key.is_fixed() || matches!(now, Err(ParamError::Value { .. })), "{key:?}: {now:?}");
        }
        assert_eq!(Key::from_name("colour"), Err(ParamError::Unknown));
        assert_eq!(Key::from_number(0), Err(ParamError::Unknown));
        let mut params = Params::default();
        for removed_or_unknown in [1, 2, 4] {
            assert!(matches!(params.set(Key::Scheduler, removed_or_unknown), Err(ParamError::Value { .. })));
        }
        assert!(matches!(params.set(Key::QueueDepth, 48), Err(ParamError::Value { .. })));
        assert_eq!(params.set_open(Key::QueueDepth, 64), Err(ParamError::Fixed(Key::QueueDepth)));
        assert_eq!(params.set_open(Key::Completion, 1), Ok(()));
        assert_eq!(params.set_open(Key::Completion, 0), Ok(()));
        assert_eq!(params.set_open(Key::Completion, 3), Err(ParamError::Fixed(Key::Completion)));
    }
}
