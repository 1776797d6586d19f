//! With any bytes in the region, no process panics, reaches beyond it, or loops forever.

use std::sync::atomic::Ordering::Relaxed;

use super::oracle::{AT, cache, name, page, put, small};
use super::record::Frame;
use super::*;

/// Makes every call once or twice.
fn use_it(pages: &SharedPages, random: &mut fastrand::Rng) {
    for _ in 0..30 {
        let name = name(random.u32(0..2), random.u64(0..20));
        let mut bytes = page(0);
        let _ = put(pages, name, 1, Marks(random.u8(0..4)));
        pages.read(name, 5, &mut bytes[..50]);
        pages.write(name, 1, &[1; 70], Marks::DIRTY, 1);
        pages.read_at_once(name, 5, &mut bytes[..50]);
        pages.write_at_once(name, 1, &[1; 70], Marks::DIRTY, 1);
        if let Some(snapshot) = pages.snapshot(name, &mut bytes) {
            pages.settle(name, &snapshot, Marks::DIRTY);
        }
        for pin in [pages.pin(name), pages.pin_at_once(name)].into_iter().flatten() {
            pages.address(&pin);
            pages.unpin(pin);
        }
        let _ = pages.cut_tail(name, 9);
        pages.marked(MarkFilter::All, 5, &mut Vec::new());
        let _ = pages.invalidate(FileNo(0), 3..4);
    }
    pages.evict_ahead(3, 6);
    let _ = pages.drop_clean(FileNo(1));
    pages.stats();
    let _ = pages.invalidate(FileNo(0), 0..u64::MAX);
    // It reports an inconsistency, or there is none.
    let _ = pages.check();
}

#[test]
fn any_bytes_in_the_metadata_are_survived() {
    let seeds = if std::env::var_os("FULL").is_some_and(|full| full == "1") { 20_000 } else { 300 };
    for seed in 0..if cfg!(miri) { 3 } else { seeds } {
        let mut random = fastrand::Rng::with_seed(seed);
        let (pages, region, processes) = cache(&small(8 << random.u32(0..2), 1 << random.u32(0..2), Replacement::S3Fifo));
        println!("seed {seed}");
        use_it(&pages, &mut random);
        for _ in 0..random.u32(1..40) {
            // Locks are excluded: a living owner written into one makes the others wait, as intended.
            let at = AT + pages.plan.heads_at / 8 * 8 + random.usize(0..(pages.plan.data_at - pages.plan.heads_at) / 8) * 8;
            let head = (at - AT - pages.plan.heads_at).is_multiple_of(shape::HEAD_BYTES) && at < AT + pages.plan.frames_at;
            let value = [random.u64(..), random.u64(0..20), 0, !0][random.usize(0..4)];
            if !head {
                region.u64(at).store(value, Relaxed);
            }
        }
        // Other processes would wait for frames that a living process seems to own.
        let mine = |word: &AtomicU64| word::Word(word.load(Relaxed)).owner() == pages.me;
        pages.records.iter().filter(|record| mine(&record[record::WORD])).for_each(|record| record[record::WORD].store(0, Relaxed));
        use_it(&pages, &mut random);
        pages.reap(shm::ProcessSlot(63));
        use_it(&pages, &mut random);
        drop(processes);
    }
}

/// Words of one frame's record are copied from another's: no page's bytes are read as another page's.
#[test]
fn no_two_words_of_a_record_give_a_frame_to_another_page() {
    let (pages, region, _seats) = cache(&small(64, 1, Replacement::S3Fifo));
    let at = |record: usize, word: usize| AT + pages.plan.frames_at + 64 * record + 8 * word;
    let words = 8;
    for first in 0..words {
        for second in first..words {
            let _ = pages.invalidate(FileNo(0), 0..u64::MAX);
            let _ = pages.invalidate(FileNo(1), 0..u64::MAX);
            pages.repair_all();
            (0..8).for_each(|n| assert_eq!(put(&pages, name(0, n), 10 + n as u8, Marks::NONE), Inserted::Done));
            (0..8).for_each(|n| assert_eq!(put(&pages, name(1, n), 20 + n as u8, Marks::NONE), Inserted::Done));
            let mut bytes = page(0);
            let frame_of = |file, n| pages.find(&pages.key(name(file, n))).expect("here").0;
            // The page of one file is evicted, and the frame of another file gets its name.
            let (left, lies) = (frame_of(0, 3), frame_of(1, 5));
            let saved = [first, second].map(|word| region.u64(at(left, word)).load(Relaxed));
            let _ = pages.invalidate(FileNo(0), 3..4);
            for (word, value) in [first, second].into_iter().zip(saved) {
                region.u64(at(lies, word)).store(value, Relaxed);
            }
            if pages.read(name(0, 3), 0, &mut bytes) {
                assert_ne!(bytes[100], 25, "words {first} and {second}");
            }
        }
    }
}

