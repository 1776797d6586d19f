//! Life cycles of queues: data, reset, revocation, killed and stopped clients, a killed broker.

use std::sync::atomic::Ordering;
use std::time::Duration;

use block::broker::protocol::{BrokerRequest, Reply};
use block::broker::{BrokerQueue, Ended, GrantSpec, Refusal};
use block::{Armed, Completion, Error, Lba, Queue, Request, Submit, Tag};
use rustix::process::Signal;

use crate::process::Process;
use crate::setting::{Broker, connect, me, reap, refusal, terms, wait_until};

fn is_full_run() -> bool {
    std::env::var_os("FULL").is_some_and(|full| full == "1")
}

#[test]
fn any_mix_of_requests_does_what_it_does_on_the_device_itself() {
    let broker = Broker::new();
    broker.grant(terms(me()));
    let device = broker.connect(Some((1100, 200))).expect("allowed");
    let mut queue = device.open_queue(8).expect("a queue");
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut oracle = vec![0_u8; 200 * 512];
    let memory = device.arena().allocate(64 << 10).expect("room");
    let other = broker.device.memory.region();
    other.fill(0..1100 * 512, 0xaa);
    other.fill(1300 * 512..4096 * 512, 0xbb);
    let mut refused = 0;
    for round in 0..2000_u64 {
        let (lba, blocks) = (random.u64(..220), random.u32(1..40));
        let (first, bytes) = (usize::try_from(lba).expect("small") * 512, blocks as usize * 512);
        let fits = lba + u64::from(blocks) <= 200;
        let content: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(bytes).collect();
        // Pieces of one block, except the last.
        let pieces = random.u32(1..=blocks.min(32));
        let mut spans: Vec<_> = (0..pieces - 1).map(|piece| memory.span().part(piece * 512, 512)).collect();
        spans.push(memory.span().part((pieces - 1) * 512, (blocks - pieces + 1) * 512));
        memory.write(0, &content);
        let tag = Tag(round << 40 | 7);
        let (request, data) = match random.u8(..5) {
            0 | 1 => (Request::write(tag, Lba(lba), blocks), spans.as_slice()),
            2 => (Request::write_zeroes(tag, Lba(lba), blocks), &[][..]),
            3 => (Request::flush(tag), &[][..]),
            _ => (Request::read(tag, Lba(lba), blocks), spans.as_slice()),
        };
        assert_eq!(queue.submit(&request, data), Submit::Queued);
        queue.ring();
        let ended = reap(&mut queue, 1)[0];
        let wanted = if fits || request.op == block::Op::Flush { Ok(()) } else { Err(Error::OutOfRange) };
        assert_eq!(ended, Completion { tag, status: wanted }, "{request:?}");
        refused += u64::from(wanted.is_err());
        if fits {
            match request.op {
                block::Op::Write => oracle[first..first + bytes].copy_from_slice(&content),
                block::Op::WriteZeroes => oracle[first..first + bytes].fill(0),
                block::Op::Read => assert_eq!(memory.to_vec()[..bytes], oracle[first..first + bytes]),
                _ => {}
            }
        }
    }
    let stat = &broker.admin().stat().expect("stat")[0];
    assert_eq!((stat.refused, stat.requests, stat.errors), (refused, 2000 - refused, 0));
    let mut all = vec![0; 4096 * 512];
    other.read(0, &mut all);
    assert!(all[..1100 * 512].iter().all(|byte| *byte == 0xaa) && all[1300 * 512..].iter().all(|byte| *byte == 0xbb));
    assert_eq!(all[1100 * 512..1300 * 512], oracle);
}

