//! What is done to a lock's word: for any kind of word, so that loom can try every order of events.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed};

use crate::process_slots::slot::ProcessSlot;

const PROCESS_BITS: u32 = 6;
const GENERATION: u32 = (1 << 23) - 1;
const HELD: u32 = 1 << 29;
const ABANDONED: u32 = 1 << 30;
const WAITERS: u32 = 1 << 31;

/// An atomic of 32 bits.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u32;
    fn exchange(&self, old: u32, new: u32, done: Ordering, else_: std::sync::atomic::Ordering) -> Result<u32, u32>;
}

impl Word for AtomicU32 {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        AtomicU32::load(self, order)
    }
    #[inline]
    fn exchange(&self, old: u32, new: u32, done: Ordering, else_: std::sync::atomic::Ordering) -> Result<u32, u32> {
        self.compare_exchange(old, new, done, else_)
    }
}

/// What the protocol asks of the kernel.
pub(crate) trait WaitKernel<W> {
    /// Looks at a held lock before sleeping: what it guards may take less than a call of the kernel.
    const SPINS: u32;
    /// Sleeps while the word is so, longer each time. False: the time is up.
    fn wait(&self, word: &W, expected: u32, times: u32) -> bool;
    fn is_alive(&self, owner: Owner) -> bool;
    /// Whether the waiter has waited for this owner, who lives, for long enough.
    fn gives_up(&self, _owner: Owner) -> bool {
        false
    }
}

/// The owner of a lock: a process slot and its generation, as they are in the word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner(u32);

impl Owner {
    #[inline]
    pub(crate) fn new(process: ProcessSlot, generation: u32) -> Owner {
        Owner(HELD | (generation & GENERATION) << PROCESS_BITS | u32::from(process.0) & ((1 << PROCESS_BITS) - 1))
    }

    #[cfg(test)]
    pub(crate) fn word(self) -> u32 {
        self.0
    }

    pub(crate) fn of(word: u32) -> Option<Owner> {
        (word & HELD != 0).then_some(Owner(word & !(ABANDONED | WAITERS)))
    }

    pub(crate) fn process(self) -> ProcessSlot {
        ProcessSlot((self.0 & ((1 << PROCESS_BITS) - 1)) as u8)
    }

    pub(crate) fn generation(self) -> u32 {
        self.0 >> PROCESS_BITS & GENERATION
    }
}

/// Some: we have it; true: it was abandoned.
#[inline]
pub(crate) fn try_lock<W: Word>(word: &W, me: Owner) -> Option<bool> {
    match word.exchange(0, me.0, AcqRel, Acquire) {
        Ok(_) => Some(false),
        Err(seen) if seen & HELD == 0 => try_free(word, seen, me, 0),
        Err(_) => None,
    }
}

/// Takes a word that was seen free, keeping its flags.
fn try_free<W: Word>(word: &W, seen: u32, me: Owner, also: u32) -> Option<bool> {
    word.exchange(seen, seen | me.0 | also, AcqRel, Acquire).ok().map(|seen| seen & ABANDONED != 0)
}

/// Waits for the lock and takes it. True: it was abandoned. None: the kernel's part gave up.
#[cold]
pub(crate) fn lock<W: Word>(word: &W, me: Owner, kernel: &impl WaitKernel<W>) -> Option<bool> {
    spin(word, kernel);
    let (mut slept, mut times) = (0, 0);
    loop {
        let seen = word.load(Acquire);
        if seen & HELD == 0 {
            // Who slept does not know whether others still do, so it says that they do.
            if let Some(abandoned) = try_free(word, seen, me, slept) {
                return Some(abandoned);
            }
            continue;
        }
        if seen & WAITERS == 0 && word.exchange(seen, seen | WAITERS, AcqRel, Acquire).is_err() {
            continue;
        }
        slept = WAITERS;
        // Looked at each time: somebody may wake us again and again, and not give it back.
        if Owner::of(seen).is_some_and(|owner| kernel.gives_up(owner)) {
            return None;
        }
        if kernel.wait(word, seen | WAITERS, times) {
            continue;
        }
        times += 1;
        if take_over(word, me, kernel) {
            return Some(true);
        }
    }
}

