//! Admin commands to an NVMe node by ioctl (linux/nvme_ioctl.h).
#![expect(unsafe_code, reason = "hands memory to the kernel")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `_IO('N', 0x40)`.
const NVME_IOCTL_ID: libc::c_ulong = 0x4e40;
/// `_IOWR('N', 0x41, struct nvme_passthru_cmd)`.
const NVME_IOCTL_ADMIN_CMD: libc::c_ulong = 0xc048_4e41;
/// NVMe base specification 2.0, figure 138.
const ADMIN_IDENTIFY: u8 = 0x06;
const ADMIN_GET_LOG_PAGE: u8 = 0x02;

/// `struct nvme_passthru_cmd`.
#[repr(C)]
#[derive(Default)]
struct AdminCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    addr: u64,
    metadata_len: u32,
    data_len: u32,
    cdw: [u32; 6],
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<AdminCommand>() == 72);

/// Returns the namespace ID of a node.
pub(crate) fn namespace_id(fd: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: this request takes no argument.
    let nsid = unsafe { libc::ioctl(fd.as_raw_fd(), NVME_IOCTL_ID) };
    u32::try_from(nsid).map_err(|_| io::Error::last_os_error())
}

/// Returns the Identify page of a namespace (`cns` 0), of its controller (1), or another one. Before Linux 6.2 this requires
/// CAP_SYS_ADMIN.
pub(crate) fn identify(fd: BorrowedFd<'_>, nsid: u32, cns: u32) -> io::Result<Box<[u8; 4096]>> {
    let nsid = if cns == 1 { 0 } else { nsid };
    ask(fd, AdminCommand { opcode: ADMIN_IDENTIFY, nsid, data_len: 4096, cdw: [cns, 0, 0, 0, 0, 0], ..AdminCommand::default() })
}

/// Returns the first 512 bytes of a log page of the controller.
pub(crate) fn log_page(fd: BorrowedFd<'_>, page: u8) -> io::Result<Box<[u8; 4096]>> {
    let cdw = [u32::from(page) | (512 / 4 - 1) << 16, 0, 0, 0, 0, 0];
    ask(fd, AdminCommand { opcode: ADMIN_GET_LOG_PAGE, nsid: u32::MAX, data_len: 512, cdw, ..AdminCommand::default() })
}

/// Sends an admin command that returns at most a page.
fn ask(fd: BorrowedFd<'_>, mut command: AdminCommand) -> io::Result<Box<[u8; 4096]>> {
    let mut page = Box::new([0; 4096]);
    command.addr = page.as_mut_ptr() as u64;
    assert!(command.data_len <= 4096);
    // SAFETY: the command names a page that nobody else uses, which is at least as long as it says and outlives the call.
    match unsafe { libc::ioctl(fd.as_raw_fd(), NVME_IOCTL_ADMIN_CMD, &raw mut command) } {
        0 => Ok(page),
        status if status > 0 => Err(io::Error::other(format!("the drive answers with status {status:#x}"))),
        _ => Err(io::Error::last_os_error()),
    }
}
