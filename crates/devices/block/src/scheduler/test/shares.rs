//! Tests of weights, rate limits and the guard, in virtual time.

use std::num::NonZeroU64;
use std::time::Duration;

use super::super::{Classes, ClassesOptions, Options, Pick, Rate, Scheduler, Share, classes};
use super::clock::VirtualClock;
use super::rogue::Rogue;
use crate::clock::{Clock, Time};
use crate::queue::{Armed, Queue, Submit};
use crate::request::{Class, Completion, Request};
use crate::units::{Lba, Tag};

const BLOCK: u32 = 512;
const COST: u32 = 2048;

fn of_class(class: u8, blocks: u32) -> Request {
    Request { class: Class(class), ..Request::discard(Tag(0), Lba(0), blocks) }
}

fn read(class: u8, blocks: u32) -> Request {
    Request { class: Class(class), ..Request::read(Tag(0), Lba(0), blocks) }
}

/// An order in which each class always has at least two waiting requests.
struct Backlog {
    order: Classes,
    slots: Vec<Option<Request>>,
    clock: VirtualClock,
    random: fastrand::Rng,
    largest: u32,
}

impl Backlog {
    fn new(options: &ClassesOptions, seed: u64, largest: u32) -> Backlog {
        let slots = vec![None; options.shares.len() * 2];
        let depth = u32::try_from(slots.len()).expect("few");
        let order = Classes::new(depth, BLOCK, options);
        Backlog { order, slots, clock: VirtualClock::default(), random: fastrand::Rng::with_seed(seed), largest }
    }

    /// Advances the clock until a request may proceed, and returns it.
    fn next(&mut self) -> Request {
        for slot in 0..self.slots.len() {
            if self.slots[slot].is_none() {
                let request = read(u8::try_from(slot / 2).expect("few"), self.random.u32(1..=self.largest));
                self.order.insert(u32::try_from(slot).expect("few"), &request);
                self.slots[slot] = Some(request);
            }
        }
        loop {
            match self.order.pick(self.clock.now()) {
                Pick::Slot(slot) => {
                    let request = self.slots[slot as usize].take().expect("it waits");
                    self.order.complete(&request, self.clock.now());
                    return request;
                }
                Pick::NotBefore(time) => {
                    assert!(time > self.clock.now(), "it is not later");
                    self.clock.advance_to(time);
                }
                Pick::Nothing => panic!("all wait, and nothing goes"),
            }
        }
    }
}

fn unguarded(shares: Vec<Share>) -> ClassesOptions {
    let (background_in_flight_max, foreground_linger) = (u32::MAX, Duration::ZERO);
    ClassesOptions { shares, request_cost_bytes: COST, background_in_flight_max, foreground_linger }
}

/// Checks the bound of start-time fair queueing: in any period, service by weight of two classes differs by at most one request of
/// each.
#[test]
fn classes_that_wait_get_service_by_weight_within_one_request() {
    for seed in 0..super::rounds(30) {
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let weights: Vec<u32> = (0..random.usize(2..6)).map(|_| random.u32(1..50)).collect();
        let options = unguarded(weights.iter().map(|weight| Share::weighted(*weight)).collect());
        let mut backlog = Backlog::new(&options, seed, 64);
        let quantum = |class: usize| f64::from(64 * BLOCK + COST) / f64::from(weights[class]);
        let mut service = vec![vec![0.0]; weights.len()];
        for _ in 0..1_500 {
            let request = backlog.next();
            for (class, service) in service.iter_mut().enumerate() {
                let cost = if class == usize::from(request.class.0) { f64::from(request.blocks * BLOCK + COST) } else { 0.0 };
                service.push(service[service.len() - 1] + cost / f64::from(weights[class]));
            }
        }
        for one in 0..weights.len() {
            for other in 0..one {
                let ahead: Vec<f64> = service[one].iter().zip(&service[other]).map(|(one, other)| one - other).collect();
                let most = ahead.iter().copied().fold(f64::MIN, f64::max) - ahead.iter().copied().fold(f64::MAX, f64::min);
                // The largest difference between two points in time covers every period.
                let bound = quantum(one) + quantum(other) + 1.0;
                assert!(most <= bound, "{most} apart, more than {bound}: {weights:?}");
            }
        }
    }
}

