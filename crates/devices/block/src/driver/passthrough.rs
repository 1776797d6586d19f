//! A namespace of an NVMe drive through its character node (/dev/ng0n1). The drive's native commands bypass the kernel's block layer; the
//! kernel still owns the drive and checks permissions (Joshi et al., FAST'24).
//!
//! It requires Linux 6.1 (5.19 without pinned memory), the node's permissions, and before 6.2 CAP_SYS_ADMIN. [`super::uring::probe`]
//! reports what is missing.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use super::file::check_depth;
use super::sysfs::QueueAttributes;
use super::uring::{NvmeCommands, NvmeTarget, RingError, SEGMENTS_MAX, UringQueue, identify, namespace_id, probe};
use crate::device::{Device, OpenError, QueueOptions};
use crate::geometry::Geometry;
use crate::queue::Queue;
use identified::{Controller, Namespace};

mod identified;
pub mod status;

/// The largest transfer if the kernel reports no limit, in bytes.
const TRANSFER_BYTES: u64 = 128 << 10;
/// The largest transfer if the kernel reports a higher limit, in bytes.
const TRANSFER_BYTES_MAX: u64 = 1 << 20;
/// The bytes of one segment in the worst case: each page may be a segment.
const PAGE_BYTES: u64 = 4096;

/// An open NVMe namespace, to which queues send native commands.
#[derive(Debug)]
pub struct Passthrough {
    target: Arc<NvmeTarget>,
    path: PathBuf,
    warned: AtomicBool,
}

impl Passthrough {
    /// Opens a node, for writing unless `read_only`.
    ///
    /// # Errors
    /// Fails with the obstacle and a remedy.
    pub fn open(path: impl AsRef<Path>, read_only: bool) -> Result<Passthrough, OpenError> {
        let path = path.as_ref();
        check_kind(path)?;
        let node = OpenOptions::new().read(true).write(!read_only).open(path).map_err(|error| explain(path, error))?;
        let nsid = namespace_id(node.as_fd()).map_err(|_| {
            OpenError::Unusable(format!("{} is not a namespace of an NVMe drive: name one like /dev/ng0n1", path.display()))
        })?;
        let queue = disk_of(path).and_then(|disk| QueueAttributes::of_disk(&disk));
        let asked = identify(node.as_fd(), nsid, 0).and_then(|ns| Ok((ns, identify(node.as_fd(), nsid, 1)?)));
        let (namespace, controller) = match (asked, &queue) {
            (Ok((ns, controller)), _) => (Namespace::from_page(&ns), Controller::from_page(&controller)),
            // Before 6.2 an ordinary user may not send Identify, but may read what the kernel has found.
            (Err(error), Some(queue)) if error.kind() == io::ErrorKind::PermissionDenied => {
                identified::from_kernel(queue, disk_of(path).as_deref()).ok_or_else(|| explain(path, error))?
            }
            (Err(error), _) => return Err(OpenError::system(format!("asking {} what it is (Identify)", path.display()), error)),
        };
        let geometry = geometry(path, &namespace, &controller, queue.as_ref(), read_only)?;
        let target = Arc::new(NvmeTarget { node, nsid, geometry });
        Ok(Passthrough { target, path: path.to_owned(), warned: AtomicBool::new(false) })
    }

    /// Returns why the drive cannot be polled for completions, or `None` if it can.
    pub fn not_polled(&self) -> Option<String> {
        (probe::poll_queues() == 0).then(|| "its driver has no queues for polling (load the module with nvme.poll_queues=1 or more)".into())
    }
}

