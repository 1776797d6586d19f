//! Tests that no request through a handle allocates, with a counting allocator. A separate program, because it counts everything.
#![expect(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::VecDeque;
use std::time::Duration;

use block::driver::MemoryDevice;
use block::handle::{Data, Done, Io, Timeout};
use block::{Arena, Buf, Error, Handle, Lba, Params, SharedHandle, SharedQueue};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is the system's allocator; counting touches no memory of the heap.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: as our caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as our caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the number of allocations of this thread.
fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

const DEPTH: u32 = 8;
const ROUNDS: u64 = if cfg!(miri) { 3 } else { 1_000 };

fn device() -> MemoryDevice {
    let device = MemoryDevice::new(512, 1 << 20).expect("memory");
    device.with_geometry(|geometry| geometry.transfer_bytes_max = 4096)
}

fn buffers(arena: &Arena) -> Vec<Buf> {
    (0..DEPTH).map(|_| arena.allocate(8192).expect("room")).collect()
}

/// Returns requests of all kinds, with one part and with several.
fn request(n: u64, buf: Buf) -> Io {
    let lba = Lba(n * 37 % 2000);
    match n % 4 {
        0 => Io::read(lba, buf).timeout(Timeout::After(Duration::from_secs(9))),
        1 => Io::write(lba, buf).user(n),
        2 => Io::write(lba.0 * 512, buf).fua(true),
        _ => Io::read(lba, buf).timeout(Timeout::Never),
    }
}

fn back(done: Done, buffers: &mut Vec<Buf>) {
    assert_eq!(done.status, Ok(()));
    if let Data::Buf(buf) = done.data {
        buffers.push(buf);
    }
}

#[test]
fn a_dedicated_handle_allocates_nothing() {
    let arena = Arena::private(1 << 20).expect("memory");
    let mut handle = Handle::new(device().open_queue(2 * DEPTH), Params::default()).expect("a handle");
    handle.register(&arena).expect("registered");
    let mut buffers = buffers(&arena);
    let before = allocations();
    for round in 0..ROUNDS {
        for n in 0..u64::from(DEPTH) {
            let buf = buffers.pop().expect("enough");
            handle.submit(request(round + n, buf)).expect("room");
        }
        while let Some(done) = handle.wait(Duration::MAX) {
            back(done, &mut buffers);
        }
        let buf = buffers.pop().expect("enough");
        back(handle.read(Lba(round), buf), &mut buffers);
        assert_eq!(handle.flush().and(handle.discard(Lba(round), 5)).and(handle.write_zeroes(Lba(round), 9)), Ok(()));
        let cancelled = handle.submit(Io::flush()).expect("room");
        assert!(handle.cancel(cancelled));
        assert_eq!(handle.poll().map(|done| done.status), Some(Err(Error::Cancelled)));
    }
    assert_eq!(allocations() - before, 0);
}

#[test]
fn a_shared_handle_allocates_nothing() {
    let arena = Arena::private(1 << 20).expect("memory");
    let queue = SharedQueue::new(device().open_queue(2 * DEPTH), &Params::default()).expect("a queue");
    let handle = SharedHandle::new(&queue, Params::default()).expect("a handle");
    handle.register(&arena).expect("registered");
    let mut buffers = buffers(&arena);
    let (mut tickets, mut done) = (Vec::with_capacity(DEPTH as usize), Vec::with_capacity(DEPTH as usize));
    let mut ios = VecDeque::with_capacity(DEPTH as usize);
    let before = allocations();
    for round in 0..ROUNDS {
        for n in 0..u64::from(DEPTH) {
            let buf = buffers.pop().expect("enough");
            ios.push_back(request(round + n, buf));
        }
        tickets.clear();
        handle.submit_batch(&mut ios, &mut tickets);
        back(handle.wait_for(tickets[3], Duration::MAX).expect("in time"), &mut buffers);
        handle.poll_batch(&mut done);
        done.drain(..).for_each(|done| back(done, &mut buffers));
        while let Some(done) = handle.wait(Duration::MAX) {
            back(done, &mut buffers);
        }
        let buf = buffers.pop().expect("enough");
        back(handle.read(Lba(round), buf), &mut buffers);
        assert_eq!(handle.flush(), Ok(()));
    }
    assert_eq!(allocations() - before, 0);
}