#[test]
fn limits_are_kept_within_a_burst() {
    for seed in 0..super::rounds(30) {
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let nonzero = |number| NonZeroU64::new(number).expect("not zero");
        let bytes = Rate { per_second: nonzero(random.u64(1_000..1_000_000_000)), burst: nonzero(random.u64(8192..1 << 20)) };
        let requests = Rate { per_second: nonzero(random.u64(1..100_000)), burst: nonzero(random.u64(1..50)) };
        let limited = Share { bytes: Some(bytes), requests: Some(requests), ..Share::weighted(3) };
        let mut backlog = Backlog::new(&unguarded(vec![limited]), seed, 16);
        let gone: Vec<(Time, u64)> =
            (0..300).map(|_| (backlog.next(), backlog.clock.now())).map(|(r, at)| (at, u64::from(r.blocks * BLOCK))).collect();
        for (from, (begin, _)) in gone.iter().enumerate() {
            let mut sum = 0;
            for (count, (at, bytes_of_it)) in (1_u64..).zip(&gone[from..]) {
                sum += bytes_of_it;
                let seconds = at.since(*begin).as_secs_f64();
                let allowed = |rate: Rate| rate.burst.get() as f64 + rate.per_second.get() as f64 * seconds + 1.0;
                assert!(sum as f64 <= allowed(bytes), "{sum} bytes in {seconds} s of {bytes:?}");
                assert!(count as f64 <= allowed(requests), "{count} requests in {seconds} s of {requests:?}");
            }
        }
        // The limits are also used fully: in the long run the class gets what the stricter of the two allows.
        let (seconds, sum) = (gone[gone.len() - 1].0.0 as f64 / 1e9, gone.iter().map(|(_, bytes)| bytes).sum::<u64>());
        let needed = (sum as f64 / bytes.per_second.get() as f64).max(300.0 / requests.per_second.get() as f64);
        assert!(seconds <= needed * 1.01 + 0.001, "{seconds} s for what takes {needed} s");
    }
}

#[test]
fn the_share_of_who_does_not_wait_is_the_others_and_is_not_owed() {
    let mut order = Classes::new(64, BLOCK, &unguarded(vec![Share::weighted(1), Share::weighted(1)]));
    (0..32).for_each(|slot| order.insert(slot, &of_class(1, 1)));
    let picks = |order: &mut Classes, count: usize| -> Vec<u32> {
        let pick = |order: &mut Classes| if let Pick::Slot(slot) = order.pick(Time(0)) { slot } else { panic!("nothing goes") };
        (0..count).map(|_| pick(order)).collect()
    };
    assert!(picks(&mut order, 20).iter().all(|slot| *slot < 32), "alone, it has everything");
    (32..48).for_each(|slot| order.insert(slot, &of_class(0, 1)));
    let foreground = picks(&mut order, 10).iter().filter(|slot| **slot >= 32).count();
    assert!((5..=6).contains(&foreground), "{foreground} of 10: half from now on, not what was missed");
}

/// A class that its limit has held back gets its share from then on, and not what it has missed.
#[test]
fn a_limit_is_not_made_up_for() {
    let nonzero = |number| NonZeroU64::new(number).expect("not zero");
    let rate = Rate { per_second: nonzero(900 * 512), burst: nonzero(8 * 512) };
    let shares = vec![Share { bytes: Some(rate), ..Share::weighted(2) }, Share::weighted(1)];
    let mut order = Classes::new(600, BLOCK, &ClassesOptions { request_cost_bytes: 0, ..unguarded(shares) });
    // The first request uses more than a second of the limit; after that, one block per millisecond is shared.
    order.insert(0, &read(0, 1000));
    (1..300).for_each(|slot| order.insert(slot, &read(0, 1)));
    let (mut limited, mut other) = (0, 300);
    for ms in 0..1_400 {
        other = if other == 599 { 300 } else { other + 1 };
        order.insert(other, &read(1, 1));
        let Pick::Slot(slot) = order.pick(Time(ms * 1_000_000)) else { panic!("nothing goes") };
        limited += u32::from((1..300).contains(&slot));
    }
    assert!((150..=200).contains(&limited), "{limited} of the last 290 at two thirds");
}

struct Shared {
    device: Rogue,
    queue: super::super::Stage<Rogue, VirtualClock>,
    next: u64,
}

impl Shared {
    fn new(change: impl FnOnce(&mut Options)) -> Shared {
        let device = Rogue::new(1, 4096, 64, |_| {});
        let mut options = Options { dispatch_depth: Some(8), ..Options::of(Scheduler::Classes) };
        change(&mut options);
        let queue = classes(device.clone(), &options, device.clock());
        Shared { device, queue, next: 0 }
    }

    fn submit(&mut self, class: u8) {
        let request = Request { class: Class(class), tag: Tag(self.next), ..Request::discard(Tag(0), Lba(self.next % 4096), 1) };
        assert_eq!(self.queue.submit(&request, &[]), Submit::Queued);
        self.next += 1;
    }

    fn poll(&mut self) -> usize {
        let mut ended = [Completion::EMPTY; 64];
        self.queue.poll(&mut ended)
    }
}

