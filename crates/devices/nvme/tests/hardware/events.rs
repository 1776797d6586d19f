//! What changes while the drive runs.

use std::time::{Duration, Instant};

use block::{Arena, Completion, Device, Error, Lba, Queue, QueueOptions, Request, Submit, Tag};
use nvme::{Notice, NvmeQueue};

use super::setting::{buf, controller, function, next};

/// Writes a block and reads it back.
fn works(queue: &mut NvmeQueue, arena: &Arena, number: u64) {
    let block = queue.geometry().block_bytes as usize;
    let (written, back) = (buf(arena, block, number), buf(arena, block, 0));
    for request in [(Request::write(Tag(1), Lba(5), 1), &written), (Request::read(Tag(2), Lba(5), 1), &back)] {
        assert_eq!(queue.submit(&request.0, &[request.1.span()]), Submit::Queued);
        assert_eq!(next(queue)[0].status, Ok(()));
    }
    assert!(written.to_vec() == back.to_vec());
}

/// The drive has a second namespace, which is not attached.
#[test]
fn a_namespace_that_comes_is_seen_and_used() {
    let Some(function) = function(Some("namespace")) else { return };
    let controller = controller(&function);
    let arena = Arena::private(1 << 20).expect("memory");
    let open = |id| {
        let namespace = controller.namespace(id).unwrap_or_else(|error| panic!("{error}"));
        let mut queue = namespace.open_queue(&QueueOptions { depth: 4, ..QueueOptions::default() }).expect("a queue");
        queue.register(&arena).expect("registered");
        queue
    };
    assert_eq!(controller.namespaces().len(), 1);
    assert!(controller.namespace(2).is_err());
    let mut first = open(1);
    works(&mut first, &arena, 1);
    for attached in [true, false, true] {
        controller.attach(2, attached).unwrap_or_else(|error| panic!("{error}"));
        let begin = Instant::now();
        loop {
            works(&mut first, &arena, 2);
            controller.serve();
            match controller.take_notice() {
                Some(Notice::Namespaces) => break,
                other => assert!(other.is_none() && begin.elapsed() < Duration::from_secs(60), "{other:?}"),
            }
        }
        assert_eq!(controller.namespaces().len(), 1 + usize::from(attached));
    }
    assert!(controller.attach(2, true).is_err(), "it is attached already");
    works(&mut open(2), &arena, 3);
    works(&mut first, &arena, 4);
    assert_eq!(controller.resets(), 0);
}

/// Somebody takes the drive away (echo 1 > remove) after `ready` was printed.
#[test]
fn a_drive_that_goes_ends_what_was_asked_of_it() {
    let Some(function) = function(Some("removal")) else { return };
    let controller = controller(&function);
    drop(function);
    let arena = Arena::private(1 << 20).expect("memory");
    let namespace = controller.namespace(1).expect("a namespace");
    let mut queue = namespace.open_queue(&QueueOptions { depth: 4, ..QueueOptions::default() }).expect("a queue");
    queue.register(&arena).expect("registered");
    let data = buf(&arena, namespace.geometry().block_bytes as usize, 1);
    println!("ready");
    let begin = Instant::now();
    let mut ended = [Completion::EMPTY; 4];
    let mut reads = 0_u64;
    loop {
        assert!(begin.elapsed() < Duration::from_secs(60), "it is still there");
        if queue.in_flight() == 0 {
            assert_eq!(queue.submit(&Request::read(Tag(1), Lba(0), 1), &[data.span()]), Submit::Queued);
        }
        queue.wait(Duration::from_millis(20));
        // What looks after a controller that has nothing to say.
        queue.cancel(Tag(9));
        if queue.poll(&mut ended) == 1 {
            reads += 1;
            match ended[0].status {
                Ok(()) => {}
                Err(error) => {
                    assert_eq!(error, Error::Gone);
                    break;
                }
            }
        }
        if reads.is_multiple_of(64) {
            let _ = controller.smart();
        }
    }
    assert!(controller.is_gone());
    println!("gone after {reads} reads");
}
