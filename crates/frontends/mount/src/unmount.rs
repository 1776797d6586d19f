//! Taking a mount away, as root or through fusermount3.

use std::path::Path;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

/// Why it is still there.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct UnmountError {
    /// Something is open below it.
    pub busy: bool,
    /// The error message of the kernel or of fusermount3.
    pub text: String,
}

/// Unmounts; `lazily`: out of sight at once, ended when nothing is open any more.
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
