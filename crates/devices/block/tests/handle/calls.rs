//! Tests each call, with a device without faults.

use std::sync::Arc;
use std::time::Duration;

use block::driver::MemoryDevice;
use block::handle::{Data, Io, Issued, Key, Selector};
use block::tracked::{Timeouts, Tracked};
use block::{Arena, Error, Handle, Lba, Op, Params, SharedHandle, SharedQueue};

const SECOND: Duration = Duration::from_secs(1);

fn device() -> MemoryDevice {
    MemoryDevice::new(512, 1 << 20).expect("memory").with_geometry(|geometry| {
        geometry.transfer_bytes_max = 4096;
        geometry.segments_max = 3;
    })
}

fn dedicated(params: Params) -> (Handle<impl block::Queue + use<>>, Arena) {
    let arena = Arena::private(1 << 20).expect("memory");
    let mut handle = Handle::new(device().open_queue(8), params).expect("a handle");
    handle.register(&arena).expect("registered");
    (handle, arena)
}

fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| (at / 7) as u8 ^ seed).collect()
}

#[test]
fn synchronous_calls_do_what_they_say_at_bytes_and_at_blocks() {
    let (mut handle, arena) = dedicated(Params::default());
    let buf = arena.allocate(20_480).expect("room");
    buf.write(0, &pattern(20_480, 1));
    let done = handle.write(1024, buf);
    assert_eq!((done.status, done.op, done.held), (Ok(()), Op::Write, false));
    assert_eq!(handle.write_zeroes(Lba(3), 1), Ok(()));
    assert_eq!(handle.discard(1024 + 1024, 512), Ok(()));
    assert_eq!(handle.flush(), Ok(()));
    let done = handle.read(Lba(2), done.into_buf().expect("it comes back"));
    let mut expected = pattern(20_480, 1);
    expected[512..1024].fill(0);
    assert_eq!(done.status, Ok(()));
    assert!(done.into_buf().expect("it comes back").to_vec() == expected);
    assert_eq!(arena.free_bytes(), 1 << 20, "every buffer is back");
}

#[test]
fn wrong_requests_are_errors_in_their_completions() {
    let (mut handle, arena) = dedicated(Params::default());
    let buf = |bytes| arena.allocate(bytes).expect("room");
    assert_eq!(handle.read(100, buf(512)).status, Err(Error::Misaligned));
    assert_eq!(handle.read(512, buf(500)).status, Err(Error::Misaligned));
    assert_eq!(handle.read(1 << 20, buf(512)).status, Err(Error::OutOfRange));
    assert_eq!(handle.discard(Lba(0), 0), Err(Error::OutOfRange));
    assert_eq!(handle.discard(Lba(0), u64::MAX), Err(Error::OutOfRange), "nothing of it is done");
    assert_eq!(handle.run(Io::read(Lba(0), Data::None)).status, Err(Error::OutOfRange));
    let stranger = Arena::private(4096).expect("memory");
    assert_eq!(handle.read(0, stranger.allocate(512).expect("room")).status, Err(Error::NotPermitted));
    let long = handle.write((1 << 20) - 4096, buf(8192));
    assert_eq!((long.status, long.failures().len()), (Err(Error::OutOfRange), 0), "not even the half that would fit");
}

#[test]
fn asynchronous_calls_are_collected_by_ticket_or_as_they_come() {
    let (mut handle, arena) = dedicated(Params { requests_max: 3, ..Params::default() });
    let mut tickets = Vec::new();
    for n in 0..3 {
        let buf = arena.allocate(512).expect("room");
        buf.write(0, &pattern(512, n));
        tickets.push(handle.submit(Io::write(Lba(u64::from(n)), buf).user(u64::from(n) + 10)).expect("room"));
    }
    assert!(handle.submit(Io::flush()).is_err(), "three is the most");
    assert_eq!(handle.flush(), Ok(()), "but a synchronous call has its place");
    let second = handle.wait_for(tickets[1], SECOND).expect("in time");
    assert_eq!((second.user, second.status), (11, Ok(())));
    assert!(handle.wait_for(tickets[1], SECOND).is_none(), "only once");
    let rest: Vec<u64> = std::iter::from_fn(|| handle.wait(SECOND)).map(|done| done.user).collect();
    assert_eq!(rest, [10, 12]);
    let read = handle.submit_read(Lba(2), arena.allocate(512).expect("room")).expect("room");
    assert_eq!(handle.drain(SECOND), Ok(()));
    let done = handle.poll().expect("drained, not collected");
    assert_eq!(done.ticket, read);
    assert!(done.into_buf().expect("a buffer").to_vec() == pattern(512, 2));
    assert!(!handle.cancel(read));
}

