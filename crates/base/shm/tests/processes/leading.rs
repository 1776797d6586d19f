//! One leads; who it is moves when it dies or resigns.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Release;
use std::time::Instant;

use rustix::process::Signal;

use crate::process::Process;
use crate::setting::{Segment, folder, lock_file};

#[test]
fn leadership_moves_when_the_leader_is_killed() {
    let dir = folder();
    let segment = Segment::create(dir.path());
    let never = AtomicBool::new(false);
    let modes: [(&str, &(dyn Fn() + Sync)); 2] = [
        ("by the kernel", &|| segment.processes.lead().expect("leads")),
        ("by asking", &|| assert!(segment.processes.lead_unless(&never, || ()))),
    ];
    for (mode, lead) in modes {
        let mut child = Process::start("leads", dir.path());
        child.hear();
        assert_eq!(segment.processes.leader(), Some(child.id()));
        assert!(!segment.processes.try_lead() && !segment.processes.still_leading());
        child.stop();
        assert!(!segment.processes.try_lead(), "it is only stopped");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                lead();
                Instant::now()
            });
            let killed = Instant::now();
            child.signal(Signal::KILL);
            println!("leadership moved, woken {mode}, after {:?}", waits.join().expect("no panic") - killed);
        });
        assert_eq!(segment.processes.leader(), Some(std::process::id()));
        assert!(segment.processes.still_leading());
        segment.processes.resign();
        assert_eq!(segment.processes.leader(), None);
    }
}

#[test]
fn who_resigns_hands_over() {
    let dir = folder();
    let segment = Segment::create(dir.path());
    assert!(segment.processes.try_lead());
    assert!(!segment.processes.try_lead(), "one thread leads");
    let mut child = Process::start("leads", dir.path());
    segment.processes.resign();
    assert_eq!(child.hear(), "leads");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| segment.processes.lead());
        child.tell("resign");
        assert_eq!(child.hear(), "resigned");
        waits.join().expect("no panic").expect("leads");
    });
    assert!(segment.processes.is_leading());
}

#[test]
fn who_waits_to_lead_can_be_called_off() {
    let dir = folder();
    let segment = Segment::create(dir.path());
    let mut child = Process::start("leads", dir.path());
    child.hear();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| segment.processes.lead_unless(&stop, || ()));
        stop.store(true, Release);
        segment.processes.nudge();
        assert!(!waits.join().expect("no panic"));
    });
    assert_eq!(segment.processes.leader(), Some(child.id()));
}

#[test]
fn a_leader_whose_lock_was_dropped_finds_out_that_another_led() {
    let dir = folder();
    let segment = Segment::create(dir.path());
    let drop_locks = || drop(std::fs::File::open(lock_file(dir.path())).expect("opened"));
    assert!(segment.processes.try_lead());
    drop_locks();
    assert!(segment.processes.still_leading(), "nobody led meanwhile");
    drop_locks();
    Process::start("cleans up", dir.path()).wait();
    assert!(!segment.processes.still_leading() && !segment.processes.is_leading());
    assert!(segment.processes.try_lead(), "in a new term");
}

/// Each leads one segment and waits for the other: to the kernel that is a deadlock (EDEADLK).
#[test]
fn two_processes_that_lead_and_wait_crosswise_are_no_deadlock() {
    let (here, there) = (folder(), folder());
    let (ours, theirs) = (Segment::create(here.path()), Segment::create(there.path()));
    assert!(ours.processes.try_lead());
    let mut child = Process::start("locks itself up", there.path());
    assert_eq!(child.hear(), "leads");
    child.tell(here.path().to_str().expect("text"));
    assert_eq!(child.hear(), "waits");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| theirs.processes.lead());
        ours.processes.resign();
        assert_eq!(child.hear(), "leads both");
        assert!(!waits.is_finished());
        drop(child);
        waits.join().expect("no panic").expect("leads");
    });
}