impl Device for Passthrough {
    fn geometry(&self) -> &Geometry {
        &self.target.geometry
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>, OpenError> {
        check_depth(options)?;
        let mut options = options.clone();
        if let (true, Some(why)) = (options.device_polled, self.not_polled()) {
            options.device_polled = false;
            if !self.warned.swap(true, Ordering::Relaxed) {
                tracing::warn!("{} is not polled but waited for: {why}", self.path.display());
            }
        }
        let refused = |refused: RingError| refused.explain(&self.path);
        let commands = NvmeCommands::new(self.target.clone(), options.depth).map_err(|error| refused(RingError::Failed(error)))?;
        if !probe::has_commands() {
            return Err(refused(RingError::Forbidden(
                "its io_uring knows no commands of drives, or is forbidden (Linux 5.19 has them)".into(),
            )));
        }
        Ok(Box::new(UringQueue::new(commands, self.target.node.as_fd(), &options).map_err(refused)?))
    }
}

fn check_kind(path: &Path) -> Result<(), OpenError> {
    let shown = path.display();
    let unusable = |what: String| Err(OpenError::Unusable(what));
    match std::fs::metadata(path) {
        Ok(meta) if meta.file_type().is_char_device() => Ok(()),
        Ok(meta) if meta.file_type().is_block_device() => {
            unusable(format!("{shown} is a block device: for passthrough name the character node beside it (/dev/ng0n1 for /dev/nvme0n1)"))
        }
        Ok(_) => unusable(format!("{shown} is not a device")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let what = format!("{shown} does not exist: there is no such NVMe namespace, or the kernel is older than 5.13 (ls /dev/ng*)");
            Err(OpenError::refused(what, &error))
        }
        Err(error) => Err(OpenError::system(format!("looking at {shown}"), error)),
    }
}

fn explain(path: &Path, error: io::Error) -> OpenError {
    let shown = path.display();
    match Errno::from_io_error(&error) {
        Some(Errno::ACCESS | Errno::PERM) => OpenError::refused(
            format!(
                "{shown} may not be opened by this user: give it the node (chown, or a udev rule), or open it read-only (ls -l {shown})"
            ),
            &error,
        ),
        _ => OpenError::system(format!("opening {shown}"), error),
    }
}

/// Returns the name of the block device of the same namespace: nvme0n1 for /dev/ng0n1.
fn disk_of(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    Some(format!("nvme{}", path.file_name()?.to_str()?.strip_prefix("ng")?))
}

fn geometry(
    path: &Path,
    namespace: &Namespace,
    controller: &Controller,
    queue: Option<&QueueAttributes>,
    read_only: bool,
) -> Result<Geometry, OpenError> {
    if namespace.metadata_bytes > 0 {
        return Err(OpenError::Unusable(format!(
            "{} keeps {} bytes of metadata with each block, which nothing here fills: format the namespace without (nvme format --lbaf)",
            path.display(),
            namespace.metadata_bytes
        )));
    }
    if namespace.blocks == 0 || !(512..=65_536).contains(&namespace.block_bytes) {
        return Err(OpenError::Unusable(format!(
            "{} says it has {} blocks of {} bytes: nothing that can be used",
            path.display(),
            namespace.blocks,
            namespace.block_bytes
        )));
    }
    let limit = queue.and_then(|queue| queue.number("max_hw_sectors_kb")).map_or(TRANSFER_BYTES, |kib| kib << 10);
    let segments = queue.and_then(|queue| queue.number("max_segments")).unwrap_or(TRANSFER_BYTES / PAGE_BYTES);
    // The kernel does not split a passthrough command: every page may be a segment.
    let bytes =
        limit.min(segments * PAGE_BYTES).min(TRANSFER_BYTES_MAX) / u64::from(namespace.block_bytes) * u64::from(namespace.block_bytes);
    Ok(Geometry {
        block_bytes: namespace.block_bytes,
        blocks: namespace.blocks,
        transfer_bytes_max: u32::try_from(bytes).unwrap_or(namespace.block_bytes),
        segments_max: u16::try_from(segments).unwrap_or(u16::MAX).min(SEGMENTS_MAX),
        memory_align: namespace.block_bytes.min(4096),
        volatile_cache: controller.volatile_cache,
        read_only: read_only || namespace.write_protected,
        discard: controller.deallocate && !read_only,
        write_zeroes: controller.write_zeroes && !read_only,
    })
}
