//! The name of a cache SSD: a path, or a controller with a namespace such as `nvme:0000:03:00.0/1`.

use std::path::{Path, PathBuf};

use nvme::named::FunctionName;

/// Returns the controller and the namespace that the name of an SSD means. None: it is a path.
pub fn parse(ssd: &Path) -> Option<(FunctionName, u32)> {
    FunctionName::parse(ssd.to_str()?)
}

/// Returns whether a name is meant to be a controller, valid or not.
pub fn is_meant(ssd: &Path) -> bool {
    ssd.to_str().is_some_and(FunctionName::is_meant)
}

/// Returns the name without reference to the working directory. A controller with its namespace has exactly one such name.
pub fn absolute(ssd: &Path) -> PathBuf {
    let whole = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match parse(ssd) {
        Some((FunctionName::VfioUser(socket), namespace)) => format!("{}/{namespace}", FunctionName::VfioUser(whole(&socket))).into(),
        Some((function, namespace)) => format!("{function}/{namespace}").into(),
        None if is_meant(ssd) => ssd.to_owned(),
        None => whole(ssd),
    }
}
