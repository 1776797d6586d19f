//! The name of a pair in the kernel's list of mounts: `SSD:HDD`.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use cachedfs::unescape_octal;
use rustix::fs::{AtFlags, StatxFlags, statx};

/// File system type as mount(8) shows it.
pub const FS_TYPE: &str = "fuse.hotshelf";

/// Both directories in one name; `:` `,` and `\` in them get a backslash.
pub fn source_name(ssd: &Path, hdd: &Path) -> OsString {
    let mut name = Vec::new();
    for (n, path) in [ssd, hdd].into_iter().enumerate() {
        if n > 0 {
            name.push(b':');
        }
        for byte in path.as_os_str().as_bytes() {
            if matches!(byte, b':' | b'\\') {
                name.push(b'\\');
            }
            name.push(*byte);
        }
    }
    OsString::from_vec(name)
}

/// The directories in a name made by [`source_name`].
pub fn parse_source_name(name: &[u8]) -> Option<(PathBuf, PathBuf)> {
    let mut parts = vec![Vec::new()];
    let mut bytes = name.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => parts.last_mut()?.push(*bytes.next()?),
            b':' => parts.push(Vec::new()),
            other => parts.last_mut()?.push(*other),
        }
    }
    let [ssd, hdd] = <[Vec<u8>; 2]>::try_from(parts).ok()?;
    Some((OsString::from_vec(ssd).into(), OsString::from_vec(hdd).into()))
}

/// Describes one mounted pair, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The directory where the pair is mounted.
    pub mountpoint: PathBuf,
    /// The directory on the fast device.
    pub ssd: PathBuf,
    /// The directory on the slow device.
    pub hdd: PathBuf,
    /// The user that mounted it, according to the kernel. Its daemon runs as this user.
    pub owner: u32,
}

/// The mounted pairs, from the kernel's list (proc(5), mountinfo).
pub fn mounted() -> std::io::Result<Vec<MountEntry>> {
    mounted_as(FS_TYPE)
}

/// Returns the mounts of one type of file system, whose sources name two directories.
///
/// # Errors
/// The kernel's list cannot be read.
pub fn mounted_as(fs_type: &str) -> std::io::Result<Vec<MountEntry>> {
    Ok(parse_mountinfo(&std::fs::read("/proc/self/mountinfo")?, fs_type))
}

/// Whether a path is a mount whose daemon is gone.
pub fn is_dead(path: &Path) -> bool {
    std::fs::metadata(path).is_err_and(|error| error.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error()))
}

/// The path without symbolic links, but for the last name: that cannot be looked at when it is a dead mount.
pub fn without_following(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match (absolute.parent().map(std::fs::canonicalize), absolute.file_name()) {
        (Some(Ok(parent)), Some(name)) => parent.join(name),
        _ => absolute,
    }
}

/// The type of the file system that is mounted on exactly this directory, if one is.
pub fn type_at(path: &Path) -> Option<String> {
    last_at(path, |fields| fields.get(fields.iter().position(|field| *field == b"-")? + 1).copied())
}

/// The device number of the file system that is mounted on exactly this directory, as `major:minor`. Asks the kernel's list,
/// not the file system.
pub fn device_at(path: &Path) -> Option<String> {
    last_at(path, |fields| fields.get(2).copied())
}

/// The options of the mount on exactly this directory, of the mount and of its file system, as the kernel lists them.
pub fn options_at(path: &Path) -> Option<Vec<String>> {
    last_fields_at(path, |fields| {
        let own = fields.get(fields.iter().position(|field| *field == b"-")? + 3)?;
        let both = [*fields.get(5)?, *own];
        Some(
            both.iter()
                .flat_map(|list| list.split(|byte| *byte == b','))
                .map(|option| String::from_utf8_lossy(option).into_owned())
                .collect(),
        )
    })
}

/// What mount(8) shows as the source of the file system there.
pub fn source_at(path: &Path) -> Option<PathBuf> {
    let field = |fields: &[&[u8]]| Some(unescape_octal(fields.get(fields.iter().position(|field| *field == b"-")? + 2)?));
    last_fields_at(path, field).map(|source| OsString::from_vec(source).into())
}

/// Returns what an open directory is of: type and source of its file system, and what of it is mounted there, as mountinfo has them.
pub fn file_system_of(directory: impl AsFd) -> Option<String> {
    let found = statx(directory, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
    let text = std::fs::read("/proc/self/mountinfo").ok()?;
    let id = found.stx_mnt_id.to_string();
    text.split(|byte| *byte == b'\n').find_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let dash = fields.iter().position(|field| *field == b"-").filter(|_| fields[0] == id.as_bytes())?;
        let words = [fields.get(dash + 1)?, fields.get(dash + 2)?, fields.get(3)?];
        Some(words.map(|word| String::from_utf8_lossy(word).into_owned()).join(" "))
    })
}

fn last_at(path: &Path, pick: impl for<'a> Fn(&[&'a [u8]]) -> Option<&'a [u8]>) -> Option<String> {
    last_fields_at(path, |fields| pick(fields).map(|field| String::from_utf8_lossy(field).into_owned()))
}

/// Of the last line of the kernel's list for this directory.
fn last_fields_at<T>(path: &Path, pick: impl Fn(&[&[u8]]) -> Option<T>) -> Option<T> {
    let text = std::fs::read("/proc/self/mountinfo").ok()?;
    text.split(|byte| *byte == b'\n').rev().find_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        (unescape_octal(fields.get(4)?) == path.as_os_str().as_bytes()).then(|| pick(&fields)).flatten()
    })
}

fn parse_mountinfo(text: &[u8], fs_type: &str) -> Vec<MountEntry> {
    let mut all = Vec::new();
    for line in text.split(|byte| *byte == b'\n') {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let Some(dash) = fields.iter().position(|field| *field == b"-") else { continue };
        let (Some(at), Some(kind), Some(source)) = (fields.get(4), fields.get(dash + 1), fields.get(dash + 2)) else { continue };
        if *kind != fs_type.as_bytes() {
            continue;
        }
        let options = fields.get(dash + 3).copied().unwrap_or_default();
        let owner = options.split(|byte| *byte == b',').find_map(|option| option.strip_prefix(b"user_id="));
        let owner = owner.and_then(|uid| std::str::from_utf8(uid).ok()?.parse().ok());
        if let (Some((ssd, hdd)), Some(owner)) = (parse_source_name(&unescape_octal(source)), owner) {
            all.push(MountEntry { mountpoint: OsString::from_vec(unescape_octal(at)).into(), ssd, hdd, owner });
        }
    }
    all
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn odd_paths_survive() {
        for (ssd, hdd) in [("/a", "/b"), ("/a:b\\", "/c d,e"), ("/\u{fc}", "/x::y")] {
            let name = source_name(Path::new(ssd), Path::new(hdd));
            assert_eq!(parse_source_name(name.as_bytes()), Some((ssd.into(), hdd.into())));
        }
        assert_eq!(parse_source_name(b"/only"), None);
    }

    #[test]
    fn a_mount_is_found_in_the_kernels_list() {
        let line = b"36 35 0:50 / /mnt/my\\040pool rw,nosuid - fuse.hotshelf /ssd:/hdd rw,user_id=1000,group_id=0\n\
            25 1 8:1 / / rw - ext4 /dev/sda1 rw\n";
        let found = parse_mountinfo(line, FS_TYPE);
        assert_eq!(found, [MountEntry { mountpoint: "/mnt/my pool".into(), ssd: "/ssd".into(), hdd: "/hdd".into(), owner: 1000 }]);
    }
}
