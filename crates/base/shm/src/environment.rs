//! The environment, which a program that runs with more rights than its caller must not obey.
//!
//! A set-uid, set-gid or file-capability program is started by a user whose rights are smaller than its own. That user chooses every
//! variable. The kernel marks such a start with `AT_SECURE` (getauxval(3)); then every hotshelf variable reads as not set. This module is
//! the only place of the product that reads the environment (`cargo xtask tidy`, rule `environment`).
#![cfg_attr(not(miri), expect(unsafe_code, reason = "getauxval(3), which no safe crate offers"))]

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// Returns whether the kernel started this program with more rights than its caller has.
pub fn is_secure_execution() -> bool {
    #[cfg(miri)]
    return false;
    // SAFETY: reads one value of the auxiliary vector, which does not change; any type is a valid argument.
    #[cfg(not(miri))]
    return unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
}

/// Returns the value of a variable; `None` if it is not set, or if this is a secure execution.
pub fn var_os(name: impl AsRef<OsStr>) -> Option<OsString> {
    if is_secure_execution() { None } else { std::env::var_os(name) }
}

/// Returns the value of a variable as text; `None` also if it is not UTF-8.
pub fn var(name: impl AsRef<OsStr>) -> Option<String> {
    var_os(name)?.into_string().ok()
}

/// Returns a path from a variable; `None` if it is empty.
pub fn path(name: impl AsRef<OsStr>) -> Option<PathBuf> {
    var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Returns an absolute path from a variable; `None` if it is empty or relative, as the XDG base directory specification demands.
pub fn absolute_path(name: impl AsRef<OsStr>) -> Option<PathBuf> {
    path(name).filter(|path| path.is_absolute())
}

/// Returns the directory for temporary files: `$TMPDIR`, else /tmp.
pub fn temporary_dir() -> PathBuf {
    path("TMPDIR").unwrap_or_else(|| PathBuf::from("/tmp"))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn an_ordinary_start_reads_the_environment() {
        assert!(!is_secure_execution());
        assert_eq!(var_os("PATH"), std::env::var_os("PATH"));
        assert_eq!(var("HOTSHELF_NOT_SET"), None);
        assert_eq!(absolute_path("PATH").is_some(), std::env::var("PATH").is_ok_and(|path| path.starts_with('/')));
    }
}