/// Returns a queue with `count` writes on the device, which holds them.
fn with_held(broker: &Broker, count: u64) -> BrokerQueue {
    let before = broker.device.taken.load(Ordering::Acquire);
    broker.device.hold.store(true, Ordering::Release);
    let device = broker.connect(None).expect("allowed");
    let mut queue = device.open_queue(8).expect("a queue");
    let memory = device.arena().allocate(512).expect("room");
    for tag in 0..count {
        assert_eq!(queue.submit(&Request::write(Tag(tag), Lba(tag), 1), &[memory.span()]), Submit::Queued);
    }
    queue.ring();
    wait_until("the device has them", || broker.device.taken.load(Ordering::Acquire) == before + count);
    queue
}

#[test]
fn cancel_and_reset_reach_the_device_and_the_queue_lives_on() {
    let broker = Broker::new();
    broker.grant(terms(me()));
    let mut queue = with_held(&broker, 8);
    assert_eq!(queue.submit(&Request::flush(Tag(99)), &[]), Submit::Full);
    queue.cancel(Tag(3));
    assert_eq!(reap(&mut queue, 1), [Completion { tag: Tag(3), status: Err(Error::Cancelled) }]);
    assert_eq!(queue.reset(), Ok(()));
    assert_eq!((queue.in_flight(), queue.poll(&mut [Completion::EMPTY; 8])), (0, 0));
    broker.device.hold.store(false, Ordering::Release);
    for tag in 0..8 {
        assert_eq!(queue.submit(&Request::flush(Tag(tag)), &[]), Submit::Queued);
    }
    queue.ring();
    assert!(reap(&mut queue, 8).iter().all(|ended| ended.status.is_ok()));
}

#[test]
fn deadlines_are_kept_above_it_as_above_any_driver() {
    use block::tracked::{Timeouts, Tracked};
    let broker = Broker::new();
    broker.grant(terms(me()));
    let timeouts = Timeouts { timeout: Some(Duration::from_millis(1)), cancel_grace: Duration::from_secs(60), reset_after: None };
    let mut queue = Tracked::new(with_held(&broker, 0), timeouts);
    assert_eq!(queue.submit(&Request::flush(Tag(4)), &[]), Submit::Queued);
    queue.ring();
    assert_eq!(reap(&mut queue, 1), [Completion { tag: Tag(4), status: Err(Error::Timeout) }]);
    assert_eq!(queue.abandoned(), 0, "the broker's device gave it up");
}

#[test]
fn the_event_is_readable_when_something_has_ended() {
    use rustix::event::{PollFd, PollFlags};
    let broker = Broker::new();
    broker.grant(terms(me()));
    let mut queue = with_held(&broker, 1);
    assert_eq!(queue.arm(), Armed::Waiting);
    broker.device.hold.store(false, Ordering::Release);
    rustix::event::poll(&mut [PollFd::new(&queue.event().expect("one"), PollFlags::IN)], None).expect("polled");
    assert_eq!(reap(&mut queue, 1).len(), 1);
    assert_eq!(queue.arm(), Armed::Waiting, "the notifier is quiet again");
}

#[test]
fn a_revoked_grant_ends_its_queues_and_gives_no_new_ones() {
    let broker = Broker::new();
    let id = broker.grant(terms(me()));
    let mut queue = with_held(&broker, 2);
    let revoked = broker.admin().ask(&BrokerRequest::Revoke { id }).expect("revoked");
    assert!(matches!(revoked, Reply::Revoked { closed: 1, .. }), "{revoked:?}");
    assert_eq!(broker.open(), 0);
    let mut ended = reap(&mut queue, 2);
    assert!(ended.iter().all(|ended| ended.status == Err(Error::Cancelled)), "the device had to give them up: {ended:?}");
    assert_eq!(queue.submit(&Request::flush(Tag(5)), &[]), Submit::Queued);
    queue.ring();
    ended = reap(&mut queue, 1);
    assert_eq!((ended[0].status, queue.ended()), (Err(Error::NotPermitted), Some(Ended::Revoked)));
    assert_eq!(queue.submit(&Request::flush(Tag(6)), &[]), Submit::Queued);
    assert_eq!(reap(&mut queue, 1)[0].status, Err(Error::NotPermitted), "and from now on");
    assert_eq!(queue.reset(), Ok(()), "the device touches nothing");
    assert!(matches!(refusal(broker.connect(None)), Refusal::NoGrant { .. }));
}

