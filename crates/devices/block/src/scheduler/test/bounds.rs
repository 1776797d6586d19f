//! Bounds of waiting: how many other requests go before one, counted on the orders themselves.

use std::time::Duration;

use super::super::{Deadline, DeadlineOptions, Elevator, ElevatorOptions, Order, Pick};
use crate::clock::Time;
use crate::request::Request;
use crate::units::{Lba, Tag};

const DEPTH: u32 = 16;
const PICKS: u64 = if cfg!(miri) { 150 } else { 3_000 };

/// Keeps the order full with the requests that it prefers (next to the head, and flushes), and some of every other kind. Returns the
/// longest wait of a request in picks, not counting its first `expire` picks.
fn longest_wait<O: Order>(mut order: O, seed: u64, expire: impl Fn(&Request) -> u64) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut waiting: Vec<Option<(Request, u64)>> = vec![None; DEPTH as usize];
    let (mut head, mut longest) = (0, 0);
    let flushes = random.bool();
    for pick in 0..PICKS {
        let now = Time(pick * 1_000_000);
        for slot in 0..DEPTH {
            if waiting[slot as usize].is_none() {
                let request = hostile(&mut random, head, flushes);
                order.insert(slot, &request, now);
                waiting[slot as usize] = Some((request, pick));
            }
        }
        let Pick::Slot(slot) = order.pick(now) else { panic!("it is full, and nothing goes") };
        let (request, since) = waiting[slot as usize].take().expect("it waits");
        order.sent(&request);
        order.ended(&request, now);
        head = request.lba.0 + u64::from(request.blocks);
        longest = longest.max((pick - since).saturating_sub(expire(&request)));
    }
    longest
}

fn hostile(random: &mut fastrand::Rng, head: u64, flushes: bool) -> Request {
    match random.u8(..20) {
        0 => Request::write(Tag(0), Lba(random.u64(..1000)), 1),
        1 => Request::read(Tag(0), Lba(random.u64(..1000)), 1),
        2..8 if flushes => Request::flush(Tag(0)),
        8..12 => Request::write(Tag(0), Lba(head + random.u64(..4)), 1),
        _ => Request::read(Tag(0), Lba(head + random.u64(..4)), 1),
    }
}

#[test]
fn elevator_passes_nobody_by_more_than_it_says() {
    for seed in 0..super::rounds(30) {
        println!("seed {seed}");
        let passed_max = [0, 20, 100][usize::try_from(seed % 3).expect("small")];
        let options = ElevatorOptions { passed_max, ..ElevatorOptions::default() };
        let longest = longest_wait(Elevator::new(DEPTH, options), seed, |_| 0);
        assert!(longest <= u64::from(passed_max + 2 * DEPTH), "{longest} others went before one of {options:?}");
    }
}

#[test]
fn without_a_bound_the_elevator_starves() {
    let options = ElevatorOptions { passed_max: u32::MAX, ..ElevatorOptions::default() };
    assert!(longest_wait(Elevator::new(DEPTH, options), 0, |_| 0) > PICKS / 6, "the submitter above is not hostile");
}

#[test]
fn deadline_starts_what_is_over_its_time() {
    for seed in 0..super::rounds(30) {
        println!("seed {seed}");
        let mut options = DeadlineOptions { read_expire: Duration::from_millis(50), ..DeadlineOptions::default() };
        options.write_expire = Duration::from_millis(200);
        options.writes_starved = u32::try_from(seed % 4).expect("small");
        let expire = |request: &Request| if request.op.writes() { 200 } else { 50 };
        let longest = longest_wait(Deadline::new(DEPTH, options), seed, expire);
        // Each batch of a direction takes its oldest request. Between two batches of one direction are those of the other; flushes
        // double it.
        let batches = (DEPTH + 1) * (options.writes_starved.max(1) + 1) + 1;
        let bound = u64::from(2 * options.fifo_batch * batches);
        assert!(longest <= bound, "{longest} others went before one that was over its time, of {options:?}");
    }
}

#[test]
fn deadline_looks_back_for_what_is_over_its_time_only() {
    let options = DeadlineOptions { fifo_batch: 4, ..DeadlineOptions::default() };
    let mut order = Deadline::new(8, options);
    let read = |lba| Request::read(Tag(0), Lba(lba), 1);
    order.sent(&read(1000));
    order.insert(0, &read(5), Time(0));
    let mut gone_at = None;
    for ms in 0..600 {
        let ahead = read(2000 + ms);
        order.insert(1, &ahead, Time(ms * 1_000_000));
        if order.pick(Time(ms * 1_000_000)) == Pick::Slot(0) {
            gone_at = Some(ms);
            break;
        }
        order.sent(&ahead);
    }
    assert!(gone_at.is_some_and(|ms| (500..504).contains(&ms)), "{gone_at:?}");
}
