//! The drive of choice.

use std::time::Duration;

use block::completion::{Adaptive, Mode};
use block::{Arena, Buf, Completion, Device, Geometry, OpenError, Queue, QueueOptions};
use nvme::{Controller, Function, Namespace, Options};

/// The function, if a drive is named and the case is wanted: one of those that are always, or the one that is named.
pub fn function(special: Option<&str>) -> Option<Function> {
    let named = std::env::var("HOTSHELF_TEST_CASE").ok();
    let Ok(address) = std::env::var("HOTSHELF_TEST_NVME") else {
        println!("SKIP: HOTSHELF_TEST_NVME names no drive");
        return None;
    };
    if special.is_some() && special != named.as_deref() {
        return None;
    }
    Some(pci::vfio::open(address.parse().expect("an address")).unwrap_or_else(|error| panic!("{error}")))
}

pub fn options() -> Options {
    Options { admin_timeout: Duration::from_secs(1), ..Options::default() }
}

pub fn controller(function: &Function) -> Controller {
    Controller::open(function.clone(), options()).unwrap_or_else(|error| panic!("{error}"))
}

/// Every way to notice that a request has ended.
pub const MODES: [Mode; 3] = [Mode::Polling, Mode::Interrupt, Mode::Adaptive];

/// A namespace whose queues wait so.
pub struct Waiting {
    pub below: Namespace,
    pub mode: Mode,
}

impl Device for Waiting {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>, OpenError> {
        let options = QueueOptions { device_polled: self.mode == Mode::Polling, ..options.clone() };
        let mut queue = Adaptive::new(self.below.open_queue(&options)?);
        queue.set_mode(self.mode);
        Ok(Box::new(queue))
    }
}

/// Filled by its number.
pub fn buf(arena: &Arena, bytes: usize, number: u64) -> Buf {
    let buf = arena.allocate(bytes).expect("room");
    let mut content = vec![0; bytes];
    fastrand::Rng::with_seed(number).fill(&mut content);
    buf.write(0, &content);
    buf
}

/// What has ended, at least one.
pub fn next(queue: &mut impl Queue) -> Vec<Completion> {
    let mut ended = [Completion::EMPTY; 64];
    let begin = std::time::Instant::now();
    loop {
        let count = queue.poll(&mut ended);
        if count > 0 {
            return ended[..count].to_vec();
        }
        assert!(begin.elapsed() < Duration::from_secs(120), "no answer");
        queue.wait(Duration::from_millis(100));
    }
}
