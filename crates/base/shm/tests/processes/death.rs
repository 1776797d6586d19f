//! Whoever holds the lock is killed, or only stopped.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::process::{Process, count};
use crate::setting::{FIRST, REPAIRS, SECOND, Segment, folder};

#[test]
fn the_lock_of_one_who_was_killed_is_had_at_once_and_is_known_as_abandoned() {
    let dir = folder();
    let segment = Segment::create(dir.path());
    let me = segment.attach();
    let mut child = Process::start("holds", dir.path());
    let process = child.hear_process_slot();
    assert_eq!(child.hear(), "false");
    assert_eq!(segment.lock(me).owner(), Some(process));
    assert!(segment.lock(me).try_lock().is_none());
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let held = segment.lock(me).lock();
            (Instant::now(), held.was_abandoned())
        });
        let killed = Instant::now();
        child.signal(Signal::KILL);
        let (had, abandoned) = waits.join().expect("no panic");
        assert!(abandoned);
        println!("a killed owner's lock was had after {:?}", had - killed);
    });
    assert!(!segment.lock(me).lock().was_abandoned(), "repaired by the one who had it");
}

#[test]
fn a_repairer_who_is_killed_leaves_it_abandoned() {
    let dir = folder();
    let segment = Segment::create(dir.path());
    let me = segment.attach();
    for expected in ["false", "true", "true"] {
        let mut child = Process::start("holds", dir.path());
        child.hear_process_slot();
        assert_eq!(child.hear(), expected);
        drop(child);
    }
    assert_eq!(segment.processes.dead().len(), 3);
    assert!(segment.lock(me).take_over().expect("its owner is dead").was_abandoned());
    assert!(segment.lock(me).take_over().is_none(), "it is free");
}

#[test]
fn one_who_is_stopped_keeps_its_lock() {
    let dir = folder();
    let segment = Segment::create(dir.path());
    let me = segment.attach();
    let mut child = Process::start("holds", dir.path());
    let process = child.hear_process_slot();
    child.hear();
    child.stop();
    for _ in 0..1_000 {
        assert!(segment.lock(me).take_over().is_none());
    }
    assert!(segment.processes.is_alive(process) && segment.processes.dead().is_empty());
    assert_eq!(segment.processes.pid(process), Some(child.id()));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| segment.lock(me).lock().was_abandoned());
        child.signal(Signal::CONT);
        child.tell("give it back");
        assert_eq!(child.hear(), "given back");
        assert!(!waits.join().expect("no panic"));
    });
}

/// A process of our user that gets no CPU while it holds the lock is waited for; one that sleeps over it is not.
#[test]
fn one_who_gets_no_cpu_is_waited_for_and_one_who_does_nothing_is_not() {
    const AT_MOST: Duration = Duration::from_millis(400);
    let dir = folder();
    let segment = Segment::create(dir.path());
    let me = segment.attach();
    let mut child = Process::start("holds", dir.path());
    child.hear_process_slot();
    child.hear();
    let begun = Instant::now();
    assert!(segment.lock(me).lock_within(AT_MOST).is_none());
    println!("given up after {:?}", begun.elapsed());
    drop(child);
    assert!(segment.lock(me).lock().was_abandoned());
    let mut child = Process::start("holds without a CPU", dir.path());
    child.hear_process_slot();
    let begun = Instant::now();
    let held = segment.lock(me).lock_within(AT_MOST).expect("it was waited for");
    assert!(!held.was_abandoned());
    println!("had after {:?}", begun.elapsed());
    child.tell("end");
}

/// Two counters that are equal outside the lock; children are killed at whatever point they have come to.
#[test]
fn killed_at_any_point_what_the_lock_guards_is_whole_or_known_not_to_be() {
    let dir = folder();
    let segment = Segment::create(dir.path());
    let me = segment.attach();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let rounds = if std::env::var("FULL").is_ok_and(|full| full == "1") { 300 } else { 20 };
    let mut longest = std::time::Duration::ZERO;
    for _ in 0..rounds {
        let mut children = [Process::start("counts", dir.path()), Process::start("counts", dir.path())];
        children.iter_mut().for_each(|child| _ = child.hear_process_slot());
        // They have come to an unknown point when they have counted this far.
        let until = segment.region.u64(FIRST).load(Relaxed) + random.u64(0..2_000);
        while segment.region.u64(FIRST).load(Relaxed) < until {
            std::hint::spin_loop();
        }
        for child in children {
            child.signal(Signal::KILL);
            let begin = Instant::now();
            count(&segment, me);
            longest = longest.max(begin.elapsed());
        }
        assert!(segment.processes.try_lead());
        // Both are gone: `drop` waited for them.
        assert_eq!(segment.processes.dead().len(), 2);
        segment.processes.dead().into_iter().for_each(|dead| segment.processes.clear(dead));
        segment.processes.resign();
        count(&segment, me);
        assert_eq!(segment.region.u64(FIRST).load(Relaxed), segment.region.u64(SECOND).load(Relaxed));
    }
    let repairs = segment.region.u64(REPAIRS).load(Relaxed);
    println!("{rounds} rounds, {repairs} repairs, the longest wait for the lock {longest:?}");
}
