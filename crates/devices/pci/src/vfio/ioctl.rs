//! The kernel's calls (linux/vfio.h, linux/iommufd.h), each as a function that says what it takes.
#![expect(unsafe_code, reason = "ioctl(2)")]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use shm::Region;
use vfio_bindings::bindings::vfio;

/// Room for what comes behind a structure: capabilities. The kernel says if it is too small.
const WORDS: usize = 512;

/// `_IO(';', number)`: the calls of VFIO carry no size.
const fn vfio_call(number: u32) -> libc::Ioctl {
    ((vfio::VFIO_TYPE as u32) << 8 | (vfio::VFIO_BASE + number)) as libc::Ioctl
}

/// The same of iommufd, which begins higher.
const fn iommufd_call(number: u32) -> libc::Ioctl {
    ((vfio::VFIO_TYPE as u32) << 8 | number) as libc::Ioctl
}

const API_VERSION: libc::Ioctl = vfio_call(0);
const CHECK_EXTENSION: libc::Ioctl = vfio_call(1);
const SET_IOMMU: libc::Ioctl = vfio_call(2);
const GROUP_STATUS: libc::Ioctl = vfio_call(3);
const GROUP_SET_CONTAINER: libc::Ioctl = vfio_call(4);
const GROUP_DEVICE: libc::Ioctl = vfio_call(6);
const REGION_INFO: libc::Ioctl = vfio_call(8);
const IRQ_INFO: libc::Ioctl = vfio_call(9);
const SET_IRQS: libc::Ioctl = vfio_call(10);
const RESET: libc::Ioctl = vfio_call(11);
const IOMMU_INFO: libc::Ioctl = vfio_call(12);
const MAP_DMA: libc::Ioctl = vfio_call(13);
const UNMAP_DMA: libc::Ioctl = vfio_call(14);
const BIND_IOMMUFD: libc::Ioctl = vfio_call(18);
const ATTACH_IOMMUFD: libc::Ioctl = vfio_call(19);
const IOAS_ALLOC: libc::Ioctl = iommufd_call(0x81);
const IOAS_MAP: libc::Ioctl = iommufd_call(0x85);
const IOAS_UNMAP: libc::Ioctl = iommufd_call(0x86);