/// A dirty frame whose name was overwritten belongs to no file: it makes room for others.
#[test]
fn a_dirty_frame_without_a_true_name_leaves() {
    let (pages, region, _seats) = cache(&small(64, 1, Replacement::S3Fifo));
    (0..8).for_each(|n| assert_eq!(put(&pages, name(0, n), 1, Marks::DIRTY), Inserted::Done));
    let (at, _) = pages.find(&pages.key(name(0, 3))).expect("here");
    let word = AT + pages.plan.frames_at + 64 * at + 8 * record::NAME;
    // The name of another page, in this frame's form; its check is missing.
    region.u64(word).store(record::stored(name(1, 3).word(), at), Relaxed);
    let mut marked = Vec::new();
    pages.marked(MarkFilter::All, 99, &mut marked);
    assert!(marked.iter().all(|(name, _)| name.file == FileNo(0)), "{marked:?}");
    pages.marked(MarkFilter::All, 99, &mut marked);
    assert_eq!(pages.marked_count(), 7);
    assert!(!pages.records[at].word().is_named());
}

/// A process is stopped in the middle of a copy: its page is refused in time, and no other; afterwards the page is available again.
#[test]
fn a_page_that_a_stopped_process_holds_is_refused_alone() {
    let (pages, region, processes) = cache(&small(64, 1, Replacement::S3Fifo));
    (0..8).for_each(|n| assert_eq!(put(&pages, name(0, n), 1, Marks::NONE), Inserted::Done));
    let stopped = processes.attach().expect("a process slot");
    processes.estrange(stopped, true);
    let (at, word) = pages.find(&pages.key(name(0, 3))).expect("here");
    let place = AT + pages.plan.frames_at + 64 * at;
    region.u64(place).store(word.taken_by(stopped).0, Relaxed);
    let mut byte = [0];
    assert!(!pages.read(name(0, 3), 0, &mut byte) && pages.is_stuck(name(0, 3)));
    // Known from now on: no thread waits for it again.
    assert!(!pages.read(name(0, 3), 0, &mut byte) && !pages.write(name(0, 3), 0, &[2], Marks::DIRTY, 1));
    assert_eq!(pages.stuck.lock().expect("no panic").len(), 1);
    assert!(pages.read(name(0, 4), 0, &mut byte) && !pages.is_stuck(name(0, 4)));
    // The process continues, and gives the frame back.
    region.u64(place).store(word.changed().0, Relaxed);
    assert!(!pages.is_stuck(name(0, 3)) && pages.read(name(0, 3), 0, &mut byte) && byte == [1]);
}

