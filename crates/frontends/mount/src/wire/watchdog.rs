//! Bounds how long requests take when the slow side does not reply.
//!
//! ```text
//!             a request waits 0.5 s            no probe replied for the deadline
//!   replies ------------------------> suspect ----------------------------------> away
//!      ^                                 |                                          |
//!      '------- a probe replies ---------+------------------------------------------'
//! ```
//!
//! While the slow side is suspect, requests that may wait are served by a pool, so that the threads that read requests stay free, and a
//! probe asks the side every second. While it is away, only what needs nothing of it is served. A request that is too old is replied to
//! here, and its late reply is discarded ([`InFlight`]).
//!
//! A side that replies may still be slow: writing gigabytes to a disk takes minutes. So the deadline counts from the side's last sign of
//! life, and a request that waits although the side replies has [`PATIENCE`] times as long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use super::decode::RequestHeader;
use super::in_flight::{InFlight, SeenRequest, Ticket, is_of_dead_side};
use super::opcodes;

/// The interval of the watchdog's rounds, which is the resolution of its clock.
pub const TICK: Duration = Duration::from_millis(100);
/// A request that waits so long makes the side suspect, ms.
const SUSPECT_MS: u64 = 500;
/// How long a request may wait while the side is away, ms: for an SSD, not for the side.
const AWAY_MS: u64 = 1000;
/// How long a killed process waits, ms.
const KILLED_MS: u64 = 1000;
/// How many deadlines a request may wait while the side replies to probes.
const PATIENCE: u64 = 10;
/// The interval of probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Asks the slow side for something that it cannot reply to from memory. May not return.
pub type Probe = Box<dyn Fn() -> Result<(), Errno> + Send + Sync>;

/// What is known of the slow side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SideReport {
    /// Since when it has not replied, if it is away.
    pub away_since: Option<SystemTime>,
    /// Requests that timed out since it went away, or last did.
    pub timed_out: u64,
    /// Calls that have not returned yet.
    pub unfinished: usize,
    /// Requests that timed out since the watchdog began.
    pub timed_out_total: u64,
    /// Requests that failed since then as they do when a disk or a server fails. One that is refused while the side is away is not counted.
    pub failed_total: u64,
}

/// A change that is worth a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SideChange {
    /// The side does not reply any more.
    Away,
    /// The side replies again, after so long.
    Back(Duration),
}

/// A request to which the watchdog replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverdueRequest {
    /// Number that the reply must carry.
    pub unique: u64,
    /// Operation code of the request.
    pub opcode: u32,
    /// Inode that the request is about.
    pub ino: u64,
    /// ETIMEDOUT, or EINTR for a process that is being killed.
    pub error: Errno,
}

#[derive(Debug, Default)]
struct SideState {
    /// When the first probe began that got no reply since the last one that did.
    silent_since: Option<u64>,
    away_since: Option<(u64, SystemTime)>,
    timed_out: u64,
    timed_out_total: u64,
    change: Option<SideChange>,
    is_probe_wanted: bool,
    /// A thread probes.
    is_probed: bool,
    /// That thread is to end.
    has_probes_ended: bool,
}

/// Watches over the requests of a mount.
pub struct Watchdog {
    requests: Arc<InFlight>,
    now_ms: AtomicU64,
    deadline_ms: u64,
    is_suspect: AtomicBool,
    is_away: Arc<AtomicBool>,
    side: Mutex<SideState>,
    wake: Condvar,
    probe: Probe,
}

