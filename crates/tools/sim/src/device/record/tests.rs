use std::io::{self, Write};
use std::time::Duration;

use block::driver::MemoryDevice;
use block::{Arena, Completion, Error, Lba, Op, Queue, Request, Submit, Tag, Time};

use super::*;
use crate::device::clock::VirtualClock;
use crate::device::fault::{Fault, FaultRule, FaultTrigger, Faults, FaultyQueue};
use crate::device::model::{FixedLatency, TimedQueue};

const MODEL: Duration = Duration::from_micros(80);

fn device() -> MemoryDevice {
    MemoryDevice::new(512, 1 << 20).expect("memory")
}

/// Creates a recording of `count` random requests; those that touch block 100 fail.
fn recorded(seed: u64, count: u64) -> Vec<u8> {
    let clock = VirtualClock::default();
    let faults = Faults::default();
    faults.add(FaultRule::new(FaultTrigger::Always, Fault::Fail(Error::Media)).within(100..101));
    let model = TimedQueue::simulated(device().open_queue(8), FixedLatency(MODEL), &clock);
    let faulty = FaultyQueue::new(model, clock.clone(), &faults, seed).expect("memory");
    let mut queue = RecordingQueue::new(faulty, clock.clone(), Vec::new()).expect("written to memory");
    let arena = Arena::private(1 << 20).expect("memory");
    queue.register(&arena).expect("registered");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut ended = [Completion::EMPTY; 8];
    let mut tag = 0;
    while tag < count || queue.in_flight() > 0 {
        if tag < count && random.u8(..4) > 0 {
            let blocks = random.u32(1..5);
            let lba = Lba(random.u64(..200));
            let spans = [arena.span(tag as usize % 64 * 4096, blocks * 512)];
            let request = match random.u8(..8) {
                0 => Request::flush(Tag(tag)),
                1 => Request::write_fua(Tag(tag), lba, blocks),
                2 | 3 => Request::write(Tag(tag), lba, blocks),
                4 => Request::discard(Tag(tag), lba, blocks),
                _ => Request::read(Tag(tag), lba, blocks),
            };
            let taken = queue.submit(&request, if request.op.has_data() { &spans } else { &[] });
            tag += u64::from(taken == Submit::Queued);
        } else {
            queue.ring();
            if queue.poll(&mut ended) == 0 {
                queue.wait(Duration::from_micros(random.u64(1..200)));
            }
            if random.u8(..16) == 0 {
                queue.cancel(Tag(tag.saturating_sub(1)));
            }
        }
    }
    queue.finish().expect("written to memory").1
}

fn events(bytes: &[u8]) -> Result<Vec<QueueEvent>, RecordingError> {
    Recording::new(bytes)?.collect()
}

#[test]
fn what_goes_through_is_read_again_as_it_was() {
    let bytes = recorded(1, 5000);
    let events = events(&bytes).expect("sound");
    let submitted: Vec<&Request> =
        events.iter().filter_map(|event| if let QueueEvent::Submit(_, request) = event { Some(request) } else { None }).collect();
    assert!(submitted.iter().enumerate().all(|(tag, request)| request.tag == Tag(tag as u64)) && submitted.len() == 5000);
    assert!(submitted.iter().any(|request| request.fua) && submitted.iter().any(|request| request.op == Op::Flush));
    let completed = |status| events.iter().filter(|event| matches!(event, QueueEvent::Complete(_, _, found) if *found == status)).count();
    assert!(completed(Ok(())) > 4000 && completed(Err(Error::Media)) > 10);
    assert_eq!(events.iter().filter(|event| matches!(event, QueueEvent::Complete(..))).count(), 5000);
    assert!(events.windows(2).all(|two| two[0].time() <= two[1].time()), "in order");
    assert!(bytes.len() > 40_000 && bytes.len() < 20 * events.len(), "{} bytes for {} events", bytes.len(), events.len());
    let header = Recording::new(&bytes).expect("sound").header().clone();
    assert_eq!((header.depth, header.geometry), (8, block::Device::geometry(&device()).clone()));
}

#[test]
fn every_status_and_every_number_survives() {
    let mut encoder = format::Encoder::default();
    let mut frame = Vec::new();
    let errors = [Error::Media, Error::NoResources, Error::Other(0), Error::Other(u16::MAX)].map(Err);
    let mut written: Vec<QueueEvent> = errors.iter().map(|status| QueueEvent::Complete(Time(5), Tag(u64::MAX), *status)).collect();
    let request =
        Request { class: block::Class(255), urgency: block::Urgency::Batch, ..Request::write_fua(Tag(1 << 63), Lba(u64::MAX), u32::MAX) };
    written.extend([
        QueueEvent::Submit(Time(5), request),
        QueueEvent::Reset(Time(6), Err(Error::Gone)),
        QueueEvent::Cancel(Time(u64::MAX), Tag(0)),
    ]);
    for event in &written {
        let before = frame.len();
        encoder.push(event, &mut frame);
        assert!(frame.len() - before <= format::EVENT_BYTES_MAX);
    }
    let mut bytes = RecordingHeader { geometry: block::Geometry::plain(512, 8), depth: 1 }.to_bytes().to_vec();
    let crc = format::frame_crc(bytes.len() as u64, &frame);
    bytes.extend((frame.len() as u32).to_le_bytes());
    bytes.extend(crc.to_le_bytes());
    bytes.extend(frame);
    assert_eq!(events(&bytes), Ok(written));
}

