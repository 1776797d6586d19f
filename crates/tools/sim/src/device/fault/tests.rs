use std::time::Duration;

use block::driver::MemoryDevice;
use block::{Arena, Buf, Clock, Completion, Error, Lba, Op, Queue, Request, Submit, Tag, Time};

use super::*;
use crate::device::clock::{Virtual, VirtualClock};
use crate::device::model::TimedQueue;
use crate::device::model::fixed::{FixedLatency, Reservations};

type DeviceModel = TimedQueue<block::driver::memory::MemoryQueue, Reservations<FixedLatency>, Virtual>;

struct Bed {
    device: MemoryDevice,
    clock: VirtualClock,
    arena: Arena,
    faults: Faults,
    queue: FaultyQueue<DeviceModel, VirtualClock>,
    tags: u64,
}

impl Bed {
    fn new() -> Bed {
        let device = MemoryDevice::new(4096, 1 << 20).expect("memory");
        let clock = VirtualClock::default();
        let faults = Faults::default();
        let model = TimedQueue::simulated(device.open_queue(8), FixedLatency(Duration::from_micros(10)), &clock);
        let mut queue = FaultyQueue::new(model, clock.clone(), &faults, 1).expect("memory");
        let arena = Arena::private(1 << 20).expect("memory");
        queue.register(&arena).expect("registered");
        Bed { device, clock, arena, faults, queue, tags: 0 }
    }

    fn with(fault: Fault) -> (Bed, RuleId) {
        let bed = Bed::new();
        let rule = bed.faults.add(FaultRule::new(FaultTrigger::Nth(1), fault));
        (bed, rule)
    }

    fn buffer(&self, byte: u8) -> Buf {
        let buffer = self.arena.allocate(8192).expect("room");
        buffer.write(0, &[byte; 8192]);
        buffer
    }

    fn submit(&mut self, op: Op, lba: u64, buffer: &Buf) -> Tag {
        self.tags += 1;
        let request = Request { op, ..Request::read(Tag(self.tags), Lba(lba), 2) };
        let spans = [buffer.span()];
        assert_eq!(self.queue.submit(&request, if op.has_data() { &spans } else { &[] }), Submit::Queued);
        Tag(self.tags)
    }

    /// Returns all completions of the next millisecond.
    fn completions(&mut self) -> Vec<Completion> {
        let end = self.clock.now().after(Duration::from_millis(1));
        let mut all = Vec::new();
        let mut some = [Completion::EMPTY; 4];
        while self.clock.now() < end {
            let count = self.queue.poll(&mut some);
            all.extend_from_slice(&some[..count]);
            if count == 0 {
                self.queue.wait(end.since(self.clock.now()));
            }
        }
        all
    }

    fn run(&mut self, op: Op, lba: u64, buffer: &Buf) -> Completion {
        let tag = self.submit(op, lba, buffer);
        let all = self.completions();
        assert!(all.len() == 1 && all[0].tag == tag, "{all:?}");
        all[0]
    }

    fn medium(&self, lba: u64) -> Vec<u8> {
        let mut bytes = vec![0; 8192];
        self.device.region().read(lba as usize * 4096, &mut bytes);
        bytes
    }
}

fn wrong_bits(bytes: &[u8], right: u8) -> u32 {
    bytes.iter().map(|byte| (byte ^ right).count_ones()).sum()
}

#[test]
fn errors_of_every_type_are_reported_and_nothing_is_done() {
    for error in Error::CODES.into_iter().chain([Error::Other(5)]) {
        let (mut bed, rule) = Bed::with(Fault::Fail(error));
        let buffer = bed.buffer(7);
        assert_eq!(bed.run(Op::Write, 0, &buffer).status, Err(error));
        assert_eq!(bed.medium(0), [0; 8192]);
        assert_eq!(bed.run(Op::Write, 0, &buffer).status, Ok(()), "only the first");
        assert_eq!((bed.faults.happened(rule), bed.faults.injected(FaultKind::Fail)), (Some(1), 1));
    }
}

