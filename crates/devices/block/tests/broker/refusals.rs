//! Tests which requests the broker refuses, and that it still serves valid ones.

use block::broker::protocol::{BrokerRequest, Reply};
use block::broker::{BrokerDevice, GrantId, GrantSpec, Refusal};
use block::{Arena, Device, Error, Lba, Queue, Request, Submit, Tag};

use crate::process::{OTHER_USER, Process};
use crate::setting::{Broker, me, options, reap, refusal, terms};

#[test]
fn too_many_queues_too_deep_ones_and_blocks_outside_are_refused() {
    let broker = Broker::new();
    assert!(matches!(refusal(broker.connect(None)), Refusal::NoGrant { .. }));
    broker.grant(terms(me()));
    let device = broker.connect(None).expect("allowed");
    assert_eq!(device.geometry().blocks, 1000);
    assert_eq!(refusal(device.open_queue(16)), Refusal::DepthTooGreat { depth: 16, most: 8 });
    assert_eq!(refusal(device.open_queue(3)), Refusal::BadDepth { depth: 3 });
    let held = [device.open_queue(8).expect("one"), broker.connect(None).and_then(|device| device.open_queue(1)).expect("two")];
    assert_eq!(refusal(device.open_queue(1)), Refusal::TooManyQueues { open: 2, most: 2 });
    drop(held);
    assert_eq!(broker.open(), 0, "closing waits");
    device.open_queue(8).expect("again");
    for range in [(999, 1), (0, 1000), (1000, 1001), (1999, 2), (2000, 1), (u64::MAX, 2), (1000, u64::MAX), (1000, 0)] {
        assert!(
            matches!(refusal(broker.connect(Some(range))), Refusal::OutOfRange { granted_first: 1000, granted: 1000, .. }),
            "{range:?}"
        );
    }
    let other = block::broker::ConnectOptions { device: "other".into(), ..options(&broker.socket(), None) };
    assert!(matches!(refusal(BrokerDevice::connect(&other)), Refusal::NoGrant { .. }), "not even whether it is there");
    broker.grant(GrantSpec { device: "other".into(), ..terms(me()) });
    assert!(matches!(refusal(BrokerDevice::connect(&other)), Refusal::UnknownDevice { .. }));
}

#[test]
fn a_grant_for_reading_gives_no_queue_that_writes() {
    let broker = Broker::new();
    broker.grant(GrantSpec { read_only: true, ..terms(me()) });
    assert_eq!(refusal(broker.connect(None)), Refusal::ReadOnly);
    let reading = block::broker::ConnectOptions { read_only: true, ..options(&broker.socket(), None) };
    let device = BrokerDevice::connect(&reading).expect("allowed");
    let mut queue = device.open_queue(2).expect("a queue");
    let memory = device.arena().allocate(512).expect("room");
    assert_eq!(queue.submit(&Request::write(Tag(1), Lba(0), 1), &[memory.span()]), Submit::Queued);
    assert_eq!(queue.submit(&Request::read(Tag(2), Lba(0), 1), &[memory.span()]), Submit::Queued);
    queue.ring();
    let ended = reap(&mut queue, 2);
    assert_eq!(ended.iter().map(|ended| ended.status).collect::<Vec<_>>(), [Err(Error::ReadOnly), Ok(())]);
}

#[test]
fn another_user_is_refused_and_changes_nothing() {
    let broker = Broker::new();
    broker.grant(terms(me()));
    let Some(mut child) = Process::start_as(Some(OTHER_USER), "client", broker.dir.path()) else {
        println!("SKIP: needs root, to be another user");
        return;
    };
    let said = child.hear();
    assert!(said.starts_with("error the broker refuses: user 65534 has no grant for memory"), "{said}");
    broker.grant(terms(OTHER_USER));
    let mut child = Process::start_as(Some(OTHER_USER), "client", broker.dir.path()).expect("root");
    assert_eq!(child.hear(), "open");
    child.tell("write 3");
    assert_eq!(child.hear(), "done Ok(())");
    let queues = broker.admin().stat().expect("stat");
    assert_eq!((queues.len(), queues[0].user, queues[0].requests, queues[0].bytes), (1, OTHER_USER, 3, 1536));
}

#[test]
fn memory_that_is_too_much_or_cannot_be_shared_is_refused() {
    let broker = Broker::new();
    broker.grant(terms(me()));
    let device = broker.connect(None).expect("allowed");
    let mut queue = device.open_queue(8).expect("a queue");
    let shared = |bytes| Arena::over(std::sync::Arc::new(shm::Region::shared("test", bytes).expect("memory")));
    assert_eq!(queue.register(&Arena::private(4096).expect("memory")), Err(Error::Unsupported));
    assert_eq!(queue.register(&shared(4 << 20)), Err(Error::NoResources), "with the device's own");
    let more = shared(1 << 20);
    assert_eq!(queue.register(&more), Ok(()));
    let (own, second) = (device.arena().allocate(512).expect("room"), more.allocate(512).expect("room"));
    own.write(0, &[1; 512]);
    second.write(0, &[2; 512]);
    let strange = shared(4096);
    assert_eq!(queue.submit(&Request::write(Tag(1), Lba(5), 2), &[own.span(), second.span()]), Submit::Queued);
    assert_eq!(queue.submit(&Request::write(Tag(2), Lba(5), 1), &[strange.span(0, 512)]), Submit::Queued);
    queue.ring();
    let mut ended = reap(&mut queue, 2);
    ended.sort_by_key(|ended| ended.tag);
    assert_eq!(ended.iter().map(|ended| ended.status).collect::<Vec<_>>(), [Ok(()), Err(Error::NotPermitted)]);
    let mut bytes = [0; 1024];
    broker.device.memory.region().read(1005 * 512, &mut bytes);
    assert_eq!(bytes, *[[1; 512], [2; 512]].concat(), "in the window, from both arenas");
}

#[test]
fn words_in_the_wrong_order_are_refused_and_the_talk_goes_on() {
    let broker = Broker::new();
    broker.grant(terms(me()));
    let mut admin = broker.admin();
    for ask in [
        BrokerRequest::Queue { depth: 1 },
        BrokerRequest::Arena { bytes: 1 },
        BrokerRequest::Reset { queue: 1 },
        BrokerRequest::Close { queue: 1 },
    ] {
        assert!(matches!(refusal(admin.ask(&ask)), Refusal::BadRequest { .. }), "{ask:?}");
    }
    assert_eq!(refusal(admin.ask(&BrokerRequest::Revoke { id: GrantId(99) })), Refusal::NoSuchGrant);
    let wish = block::broker::Wish { device: "memory".into(), range: None, read_only: false };
    let later = BrokerRequest::Open { version: 2, wish: wish.clone() };
    assert!(matches!(refusal(admin.ask(&later)), Refusal::BadRequest { what } if what.contains("version 1")));
    let open = BrokerRequest::Open { version: 1, wish };
    assert!(matches!(admin.ask(&open), Ok(Reply::Opened { .. })));
    assert!(matches!(refusal(admin.ask(&open)), Refusal::BadRequest { .. }));
    assert!(matches!(refusal(admin.ask(&BrokerRequest::Arena { bytes: 4096 })), Refusal::BadRequest { .. }), "no descriptor");
    assert!(matches!(refusal(admin.ask(&BrokerRequest::Reset { queue: 1 })), Refusal::BadRequest { .. }), "not its own");
}
