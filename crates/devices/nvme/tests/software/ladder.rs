//! What becomes of requests and of the controller when it does not do what it should.

use std::time::Duration;

use block::{Clock, Completion, Error, Lba, Queue, QueueOptions, Request, Submit, Tag, Tracked};
use nvme::entry::{CompletionEntry, admin, nvm};
use nvme::recorder::{Event, Flights, Reason, Record};
use nvme::{Controller, Notice, Opening, Options, Status};
use sim::device::clock::VirtualClock;
use sim::nvme::faults::{ControllerFaultRule, Fault};
use sim::nvme::{CommandTiming, ControllerConfig, NamespaceConfig, SoftController};

use super::setting::{Setting, Stack, next, options, run, timeouts};

fn rule(setting: &Setting, rule: ControllerFaultRule) {
    setting.device.with_faults(|faults| faults.rules.push(rule));
}

fn slow() -> ControllerConfig {
    ControllerConfig { timing: CommandTiming::Between(10_000, 90_000), ..ControllerConfig::default() }
}

/// The device is as good as before.
fn works(setting: &Setting, queue: &mut impl Queue) {
    let (data, back) = (setting.buf(4096, 9), setting.buf(4096, 0));
    assert_eq!(run(queue, Request::write(Tag(1), Lba(1), 1), &[&data]), Ok(()));
    assert_eq!(run(queue, Request::read(Tag(2), Lba(1), 1), &[&back]), Ok(()));
    assert_eq!(back.to_vec(), data.to_vec());
}

fn timed_out(setting: &Setting, queue: &mut Stack) -> block::Buf {
    let buf = setting.buf(4096, 1);
    assert_eq!(run(queue, Request::read(Tag(7), Lba(0), 1), &[&buf]), Err(Error::Timeout));
    buf
}

/// Memory of a request that was given up comes back.
fn released(queue: &mut Stack) {
    for _ in 0..1000 {
        if queue.take_released() == Some(Tag(7)) {
            return;
        }
        queue.wait(Duration::from_millis(5));
        queue.poll(&mut []);
    }
    panic!("the memory stays with the device");
}

#[test]
fn a_request_that_takes_too_long_is_aborted() {
    let setting = Setting::new(slow(), 1);
    let mut queue = setting.tracked(8);
    rule(&setting, ControllerFaultRule::next(1, Fault::Delay(Duration::from_secs(1000))));
    timed_out(&setting, &mut queue);
    released(&mut queue);
    assert_eq!((queue.below().counters().aborts, setting.controller.resets()), (1, 0));
    works(&setting, &mut queue);
    drop(queue);
    setting.check();
}

#[test]
fn a_lost_command_costs_its_queue_and_nobody_else() {
    let setting = Setting::new(slow(), 1);
    let (mut queue, mut other) = (setting.tracked(8), setting.tracked(8));
    rule(&setting, ControllerFaultRule::next(1, Fault::Drop));
    timed_out(&setting, &mut queue);
    assert!(queue.owns_buffer(Tag(7)), "nobody knows what the device does with it");
    released(&mut queue);
    assert_eq!((queue.below().counters().remade, setting.controller.resets()), (1, 0));
    works(&setting, &mut queue);
    works(&setting, &mut other);
    drop((queue, other));
    setting.check();
}

#[test]
fn a_queue_that_is_not_deleted_costs_a_reset_and_others_notice_nothing() {
    let setting = Setting::new(slow(), 1);
    let (mut queue, mut other) = (setting.tracked(8), setting.tracked(8));
    rule(&setting, ControllerFaultRule::next(1, Fault::Drop));
    rule(&setting, ControllerFaultRule::next(1, Fault::Drop).admin(admin::DELETE_SQ));
    timed_out(&setting, &mut queue);
    let data = setting.buf(4096, 5);
    released(&mut queue);
    assert_eq!(setting.controller.resets(), 1);
    assert_eq!(other.submit(&Request::write(Tag(3), Lba(5), 1), &[data.span()]), Submit::Queued);
    let ended = next(&mut other);
    assert_eq!((ended[0].tag, ended[0].status), (Tag(3), Ok(())), "sent again to a queue that was made anew");
    works(&setting, &mut queue);
    works(&setting, &mut other);
    assert!(!setting.controller.incidents().is_empty());
    drop((queue, other));
    setting.check();
}

