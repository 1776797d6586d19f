//! A controller and what is on it, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use block::tracked::Timeouts;
use block::{Arena, Buf, Completion, Queue, QueueOptions, Request, Status, Submit, Tracked};
use nvme::{Controller, Namespace, NvmeQueue, Options};
use sim::device::clock::VirtualClock;
use sim::nvme::{ControllerConfig, SoftController};

pub type Stack = Tracked<NvmeQueue, VirtualClock>;

pub fn full() -> bool {
    std::env::var_os("FULL").is_some_and(|full| full == "1")
}

pub const TIMEOUT: Duration = Duration::from_millis(100);

pub fn timeouts() -> Timeouts {
    let ms = Duration::from_millis;
    Timeouts { timeout: Some(TIMEOUT), cancel_grace: ms(20), reset_after: Some(ms(50)) }
}

pub fn options() -> Options {
    Options { admin_timeout: Duration::from_secs(1), ..Options::default() }
}

/// All of it, and memory.
pub struct Setting {
    pub clock: VirtualClock,
    pub device: SoftController,
    pub controller: Controller,
    pub arena: Arena,
}

impl Setting {
    pub fn new(shape: ControllerConfig, seed: u64) -> Setting {
        Setting::with(shape, options(), seed)
    }

    pub fn with(shape: ControllerConfig, options: Options, seed: u64) -> Setting {
        let clock = VirtualClock::default();
        let device = SoftController::new(shape, &clock, seed);
        let controller = Controller::open_with(device.function(), options, Arc::new(clock.clone())).expect("ready");
        Setting { clock, device, controller, arena: Arena::private(8 << 20).expect("memory") }
    }

    pub fn namespace(&self, id: u32) -> Namespace {
        self.controller.namespace(id).expect("a namespace")
    }

    pub fn queue(&self, depth: u32) -> NvmeQueue {
        let mut queue = self.namespace(1).open_queue(&QueueOptions { depth, ..QueueOptions::default() }).expect("a queue");
        queue.register(&self.arena).expect("registered");
        queue
    }

    pub fn tracked(&self, depth: u32) -> Stack {
        Tracked::with_clock(self.queue(depth), timeouts(), self.clock.clone())
    }

    pub fn buf(&self, bytes: usize, fill: u8) -> Buf {
        let buf = self.arena.allocate(bytes).expect("room");
        buf.write(0, &vec![fill; bytes]);
        buf
    }

    /// Nothing was done that a driver must not do.
    pub fn check(&self) {
        assert_eq!(self.device.violations(), Vec::<String>::new());
    }
}

/// Waits for what is in flight, at most so many rounds.
pub fn next(queue: &mut impl Queue) -> Vec<Completion> {
    let mut ended = [Completion::EMPTY; 64];
    for _ in 0..10_000 {
        let count = queue.poll(&mut ended);
        if count > 0 {
            return ended[..count].to_vec();
        }
        queue.wait(Duration::from_millis(1));
    }
    panic!("no answer");
}

/// One request from begin to end.
pub fn run(queue: &mut impl Queue, request: Request, data: &[&Buf]) -> Status {
    let spans: Vec<_> = data.iter().map(|buf| buf.span()).collect();
    assert_eq!(queue.submit(&request, &spans), Submit::Queued);
    let ended = next(queue);
    assert_eq!((ended.len(), ended[0].tag), (1, request.tag));
    ended[0].status
}