impl Watchdog {
    /// Creates a watchdog that waits `deadline` for a sign of life, of which `probe` asks for one.
    pub fn new(deadline: Duration, probe: Probe) -> Watchdog {
        let requests = Arc::<InFlight>::default();
        Watchdog {
            is_away: requests.away_flag(),
            requests,
            now_ms: AtomicU64::new(1),
            deadline_ms: u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX / PATIENCE).clamp(1, u64::MAX / PATIENCE),
            is_suspect: AtomicBool::new(false),
            side: Mutex::default(),
            wake: Condvar::new(),
            probe,
        }
    }

    /// Registers a request. None: there are too many.
    pub fn begin(&self, head: &RequestHeader) -> Option<Ticket> {
        self.requests.begin(head, self.now_ms.load(Relaxed))
    }

    /// Returns the time on the watchdog's clock, ms.
    pub fn now_ms(&self) -> u64 {
        self.now_ms.load(Relaxed)
    }

    /// Notes that the caller of a request got a signal. False: no such request is registered, or not yet.
    pub fn interrupt(&self, unique: u64) -> bool {
        self.requests.interrupt(unique)
    }

    /// Returns whether calls of the slow side may not return.
    pub fn is_suspect(&self) -> bool {
        self.is_suspect.load(Relaxed)
    }

    /// Returns whether the slow side has not replied for the deadline.
    pub fn is_away(&self) -> bool {
        self.is_away.load(Relaxed)
    }

    /// Returns what is set while the slow side is away.
    pub fn away_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_away)
    }

    /// Returns for how long the slow side has not replied to a probe.
    pub fn silence(&self) -> Duration {
        let now = self.now_ms();
        Duration::from_millis(self.side.lock().silent_since.map_or(0, |since| now.saturating_sub(since)))
    }

    /// Makes the probe ask the slow side soon.
    pub fn want_probe(&self) {
        self.side.lock().is_probe_wanted = true;
        self.wake.notify_all();
    }

    /// Returns what is known of the slow side.
    pub fn report(&self) -> SideReport {
        let side = self.side.lock();
        SideReport {
            away_since: side.away_since.map(|(_, since)| since),
            timed_out: side.timed_out,
            unfinished: self.requests.unfinished(),
            timed_out_total: side.timed_out_total,
            failed_total: self.requests.failed(),
        }
    }

    /// Returns the last change of the side's state, once.
    pub fn take_change(&self) -> Option<SideChange> {
        self.side.lock().change.take()
    }

    /// Runs one round, `elapsed` after the last one, and returns the requests to reply to.
    pub fn tick(&self, elapsed: Duration) -> Vec<OverdueRequest> {
        // A machine that slept, or a daemon that was stopped, has not waited.
        let step = elapsed.min(TICK * 4).as_millis() as u64;
        let now = self.now_ms.fetch_add(step, Relaxed) + step;
        let mut all = Vec::new();
        let mut oldest = 0;
        self.requests.each(|request| {
            let age = now.saturating_sub(request.begun_ms);
            oldest = oldest.max(age);
            if age >= AWAY_MS || request.is_interrupted {
                all.push((request, age));
            }
        });
        let mut side = self.side.lock();
        let is_suspect = oldest >= SUSPECT_MS || self.requests.unfinished() > 0 || side.away_since.is_some() || side.silent_since.is_some();
        self.is_suspect.store(is_suspect, Relaxed);
        if (self.requests.take_failed() || is_suspect) && !side.is_probe_wanted {
            side.is_probe_wanted = true;
            self.wake.notify_all();
        }
        let silence = side.silent_since.map_or(0, |since| now.saturating_sub(since));
        if silence >= self.deadline_ms && side.away_since.is_none() {
            self.set_away(&mut side, now, silence);
        }
        let limit = match (side.away_since, silence >= self.deadline_ms) {
            (Some(_), _) => AWAY_MS,
            (None, true) => self.deadline_ms,
            (None, false) => self.deadline_ms * PATIENCE,
        };
        let is_silent = silence >= KILLED_MS || side.away_since.is_some();
        drop(side);
        all.into_iter().filter_map(|(request, age)| self.overdue(&request, age, limit, is_silent)).collect()
    }

    fn overdue(&self, request: &SeenRequest, age: u64, limit: u64, is_silent: bool) -> Option<OverdueRequest> {
        let error = if age >= limit {
            Errno::TIMEDOUT
        } else if request.is_interrupted && (age >= KILLED_MS || is_silent) && is_being_killed(request) {
            Errno::INTR
        } else {
            return None;
        };
        if !self.requests.take_over(request) {
            return None;
        }
        if error == Errno::TIMEDOUT && !matches!(request.opcode, opcodes::RELEASE | opcodes::RELEASEDIR) {
            let mut side = self.side.lock();
            side.timed_out += 1;
            side.timed_out_total += 1;
        }
        Some(OverdueRequest { unique: request.unique, opcode: request.opcode, ino: request.ino, error })
    }

    fn set_away(&self, side: &mut SideState, now: u64, silence: u64) {
        let since = SystemTime::now().checked_sub(Duration::from_millis(silence)).unwrap_or_else(SystemTime::now);
        side.away_since = Some((now.saturating_sub(silence), since));
        side.timed_out = 0;
        side.change = Some(SideChange::Away);
        self.is_away.store(true, SeqCst);
    }

    /// Notes that a probe begins.
    fn probe_begins(&self) {
        let now = self.now_ms();
        self.side.lock().silent_since.get_or_insert(now);
    }

    /// Notes what a probe got.
    fn probe_ends(&self, outcome: Result<(), Errno>) {
        let now = self.now_ms();
        let mut side = self.side.lock();
        match outcome {
            Err(error) if is_of_dead_side(error) => {
                if side.away_since.is_none() {
                    self.set_away(&mut side, now, 0);
                }
            }
            // Any other error is a reply, too.
            _ => {
                side.silent_since = None;
                if let Some((since, _)) = side.away_since.take() {
                    side.change = Some(SideChange::Back(Duration::from_millis(now.saturating_sub(since))));
                    self.is_away.store(false, SeqCst);
                }
            }
        }
    }

    /// Starts the thread that probes the slow side, if there is none. Nobody waits for its end, as a probe may not return.
    pub fn start_probes(self: &Arc<Self>) -> std::io::Result<()> {
        {
            let mut side = self.side.lock();
            side.has_probes_ended = false;
            if std::mem::replace(&mut side.is_probed, true) {
                return Ok(());
            }
        }
        let watchdog = Arc::clone(self);
        std::thread::Builder::new().name("probe".into()).spawn(move || watchdog.probe_when_wanted()).map(drop)
    }

    /// Ends the thread that probes the slow side. Returns whether it has ended by the deadline; if not, it goes on.
    pub fn end_probes(&self, deadline: Instant) -> bool {
        let mut side = self.side.lock();
        side.has_probes_ended = true;
        self.wake.notify_all();
        while side.is_probed && Instant::now() < deadline {
            self.wake.wait_until(&mut side, deadline);
        }
        side.has_probes_ended = !side.is_probed;
        !side.is_probed
    }

    /// Waits until a probe is wanted and one may begin. Returns whether the thread shall end.
    fn have_probes_ended(&self, next: Option<Instant>) -> bool {
        let mut side = self.side.lock();
        loop {
            if side.has_probes_ended {
                side.is_probed = false;
                self.wake.notify_all();
                return true;
            }
            match next {
                Some(next) if Instant::now() < next => _ = self.wake.wait_until(&mut side, next),
                _ if side.is_probe_wanted => {
                    side.is_probe_wanted = false;
                    return false;
                }
                _ => self.wake.wait(&mut side),
            }
        }
    }

    fn probe_when_wanted(&self) {
        let mut last: Option<Instant> = None;
        while !self.have_probes_ended(last.map(|last| last + PROBE_INTERVAL)) {
            self.probe_begins();
            let outcome = (self.probe)();
            self.probe_ends(outcome);
            last = Some(Instant::now());
        }
    }
}