#[test]
fn what_others_had_in_flight_is_sent_again_after_a_reset() {
    let setting =
        Setting::new(ControllerConfig { timing: CommandTiming::Between(50_000_000, 60_000_000), ..ControllerConfig::default() }, 1);
    let mut queue = setting.queue(32);
    let bufs: Vec<_> = (0..32).map(|at| setting.buf(4096, at)).collect();
    for (at, buf) in (0..).zip(&bufs) {
        assert_eq!(queue.submit(&Request::write(Tag(at), Lba(at), 1), &[buf.span()]), Submit::Queued);
    }
    queue.ring();
    setting.device.break_down();
    let mut ended = Vec::new();
    while ended.len() < 32 {
        ended.extend(next(&mut queue));
    }
    assert!(ended.iter().all(|completion| completion.status == Ok(())), "{ended:?}");
    assert_eq!((setting.controller.resets(), queue.counters().remade), (1, 1));
    drop(queue);
    setting.check();
}

#[test]
fn a_controller_that_cannot_be_reset_is_gone_and_its_requests_end() {
    for confirmed in [true, false] {
        let setting = Setting::new(slow(), 1);
        let mut queue = setting.tracked(8);
        setting.device.with_faults(|faults| {
            faults.frozen = true;
            faults.stuck_ready = true;
            faults.cut_off_fails = if confirmed { 0 } else { u32::MAX };
        });
        timed_out(&setting, &mut queue);
        for _ in 0..2000 {
            queue.wait(Duration::from_millis(5));
            assert_eq!(queue.poll(&mut []), 0);
        }
        assert!(setting.controller.is_gone());
        assert_eq!(queue.take_released().is_some(), confirmed, "memory comes back only when it is certain");
        let buf = setting.buf(4096, 0);
        assert_eq!(run(&mut queue, Request::read(Tag(8), Lba(0), 1), &[&buf]), Err(Error::Gone));
    }
}

#[test]
fn a_device_that_is_pulled_out_ends_everything_as_gone() {
    let setting = Setting::new(slow(), 1);
    let mut queue = setting.tracked(8);
    let bufs: Vec<_> = (0..8).map(|_| setting.buf(4096, 0)).collect();
    for (tag, buf) in (0..).zip(&bufs) {
        assert_eq!(queue.submit(&Request::read(Tag(tag), Lba(tag), 1), &[buf.span()]), Submit::Queued);
    }
    queue.ring();
    setting.device.remove();
    let mut ended = Vec::new();
    while ended.len() < 8 {
        ended.extend(next(&mut queue));
    }
    assert!(ended.iter().all(|completion| completion.status == Err(Error::Gone)), "{ended:?}");
    assert_eq!(run(&mut queue, Request::flush(Tag(9)), &[]), Err(Error::Gone));
    assert!(setting.controller.namespace(1).expect("remembered").open_queue(&block::QueueOptions::default()).is_err());
    drop(queue);
    setting.check();
}

#[test]
fn answers_to_nobody_are_counted_and_forgotten() {
    let faults = [Fault::WrongId, Fault::WrongQueue, Fault::Twice(Duration::from_micros(3)), Fault::Twice(Duration::from_millis(40))];
    for fault in faults {
        let setting = Setting::new(slow(), 1);
        let mut queue = setting.tracked(2);
        rule(&setting, ControllerFaultRule::next(1, fault));
        let buf = setting.buf(4096, 0);
        let status = run(&mut queue, Request::read(Tag(7), Lba(0), 1), &[&buf]);
        let twice = matches!(fault, Fault::Twice(_));
        assert_eq!(status, if twice { Ok(()) } else { Err(Error::Timeout) });
        if !twice {
            // Other requests in flight would fail when the queue is reset for this one.
            released(&mut queue);
        }
        for _ in 0..300 {
            works(&setting, &mut queue);
            queue.wait(Duration::from_millis(1));
        }
        assert_eq!(queue.below().counters().strays, 1, "{fault:?}");
        drop(queue);
        setting.check();
    }
}

#[test]
fn a_status_is_tried_again_or_reported() {
    let setting = Setting::new(slow(), 1);
    let mut queue = setting.tracked(4);
    let buf = setting.buf(4096, 0);
    let mut with = |times, status, expected| {
        rule(&setting, ControllerFaultRule::next(times, Fault::Status(status)));
        assert_eq!(run(&mut queue, Request::read(Tag(1), Lba(0), 1), &[&buf]), expected, "{status:?}");
        setting.device.with_faults(|faults| faults.rules.clear());
    };
    with(3, Status::INTERRUPTED, Ok(()));
    with(4, Status::NOT_READY, Err(Error::NoResources));
    with(1, Status(Status::NOT_READY.0 | 1 << 14), Err(Error::NoResources));
    with(1, Status::READ_ERROR, Err(Error::Media));
    with(1, Status::OUT_OF_RANGE, Err(Error::OutOfRange));
    with(1, Status::WRITE_PROTECTED, Err(Error::ReadOnly));
    with(1, Status::INVALID_OPCODE, Err(Error::Unsupported));
    assert_eq!(queue.below().counters().retries, 6);
    drop(queue);
    setting.check();
}

