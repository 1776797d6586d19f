//! Determines the geometry of an open file: from the kernel, or by a trial where the kernel does not report it.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::Path;

use rustix::fs::{
    AtFlags, FallocateFlags, OFlags, Statx, StatxFlags, fallocate, fcntl_getfl, fcntl_setfl, fstatfs, ioctl_blksszget, statx,
};
use rustix::io::pread;

use super::FileOptions;
use crate::device::OpenError;
use crate::driver::sysfs::QueueAttributes;
use crate::driver::uring::SEGMENTS_MAX;
use crate::geometry::Geometry;

/// The kernel splits transfers that exceed the device's limit; larger ones than this bring no benefit.
const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// File systems in memory, which accept O_DIRECT but use the page cache anyway (statfs(2)).
const MEMORY_FILE_SYSTEMS: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// The properties of an open file.
pub(super) struct Shape {
    /// The geometry of the file as a device.
    pub geometry: Geometry,
    /// Whether I/O bypasses the page cache.
    pub direct: bool,
    /// The reason why the device cannot be polled, or `None` if it can.
    pub not_polled: Option<String>,
    /// The largest transfer that reaches the drive unsplit, in bytes.
    pub polled_bytes_max: u32,
}

/// Examines an open file, which has O_DIRECT set if `direct`; clears the flag if direct I/O does not work here.
pub(super) fn look(file: &File, path: &Path, options: &FileOptions, block: bool, direct: bool) -> Result<Shape, OpenError> {
    let system = |what: &str, error: std::io::Error| OpenError::system(format!("{what} of {}", path.display()), error);
    let stat = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN).ok();
    let align = if direct { direct_align(file, block, stat.as_ref()) } else { None };
    if direct && align.is_none() {
        let flags = fcntl_getfl(file).map_err(|error| system("the flags", error.into()))?;
        fcntl_setfl(file, flags - OFlags::DIRECT).map_err(|error| system("the flags", error.into()))?;
    }
    let queue = stat.and_then(|stat| queue_of(&stat, block));
    let sector = if block { ioctl_blksszget(file).map_err(|error| system("the block size", error.into()))? } else { 512 };
    let block_bytes = block_bytes(path, options, sector.max(align.unwrap_or(1)).max(512))?;
    // The size is found in the same way for files and block devices; BLKGETSIZE64 returns nothing more.
    let bytes = (&mut &*file).seek(SeekFrom::End(0)).map_err(|error| system("the size", error))?;
    let writable = !options.read_only;
    let discard = writable && if block { device_discards(queue.as_ref()) } else { file_has_holes(file, bytes) };
    let geometry = Geometry {
        block_bytes,
        blocks: blocks(path, options, bytes, block_bytes)?,
        transfer_bytes_max: TRANSFER_BYTES_MAX,
        segments_max: SEGMENTS_MAX,
        // Kernels before 6.18 require each segment of a direct transfer to be whole sectors, not only their total.
        memory_align: align.map_or(1, |_| block_bytes.min(4096)),
        // The device behind a file is not known for certain: volatile is the safe assumption.
        volatile_cache: !block || queue.as_ref().is_none_or(QueueAttributes::volatile_cache),
        read_only: options.read_only,
        discard,
        // The kernel writes zeroes itself if a device cannot.
        write_zeroes: writable && (block || discard),
    };
    let not_polled = not_polled(align.is_some(), queue.as_ref());
    let polled_bytes_max = queue.as_ref().map_or(0, polled_bytes_max);
    Ok(Shape { geometry, direct: align.is_some(), not_polled, polled_bytes_max })
}

fn queue_of(stat: &Statx, block: bool) -> Option<QueueAttributes> {
    let (major, minor) = if block { (stat.stx_rdev_major, stat.stx_rdev_minor) } else { (stat.stx_dev_major, stat.stx_dev_minor) };
    QueueAttributes::of(major, minor)
}

