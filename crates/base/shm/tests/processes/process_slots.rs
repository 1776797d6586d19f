//! Which process has which slot, and which of them are dead.

use std::os::fd::AsFd;

use shm::{ProcessSlot, ProcessSlotError, ProcessSlots};

use crate::process::Process;
use crate::setting::{Segment, folder, lock_file};

#[test]
fn a_dead_process_s_seat_is_not_given_out_before_it_is_cleared() {
    let dir = folder();
    let segment = Segment::create(dir.path());
    let mut child = Process::start("sits", dir.path());
    let theirs = child.hear_process_slot();
    assert!(segment.processes.is_alive(theirs));
    assert_eq!(segment.processes.pid(theirs), Some(child.id()));
    let child_id = child.id();
    drop(child);
    assert_eq!(segment.processes.dead(), [theirs]);
    assert!(!segment.processes.is_alive(theirs));
    assert_eq!(segment.processes.pid(theirs), Some(child_id), "who it was");
    let mine: Vec<ProcessSlot> = (1..ProcessSlots::COUNT).map(|_| segment.attach()).collect();
    assert!(!mine.contains(&theirs));
    assert!(matches!(segment.processes.attach(), Err(ProcessSlotError::Full { dead: 1 })));
    assert_eq!(segment.processes.taken(), u64::MAX);
    segment.processes.clear(mine[0]);
    assert!(segment.processes.is_alive(mine[0]), "only the dead are cleared");
    segment.processes.clear(theirs);
    assert_eq!(segment.processes.pid(theirs), None);
    assert_eq!(segment.attach(), theirs);
}

#[test]
fn one_who_rises_leaves_a_free_seat() {
    let dir = folder();
    let segment = Segment::create(dir.path());
    let mut child = Process::start("sits", dir.path());
    let theirs = child.hear_process_slot();
    child.tell("rise");
    child.wait();
    assert_eq!((segment.processes.taken(), segment.processes.dead()), (0, vec![]));
    assert_eq!(segment.attach(), theirs);
}

#[test]
fn where_all_are_dead_the_leader_inherits_a_seat() {
    let dir = folder();
    let segment = Segment::create(dir.path());
    let mut child = Process::start("holds", dir.path());
    let theirs = child.hear_process_slot();
    child.hear();
    drop(child);
    let others: Vec<ProcessSlot> = (1..ProcessSlots::COUNT).map(|_| segment.attach()).collect();
    assert!(segment.processes.try_lead());
    let me = segment.processes.take_over().expect("the dead one's");
    assert_eq!(me, theirs);
    // In the same process slot, and still not the owner.
    assert!(segment.lock(others[0]).take_over().expect("the owner is dead").was_abandoned());
    assert!(matches!(segment.processes.take_over(), Err(ProcessSlotError::Full { dead: 0 })));
    assert!(segment.processes.renew(me));
}

#[test]
fn a_seat_whose_lock_was_dropped_is_had_again_or_known_to_be_lost() {
    let dir = folder();
    let segment = Segment::create(dir.path());
    let me = segment.attach();
    let drop_locks = || drop(std::fs::File::open(lock_file(dir.path())).expect("opened"));
    drop_locks();
    assert!(segment.processes.renew(me), "nobody noticed");
    Process::start("cleans up", dir.path()).wait();
    assert!(segment.processes.renew(me));
    drop_locks();
    Process::start("cleans up", dir.path()).wait();
    assert!(!segment.processes.renew(me), "cleared");
    let mut child = Process::start("sits", dir.path());
    assert_eq!(child.hear_process_slot(), me);
    segment.processes.detach(me);
    assert!(segment.processes.is_alive(me), "theirs now");
}

/// By fork alone: the child has our memory, but not our process slot.
#[test]
#[expect(unsafe_code, reason = "fork(2)")]
fn a_fork_sits_in_no_seat_and_can_take_one() {
    let dir = folder();
    let segment = Segment::create(dir.path());
    let me = segment.attach();
    assert!(segment.processes.try_lead());
    // SAFETY: the child calls the kernel and atomics only, allocates nothing, and ends without unwinding.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let lost = !segment.processes.renew(me) && !segment.processes.is_leading() && !segment.processes.try_lead();
        let alive = segment.processes.is_alive(me);
        let sat = segment.processes.attach().is_ok_and(|mine| mine != me);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!(lost && alive && sat))) };
    }
    let child = rustix::process::Pid::from_raw(child).expect("forked");
    let status = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty()).expect("ended").expect("ended").1;
    assert_eq!(status.exit_status(), Some(0));
    assert!(segment.processes.renew(me) && segment.processes.still_leading());
    assert_eq!(segment.processes.dead().len(), 1, "the child's");
}

#[test]
fn the_segment_can_be_handed_on_by_its_descriptor() {
    let dir = folder();
    let segment = Segment::create(dir.path());
    assert_eq!(rustix::fs::fstat(segment.region.fd().expect("a file").as_fd()).expect("stat").st_size, 8192);
}