/// Returns whether the caller has got a signal that ends its process. The kernel does not name the caller of a close, which is let go after
/// any signal.
fn is_being_killed(request: &SeenRequest) -> bool {
    if request.pid == 0 {
        return request.opcode == opcodes::FLUSH;
    }
    match std::fs::read_to_string(format!("/proc/{}/status", request.pid)) {
        Ok(status) => has_fatal_signal(&status),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Looks into the text of `/proc/PID/status` for a pending signal that is fatal.
fn has_fatal_signal(status: &str) -> bool {
    const KILL: u64 = 1 << 8;
    /// Signals that end a process with a core dump, which the kernel does not turn into SIGKILL: QUIT, ILL, TRAP, ABRT, BUS, FPE, SEGV,
    /// XCPU, XFSZ, SYS.
    const DUMPING: u64 = 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 23 | 1 << 24 | 1 << 30;
    /// HUP, INT, USR1, USR2, PIPE, ALRM, TERM and others that end a process by default.
    const ENDING: u64 = 1 | 1 << 1 | 1 << 9 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 14 | 1 << 15 | 1 << 25 | 1 << 26 | 1 << 28 | 1 << 29;
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0)
    };
    let pending = mask("SigPnd") | mask("ShdPnd");
    let survives = mask("SigBlk") | mask("SigIgn") | mask("SigCgt");
    pending & KILL != 0 || pending & (DUMPING | ENDING) & !survives != 0
}

