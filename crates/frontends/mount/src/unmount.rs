//! Taking a mount away, as root or through fusermount3.

use std::path::Path;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

/// The reason why the mount could not be unmounted.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct UnmountError {
    /// Whether files of the mount are still open.
    pub busy: bool,
    /// The error message of the kernel or of fusermount3.
    pub text: String,
}

/// Unmounts a path. `lazily`: it disappears at once, and ends when no file of it is open any more.
pub fn unmount(path: &Path, lazily: bool) -> Result<(), UnmountError> {
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(path, flags) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => by_helper(path, lazily),
        Err(error) => Err(UnmountError { busy: error == Errno::BUSY, text: error.to_string() }),
    }
}

fn by_helper(path: &Path, lazily: bool) -> Result<(), UnmountError> {
    let mut command = std::process::Command::new("fusermount3");
    command.arg(if lazily { "-uz" } else { "-u" }).arg("--").arg(path);
    match command.output() {
        Ok(out) if out.status.success() => Ok(()),
        Ok(out) => {
            let text = String::from_utf8_lossy(&out.stderr).trim().to_owned();
            Err(UnmountError { busy: text.contains("busy"), text })
        }
        Err(error) => Err(UnmountError { busy: false, text: format!("fusermount3: {error} (install fuse3)") }),
    }
}
