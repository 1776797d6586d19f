//! A limit for the time in which nobody serves a mount.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// How long a program may take to go on with a mount.
const TAKEOVER_MAX: Duration = Duration::from_secs(60);

/// Ends the process if a mount is not taken over in time: nobody would answer those who use it, and a call on the mount itself would wait
/// for ever.
pub struct TakeoverLimit(Option<Sender<()>>);

impl TakeoverLimit {
    /// Begins to wait; the end of the returned value ends that.
    pub fn start() -> TakeoverLimit {
        let (stop, stopped) = channel();
        let watch = move || {
            if stopped.recv_timeout(TAKEOVER_MAX) == Err(RecvTimeoutError::Timeout) {
                tracing::error!("the mount was not taken over within {} s: it ends", TAKEOVER_MAX.as_secs());
                std::process::exit(1);
            }
        };
        let started = std::thread::Builder::new().name("takeover".into()).spawn(watch);
        TakeoverLimit(started.ok().map(|_| stop))
    }
}

impl Drop for TakeoverLimit {
    fn drop(&mut self) {
        // The thread finds that nobody can send any more.
        self.0.take();
    }
}