#[test]
fn a_grant_that_is_given_anew_ends_the_queues_of_the_old_one() {
    let broker = Broker::new();
    broker.grant(terms(me()));
    let device = broker.connect(None).expect("allowed");
    let mut queue = device.open_queue(8).expect("a queue");
    let (_, replaced, closed) = broker.admin().grant(GrantSpec { queues: 1, ..terms(me()) }).expect("granted");
    assert!(replaced.is_some() && closed == 1);
    assert_eq!(queue.submit(&Request::flush(Tag(1)), &[]), Submit::Queued);
    queue.ring();
    assert_eq!(reap(&mut queue, 1)[0].status, Err(Error::NotPermitted));
    let held = device.open_queue(8).expect("under the new one");
    assert_eq!(refusal(device.open_queue(8)), Refusal::TooManyQueues { open: 1, most: 1 });
    drop(held);
}

#[test]
fn a_client_killed_leaves_no_queue_behind() {
    let broker = Broker::new();
    broker.grant(terms(me()));
    for round in 0..if is_full_run() { 300 } else { 12 } {
        // The client dies with requests on the device, in the ring, or with none.
        broker.device.hold.store(round % 3 != 0, Ordering::Release);
        let mut first = Process::start("client", broker.dir.path());
        let mut second = Process::start("client", broker.dir.path());
        assert_eq!((first.hear().as_str(), second.hear().as_str()), ("open", "open"), "round {round}");
        assert!(matches!(refusal(broker.connect(None).and_then(|device| device.open_queue(1))), Refusal::TooManyQueues { .. }));
        if round % 2 == 0 {
            first.tell("submit 8");
            assert_eq!(first.hear(), "done none");
        }
        first.kill();
        broker.wait_for(1);
        second.kill();
        broker.wait_for(0);
    }
    broker.device.hold.store(false, Ordering::Release);
    let device = broker.connect(None).expect("allowed");
    let both = [device.open_queue(8).expect("one"), device.open_queue(8).expect("two")];
    assert_eq!(both.len(), 2);
}

#[test]
fn a_stopped_client_stalls_itself_alone() {
    let broker = Broker::new();
    broker.grant(terms(me()));
    let mut stopped = Process::start("client", broker.dir.path());
    assert_eq!(stopped.hear(), "open");
    broker.device.hold.store(true, Ordering::Release);
    stopped.tell("submit 8");
    assert_eq!(stopped.hear(), "done none");
    stopped.signal(Signal::STOP);
    broker.device.hold.store(false, Ordering::Release);
    let device = broker.connect(None).expect("allowed");
    let mut queue = device.open_queue(8).expect("a queue");
    for round in 0..1000 {
        assert_eq!(queue.submit(&Request::flush(Tag(round)), &[]), Submit::Queued);
        queue.ring();
        assert_eq!(reap(&mut queue, 1)[0].status, Ok(()));
    }
    stopped.signal(Signal::CONT);
    stopped.tell("reap 8");
    assert_eq!(stopped.hear(), "done Ok(())");
    stopped.tell("write 20");
    assert_eq!(stopped.hear(), "done Ok(())");
}

