//! `hotshelf mount`, also as mount(8)'s helper.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::Context;
use hybridfs::{Config, Size};
use mount::{Options, PassthroughMode};

use crate::args::MountArgs;
use crate::{Usage, config_file, daemon};

/// Options mount(8), fstab and systemd add that are nobody's business here.
const IGNORED: &[&str] = &["rw", "user", "users", "nouser", "noauto", "auto", "_netdev", "nofail", "defaults", "async", "group", "owner"];

/// `mount.fuse.hotshelf SOURCE MOUNTPOINT [-o OPTIONS]`, rewritten as our own command line.
pub fn as_mount_helper(given: &[OsString]) -> Option<anyhow::Result<Vec<OsString>>> {
    let name = Path::new(given.first()?).file_name()?.to_string_lossy().into_owned();
    (name == "mount.fuse.hotshelf" || name == "mount.hotshelf").then(|| rewrite(given))
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
            b"-n" | b"-s" | b"-v" | b"-f" => {}
            b"-t" => drop(rest.next()),
            _ => places.push(word.clone()),
        }
    }
    let [source, mountpoint] = places.as_slice() else {
        return Err(Usage("usage: mount.fuse.hotshelf SSD:HDD MOUNTPOINT [-o OPTIONS]".into()).into());
    };
    let (ssd, hdd) = mount::source::parse_source_name(source.as_bytes())
        .ok_or_else(|| Usage(format!("{}: the source must be SSD_DIR:HDD_DIR", source.display())))?;
    out.extend(["--ssd".into(), ssd.into(), "--hdd".into(), hdd.into(), mountpoint.clone()]);
    Ok(out)
}

/// Mounts, in the background unless asked otherwise.
pub fn mount(mut args: MountArgs) -> anyhow::Result<bool> {
    if let Some(path) = args.config.clone() {
        config_file::apply(&path, &mut args)?;
    }
    let mut flags = mount::MountFlags::default();
    for option in std::mem::take(&mut args.options) {
        apply_option(&option, &mut args, &mut flags)?;
    }
    let options = options(&args, flags)?;
    if !args.foreground && !args.ready_pipe {
        return daemon::in_background(&args, &options);
    }
    daemon::start_log(&args, &options)?;
    let announce = args.ready_pipe;
    mount::run(options, move || {
        if announce {
            daemon::announce_ready();
        }
    })?;
    Ok(true)
}

fn apply_option(option: &str, args: &mut MountArgs, flags: &mut mount::MountFlags) -> anyhow::Result<()> {
    let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
    let need = || value.ok_or_else(|| Usage(format!("-o {name} needs a value: {name}=...")));
    let bad = |error: hybridfs::config::BadSetting| Usage(format!("-o {name}: {error}"));
    match name.replace('_', "-").as_str() {
        "" => {}
        "ro" | "read-only" => args.read_only = true,
        "allow-other" => args.allow_other = true,
        "suid" => flags.suid = true,
        "nosuid" => flags.suid = false,
        "dev" => flags.dev = true,
        "nodev" => flags.dev = false,
        "exec" => flags.noexec = false,
        "noexec" => flags.noexec = true,
        "atime" | "relatime" => flags.noatime = false,
        "noatime" => flags.noatime = true,
        "policy" => args.policy = Some(need()?.into()),
        "high" => args.high = Some(need()?.parse().map_err(bad)?),
        "low" => args.low = Some(need()?.parse().map_err(bad)?),
        "reserve" => args.reserve = Some(need()?.parse().map_err(bad)?),
        "min-file-size" => args.min_file_size = Some(need()?.parse().map_err(bad)?),
        "max-file-size" => args.max_file_size = Some(need()?.parse().map_err(bad)?),
        "promotion" => args.promotion = Some(need()?.parse().map_err(bad)?),
        "move-rate" => args.move_rate = Some(need()?.parse().map_err(bad)?),
        "pin" => args.pin.push(need()?.into()),
        "hdd-only" => args.hdd_only.push(need()?.into()),
        "single-thread" => args.single_thread = true,
        "no-passthrough" => args.no_passthrough = true,
        "adopt" => args.adopt = true,
        "log-file" => args.log_file = Some(need()?.into()),
        "config" => config_file::apply(Path::new(need()?), args)?,
        _ if IGNORED.contains(&name) || name.starts_with("x-") || name.starts_with("comment") => {}
        _ => return Err(Usage(format!("unknown mount option `{option}`: see `hotshelf mount --help`")).into()),
    }
    Ok(())
}

