//! Hard disks: an arm, a spindle, zones, a track buffer, a write cache, and a queue from which the disk chooses.
//!
//! The angle of the platters is a function of time, and the angle of a sector one of its address, so that what the disk
//! does next depends on where it is: of the requests in its queue it takes the one it reaches first (as drives with NCQ
//! do), and the oldest if that has waited too long. Cached writes go to the medium when no read waits, or when the cache is
//! full. After a read the head goes on reading into the track buffer until it is needed elsewhere.
//!
//! The address stands for the place: the outer tracks come first. A stroke is a share of all tracks, so a small
//! simulated disk has few tracks and the seek times of a whole one.

use std::collections::VecDeque;
use std::time::Duration;

use block::{Geometry, Op, Request, Time};

use super::ssd::transfer;
use super::{DeviceModel, Token};

/// What a disk is made of. Rates in MB/s are 10^6 bytes per second.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HddParams {
    /// Turns in a minute.
    pub rpm: u32,
    /// From one track to the next.
    pub seek_track: Duration,
    /// Over all pairs of tracks, for a read.
    pub seek_average: Duration,
    /// From the first track to the last.
    pub seek_full: Duration,
    /// What a write needs more to settle.
    pub settle_write: Duration,
    /// Off the medium at the outermost track, MB/s.
    pub outer_mb_s: u32,
    /// At the innermost.
    pub inner_mb_s: u32,
    /// Steps between the two.
    pub zones: u32,
    /// The interface, MB/s.
    pub interface_mb_s: u32,
    /// What each request costs beside the mechanics.
    pub overhead: Duration,
    /// Most that is read ahead, bytes.
    pub read_ahead_bytes: u32,
    /// Bytes of the write cache; 0: off, every write waits for the medium.
    pub write_cache_bytes: u32,
}

/// A request is not passed over for longer than this.
const PASSED_OVER_MAX: Duration = Duration::from_millis(1000);
/// Cached writes the disk keeps apart; adjacent ones are one.
const CACHED_MAX: usize = 128;

#[derive(Clone, Copy, Debug)]
struct Access {
    since: Time,
    token: Token,
    at: u64,
    bytes: u64,
    writes: bool,
}

#[derive(Clone, Copy, Debug)]
struct DirtyExtent {
    /// The first of its writes, counted as they are accepted: what a flush waits for.
    number: u64,
    at: u64,
    bytes: u64,
}

/// What the head does.
#[derive(Clone, Copy, Debug)]
enum HeadWork {
    /// With the first byte that will be in the track buffer.
    Request(Access, u64),
    Destage(DirtyExtent),
}

/// What the track buffer has, and how the head adds to it by reading on.
#[derive(Clone, Copy, Debug)]
struct ReadAhead {
    /// First byte that is in the buffer.
    from: u64,
    /// The head passed this byte ...
    at: u64,
    /// ... at this time.
    when: Time,
    /// Where it stops, or has stopped.
    end: u64,
    /// The head is still at it.
    goes_on: bool,
}

/// One disk; see the module. It has one queue.
#[derive(Debug)]
pub struct HddModel {
    params: HddParams,
    block_bytes: u64,
    bytes: u64,
    tracks: f64,
    curve: [f64; 3],
    turn: Duration,
    waiting: Vec<Access>,
    /// Writes that found the cache full, and flushes, by the number they wait for.
    accepted_later: VecDeque<Access>,
    flushes: Vec<(u64, Token)>,
    dirty: Vec<DirtyExtent>,
    dirty_bytes: u64,
    numbered: u64,
    work: Option<(HeadWork, Time)>,
    /// The head passed this byte at that time.
    head: (u64, Time),
    ahead: Option<ReadAhead>,
    /// It was the turn of a read: where both wait, reads and writes take turns.
    write_next: bool,
    /// What ends without the mechanics: hits, accepted writes.
    due: Vec<(Time, Token)>,
}

