//! A device that loses what was not flushed, fails by rule, and tells of each change before it is made.

use std::sync::Arc;

use block::clock::Monotonic;
use block::driver::MemoryDevice;
use block::{Arena, Completion, Device, Error, Geometry, Op, OpenError, Params, Queue, QueueOptions, Request, Span, Submit, Tag};
use parking_lot::Mutex;
use rawfs::{Disk, DiskSettings};
use sim::device::crash::{Medium, Volatile};
use sim::device::fault::{Faults, Faulty};

pub const SECTOR: usize = 512;

/// Called before each write, flush and discard.
pub type Moment = Box<dyn FnMut() + Send>;

/// All that survives a process, and part of which survives the power.
pub struct Machine {
    pub medium: Medium,
    memory: MemoryDevice,
    moment: Mutex<Option<Moment>>,
    pub faults: Faults,
}

impl Machine {
    pub fn new(content: Vec<u8>) -> Arc<Machine> {
        let memory = MemoryDevice::new(SECTOR as u32, content.len() as u64).expect("memory");
        memory.region().write(0, &content);
        let medium = Medium::new(content, SECTOR);
        Arc::new(Machine { medium, memory, moment: Mutex::new(None), faults: Faults::default() })
    }

    pub fn set_moment(&self, moment: Option<Moment>) {
        *self.moment.lock() = moment;
    }

    fn moment(&self) {
        let moment = self.moment.lock().take();
        if let Some(mut moment) = moment {
            moment();
            *self.moment.lock() = Some(moment);
        }
    }

    /// What reads see now.
    pub fn content(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.memory.region().len()];
        self.memory.region().read(0, &mut bytes);
        bytes
    }

    pub fn disk(self: &Arc<Machine>) -> Disk {
        let params = Params { queue_depth: 16, ..Params::default() };
        let settings = DiskSettings { buffer_bytes: 1 << 20, params };
        Disk::open(&Drive(Arc::clone(self)), &settings).expect("queues")
    }
}

struct Drive(Arc<Machine>);

impl Device for Drive {
    fn geometry(&self) -> &Geometry {
        self.0.memory.geometry()
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>, OpenError> {
        let volatile = Volatile::new(self.0.memory.queue(options)?, &self.0.medium, true);
        let faulty = Faulty::new(volatile, Monotonic::default(), &self.0.faults, 1).expect("memory");
        Ok(Box::new(Watched { queue: faulty, machine: Arc::clone(&self.0) }))
    }
}

struct Watched<Q> {
    queue: Q,
    machine: Arc<Machine>,
}

impl<Q: Queue> Queue for Watched<Q> {
    fn geometry(&self) -> &Geometry {
        self.queue.geometry()
    }
    fn depth(&self) -> u32 {
        self.queue.depth()
    }
    fn register(&mut self, arena: &Arena) -> Result<(), Error> {
        self.queue.register(arena)
    }
    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        if request.op != Op::Read {
            self.machine.moment();
        }
        self.queue.submit(request, data)
    }
    fn ring(&mut self) {
        self.queue.ring();
    }
    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        self.queue.poll(completions)
    }
    fn in_flight(&self) -> u32 {
        self.queue.in_flight()
    }
    fn wait(&mut self, at_most: std::time::Duration) {
        self.queue.wait(at_most);
    }
    fn cancel(&mut self, tag: Tag) {
        self.queue.cancel(tag);
    }
    fn reset(&mut self) -> Result<(), Error> {
        self.queue.reset()
    }
}