#[cfg(test)]
mod test {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(2);

    fn watchdog() -> Watchdog {
        Watchdog::new(DEADLINE, Box::new(|| Ok(())))
    }

    fn head(unique: u64) -> RequestHeader {
        RequestHeader { opcode: opcodes::FLUSH, unique, ino: 7, uid: 0, gid: 0, pid: 0 }
    }

    /// Runs rounds for so long, and returns to which requests was replied.
    fn wait(watchdog: &Watchdog, ms: u64) -> Vec<(u64, Errno)> {
        let rounds = (0..ms / 100).flat_map(|_| watchdog.tick(TICK));
        rounds.map(|overdue| (overdue.unique, overdue.error)).collect()
    }

    #[test]
    fn a_silent_side_is_away_after_the_deadline_and_its_requests_time_out_once() {
        let watchdog = watchdog();
        let first = watchdog.begin(&head(2)).expect("room");
        assert!(wait(&watchdog, 400).is_empty() && !watchdog.is_suspect());
        assert!(wait(&watchdog, 200).is_empty() && watchdog.is_suspect());
        watchdog.probe_begins();
        assert!(wait(&watchdog, 1900).is_empty() && !watchdog.is_away());
        assert_eq!(wait(&watchdog, 300), [(2, Errno::TIMEDOUT)]);
        assert_eq!((watchdog.is_away(), watchdog.take_change(), watchdog.take_change()), (true, Some(SideChange::Away), None));
        assert_eq!((watchdog.report().timed_out, watchdog.report().unfinished), (1, 1));
        assert!(!first.claim() && watchdog.report().unfinished == 0);
        // Later ones fail soon.
        let second = watchdog.begin(&head(4)).expect("room");
        assert_eq!(wait(&watchdog, 1100), [(4, Errno::TIMEDOUT)]);
        watchdog.probe_ends(Ok(()));
        assert!(matches!(watchdog.take_change(), Some(SideChange::Back(_))) && !watchdog.is_away());
        assert_eq!((watchdog.report().away_since, watchdog.report().timed_out), (None, 2));
        assert_eq!((watchdog.report().timed_out_total, watchdog.report().failed_total), (2, 0));
        assert!(watchdog.tick(TICK).is_empty() && watchdog.is_suspect());
        assert!(!second.claim() && watchdog.tick(TICK).is_empty() && !watchdog.is_suspect());
    }

    #[test]
    fn a_side_that_replies_may_be_slow_but_not_for_ever() {
        let watchdog = watchdog();
        let ticket = watchdog.begin(&head(2)).expect("room");
        for _ in 0..19 {
            watchdog.probe_begins();
            watchdog.probe_ends(Err(Errno::ACCESS));
            assert!(wait(&watchdog, 1000).is_empty());
        }
        assert!(ticket.is_wanted() && !watchdog.is_away());
        assert_eq!(wait(&watchdog, 1000), [(2, Errno::TIMEDOUT)]);
        assert!(!watchdog.is_away());
    }