#[test]
fn half_a_request_that_fails_fails_once() {
    let shape = ControllerConfig { transfer_pages_shift: 1, ..slow() };
    let setting = Setting::new(shape, 1);
    setting.device.with_faults(|faults| faults.bad = 5..6);
    let mut queue = setting.tracked(4);
    let buf = setting.buf(40 * 4096, 0);
    assert_eq!(run(&mut queue, Request::read(Tag(1), Lba(0), 40), &[&buf]), Err(Error::Media));
    assert_eq!(run(&mut queue, Request::read(Tag(2), Lba(6), 40), &[&buf]), Ok(()));
    drop(queue);
    setting.check();
}

fn opens(change: impl Fn(&SoftController)) -> Result<Controller, String> {
    let clock = VirtualClock::default();
    let device = SoftController::new(ControllerConfig::default(), &clock, 1);
    change(&device);
    let opening = Opening::begin(device.function(), options(), std::sync::Arc::new(clock.clone())).map_err(|error| error.to_string());
    let mut opening = opening?;
    for _ in 0..200_000 {
        match opening.advance() {
            Ok(Some(controller)) => return Ok(controller),
            Ok(None) => opening.wait(),
            Err(error) => {
                assert!(clock.now().0 < 60_000_000_000, "in {:?}", clock.now());
                return Err(error.to_string());
            }
        }
    }
    panic!("neither ready nor refused");
}

#[test]
fn opening_ends_whatever_the_controller_does() {
    let fails = |change: &dyn Fn(&SoftController)| opens(change).map(drop).expect_err("it cannot");
    assert!(fails(&|device| device.remove()).contains("gone"));
    assert!(fails(&|device| device.with_faults(|faults| faults.stuck_not_ready = true)).contains("does not become ready"));
    assert!(fails(&|device| device.with_faults(|faults| faults.frozen = true)).contains("does not answer"));
    assert!(fails(&|device| device.break_down()).contains("fatal"));
    for opcode in [admin::IDENTIFY, admin::SET_FEATURES] {
        let rule = ControllerFaultRule::next(1, Fault::Drop).admin(opcode);
        assert!(fails(&|device| device.with_faults(|faults| faults.rules.push(rule))).contains("does not answer"));
        let rule = ControllerFaultRule::next(1, Fault::Status(Status::INTERNAL)).admin(opcode);
        assert!(fails(&|device| device.with_faults(|faults| faults.rules.push(rule))).contains("refuses"));
    }
    let rule = ControllerFaultRule::next(9, Fault::Status(Status::INTERNAL)).admin(admin::DOORBELL_BUFFER);
    let without = opens(|device| device.with_faults(|faults| faults.rules.push(rule))).expect("it does without");
    assert!(!without.has_shadow_doorbells());
    opens(|device| device.with_faults(|faults| faults.ready_after = Duration::from_millis(1900))).expect("in the time it says");
}

#[test]
fn what_the_controller_tells_by_itself_is_heard_again_and_again() {
    let setting = Setting::new(slow(), 1);
    let mut queue = setting.tracked(4);
    for round in 0..10_u64 {
        setting.device.set_namespace(2, NamespaceConfig::plain(512, 100 + round));
        setting.device.set_critical(1 << (round % 4));
        let mut notices = Vec::new();
        for _ in 0..2000 {
            works(&setting, &mut queue);
            notices.extend(std::iter::from_fn(|| setting.controller.take_notice()));
            if notices.len() == 2 {
                break;
            }
        }
        let smart = |notice: &Notice| matches!(notice, Notice::Smart(smart) if smart.critical == 1 << (round % 4));
        assert!(notices.contains(&Notice::Namespaces) && notices.iter().any(smart), "{notices:?}");
        assert_eq!(setting.namespace(2).info().blocks, 100 + round);
    }
    assert_eq!(setting.controller.smart().expect("told").temperature, 310);
    drop(queue);
    setting.check();
}

