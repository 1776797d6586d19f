//! Which request fails how.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use block::{Error, Lba, Op, Request, Status};
use parking_lot::Mutex;

/// How long a request hangs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HangKind {
    /// Until it is cancelled, or the queue is reset.
    UntilCancel,
    /// Until the queue is reset: it cannot be cancelled.
    UntilReset,
    /// For ever: the queue cannot even be reset.
    ForEver,
}

/// What of a write reaches the medium, in sectors of 512 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TornPart {
    /// The first so many.
    Prefix(u32),
    /// The first ones, as many as chance has it, but not all.
    AnyPrefix,
    /// Any of them, but not all.
    Any,
}

/// What happens to a request. What needs data does nothing to requests without, and is not counted then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Not done, and reported so.
    Fail(Error),
    /// Not answered. A read that hangs goes on writing into its memory.
    Hang(HangKind),
    /// Reported this much later than it ended.
    Slow(Duration),
    /// Reported after so many others that ended later, or when no other is in flight.
    Late(u32),
    /// A write that reaches the medium in part, with what it is reported as.
    Torn(TornPart, Status),
    /// So many bits of what is read are wrong.
    FlipRead(u32),
    /// So many bits of what is written are wrong on the medium.
    FlipWrite(u32),
    /// Reported as done, and not done.
    Lost,
    /// Written to another place: there, or anywhere.
    Misdirected(Option<Lba>),
    /// Reported twice.
    Twice,
    /// Beside its completion comes one with a tag that nobody sent.
    Stray,
    /// The device goes away with this request, for good.
    Gone,
}

/// What was injected, to be counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[expect(missing_docs, reason = "as in `Fault`")]
pub enum FaultKind {
    Fail,
    Hang,
    Slow,
    Late,
    Torn,
    FlipRead,
    FlipWrite,
    Lost,
    Misdirected,
    Twice,
    Stray,
    Gone,
    /// A reset that failed.
    Reset,
}

const FAULT_KINDS: usize = FaultKind::Reset as usize + 1;

impl Fault {
    /// Its kind.
    pub fn kind(&self) -> FaultKind {
        match self {
            Fault::Fail(_) => FaultKind::Fail,
            Fault::Hang(_) => FaultKind::Hang,
            Fault::Slow(_) => FaultKind::Slow,
            Fault::Late(_) => FaultKind::Late,
            Fault::Torn(..) => FaultKind::Torn,
            Fault::FlipRead(_) => FaultKind::FlipRead,
            Fault::FlipWrite(_) => FaultKind::FlipWrite,
            Fault::Lost => FaultKind::Lost,
            Fault::Misdirected(_) => FaultKind::Misdirected,
            Fault::Twice => FaultKind::Twice,
            Fault::Stray => FaultKind::Stray,
            Fault::Gone => FaultKind::Gone,
        }
    }

    /// Whether it can happen to such a request.
    pub(super) fn fits(&self, op: Op) -> bool {
        match self {
            Fault::FlipRead(_) => op == Op::Read,
            Fault::Torn(..) | Fault::FlipWrite(_) | Fault::Misdirected(_) => op == Op::Write,
            Fault::Lost => op != Op::Read,
            _ => true,
        }
    }
}

/// To which of the requests that a rule is about it happens.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum FaultTrigger {
    /// All.
    Always,
    /// The nth, counted from 1.
    Nth(u64),
    /// The nth and all after it.
    From(u64),
    /// Every nth.
    Every(u64),
    /// Each with this probability.
    Chance(f64),
}

/// A fault, and which requests it happens to.
#[derive(Clone, PartialEq, Debug)]
pub struct FaultRule {
    /// What is asked for; empty: anything.
    pub ops: Vec<Op>,
    /// Blocks: requests that touch one of them. Flushes touch all.
    pub blocks: Range<u64>,
    /// Which of these.
    pub when: FaultTrigger,
    /// What happens.
    pub fault: Fault,
}

impl FaultRule {
    /// For any request anywhere.
    pub fn new(when: FaultTrigger, fault: Fault) -> FaultRule {
        FaultRule { ops: Vec::new(), blocks: 0..u64::MAX, when, fault }
    }

