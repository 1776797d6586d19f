//! Reports what this machine has of io_uring and NVMe passthrough, and what is missing.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use io_uring::{IoUring, Probe as Opcodes, opcode};
use rustix::fs::{Access, access};
use rustix::io::Errno;

use super::ring::forbidden;
use crate::driver::sysfs::QueueAttributes;

/// The result of a probe, which displays as lines of text.
#[derive(Clone, Debug)]
pub struct Found {
    /// The release of the running kernel.
    pub kernel: String,
    /// The reason why io_uring is unavailable, or `None` if it is available.
    pub no_uring: Option<String>,
    /// Whether a queue for a single thread is cheaper than others (Linux 6.1).
    pub single_issuer: bool,
    /// Whether io_uring accepts passthrough commands to drives (Linux 5.19).
    pub commands: bool,
    /// The number of poll queues that the NVMe driver was loaded with.
    pub poll_queues: u32,
    /// The character nodes of NVMe namespaces.
    pub nodes: Vec<Node>,
}

/// A character node of an NVMe namespace.
#[derive(Clone, Debug)]
pub struct Node {
    /// The path of the node, such as /dev/ng0n1.
    pub path: PathBuf,
    /// The permission bits of the node.
    pub mode: u32,
    /// The user ID of the owner.
    pub uid: u32,
    /// The group ID of the node.
    pub gid: u32,
    /// Whether this process may read and write the node.
    pub usable: bool,
    /// The largest transfer in bytes, if the kernel reports it.
    pub transfer_bytes_max: Option<u64>,
}

/// Probes this machine, without opening a drive.
pub fn probe() -> Found {
    let mut opcodes = Opcodes::new();
    let no_uring = match IoUring::new(2) {
        Ok(uring) => uring.submitter().register_probe(&mut opcodes).err().map(|error| format!("its io_uring tells nothing: {error}")),
        Err(error) => Some(match Errno::from_io_error(&error) {
            Some(Errno::NOSYS) => "this kernel has no io_uring".into(),
            Some(Errno::PERM | Errno::ACCESS) => forbidden(),
            _ => format!("io_uring cannot be set up: {error}"),
        }),
    };
    Found {
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        single_issuer: no_uring.is_none() && single_issuer(),
        commands: no_uring.is_none() && opcodes.is_supported(opcode::UringCmd80::CODE),
        no_uring,
        poll_queues: poll_queues(),
        nodes: nodes(Path::new("/dev")),
    }
}

/// Returns whether io_uring accepts passthrough commands to drives.
pub(crate) fn has_commands() -> bool {
    let mut opcodes = Opcodes::new();
    let asked = IoUring::new(2).and_then(|uring| uring.submitter().register_probe(&mut opcodes));
    asked.is_ok() && opcodes.is_supported(opcode::UringCmd80::CODE)
}

/// Returns the number of poll queues that the NVMe driver was loaded with.
pub(crate) fn poll_queues() -> u32 {
    fs::read_to_string("/sys/module/nvme/parameters/poll_queues").ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

fn single_issuer() -> bool {
    IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(2).is_ok_and(|_: IoUring| true)
}

fn nodes(dir: &Path) -> Vec<Node> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut nodes: Vec<Node> = entries.filter_map(|entry| node(&entry.path())).collect();
    nodes.sort_by(|a, b| a.path.cmp(&b.path));
    nodes
}

fn node(path: &Path) -> Option<Node> {
    let rest = path.file_name()?.to_str()?.strip_prefix("ng")?;
    if !rest.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let meta = fs::metadata(path).ok()?;
    let queue = QueueAttributes::of_disk(&format!("nvme{rest}"));
    Some(Node {
        path: path.to_owned(),
        mode: meta.mode() & 0o777,
        uid: meta.uid(),
        gid: meta.gid(),
        usable: access(path, Access::READ_OK | Access::WRITE_OK).is_ok(),
        transfer_bytes_max: queue.and_then(|queue| queue.number("max_hw_sectors_kb")).map(|kib| kib << 10),
    })
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let uring = self.no_uring.as_ref().map_or("yes".into(), |why| format!("no: {why}; files are used by threads that block"));
        writeln!(f, "io_uring: {uring} (Linux {})", self.kernel)?;
        if self.no_uring.is_none() {
            let cheap = if self.single_issuer { "yes" } else { "no: needs Linux 6.1" };
            writeln!(f, "cheaper queues for one thread: {cheap}")?;
        }
        match (self.nodes.is_empty(), self.commands) {
            (true, _) => writeln!(f, "NVMe passthrough: no NVMe node (/dev/ng0n1) here"),
            (false, false) => writeln!(f, "NVMe passthrough: no: needs io_uring of Linux 5.19"),
            (false, true) => writeln!(f, "NVMe passthrough: yes"),
        }?;
        for node in &self.nodes {
            writeln!(f, "  {node}")?;
        }
        match self.poll_queues {
            _ if self.nodes.is_empty() => Ok(()),
            0 => writeln!(f, "polling NVMe drives: no: the module nvme was loaded without poll_queues (nvme.poll_queues=1)"),
            count => writeln!(f, "polling NVMe drives: yes, {count} queues"),
        }
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usable = if self.usable { "usable" } else { "not for this user: chown it, or add a udev rule" };
        write!(f, "{}: {usable} (mode {:04o}, uid {}, gid {})", self.path.display(), self.mode, self.uid, self.gid)?;
        match self.transfer_bytes_max {
            Some(bytes) => write!(f, ", transfers up to {} KiB", bytes >> 10),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_is_missing_is_said() {
        let node = Node { path: "/dev/ng0n1".into(), mode: 0o600, uid: 0, gid: 0, usable: false, transfer_bytes_max: Some(512 << 10) };
        let mut found =
            Found { kernel: "6.1.0".into(), no_uring: None, single_issuer: true, commands: true, poll_queues: 0, nodes: vec![node] };
        let text = found.to_string();
        for words in ["io_uring: yes (Linux 6.1.0)", "not for this user", "mode 0600", "up to 512 KiB", "nvme.poll_queues=1"] {
            assert!(text.contains(words), "{words} is not in {text}");
        }
        (found.no_uring, found.nodes) = (Some("switched off".into()), Vec::new());
        let text = found.to_string();
        assert!(text.contains("no: switched off") && text.contains("no NVMe node"), "{text}");
    }

    #[test]
    fn looking_harms_nothing() {
        assert!(probe().to_string().contains("NVMe passthrough"));
    }
}
