//! A process killed during its requests leaves a flight recording that can be read and replayed.

use std::path::Path;

use block::{Arena, Lba, Queue, QueueOptions, Request, Submit, Tag};
use nvme::recorder::{Event, Flights, Reason};
use nvme::{Controller, Options};
use sim::device::clock::VirtualClock;
use sim::nvme::{ControllerConfig, SoftController, replay};

use crate::process::Process;
use crate::setting::ALONE;

/// The child submits requests until it is killed.
pub fn fly(dir: &Path) {
    let device = SoftController::real(ControllerConfig::default(), 1);
    let options = Options { record_file: Some(dir.join("flight")), records: 64, ..Options::default() };
    let controller = Controller::open(device.function(), options).expect("ready");
    let namespace = controller.namespace(1).expect("a namespace");
    let mut queue = namespace.open_queue(&QueueOptions { depth: 8, ..QueueOptions::default() }).expect("a queue");
    let arena = Arena::private(1 << 20).expect("memory");
    queue.register(&arena).expect("registered");
    for round in 0.. {
        for tag in 0..8 {
            let (lba, blocks) = (Lba((round * 8 + tag) % 2000), 1 + (tag % 4) as u32);
            let data = [arena.span(tag as usize * 16384, blocks * 4096)];
            let request = if tag % 2 == 0 { Request::write(Tag(tag), lba, blocks) } else { Request::read(Tag(tag), lba, blocks) };
            assert_eq!(queue.submit(&request, &data), Submit::Queued);
        }
        crate::setting::reap(&mut queue, 8);
        if round == 100 {
            println!("SAY flying");
        }
    }
}

#[test]
fn the_flight_of_a_killed_process_is_read_and_flown_again() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().expect("a directory");
    for round in 0..8 {
        let mut process = Process::start("recorded", dir.path());
        let pid = process.id();
        assert_eq!(process.hear(), "flying");
        let file = dir.path().join("flight");
        let alive = Flights::read(&file).expect("of one that runs");
        process.kill();
        let dead = Flights::read(&file).expect("of one that was killed");
        for flights in [alive, dead] {
            assert_eq!((flights.reason, flights.pid), (Reason::Running, pid));
            let [admin, queue] = flights.records.as_slice() else { panic!("{} queues", flights.records.len()) };
            assert!(admin.queue == 0 && queue.queue == 1 && queue.events.len() <= 64);
            let commands = |events: &[Event]| events.iter().filter(|event| matches!(event, Event::Command(..))).count();
            let device = SoftController::new(ControllerConfig::default(), &VirtualClock::default(), 1);
            let outcome = replay::replay(queue, &device).expect("flown");
            assert_eq!(device.violations(), Vec::<String>::new());
            assert_eq!(outcome.commands, commands(&queue.events));
            assert!(outcome.other.is_empty() && outcome.silent.is_empty(), "round {round}: {outcome:?}");
            // A live process may have been read just when its ring was new.
            assert!(outcome.same + outcome.strays + outcome.unanswered.len() > 0 || queue.events.is_empty());
        }
    }
    assert!(dir.path().join("flight.old").exists(), "of the one before");
}
