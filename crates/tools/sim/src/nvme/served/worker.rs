//! Who looks at the doorbells.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pci::user::link::timespec;
use rustix::event::{PollFd, PollFlags, poll};

use super::Server;

/// Between two looks when the host rings no bell.
const NAP_LEAST: Duration = Duration::from_micros(50);
const NAP_MOST: Duration = Duration::from_millis(1);
/// With nobody to ring.
const LONG: Duration = Duration::from_secs(10);

impl Server {
    /// Until the end.
    pub(super) fn work(&self) {
        let mut nap = NAP_LEAST;
        while !self.ended.load(Ordering::Acquire) {
            if self.look_awake() {
                nap = NAP_LEAST;
            }
            // From now on hosts ring; what came before they knew is seen by this look.
            if self.controller.work(false) {
                continue;
            }
            self.sleep(nap);
            nap = (nap * 2).min(NAP_MOST);
        }
    }

    /// Until nothing came for a while. True: something came.
    fn look_awake(&self) -> bool {
        let mut last = Instant::now();
        let mut any = false;
        loop {
            // The time is looked at less often than doorbells are.
            for _ in 0..16 {
                if self.controller.work(true) {
                    any = true;
                    last = Instant::now();
                } else {
                    std::hint::spin_loop();
                }
            }
            if last.elapsed() >= self.spin || self.ended.load(Ordering::Acquire) {
                return any;
            }
        }
    }

    fn sleep(&self, nap: Duration) {
        let is_alone = self.connection.lock().is_none();
        let most = if is_alone || self.has_bell.load(Ordering::Acquire) { LONG } else { nap };
        let most = self.controller.idle().map_or(most, |due| due.min(most));
        // A signal ends it early, which does no harm.
        let _ = poll(&mut [PollFd::new(&self.bell, PollFlags::IN)], Some(&timespec(most)));
        let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
    }
}