/// Grown, shrunk, with other blocks, and gone: queues that are open know it with the event.
#[test]
fn a_namespace_of_another_size_is_known_to_its_queues() {
    let (block, blocks) = (4096, 2048);
    let namespaces = vec![NamespaceConfig::plain(block, blocks), NamespaceConfig::plain(512, 100)];
    let setting = Setting::new(ControllerConfig { namespaces, ..slow() }, 1);
    let stale = setting.namespace(1);
    let mut queue = setting.tracked(4);
    let options = QueueOptions { depth: 4, ..QueueOptions::default() };
    let mut other = setting.namespace(2).open_queue(&options).expect("a queue");
    let buf = setting.buf(block as usize, 7);
    fn read(queue: &mut impl Queue, lba: u64, buf: &block::Buf) -> block::Status {
        run(queue, Request::read(Tag(lba), Lba(lba), 1), &[buf])
    }
    let becomes = |shape: NamespaceConfig| {
        setting.device.set_namespace(1, shape);
        while setting.controller.take_notice() != Some(Notice::Namespaces) {
            setting.device.step();
            setting.controller.serve();
            setting.clock.advance(Duration::from_millis(1));
        }
    };
    assert_eq!(read(&mut queue, blocks, &buf), Err(Error::OutOfRange));
    // What is refused here never reached the controller; the event did not come yet.
    becomes(NamespaceConfig::plain(block, 2 * blocks));
    assert_eq!(read(&mut queue, 0, &buf), Ok(()));
    assert_eq!(queue.geometry().blocks, 2 * blocks);
    assert_eq!(read(&mut queue, 2 * blocks - 1, &buf), Ok(()));
    becomes(NamespaceConfig::plain(block, blocks / 2));
    // The controller says so, if the queue was not polled since.
    assert_eq!(read(&mut queue, blocks, &buf), Err(Error::OutOfRange));
    assert_eq!((queue.geometry().blocks, read(&mut queue, 0, &buf)), (blocks / 2, Ok(())));
    // One that is opened by what was known before is put right, too.
    let mut late = stale.open_queue(&options).expect("a queue");
    late.register(&setting.arena).expect("registered");
    assert_eq!((read(&mut late, 0, &buf), late.geometry().blocks), (Ok(()), blocks / 2));
    // Its blocks mean something else: nothing of it is read or written any more.
    let fetched = setting.device.done().fetched;
    becomes(NamespaceConfig::plain(512, blocks));
    assert_eq!(queue.poll(&mut [Completion::EMPTY; 4]), 0);
    assert_eq!((queue.geometry().blocks, read(&mut queue, 0, &buf)), (0, Err(Error::OutOfRange)));
    assert!(setting.device.done().fetched > fetched, "it looked at the namespaces");
    assert_eq!(other.poll(&mut [Completion::EMPTY; 4]), 0);
    assert_eq!(other.geometry().blocks, 100, "the other one is as it was");
    drop((queue, other, late));
    setting.check();
}

#[test]
fn discards_go_together_and_zeroes_in_parts() {
    let shape =
        ControllerConfig { namespaces: vec![NamespaceConfig::plain(512, 400_000)], timing: slow().timing, ..ControllerConfig::default() };
    let setting = Setting::new(shape, 1);
    let mut queue = setting.queue(64);
    for tag in 0..64 {
        assert_eq!(queue.submit(&Request::discard(Tag(tag), Lba(tag * 8), 4), &[]), Submit::Queued);
    }
    let mut ended = Vec::new();
    while ended.len() < 64 {
        ended.extend(next(&mut queue));
    }
    assert_eq!(queue.counters().commands, 1, "one deallocate of 64 ranges");
    assert_eq!(run(&mut queue, Request::write_zeroes(Tag(1), Lba(0), 200_000), &[]), Ok(()));
    assert_eq!(queue.counters().commands, 1 + 4, "of 65536 blocks at most");
    let events = queue.record().events;
    let zeroes = |event: &&Event| matches!(event, Event::Command(_, entry) if entry.opcode() == nvm::WRITE_ZEROES);
    let gives = |event: &Event| matches!(event, Event::Command(_, entry) if entry.dw(12) & 1 << 25 != 0);
    assert_eq!(events.iter().filter(zeroes).filter(|event| gives(event)).count(), 4, "and they give the blocks back");
    drop(queue);
    setting.check();
}

