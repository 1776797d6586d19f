//! Several threads see each other's bytes, and wait without holding anybody up.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use block::{Armed, Completion, Error, Geometry, Queue, Request, Span, Submit, Tag};
use datapath::{Settings, SharedCache, WriteMode};
use fastrand::Rng;
use pagecache::PageIndex;
use rustix::event::{EventfdFlags, eventfd};

use crate::device::{Device, Fault, TestQueue};

/// A queue with an event: it is signalled at once, for the device's time is virtual, and goes on when it is armed.
struct WithEvent {
    inner: TestQueue,
    event: OwnedFd,
}

impl Queue for WithEvent {
    fn geometry(&self) -> &Geometry {
        self.inner.geometry()
    }
    fn depth(&self) -> u32 {
        self.inner.depth()
    }
    fn register(&mut self, arena: &block::Arena) -> Result<(), Error> {
        self.inner.register(arena)
    }
    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        self.inner.submit(request, data)
    }
    fn ring(&mut self) {
        self.inner.ring();
    }
    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        self.inner.poll(completions)
    }
    fn in_flight(&self) -> u32 {
        self.inner.in_flight()
    }
    fn wait(&mut self, at_most: Duration) {
        self.inner.wait(at_most);
    }
    fn event(&self) -> Option<BorrowedFd<'_>> {
        Some(self.event.as_fd())
    }
    fn arm(&mut self) -> Armed {
        self.inner.wait(Duration::ZERO);
        rustix::io::write(&self.event, &1_u64.to_ne_bytes()).expect("signalled");
        Armed::Waiting
    }
    fn cancel(&mut self, tag: Tag) {
        self.inner.cancel(tag);
    }
    fn holds(&self, tag: Tag) -> bool {
        self.inner.holds(tag)
    }
    fn take_released(&mut self) -> Option<Tag> {
        self.inner.take_released()
    }
    fn reset(&mut self) -> Result<(), Error> {
        self.inner.reset()
    }
}

const THREADS: usize = 3;
/// Threads own stripes of this many bytes in turn, so that most pages belong to several.
const STRIPE: usize = 1500;

/// One thread's life: its stripes hold what it wrote, whatever the others do beside them.
fn life<Q: Queue>(cache: &SharedCache<Q>, size: usize, thread: usize, seed: u64, failing: bool) {
    let mut random = Rng::with_seed(seed * THREADS as u64 + thread as u64);
    let mut handle = cache.handle();
    let stripes = size / STRIPE / THREADS;
    let mut model = vec![Some(0_u8); stripes];
    for _ in 0..150 {
        let stripe = random.usize(..stripes);
        let at = (stripe * THREADS + thread) * STRIPE;
        let outcome = match random.u32(..20) {
            0..8 => {
                let mut found = vec![0; STRIPE];
                let outcome = cache.read(&mut handle, at as u64, &mut found);
                if let (Ok(()), Some(wanted)) = (outcome, model[stripe]) {
                    assert!(found.iter().all(|byte| *byte == wanted), "stripe {stripe} of thread {thread}");
                }
                outcome
            }
            8..15 => {
                let byte = random.u8(..);
                let outcome = cache.write(&mut handle, at as u64, &[byte; STRIPE]);
                model[stripe] = outcome.is_ok().then_some(byte);
                outcome
            }
            15 => cache.flush(&mut handle),
            16 => cache.invalidate(at as u64..(at + 10 * STRIPE).min(size) as u64),
            17 => cache.write_back(at as u64..(at + STRIPE) as u64),
            18 => cache.pin(&mut handle, PageIndex::of(at as u64)).map(|pinned| cache.unpin(pinned)),
            _ => {
                cache.tick();
                Ok(())
            }
        };
        assert!(outcome.is_ok() || failing, "{outcome:?}");
    }
}

fn lives(queue: impl Fn(&Device) -> Box<dyn Queue>, fault: Option<Fault>) {
    for seed in 0..if std::env::var_os("FULL").is_some_and(|full| full == "1") { 300 } else { 6 } {
        println!("seed {seed}");
        let mut random = Rng::with_seed(seed);
        let size = 200 << 10;
        let device = Device::new(512, size as u64, seed);
        device.state.lock().fault = fault.map(|fault| (random.u64(1..100), fault));
        let mut settings = Settings::new(random.u32(8..40));
        settings.mode = if random.bool() { WriteMode::Back } else { WriteMode::Through };
        settings.waiters = random.u32(1..4);
        let queues = (0..random.usize(1..=2)).map(|_| queue(&device)).collect();
        let cache = SharedCache::open(queues, settings).expect("opened");
        let done = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (cache, done) = (&cache, &done);
                scope.spawn(move || {
                    life(cache, size, thread, seed, fault.is_some());
                    done.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        assert_eq!(done.into_inner(), THREADS as u32);
        let closed = cache.into_owned().close().map(|queues| queues.len()).map_err(|failed| failed.1);
        assert!(closed.is_ok() || fault.is_some(), "{closed:?}");
        if closed.is_ok() {
            let durable = device.state.lock().durable.clone();
            assert_eq!(durable, device.bytes(), "nothing is left that a loss of power could take");
        }
    }
}

#[test]
fn each_sees_what_each_wrote() {
    lives(|device| Box::new(device.queue(4)), None);
}

#[test]
fn also_when_they_wait_for_events() {
    let queue = |device: &Device| WithEvent { inner: device.queue(4), event: eventfd(0, EventfdFlags::CLOEXEC).expect("an event") };
    lives(|device| Box::new(queue(device)), None);
}

#[test]
fn also_when_the_device_fails_once() {
    lives(|device| Box::new(device.queue(4)), Some(Fault::Failed(Error::Media)));
    lives(|device| Box::new(device.queue(4)), Some(Fault::Hung));
}
