//! Resets under load: nothing that was answered is lost, everything that was taken ends once.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use block::completion::{Adaptive, Mode};
use block::tracked::Timeouts;
use block::{Arena, Device, Error, Lba, Queue, QueueOptions, Request, Submit, Tag, Tracked};
use nvme::registers::{CC, CC_ENABLE};
use nvme::{Controller, Namespace};

use super::setting::{buf, controller, function, next};

const DEPTH: u64 = 16;

/// Writes and reads back in rounds, with different bytes for each block and round, until `stop` is set.
fn load(namespace: &Namespace, mode: Mode, first: u64, rounds: &AtomicU64, stop: &AtomicBool) {
    let options = QueueOptions { depth: DEPTH as u32, device_polled: mode == Mode::Polling, ..QueueOptions::default() };
    let mut waiting = Adaptive::new(namespace.open_queue(&options).unwrap_or_else(|error| panic!("{error}")));
    waiting.set_mode(mode);
    let ms = Duration::from_millis;
    let timeouts = Timeouts { timeout: Some(ms(300)), cancel_grace: ms(300), reset_after: Some(ms(300)) };
    let mut queue = Tracked::new(waiting, timeouts);
    let arena = Arena::private(4 << 20).expect("memory");
    queue.register(&arena).expect("registered");
    let bytes = 8192;
    let blocks = bytes as u32 / namespace.geometry().block_bytes;
    let mut number = first;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let written: Vec<_> = (0..DEPTH).map(|at| buf(&arena, bytes, number * DEPTH + at)).collect();
        let back: Vec<_> = (0..DEPTH).map(|at| buf(&arena, bytes, at)).collect();
        for (bufs, make) in [(&written, Request::write as fn(_, _, _) -> _), (&back, Request::read)] {
            let mut left: Vec<u64> = (0..DEPTH).collect();
            // Requests that timed out during the reset are submitted again, as any program would.
            while !left.is_empty() {
                left = all(&mut queue, &left, |at| (make(Tag(at), Lba(first + at * u64::from(blocks)), blocks), bufs[at as usize].span()));
            }
        }
        for (at, (written, back)) in written.iter().zip(&back).enumerate() {
            assert!(written.to_vec() == back.to_vec(), "round {number}, place {at}");
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

/// All of these; gives those that timed out.
fn all(queue: &mut impl Queue, which: &[u64], request: impl Fn(u64) -> (Request, block::Span)) -> Vec<u64> {
    let mut waiting: HashSet<u64> = HashSet::new();
    let (mut again, mut held) = (Vec::new(), HashSet::new());
    for &at in which {
        let (request, span) = request(at);
        match queue.submit(&request, &[span]) {
            Submit::Queued => assert!(waiting.insert(at)),
            Submit::Full => again.push(at),
        }
    }
    while !waiting.is_empty() {
        for completion in next(queue) {
            assert!(waiting.remove(&completion.tag.0), "{completion:?} came twice");
            match completion.status {
                Ok(()) => {}
                Err(Error::Timeout | Error::Reset | Error::Cancelled) => {
                    again.push(completion.tag.0);
                    if queue.owns_buffer(completion.tag) {
                        held.insert(completion.tag);
                    }
                }
                Err(error) => panic!("{error:?}"),
            }
        }
    }
    // Their memory is not to be touched before.
    while !held.is_empty() {
        if let Some(tag) = queue.take_released() {
            assert!(held.remove(&tag), "{tag:?} was let go twice");
            continue;
        }
        queue.wait(Duration::from_millis(10));
        assert_eq!(queue.poll(&mut [block::Completion::EMPTY; 4]), 0);
    }
    again
}

fn after_more(rounds: &AtomicU64, more: u64) {
    let wanted = rounds.load(Ordering::Relaxed) + more;
    let begin = std::time::Instant::now();
    while rounds.load(Ordering::Relaxed) < wanted {
        assert!(begin.elapsed() < Duration::from_secs(120), "nothing goes on");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn under_load(mode: Mode, controller: &Controller, disturb: impl Fn()) {
    let namespace = controller.namespace(1).unwrap_or_else(|error| panic!("{error}"));
    let (stop, rounds, before) = (AtomicBool::new(false), [AtomicU64::new(0), AtomicU64::new(0)], controller.resets());
    std::thread::scope(|scope| {
        for (at, rounds) in rounds.iter().enumerate() {
            let (namespace, stop) = (&namespace, &stop);
            scope.spawn(move || load(namespace, mode, at as u64 * 4096, rounds, stop));
        }
        for _ in 0..3 {
            rounds.iter().for_each(|rounds| after_more(rounds, 2));
            disturb();
        }
        rounds.iter().for_each(|rounds| after_more(rounds, 2));
        stop.store(true, Ordering::Relaxed);
    });
    println!("{}: rounds {rounds:?}, resets {}", mode.name(), controller.resets() - before);
    assert!(controller.resets() >= before + 3 && !controller.is_gone());
}

#[test]
fn a_reset_under_load_loses_nothing() {
    let Some(function) = function(None) else { return };
    let controller = controller(&function);
    under_load(Mode::Interrupt, &controller, || controller.reset().expect("it stops"));
    under_load(Mode::Polling, &controller, || controller.reset().expect("it stops"));
    // Somebody disables it behind our back: no command is answered any more, until deadlines bring the ladder to its reset.
    under_load(Mode::Interrupt, &controller, || function.mmio.write32(CC, function.mmio.read32(CC) & !CC_ENABLE));
}
