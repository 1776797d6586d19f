//! What waiting cost: counted by the owner of a queue in plain numbers, and published now and then for others to read.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Since the queue was made.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// Counters to read from any thread. Each number is right, of some moment shortly before; they need not be of the same.
        #[derive(Debug, Default)]
        pub struct Published {
            $($name: AtomicU64,)*
        }

        impl Published {
            /// As last published.
            pub fn read(&self) -> Counters {
                Counters { $($name: self.$name.load(Ordering::Relaxed),)* }
            }

            /// By the one owner of the counters.
            pub(super) fn publish(&self, counters: &Counters) {
                $(self.$name.store(counters.$name, Ordering::Relaxed);)*
            }
        }
    };
}

counters! {
    /// Requests that ended.
    completions,
    /// Looks at the queue below.
    polls,
    /// Looks that found nothing.
    empty_polls,
    /// Waits.
    waits,
    /// Waits that were slept through with a timer, wholly or in part.
    sleeps,
    /// Time by which sleeps ended after the predicted moment, with completions waiting: the latency that sleeping cost, at most.
    oversleep_ns,
    /// Time of looking without pause after a sleep: the processor time that waking early cost.
    undersleep_ns,
    /// Changes between polling, sleeping and blocking.
    mode_switches,
    /// Waits that ended with the driver's waking.
    interrupt_wakes,
    /// Processor time of the threads that waited, from the first wait on, with whatever else they did; a sample of every 64th wait.
    cpu_ns,
}
