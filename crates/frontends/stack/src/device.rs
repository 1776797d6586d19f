//! Devices by name: `null`, `memory:64MiB`, the path of a file or block device, `nvme:0000:03:00.0/1`, `vfio-user:/run/x.sock/1`,
//! `fault:eio@8-15:DEVICE`.

use std::fmt;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use block::driver::{FaultyDevice, FileDevice, FileOptions, MemoryDevice, NullDevice, Passthrough};
use block::{Device, Geometry, Lba, OpenError};
use nvme::named::{FunctionName, open_namespace};
use sizes::Size;

/// Block size of memory devices, in bytes.
const BLOCK_BYTES: u32 = 512;
/// Default size of a null device.
const NULL_BYTES: u64 = 1 << 40;

/// A device by its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeviceName {
    /// A device that ignores all requests: `null` or `null:SIZE`.
    Null {
        /// Size of the device, in bytes.
        bytes: u64,
    },
    /// A device in memory: `memory:SIZE`.
    Memory {
        /// Size of the device, in bytes.
        bytes: u64,
    },
    /// A file or a block device.
    Path(PathBuf),
    /// A namespace of a controller driven by this process: `nvme:0000:03:00.0/1`, `vfio-user:/run/x.sock/1`. Without a number it is the
    /// first.
    Nvme {
        /// The controller of the namespace.
        controller: FunctionName,
        /// Number of the namespace, from 1.
        namespace: u32,
    },
    /// A device with failing blocks: `fault:eio@LBA-LBA:DEVICE`.
    Fault {
        /// The first failing block.
        first: u64,
        /// The last failing block.
        last: u64,
        /// The device that serves the other blocks.
        inner: Box<DeviceName>,
    },
}

/// The name of a device is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no device: use a path (./null for a file named null), nvme:0000:03:00.0/1, vfio-user:SOCKET/1, \
     memory:SIZE such as memory:64MiB, fault:eio@LBA-LBA:DEVICE, or null"
)]
pub struct DeviceNameError(String);

impl FromStr for DeviceName {
    type Err = DeviceNameError;

    fn from_str(text: &str) -> Result<DeviceName, DeviceNameError> {
        let bad = || DeviceNameError(text.to_owned());
        let bytes = |size: &str| match size.parse() {
            Ok(Size::Bytes(bytes)) if bytes >= u64::from(BLOCK_BYTES) => Ok(bytes),
            _ => Err(bad()),
        };
        match text.split_once(':') {
            None if text == "null" => Ok(DeviceName::Null { bytes: NULL_BYTES }),
            Some(("null", size)) => Ok(DeviceName::Null { bytes: bytes(size)? }),
            Some(("memory", size)) => Ok(DeviceName::Memory { bytes: bytes(size)? }),
            Some(("fault", rule)) => fault(rule).ok_or_else(bad),
            _ if FunctionName::is_meant(text) => nvme(FunctionName::parse(text)).ok_or_else(bad),
            _ if text.is_empty() => Err(bad()),
            _ => Ok(DeviceName::Path(PathBuf::from(text))),
        }
    }
}

fn nvme(name: Option<(FunctionName, u32)>) -> Option<DeviceName> {
    name.map(|(controller, namespace)| DeviceName::Nvme { controller, namespace })
}

/// Parses `eio@8-15:DEVICE`.
fn fault(rule: &str) -> Option<DeviceName> {
    let (rule, inner) = rule.split_once(':')?;
    let (first, last) = rule.strip_prefix("eio@")?.split_once('-')?;
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last).then_some(())?;
    Some(DeviceName::Fault { first, last, inner: Box::new(inner.parse().ok()?) })
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Null { bytes } => write!(f, "null:{bytes}"),
            DeviceName::Memory { bytes } => write!(f, "memory:{bytes}"),
            DeviceName::Path(path) => write!(f, "{}", path.display()),
            DeviceName::Nvme { controller, namespace } => write!(f, "{controller}/{namespace}"),
            DeviceName::Fault { first, last, inner } => write!(f, "fault:eio@{first}-{last}:{inner}"),
        }
    }
}