impl HddModel {
    /// A disk of this size, for at most `depth` requests.
    pub fn new(params: HddParams, geometry: &Geometry, depth: u32) -> HddModel {
        let turn = Duration::from_secs(60) / params.rpm;
        let mean_mb_s = f64::from(params.outer_mb_s + params.inner_mb_s) / 2.0;
        let depth = depth as usize;
        HddModel {
            params,
            block_bytes: geometry.block_bytes.into(),
            bytes: geometry.bytes(),
            tracks: geometry.bytes() as f64 / (mean_mb_s * 1e6 * turn.as_secs_f64()),
            curve: seek_curve(&params),
            turn,
            waiting: Vec::with_capacity(depth),
            accepted_later: VecDeque::with_capacity(depth),
            flushes: Vec::with_capacity(depth),
            dirty: Vec::with_capacity(CACHED_MAX),
            dirty_bytes: 0,
            numbered: 0,
            work: None,
            head: (0, Time(0)),
            ahead: None,
            write_next: false,
            due: Vec::with_capacity(depth),
        }
    }

    /// Off the medium at a byte, MB/s.
    fn rate(&self, at: u64) -> u32 {
        let zones = u64::from(self.params.zones);
        let zone = (u128::from(at) * u128::from(zones) / u128::from(self.bytes)).min(u128::from(zones - 1)) as u32;
        let lost = (self.params.outer_mb_s - self.params.inner_mb_s) * zone / (self.params.zones - 1).max(1);
        self.params.outer_mb_s - lost
    }

    /// How long it takes to read or write from one byte to another, once the head is there.
    fn passing(&self, at: u64, bytes: u64) -> Duration {
        transfer(bytes, self.rate(at))
    }

    /// When the byte passes below the head for the first time after `now`. Tracks are skewed so that going on to the next
    /// one loses nothing but what the rate has lost already: all tracks of a zone together are a spiral.
    fn rotated(&self, now: Time, at: u64) -> Time {
        let turn = self.turn.as_nanos() as u64;
        let wanted = self.passing(at, at).as_nanos() as u64 % turn;
        now.after(Duration::from_nanos((wanted + turn - now.0 % turn) % turn))
    }

    fn seek(&self, to: u64, writes: bool) -> Duration {
        let share = to.abs_diff(self.head.0) as f64 / self.bytes as f64;
        if share * self.tracks < 1.0 {
            return Duration::ZERO;
        }
        let [track, root, linear] = self.curve;
        let settle = if writes { self.params.settle_write } else { Duration::ZERO };
        Duration::from_secs_f64(track + root * share.sqrt() + linear * share) + settle
    }

    /// When the head has passed these bytes, if it turns to them at `now`.
    fn served(&self, now: Time, at: u64, bytes: u64, writes: bool) -> Time {
        if let Some(ahead) = self.going_on(now, at).filter(|_| !writes) {
            return now.max(ahead.when.after(self.passing(ahead.at, (at + bytes).saturating_sub(ahead.at))));
        }
        if self.head == (at, now) {
            return now.after(self.passing(at, bytes));
        }
        self.rotated(now.after(self.seek(at, writes)), at).after(self.passing(at, bytes))
    }

    /// The head comes to this byte by reading on, sooner than by moving.
    fn going_on(&self, now: Time, at: u64) -> Option<&ReadAhead> {
        let ahead = self.ahead.as_ref().filter(|ahead| ahead.goes_on && ahead.from <= at)?;
        let passed = self.read_to(now, ahead);
        (passed < ahead.end && at <= passed + u64::from(self.params.read_ahead_bytes) / 8).then_some(ahead)
    }

    /// Where the head has come to by reading on.
    fn read_to(&self, now: Time, ahead: &ReadAhead) -> u64 {
        let passed = now.since(ahead.when).as_nanos() as u64;
        ahead.end.min(ahead.at + passed.saturating_mul(self.rate(ahead.at).into()) / 1000)
    }

    fn buffered(&self, now: Time, access: &Access) -> bool {
        let has = |ahead: &ReadAhead| ahead.from <= access.at && access.at + access.bytes <= self.read_to(now, ahead);
        !access.writes && self.ahead.as_ref().is_some_and(has)
    }

    fn accept(&mut self, now: Time, access: Access) {
        self.numbered += 1;
        self.dirty_bytes += access.bytes;
        let follows = |dirty: &&mut DirtyExtent| dirty.at + dirty.bytes == access.at;
        if let Some(before) = self.dirty.iter_mut().find(follows) {
            before.bytes += access.bytes;
        } else {
            self.dirty.push(DirtyExtent { number: self.numbered, at: access.at, bytes: access.bytes });
        }
        let took = self.params.overhead + transfer(access.bytes, self.params.interface_mb_s);
        self.due.push((now.after(took), access.token));
    }