#[test]
fn a_damaged_recording_is_an_error() {
    let bytes = recorded(2, 200);
    let sound = events(&bytes).expect("sound");
    for length in 0..bytes.len() {
        // A recording may end at a frame boundary: here only after its header.
        let cut = events(&bytes[..length]);
        assert!(cut.is_err() || length == format::HEADER_BYTES, "{length}: {cut:?}");
    }
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..3000 {
        let mut damaged = bytes.clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..damaged.len());
            damaged[at] ^= 1 << random.u8(..8);
        }
        assert!(damaged == bytes || events(&damaged).is_err(), "a flipped bit was not seen");
    }
    let mut later = bytes.clone();
    later[4] = 2;
    assert_eq!(events(&later), Err(RecordingError::Version(2)));
    assert_eq!(events(b"hsqr"), Err(RecordingError::RecordingHeader));
    assert_eq!(events(&bytes), Ok(sound));
}

#[test]
fn nonsense_with_right_checksums_is_an_error_too() {
    let header = RecordingHeader { geometry: block::Geometry::plain(512, 8), depth: 1 }.to_bytes();
    let mut random = fastrand::Rng::with_seed(4);
    for _ in 0..20_000 {
        let frame: Vec<u8> = (0..random.usize(1..40)).map(|_| if random.bool() { random.u8(..) } else { random.u8(..5) << 4 }).collect();
        let mut bytes = header.to_vec();
        bytes.extend((frame.len() as u32).to_le_bytes());
        bytes.extend(format::frame_crc(bytes.len() as u64 - 4, &frame).to_le_bytes());
        bytes.extend(&frame);
        // Damage may cause any error, but no panic.
        let Ok(recording) = Recording::new(&bytes) else { panic!("the header is sound") };
        assert!(recording.clone().count() <= frame.len() + 1);
        let clock = VirtualClock::default();
        let mut queue = TimedQueue::simulated(device().open_queue(2), FixedLatency(MODEL), &clock);
        let _ = replay(recording, &mut queue, &clock, ReplayPace::Fast);
    }
}

#[test]
fn a_replay_does_the_same_and_says_what_ended_otherwise() {
    let bytes = recorded(5, 2000);
    let recording = Recording::new(&bytes).expect("sound");
    assert!(changes(recording.clone()));
    for pace in [ReplayPace::Fast, ReplayPace::Recorded] {
        for (fails, model) in [(true, MODEL), (false, MODEL), (true, MODEL / 8)] {
            let clock = VirtualClock::default();
            let faults = Faults::default();
            if fails {
                faults.add(FaultRule::new(FaultTrigger::Always, Fault::Fail(Error::Media)).within(100..101));
            }
            let timed = TimedQueue::simulated(device().open_queue(8), FixedLatency(model), &clock);
            let mut queue = FaultyQueue::new(timed, clock.clone(), &faults, 1).expect("memory");
            let result = replay(recording.clone(), &mut queue, &clock, pace).expect("sound");
            assert_eq!(result.requests, 2000);
            let otherwise = |difference: &&ReplayDifference| {
                difference.recorded != Some(Err(Error::Cancelled)) && difference.replayed != Some(Err(Error::Cancelled))
            };
            let differences: Vec<&ReplayDifference> = result.differences.iter().filter(otherwise).collect();
            assert_eq!(differences.is_empty(), fails, "{differences:?}");
            assert!(differences.iter().all(|found| found.recorded == Some(Err(Error::Media)) && found.replayed == Some(Ok(()))));
            let quicker = result.took < result.recorded;
            assert!(if quicker { pace == ReplayPace::Fast } else { pace == ReplayPace::Recorded || model == MODEL }, "{result:?}");
            if pace == ReplayPace::Recorded {
                assert!(result.took < result.recorded + Duration::from_millis(1), "{:?} for {:?}", result.took, result.recorded);
            }
        }
    }
}

#[test]
fn a_recording_that_cannot_be_written_ends_and_the_queue_goes_on() {
    struct FullWriter(usize);
    impl Write for FullWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let clock = VirtualClock::default();
    let mut queue = RecordingQueue::new(device().open_queue(8), clock, FullWriter(1000)).expect("room for the header");
    let mut ended = [Completion::EMPTY; 8];
    for tag in 0..10_000 {
        assert_eq!(queue.submit(&Request::flush(Tag(tag)), &[]), Submit::Queued);
        assert_eq!(queue.poll(&mut ended), 1);
    }
    assert_eq!(queue.finish().err().map(|error| error.kind()), Some(io::ErrorKind::StorageFull));
}
