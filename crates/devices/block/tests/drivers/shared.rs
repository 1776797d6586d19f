//! Tests a file's queue that many threads share. Through the page cache, the submitting system call executes the request. A thread
//! makes this call without the queue's lock, while others submit, collect, cancel and reset.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use block::driver::{Engine, FileDevice, FileOptions};
use block::handle::{Done, Io};
use block::{Arena, Device, Error, Lba, Params, QueueOptions, SharedHandle, SharedQueue};
use tempfile::NamedTempFile;

use crate::kinds::{disk, options};

const THREADS: u64 = 4;
const BLOCK: usize = 4096;
/// The number of blocks of each thread.
const BLOCKS: u64 = 64;
const ROUNDS: u64 = 100;
const IN_FLIGHT: u64 = 4;
const LONG: Duration = Duration::from_secs(60);

type Shared = Arc<SharedQueue<Box<dyn block::Queue>>>;

fn open(buffered: bool) -> (NamedTempFile, Shared, Arena) {
    let file = NamedTempFile::new_in(disk()).expect("a file");
    file.as_file().set_len(THREADS * BLOCKS * BLOCK as u64).expect("its size");
    let device = FileDevice::open(file.path(), &FileOptions { buffered, block_bytes: Some(BLOCK as u32), ..options(Engine::Uring) })
        .expect("opened");
    let queue = device.queue(&QueueOptions { depth: 8, ..QueueOptions::default() }).expect("a queue");
    let queue = SharedQueue::new(queue, &Params::default()).expect("a shared queue");
    let arena = Arena::private(1 << 20).expect("memory");
    queue.register(&arena).expect("registered");
    (file, queue, arena)
}

/// Writes several distinct blocks at once, then reads them all back. The content of a block whose write was reset is unknown.
fn work(thread: u64, handle: &SharedHandle, arena: &Arena, resets: bool) {
    let first = thread * BLOCKS;
    for round in 0..ROUNDS {
        let blocks = (0..IN_FLIGHT).map(|n| first + (round * IN_FLIGHT + n) % BLOCKS);
        let stamp = (round as u8).wrapping_mul(31).wrapping_add(thread as u8);
        let mut known = Vec::new();
        for write in [true, false] {
            for block in blocks.clone() {
                let buf = arena.allocate(BLOCK).expect("room");
                buf.write(0, &[if write { stamp } else { !stamp }; BLOCK]);
                let io = if write { Io::write(Lba(block), buf) } else { Io::read(Lba(block), buf) };
                handle.submit(io.user(block)).expect("room");
            }
            let done: Vec<Done> = (0..IN_FLIGHT).map(|_| handle.wait(LONG).expect("each ends")).collect();
            assert!(handle.poll().is_none(), "and once");
            for done in done {
                assert!(done.status == Ok(()) || (resets && done.status == Err(Error::Reset)), "{:?}", done.status);
                match (write, done.status.is_ok()) {
                    (true, true) => known.push(done.user),
                    (false, true) if known.contains(&done.user) => {
                        assert!(done.into_buf().expect("a buffer").to_vec() == [stamp; BLOCK], "what was written is read");
                    }
                    _ => {}
                }
            }
        }
    }
}

fn run(buffered: bool, resets: bool) {
    let (_file, queue, arena) = open(buffered);
    let working = AtomicU64::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (queue, arena, working) = (&queue, &arena, &working);
            scope.spawn(move || {
                let _ended = Ended(working);
                work(thread, &SharedHandle::new(queue, Params::default()).expect("a handle"), arena, resets);
            });
        }
        while resets && working.load(Ordering::Acquire) > 0 {
            queue.reset().expect("files can be");
            std::thread::yield_now();
        }
    });
    drop(queue);
    assert_eq!(arena.free_bytes(), 1 << 20, "all memory is back");
}

/// Counts down when a thread ends, even by a panic.
struct Ended<'a>(&'a AtomicU64);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

#[test]
fn threads_share_a_file_of_the_page_cache() {
    run(true, false);
}

#[test]
fn threads_share_a_file_past_the_page_cache() {
    run(false, false);
}

#[test]
fn a_reset_by_one_thread_ends_what_others_have_in_flight() {
    run(true, true);
    run(false, true);
}