    #[test]
    fn a_dead_side_is_away_at_once_and_a_sleeping_machine_does_not_count() {
        let watchdog = watchdog();
        let ticket = watchdog.begin(&head(2)).expect("room");
        watchdog.probe_begins();
        assert!(watchdog.tick(Duration::from_secs(3600)).is_empty() && !watchdog.is_away());
        ticket.note_error(Errno::IO);
        assert!(!watchdog.requests.take_failed());
        ticket.note_error(Errno::NOTCONN);
        assert!(watchdog.requests.take_failed() && !watchdog.requests.take_failed());
        watchdog.probe_ends(Err(Errno::NOTCONN));
        // What is refused while the side is away has not failed there, nor has what is denied.
        ticket.note_error(Errno::TIMEDOUT);
        ticket.note_error(Errno::ACCESS);
        assert_eq!(watchdog.report().failed_total, 2);
        assert!(watchdog.is_away() && ticket.claim());
        // Somebody else has replied.
        ticket.note_error(Errno::IO);
        assert_eq!((watchdog.report().failed_total, watchdog.report().timed_out_total), (2, 0));
    }

    #[test]
    fn probes_end_and_begin_again_but_one_that_does_not_return_goes_on() {
        let (wait, replies) = std::sync::mpsc::channel::<()>();
        let replies = Mutex::new(replies);
        let watchdog = Arc::new(Watchdog::new(DEADLINE, Box::new(move || replies.lock().recv().map_err(|_| Errno::NOTCONN))));
        let soon = || Instant::now() + Duration::from_secs(30);
        for _ in 0..2 {
            watchdog.start_probes().expect("a thread");
            assert!(watchdog.end_probes(soon()) && watchdog.end_probes(soon()));
        }
        watchdog.start_probes().expect("a thread");
        watchdog.want_probe();
        while watchdog.side.lock().silent_since.is_none() {
            std::thread::yield_now();
        }
        assert!(!watchdog.end_probes(Instant::now() + Duration::from_millis(20)));
        wait.send(()).expect("waits");
        assert!(watchdog.end_probes(soon()));
        assert_eq!((watchdog.is_away(), watchdog.silence()), (false, Duration::ZERO));
    }

    #[test]
    fn a_killed_process_is_let_go_and_another_signal_changes_nothing() {
        let watchdog = watchdog();
        let ticket = watchdog.begin(&head(2)).expect("room");
        // The thread of this test has no fatal signal.
        let own = RequestHeader { pid: rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned(), ..head(4) };
        let other = watchdog.begin(&own).expect("room");
        assert!(watchdog.interrupt(2) && watchdog.interrupt(4) && !watchdog.interrupt(6));
        assert!(wait(&watchdog, 900).is_empty());
        assert_eq!(wait(&watchdog, 200), [(2, Errno::INTR)]);
        assert!(!ticket.claim() && other.claim() && watchdog.report().timed_out == 0);
    }

    #[test]
    fn fatal_signals_are_told_from_others() {
        let status = |pending: u64, shared: u64, survived: u64| {
            format!(
                "Name:\tx\nSigPnd:\t{pending:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{:016x}\nSigIgn:\t0\nSigCgt:\t{survived:016x}\n",
                0
            )
        };
        assert!(has_fatal_signal(&status(1 << 8, 0, 0)) && has_fatal_signal(&status(0, 1 << 8, 0)));
        assert!(has_fatal_signal(&status(0, 1 << 14, 0)) && !has_fatal_signal(&status(0, 1 << 14, 1 << 14)));
        // SIGCHLD, SIGWINCH.
        assert!(!has_fatal_signal(&status(1 << 16, 1 << 27, 0)) && !has_fatal_signal(""));
    }

    #[test]
    fn the_probe_runs_when_something_waits() {
        let (send, probed) = std::sync::mpsc::channel();
        let send = Mutex::new(send);
        let watchdog = Arc::new(Watchdog::new(DEADLINE, Box::new(move || send.lock().send(()).map_err(|_| Errno::IO))));
        watchdog.start_probes().expect("a thread");
        let ticket = watchdog.begin(&head(2)).expect("room");
        assert!(wait(&watchdog, 600).is_empty());
        probed.recv_timeout(Duration::from_secs(10)).expect("probed");
        assert!(ticket.claim());
    }
}