#[test]
fn rules_choose_by_operation_place_and_number_and_change_while_running() {
    let mut bed = Bed::new();
    let buffer = bed.buffer(1);
    let fail = |when| FaultRule::new(when, Fault::Fail(Error::Media));
    let rule = bed.faults.add(fail(FaultTrigger::Always).on(&[Op::Write]).within(10..12));
    let mut failed = |op, lba| bed.run(op, lba, &buffer).status.is_err();
    assert!(failed(Op::Write, 9) && failed(Op::Write, 11) && !failed(Op::Write, 8) && !failed(Op::Write, 12) && !failed(Op::Read, 10));
    assert_eq!(bed.faults.happened(rule), Some(2));
    bed.faults.remove(rule);
    assert_eq!(bed.run(Op::Write, 10, &buffer).status, Ok(()));
    for (when, expected) in [
        (FaultTrigger::Nth(3), 1),
        (FaultTrigger::From(3), 4),
        (FaultTrigger::Every(2), 3),
        (FaultTrigger::Chance(1.0), 6),
        (FaultTrigger::Chance(0.0), 0),
    ] {
        bed.faults.clear();
        bed.faults.add(fail(when));
        let failed = (0..6).filter(|_| bed.run(Op::Read, 0, &buffer).status.is_err()).count();
        assert_eq!(failed, expected, "{when:?}");
    }
}

#[test]
fn what_hangs_ends_by_cancel_or_reset_or_never() {
    for hang in [HangKind::UntilCancel, HangKind::UntilReset, HangKind::ForEver] {
        let (mut bed, _) = Bed::with(Fault::Hang(hang));
        let buffer = bed.buffer(1);
        let tag = bed.submit(Op::Read, 0, &buffer);
        assert_eq!(bed.completions(), []);
        bed.queue.cancel(tag);
        let cancelled = [Completion { tag, status: Err(Error::Cancelled) }];
        assert_eq!(bed.completions(), if hang == HangKind::UntilCancel { &cancelled[..] } else { &[] });
        assert_eq!(bed.queue.reset().is_ok(), hang != HangKind::ForEver);
        assert_eq!(bed.queue.in_flight(), u32::from(hang == HangKind::ForEver));
        assert_eq!(bed.completions(), []);
        assert_eq!(bed.faults.injected(FaultKind::Hang), 1);
    }
}

#[test]
fn slow_and_late_ones_come_but_later() {
    let (mut bed, _) = Bed::with(Fault::Slow(Duration::from_micros(300)));
    let buffer = bed.buffer(1);
    let slow = bed.submit(Op::Read, 0, &buffer);
    let other = bed.submit(Op::Read, 0, &buffer);
    let order: Vec<Tag> = bed.completions().iter().map(|completion| completion.tag).collect();
    assert_eq!(order, [other, slow]);
    assert_eq!(bed.faults.injected(FaultKind::Slow), 1);
    let (mut bed, _) = Bed::with(Fault::Late(2));
    let tags: Vec<Tag> = (0..4).map(|_| bed.submit(Op::Read, 0, &buffer)).collect();
    bed.queue.register(buffer.arena()).expect("registered");
    let order: Vec<Tag> = bed.completions().iter().map(|completion| completion.tag).collect();
    assert_eq!(order.len(), 4);
    assert!(order.iter().position(|tag| *tag == tags[0]) >= Some(2), "{order:?}");
    assert_eq!(bed.faults.injected(FaultKind::Late), 1);
}