/// Returns the smallest unit of a direct transfer in bytes, or `None` if the page cache is used.
fn direct_align(file: &File, block: bool, stat: Option<&Statx>) -> Option<u32> {
    // For a block device, this would be the file system that holds its node.
    let in_memory = || fstatfs(file).is_ok_and(|found| MEMORY_FILE_SYSTEMS.contains(&found.f_type.cast_unsigned()));
    if !block && in_memory() {
        return None;
    }
    match stat {
        // 0: no direct I/O for this file (encrypted, or with its data in the journal).
        Some(stat) if stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
            (stat.stx_dio_offset_align > 0).then(|| stat.stx_dio_offset_align.max(stat.stx_dio_mem_align.min(4096)))
        }
        // Kernels before 6.1, and file systems that do not report it: try.
        _ => [512_u32, 4096].into_iter().find(|align| reads_direct(file, *align)),
    }
}

/// Returns whether a direct read at `align` of `align` bytes succeeds. The buffer has exactly that alignment.
fn reads_direct(file: &File, align: u32) -> bool {
    let align = align as usize;
    let mut memory = vec![0; 3 * align];
    let mut at = memory.as_ptr().align_offset(align);
    if (memory.as_ptr() as usize + at).is_multiple_of(2 * align) {
        at += align;
    }
    pread(file, &mut memory[at..at + align], align as u64).is_ok()
}

fn block_bytes(path: &Path, options: &FileOptions, smallest: u32) -> Result<u32, OpenError> {
    let wanted = options.block_bytes.unwrap_or(smallest);
    if wanted.is_power_of_two() && wanted >= smallest && wanted <= TRANSFER_BYTES_MAX {
        return Ok(wanted);
    }
    let path = path.display();
    Err(OpenError::Unusable(format!("{path} cannot have blocks of {wanted} bytes: a power of two, {smallest} or more, is possible")))
}

fn blocks(path: &Path, options: &FileOptions, bytes: u64, block_bytes: u32) -> Result<u64, OpenError> {
    let (blocks, rest) = (bytes / u64::from(block_bytes), bytes % u64::from(block_bytes));
    let path = path.display();
    if bytes == 0 {
        return Err(OpenError::Unusable(format!("{path} is empty: give it a size (truncate -s 10G {path})")));
    }
    if blocks == 0 || (rest > 0 && !options.round_down) {
        return Err(OpenError::Unusable(format!(
            "{path} has {bytes} bytes, which are not whole blocks of {block_bytes}: it is neither a device nor the image of one"
        )));
    }
    Ok(blocks)
}

/// Returns whether the device frees blocks: fallocate(2) punches a hole in it by zeroing with unmap, and has no fallback.
fn device_discards(queue: Option<&QueueAttributes>) -> bool {
    queue.and_then(|queue| queue.number("write_zeroes_max_bytes")).is_some_and(|bytes| bytes > 0)
}

/// Tries to punch a hole beyond the end of the file, where that changes nothing.
fn file_has_holes(file: &File, bytes: u64) -> bool {
    let at = bytes.next_multiple_of(1 << 20);
    fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, 1 << 20).is_ok()
}

/// Returns the transfer size that the kernel does not split: every page may be a segment, and memory may start inside a page.
fn polled_bytes_max(queue: &QueueAttributes) -> u32 {
    let bytes = queue.number("max_sectors_kb").unwrap_or(4) << 10;
    let pages = queue.number("max_segments").unwrap_or(2).saturating_sub(1);
    u32::try_from(bytes.min(pages * 4096)).unwrap_or(u32::MAX)
}

fn not_polled(direct: bool, queue: Option<&QueueAttributes>) -> Option<String> {
    if !direct {
        return Some("it is used through the page cache".into());
    }
    match queue {
        None => Some("there is no local block device below it".into()),
        Some(queue) if !queue.polls() => {
            Some("its driver has no queues for polling (for NVMe: load the module with nvme.poll_queues=1 or more)".into())
        }
        Some(_) => None,
    }
}
