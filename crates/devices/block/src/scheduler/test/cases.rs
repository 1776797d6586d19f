//! Individual cases.

use std::time::Duration;

use super::super::{Options, Scheduler, Stage, classes, open_with_clock};
use super::clock::VirtualClock;
use super::rogue::Rogue;
use crate::buffer::{Arena, Span};
use crate::error::Error;
use crate::queue::{Queue, Submit};
use crate::request::{Completion, Request, Status};
use crate::tracked::{Timeouts, Tracked};
use crate::units::{Lba, Tag};

struct Bench {
    device: Rogue,
    queue: Stage<Rogue, VirtualClock>,
    arena: Arena,
}

impl Bench {
    fn new(change: impl FnOnce(&mut Options)) -> Bench {
        let device = Rogue::new(3, 1024, 16, |geometry| {
            geometry.transfer_bytes_max = 8 * 512;
            geometry.segments_max = 3;
        });
        let arena = Arena::private(4 << 20).expect("memory");
        let mut options = Options { dispatch_depth: Some(1), depth: 16, ..Options::of(Scheduler::Classes) };
        change(&mut options);
        let mut queue = classes(device.clone(), &options, device.clock());
        queue.register(&arena).expect("registered");
        Bench { device, queue, arena }
    }

    /// Returns memory for a request: at the offset of its blocks.
    fn span(&self, request: &Request) -> Vec<Span> {
        if !request.op.has_data() {
            return Vec::new();
        }
        let at = usize::try_from(request.lba.0).expect("small") * 512;
        vec![self.arena.span(at, request.blocks * 512)]
    }

    fn submit(&mut self, request: Request) -> Submit {
        let data = self.span(&request);
        self.queue.submit(&request, &data)
    }

    fn submit_all(&mut self, requests: &[Request]) {
        for request in requests {
            assert_eq!(self.submit(*request), Submit::Queued);
        }
    }

    /// Returns the status of every completed request, by tag.
    fn drain(&mut self) -> Vec<(u64, Status)> {
        let mut all = Vec::new();
        while self.queue.in_flight() > 0 {
            let mut ended = [Completion::EMPTY; 4];
            let count = self.queue.poll(&mut ended);
            all.extend(ended[..count].iter().map(|completion| (completion.tag.0, completion.status)));
        }
        all.sort_by_key(|(tag, _)| *tag);
        all
    }

    /// Returns the requests that were sent: first block, blocks, pieces of memory.
    fn log(&self) -> Vec<(u64, u32, usize)> {
        self.device.look().log.drain(..).map(|(request, pieces)| (request.lba.0, request.blocks, pieces)).collect()
    }
}

fn read(tag: u64, lba: u64, blocks: u32) -> Request {
    Request::read(Tag(tag), Lba(lba), blocks)
}

fn write(tag: u64, lba: u64, blocks: u32) -> Request {
    Request::write(Tag(tag), Lba(lba), blocks)
}

fn ok(tags: std::ops::Range<u64>) -> Vec<(u64, Status)> {
    tags.map(|tag| (tag, Ok(()))).collect()
}

#[test]
fn what_waits_is_cancelled_at_once_and_who_follows_it_goes() {
    let mut bench = Bench::new(|_| {});
    bench.submit_all(&[write(0, 0, 1)]);
    bench.queue.ring();
    bench.submit_all(&[write(1, 50, 2), write(2, 51, 2), read(3, 50, 1)]);
    bench.queue.cancel(Tag(1));
    bench.queue.cancel(Tag(1));
    bench.queue.cancel(Tag(77));
    assert_eq!(bench.queue.waiting(), 2);
    assert_eq!(bench.drain(), [(0, Ok(())), (1, Err(Error::Cancelled)), (2, Ok(())), (3, Ok(()))]);
    assert_eq!(bench.log(), [(0, 1, 1), (50, 1, 1), (51, 2, 1)]);
}

#[test]
fn full_is_said_before_anything_is_lost() {
    let mut bench = Bench::new(|options| options.depth = 2);
    bench.submit_all(&[read(0, 0, 1), read(1, 9, 1)]);
    assert_eq!(bench.submit(read(2, 5, 1)), Submit::Full);
    assert_eq!(bench.submit(read(3, 5000, 1)), Submit::Full);
    bench.queue.ring();
    assert_eq!(bench.submit(read(2, 5, 1)), Submit::Full, "what is with the device counts");
    assert_eq!(bench.drain(), ok(0..2));
    assert_eq!(bench.submit(read(2, 5, 1)), Submit::Queued);
    // Memory in very many pieces also fills the stage, and becomes free again.
    let device = Rogue::new(3, 64, 4, |geometry| geometry.segments_max = 16);
    let mut queue = classes(device.clone(), &Options { depth: 4, ..Options::of(Scheduler::Classes) }, device.clock());
    queue.register(&bench.arena).expect("registered");
    let pieces: Vec<Span> = (0..16).map(|at| bench.arena.span(at * 1024, 512)).collect();
    for _ in 0..5 {
        assert_eq!(queue.submit(&read(0, 0, 16), &pieces), Submit::Queued);
        assert_eq!(queue.submit(&read(1, 20, 16), &pieces), Submit::Queued);
        assert_eq!(queue.submit(&read(2, 40, 16), &pieces), Submit::Full);
        queue.ring();
        assert_eq!(queue.poll(&mut [Completion::EMPTY; 4]), 2);
    }
}