fn options(args: &MountArgs, flags: mount::MountFlags) -> anyhow::Result<Options> {
    let need = |dir: &Option<std::path::PathBuf>, what: &str| {
        dir.clone().ok_or_else(|| Usage(format!("{what} is missing: hotshelf mount --ssd DIR --hdd DIR MOUNTPOINT")))
    };
    let bytes = |size: Size, what: &str| match size {
        Size::Bytes(bytes) => Ok(bytes),
        Size::Percent(_) => Err(Usage(format!("{what} must be a size such as 64KiB"))),
    };
    let absolute = |path: std::path::PathBuf| std::path::absolute(&path).with_context(|| format!("{}", path.display()));
    let defaults = Config::default();
    let hybrid = Config {
        ssd: absolute(need(&args.ssd, "--ssd")?)?,
        hdd: absolute(need(&args.hdd, "--hdd")?)?,
        policy: args.policy.clone().unwrap_or(defaults.policy),
        high: args.high.unwrap_or(defaults.high),
        low: args.low.or(args.high.and_then(ten_below)).unwrap_or(defaults.low),
        reserve: args.reserve.unwrap_or(defaults.reserve),
        min_file_bytes: args.min_file_size.map_or(Ok(0), |size| bytes(size, "--min-file-size"))?,
        max_file: args.max_file_size,
        promotion: args.promotion.unwrap_or(defaults.promotion),
        pin_rules: args.pin.clone(),
        hdd_rules: args.hdd_only.clone(),
        move_bytes_per_s: args.move_rate.map(|size| bytes(size, "--move-rate")).transpose()?,
        ghost_window_s: args.touch_window.unwrap_or(defaults.ghost_window_s),
        adopt: args.adopt,
        read_only: args.read_only,
    };
    let mut options = Options::new(hybrid, absolute(need(&args.mountpoint, "MOUNTPOINT")?)?);
    options.allow_other = args.allow_other;
    options.threads = if args.single_thread { 1 } else { args.threads.map_or(options.threads, usize::from) };
    options.clone_fd = args.clone_fd;
    options.passthrough = if args.no_passthrough { PassthroughMode::Off } else { PassthroughMode::Auto };
    options.cache_ttl_s = args.cache_ttl.unwrap_or(options.cache_ttl_s);
    options.flags = flags;
    Ok(options)
}

/// The low mark that goes with a high mark when only that is given.
fn ten_below(high: Size) -> Option<Size> {
    match high {
        Size::Percent(share) => Some(Size::Percent(share.saturating_sub(10))),
        Size::Bytes(bytes) => Some(Size::Bytes(bytes / 10 * 9)),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_mount_helpers_line_becomes_ours() {
        let line = ["/sbin/mount.fuse.hotshelf", "/a:/b", "/m", "-o", "rw,allow_other,high=70%"].map(OsString::from);
        let out = as_mount_helper(&line).expect("a helper").expect("rewritten");
        let want = ["/sbin/mount.fuse.hotshelf", "mount", "-o", "rw,allow_other,high=70%", "--ssd", "/a", "--hdd", "/b", "/m"];
        assert_eq!(out, want.map(OsString::from));
        assert!(as_mount_helper(&[OsString::from("/usr/bin/hotshelf")]).is_none());
    }

    #[test]
    fn mount_options_set_what_flags_set_and_unknown_ones_are_told() {
        let (mut args, mut flags) = (MountArgs::default(), mount::MountFlags::default());
        for option in ["rw", "allow_other", "high=70%", "noexec", "x-systemd.automount"] {
            apply_option(option, &mut args, &mut flags).expect("known");
        }
        assert!(args.allow_other && flags.noexec);
        assert_eq!(args.high, Some(Size::Percent(70)));
        assert!(apply_option("turbo", &mut args, &mut flags).is_err());
        assert!(apply_option("high", &mut args, &mut flags).is_err());
    }
}
