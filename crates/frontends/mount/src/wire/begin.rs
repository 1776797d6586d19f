//! Mounting and the handshake, by the fuser crate.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use fusedev::Port;
use fuser::{Config, InitFlags, KernelConfig, Session};
use rustix::io::Errno;

use super::filesystem::FileSystem;
use super::stopper::MountStopper;
use super::transport::{Transport, UringMode};
use crate::unmount::unmount;

/// A mount that waits to be served.
pub struct PreparedMount<F: FileSystem> {
    pub(super) fs: Arc<F>,
    /// None if another process has shaken hands with the kernel.
    pub(super) session: Option<Session<Handshake<F>>>,
    pub(super) device: Arc<OwnedFd>,
    /// One port for each CPU's queue and a spare one, if the kernel agreed.
    pub(super) ports: Vec<Port>,
    pub(super) transport: Arc<Transport>,
    pub(super) config: Config,
    pub(super) stopper: Arc<MountStopper>,
}

/// The daemon's side of the handshake (FUSE_INIT).
pub struct Handshake<F> {
    /// Until the handshake is done.
    fs: Option<Arc<F>>,
    transport: Arc<Transport>,
}

impl<F: FileSystem> fuser::Filesystem for Handshake<F> {
    fn init(&mut self, _req: &fuser::Request, config: &mut KernelConfig) -> std::io::Result<()> {
        if let Some(fs) = self.fs.take() {
            fs.init(config);
        }
        if self.transport.why_not().is_none() && config.add_capabilities(InitFlags::FUSE_OVER_IO_URING).is_err() {
            self.transport.is_device(not_offered());
        }
        Ok(())
    }
}

/// Where root may let the kernel offer it.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

fn not_offered() -> String {
    match std::fs::read_to_string(SWITCH) {
        Ok(on) if on.trim() == "N" => format!("the kernel has it switched off (as root: echo Y >{SWITCH})"),
        Ok(_) => "the kernel does not offer it".into(),
        Err(_) => "this kernel has no FUSE over io_uring: Linux 6.14 or later may have it".into(),
    }
}

/// Whether this kernel offers FUSE over io_uring and lets this process use it; if not, why, and what may be done.
pub fn uring_offered() -> Result<(), String> {
    if std::fs::read_to_string(SWITCH).map_or(true, |on| on.trim() == "N") {
        return Err(not_offered());
    }
    Port::new(0).map(drop).map_err(refused)
}

fn refused(error: std::io::Error) -> String {
    format!("the kernel does not let this process use io_uring ({error}; see sysctl kernel.io_uring_disabled)")
}

/// Opens one port for each CPU's queue and a spare one, before io_uring is negotiated, so that refusals come early.
fn open_ports(uring: UringMode, threads: usize) -> Result<Vec<Port>, String> {
    if uring == UringMode::Off {
        return Err("switched off".into());
    }
    if threads == 1 {
        return Err("a single thread cannot serve a queue for each CPU".into());
    }
    uring_offered()?;
    let processors = processors().ok_or("the number of possible CPUs is unknown")?;
    (0..processors).chain([0]).map(|queue| Port::new(queue).map_err(refused)).collect()
}

/// Returns the number of possible CPUs: the kernel has a queue for each of them.
fn processors() -> Option<u16> {
    std::fs::read_to_string("/sys/devices/system/cpu/possible").ok().and_then(|list| count(&list))
}

/// Of a list such as `0-3,8`.
fn count(list: &str) -> Option<u16> {
    let ranges = list.trim().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        last.checked_sub(first)?.checked_add(1)
    });
    ranges.sum::<Option<u16>>().filter(|count| *count > 0)
}

/// Mounts and shakes hands with the kernel: by mount(2), which `directly` does, where we may, else through fusermount3.
pub fn begin<F: FileSystem>(
    fs: F,
    mountpoint: &Path,
    config: Config,
    uring: UringMode,
    directly: impl FnOnce(&File) -> rustix::io::Result<()>,
) -> std::io::Result<PreparedMount<F>> {
    let (fs, transport) = (Arc::new(fs), Arc::new(Transport::default()));
    let mut ports = open_ports(uring, config.n_threads.unwrap_or(1)).unwrap_or_else(|why_not| {
        transport.is_device(why_not);
        Vec::new()
    });
    let handshake = Handshake { fs: Some(Arc::clone(&fs)), transport: Arc::clone(&transport) };
    let session = shake_hands(handshake, mountpoint, &config, directly)?;
    let device = Arc::new(session.as_fd().try_clone_to_owned()?);
    if transport.why_not().is_some() {
        ports.clear();
    }
    let stopper = stopper_of(&config);
    Ok(PreparedMount { fs, session: Some(session), device, ports, transport, config, stopper })
}

fn stopper_of(config: &Config) -> Arc<MountStopper> {
    Arc::new(MountStopper::new(config.n_threads.unwrap_or(1).max(1)))
}

/// Goes on with a mount that another process has served by this device.
pub fn resume<F: FileSystem>(fs: F, device: OwnedFd, config: Config) -> PreparedMount<F> {
    let transport = Arc::new(Transport::default());
    transport.is_device("the mount was taken over from a daemon that used the device".into());
    let (device, stopper) = (Arc::new(device), stopper_of(&config));
    PreparedMount { fs: Arc::new(fs), session: None, device, ports: Vec::new(), transport, config, stopper }
}

fn shake_hands<F: FileSystem>(
    handshake: Handshake<F>,
    mountpoint: &Path,
    config: &Config,
    directly: impl FnOnce(&File) -> rustix::io::Result<()>,
) -> std::io::Result<Session<Handshake<F>>> {
    if rustix::process::geteuid().is_root() {
        let device = File::options().read(true).write(true).open("/dev/fuse")?;
        match directly(&device) {
            Err(Errno::PERM) => {}
            mounted => {
                mounted?;
                let session = Session::from_fd(handshake, device.into(), config.acl, config.clone());
                return session.inspect_err(|_| drop(unmount(mountpoint, true)));
            }
        }
    }
    Session::new(handshake, mountpoint, config)
}

impl<F: FileSystem> PreparedMount<F> {
    /// Returns the device by which the kernel is told of changes.
    pub fn device(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.device)
    }

    /// Returns what stops serving between two requests.
    pub fn stopper(&self) -> Arc<MountStopper> {
        Arc::clone(&self.stopper)
    }

    /// Returns whether requests come over io_uring or the device.
    pub fn transport(&self) -> Arc<Transport> {
        Arc::clone(&self.transport)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn processors_are_counted_as_the_kernel_lists_them() {
        for (list, number) in [("0\n", Some(1)), ("0-1", Some(2)), ("0-3,8,10-11\n", Some(7)), ("", None), ("3-1", None), ("0-65535", None)]
        {
            assert_eq!(count(list), number, "{list:?}");
        }
    }
}