fn spin<W: Word, K: WaitKernel<W>>(word: &W, _: &K) {
    for _ in 0..K::SPINS {
        // Behind others who sleep there is nothing to win.
        if word.load(Relaxed) & (HELD | WAITERS) != HELD {
            return;
        }
        std::hint::spin_loop();
    }
}

/// Takes the lock of a dead owner. It exchanges exactly the word that named the dead owner; if the owner released it, or
/// another took it over meanwhile, it fails.
pub(crate) fn take_over<W: Word>(word: &W, me: Owner, kernel: &impl WaitKernel<W>) -> bool {
    let seen = word.load(Acquire);
    let Some(owner) = Owner::of(seen) else { return false };
    !kernel.is_alive(owner) && word.exchange(seen, me.0 | ABANDONED | seen & WAITERS, AcqRel, Acquire).is_ok()
}

/// Disowns a lock that its owner never took: it is free and abandoned. True: wake the waiters.
pub(crate) fn disown<W: Word>(word: &W, seen: u32) -> bool {
    word.exchange(seen, ABANDONED, AcqRel, Relaxed).is_ok()
}

/// Gives it back. True: wake one.
#[inline]
pub(crate) fn unlock<W: Word>(word: &W, me: Owner, abandoned: bool) -> bool {
    let free = if abandoned { ABANDONED } else { 0 };
    let mut seen = match word.exchange(me.0, free, AcqRel, Relaxed) {
        Ok(_) => return false,
        Err(seen) => seen,
    };
    // Somebody waits. Or it was taken from us, because our process slot was lost: then it is not ours to give back.
    while Owner::of(seen) == Some(me) {
        match word.exchange(seen, free, AcqRel, Relaxed) {
            Ok(_) => return seen & WAITERS != 0,
            Err(now) => seen = now,
        }
    }
    false
}

/// Every order of events. Sleeping is a mutex and a condition: a lost wake-up is a deadlock, which loom reports. Time is only up for
/// whoever waits for a dead one, so no time-out hides a lost wake-up.
#[cfg(all(test, not(miri)))]
pub(crate) mod every_order {
    use super::*;
    use loom::sync::atomic::{AtomicU32 as LoomU32, Ordering::SeqCst};
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread::{JoinHandle, spawn};

    impl Word for LoomU32 {
        fn load(&self, order: Ordering) -> u32 {
            LoomU32::load(self, order)
        }
        fn exchange(&self, old: u32, new: u32, done: Ordering, else_: Ordering) -> Result<u32, u32> {
            self.compare_exchange(old, new, done, else_)
        }
    }

    /// FULL=1: more orders, which take longer.
    pub(crate) fn full() -> bool {
        std::env::var_os("FULL").is_some_and(|full| full == "1")
    }

    /// A futex.
    pub(crate) struct FutexModel {
        asleep: Mutex<()>,
        woken: Condvar,
    }

    impl FutexModel {
        pub(crate) fn new() -> FutexModel {
            FutexModel { asleep: Mutex::new(()), woken: Condvar::new() }
        }

        /// True: woken, or not to sleep at all.
        pub(crate) fn wait(&self, word: &LoomU32, expected: u32, time_is_up: impl Fn() -> bool) -> bool {
            let asleep = self.asleep.lock().expect("no panic");
            if word.load(SeqCst) != expected {
                return true;
            }
            if time_is_up() {
                return false;
            }
            drop(self.woken.wait(asleep));
            true
        }

        pub(crate) fn wake_one(&self) {
            let _asleep = self.asleep.lock().expect("no panic");
            self.woken.notify_one();
        }

        pub(crate) fn wake_all(&self) {
            let _asleep = self.asleep.lock().expect("no panic");
            self.woken.notify_all();
        }
    }

