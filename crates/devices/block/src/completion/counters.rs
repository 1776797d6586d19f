//! The cost of waiting: the owner of a queue counts in plain integers, and publishes them periodically for other threads.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters of a queue since it was created.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// Counters that any thread can read. Each value was correct a short time ago, but not all at the same time.
        #[derive(Debug, Default)]
        pub struct Published {
            $($name: AtomicU64,)*
        }

        impl Published {
            /// Returns the counters as last published.
            pub fn read(&self) -> Counters {
                Counters { $($name: self.$name.load(Ordering::Relaxed),)* }
            }

            /// Publishes the counters; only their owner calls this.
            pub(super) fn publish(&self, counters: &Counters) {
                $(self.$name.store(counters.$name, Ordering::Relaxed);)*
            }
        }
    };
}

counters! {
    /// The number of requests that completed.
    completions,
    /// The number of polls of the driver's queue.
    polls,
    /// The number of polls that found nothing.
    empty_polls,
    /// The number of waits for completions.
    waits,
    /// The number of waits that slept with a timer, wholly or in part.
    sleeps,
    /// The time that sleeps ran past the prediction while completions were pending, in ns: the maximum latency that sleeping cost.
    oversleep_ns,
    /// The time spent polling after a sleep, in ns: the CPU time that waking early cost.
    undersleep_ns,
    /// The number of changes between polling, sleeping and blocking.
    mode_switches,
    /// The number of waits that ended with a wakeup by the driver.
    interrupt_wakes,
    /// The CPU time of the waiting threads since the first wait, in ns, including their other work; sampled at every 64th wait.
    cpu_ns,
}