#[test]
fn what_waits_is_cancelled_and_reset_without_the_device() {
    let (mut handle, arena) = dedicated(Params::default());
    let ticket = handle.submit_read(Lba(0), arena.allocate(512).expect("room")).expect("room");
    assert!(handle.cancel(ticket));
    assert_eq!(handle.poll().map(|done| done.status), Some(Err(Error::Cancelled)));
    handle.submit_read(Lba(0), arena.allocate(512).expect("room")).expect("room");
    assert_eq!(handle.reset(), Ok(()));
    assert_eq!(handle.poll().map(|done| done.status), Some(Err(Error::Reset)));
}

#[test]
fn pieces_are_cut_joined_and_come_back() {
    let (mut handle, arena) = dedicated(Params::default());
    let pieces: Vec<_> = [512, 1536, 4608, 512, 512, 512, 512, 1024].map(|bytes| arena.allocate(bytes).expect("room")).into();
    for (n, piece) in pieces.iter().enumerate() {
        piece.write(0, &pattern(piece.len(), n as u8));
    }
    let expected = pieces.iter().flat_map(|piece| piece.to_vec()).collect::<Vec<u8>>();
    let done = handle.run(Io::write(Lba(7), pieces).fua(true));
    assert_eq!(done.status, Ok(()));
    assert!(matches!(done.data, Data::Bufs(pieces) if pieces.len() == 8));
    let whole = arena.allocate(expected.len()).expect("room");
    let span = whole.span();
    assert_eq!(handle.run(Io::read(Lba(7), span)).status, Ok(()));
    assert!(whole.to_vec() == expected);
}

#[test]
fn parameters_have_effect() {
    let (mut handle, _) = dedicated(Params::default());
    assert!(matches!(handle.issue(Io::flush()), Ok(Issued::Done(_))));
    handle.set(Key::Synchronous, 0).expect("settable");
    assert!(matches!(handle.issue(Io::flush()), Ok(Issued::Submitted(_))));
    assert!(handle.set(Key::QueueDepth, 4).is_err());
    handle.set(Key::Completion, 1).expect("settable");
    assert_eq!(handle.get(Key::Completion), 1);
    assert_eq!(handle.wait(SECOND).map(|done| done.status), Some(Ok(())), "polling");
}

#[test]
fn several_queues_are_one_handle() {
    let device = device();
    let queues = (0..3).map(|_| Tracked::new(device.open_queue(4), Timeouts::default())).collect();
    let mut handle = Handle::over(queues, Selector::ByRange(8), Params::default()).expect("a handle");
    let arena = Arena::private(1 << 20).expect("memory");
    handle.register(&arena).expect("registered");
    let write = |lba: u64| {
        let buf = arena.allocate(512).expect("room");
        buf.write(0, &pattern(512, lba as u8));
        Io::write(Lba(lba), buf).user(lba)
    };
    let tickets: Vec<_> = (0..12).map(|n| handle.submit(write(n * 4)).expect("room")).collect();
    assert_eq!(handle.wait_for(tickets[11], SECOND).map(|done| done.user), Some(44));
    let mut rest: Vec<u64> = std::iter::from_fn(|| handle.wait(SECOND)).map(|done| done.user / 4).collect();
    rest.sort_unstable();
    assert_eq!(rest, (0..11).collect::<Vec<_>>());
    for n in 0..12 {
        let done = handle.read(Lba(n * 4), arena.allocate(512).expect("room"));
        assert!(done.into_buf().expect("a buffer").to_vec() == pattern(512, n as u8 * 4));
    }
}

#[test]
fn many_threads_share_a_queue_by_one_handle_or_many() {
    const THREADS: u64 = 4;
    let rounds = if cfg!(miri) { 4 } else { 500 };
    let device = device();
    let arena = Arena::private(1 << 20).expect("memory");
    let queue = SharedQueue::new(device.open_queue(8), &Params::default()).expect("a queue");
    queue.register(&arena).expect("registered");
    let common = Arc::new(SharedHandle::new(&queue, Params { requests_max: 2, ..Params::default() }).expect("a handle"));
    let work = |thread: u64, handle: &SharedHandle<_>| {
        let mut random = fastrand::Rng::with_seed(thread);
        for round in 0..rounds {
            let (at, content) = (thread * 100 + random.u64(..100), pattern(512, (round as u8).wrapping_add(thread as u8)));
            let buf = arena.allocate(512).expect("room");
            buf.write(0, &content);
            let mut done = handle.write(Lba(at), buf);
            assert_eq!(done.status, Ok(()));
            let buf = std::mem::take(&mut done.data);
            let done = match handle.submit(Io::read(Lba(at), buf)) {
                Ok(ticket) => handle.wait_for(ticket, Duration::MAX).expect("mine"),
                Err(full) => handle.run(full.0),
            };
            assert!(done.into_buf().expect("a buffer").to_vec() == content);
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (common, queue, work) = (&common, &queue, &work);
            scope.spawn(move || {
                if thread < 2 {
                    work(thread, common);
                } else {
                    work(thread, &SharedHandle::new(queue, Params::default()).expect("a handle"));
                }
            });
        }
    });
    assert_eq!(arena.free_bytes(), 1 << 20);
}
