//! The controller's side of the queues.

use std::sync::atomic::Ordering;

use block::Time;
use nvme::Status;
use nvme::doorbell::look;
use nvme::entry::{CompletionEntry, Entry};
use nvme::registers::{DOORBELLS, completion_doorbell, submission_doorbell};
use shm::Region;

use super::ControllerState;

/// A submission queue.
pub(super) struct Submissions {
    /// Address of the queue in host memory.
    pub at: u64,
    /// Number of entries of the queue.
    pub entries: u32,
    /// Index of the next entry to fetch.
    pub head: u32,
    /// Index behind the last valid entry.
    pub tail: u32,
    /// Number of the completion queue to use.
    pub completions: u16,
}

/// A completion queue.
pub(super) struct Completions {
    /// Address of the queue in host memory.
    pub at: u64,
    /// Number of entries of the queue.
    pub entries: u32,
    /// Head as written by the host.
    pub head: u32,
    /// Index behind the last valid entry.
    pub tail: u32,
    /// Phase tag of the next entry.
    pub phase: bool,
    /// Interrupt vector, if interrupts are enabled.
    pub vector: Option<u16>,
}

/// Page of shadow doorbells and of event indices.
const PAGE: usize = 4096;
/// Commands fetched from one queue before the next.
const BURST: u32 = 8;

impl ControllerState {
    /// Fetches commands from all queues. Returns whether there were any.
    pub(super) fn fetch(&mut self, now: Time) -> bool {
        self.look_at_shadows();
        let (mut did, mut next) = (false, 0);
        // Fetched commands may delete and create queues.
        while let Some((&number, _)) = self.submissions.range(next..).find(|(_, ring)| ring.head != ring.tail) {
            did = true;
            for _ in 0..BURST {
                if !self.fetch_one(number, now) {
                    break;
                }
            }
            let Some(after) = number.checked_add(1) else { break };
            next = after;
        }
        did
    }

    fn fetch_one(&mut self, number: u16, now: Time) -> bool {
        let Some(ring) = self.submissions.get_mut(&number).filter(|ring| ring.head != ring.tail) else { return false };
        let at = ring.at + u64::from(ring.head) * 64;
        ring.head = (ring.head + 1) % ring.entries;
        let Some((region, place)) = self.memory.place(at, 64) else { return true };
        let entry = Entry(std::array::from_fn(|word| region.u64(place + 8 * word).load(Ordering::Relaxed)));
        self.done.fetched += 1;
        self.take(number, entry, now);
        true
    }

    /// Reads the shadow doorbells and writes the event indices.
    fn look_at_shadows(&mut self) {
        let Some((values, marks)) = self.shadow else { return };
        let (Some(values), Some(marks)) = (self.memory.place(values, PAGE), self.memory.place(marks, PAGE)) else { return };
        let stride = 4 << self.shape.stride_shift;
        let mut next = 1;
        while let Some((&number, ring)) = self.submissions.range(next..).next() {
            let (tail, head) = (ring.tail, self.completions.get(&number).map(|ring| ring.head));
            let [at_tail, at_head] = [submission_doorbell(number, stride), completion_doorbell(number, stride)].map(|at| at - DOORBELLS);
            if at_head + 4 > PAGE {
                break;
            }
            let look = |at| look_at(&values.0, values.1 + at, &marks.0, marks.1 + at, self.remote.awake);
            let (new_tail, new_head) = (look(at_tail), look(at_head));
            if new_tail != tail {
                self.set_tail(number, new_tail);
            }
            if head.is_some_and(|head| new_head != head) {
                self.set_head(number, new_head);
            }
            let Some(after) = number.checked_add(1) else { break };
            next = after;
        }
    }

