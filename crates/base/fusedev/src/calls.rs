//! The device's ioctls.
#![expect(unsafe_code, reason = "asks the kernel by number")]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::io::Errno;
use rustix::ioctl::{self, Opcode, Setter, Updater, opcode};

const GROUP: u8 = 229;
const CLONE: Opcode = opcode::read::<u32>(GROUP, 0);
const BACKING_OPEN: Opcode = opcode::write::<BackingMap>(GROUP, 1);
const BACKING_CLOSE: Opcode = opcode::write::<u32>(GROUP, 2);

/// The kernel's `fuse_backing_map`.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

/// The call that registers a file: the kernel returns a number instead of 0.
struct Numbered(BackingMap);

// SAFETY: the kernel reads one `fuse_backing_map`, whose address stays valid during the call, and writes nothing.
unsafe impl ioctl::Ioctl for Numbered {
    type Output = u32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        BACKING_OPEN
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(out: ioctl::IoctlOutput, _: *mut std::ffi::c_void) -> rustix::io::Result<u32> {
        u32::try_from(out).map_err(|_| Errno::INVAL)
    }
}

/// A file that the kernel reads, writes and maps for the opens that name it, without the daemon.
#[derive(Debug)]
pub struct Backing {
    device: Weak<OwnedFd>,
    number: u32,
}

impl Backing {
    /// Registers a file with the kernel. EPERM: that needs CAP_SYS_ADMIN.
    pub fn new(device: &Arc<OwnedFd>, file: BorrowedFd<'_>) -> rustix::io::Result<Backing> {
        let map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: `Numbered` is what this number of this device takes; on another file it is not known.
        let number = unsafe { ioctl::ioctl(device.as_fd(), Numbered(map)) }?;
        Ok(Backing { device: Arc::downgrade(device), number })
    }

    /// Returns the number of the file that the kernel assigned.
    pub fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        // Without the device the kernel has let go of it already.
        if let Some(device) = self.device.upgrade() {
            // SAFETY: the kernel reads one number and writes nothing.
            let closed = unsafe { ioctl::ioctl(device.as_fd(), Setter::<BACKING_CLOSE, u32>::new(self.number)) };
            debug_assert!(closed.is_ok() || cfg!(not(test)), "a backing file closed twice: {closed:?}");
        }
    }
}

/// Opens another descriptor of the same mount, with a separate list of unanswered requests.
pub fn clone_of(device: BorrowedFd<'_>) -> std::io::Result<OwnedFd> {
    let fresh = File::options().read(true).write(true).open("/dev/fuse")?;
    let mut of = device.as_raw_fd().cast_unsigned();
    // SAFETY: the kernel reads one number, and writes nothing beyond it.
    unsafe { ioctl::ioctl(fresh.as_fd(), Updater::<CLONE, u32>::new(&mut of)) }?;
    Ok(fresh.into())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_is_no_mount_is_refused() {
        let null: Arc<OwnedFd> = Arc::new(File::open("/dev/null").expect("opens").into());
        assert!(Backing::new(&null, null.as_fd()).is_err());
        assert!(clone_of(null.as_fd()).is_err());
    }
}
