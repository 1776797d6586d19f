//! Names. A full name is `IMAGE//PATH`, so that whatever SQLite makes of it (`-journal`, `-wal`, `-mj...`) still says which image.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libsqlite3_sys::SQLITE_CANTOPEN;

use crate::error::{Outcome, VfsError};

/// Where the image is, if the name does not say.
pub const IMAGE_VARIABLE: &str = "HOTSHELF_IMAGE";

/// A full name taken apart: image, and path in it.
pub fn parts(full: &[u8]) -> Option<(&Path, &[u8])> {
    let at = full.windows(2).skip(1).position(|two| two == b"//")? + 1;
    Some((Path::new(OsStr::from_bytes(&full[..at])), &full[at + 1..]))
}

/// The full name of what was given: with an image in it, or one from the URI, or the environment's.
pub fn full(name: &[u8], image: Option<PathBuf>, exists: impl Fn(&Path) -> Option<PathBuf>) -> Outcome<Vec<u8>> {
    let (image, inside) = match parts(name) {
        Some((image, inside)) => (Some(image.to_owned()), inside),
        None => (image.or_else(|| shm::environment::path(IMAGE_VARIABLE)), name),
    };
    let Some(image) = image else {
        let words = format!(
            "no image: open file:/PATH?vfs=hotshelf&image=/PATH/TO/IMAGE, or set {IMAGE_VARIABLE}; `hotshelf fs mkfs IMAGE` makes one"
        );
        return Err(VfsError::new(SQLITE_CANTOPEN, words));
    };
    let Some(image) = exists(&image) else {
        let words = format!("{}: there is no such image: `hotshelf fs mkfs` makes one", image.display());
        return Err(VfsError::new(SQLITE_CANTOPEN, words));
    };
    let mut full = image.as_os_str().as_bytes().to_vec();
    full.push(b'/');
    full.extend(clean(inside));
    Ok(full)
}

/// From the top, without empty parts, `.` and `..`.
fn clean(path: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.iter().flat_map(|part| [b"/", *part].concat()).collect()
}

#[cfg(test)]
mod test {
    use super::*;

    fn given(name: &str, image: Option<&str>) -> Option<String> {
        let full = full(name.as_bytes(), image.map(PathBuf::from), |path| path.starts_with("/i").then(|| path.to_owned()));
        full.ok().map(|full| String::from_utf8(full).expect("text"))
    }

    #[test]
    fn a_full_name_says_both_and_stays_as_it_is() {
        assert_eq!(given("/db", Some("/i/a.img")).as_deref(), Some("/i/a.img//db"));
        assert_eq!(given("db", Some("/i/a.img")).as_deref(), Some("/i/a.img//db"));
        assert_eq!(given("/i/a.img//x/../db", None).as_deref(), Some("/i/a.img//db"));
        assert_eq!(given("/i/a.img//./x//db", Some("/i/other")).as_deref(), Some("/i/a.img//x/db"));
        assert_eq!(given("/db", Some("/nowhere")), None);
        assert_eq!(parts(b"/i/a.img//x/db-mj1"), Some((Path::new("/i/a.img"), &b"/x/db-mj1"[..])));
        assert_eq!(parts(b"//x"), None);
    }
}