/// The owner of a frame is ready to run and gets no CPU: it is waited for, and the page is not refused.
#[test]
#[cfg_attr(miri, ignore = "needs /proc")]
fn a_page_whose_owner_gets_no_cpu_is_waited_for() {
    use std::time::{Duration, Instant};
    let (pages, region, _processes) = cache(&small(64, 1, Replacement::S3Fifo));
    assert_eq!(put(&pages, name(0, 3), 1, Marks::NONE), Inserted::Done);
    let (at, word) = pages.find(&pages.key(name(0, 3))).expect("here");
    let place = region.u64(AT + pages.plan.frames_at + 64 * at);
    place.store(word.taken_by(pages.me).0, Relaxed);
    // One of these threads owns it: it gets next to nothing of a CPU that two others want all of.
    let is_over = AtomicBool::new(false);
    let spin = |nice: i32| {
        use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
        let all = sched_getaffinity(None).expect("known");
        let mut one = CpuSet::new();
        one.set((0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).expect("a CPU"));
        sched_setaffinity(None, &one).expect("pinned");
        if nice > 0 {
            rustix::process::setpriority_process(Some(gettid()), nice).expect("allowed");
        }
        while !is_over.load(Relaxed) {
            std::hint::spin_loop();
        }
    };
    std::thread::scope(|scope| {
        for nice in [0, 0, 19] {
            scope.spawn(move || spin(nice));
        }
        let reads = scope.spawn(|| pages.read(name(0, 3), 0, &mut [0]));
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(1500) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let is_waiting = !reads.is_finished();
        place.store(word.changed().0, Relaxed);
        is_over.store(true, Relaxed);
        assert!(reads.join().expect("no panic") && is_waiting);
    });
    assert!(!pages.is_stuck(name(0, 3)) && !pages.any_stuck.load(Relaxed));
}

/// A living process keeps a shard: calls that need it fail in time, cached pages are read and written, and none is lost.
#[test]
fn a_shard_that_a_process_keeps_is_refused_in_time() {
    let (pages, region, processes) = cache(&small(64, 2, Replacement::S3Fifo));
    (0..8).for_each(|n| assert_eq!(put(&pages, name(0, n), 1, Marks::NONE), Inserted::Done));
    let theirs = oracle::attached(&region, &processes);
    let kept = [0, 1].map(|no| theirs.lock(no).expect("free"));
    processes.estrange(theirs.me, true);
    let begun = std::time::Instant::now();
    assert_eq!(put(&pages, name(0, 9), 1, Marks::NONE), Inserted::Locked);
    assert!(begun.elapsed() >= std::time::Duration::from_millis(400));
    // From now on waits are short.
    let begun = std::time::Instant::now();
    assert_eq!(pages.invalidate(FileNo(0), 0..u64::MAX), Leftover::Stuck);
    assert_eq!(pages.drop_clean(FileNo(0)), Leftover::Stuck);
    assert!(!pages.wipe_free() && !pages.cut_tail(name(0, 3), 9) && !pages.release(name(0, 3)));
    pages.repair_all();
    pages.evict_ahead(64, 64);
    let took = begun.elapsed();
    // Each of them would take half a second.
    assert!(took < std::time::Duration::from_secs(2), "{took:?}");
    let mut byte = [0];
    assert!((0..8).all(|n| pages.read(name(0, n), 0, &mut byte) && byte == [1] && !pages.is_stuck(name(0, n))));
    assert!(pages.write(name(0, 3), 0, &[2], Marks::DIRTY, 1) && !pages.read(name(0, 9), 0, &mut byte) && !pages.is_stuck(name(0, 9)));
    // In the middle of a change of the index it is unknown whether the page is cached.
    kept.iter().for_each(|shard| shard.close_gate());
    assert!(!pages.read(name(0, 9), 0, &mut byte) && pages.is_stuck(name(0, 9)));
    kept.iter().for_each(|shard| shard.open_gate());
    drop(kept);
    assert_eq!(put(&pages, name(0, 9), 1, Marks::NONE), Inserted::Done);
    assert!(pages.read(name(0, 9), 0, &mut byte) && !pages.is_stuck(name(0, 9)));
    assert_eq!((pages.invalidate(FileNo(0), 0..u64::MAX), pages.marked_count()), (Leftover::None, 0));
    pages.check().expect("consistent metadata");
}

