//! Between a request and its completion nothing is allocated: not for one command, not for several, nor for copies and discards.

use block::{Arena, Completion, Lba, Queue, QueueOptions, Request, Span, Submit, Tag};
use nvme::{Controller, Options};
use sim::nvme::{ControllerConfig, NamespaceConfig, SoftController};

const DEPTH: u32 = 32;

#[test]
fn the_path_of_a_request_allocates_nothing() {
    let namespaces = vec![NamespaceConfig::plain(512, 8192)];
    let device = SoftController::real(ControllerConfig { namespaces, transfer_pages_shift: 4, ..ControllerConfig::default() }, 1);
    let controller = Controller::open(device.function(), Options::default()).expect("ready");
    let namespace = controller.namespace(1).expect("a namespace");
    let mut queue = namespace.open_queue(&QueueOptions { depth: DEPTH, ..QueueOptions::default() }).expect("a queue");
    device.set_eager(false);
    let arena = Arena::private(32 << 20).expect("memory");
    queue.register(&arena).expect("registered");
    let mut ended = [Completion::EMPTY; DEPTH as usize];
    for round in 0..50_u64 {
        for tag in 0..u64::from(DEPTH) {
            let at = tag as usize * (1 << 20);
            let (blocks, data) = data(&arena, at, tag + round);
            let lba = Lba((tag * 64 + round) % 4096);
            let request = match tag % 5 {
                0 => Request::discard(Tag(tag), lba, blocks),
                1 => Request::write_zeroes(Tag(tag), lba, blocks),
                2 => Request::write_fua(Tag(tag), lba, blocks),
                3 => Request::read(Tag(tag), lba, blocks),
                _ => Request::flush(Tag(tag)),
            };
            let data = if request.op.has_data() { &data[..] } else { &[] };
            let made = allocation_counter::measure(|| assert_eq!(queue.submit(&request, data), Submit::Queued));
            assert_eq!(made.count_total, 0, "{request:?}");
        }
        let mut left = DEPTH as usize;
        while left > 0 {
            let made = allocation_counter::measure(|| {
                queue.ring();
                left -= queue.poll(&mut ended);
            });
            assert_eq!(made.count_total, 0);
            device.step();
        }
    }
    assert!(queue.counters().bounced > 0);
    device.set_eager(true);
}

/// One piece, one that is longer than a command, and pieces that have to be copied.
fn data(arena: &Arena, at: usize, which: u64) -> (u32, Vec<Span>) {
    match which % 3 {
        0 => (8, vec![arena.span(at, 4096)]),
        1 => (512, vec![arena.span(at + 512, 256 << 10)]),
        _ => (5, vec![arena.span(at + 100, 512), arena.span(at + 8192, 1536), arena.span(at + 40_000, 512)]),
    }
}