    /// Reads the shared doorbell page. Returns whether a doorbell changed.
    pub(super) fn look_at_page(&mut self) -> bool {
        let Some(page) = self.remote.page.clone() else { return false };
        let stride = 4 << self.shape.stride_shift;
        // With shadow doorbells those are newer: the page only wakes the worker.
        let counts = |number: u16| number == 0 || self.shadow.is_none();
        let rung = |at: usize, known: u32| Some(at).filter(|at| at + 4 <= page.len() && page.u32(*at).load(Ordering::Acquire) != known);
        let tail = self.submissions.iter().find_map(|(number, ring)| {
            let at = counts(*number).then(|| rung(submission_doorbell(*number, stride), ring.tail))??;
            Some((at, *number, true, ring.tail, ring.entries))
        });
        let found = tail.or_else(|| {
            self.completions.iter().find_map(|(number, ring)| {
                let at = counts(*number).then(|| rung(completion_doorbell(*number, stride), ring.head))??;
                Some((at, *number, false, ring.head, ring.entries))
            })
        });
        let Some((at, number, is_tail, known, entries)) = found else { return false };
        let value = page.u32(at).load(Ordering::Acquire);
        if is_tail {
            self.set_tail(number, value)
        } else {
            self.set_head(number, value)
        }
        if value >= entries {
            // An invalid value is reported once.
            page.u32(at).store(known, Ordering::Relaxed);
        }
        true
    }

    pub(super) fn set_tail(&mut self, number: u16, value: u32) {
        let Some(ring) = self.submissions.get_mut(&number) else { return };
        if value < ring.entries {
            ring.tail = value;
        } else {
            self.memory.violation(format!("queue {number}: tail {value}"));
        }
    }

    pub(super) fn set_head(&mut self, number: u16, value: u32) {
        let Some(ring) = self.completions.get_mut(&number) else { return };
        if value < ring.entries {
            ring.head = value;
        } else {
            self.memory.violation(format!("queue {number}: head {value}"));
        }
    }

    /// Writes garbage; see [`super::SoftController::scribble`].
    pub(super) fn scribble(&mut self) {
        let numbers: Vec<u16> = self.completions.keys().copied().collect();
        if self.random.bool() && !numbers.is_empty() {
            let number = numbers[self.random.usize(..numbers.len())];
            // Slots and generations are small numbers mostly.
            let cid = if self.random.bool() { self.random.u16(..256) } else { self.random.u16(..) };
            let status = if self.random.bool() { Status::OK } else { Status(self.random.u16(..1 << 15)) };
            let result = self.random.u32(..);
            self.doubled = true;
            return self.answer((number, number), cid, status, result);
        }
        let Some((at, room)) = self.memory.any_place(&mut self.random) else { return };
        let mut bytes = vec![0; self.random.usize(1..=64).min(room)];
        self.random.fill(&mut bytes);
        self.memory.write(at, &bytes);
    }

    /// Posts a completion, as if from queue `shown` with identifier `cid`. A full ring loses it: the host submitted too many commands.
    pub(super) fn answer(&mut self, (number, shown): (u16, u16), cid: u16, status: Status, result: u32) {
        let Some(submissions) = self.submissions.get(&number) else { return };
        let (head, completions) = (submissions.head as u16, submissions.completions);
        let Some(ring) = self.completions.get_mut(&completions) else { return };
        if (ring.tail + 1) % ring.entries == ring.head {
            if !self.doubled {
                self.memory.violation(format!("queue {completions}: no place for an answer"));
            }
            return;
        }
        let answer = CompletionEntry::new(result, head, shown, cid, status, ring.phase);
        let (at, vector) = (ring.at + u64::from(ring.tail) * 16, ring.vector);
        ring.tail = (ring.tail + 1) % ring.entries;
        ring.phase ^= ring.tail == 0;
        self.done.answered += 1;
        if let Some((region, place)) = self.memory.place(at, 16) {
            region.u64(place).store(answer.0[0], Ordering::Relaxed);
            region.u64(place + 8).store(answer.0[1], Ordering::Release);
        }
        if let Some(vector) = vector {
            self.raise(vector);
        }
    }
}

/// Reads a shadow doorbell. The event index requests a doorbell write at the next change, or, if a thread is `awake` and polls, none (no
/// value lies between this index and the next).
fn look_at(values: &Region, value: usize, marks: &Region, mark: usize, awake: bool) -> u32 {
    let (value, mark) = (values.u32(value), marks.u32(mark));
    if !awake {
        return look(value, mark);
    }
    let seen = value.load(Ordering::Acquire);
    let unwanted = seen.wrapping_sub(1) & 0xffff;
    // The cache line is shared with the host: write it only on change.
    if mark.load(Ordering::Relaxed) != unwanted {
        mark.store(unwanted, Ordering::Relaxed);
    }
    seen
}