impl DeviceName {
    /// Opens the device for reading and writing.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn open(&self) -> Result<Arc<dyn Device>, OpenError> {
        self.open_with(&DeviceOptions::default())
    }

    /// Opens the device with options.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn open_with(&self, options: &DeviceOptions) -> Result<Arc<dyn Device>, OpenError> {
        let plain = |bytes: &u64| Geometry { read_only: options.read_only, ..Geometry::plain(BLOCK_BYTES, bytes / u64::from(BLOCK_BYTES)) };
        match self {
            DeviceName::Null { bytes } => Ok(Arc::new(NullDevice::new(plain(bytes)))),
            DeviceName::Memory { bytes } => {
                let whole = bytes / u64::from(BLOCK_BYTES) * u64::from(BLOCK_BYTES);
                let device = MemoryDevice::new(BLOCK_BYTES, whole);
                let device = device.map_err(|error| OpenError::system(format!("{whole} bytes of memory"), error))?;
                Ok(Arc::new(device.with_geometry(|geometry| geometry.read_only = options.read_only)))
            }
            DeviceName::Nvme { controller, namespace } => {
                let record_file = options.record_file.clone().or_else(record_file_of_environment);
                let namespace = open_namespace(controller, *namespace, record_file.as_deref())?;
                Ok(Arc::new(if options.read_only { namespace.read_only() } else { namespace }))
            }
            DeviceName::Fault { first, last, inner } => {
                Ok(Arc::new(FaultyDevice::new(inner.open_with(options)?, Lba(*first)..=Lba(*last))))
            }
            DeviceName::Path(path) if is_character_device(path) => Ok(Arc::new(Passthrough::open(path, options.read_only)?)),
            DeviceName::Path(path) => {
                let options = FileOptions { read_only: options.read_only, locked: options.alone, ..FileOptions::default() };
                Ok(Arc::new(FileDevice::open(path, &options)?))
            }
        }
    }
}

/// Returns whether the path is a character device such as /dev/ng0n1, for NVMe passthrough.
fn is_character_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.file_type().is_char_device())
}

/// Returns $HOTSHELF_RECORD_FILE, unless the program is set-uid: its caller controls the environment.
fn record_file_of_environment() -> Option<PathBuf> {
    shm::environment::path("HOTSHELF_RECORD_FILE")
}

/// How a device is opened.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeviceOptions {
    /// Opens the device for reading only.
    pub read_only: bool,
    /// Locks a writable file exclusively; block devices always are.
    pub alone: bool,
    /// File of the flight recorder of a controller driven by this process (see [`nvme::Options`]). `None`: $HOTSHELF_RECORD_FILE, or only
    /// memory.
    pub record_file: Option<PathBuf>,
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn names_are_read_and_shown_alike() {
        let parse = |text: &str| text.parse::<DeviceName>();
        assert_eq!(parse("memory:64MiB"), Ok(DeviceName::Memory { bytes: 64 << 20 }));
        assert_eq!(parse("/dev/sdb"), Ok(DeviceName::Path("/dev/sdb".into())));
        assert_eq!(parse("./null"), Ok(DeviceName::Path("./null".into())));
        for text in ["memory:", "memory:10%", "memory:1", "", "fault:eio@9-8:null", "fault:eio@1-2:memory:", "fault:bad"] {
            assert_eq!(parse(text), Err(DeviceNameError(text.to_owned())));
        }
        for text in ["null", "memory:1MiB", "some/file", "fault:eio@8-15:memory:1MiB"] {
            let name = parse(text).expect("a device");
            assert_eq!(parse(&name.to_string()), Ok(name));
        }
    }

    #[test]
    fn controllers_are_named_with_their_namespace() {
        let parse = |text: &str| match text.parse() {
            Ok(DeviceName::Nvme { controller, namespace }) => Some((controller, namespace)),
            _ => None,
        };
        let pci = FunctionName::Pci("0000:03:00.0".into());
        assert_eq!(parse("nvme:0000:03:00.0/2"), Some((pci.clone(), 2)));
        assert_eq!(parse("nvme:0000:03:00.0"), Some((pci, 1)));
        let socket = FunctionName::VfioUser("/run/x.sock".into());
        assert_eq!(parse("vfio-user:/run/x.sock"), Some((socket.clone(), 1)));
        assert_eq!(parse("vfio-user:/run/x.sock/12"), Some((socket, 12)));
        // A socket whose name is a number needs the namespace suffix.
        assert_eq!(parse("vfio-user:/run/7/1"), Some((FunctionName::VfioUser("/run/7".into()), 1)));
        for text in
            ["nvme:", "nvme:03:00.0", "nvme:0000:03:00.8", "nvme:0000:03:00.0/0", "nvme:0000:03:00.0/x", "vfio-user:", "vfio-user:/1"]
        {
            assert_eq!(text.parse::<DeviceName>(), Err(DeviceNameError(text.to_owned())));
        }
        for text in ["nvme:0000:03:00.0/1", "vfio-user:/run/x.sock/3", "vfio-user:x.sock/1"] {
            assert_eq!(text.parse::<DeviceName>().map(|name| name.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn what_is_named_is_opened() {
        let geometry = |text: &str| text.parse::<DeviceName>().expect("a name").open().expect("opened").geometry().clone();
        assert_eq!(geometry("memory:1MiB").bytes(), 1 << 20);
        assert_eq!(geometry("null:1GiB").bytes(), 1 << 30);
    }
}
