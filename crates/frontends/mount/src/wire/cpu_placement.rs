//! Chooses the CPU on which a thread of a queue runs.
//!
//! A synchronous request is served fastest on the CPU of its caller: that CPU switches to the daemon and back, and no other CPU has to
//! wake up, which takes several times as long. Read-ahead and write-back are different: the program keeps running while the kernel
//! sends them. They are better served on another CPU.

use rustix::thread::{CpuSet, sched_setaffinity};

/// Requests of the other kind in a row, before a thread changes over: that costs as much as some requests.
const AGAINST_MAX: u32 = 4;

/// Chooses the CPUs on which one serving thread runs.
#[derive(Debug)]
pub struct CpuPlacement {
    own: Option<CpuSet>,
    others: Option<CpuSet>,
    beside: bool,
    /// Requests in a row that would have it otherwise.
    against: u32,
}

impl CpuPlacement {
    /// Moves the thread to the queue's CPU, if the daemon may run there.
    pub fn of(processor: usize, allowed: CpuSet) -> CpuPlacement {
        let mut place = CpuPlacement { own: None, others: None, beside: false, against: 0 };
        if processor < CpuSet::MAX_CPU && allowed.is_set(processor) {
            let (mut own, mut others) = (CpuSet::new(), allowed);
            own.set(processor);
            others.unset(processor);
            place.own = Some(own).filter(|own| sched_setaffinity(None, own).is_ok());
            place.others = Some(others).filter(|others| others.count() > 0);
        }
        place
    }

    /// Records a request; `waited_for`: the caller blocks until the reply.
    pub fn note(&mut self, waited_for: bool) {
        if waited_for != self.beside {
            self.against = 0;
            return;
        }
        self.against += 1;
        if self.against < AGAINST_MAX {
            return;
        }
        self.against = 0;
        let (Some(own), Some(others)) = (&self.own, &self.others) else { return };
        if sched_setaffinity(None, if waited_for { own } else { others }).is_ok() {
            self.beside = !waited_for;
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use rustix::thread::sched_getaffinity;

    #[test]
    fn a_thread_changes_over_when_requests_of_the_other_kind_go_on() {
        let allowed = sched_getaffinity(None).expect("known");
        let mine = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).expect("one at least");
        let mut place = CpuPlacement::of(mine, allowed);
        let here = || sched_getaffinity(None).expect("known");
        assert!(here().is_set(mine) && here().count() == 1);
        for round in 0..3 * AGAINST_MAX {
            place.note(round % 2 == 0);
        }
        assert!(here().is_set(mine));
        (0..AGAINST_MAX).for_each(|_| place.note(false));
        if allowed.count() > 1 {
            assert!(!here().is_set(mine) && here().count() == allowed.count() - 1);
        }
        (0..AGAINST_MAX).for_each(|_| place.note(true));
        assert!(here().is_set(mine) && here().count() == 1);
    }

    #[test]
    fn a_processor_that_is_not_ours_is_not_taken() {
        let before = sched_getaffinity(None).expect("known");
        let mut place = CpuPlacement::of(CpuSet::MAX_CPU - 1, before);
        (0..AGAINST_MAX).for_each(|_| place.note(false));
        assert_eq!(sched_getaffinity(None).expect("known"), before);
    }
}
