//! Calls by mount(8), as its helper, become our own command line.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::Usage;

/// Rewrites a call by mount(8) as our own command line; `None`: it is not one.
///
/// `mount.fuse.hotshelf SOURCE MOUNTPOINT [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]` by a link of that name; and
/// `hotshelf SOURCE MOUNTPOINT [-o OPTIONS]` by mount.fuse3(8) where there is no such link. No command contains a slash.
pub fn as_own_command(given: &[OsString]) -> Option<anyhow::Result<Vec<OsString>>> {
    let name = Path::new(given.first()?).file_name()?.to_string_lossy().into_owned();
    let by_name = name == "mount.fuse.hotshelf" || name == "mount.hotshelf";
    let by_source = given.get(1).is_some_and(|word| word.as_bytes().starts_with(b"/"));
    (by_name || by_source).then(|| rewrite(given))
}

fn rewrite(given: &[OsString]) -> anyhow::Result<Vec<OsString>> {
    let mut places = Vec::new();
    let mut out: Vec<OsString> = vec![given[0].clone(), "mount".into()];
    let mut rest = given[1..].iter();
    while let Some(word) = rest.next() {
        match word.as_bytes() {
            b"-o" => {
                out.push("-o".into());
                out.push(rest.next().cloned().unwrap_or_default());
            }
            b"-f" => out.push("--dry-run".into()),
            b"-n" | b"-s" | b"-v" => {}
            b"-t" | b"-N" => drop(rest.next()),
            b"--ready-pipe" => out.push(word.clone()),
            other if other.starts_with(b"-") => {
                let usage = "usage: hotshelf SSD:HDD MOUNTPOINT [-o OPTIONS], as mount(8) calls it";
                return Err(Usage(format!("unexpected argument `{}`: {usage}", word.display())).into());
            }
            _ => places.push(word.clone()),
        }
    }
    let [source, mountpoint] = places.as_slice() else {
        return Err(Usage("usage: hotshelf SSD:HDD MOUNTPOINT [-o OPTIONS], as mount(8) calls it".into()).into());
    };
    let (ssd, hdd) = mount::source::parse_source_name(source.as_bytes())
        .ok_or_else(|| Usage(format!("{}: the source must be SSD_DIR:HDD_DIR", source.display())))?;
    out.extend(["--ssd".into(), ssd.into(), "--hdd".into(), hdd.into(), mountpoint.clone()]);
    Ok(out)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_mount_helpers_line_becomes_ours() {
        let line = ["/sbin/mount.fuse.hotshelf", "/a:/b", "/m", "-o", "rw,allow_other,high=70%"].map(OsString::from);
        let out = as_own_command(&line).expect("a helper").expect("rewritten");
        let want = ["/sbin/mount.fuse.hotshelf", "mount", "-o", "rw,allow_other,high=70%", "--ssd", "/a", "--hdd", "/b", "/m"];
        assert_eq!(out, want.map(OsString::from));
        assert!(as_own_command(&[OsString::from("/usr/bin/hotshelf")]).is_none());
    }

    #[test]
    fn mount_fuse3_calls_the_program_itself() {
        let line = ["hotshelf", "/a:/b", "/m", "-o", "rw,dev,suid"].map(OsString::from);
        let out = as_own_command(&line).expect("a helper").expect("rewritten");
        assert_eq!(out, ["hotshelf", "mount", "-o", "rw,dev,suid", "--ssd", "/a", "--hdd", "/b", "/m"].map(OsString::from));
        for (line, word) in [
            (&["hotshelf", "/a:/b"][..], "usage"),
            (&["hotshelf", "/a", "/m"], "must be SSD_DIR:HDD_DIR"),
            (&["hotshelf", "/a:/b", "/m", "--turbo"], "--turbo"),
        ] {
            let line: Vec<OsString> = line.iter().map(OsString::from).collect();
            let error = as_own_command(&line).expect("a helper").expect_err("refused");
            assert!(error.to_string().contains(word), "{error}");
        }
        assert!(as_own_command(&["hotshelf", "status", "/m"].map(OsString::from)).is_none());
    }

    #[test]
    fn a_fake_mount_does_nothing_and_a_namespace_is_no_place() {
        let line = ["mount.fuse.hotshelf", "/a:/b", "/m", "-f", "-n", "-N", "/proc/1/ns/mnt", "-t", "fuse.hotshelf"].map(OsString::from);
        let out = as_own_command(&line).expect("a helper").expect("rewritten");
        assert_eq!(out, ["mount.fuse.hotshelf", "mount", "--dry-run", "--ssd", "/a", "--hdd", "/b", "/m"].map(OsString::from));
    }
}
