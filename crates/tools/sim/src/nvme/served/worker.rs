//! The thread that polls the doorbells.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pci::user::link::timespec;
use rustix::event::{PollFd, PollFlags, poll};

use super::Server;

/// Delay between two polls if the host does not signal.
const NAP_LEAST: Duration = Duration::from_micros(50);
const NAP_MOST: Duration = Duration::from_millis(1);
/// Delay without a host.
const LONG: Duration = Duration::from_secs(10);

impl Server {
    /// Runs until the server ends.
    pub(super) fn work(&self) {
        let mut nap = NAP_LEAST;
        while !self.ended.load(Ordering::Acquire) {
            if self.look_awake() {
                nap = NAP_LEAST;
            }
            // Hosts signal from now on; this poll sees doorbells written before they know.
            if self.controller.work(false) {
                continue;
            }
            self.sleep(nap);
            nap = (nap * 2).min(NAP_MOST);
        }
    }

    /// Polls until idle. Returns whether there was anything.
    fn look_awake(&self) -> bool {
        let mut last = Instant::now();
        let mut any = false;
        loop {
            // Time is read less often than doorbells.
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
        // A signal ends the wait early, which is harmless.
        let _ = poll(&mut [PollFd::new(&self.bell, PollFlags::IN)], Some(&timespec(most)));
        let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
    }
}
