//! Killed clients leave no queue, memory or interrupt; clients of a killed broker are notified.

use std::time::{Duration, Instant};

use block::{Error, Lba, Queue, Request, Submit, Tag};
use sim::nvme::HeldResources;
use sim::nvme::faults::{ControllerFaultRule, Fault};

use crate::process::Process;
use crate::setting::{ALONE, Broker, connect, is_within_a_minute, reap, terms};

/// Resources of this process beside heap and stacks. All shared memory is in memfds, without files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Have {
    fds: usize,
    shared_mappings: usize,
    controller: HeldResources,
}

fn have(broker: &Broker) -> Have {
    let entries = |path: &str| std::fs::read_dir(path).map_or(0, Iterator::count);
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    Have {
        fds: entries("/proc/self/fd"),
        shared_mappings: maps.lines().filter(|line| line.contains("memfd:")).count(),
        controller: broker.device.held(),
    }
}

#[test]
fn killed_clients_leave_nothing_behind() {
    let _alone = ALONE.lock();
    let kills = if std::env::var_os("FULL").is_some_and(|full| full == "1") { 1000 } else { 50 };
    let broker = Broker::new();
    // One connection for all queries, because each has its own descriptors.
    let mut admin = broker.admin();
    admin.grant(terms()).expect("granted");
    let mut random = fastrand::Rng::with_seed(1);
    let before = have(&broker);
    assert_eq!(before.controller.queues, 0);
    let mut with_queues = 0;
    for round in 0..kills {
        // Either completed, or never: then the broker has to delete the queue to get the memory back.
        let silent = random.bool();
        broker.device.with_faults(|faults| {
            faults.rules = if silent { vec![ControllerFaultRule::one_in(1, Fault::Drop)] } else { Vec::new() };
            faults.ignores_aborts = random.bool();
        });
        let mut client = Process::start("client", broker.dir.path());
        match round % 3 {
            // During connect, with its queues, or in the middle of its requests.
            0 => std::thread::sleep(Duration::from_micros(random.u64(..30_000))),
            1 => assert_eq!(client.hear(), "open"),
            _ => assert_eq!((client.hear().as_str(), client.hear().as_str()), ("open", "asked")),
        }
        with_queues += u32::from(broker.device.held().queues > 0);
        client.kill();
        let mut now = before;
        let as_before = || {
            now = have(&broker);
            admin.stat().expect("stat").is_empty() && now == before
        };
        if !is_within_a_minute(as_before) {
            panic!("round {round}: {now:?} are left, before it was {before:?}");
        }
    }
    broker.device.with_faults(|faults| faults.rules.clear());
    println!("{kills} clients were killed, {with_queues} of them with queues; before and after: {before:?}");
    assert!(with_queues >= kills / 2);
    let device = connect(&broker.socket(), None).expect("allowed");
    let all: Vec<_> = (0..4).map(|_| device.open_queue(8).expect("the whole quota")).collect();
    assert_eq!(broker.device.held().queues, all.len());
}

#[test]
fn a_broker_that_is_killed_ends_its_clients_requests() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().expect("a directory");
    let mut broker = Process::start("broker", dir.path());
    assert_eq!(broker.hear(), "ready");
    let socket = dir.path().join("socket");
    block::broker::client::Admin::connect(&socket).expect("connected").grant(terms()).expect("granted");
    let device = connect(&socket, None).expect("allowed");
    let mut queues: Vec<_> = (0..4).map(|_| device.open_queue(8).expect("a queue")).collect();
    let memory = device.arena().allocate(512).expect("room");
    for queue in &mut queues {
        for tag in 0..8 {
            assert_eq!(queue.submit(&Request::read(Tag(tag), Lba(tag), 1), &[memory.span()]), Submit::Queued);
        }
        queue.ring();
    }
    broker.kill();
    let begin = Instant::now();
    for queue in &mut queues {
        assert!(reap(queue, 8).iter().all(|ended| ended.status == Err(Error::Gone)));
        assert_eq!(queue.submit(&Request::flush(Tag(9)), &[]), Submit::Queued);
        assert_eq!(reap(queue, 1)[0].status, Err(Error::Gone));
    }
    println!("32 requests of 4 queues ended {:?} after their broker was dead", begin.elapsed());
    assert!(device.open_queue(1).is_err());
}
