//! Rules that select a request and its fault.

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
    /// Until the queue is reset; a cancel has no effect.
    UntilReset,
    /// Forever; even a reset of the queue fails.
    ForEver,
}

/// The part of a torn write that reaches the medium, in sectors of 512 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TornPart {
    /// This many leading sectors.
    Prefix(u32),
    /// A random number of leading sectors, but not all.
    AnyPrefix,
    /// A random set of sectors, but not all.
    Any,
}

/// A fault of a request. A fault that needs data ignores requests without data, and does not count them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The request has no effect and fails with this error.
    Fail(Error),
    /// The request never completes. A hung read goes on writing into its memory.
    Hang(HangKind),
    /// The completion is delayed by this duration.
    Slow(Duration),
    /// The completion is delayed until this many later requests completed, or no other is in flight.
    Late(u32),
    /// Part of the write reaches the medium; the request completes with this status.
    Torn(TornPart, Status),
    /// This many bits of the data read are flipped.
    FlipRead(u32),
    /// This many bits of the data written are flipped on the medium.
    FlipWrite(u32),
    /// The request completes successfully without effect.
    Lost,
    /// The write goes to the wrong block: this one, or a random one.
    Misdirected(Option<Lba>),
    /// The request completes twice.
    Twice,
    /// A second completion follows, with a tag that was never submitted.
    Stray,
    /// The device disappears with this request, permanently.
    Gone,
}

/// The kind of an injected fault, for counters.
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
    /// Returns the kind of this fault.
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

    /// Returns whether the fault applies to such a request.
    pub(super) fn fits(&self, op: Op) -> bool {
        match self {
            Fault::FlipRead(_) => op == Op::Read,
            Fault::Torn(..) | Fault::FlipWrite(_) | Fault::Misdirected(_) => op == Op::Write,
            Fault::Lost => op != Op::Read,
            _ => true,
        }
    }
}

/// Which of the matching requests a rule affects.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum FaultTrigger {
    /// Every matching request.
    Always,
    /// The nth matching request, counted from 1.
    Nth(u64),
    /// The nth matching request and all later ones.
    From(u64),
    /// Every nth matching request.
    Every(u64),
    /// Each matching request with this probability.
    Chance(f64),
}

/// A fault and the requests that it affects.
#[derive(Clone, PartialEq, Debug)]
pub struct FaultRule {
    /// The operations that match; empty: any.
    pub ops: Vec<Op>,
    /// A request matches if it touches one of these blocks. Flushes touch all.
    pub blocks: Range<u64>,
    /// Which of the matching requests are affected.
    pub when: FaultTrigger,
    /// The fault that is injected.
    pub fault: Fault,
}

impl FaultRule {
    /// Creates a rule for any request.
    pub fn new(when: FaultTrigger, fault: Fault) -> FaultRule {
        FaultRule { ops: Vec::new(), blocks: 0..u64::MAX, when, fault }
    }

    /// Restricts the rule to these operations.
    #[must_use]
    pub fn on(mut self, ops: &[Op]) -> FaultRule {
        self.ops = ops.to_vec();
        self
    }

    /// Restricts the rule to requests that touch these blocks.
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

/// Identifies a rule, to query and to remove it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RuleId(u64);

/// An installed rule with its counters.
#[derive(Debug)]
pub(super) struct ActiveRule {
    id: RuleId,
    rule: FaultRule,
    seen: AtomicU64,
    happened: AtomicU64,
}

impl ActiveRule {
    /// Returns the fault if the rule affects this request.
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

/// The rules of a device and their counters. Clones share the rules.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    inner: Arc<FaultState>,
}

#[derive(Debug, Default)]
struct FaultState {
    rules: Mutex<Vec<Arc<ActiveRule>>>,
    /// Version of the rules; queues check only this.
    version: AtomicU64,
    next: AtomicU64,
    resets_to_fail: AtomicU32,
    injected: [AtomicU64; FAULT_KINDS],
}

impl Faults {
    /// Appends a rule to the existing ones.
    pub fn add(&self, rule: FaultRule) -> RuleId {
        let id = RuleId(self.inner.next.fetch_add(1, Ordering::Relaxed));
        let active = ActiveRule { id, rule, seen: AtomicU64::new(0), happened: AtomicU64::new(0) };
        self.inner.rules.lock().push(Arc::new(active));
        self.inner.version.fetch_add(1, Ordering::Release);
        id
    }

    /// Removes a rule; its effect on requests in flight remains.
    pub fn remove(&self, id: RuleId) {
        self.inner.rules.lock().retain(|active| active.id != id);
        self.inner.version.fetch_add(1, Ordering::Release);
    }

    /// Removes all rules of the device.
    pub fn clear(&self) {
        self.inner.rules.lock().clear();
        self.inner.version.fetch_add(1, Ordering::Release);
    }

    /// Makes the next `count` resets fail.
    pub fn fail_resets(&self, count: u32) {
        self.inner.resets_to_fail.store(count, Ordering::Relaxed);
    }

    /// Returns how often a fault of this kind was injected.
    pub fn injected(&self, kind: FaultKind) -> u64 {
        self.inner.injected[kind as usize].load(Ordering::Relaxed)
    }

    /// Returns how often a rule was applied. `None`: the rule was removed.
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
