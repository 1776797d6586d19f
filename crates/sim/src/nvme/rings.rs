//! The controller's side of the rings.

use std::sync::atomic::Ordering;

use block::Time;
use nvme::Status;
use nvme::doorbell::look;
use nvme::entry::{Answer, Entry};
use nvme::registers::{DOORBELLS, completion_doorbell, submission_doorbell};

use super::State;

/// A submission queue.
pub(super) struct Submissions {
    pub at: u64,
    pub entries: u32,
    pub head: u32,
    pub tail: u32,
    pub completions: u16,
}

/// A completion queue.
pub(super) struct Completions {
    pub at: u64,
    pub entries: u32,
    /// As the host told.
    pub head: u32,
    pub tail: u32,
    pub phase: bool,
    pub vector: Option<u16>,
}

/// Commands fetched from one queue before the next has its turn.
const BURST: u32 = 8;

impl State {
    /// Takes commands out of all rings. True: there were some.
    pub(super) fn fetch(&mut self, now: Time) -> bool {
        self.look_at_shadows();
        let numbers: Vec<u16> = self.submissions.iter().filter(|(_, ring)| ring.head != ring.tail).map(|(number, _)| *number).collect();
        for number in &numbers {
            for _ in 0..BURST {
                if !self.fetch_one(*number, now) {
                    break;
                }
            }
        }
        !numbers.is_empty()
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

    /// Tails and heads that the host left in memory, and marks for when it shall ring in earnest.
    fn look_at_shadows(&mut self) {
        let Some((values, marks)) = self.shadow else { return };
        let stride = 4 << self.shape.stride_shift;
        let numbers: Vec<u16> = self.submissions.keys().copied().filter(|number| *number > 0).collect();
        for number in numbers {
            let [tail, head] = [submission_doorbell(number, stride), completion_doorbell(number, stride)].map(|at| (at - DOORBELLS) as u64);
            if let Some(value) = self.exchange(values + tail, marks + tail) {
                self.set_tail(number, value);
            }
            if let Some(value) = self.exchange(values + head, marks + head) {
                self.set_head(number, value);
            }
        }
    }

    /// Says that the host shall ring at the next change, and only then looks.
    fn exchange(&mut self, value: u64, mark: u64) -> Option<u32> {
        let (region, at) = self.memory.place(value, 4)?;
        let (marks, mark_at) = self.memory.place(mark, 4)?;
        let (value, mark) = (region.u32(at), marks.u32(mark_at));
        if self.outside.awake {
            // It is looked at again by itself: never mind ringing. (No value lies between this mark and the next.)
            let seen = value.load(Ordering::Acquire);
            mark.store(seen.wrapping_sub(1) & 0xffff, Ordering::Relaxed);
            return Some(seen);
        }
        Some(look(value, mark))
    }

    /// Doorbells that the host wrote into memory that it shares with us. True: one was rung.
    pub(super) fn look_at_page(&mut self) -> bool {
        let Some(page) = self.outside.page.clone() else { return false };
        let stride = 4 << self.shape.stride_shift;
        // With doorbells in the host's memory those are newer: these have done their work by waking us.
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
            // What makes no sense is said once.
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

    /// See [`super::SoftController::scribble`].
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

    /// Writes an answer, as if from queue `shown` under identifier `cid`. A ring that is full loses it: the host sent more than it may.
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
        let answer = Answer::new(result, head, shown, cid, status, ring.phase);
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
