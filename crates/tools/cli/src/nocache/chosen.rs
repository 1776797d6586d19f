//! Devices and paths in the form that the library reads; the header of its config.rs has the words.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use rustix::fs::{major, makedev, minor};

/// As many of each kind, and bytes, as the library has room for.
const MOST: usize = 64;
const BYTES: usize = 30 << 10;

/// Returns the value of the environment variable that selects files.
pub fn variable(devices: &[PathBuf], paths: &[PathBuf], no_io_uring: bool) -> anyhow::Result<String> {
    let mut numbers = BTreeSet::new();
    let mut others = Vec::new();
    for device in devices {
        add_device(device, &mut numbers)?;
    }
    for path in paths {
        let found = path.canonicalize().map_err(|error| anyhow!("{} cannot be used: {error}", path.display()))?;
        let status = fs::metadata(&found).with_context(|| found.display().to_string())?;
        if status.file_type().is_block_device() {
            add_device(&found, &mut numbers)?;
            continue;
        }
        in_memory(&found)?;
        others.push(if status.is_dir() { format!("t{}", plain(&found)) } else { format!("f{}:{}", status.dev(), status.ino()) });
    }
    let mut words: Vec<String> = numbers.iter().map(|device| format!("d{}:{}", major(*device), minor(*device))).collect();
    words.append(&mut others);
    for kind in ['d', 't', 'f'] {
        let count = words.iter().filter(|word| word.starts_with(kind)).count();
        if count > MOST {
            return Err(anyhow!("{count} devices, files or directories are too many: at most {MOST} of each; name what they lie on"));
        }
    }
    if words.is_empty() {
        words.push("all".into());
    }
    if no_io_uring {
        words.push("u".into());
    }
    let text = words.join(",");
    if text.len() > BYTES {
        return Err(anyhow!("the paths are too long together: at most {BYTES} bytes; name what they lie on"));
    }
    Ok(text)
}

fn in_memory(path: &Path) -> anyhow::Result<()> {
    let names = [(0x0102_1994, "tmpfs"), (0x8584_58f6, "ramfs"), (0x9584_58f6, "hugetlbfs"), (0x9fa0, "proc"), (0x6265_6572, "sysfs")];
    let kind = rustix::fs::statfs(path).with_context(|| path.display().to_string())?.f_type as u32;
    match names.iter().find(|(magic, _)| *magic == kind) {
        Some((_, name)) => Err(anyhow!("{} is on {name}: its pages are the file itself, there is no device to go to", path.display())),
        None => Ok(()),
    }
}

/// A path in bytes that need no care; others as `%XX`.
fn plain(path: &Path) -> String {
    let mut text = String::new();
    for byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-+@".contains(byte) {
            text.push(char::from(*byte));
        } else {
            let _ = write!(text, "%{byte:02x}");
        }
    }
    text
}

fn add_device(path: &Path, numbers: &mut BTreeSet<u64>) -> anyhow::Result<()> {
    let status = fs::metadata(path).map_err(|error| anyhow!("{} cannot be used: {error}", path.display()))?;
    if !status.file_type().is_block_device() {
        return Err(anyhow!("{} is no block device: name files and directories with --path", path.display()));
    }
    add_with_those_on_it(status.rdev(), numbers);
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let on_it =
        |source: &str| fs::metadata(source).is_ok_and(|source| source.file_type().is_block_device() && numbers.contains(&source.rdev()));
    // The numbers of btrfs's files are not those of its device.
    let points: Vec<PathBuf> = mounts(&text).filter(|(source, _)| on_it(source)).map(|(_, point)| point).collect();
    numbers.extend(points.iter().filter_map(|point| fs::metadata(point).ok()).map(|point| point.dev()));
    Ok(())
}

/// The device, its partitions, and what is made of them (device mapper, RAID).
fn add_with_those_on_it(device: u64, numbers: &mut BTreeSet<u64>) {
    if !numbers.insert(device) {
        return;
    }
    let dir = PathBuf::from(format!("/sys/dev/block/{}:{}", major(device), minor(device)));
    let entries = |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let parts = entries(dir.clone()).filter(|entry| entry.join("partition").exists());
    for one in parts.chain(entries(dir.join("holders"))) {
        if let Some(number) = fs::read_to_string(one.join("dev")).ok().and_then(|text| number(text.trim())) {
            add_with_those_on_it(number, numbers);
        }
    }
}

fn number(text: &str) -> Option<u64> {
    let (major, minor) = text.split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// Source and mount point of each line.
fn mounts(text: &str) -> impl Iterator<Item = (&str, PathBuf)> {
    text.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        Some((right.split(' ').nth(1)?, PathBuf::from(left.split(' ').nth(4)?)))
    })
}

#[cfg(test)]
mod test {
    use std::path::{Path, PathBuf};

    use super::{mounts, number, plain, variable};

    #[test]
    fn nothing_chosen_is_everything() {
        assert_eq!(variable(&[], &[], false).expect("good"), "all");
        assert_eq!(variable(&[], &[], true).expect("good"), "all,u");
    }

    #[test]
    fn what_is_not_there_or_has_no_device_is_refused() {
        let refusal = |devices: &[&str], paths: &[&str]| {
            let all = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
            variable(&all(devices), &all(paths), false).expect_err("refused").to_string()
        };
        assert!(refusal(&["/nowhere"], &[]).contains("/nowhere"));
        assert!(refusal(&["/dev/null"], &[]).contains("no block device"));
        assert!(refusal(&[], &["/nowhere"]).contains("/nowhere"));
        assert!(refusal(&[], &["/proc/self/status"]).contains("on proc"));
    }

    #[test]
    fn paths_are_in_plain_bytes() {
        assert_eq!(plain(Path::new("/a b,c%/ü")), "/a%20b%2cc%25/%c3%bc");
    }

    #[test]
    fn lines_of_mounts_and_numbers_are_read() {
        let text = "36 25 7:3 / /mnt rw shared:1 - ext4 /dev/loop3 rw\nnonsense\n";
        assert_eq!(mounts(text).collect::<Vec<_>>(), [("/dev/loop3", PathBuf::from("/mnt"))]);
        assert_eq!(number("7:3"), Some(rustix::fs::makedev(7, 3)));
        assert_eq!(number("7"), None);
    }
}