    fn has_room(&self, access: &Access) -> bool {
        self.dirty.len() < CACHED_MAX && self.dirty_bytes + access.bytes <= u64::from(self.params.write_cache_bytes)
    }

    /// A flush ends when all that was accepted before it is on the medium.
    fn end_flushes(&mut self, now: Time) {
        let working = if let Some((HeadWork::Destage(dirty), _)) = self.work { dirty.number } else { u64::MAX };
        let oldest = self.dirty.iter().map(|dirty| dirty.number).fold(working, u64::min);
        let due = &mut self.due;
        let end = now.after(self.params.overhead);
        self.flushes.retain(|(number, token)| {
            let ends = oldest > *number;
            if ends {
                due.push((end, *token));
            }
            !ends
        });
    }

    /// What the head does next, at a moment at which it is free.
    fn choose(&mut self, now: Time) {
        debug_assert!(self.work.is_none());
        self.answer_buffered(now);
        let hurry = !self.accepted_later.is_empty() || !self.flushes.is_empty();
        self.write_next = hurry && !self.write_next;
        let destage = if self.waiting.is_empty() || self.write_next { self.first_dirty(now) } else { None };
        if let Some(index) = destage {
            let dirty = self.dirty.swap_remove(index);
            let end = self.served(now, dirty.at, dirty.bytes, true);
            self.begin_work(now, HeadWork::Destage(dirty), dirty.at + dirty.bytes, end);
        } else if let Some(index) = self.first_waiting(now) {
            let access = self.waiting.swap_remove(index);
            let end = self.served(now, access.at, access.bytes, access.writes);
            let from = self.going_on(now, access.at).map_or(access.at, |ahead| ahead.from);
            self.begin_work(now, HeadWork::Request(access, from), access.at + access.bytes, end);
        }
    }

    fn begin_work(&mut self, now: Time, work: HeadWork, head: u64, end: Time) {
        if let Some(mut ahead) = self.ahead.filter(|ahead| ahead.goes_on) {
            ahead.end = self.read_to(now, &ahead);
            ahead.goes_on = false;
            self.ahead = Some(ahead);
        }
        self.head = (head, end);
        self.work = Some((work, end));
    }

    fn answer_buffered(&mut self, now: Time) {
        let mut at = 0;
        while at < self.waiting.len() {
            if self.buffered(now, &self.waiting[at]) {
                let access = self.waiting.swap_remove(at);
                let took = self.params.overhead + transfer(access.bytes, self.params.interface_mb_s);
                self.due.push((now.after(took), access.token));
                self.read_on_behind(now, access.at + access.bytes);
            } else {
                at += 1;
            }
        }
    }

    /// What was fetched makes room to read on.
    fn read_on_behind(&mut self, now: Time, fetched: u64) {
        let limit = u64::from(self.params.read_ahead_bytes);
        let Some(mut ahead) = self.ahead.filter(|ahead| ahead.goes_on) else { return };
        // A head that has stopped there comes back to it only after a turn.
        ahead.goes_on = self.read_to(now, &ahead) < ahead.end;
        if ahead.goes_on {
            ahead.from = ahead.from.max(fetched.saturating_sub(limit));
            ahead.end = ahead.end.max(fetched + limit).min(self.bytes);
        }
        self.ahead = Some(ahead);
    }

    fn after_read(&mut self, access: &Access, from: u64) {
        let limit = u64::from(self.params.read_ahead_bytes);
        let (at, when) = self.head;
        let from = from.max(at.saturating_sub(limit)).min(access.at);
        self.ahead = Some(ReadAhead { from, at, when, end: (at + limit).min(self.bytes), goes_on: true });
    }

    fn first_waiting(&self, now: Time) -> Option<usize> {
        let oldest = (0..self.waiting.len()).min_by_key(|index| self.waiting[*index].since)?;
        if now.since(self.waiting[oldest].since) > PASSED_OVER_MAX {
            return Some(oldest);
        }
        (0..self.waiting.len()).min_by_key(|index| {
            let access = &self.waiting[*index];
            self.served(now, access.at, 0, access.writes)
        })
    }

