//! What the comparison with a host cannot see: what is on the device, bounds, damage, threads.

mod data;
mod durable;
mod handles;
mod names;
mod together;

use block::driver::MemoryDevice;

use super::check::check;
use super::{Creds, File, Fs, FsSettings, Timestamp};
use crate::{Disk, DiskSettings, FormatOptions, Settings, Store};
use rustix::fs::OFlags;

/// A device, to be opened again.
pub struct Machine {
    /// The memory that serves as the device.
    pub device: MemoryDevice,
    /// The settings of the store under test.
    pub settings: FsSettings,
}

impl Machine {
    /// Formats an image in memory.
    pub fn new(bytes: u64) -> Machine {
        let machine = Machine { device: MemoryDevice::new(512, bytes).expect("memory"), settings: FsSettings::default() };
        Store::format(&machine.disk(), &FormatOptions::default()).expect("formatted");
        let store = machine.store();
        Fs::format(&store, Timestamp::default()).expect("made");
        store.close().expect("closed");
        machine
    }

    /// Opens the device under the image.
    pub fn disk(&self) -> Disk {
        Disk::open(&self.device, &DiskSettings::default()).expect("queues")
    }

    /// Opens the store of the image.
    pub fn store(&self) -> Store {
        Store::open(self.disk(), &Settings::default()).expect("opened").0
    }

    /// Opens the file system of the image.
    pub fn open(&self) -> Fs {
        Fs::open(self.store(), self.settings.clone()).expect("opened").0
    }
}

/// Returns the credentials of the superuser.
pub fn root() -> Creds {
    Creds::root()
}

/// Opens or creates a file for reading and writing.
pub fn file(fs: &Fs, path: &str) -> File {
    fs.open_at(fs.root(), path.as_bytes(), OFlags::RDWR | OFlags::CREATE, 0o644, &root()).expect("opened")
}

/// Returns bytes that depend on a seed.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| rng.u8(..)).collect()
}

/// Returns the whole content of a file.
pub fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.node().stat().expect("held").size).expect("small")];
    let done = file.read_at(&mut bytes, 0).expect("readable");
    assert_eq!(done, bytes.len());
    bytes
}

/// Closes, and looks whether all is right.
pub fn close_clean(fs: Fs, machine: &Machine) {
    fs.close().expect("closed");
    let store = machine.store();
    let report = check(&store).expect("read");
    let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty() && report.orphans == 0, "{findings:#?}");
    store.close().expect("closed");
}