fn checked(result: libc::c_int) -> io::Result<u32> {
    u32::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// A call that takes a number.
///
/// # Safety
/// `call` must be one that takes a number or nothing.
unsafe fn by_value(fd: BorrowedFd<'_>, call: libc::Ioctl, value: libc::c_ulong) -> io::Result<u32> {
    // SAFETY: the call touches no memory of this process, as the caller says.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), call, value) })
}

/// A call that reads and writes a structure.
///
/// # Safety
/// `call` must be one that takes a pointer to a `T`, and touches no more than what `T` says of its size (argsz), and no other memory of
/// ours.
unsafe fn by_place<T>(fd: BorrowedFd<'_>, call: libc::Ioctl, value: &mut T) -> io::Result<u32> {
    // SAFETY: as the caller says; the structure is ours alone.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), call, std::ptr::from_mut(value)) })
}

fn bytes_of<T>() -> u32 {
    u32::try_from(size_of::<T>()).expect("structures are small")
}

/// Returns the version of the VFIO interface.
pub fn api_version(container: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: takes nothing.
    unsafe { by_value(container, API_VERSION, 0) }
}

/// Returns whether the container supports an extension.
pub fn has_extension(container: BorrowedFd<'_>, extension: u32) -> bool {
    // SAFETY: takes a number.
    unsafe { by_value(container, CHECK_EXTENSION, extension.into()) }.is_ok_and(|has| has == 1)
}

/// Chooses the kind of IOMMU for a container.
pub fn set_iommu(container: BorrowedFd<'_>, kind: u32) -> io::Result<()> {
    // SAFETY: takes a number.
    unsafe { by_value(container, SET_IOMMU, kind.into()) }.map(drop)
}

/// Returns the status flags of a group.
pub fn group_status(group: BorrowedFd<'_>) -> io::Result<u32> {
    let mut status = vfio::vfio_group_status { argsz: bytes_of::<vfio::vfio_group_status>(), flags: 0 };
    // SAFETY: its structure, with its size.
    unsafe { by_place(group, GROUP_STATUS, &mut status) }?;
    Ok(status.flags)
}

/// Adds a group to a container.
pub fn join_container(group: BorrowedFd<'_>, container: BorrowedFd<'_>) -> io::Result<()> {
    let mut container = container.as_raw_fd();
    // SAFETY: takes a pointer to a descriptor.
    unsafe { by_place(group, GROUP_SET_CONTAINER, &mut container) }.map(drop)
}

/// Opens a device of a group by its PCI address.
pub fn device_of_group(group: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: takes a string, which it only reads.
    let fd = checked(unsafe { libc::ioctl(group.as_raw_fd(), GROUP_DEVICE, name.as_ptr()) })?;
    // SAFETY: a new descriptor, which nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// A structure and what comes behind it, as bytes.
fn with_room<T: Copy>(fd: BorrowedFd<'_>, call: libc::Ioctl, mut head: T) -> io::Result<(T, Vec<u8>)> {
    let words = size_of::<T>().div_ceil(8);
    let mut room = [0_u64; WORDS];
    assert!(words <= WORDS && align_of::<T>() <= 8);
    // SAFETY: `T` is one of the kernel's plain structures (see the callers), and there is room for it, aligned.
    unsafe { room.as_mut_ptr().cast::<T>().write(head) };
    // SAFETY: the structure's size is said to be all of the room (see the callers).
    unsafe { by_place(fd, call, &mut room) }?;
    // SAFETY: any bytes are such a structure: it has numbers only.
    head = unsafe { room.as_ptr().cast::<T>().read() };
    Ok((head, room.iter().flat_map(|word| word.to_ne_bytes()).collect()))
}

const ROOM: u32 = WORDS as u32 * 8;

/// A region, and its capabilities.
pub fn region_info(device: BorrowedFd<'_>, index: u32) -> io::Result<(vfio::vfio_region_info, Vec<u8>)> {
    let head = vfio::vfio_region_info { argsz: ROOM, index, flags: 0, cap_offset: 0, size: 0, offset: 0 };
    with_room(device, REGION_INFO, head)
}

/// The IOMMU, and its capabilities.
pub fn iommu_info(container: BorrowedFd<'_>) -> io::Result<(vfio::vfio_iommu_type1_info, Vec<u8>)> {
    let head = vfio::vfio_iommu_type1_info { argsz: ROOM, flags: 0, iova_pgsizes: 0, cap_offset: 0, pad: 0 };
    with_room(container, IOMMU_INFO, head)
}

/// Vectors of a kind of interrupt.
pub fn irq_count(device: BorrowedFd<'_>, index: u32) -> io::Result<u32> {
    let mut info = vfio::vfio_irq_info { argsz: bytes_of::<vfio::vfio_irq_info>(), index, flags: 0, count: 0 };
    // SAFETY: its structure, with its size.
    unsafe { by_place(device, IRQ_INFO, &mut info) }?;
    Ok(if info.flags & vfio::VFIO_IRQ_INFO_EVENTFD == 0 { 0 } else { info.count })
}

/// Makes interrupts of a kind signal these events. Returns 0 on success, else the number of vectors available; then nothing changed.
pub fn signal_by(device: BorrowedFd<'_>, index: u32, events: &[OwnedFd]) -> io::Result<u32> {
    let count = u32::try_from(events.len()).expect("few");
    let flags = vfio::VFIO_IRQ_SET_DATA_EVENTFD | vfio::VFIO_IRQ_SET_ACTION_TRIGGER;
    let mut words = vec![20 + 4 * count, flags, index, 0, count];
    words.extend(events.iter().map(|event| event.as_raw_fd() as u32));
    // SAFETY: a vfio_irq_set: five words and as many descriptors as the last of them says; it only reads.
    checked(unsafe { libc::ioctl(device.as_raw_fd(), SET_IRQS, words.as_ptr()) })
}

/// Resets the device by a call of the kernel (VFIO_DEVICE_RESET).
pub fn reset(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes nothing.
    unsafe { by_value(device, RESET, 0) }.map(drop)
}

/// The device reaches the region at this address.
///
/// # Safety
/// The region must live until the mapping ends, or its pages not be given to anybody else (the kernel holds them as long as the mapping
/// is there).
pub unsafe fn map(container: BorrowedFd<'_>, region: &Region, iova: u64) -> io::Result<()> {
    let mut call = vfio::vfio_iommu_type1_dma_map {
        argsz: bytes_of::<vfio::vfio_iommu_type1_dma_map>(),
        flags: vfio::VFIO_DMA_MAP_FLAG_READ | vfio::VFIO_DMA_MAP_FLAG_WRITE,
        vaddr: region.address(0).expose_provenance() as u64,
        iova,
        size: region.len() as u64,
    };
    // SAFETY: its structure, with its size. The memory is a region: whoever reads it expects that others write.
    unsafe { by_place(container, MAP_DMA, &mut call) }.map(drop)
}

/// Ends the mapping at this address of a container.
pub fn unmap(container: BorrowedFd<'_>, iova: u64, bytes: u64) -> io::Result<()> {
    let mut words = UnmapDma { argsz: bytes_of::<UnmapDma>(), flags: 0, iova, size: bytes };
    // SAFETY: its structure, with its size.
    unsafe { by_place(container, UNMAP_DMA, &mut words) }?;
    if words.size == bytes { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// `vfio_iommu_type1_dma_unmap` without what may come behind it.
#[repr(C)]
struct UnmapDma {
    argsz: u32,
    flags: u32,
    iova: u64,
    size: u64,
}

/// Gives a device to an iommufd.
pub fn bind_iommufd(device: BorrowedFd<'_>, iommufd: BorrowedFd<'_>) -> io::Result<()> {
    /// `vfio_device_bind_iommufd` as it was first; later kernels take it.
    #[repr(C)]
    struct Bind {
        argsz: u32,
        flags: u32,
        iommufd: i32,
        out_devid: u32,
    }
    let mut call = Bind { argsz: bytes_of::<Bind>(), flags: 0, iommufd: iommufd.as_raw_fd(), out_devid: 0 };
    // SAFETY: its structure, with its size.
    unsafe { by_place(device, BIND_IOMMUFD, &mut call) }.map(drop)
}

/// The device reaches what is mapped in this address space.
pub fn attach_iommufd(device: BorrowedFd<'_>, space: u32) -> io::Result<()> {
    /// `vfio_device_attach_iommufd_pt` as it was first.
    #[repr(C)]
    struct Attach {
        argsz: u32,
        flags: u32,
        pt_id: u32,
    }
    let mut call = Attach { argsz: bytes_of::<Attach>(), flags: 0, pt_id: space };
    // SAFETY: its structure, with its size.
    unsafe { by_place(device, ATTACH_IOMMUFD, &mut call) }.map(drop)
}

/// Allocates an address space and returns its number.
pub fn new_space(iommufd: BorrowedFd<'_>) -> io::Result<u32> {
    #[repr(C)]
    struct Alloc {
        size: u32,
        flags: u32,
        out_ioas_id: u32,
    }
    let mut call = Alloc { size: bytes_of::<Alloc>(), flags: 0, out_ioas_id: 0 };
    // SAFETY: its structure, with its size.
    unsafe { by_place(iommufd, IOAS_ALLOC, &mut call) }?;
    Ok(call.out_ioas_id)
}

/// The region in an address space, where the kernel chooses.
///
/// # Safety
/// As [`map`].
pub unsafe fn map_in_space(iommufd: BorrowedFd<'_>, space: u32, region: &Region) -> io::Result<u64> {
    /// May be written, may be read.
    const FLAGS: u32 = 2 | 4;
    #[repr(C)]
    struct Map {
        size: u32,
        flags: u32,
        ioas_id: u32,
        reserved: u32,
        user_va: u64,
        length: u64,
        iova: u64,
    }
    let mut call = Map {
        size: bytes_of::<Map>(),
        flags: FLAGS,
        ioas_id: space,
        reserved: 0,
        user_va: region.address(0).expose_provenance() as u64,
        length: region.len() as u64,
        iova: 0,
    };
    // SAFETY: its structure, with its size; the memory is a region, as for `map`.
    unsafe { by_place(iommufd, IOAS_MAP, &mut call) }?;
    Ok(call.iova)
}

/// Ends the mapping at this address of an address space.
pub fn unmap_in_space(iommufd: BorrowedFd<'_>, space: u32, iova: u64, bytes: u64) -> io::Result<()> {
    #[repr(C)]
    struct Unmap {
        size: u32,
        ioas_id: u32,
        iova: u64,
        length: u64,
    }
    let mut call = Unmap { size: bytes_of::<Unmap>(), ioas_id: space, iova, length: bytes };
    // SAFETY: its structure, with its size.
    unsafe { by_place(iommufd, IOAS_UNMAP, &mut call) }?;
    if call.length == bytes { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
}