    fn first_dirty(&self, now: Time) -> Option<usize> {
        (0..self.dirty.len()).min_by_key(|index| self.served(now, self.dirty[*index].at, 0, true))
    }

    /// Everything the mechanics have done until `now`.
    fn run(&mut self, now: Time) {
        while let Some((work, end)) = self.work.filter(|(_, end)| *end <= now) {
            self.work = None;
            match work {
                HeadWork::Request(access, from) => {
                    let last = transfer(self.block_bytes, self.params.interface_mb_s);
                    self.due.push((end.after(self.params.overhead + last), access.token));
                    if !access.writes {
                        self.after_read(&access, from);
                    }
                }
                HeadWork::Destage(dirty) => self.destaged(end, dirty),
            }
            self.end_flushes(end);
            self.choose(end);
        }
    }

    fn destaged(&mut self, now: Time, dirty: DirtyExtent) {
        self.dirty_bytes -= dirty.bytes;
        while let Some(access) = self.accepted_later.front().copied().filter(|access| self.has_room(access)) {
            self.accepted_later.pop_front();
            self.accept(now, access);
        }
    }
}

/// Seconds for a stroke over a share d of the disk: s + b sqrt(d) + c d, through the three figures of a data sheet. Over
/// random pairs of places the mean of sqrt(d) is 8/15 and that of d 1/3.
fn seek_curve(params: &HddParams) -> [f64; 3] {
    let [track, average, full] = [params.seek_track, params.seek_average, params.seek_full].map(|time| time.as_secs_f64());
    let root = ((average - track) - (full - track) / 3.0) / (8.0 / 15.0 - 1.0 / 3.0);
    [track, root, full - track - root]
}

impl DeviceModel for HddModel {
    fn begin(&mut self, now: Time, token: Token, request: &Request) {
        self.run(now);
        let bytes = u64::from(request.blocks) * self.block_bytes;
        let access = Access { since: now, token, at: request.lba.0 * self.block_bytes, bytes, writes: request.op.writes() };
        match request.op {
            Op::Discard => self.due.push((now.after(self.params.overhead), token)),
            Op::Flush => self.flushes.push((self.numbered, token)),
            Op::Write | Op::WriteZeroes if bytes <= self.params.write_cache_bytes.into() && !request.fua => {
                let waits = !self.accepted_later.is_empty() || !self.has_room(&access);
                if waits { self.accepted_later.push_back(access) } else { self.accept(now, access) }
            }
            _ => self.waiting.push(access),
        }
        match self.work {
            None => {
                self.end_flushes(now);
                self.choose(now);
            }
            Some(_) => self.answer_buffered(now),
        }
    }

    fn next(&self) -> Time {
        let due = self.due.iter().map(|(end, _)| *end).min().unwrap_or(Time::NEVER);
        due.min(self.work.map_or(Time::NEVER, |(_, end)| end))
    }

    fn pop_completed(&mut self, now: Time) -> Option<Token> {
        self.run(now);
        let (index, _) = self.due.iter().enumerate().filter(|(_, (end, _))| *end <= now).min_by_key(|(_, due)| **due)?;
        Some(self.due.swap_remove(index).1)
    }

    fn cancel(&mut self, now: Time, token: Token) -> bool {
        self.run(now);
        let count = |hdd: &HddModel| hdd.waiting.len() + hdd.accepted_later.len() + hdd.flushes.len() + hdd.due.len();
        let before = count(self);
        self.waiting.retain(|access| access.token != token);
        self.accepted_later.retain(|access| access.token != token);
        self.flushes.retain(|(_, other)| *other != token);
        self.due.retain(|(_, other)| *other != token);
        count(self) < before
    }

    /// Cached writes stay, as they do on a disk.
    fn reset(&mut self, now: Time) {
        self.run(now);
        self.waiting.clear();
        self.accepted_later.clear();
        self.flushes.clear();
        self.due.clear();
        if let Some((HeadWork::Request(..), _)) = self.work {
            self.work = None;
            self.choose(now);
        }
    }
}