#[test]
fn wrong_requests_end_by_their_reason() {
    let mut bench = Bench::new(|_| {});
    bench.submit_all(&[
        read(0, 1024, 1),
        read(1, 0, 9),
        read(2, 0, 1),
        Request { lba: Lba(u64::MAX), blocks: 5, ..Request::flush(Tag(3)) },
    ]);
    assert_eq!(bench.drain(), [(0, Err(Error::OutOfRange)), (1, Err(Error::Misaligned)), (2, Ok(())), (3, Ok(()))]);
}

#[test]
fn a_reset_gives_everything_up_and_the_next_is_as_new() {
    let mut bench = Bench::new(|_| {});
    bench.device.look().ends_at_most = Some(0);
    bench.submit_all(&[write(0, 0, 2), write(1, 2, 2), write(2, 1, 1), read(3, 5000, 1)]);
    bench.queue.ring();
    assert_eq!(bench.queue.reset(), Ok(()));
    assert_eq!((bench.queue.in_flight(), bench.queue.waiting()), (0, 0));
    bench.device.look().ends_at_most = None;
    assert_eq!(bench.queue.poll(&mut [Completion::EMPTY; 4]), 0);
    bench.submit_all(&[write(0, 1, 1), write(1, 2, 2)]);
    assert_eq!(bench.drain(), ok(0..2));
}

#[test]
fn after_a_reset_that_fails_what_waits_is_reported_and_nothing_goes_down() {
    let mut bench = Bench::new(|_| {});
    bench.device.look().reset_fails = true;
    bench.device.look().ends_at_most = Some(0);
    bench.submit_all(&[write(0, 0, 1), write(1, 50, 1), write(2, 0, 1)]);
    bench.queue.ring();
    assert_eq!(bench.queue.reset(), Err(Error::Gone));
    assert_eq!(bench.submit(read(3, 0, 1)), Submit::Queued);
    bench.device.look().ends_at_most = None;
    assert_eq!(bench.drain(), [(0, Ok(())), (1, Err(Error::Gone)), (2, Err(Error::Gone)), (3, Err(Error::Gone))]);
    assert_eq!(bench.log(), [(0, 1, 1)]);
    bench.device.look().reset_fails = false;
    assert_eq!(bench.queue.reset(), Ok(()));
    bench.submit_all(&[read(4, 0, 1)]);
    assert_eq!(bench.drain(), ok(4..5));
}

/// Tests the intended use: inside `Tracked`, whose deadlines then also run while a request waits in the stage.
#[test]
fn below_tracked_what_waits_times_out_and_a_hung_device_is_reset() {
    let device = Rogue::new(9, 1024, 16, |_| {});
    device.look().ends_at_most = Some(0);
    let stage = classes(device.clone(), &Options { dispatch_depth: Some(1), ..Options::of(Scheduler::Classes) }, device.clock());
    let second = Duration::from_secs(1);
    let timeouts = Timeouts { timeout: Some(second), cancel_grace: second, reset_after: Some(second) };
    let mut queue = Tracked::with_clock(stage, timeouts, device.clock());
    for tag in 0..4 {
        assert_eq!(queue.submit(&Request::discard(Tag(tag), Lba(tag * 9), 1), &[]), Submit::Queued);
    }
    queue.ring();
    let mut all = Vec::new();
    for _ in 0..10 {
        let mut ended = [Completion::EMPTY; 8];
        let count = queue.poll(&mut ended);
        all.extend(ended[..count].iter().map(|completion| (completion.tag.0, completion.status)));
        device.clock().advance(second);
    }
    all.sort_by_key(|(tag, _)| *tag);
    assert_eq!(all, [0, 1, 2, 3].map(|tag| (tag, Err(Error::Timeout))));
    assert_eq!((queue.in_flight(), queue.abandoned(), queue.strays()), (0, 0, 0));
    device.look().ends_at_most = None;
    assert_eq!(queue.submit(&Request::discard(Tag(7), Lba(0), 1), &[]), Submit::Queued);
    queue.ring();
    assert_eq!(queue.poll(&mut [Completion::EMPTY; 1]), 1, "it goes on");
}

#[test]
fn schedulers_have_names() {
    for scheduler in Scheduler::ALL {
        assert_eq!(Scheduler::parse(scheduler.name()), Some(scheduler));
        let device = Rogue::new(1, 64, 16, |_| {});
        let mut queue = open_with_clock(device.clone(), &Options::of(scheduler), device.clock());
        assert_eq!(queue.depth(), if scheduler == Scheduler::None { 16 } else { 256 });
        assert_eq!(queue.submit(&Request::discard(Tag(5), Lba(0), 1), &[]), Submit::Queued);
        queue.ring();
        let mut ended = [Completion::EMPTY; 2];
        assert_eq!((queue.poll(&mut ended), ended[0].tag), (1, Tag(5)));
    }
    assert_eq!(Scheduler::parse("Classes"), None);
}