#[test]
fn a_broker_that_dies_ends_its_clients_requests() {
    for submit_first in [true, false] {
        let dir = tempfile::tempdir().expect("a directory");
        let mut broker = Process::start("holding broker", dir.path());
        assert_eq!(broker.hear(), "ready");
        let socket = dir.path().join("socket");
        block::broker::client::Admin::connect(&socket).expect("connected").grant(terms(me())).expect("granted");
        let device = connect(&socket, None).expect("allowed");
        let (mut waits, mut polls) = (device.open_queue(8).expect("one"), device.open_queue(8).expect("two"));
        let mut submit = || {
            for queue in [&mut waits, &mut polls] {
                assert_eq!(queue.submit(&Request::flush(Tag(1)), &[]), Submit::Queued);
                queue.ring();
            }
        };
        if submit_first {
            submit();
        }
        broker.kill();
        if !submit_first {
            submit();
        }
        waits.wait(Duration::from_secs(60));
        assert_eq!(reap(&mut waits, 1)[0].status, Err(Error::Gone));
        let mut ended = [Completion::EMPTY; 2];
        wait_until("a completion by polling alone", || polls.poll(&mut ended) == 1);
        assert_eq!(ended[0].status, Err(Error::Gone));
        assert_eq!(polls.reset(), Err(Error::Gone));
        assert!(device.open_queue(1).is_err());
        // A new broker finds the policy, and the socket that the killed one left.
        let mut next = Process::start("broker", dir.path());
        assert_eq!(next.hear(), "ready");
        connect(&socket, None).and_then(|device| device.open_queue(8)).expect("as before");
    }
}

#[test]
fn a_broker_that_ends_in_good_order_says_so() {
    let mut broker = Broker::new();
    broker.grant(terms(me()));
    let mut queue = with_held(&broker, 3);
    drop(broker.server.take());
    assert!(!broker.socket().exists());
    let ended = reap(&mut queue, 3);
    assert!(ended.iter().all(|ended| ended.status == Err(Error::Cancelled)), "{ended:?}");
    assert_eq!(queue.submit(&Request::flush(Tag(1)), &[]), Submit::Queued);
    assert_eq!((reap(&mut queue, 1)[0].status, queue.ended()), (Err(Error::Gone), Some(Ended::BrokerEnds)));
}

#[test]
fn memory_the_device_does_not_let_go_of_is_kept_and_counted() {
    let broker = Broker::new();
    broker.grant(terms(me()));
    broker.device.stuck.store(true, Ordering::Release);
    let mut queue = with_held(&broker, 1);
    assert_eq!(queue.reset(), Err(Error::Gone), "after the broker's reset timeout");
    let stat = broker.admin().stat().expect("stat");
    assert!(stat.len() == 1 && stat[0].lost, "{stat:?}");
    assert_eq!(reap(&mut queue, 1)[0].status, Err(Error::Gone));
    drop(queue);
    assert_eq!(broker.open(), 1, "its place is not given to others");
}

#[test]
fn a_rate_is_kept_and_slows_nobody_else() {
    let broker = Broker::new();
    broker.grant(GrantSpec { requests_per_s: Some(2000), ..terms(me()) });
    broker.grant(GrantSpec { first: 0, blocks: Some(10), ..terms(me()) });
    let (slow, fast) = (broker.connect(Some((1000, 10))).expect("allowed"), broker.connect(Some((0, 10))).expect("allowed"));
    let (mut slow, mut fast) = (slow.open_queue(8).expect("a queue"), fast.open_queue(8).expect("a queue"));
    let begin = std::time::Instant::now();
    let (mut slow_done, mut fast_done) = (0_u32, 0_u32);
    for queue in [&mut slow, &mut fast] {
        (0..8).for_each(|tag| assert_eq!(queue.submit(&Request::flush(Tag(tag)), &[]), Submit::Queued));
    }
    while slow_done < 100 {
        for (queue, done) in [(&mut slow, &mut slow_done), (&mut fast, &mut fast_done)] {
            let mut ended = [Completion::EMPTY; 8];
            for completion in &ended.to_owned()[..queue.poll(&mut ended)] {
                let _ = completion;
                *done += 1;
            }
            while queue.in_flight() < 8 {
                let tag = Tag(u64::from(*done) << 8 | u64::from(queue.in_flight()));
                assert_eq!(queue.submit(&Request::flush(tag), &[]), Submit::Queued);
            }
            queue.ring();
        }
    }
    // The rate is never higher than the limit plus its burst, however slow the machine is.
    assert!(begin.elapsed() >= Duration::from_millis(50 - 21), "{:?}", begin.elapsed());
    assert!(fast_done > 0);
}