#[test]
fn the_guard_holds_the_background_back_while_the_foreground_is_there_and_a_moment_longer() {
    let mut shared = Shared::new(|options| options.classes.background_in_flight_max = 2);
    (0..30).for_each(|_| shared.submit(1));
    shared.queue.ring();
    assert_eq!(shared.device.look().in_flight(), 8, "alone, it has the device");
    assert_eq!(shared.poll(), 8);
    assert_eq!(shared.device.look().in_flight(), 8);
    shared.submit(0);
    assert_eq!(shared.poll(), 8);
    assert_eq!(shared.device.look().in_flight(), 3, "one of the foreground, two of the background");
    assert_eq!(shared.poll(), 3);
    assert_eq!(shared.device.look().in_flight(), 2, "the foreground is away for a moment");
    shared.device.clock().advance(Duration::from_millis(2));
    shared.queue.ring();
    assert_eq!(shared.device.look().in_flight(), 8);
}

/// A synchronous reader never has a request waiting when the background is considered, and still gets its share.
#[test]
fn with_no_room_for_the_background_weights_decide_also_against_one_reader() {
    let mut shared = Shared::new(|options| {
        options.classes = ClassesOptions { background_in_flight_max: 0, ..ClassesOptions::default() };
        options.classes.shares = vec![Share::weighted(10), Share::weighted(1)];
    });
    (0..200).for_each(|_| shared.submit(1));
    shared.submit(0);
    shared.queue.ring();
    for _ in 0..330 {
        assert!(shared.device.look().in_flight() <= 2);
        shared.poll();
        let foreground = shared.device.look().log.iter().any(|(request, _)| request.class == Class(0));
        shared.device.clock().advance(Duration::from_micros(20));
        if foreground {
            shared.submit(0);
        }
        shared.queue.ring();
    }
    let log = std::mem::take(&mut shared.device.look().log);
    let background = log.iter().filter(|(request, _)| request.class == Class(1)).count();
    assert!((28..=34).contains(&background), "{background} of 330 rounds at a weight of 1 to 10");
    let before = shared.device.clock().now();
    (0..3).for_each(|_| _ = shared.poll());
    shared.queue.wait(Duration::from_secs(1));
    assert_eq!(shared.device.clock().now().since(before), Duration::from_millis(2), "it waits for the foreground to be gone");
    shared.queue.ring();
    assert_eq!(shared.device.look().in_flight(), 8, "then everything is the background's");
}

#[test]
fn a_busy_foreground_does_not_starve_the_background() {
    let mut shared = Shared::new(|_| {});
    (0..100).for_each(|_| shared.submit(1));
    for _ in 0..40 {
        while shared.queue.in_flight() < 200 {
            shared.submit(0);
        }
        shared.queue.ring();
        let log: Vec<Class> = shared.device.look().log.drain(..).map(|(request, _)| request.class).collect();
        assert!(log.iter().filter(|class| **class == Class(1)).count() <= 1, "more than the guard lets through");
        shared.poll();
    }
    let background = 100 - shared.queue.order().waiting_of(Class(1));
    assert!((20..=50).contains(&background), "{background} of some 320 at a weight of 1 to 8, one at a time");
}

#[test]
fn what_the_foreground_has_to_follow_goes_at_once() {
    let slow = Share { requests: Rate::per_second(1), ..Share::weighted(1) };
    let mut shared = Shared::new(|options| options.classes.shares[1] = slow);
    let write = |tag, class| Request { class: Class(class), ..Request::write_zeroes(Tag(tag), Lba(7), 1) };
    // The first background request takes the token of the second, so the other two would wait for seconds.
    for (tag, class) in [(100, 1), (101, 1), (102, 1), (103, 0)] {
        assert_eq!(shared.queue.submit(&write(tag, class), &[]), Submit::Queued);
        shared.queue.ring();
    }
    (0..5).for_each(|_| _ = shared.poll());
    assert_eq!(shared.queue.in_flight(), 0);
    let order: Vec<u64> = shared.device.look().log.iter().map(|(request, _)| request.lba.0).collect();
    assert_eq!(order, [7; 4]);
    shared.submit(1);
    shared.queue.ring();
    assert_eq!(shared.device.look().in_flight(), 0, "it was counted all the same");
}

#[test]
fn who_waits_is_woken_when_a_limit_lets_it_go() {
    let mut shared = Shared::new(|options| options.classes.shares[1].requests = Rate::per_second(10));
    shared.submit(1);
    shared.submit(1);
    shared.queue.wait(Duration::from_secs(60));
    assert_eq!(shared.poll(), 1);
    assert_eq!(shared.queue.arm(), Armed::Ready, "no completion would ever signal");
    let before = shared.device.clock().now();
    shared.queue.wait(Duration::from_secs(60));
    assert_eq!(shared.device.clock().now().since(before), Duration::from_millis(100));
    shared.queue.ring();
    assert_eq!(shared.queue.arm(), Armed::Waiting, "the device will");
    assert_eq!(shared.poll(), 1);
    shared.submit(1);
    shared.queue.ring();
    shared.queue.cancel(Tag(2));
    assert_eq!(shared.poll(), 1);
    let before = shared.device.clock().now();
    shared.queue.wait(Duration::from_secs(60));
    assert_eq!(shared.device.clock().now().since(before), Duration::from_secs(60), "nothing is there to be woken for");
}
