//! Pauses after moves that did not succeed.
//!
//! A failed move has cost a copy, and would most likely fail again. So the file rests, twice as long after each failure, and when
//! several moves to a side fail in a row the whole side rests; then a single move tries whether it is better. Each cause is logged
//! once and shown by `status` until a move to that side succeeds.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::job::MoveOutcome;
use crate::report::{MoveTrouble, TierName};

/// First pause of a file whose move failed, and the longest.
const FAILED: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(3600));
/// The same for a file that was in use, or changed while it was copied.
const USED: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// The same for a side.
const SIDE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// Moves to a side that may fail in a row before it rests.
const FAILURES_MAX: u32 = 4;
/// Files that are remembered.
const FILES_MAX: usize = 1 << 16;
/// How long a file's failures count after its pause.
const REMEMBERED: Duration = Duration::from_secs(3600);
/// A cause that goes on is logged again after this.
const SAID_AGAIN: Duration = Duration::from_secs(3600);

/// The pauses.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    files: HashMap<u64, FilePause>,
    sides: [SidePause; 2],
    causes: HashMap<(TierName, FailureCause), CauseCount>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum FailureCause {
    Failed(i32),
    Stays(&'static str),
}

impl FailureCause {
    /// Whether users see it: a failure, or what the other side cannot hold; not what every file system has, such as hard links.
    fn is_shown(self) -> bool {
        match self {
            FailureCause::Failed(_) => true,
            FailureCause::Stays(why) => why.contains("other side"),
        }
    }

    fn text(self) -> String {
        match self {
            FailureCause::Failed(code) => Errno::from_raw_os_error(code).to_string(),
            FailureCause::Stays(why) => why.into(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct FilePause {
    until: Instant,
    tries: u32,
    cause: Option<FailureCause>,
}

#[derive(Clone, Copy, Debug, Default)]
struct SidePause {
    failures: u32,
    until: Option<Instant>,
}

#[derive(Clone, Debug)]
struct CauseCount {
    moves: u64,
    first: String,
    said: Instant,
}

fn pause((first, longest): (Duration, Duration), tries: u32) -> Duration {
    first.saturating_mul(1 << tries.min(16)).min(longest)
}

impl Backoff {
    /// Records how a move ended; `true` when that is worth a line in the log.
    pub(super) fn note(&mut self, ino: u64, to: TierName, path: &str, outcome: MoveOutcome, now: Instant) -> bool {
        let (lengths, cause) = match outcome {
            MoveOutcome::Done | MoveOutcome::Already => {
                self.succeeded(ino, to);
                return false;
            }
            MoveOutcome::Busy | MoveOutcome::Dropped => (USED, None),
            MoveOutcome::Stays(why) => (FAILED, Some(FailureCause::Stays(why))),
            MoveOutcome::Failed(error) => (FAILED, Some(FailureCause::Failed(error.raw_os_error()))),
        };
        let tries = self.files.get(&ino).filter(|file| file.until + REMEMBERED > now).map_or(0, |file| file.tries);
        if self.files.len() >= FILES_MAX {
            self.files.retain(|_, file| file.until > now);
        }
        if self.files.len() < FILES_MAX || self.files.contains_key(&ino) {
            self.files.insert(ino, FilePause { until: now + pause(lengths, tries), tries: tries + 1, cause });
        }
        let Some(cause) = cause else { return false };
        // A file that does not fit on the SSD says nothing of the others.
        let no_room = matches!(outcome, MoveOutcome::Failed(Errno::NOSPC | Errno::DQUOT)) && to == TierName::Ssd;
        if matches!(cause, FailureCause::Failed(_)) && !no_room {
            let side = &mut self.sides[to as usize];
            side.failures += 1;
            if side.failures >= FAILURES_MAX {
                side.until = Some(now + pause(SIDE, side.failures - FAILURES_MAX));
            }
        }
        let count = self.causes.entry((to, cause)).or_insert_with(|| CauseCount { moves: 0, first: path.to_owned(), said: now });
        count.moves += 1;
        let say = cause.is_shown() && (count.moves == 1 || now.duration_since(count.said) > SAID_AGAIN);
        if say {
            count.said = now;
        }
        say
    }

    fn succeeded(&mut self, ino: u64, to: TierName) {
        self.files.remove(&ino);
        self.sides[to as usize] = SidePause::default();
        self.causes.retain(|(side, cause), _| *side != to || matches!(cause, FailureCause::Stays(_)));
    }

    /// Forgets the failures of a side: what caused them may be over.
    pub(super) fn side_is_better(&mut self, to: TierName) {
        self.sides[to as usize] = SidePause::default();
        self.causes.retain(|(side, cause), _| *side != to || matches!(cause, FailureCause::Stays(_)));
        self.files.retain(|_, file| !matches!(file.cause, Some(FailureCause::Failed(_))));
    }

    /// Whether a file is not to be moved now.
    pub(crate) fn rests(&self, ino: u64, now: Instant) -> bool {
        self.files.get(&ino).is_some_and(|file| file.until > now)
    }

    /// Why a file is not to be moved now, if its last move failed or could not be.
    pub(crate) fn why(&self, ino: u64, now: Instant) -> Option<String> {
        let file = self.files.get(&ino).filter(|file| file.until > now)?;
        file.cause.filter(|cause| cause.is_shown()).map(FailureCause::text)
    }

    /// Until when nothing is to be moved to a side.
    pub(super) fn side_rests(&self, to: TierName, now: Instant) -> Option<Instant> {
        self.sides[to as usize].until.filter(|until| *until > now)
    }

    /// Files that are not to be moved now.
    pub(super) fn resting(&mut self, now: Instant) -> impl Iterator<Item = u64> + '_ {
        self.files.retain(|_, file| file.until + REMEMBERED > now);
        self.files.iter().filter(move |(_, file)| file.until > now).map(|(ino, _)| *ino)
    }

    /// What `status` shows.
    pub(crate) fn report(&self, now: Instant) -> Vec<MoveTrouble> {
        let mut all: Vec<MoveTrouble> = self
            .causes
            .iter()
            .filter(|((_, cause), _)| cause.is_shown())
            .map(|((to, cause), count)| MoveTrouble {
                to: *to,
                cause: cause.text(),
                moves: count.moves,
                first: count.first.clone(),
                stays: matches!(cause, FailureCause::Stays(_)),
                next_try_s: self.side_rests(*to, now).map(|until| until.duration_since(now).as_secs()),
            })
            .collect();
        all.sort_by(|a, b| b.moves.cmp(&a.moves).then_with(|| a.cause.cmp(&b.cause)));
        all
    }
}

#[cfg(test)]
mod test {
    use super::*;

    const HDD: TierName = TierName::Hdd;

    /// A mover that moves one file after the other as soon as it may, for this long; answers how many it tried.
    fn tries(backoff: &mut Backoff, files: u64, seconds: u64, outcome: impl Fn(u64, u64) -> MoveOutcome) -> u64 {
        let begin = Instant::now();
        let mut tried = 0;
        for step in 0..seconds * 10 {
            let now = begin + Duration::from_millis(step * 100);
            let next = (0..files).find(|ino| !backoff.rests(*ino, now));
            if let Some(ino) = next.filter(|_| backoff.side_rests(HDD, now).is_none()) {
                tried += 1;
                backoff.note(ino, HDD, "a file", outcome(ino, step / 10), now);
            }
        }
        tried
    }

    #[test]
    fn a_side_that_refuses_everything_is_tried_ever_more_rarely() {
        let mut backoff = Backoff::default();
        let failed = MoveOutcome::Failed(Errno::INVAL);
        // 530 failed moves in two minutes were seen without this.
        let tried = tries(&mut backoff, 10_000, 120, |_, _| failed);
        assert!((4..16).contains(&tried), "{tried}");
        let hours = tries(&mut Backoff::default(), 10_000, 4 * 3600, |_, _| failed);
        assert!(hours < 80, "{hours}");
    }

    #[test]
    fn one_bad_file_does_not_keep_the_others_and_is_tried_again() {
        let mut backoff = Backoff::default();
        let outcome = |ino: u64, _: u64| if ino == 0 { MoveOutcome::Failed(Errno::IO) } else { MoveOutcome::Done };
        let begin = Instant::now();
        for ino in 0..50 {
            assert_eq!(backoff.side_rests(HDD, begin), None);
            backoff.note(ino, HDD, "a file", outcome(ino, 0), begin);
        }
        assert!(backoff.rests(0, begin + Duration::from_secs(29)) && !backoff.rests(0, begin + Duration::from_secs(31)));
        backoff.note(0, HDD, "a file", outcome(0, 0), begin + Duration::from_secs(31));
        assert!(backoff.rests(0, begin + Duration::from_secs(31 + 59)), "twice as long");
        backoff.note(0, HDD, "a file", MoveOutcome::Done, begin + Duration::from_secs(100));
        assert!(!backoff.rests(0, begin + Duration::from_secs(100)));
    }

    #[test]
    fn it_goes_on_when_the_side_is_better() {
        let mut backoff = Backoff::default();
        let tried =
            tries(&mut backoff, 1000, 300, |_, second| if second < 60 { MoveOutcome::Failed(Errno::IO) } else { MoveOutcome::Done });
        assert!(tried > 1000, "{tried}");
        for ino in 0..10 {
            backoff.note(ino, HDD, "a file", MoveOutcome::Failed(Errno::NOSPC), Instant::now());
        }
        assert!(backoff.side_rests(HDD, Instant::now()).is_some() && backoff.rests(3, Instant::now()));
        backoff.side_is_better(HDD);
        assert!(backoff.side_rests(HDD, Instant::now()).is_none() && !backoff.rests(3, Instant::now()));
    }

    #[test]
    fn a_cause_is_said_once_and_shown_until_it_is_over() {
        let mut backoff = Backoff::default();
        let now = Instant::now();
        let said = (0..100).filter(|ino| backoff.note(*ino, HDD, &format!("f{ino}"), MoveOutcome::Failed(Errno::INVAL), now)).count();
        assert_eq!(said, 1);
        assert!(backoff.note(7, HDD, "f7", MoveOutcome::Failed(Errno::IO), now), "another cause");
        assert!(backoff.note(8, HDD, "f8", MoveOutcome::Stays("the other side cannot keep its owner"), now));
        assert!(!backoff.note(9, HDD, "f9", MoveOutcome::Stays("the other side cannot keep its owner"), now));
        let shown = backoff.report(now);
        assert_eq!((shown.len(), shown[0].moves, &*shown[0].first), (3, 100, "f0"));
        assert!(shown[0].next_try_s.is_some());
        backoff.note(200, HDD, "good", MoveOutcome::Done, now);
        let shown = backoff.report(now);
        assert!(shown.len() == 1 && shown[0].stays, "{shown:?}");
    }

    #[test]
    fn the_memory_is_bounded() {
        let mut backoff = Backoff::default();
        let now = Instant::now();
        for ino in 0..(FILES_MAX as u64 + 1000) {
            backoff.note(ino, HDD, "f", MoveOutcome::Dropped, now);
        }
        assert_eq!(backoff.files.len(), FILES_MAX);
    }
}