#[test]
fn torn_writes_reach_the_medium_in_part() {
    for (torn, status) in [(TornPart::Prefix(3), Ok(())), (TornPart::AnyPrefix, Err(Error::Media)), (TornPart::Any, Ok(()))] {
        let (mut bed, _) = Bed::with(Fault::Torn(torn, status));
        let buffer = bed.buffer(7);
        bed.device.region().fill(0..8192, 1);
        assert_eq!(bed.run(Op::Write, 0, &buffer).status, status);
        let medium = bed.medium(0);
        let sectors: Vec<u8> = medium.chunks(512).map(|sector| sector[0]).collect();
        assert!(medium.chunks(512).all(|sector| sector.iter().all(|byte| *byte == sector[0])), "sectors are whole");
        let new = sectors.iter().filter(|byte| **byte == 7).count();
        match torn {
            TornPart::Prefix(count) => assert!(new == count as usize && sectors[..new].iter().all(|byte| *byte == 7)),
            TornPart::AnyPrefix => assert!(new < 16 && sectors[..new].iter().all(|byte| *byte == 7), "{sectors:?}"),
            TornPart::Any => assert!(new > 0 && new < 16, "{sectors:?}"),
        }
        assert_eq!(bed.faults.injected(FaultKind::Torn), 1);
    }
}

#[test]
fn silent_damage_is_reported_as_success() {
    let buffer_of = |bed: &Bed, byte| bed.buffer(byte);
    let (mut bed, _) = Bed::with(Fault::FlipWrite(1));
    let buffer = buffer_of(&bed, 7);
    assert_eq!(bed.run(Op::Write, 0, &buffer).status, Ok(()));
    assert_eq!((wrong_bits(&bed.medium(0), 7), wrong_bits(&buffer.to_vec(), 7)), (1, 0));

    let (mut bed, _) = Bed::with(Fault::FlipRead(1));
    let buffer = buffer_of(&bed, 7);
    assert_eq!(bed.run(Op::Write, 0, &buffer).status, Ok(()), "writes are not meant");
    assert_eq!(bed.run(Op::Read, 0, &buffer).status, Ok(()));
    assert_eq!((wrong_bits(&buffer.to_vec(), 7), wrong_bits(&bed.medium(0), 7)), (1, 0));

    let (mut bed, _) = Bed::with(Fault::Lost);
    let buffer = buffer_of(&bed, 7);
    assert_eq!(bed.run(Op::Write, 0, &buffer).status, Ok(()));
    assert_eq!(bed.medium(0), [0; 8192]);

    let (mut bed, _) = Bed::with(Fault::Misdirected(Some(Lba(20))));
    let buffer = buffer_of(&bed, 7);
    assert_eq!(bed.run(Op::Write, 0, &buffer).status, Ok(()));
    assert_eq!((bed.medium(0), bed.medium(20)), (vec![0; 8192], vec![7; 8192]));
}

#[test]
fn completions_come_twice_and_from_nowhere() {
    for fault in [Fault::Twice, Fault::Stray] {
        let (mut bed, _) = Bed::with(fault);
        let buffer = bed.buffer(7);
        let tag = bed.submit(Op::Read, 0, &buffer);
        let all = bed.completions();
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].tag, tag);
        assert_eq!(all[1].tag == tag, fault == Fault::Twice);
        assert_eq!(bed.faults.injected(fault.kind()), 1);
    }
}

#[test]
fn a_device_goes_with_all_it_has() {
    let mut bed = Bed::new();
    bed.faults.add(FaultRule::new(FaultTrigger::Nth(3), Fault::Gone));
    let buffer = bed.buffer(7);
    let tags: Vec<Tag> = (0..4).map(|_| bed.submit(Op::Write, 0, &buffer)).collect();
    let all = bed.completions();
    assert_eq!(all.len(), tags.len());
    assert!(all.iter().all(|completion| completion.status == Err(Error::Gone)));
    assert_eq!(bed.queue.reset(), Err(Error::Gone));
    assert_eq!(bed.medium(0), [0; 8192], "it touches nothing afterwards");
}

#[test]
fn resets_fail_as_often_as_configured() {
    let mut bed = Bed::new();
    let buffer = bed.buffer(7);
    bed.faults.fail_resets(2);
    bed.submit(Op::Read, 0, &buffer);
    assert!(bed.queue.reset().is_err() && bed.queue.reset().is_err() && bed.queue.in_flight() == 1);
    assert_eq!(bed.queue.reset(), Ok(()));
    assert_eq!((bed.queue.in_flight(), bed.faults.injected(FaultKind::Reset)), (0, 2));
    assert!(bed.clock.now() == Time(0));
}