    /// Only for such requests.
    #[must_use]
    pub fn on(mut self, ops: &[Op]) -> FaultRule {
        self.ops = ops.to_vec();
        self
    }

    /// Only for requests that touch these blocks.
    #[must_use]
    pub fn within(mut self, blocks: Range<u64>) -> FaultRule {
        self.blocks = blocks;
        self
    }

    fn is_about(&self, request: &Request) -> bool {
        let touches = request.lba.0 < self.blocks.end && request.lba.0.saturating_add(request.blocks.into()) > self.blocks.start;
        (self.ops.is_empty() || self.ops.contains(&request.op)) && (touches || request.op == Op::Flush) && self.fault.fits(request.op)
    }
}

/// Names a rule, to ask after it and to remove it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RuleId(u64);

/// A rule at work.
#[derive(Debug)]
pub(super) struct ActiveRule {
    id: RuleId,
    rule: FaultRule,
    seen: AtomicU64,
    happened: AtomicU64,
}

impl ActiveRule {
    /// The fault, if it happens to this request.
    pub(super) fn meets(&self, request: &Request, random: &mut fastrand::Rng) -> Option<Fault> {
        if !self.rule.is_about(request) {
            return None;
        }
        let seen = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        let happens = match self.rule.when {
            FaultTrigger::Always => true,
            FaultTrigger::Nth(n) => seen == n,
            FaultTrigger::From(n) => seen >= n,
            FaultTrigger::Every(n) => seen.is_multiple_of(n.max(1)),
            FaultTrigger::Chance(chance) => random.f64() < chance,
        };
        happens.then_some(self.rule.fault)
    }

    pub(super) fn count(&self) {
        self.happened.fetch_add(1, Ordering::Relaxed);
    }
}

/// The rules of a device, and what came of them. Clones are the same rules.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    inner: Arc<FaultState>,
}

#[derive(Debug, Default)]
struct FaultState {
    rules: Mutex<Vec<Arc<ActiveRule>>>,
    /// Counts changes of the rules: queues look at this alone.
    version: AtomicU64,
    next: AtomicU64,
    resets_to_fail: AtomicU32,
    injected: [AtomicU64; FAULT_KINDS],
}

impl Faults {
    /// Adds a rule, after those that are there.
    pub fn add(&self, rule: FaultRule) -> RuleId {
        let id = RuleId(self.inner.next.fetch_add(1, Ordering::Relaxed));
        let active = ActiveRule { id, rule, seen: AtomicU64::new(0), happened: AtomicU64::new(0) };
        self.inner.rules.lock().push(Arc::new(active));
        self.inner.version.fetch_add(1, Ordering::Release);
        id
    }

    /// Removes a rule; what it did to requests in flight stays done.
    pub fn remove(&self, id: RuleId) {
        self.inner.rules.lock().retain(|active| active.id != id);
        self.inner.version.fetch_add(1, Ordering::Release);
    }

    /// Removes all rules.
    pub fn clear(&self) {
        self.inner.rules.lock().clear();
        self.inner.version.fetch_add(1, Ordering::Release);
    }

    /// Lets the next so many resets fail.
    pub fn fail_resets(&self, count: u32) {
        self.inner.resets_to_fail.store(count, Ordering::Relaxed);
    }

    /// How often something of this kind was injected.
    pub fn injected(&self, kind: FaultKind) -> u64 {
        self.inner.injected[kind as usize].load(Ordering::Relaxed)
    }

    /// How often a rule was; none when it was removed.
    pub fn happened(&self, id: RuleId) -> Option<u64> {
        let rules = self.inner.rules.lock();
        rules.iter().find(|active| active.id == id).map(|active| active.happened.load(Ordering::Relaxed))
    }

    pub(super) fn count(&self, kind: FaultKind) {
        self.inner.injected[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn version(&self) -> u64 {
        self.inner.version.load(Ordering::Acquire)
    }

    pub(super) fn rules(&self) -> Vec<Arc<ActiveRule>> {
        self.inner.rules.lock().clone()
    }

    pub(super) fn reset_fails(&self) -> bool {
        let one_less = |left: u32| left.checked_sub(1);
        self.inner.resets_to_fail.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }
}
