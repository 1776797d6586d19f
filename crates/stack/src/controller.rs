//! Controllers by name, each opened once in a process: its namespaces are several devices.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use block::OpenError;
use nvme::{Controller, Namespace, Options, WeakController};
use parking_lot::Mutex;

/// Where an NVMe controller is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FunctionName {
    /// A function of a PCI device, by its address such as `0000:03:00.0`.
    Pci(String),
    /// Behind a vfio-user socket.
    VfioUser(PathBuf),
}

impl fmt::Display for FunctionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FunctionName::Pci(address) => write!(f, "nvme:{address}"),
            FunctionName::VfioUser(socket) => write!(f, "vfio-user:{}", socket.display()),
        }
    }
}

impl FunctionName {
    /// `0000:03:00.0/2` or `/run/x.sock/2`: the function, and the namespace: 1 if none is named. A last part of digits is the namespace.
    pub(crate) fn parse(text: &str, make: impl FnOnce(&str) -> Option<FunctionName>) -> Option<(FunctionName, u32)> {
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let (function, namespace) = match text.rsplit_once('/') {
            Some((function, number)) if digits(number) => (function, number.parse().ok().filter(|number| *number > 0)?),
            _ => (text, 1),
        };
        Some((make(function)?, namespace))
    }

    /// `0000:03:00.0`: domain, bus, device, function.
    pub(crate) fn pci(address: &str) -> Option<FunctionName> {
        let shape = b"xxxx:xx:xx.o";
        let fits = |(byte, shape): (u8, u8)| match shape {
            b'x' => byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase(),
            b'o' => (b'0'..=b'7').contains(&byte),
            other => byte == other,
        };
        let right = address.len() == shape.len() && address.bytes().zip(*shape).all(fits);
        right.then(|| FunctionName::Pci(address.to_owned()))
    }

    pub(crate) fn socket(path: &str) -> Option<FunctionName> {
        (!path.is_empty()).then(|| FunctionName::VfioUser(PathBuf::from(path)))
    }

    /// Not opened before by this process.
    fn function(&self) -> Result<pci::Function, OpenError> {
        match self {
            FunctionName::Pci(address) => pci_function(address).map_err(|error| OpenError::Unusable(format!("{self}: {error}"))),
            FunctionName::VfioUser(socket) => pci::user::open(socket).map_err(|error| OpenError::Unusable(error.to_string())),
        }
    }
}

/// Of hardware, bound to vfio-pci.
fn pci_function(address: &str) -> Result<pci::Function, Box<dyn std::error::Error>> {
    let address: pci::Address = address.parse()?;
    match pci::sysfs::Tree::default().function(address).class() {
        Some(class) if class != pci::sysfs::NVME_CLASS => Err(format!("it is no NVMe controller (its class is {class:06x})").into()),
        _ => Ok(pci::vfio::open(address)?),
    }
}

/// The controller of that name: the one that is open, or a new one. It is shut down with the last of its namespaces and queues.
///
/// # Errors
/// There is none, somebody else has it, or it does not become ready.
pub fn open_controller(name: &FunctionName) -> Result<Controller, OpenError> {
    // Held while a controller becomes ready, so that a second one who comes finds it.
    static OPEN: Mutex<BTreeMap<FunctionName, WeakController>> = Mutex::new(BTreeMap::new());
    let mut open = OPEN.lock();
    open.retain(|_, controller| controller.is_alive());
    if let Some(controller) = open.get(name).and_then(WeakController::get) {
        return Ok(controller);
    }
    let controller = Controller::open(name.function()?, Options::default())?;
    open.insert(name.clone(), controller.downgrade());
    Ok(controller)
}

/// A namespace of it.
pub(crate) fn open_namespace(name: &FunctionName, namespace: u32) -> Result<Namespace, OpenError> {
    open_controller(name)?.namespace(namespace)
}