/// A thread of this process that keeps a shard is slow: it is waited for, and no call fails.
#[test]
#[cfg_attr(miri, ignore = "takes two seconds of wall time")]
fn a_shard_that_a_slow_thread_holds_is_waited_for() {
    let (pages, region, processes) = cache(&small(64, 1, Replacement::S3Fifo));
    let theirs = oracle::attached(&region, &processes);
    let begun = std::time::Instant::now();
    std::thread::scope(|scope| {
        let kept = [pages.lock(0).expect("free")];
        let waits = [&pages, &theirs].map(|pages| scope.spawn(|| put(pages, name(0, pages.me.0.into()), 1, Marks::NONE)));
        std::thread::sleep(std::time::Duration::from_secs(2));
        drop(kept);
        waits.into_iter().for_each(|wait| assert_eq!(wait.join().expect("no panic"), Inserted::Done));
    });
    assert!(begun.elapsed() >= std::time::Duration::from_secs(2) && !pages.any_stuck.load(Relaxed) && !theirs.any_stuck.load(Relaxed));
}

/// A shard's lock is overwritten with the name of this process, or of another that does not hold it: no thread waits for a second.
#[test]
#[cfg_attr(miri, ignore = "measures time")]
fn a_shard_with_a_forged_owner_is_given_up_or_taken_over_in_time() {
    // The machine's load can make one run slower, not all.
    let took: Vec<_> = (0..5).map(|_| slowest_with_a_forged_owner()).collect();
    assert!(took.iter().any(|took| *took < std::time::Duration::from_secs(1)), "{took:?}");
}

/// Returns how long the slowest call takes.
fn slowest_with_a_forged_owner() -> std::time::Duration {
    let (pages, region, processes) = cache(&small(64, 1, Replacement::S3Fifo));
    let theirs = oracle::attached(&region, &processes);
    let forge = |owner: &SharedPages| {
        let word = region.u32(AT + pages.plan.heads_at);
        let kept = owner.lock(0).expect("free");
        let forged = word.load(Relaxed);
        drop(kept);
        word.store(forged, Relaxed);
    };
    let mut slowest = std::time::Duration::ZERO;
    let mut timed = |expected: Inserted| {
        let begun = std::time::Instant::now();
        assert_eq!(put(&pages, name(0, 1), 1, Marks::NONE), expected);
        slowest = slowest.max(begun.elapsed());
        let _ = pages.invalidate(FileNo(0), 0..u64::MAX);
    };
    forge(&pages);
    timed(Inserted::Done);
    // Another slot of this process.
    forge(&theirs);
    timed(Inserted::Done);
    forge(&theirs);
    processes.estrange(theirs.me, true);
    timed(Inserted::Locked);
    // It has died since.
    processes.kill(theirs.me);
    timed(Inserted::Done);
    pages.check().expect("consistent metadata");
    slowest
}

#[test]
fn headers_that_lie_are_refused() {
    let (pages, region, processes) = cache(&small(8, 2, Replacement::Lru));
    let attach = |at: usize, bytes: usize| SharedPages::attach(&region, at, bytes, &processes, pages.me).map(drop);
    assert_eq!(attach(AT, region.len() - AT), Ok(()));
    for (at, bytes) in [(AT, region.len()), (AT + 8, 8192), (AT, 0), (AT, pages.plan.bytes - 1), (1 << 40, 8192), (0, 8192)] {
        assert!(attach(at, bytes).is_err(), "{at} {bytes}");
    }
    for at in 0..HEADER_BYTES + 4 {
        let mut byte = [0];
        region.read(AT + at, &mut byte);
        region.write(AT + at, &[byte[0] ^ 4]);
        assert!(attach(AT, region.len() - AT).is_err(), "byte {at}");
        region.write(AT + at, &byte);
    }
    // An invalid shape with a valid checksum.
    for (at, value) in [(12, 0), (16, 3), (16, 0), (20, u32::MAX), (24, 3), (12, u32::MAX)] {
        let mut header = [0; HEADER_BYTES + 4];
        region.read(AT, &mut header);
        let mut lie = header;
        lie[at..at + 4].copy_from_slice(&u32::to_le_bytes(value));
        let sum = crc32c::crc32c(&lie[..HEADER_BYTES]);
        lie[HEADER_BYTES..].copy_from_slice(&sum.to_le_bytes());
        region.write(AT, &lie);
        assert!(attach(AT, region.len() - AT).is_err(), "{value} at {at}");
        region.write(AT, &header);
    }
}