#[test]
fn a_flight_is_recorded_and_flown_again() {
    let setting = Setting::new(slow(), 1);
    let mut queue = setting.queue(16);
    let (small, large) = (setting.buf(4096, 1), setting.buf(200 * 1024, 2));
    for round in 0..20 {
        assert_eq!(run(&mut queue, Request::write(Tag(1), Lba(round), 1), &[&small]), Ok(()));
        assert_eq!(run(&mut queue, Request::read(Tag(2), Lba(round), 50), &[&large]), Ok(()));
        assert_eq!(run(&mut queue, Request::flush(Tag(3)), &[]), Ok(()));
    }
    let namespace = setting.namespace(1).info().clone();
    setting.device.with_faults(|faults| faults.rules.push(ControllerFaultRule::next(1, Fault::Drop).on(nvm::FLUSH)));
    assert_eq!(queue.submit(&Request::flush(Tag(4)), &[]), Submit::Queued);
    queue.wait(Duration::from_millis(1));
    let record = queue.record();
    assert_eq!(record.to_string().parse(), Ok(record.clone()), "as text it is the same");
    let fresh = || {
        SoftController::new(
            ControllerConfig { namespaces: vec![NamespaceConfig::plain(namespace.block_bytes, namespace.blocks)], ..slow() },
            &VirtualClock::default(),
            2,
        )
    };
    let device = fresh();
    let outcome = sim::nvme::replay::replay(&record, &device).expect("flown");
    assert_eq!((outcome.commands, outcome.same, outcome.unanswered.len()), (61, 60, 1), "all bytes are the same: {outcome:?}");
    assert_eq!(device.violations(), Vec::<String>::new());
    let worse = fresh();
    worse.with_faults(|faults| faults.bad = 10..11);
    let outcome = sim::nvme::replay::replay(&record, &worse).expect("flown");
    let worse = |(then, now): &(CompletionEntry, CompletionEntry)| then.status().is_ok() && !now.status().is_ok();
    assert!(outcome.other.iter().all(worse) && outcome.other.len() > 10, "{outcome:?}");
    drop(queue);
}

#[test]
fn what_goes_wrong_is_written_down_and_flown_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("flight");
    let options = Options { record_file: Some(file.clone()), records: 512, ..options() };
    let setting = Setting::with(slow(), options, 1);
    let mut queue = setting.tracked(8);
    works(&setting, &mut queue);
    rule(&setting, ControllerFaultRule::next(1, Fault::Drop));
    rule(&setting, ControllerFaultRule::next(1, Fault::Drop).admin(admin::DELETE_SQ));
    timed_out(&setting, &mut queue);
    released(&mut queue);
    let written: Vec<Flights> = (0..).map_while(|n| Flights::read(&dir.path().join(format!("flight.{n}"))).ok()).collect();
    let reasons: Vec<Reason> = written.iter().map(|flights| flights.reason).collect();
    assert_eq!(reasons, [Reason::Overdue, Reason::QueueReset, Reason::ControllerReset]);
    let incidents = setting.controller.incidents();
    assert!(written.iter().zip(&incidents).all(|(flights, record)| flights.records.as_slice() == std::slice::from_ref(record)));
    let now = Flights::read(&file).expect("while it runs");
    let fly = |record: &Record| {
        let device = SoftController::new(slow(), &VirtualClock::default(), 2);
        let outcome = sim::nvme::replay::replay(record, &device).expect("flown");
        assert_eq!(device.violations(), Vec::<String>::new());
        assert!(outcome.other.is_empty() && outcome.silent.is_empty() && outcome.fetched_otherwise == 0, "{outcome:?}");
        outcome
    };
    assert_eq!(fly(&written[0].records[0]).unanswered.len(), 1, "the one that the controller dropped");
    assert!(fly(&now.records[1]).unanswered.is_empty());
    let admin = fly(&now.records[0]);
    assert!(admin.same > 5 && admin.unanswered.len() == 2, "requests for events wait: {admin:?}");
    drop(queue);
    setting.check();
    drop(setting);
    assert!(!file.exists(), "nobody needs it after a clean shutdown");
}

#[test]
fn memory_that_the_device_cannot_reach_is_copied() {
    let setting = Setting::with(ControllerConfig { shared_memory_only: true, ..slow() }, Options::default(), 1);
    let mut queue = Tracked::with_clock(setting.queue(8), timeouts(), setting.clock.clone());
    works(&setting, &mut queue);
    assert!(queue.below().counters().bounced >= 2);
    drop(queue);
    setting.check();
}
