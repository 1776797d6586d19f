//! Who sits where, and who is dead.

use std::os::fd::AsFd;

use shm::{NoSeat, SeatNo, Seats};

use crate::process::Process;
use crate::setting::{Segment, folder, lock_file};

#[test]
fn a_dead_process_s_seat_is_not_given_out_before_it_is_cleared() {
    let dir = folder();
    let segment = Segment::create(dir.path());
    let mut child = Process::start("sits", dir.path());
    let theirs = child.hear_seat();
    assert!(segment.seats.is_alive(theirs));
    assert_eq!(segment.seats.pid(theirs), Some(child.id()));
    let child_id = child.id();
    drop(child);
    assert_eq!(segment.seats.dead(), [theirs]);
    assert!(!segment.seats.is_alive(theirs));
    assert_eq!(segment.seats.pid(theirs), Some(child_id), "who it was");
    let mine: Vec<SeatNo> = (1..Seats::COUNT).map(|_| segment.sit()).collect();
    assert!(!mine.contains(&theirs));
    assert!(matches!(segment.seats.sit(), Err(NoSeat::Full { dead: 1 })));
    assert_eq!(segment.seats.taken(), u64::MAX);
    segment.seats.clear(mine[0]);
    assert!(segment.seats.is_alive(mine[0]), "only the dead are cleared");
    segment.seats.clear(theirs);
    assert_eq!(segment.seats.pid(theirs), None);
    assert_eq!(segment.sit(), theirs);
}

#[test]
fn one_who_rises_leaves_a_free_seat() {
    let dir = folder();
    let segment = Segment::create(dir.path());
    let mut child = Process::start("sits", dir.path());
    let theirs = child.hear_seat();
    child.tell("rise");
    child.wait();
    assert_eq!((segment.seats.taken(), segment.seats.dead()), (0, vec![]));
    assert_eq!(segment.sit(), theirs);
}

#[test]
fn where_all_are_dead_the_leader_inherits_a_seat() {
    let dir = folder();
    let segment = Segment::create(dir.path());
    let mut child = Process::start("holds", dir.path());
    let theirs = child.hear_seat();
    child.hear();
    drop(child);
    let others: Vec<SeatNo> = (1..Seats::COUNT).map(|_| segment.sit()).collect();
    assert!(segment.seats.try_lead());
    let me = segment.seats.inherit().expect("the dead one's");
    assert_eq!(me, theirs);
    // In the same seat, and still not the owner.
    assert!(segment.lock(others[0]).take_over().expect("the owner is dead").was_abandoned());
    assert!(matches!(segment.seats.inherit(), Err(NoSeat::Full { dead: 0 })));
    assert!(segment.seats.renew(me));
}

#[test]
fn a_seat_whose_lock_was_dropped_is_had_again_or_known_to_be_lost() {
    let dir = folder();
    let segment = Segment::create(dir.path());
    let me = segment.sit();
    let drop_locks = || drop(std::fs::File::open(lock_file(dir.path())).expect("opened"));
    drop_locks();
    assert!(segment.seats.renew(me), "nobody noticed");
    Process::start("cleans up", dir.path()).wait();
    assert!(segment.seats.renew(me));
    drop_locks();
    Process::start("cleans up", dir.path()).wait();
    assert!(!segment.seats.renew(me), "cleared");
    let mut child = Process::start("sits", dir.path());
    assert_eq!(child.hear_seat(), me);
    segment.seats.rise(me);
    assert!(segment.seats.is_alive(me), "theirs now");
}

/// By fork alone: the child has our memory, but not our seat.
#[test]
#[expect(unsafe_code, reason = "fork(2)")]
fn a_fork_sits_in_no_seat_and_can_take_one() {
    let dir = folder();
    let segment = Segment::create(dir.path());
    let me = segment.sit();
    assert!(segment.seats.try_lead());
    // SAFETY: the child calls the kernel and atomics only, allocates nothing, and ends without unwinding.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let lost = !segment.seats.renew(me) && !segment.seats.is_leading() && !segment.seats.try_lead();
        let alive = segment.seats.is_alive(me);
        let sat = segment.seats.sit().is_ok_and(|mine| mine != me);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!(lost && alive && sat))) };
    }
    let child = rustix::process::Pid::from_raw(child).expect("forked");
    let status = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty()).expect("ended").expect("ended").1;
    assert_eq!(status.exit_status(), Some(0));
    assert!(segment.seats.renew(me) && segment.seats.still_leading());
    assert_eq!(segment.seats.dead().len(), 1, "the child's");
}

#[test]
fn the_segment_can_be_handed_on_by_its_descriptor() {
    let dir = folder();
    let segment = Segment::create(dir.path());
    assert_eq!(rustix::fs::fstat(segment.region.fd().expect("a file").as_fd()).expect("stat").st_size, 8192);
}
