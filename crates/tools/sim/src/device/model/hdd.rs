//! Hard disks: an arm, a spindle, zones, a track buffer, a write cache and a reordering queue.
//!
//! The angle of the platters is a function of time and the angle of a sector a function of its address. As drives with NCQ do, the disk
//! serves the request it can reach first, or the oldest one if that waited too long. Cached writes are destaged when no read waits, or
//! when the cache is full. After a read the head reads on into the track buffer until it is needed elsewhere.
//!
//! The address determines the position: outer tracks come first. A seek distance is a share of all tracks, so a small simulated disk has
//! few tracks but the seek times of a whole one.

use std::collections::VecDeque;
use std::time::Duration;

use block::{Geometry, Op, Request, Time};

use super::ssd::transfer;
use super::{DeviceModel, Token};

/// Parameters of a hard disk. Rates in MB/s are 10^6 bytes per second.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HddParams {
    /// Rotational speed, revolutions per minute.
    pub rpm: u32,
    /// Track-to-track seek time for a read.
    pub seek_track: Duration,
    /// Average seek time for a read, over all pairs of tracks.
    pub seek_average: Duration,
    /// Full-stroke seek time, first to last track.
    pub seek_full: Duration,
    /// Additional settle time of a write.
    pub settle_write: Duration,
    /// Media rate at the outermost track, MB/s.
    pub outer_mb_s: u32,
    /// Media rate at the innermost track, MB/s.
    pub inner_mb_s: u32,
    /// Number of zones between the two.
    pub zones: u32,
    /// Rate of the interface, MB/s.
    pub interface_mb_s: u32,
    /// Fixed cost of each request beside the mechanics.
    pub overhead: Duration,
    /// Maximum read-ahead of the track buffer, bytes.
    pub read_ahead_bytes: u32,
    /// Size of the write cache, bytes. 0: off, every write waits for the medium.
    pub write_cache_bytes: u32,
}

/// A request older than this is served next.
const PASSED_OVER_MAX: Duration = Duration::from_millis(1000);
/// Number of separate dirty extents; adjacent ones merge.
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
    /// Number of its first write in order of acceptance; a flush waits for it.
    number: u64,
    at: u64,
    bytes: u64,
}

/// The current activity of the head.
#[derive(Clone, Copy, Debug)]
enum HeadWork {
    /// A request, with the first byte that will be in the track buffer.
    Request(Access, u64),
    Destage(DirtyExtent),
}

/// The track buffer and the read-ahead that extends it.
#[derive(Clone, Copy, Debug)]
struct ReadAhead {
    /// First byte in the buffer.
    from: u64,
    /// The head passed this byte ...
    at: u64,
    /// ... at this time.
    when: Time,
    /// Where read-ahead stops or has stopped.
    end: u64,
    /// The head is still reading on.
    goes_on: bool,
}

/// The model of one hard disk with one queue; see the module documentation.
#[derive(Debug)]
pub struct HddModel {
    params: HddParams,
    block_bytes: u64,
    bytes: u64,
    tracks: f64,
    curve: [f64; 3],
    turn: Duration,
    waiting: Vec<Access>,
    /// Writes that found the cache full, and flushes, by the write they wait for.
    accepted_later: VecDeque<Access>,
    flushes: Vec<(u64, Token)>,
    dirty: Vec<DirtyExtent>,
    dirty_bytes: u64,
    numbered: u64,
    work: Option<(HeadWork, Time)>,
    /// Byte that the head passed, and when.
    head: (u64, Time),
    ahead: Option<ReadAhead>,
    /// A read was served last: reads and writes alternate when both wait.
    write_next: bool,
    /// Completions without mechanics: buffer hits and cached writes.
    due: Vec<(Time, Token)>,
}

impl HddModel {
    /// Creates a disk of this size for at most `depth` requests.
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

    /// Returns the media rate at a byte, MB/s.
    fn rate(&self, at: u64) -> u32 {
        let zones = u64::from(self.params.zones);
        let zone = (u128::from(at) * u128::from(zones) / u128::from(self.bytes)).min(u128::from(zones - 1)) as u32;
        let lost = (self.params.outer_mb_s - self.params.inner_mb_s) * zone / (self.params.zones - 1).max(1);
        self.params.outer_mb_s - lost
    }

    /// Returns the transfer time from one byte to another, once the head is in position.
    fn passing(&self, at: u64, bytes: u64) -> Duration {
        transfer(bytes, self.rate(at))
    }

    /// Returns when the byte first passes under the head after `now`. Tracks are skewed so that a track switch costs no more than the rate
    /// already includes: all tracks of a zone form one spiral.
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

    /// Returns when the head has passed these bytes, if it turns to them at `now`.
    fn served(&self, now: Time, at: u64, bytes: u64, writes: bool) -> Time {
        if let Some(ahead) = self.going_on(now, at).filter(|_| !writes) {
            return now.max(ahead.when.after(self.passing(ahead.at, (at + bytes).saturating_sub(ahead.at))));
        }
        if self.head == (at, now) {
            return now.after(self.passing(at, bytes));
        }
        self.rotated(now.after(self.seek(at, writes)), at).after(self.passing(at, bytes))
    }

    /// Returns the read-ahead if it reaches this byte sooner than a seek would.
    fn going_on(&self, now: Time, at: u64) -> Option<&ReadAhead> {
        let ahead = self.ahead.as_ref().filter(|ahead| ahead.goes_on && ahead.from <= at)?;
        let passed = self.read_to(now, ahead);
        (passed < ahead.end && at <= passed + u64::from(self.params.read_ahead_bytes) / 8).then_some(ahead)
    }

    /// Returns the position of the head in its read-ahead.
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

    /// Completes flushes whose earlier writes are all on the medium.
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

    /// Chooses the next activity of the idle head.
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

    /// Extends the read-ahead after data was fetched.
    fn read_on_behind(&mut self, now: Time, fetched: u64) {
        let limit = u64::from(self.params.read_ahead_bytes);
        let Some(mut ahead) = self.ahead.filter(|ahead| ahead.goes_on) else { return };
        // A stopped head returns there only after a revolution.
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

    /// Advances the mechanics to `now`.
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

/// Returns the seek curve s + b sqrt(d) + c d in seconds, for a share d of the disk, through the three figures of a data sheet. Over
/// random pairs of positions the mean of sqrt(d) is 8/15 and that of d is 1/3.
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

    /// Cached writes survive a reset, as on a real disk.
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
