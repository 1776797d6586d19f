//! Controllers by name, each opened once in a process: its namespaces are several devices.
//!
//! `nvme:0000:03:00.0/1` is a function of hardware behind VFIO, `vfio-user:/run/x.sock/1` one behind a socket. The last part is the
//! namespace, and 1 if there is none.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use block::OpenError;
use parking_lot::Mutex;

use crate::controller::{Controller, WeakController};
use crate::namespace::Namespace;
use crate::shared::Options;

/// The location of an NVMe controller.
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
    /// Parses `nvme:0000:03:00.0/2` or `vfio-user:/run/x.sock/2` into function and namespace. None: a name of something else, or one of
    /// these that is wrong.
    pub fn parse(text: &str) -> Option<(FunctionName, u32)> {
        match text.split_once(':')? {
            ("nvme", rest) => FunctionName::split(rest, FunctionName::pci),
            ("vfio-user", rest) => FunctionName::split(rest, FunctionName::socket),
            _ => None,
        }
    }

    /// Whether a text means a function, right or wrong.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with("nvme:") || text.starts_with("vfio-user:")
    }

    /// `0000:03:00.0/2` or `/run/x.sock/2`: the function, and the namespace: 1 if none is named. A last part of digits is the namespace.
    fn split(text: &str, make: impl FnOnce(&str) -> Option<FunctionName>) -> Option<(FunctionName, u32)> {
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let (function, namespace) = match text.rsplit_once('/') {
            Some((function, number)) if digits(number) => (function, number.parse().ok().filter(|number| *number > 0)?),
            _ => (text, 1),
        };
        Some((make(function)?, namespace))
    }

    /// `0000:03:00.0`: domain, bus, device, function.
    fn pci(address: &str) -> Option<FunctionName> {
        let shape = b"xxxx:xx:xx.o";
        let fits = |(byte, shape): (u8, u8)| match shape {
            b'x' => byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase(),
            b'o' => (b'0'..=b'7').contains(&byte),
            other => byte == other,
        };
        let right = address.len() == shape.len() && address.bytes().zip(*shape).all(fits);
        right.then(|| FunctionName::Pci(address.to_owned()))
    }

    fn socket(path: &str) -> Option<FunctionName> {
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

/// Returns the open controller of that name, or opens it. The flight recorder of a newly opened one writes to `record_file`, if given.
/// The controller is shut down when its last namespace and queue are dropped.
///
/// # Errors
/// There is no such device, another process uses it, or it does not become ready.
pub fn open_controller(name: &FunctionName, record_file: Option<&Path>) -> Result<Controller, OpenError> {
    // Held while a controller becomes ready, so that a second caller finds it.
    static OPEN: Mutex<BTreeMap<FunctionName, WeakController>> = Mutex::new(BTreeMap::new());
    let mut open = OPEN.lock();
    open.retain(|_, controller| controller.is_alive());
    // One that a parent had is not ours.
    if let Some(controller) = open.get(name).and_then(WeakController::get).filter(Controller::is_of_this_process) {
        if record_file.is_some_and(|wanted| controller.record_file() != Some(wanted)) {
            tracing::warn!("{name} is open already: its flight recorder stays where it is");
        }
        return Ok(controller);
    }
    let options = Options { record_file: record_file.map(Path::to_owned), ..Options::default() };
    let controller = Controller::open(name.function()?, options)?;
    open.insert(name.clone(), controller.downgrade());
    Ok(controller)
}

/// A namespace of it.
///
/// # Errors
/// As [`open_controller`]; or there is none of that number.
pub fn open_namespace(name: &FunctionName, namespace: u32, record_file: Option<&Path>) -> Result<Namespace, OpenError> {
    open_controller(name, record_file)?.namespace(namespace)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn functions_are_named_with_their_namespace() {
        let pci = FunctionName::Pci("0000:03:00.0".into());
        assert_eq!(FunctionName::parse("nvme:0000:03:00.0/2"), Some((pci.clone(), 2)));
        assert_eq!(FunctionName::parse("nvme:0000:03:00.0"), Some((pci, 1)));
        let socket = FunctionName::VfioUser("/run/x.sock".into());
        assert_eq!(FunctionName::parse("vfio-user:/run/x.sock"), Some((socket.clone(), 1)));
        assert_eq!(FunctionName::parse("vfio-user:/run/x.sock/12"), Some((socket, 12)));
        // A socket whose own name is a number needs the namespace behind it.
        assert_eq!(FunctionName::parse("vfio-user:/run/7/1"), Some((FunctionName::VfioUser("/run/7".into()), 1)));
        for text in
            ["nvme:", "nvme:03:00.0", "nvme:0000:03:00.8", "nvme:0000:03:00.0/0", "nvme:0000:03:00.0/x", "vfio-user:", "vfio-user:/1"]
        {
            assert!(FunctionName::parse(text).is_none() && FunctionName::is_meant(text), "{text}");
        }
        assert!(FunctionName::parse("/dev/nvme0n1").is_none() && !FunctionName::is_meant("/dev/nvme0n1"));
    }
}