    /// A lock, what it guards (two words that are equal, unless a process died in between), and the dead processes.
    struct TestWorld {
        lock: LoomU32,
        first: LoomU32,
        second: LoomU32,
        dead: [LoomU32; 4],
        bed: FutexModel,
    }

    impl WaitKernel<LoomU32> for &TestWorld {
        const SPINS: u32 = 0;
        fn wait(&self, word: &LoomU32, expected: u32, _: u32) -> bool {
            self.bed.wait(word, expected, || Owner::of(expected).is_some_and(|owner| !self.is_alive(owner)))
        }
        fn is_alive(&self, owner: Owner) -> bool {
            self.dead[owner.process().0 as usize].load(SeqCst) == 0
        }
    }

    fn owner(process: u8) -> Owner {
        Owner::new(ProcessSlot(process), 7)
    }

    impl TestWorld {
        fn new() -> Arc<TestWorld> {
            let zero = || LoomU32::new(0);
            Arc::new(TestWorld {
                lock: zero(),
                first: zero(),
                second: zero(),
                dead: [zero(), zero(), zero(), zero()],
                bed: FutexModel::new(),
            })
        }

        fn lock(&self, process: u8) -> bool {
            try_lock(&self.lock, owner(process)).unwrap_or_else(|| lock(&self.lock, owner(process), &self).expect("it waits on"))
        }

        fn unlock(&self, process: u8, abandoned: bool) {
            if unlock(&self.lock, owner(process), abandoned) {
                self.bed.wake_one();
            }
        }

        /// A waiter finds out when its sleep times out.
        fn die(&self, process: u8) {
            self.dead[process as usize].store(1, SeqCst);
            self.bed.wake_all();
        }

        /// Relaxed: what the lock does not order is seen as it was.
        fn half(&self) {
            self.first.store(self.first.load(Relaxed) + 1, Relaxed);
        }

        fn other_half(&self) {
            self.second.store(self.second.load(Relaxed) + 1, Relaxed);
        }

        /// Half changed only if the lock was abandoned. True: it was.
        fn repair_if_abandoned(&self, is_abandoned: bool) -> bool {
            let (first, second) = (self.first.load(Relaxed), self.second.load(Relaxed));
            assert!(is_abandoned || first == second, "{first} and {second}, and nobody said so");
            self.second.store(first, Relaxed);
            first != second
        }

        fn change(&self, process: u8) {
            let is_abandoned = self.lock(process);
            self.repair_if_abandoned(is_abandoned);
            self.half();
            self.other_half();
            self.unlock(process, false);
        }
    }

