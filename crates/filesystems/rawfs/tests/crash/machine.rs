//! A device that loses what was not flushed, fails by rule, and announces each change before it is made.

use std::sync::Arc;

use block::clock::Monotonic;
use block::driver::MemoryDevice;
use block::{Device, Geometry, Op, OpenError, Params, Queue, QueueOptions, Request, Span, Submit};
use nvme::Namespace;
use parking_lot::Mutex;
use rawfs::{Disk, DiskSettings};
use sim::device::crash::{Medium, VolatileQueue};
use sim::device::fault::{Faults, FaultyQueue};
use sim::nvme::{ControllerConfig, NamespaceConfig, SoftController};

pub const SECTOR: usize = 512;

/// Called before each write, flush and discard.
pub type Moment = Box<dyn FnMut() + Send>;

/// What the device is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MachineKind {
    /// Memory, with a record of what is durable in it.
    Memory,
    /// A software NVMe controller with a volatile write cache, under the driver of that name.
    #[allow(dead_code, reason = "not in every program of tests")]
    Nvme,
}

enum MachineDevice {
    Memory(MemoryDevice),
    Nvme(SoftController, Namespace),
}

/// All that survives a process, and part of which survives the power.
pub struct Machine {
    pub medium: Medium,
    device: MachineDevice,
    moment: Mutex<Option<Moment>>,
    pub faults: Faults,
}

impl Machine {
    pub fn new(content: Vec<u8>) -> Arc<Machine> {
        Machine::of(MachineKind::Memory, content)
    }

    pub fn of(kind: MachineKind, content: Vec<u8>) -> Arc<Machine> {
        let (device, medium) = match kind {
            MachineKind::Memory => {
                let memory = MemoryDevice::new(SECTOR as u32, content.len() as u64).expect("memory");
                memory.region().write(0, &content);
                (MachineDevice::Memory(memory), Medium::new(content, SECTOR))
            }
            MachineKind::Nvme => over_nvme(content),
        };
        Arc::new(Machine { medium, device, moment: Mutex::new(None), faults: Faults::default() })
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
        match &self.device {
            MachineDevice::Memory(memory) => {
                let mut bytes = vec![0; memory.region().len()];
                memory.region().read(0, &mut bytes);
                bytes
            }
            MachineDevice::Nvme(controller, _) => controller.content(1),
        }
    }

    pub fn disk(self: &Arc<Machine>) -> Disk {
        let params = Params { queue_depth: 16, ..Params::default() };
        let settings = DiskSettings { buffer_bytes: 1 << 20, params };
        Disk::open(&Drive(Arc::clone(self)), &settings).expect("queues")
    }
}

fn over_nvme(content: Vec<u8>) -> (MachineDevice, Medium) {
    let namespaces = vec![NamespaceConfig::plain(SECTOR as u32, (content.len() / SECTOR) as u64)];
    let controller = SoftController::real(
        ControllerConfig { namespaces, tracks_durability: true, transfer_pages_shift: 3, ..ControllerConfig::default() },
        1,
    );
    controller.set_content(1, content);
    let namespace = nvme::Controller::open(controller.function(), nvme::Options::default()).expect("ready").namespace(1).expect("one");
    let medium = controller.medium(1).expect("it records its medium");
    (MachineDevice::Nvme(controller, namespace), medium)
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let MachineDevice::Nvme(controller, _) = &self.device {
            assert_eq!(controller.violations(), Vec::<String>::new());
        }
    }
}

struct Drive(Arc<Machine>);

impl Device for Drive {
    fn geometry(&self) -> &Geometry {
        match &self.0.device {
            MachineDevice::Memory(memory) => memory.geometry(),
            MachineDevice::Nvme(_, namespace) => namespace.geometry(),
        }
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>, OpenError> {
        let queue: Box<dyn Queue> = match &self.0.device {
            MachineDevice::Memory(memory) => Box::new(VolatileQueue::new(memory.queue(options)?, &self.0.medium, true)),
            MachineDevice::Nvme(_, namespace) => namespace.queue(options)?,
        };
        let faulty = FaultyQueue::new(queue, Monotonic::default(), &self.0.faults, 1).expect("memory");
        Ok(Box::new(Watched { queue: faulty, machine: Arc::clone(&self.0) }))
    }
}

struct Watched<Q> {
    queue: Q,
    machine: Arc<Machine>,
}

impl<Q: Queue> block::QueueWrapper for Watched<Q> {
    type Inner = Q;
    const CHANGES_POLLING: bool = false;

    fn inner(&self) -> &Q {
        &self.queue
    }

    fn inner_mut(&mut self) -> &mut Q {
        &mut self.queue
    }

    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        if request.op != Op::Read {
            self.machine.moment();
        }
        self.queue.submit(request, data)
    }
}