    fn explore(
        preemptions: usize,
        threads: impl Fn(&Arc<TestWorld>) -> Vec<JoinHandle<()>> + Send + Sync + 'static,
        after: fn(&TestWorld),
    ) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(preemptions);
        model.check(move || {
            let world = TestWorld::new();
            threads(&world).into_iter().for_each(|thread| thread.join().expect("no panic"));
            after(&world);
        });
    }

    fn run(world: &Arc<TestWorld>, does: impl FnOnce(&TestWorld) + 'static) -> JoinHandle<()> {
        let world = world.clone();
        spawn(move || does(&world))
    }

    /// Done in full by so many, and the lock is free with no flag.
    fn whole<const TIMES: u32>(world: &TestWorld) {
        assert_eq!((world.first.load(Relaxed), world.second.load(Relaxed)), (TIMES, TIMES));
        assert_eq!(world.lock.load(Relaxed), 0);
    }

    /// The same after one more, for whom the last may have left it.
    fn whole_after_one_more<const TIMES: u32>(world: &TestWorld) {
        let is_abandoned = world.lock(3);
        world.repair_if_abandoned(is_abandoned);
        world.unlock(3, false);
        whole::<TIMES>(world);
    }

    #[test]
    fn two_take_turns_twice() {
        explore(
            2,
            |world| {
                let twice = |process| move |world: &TestWorld| (0..2).for_each(|_| world.change(process));
                vec![run(world, twice(0)), run(world, twice(1))]
            },
            whole::<4>,
        );
    }

    /// Also two threads of one process slot.
    #[test]
    fn three_take_turns() {
        let three = |world: &Arc<TestWorld>| [0, 1, 1].map(|process| run(world, move |world| world.change(process))).into();
        explore(2, three, whole::<3>);
    }

    #[test]
    fn the_next_owner_after_a_dead_one_is_notified() {
        let dies = |world: &TestWorld| {
            world.repair_if_abandoned(world.lock(0));
            world.half();
            world.die(0);
        };
        explore(
            2,
            move |world| vec![run(world, dies), run(world, |world| world.change(1)), run(world, |world| world.change(2))],
            whole_after_one_more::<3>,
        );
    }

    #[test]
    fn who_repairs_may_die_too() {
        let dies = |process| {
            move |world: &TestWorld| {
                world.lock(process);
                world.half();
                world.die(process);
            }
        };
        explore(
            if full() { 2 } else { 1 },
            move |world| vec![run(world, dies(0)), run(world, dies(1)), run(world, |world| world.change(2))],
            whole_after_one_more::<3>,
        );
    }

    /// The dead owner released it in time: taking it over must fail, and the lock is not abandoned.
    #[test]
    fn who_dies_after_giving_it_back_leaves_nothing() {
        let in_time = |world: &TestWorld| {
            world.change(0);
            world.die(0);
        };
        let other = |world: &TestWorld| {
            let is_abandoned = world.lock(1);
            assert!(!world.repair_if_abandoned(is_abandoned), "half changed");
            world.half();
            world.other_half();
            world.unlock(1, false);
        };
        // Telling without need is allowed only of one who dies with the lock in hand.
        explore(3, move |world| vec![run(world, in_time), run(world, other)], whole::<2>);
    }

    /// Left by a panic: free, with the mark, until somebody has repaired.
    #[test]
    fn an_abandoned_lock_is_reported_once() {
        let panics = |world: &TestWorld| {
            let is_abandoned = world.lock(0);
            world.repair_if_abandoned(is_abandoned);
            world.half();
            world.unlock(0, true);
        };
        explore(3, move |world| vec![run(world, panics), run(world, |world| world.change(1))], whole_after_one_more::<2>);
    }

    #[test]
    fn whoever_takes_over_wakes_those_who_waited_for_the_dead_one() {
        /// All live but one.
        struct Dead(u32);
        impl WaitKernel<AtomicU32> for Dead {
            const SPINS: u32 = 0;
            fn wait(&self, _: &AtomicU32, _: u32, _: u32) -> bool {
                false
            }
            fn is_alive(&self, owner: Owner) -> bool {
                u32::from(owner.process().0) != self.0
            }
        }
        let word = AtomicU32::new(owner(0).0 | WAITERS);
        assert!(!take_over(&word, owner(1), &Dead(2)), "it lives");
        assert!(take_over(&word, owner(1), &Dead(0)));
        assert!(unlock(&word, owner(1), false), "wake one");
        assert_eq!(word.load(SeqCst), 0);
    }

    /// The process slot's next owner has the lock: it is alive, though the one that was checked is not. The word differs by the
    /// generation.
    #[test]
    fn the_next_in_a_seat_is_not_the_dead_one() {
        let (old, new) = (Owner::new(ProcessSlot(0), 7), Owner::new(ProcessSlot(0), 8));
        struct Asked<'a>(&'a AtomicU32, Owner);
        impl WaitKernel<AtomicU32> for Asked<'_> {
            const SPINS: u32 = 0;
            fn wait(&self, _: &AtomicU32, _: u32, _: u32) -> bool {
                false
            }
            fn is_alive(&self, _: Owner) -> bool {
                // While we ask, the old one is cleaned up after and another sits down and takes the lock.
                self.0.store(self.1.0, SeqCst);
                false
            }
        }
        let word = AtomicU32::new(old.0);
        assert!(!take_over(&word, owner(1), &Asked(&word, new)));
        assert_eq!(Owner::of(word.load(SeqCst)), Some(new));
    }
}
