//! `hotshelf mount`, also with the options of mount(8) (`mount_helper.rs` reads its calls).

use std::path::Path;

use anyhow::Context;
use hybridfs::{Config, Size};
use indicatif::HumanBytes;
use mount::{Options, PassthroughMode};

use crate::hidden_files::{hides_files, warn_of_hidden};
use crate::mount_args::MountArgs;
use crate::mount_settings::{self, Layer, resolve};
use crate::{Usage, daemon};

/// Options mount(8), fstab and systemd add that are nobody's business here.
const IGNORED: &[&str] = &["user", "users", "nouser", "noauto", "auto", "_netdev", "nofail", "defaults", "async", "group", "owner"];

/// Mounts, in the background unless asked otherwise.
pub fn mount(given: &Layer) -> anyhow::Result<bool> {
    if given.list("options").iter().any(|option| option == "remount") {
        return remount(given);
    }
    let (args, flags) = settle(given)?;
    if let Some(cache) = &args.cache {
        return crate::cached_mount::mount(&args, cache, flags);
    }
    let options = options(&args, flags)?;
    daemon::log_filter(args.log_level.as_deref(), "mount")?;
    if args.dry_run {
        return Ok(true);
    }
    let hides = hides_files(&options.mountpoint);
    if !args.foreground && !args.ready_pipe {
        let mounted = daemon::in_background(&args, &options)?;
        warn_of_hidden(hides, &options.mountpoint);
        return Ok(mounted);
    }
    daemon::start_log(&args, &options)?;
    let (announce, at) = (args.ready_pipe, options.mountpoint.clone());
    mount::run(options, move || {
        if announce {
            daemon::announce_ready();
        } else {
            warn_of_hidden(hides, &at);
        }
    })?;
    Ok(true)
}

/// The flags of mount(8) that a remount changes, by the kernel.
const KERNEL_FLAGS: &[(&str, &str, rustix::mount::MountFlags)] = &[
    ("ro", "rw", rustix::mount::MountFlags::RDONLY),
    ("nosuid", "suid", rustix::mount::MountFlags::NOSUID),
    ("nodev", "dev", rustix::mount::MountFlags::NODEV),
    ("noexec", "exec", rustix::mount::MountFlags::NOEXEC),
];
/// What mount(8) repeats of a FUSE mount's options; nothing of it can be changed.
const REPEATED: &[&str] = &["user_id", "group_id", "default_permissions", "max_read", "blksize", "relatime", "subtype", "fsname"];

/// `mount -o remount,...`: changes flags of the mount and settings of its daemon, or refuses.
fn remount(given: &Layer) -> anyhow::Result<bool> {
    let at = given.value("mountpoint").map(Path::new).ok_or_else(|| Usage("-o remount needs the mount point".into()))?;
    let mounted = crate::talk::at_mountpoint(at)?;
    let there = mount::source::options_at(&mounted.mountpoint).unwrap_or_default();
    let has = |option: &str| there.iter().any(|there| there == option);
    let mut flags = rustix::mount::MountFlags::empty();
    for (on, _, flag) in KERNEL_FLAGS.iter().filter(|(on, _, _)| has(on)) {
        tracing::debug!(on, "is kept");
        flags |= *flag;
    }
    let before = flags;
    let mut changes = std::collections::BTreeMap::new();
    for option in &given.list("options") {
        let (name, value) = option.split_once('=').map_or((option.as_str(), None), |(name, value)| (name, Some(value)));
        let setting = name.replace('_', "-");
        if let Some((_, _, flag)) = KERNEL_FLAGS.iter().find(|(on, _, _)| *on == name) {
            flags |= *flag;
        } else if let Some((_, _, flag)) = KERNEL_FLAGS.iter().find(|(_, off, _)| *off == name) {
            flags -= *flag;
        } else if hybridfs::SETTINGS.contains(&setting.as_str()) {
            let value = value.ok_or_else(|| Usage(format!("-o {name} needs a value: {name}=...")))?;
            changes.insert(setting, value.to_owned());
        } else if !(name.is_empty()
            || name == "remount"
            || REPEATED.contains(&name)
            || IGNORED.contains(&name)
            || name.starts_with("x-")
            || has(option)
            || name == "atime" && !has("noatime"))
        {
            return Err(Usage(format!("-o remount cannot change {name}: unmount, and mount with it")).into());
        }
    }
    let read_only = rustix::mount::MountFlags::RDONLY;
    if before.contains(read_only) && !flags.contains(read_only) && crate::talk::status_of(&mounted)?.read_only {
        anyhow::bail!("{} was mounted read-only, and its daemon writes nothing: unmount it, and mount it without ro", at.display());
    }
    if !changes.is_empty() {
        crate::talk::set_on(&mounted, changes, false)?;
    }
    if flags != before {
        // The flag for access times stays unchanged: the daemon applies it.
        let times = if has("noatime") { rustix::mount::MountFlags::NOATIME } else { rustix::mount::MountFlags::empty() };
        rustix::mount::mount_remount(&mounted.mountpoint, flags | times, "")
            .map_err(std::io::Error::from)
            .with_context(|| format!("changing the flags of {} (only root may)", at.display()))?;
    }
    Ok(true)
}

/// Joins the settings of all places: a flag overrides `-o`, that the configuration file, and its keys override its `options`.
fn settle(given: &Layer) -> anyhow::Result<(MountArgs, mount::MountFlags)> {
    let mut flags = mount::MountFlags::default();
    let words = given.list("options");
    let options = from_options(&words, &mut flags)?;
    let Some(path) = given.value("config").or(options.value("config")).map(Path::new) else {
        return Ok((resolve(&[given, &options])?, flags));
    };
    let file = mount_settings::read_file(path)?;
    flags = mount::MountFlags::default();
    let inner = from_options(&file.list("options"), &mut flags)?;
    if inner.value("config").is_some() {
        return Err(Usage(format!("{}: options: a configuration file cannot name another", path.display())).into());
    }
    // Once more, for the flags that come after the file's.
    from_options(&words, &mut flags)?;
    Ok((resolve(&[given, &options, &file, &inner])?, flags))
}

/// Reads options of mount(8); of those for the same thing the last one counts.
fn from_options(options: &[String], flags: &mut mount::MountFlags) -> anyhow::Result<Layer> {
    let mut layer = Layer::default();
    options.iter().try_for_each(|option| apply_option(option, &mut layer, flags))?;
    Ok(layer)
}

fn apply_option(option: &str, layer: &mut Layer, flags: &mut mount::MountFlags) -> anyhow::Result<()> {
    let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
    match name {
        "" => {}
        "ro" => drop(layer.add_option("read-only", None)?),
        "rw" => layer.remove("read-only"),
        "suid" => flags.suid = true,
        "nosuid" => flags.suid = false,
        "dev" => flags.dev = true,
        "nodev" => flags.dev = false,
        "exec" => flags.noexec = false,
        "noexec" => flags.noexec = true,
        "atime" | "relatime" => flags.noatime = false,
        "noatime" => flags.noatime = true,
        _ if layer.add_option(name, value)? => {}
        _ => {
            if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| *refused == name.replace('_', "-")) {
                return Err(Usage(format!("-o {name} cannot be done: {why}")).into());
            }
            if !(IGNORED.contains(&name) || name.starts_with("x-") || name.starts_with("comment")) {
                return Err(Usage(format!("unknown mount option `{option}`: see `hotshelf mount --help`")).into());
            }
        }
    }
    Ok(())
}

/// Options of mount(8) that are refused, and why.
const REFUSED: &[(&str, &str)] = &[
    ("strictatime", "access times are those of the two file systems: mount these with it"),
    ("nodiratime", "noatime leaves the times of directories as well"),
    ("lazytime", "times are those of the two file systems: mount these with it"),
    ("sync", "the kernel does not pass it on for files that bypass the daemon: open them with O_SYNC, or mount both file systems with it"),
    ("dirsync", "mount the two file systems with it"),
    ("mand", "there are no mandatory locks"),
    ("remount", "give it with the mount point of a mount, as `mount -o remount,ro MOUNTPOINT`"),
];

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
        promotion_window_secs: args.touch_window.unwrap_or(defaults.promotion_window_secs),
        adopt: args.adopt,
        read_only: args.read_only,
        honours: hybridfs::HonouredFeatures::default(),
        noatime: flags.noatime,
    };
    sizes_make_sense(&hybrid)?;
    let mut options = Options::new(hybrid, absolute(need(&args.mountpoint, "MOUNTPOINT")?)?);
    options.allow_other = args.allow_other;
    options.threads = if args.single_thread { 1 } else { args.threads.map_or(options.threads, usize::from) };
    options.clone_fd = args.clone_fd;
    options.uring = args.uring.unwrap_or_default();
    options.passthrough = match (args.write_back, args.no_passthrough) {
        (true, _) => PassthroughMode::WriteBack,
        (false, true) => PassthroughMode::Off,
        (false, false) => PassthroughMode::Auto,
    };
    options.cache_ttl_s = args.cache_ttl.unwrap_or(options.cache_ttl_s);
    options.flags = flags;
    Ok(options)
}

/// Refuses what cannot be meant, with what probably was.
pub fn sizes_make_sense(config: &Config) -> anyhow::Result<()> {
    const UNIT_FORGOTTEN: u64 = 1 << 20;
    let marks = [("--high", config.high), ("--low", config.low)];
    for (flag, size) in
        marks.into_iter().chain([("--reserve", config.reserve)]).chain(config.max_file.map(|size| ("--max-file-size", size)))
    {
        match size {
            Size::Bytes(0) if flag == "--reserve" || flag == "--low" => {}
            Size::Bytes(bytes) if bytes <= 100 => return Err(forgotten(flag, bytes, "%")),
            Size::Bytes(bytes) if bytes < UNIT_FORGOTTEN && flag != "--reserve" && flag != "--max-file-size" => {
                return Err(forgotten(flag, bytes, "MiB"));
            }
            _ => {}
        }
    }
    if let Some(bytes) = config.move_bytes_per_s.filter(|bytes| *bytes < 4096) {
        return Err(forgotten("--move-rate", bytes, "MiB"));
    }
    // A directory that is not there is refused in its own words later.
    let Ok(space) = rustix::fs::statvfs(&config.ssd) else { return Ok(()) };
    let capacity = space.f_blocks.saturating_mul(space.f_frsize);
    for (flag, size) in marks.into_iter().chain([("--reserve", config.reserve)]) {
        if size.of(capacity) > capacity || (flag == "--reserve" && size.of(capacity) == capacity) {
            let (wanted, there) = (HumanBytes(size.of(capacity)), HumanBytes(capacity));
            let what = format!("{flag} {wanted} is more than the file system of {} has ({there})", config.ssd.display());
            return Err(Usage(format!("{what}: give less, or a share such as 90%; see `hotshelf mount --help`")).into());
        }
    }
    if config.low.of(capacity) > config.high.of(capacity) {
        let (low, high) = (HumanBytes(config.low.of(capacity)), HumanBytes(config.high.of(capacity)));
        return Err(Usage(format!("--low {low} is above --high {high}: moving would never stop; see `hotshelf mount --help`")).into());
    }
    Ok(())
}

fn forgotten(flag: &str, bytes: u64, unit: &str) -> anyhow::Error {
    Usage(format!("{flag} {bytes} is {bytes} bytes: did you mean {bytes}{unit}?")).into()
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

    fn given(words: &[&str]) -> Layer {
        use clap::FromArgMatches;
        let command = <Layer as clap::Args>::augment_args(clap::Command::new("mount")).no_binary_name(true);
        Layer::from_arg_matches(&command.try_get_matches_from(words).expect("valid")).expect("a layer")
    }

    fn options(words: &[&str]) -> anyhow::Result<(MountArgs, mount::MountFlags)> {
        settle(&given(&["-o", &words.join(",")]))
    }

    #[test]
    fn mount_options_set_what_flags_set_and_unknown_ones_are_reported() {
        let (args, flags) = options(&["rw", "allow_other", "high=70%", "noexec", "x-systemd.automount"]).expect("known");
        assert!(args.allow_other && flags.noexec);
        assert_eq!(args.high, Some(Size::Percent(70)));
        for bad in ["turbo", "high", "high=lots", "threads=0", "threads=many", "touch_window=1d", "policy"] {
            let error = options(&[bad]).expect_err(bad);
            assert!(error.downcast_ref::<Usage>().is_some(), "{bad}: {error}");
        }
        let message = |word: &str| options(&[word]).expect_err(word).to_string();
        assert!(message("threads=many").starts_with("-o threads: `many` is not a number"));
        assert!(message("threads=0").starts_with("-o threads: 0 is not in 1..=256"));
    }

    #[test]
    fn what_mount_cannot_do_is_refused_with_a_reason() {
        for bad in ["strictatime", "sync", "dirsync", "nodiratime", "lazytime", "mand", "remount"] {
            let error = options(&[bad]).expect_err(bad).to_string();
            assert!(error.contains(&format!("-o {bad} cannot be done: ")), "{error}");
        }
    }

    #[test]
    fn every_flag_can_be_a_mount_option() {
        use clap::CommandFactory;
        let cli = crate::args::Cli::command();
        let flags = cli.find_subcommand("mount").expect("mount").get_arguments();
        // The pair and the place are mount(8)'s own words.
        let not = [
            "ssd",
            "hdd",
            "cache",
            "cache_mode",
            "names",
            "deadline",
            "offline",
            "second",
            "mountpoint",
            "options",
            "ready_pipe",
            "dry_run",
            "config",
        ];
        for flag in flags.filter(|flag| !not.contains(&flag.get_id().as_str())) {
            let value = match flag.get_id().as_str() {
                "promotion" => "never",
                "uring" => "off",
                _ => "7",
            };
            let takes_value = flag.get_action().takes_values();
            let word = if takes_value { format!("{}={value}", flag.get_id()) } else { flag.get_id().to_string() };
            options(&[&word.replace("pin=", "pin=a")]).unwrap_or_else(|error| panic!("{word}: {error}"));
        }
    }

    #[test]
    fn a_flag_wins_over_an_option_and_that_over_the_file() {
        let dir = std::env::temp_dir().join(format!("hotshelf-settle-{}", std::process::id()));
        std::fs::write(
            &dir,
            "policy = \"lfu\"\nreserve = \"1%\"\nhigh = \"50%\"\noptions = [\"noexec\", \"suid\", \"policy=lru\", \"low=20%\"]\n",
        )
        .expect("written");
        let config = dir.to_str().expect("a path");
        let (args, flags) = settle(&given(&["--config", config, "--high=95%", "-o", "exec,reserve=3%,high=60%"])).expect("settled");
        std::fs::remove_file(dir).expect("removed");
        assert_eq!((args.high, args.reserve), (Some(Size::Percent(95)), Some(Size::Percent(3))));
        assert_eq!(args.policy.as_deref(), Some("lfu"));
        assert_eq!((flags.noexec, flags.suid), (false, true));
    }

    #[test]
    fn sizes_that_cannot_be_meant_are_refused_with_what_was() {
        let dir = tempfile::tempdir().expect("a directory");
        let with = |change: &dyn Fn(&mut Config)| {
            let mut config = Config { ssd: dir.path().to_owned(), ..Config::default() };
            change(&mut config);
            sizes_make_sense(&config).map_err(|error| error.to_string())
        };
        assert_eq!(with(&|_| {}), Ok(()));
        assert_eq!(with(&|config| (config.reserve, config.low) = (Size::Bytes(0), Size::Bytes(0))), Ok(()));
        type Case<'a> = (&'a dyn Fn(&mut Config), &'a str);
        let refused: [Case<'_>; 8] = [
            (&|config| config.high = Size::Bytes(95), "did you mean 95%?"),
            (&|config| config.low = Size::Bytes(80), "did you mean 80%?"),
            (&|config| config.high = Size::Bytes(900), "did you mean 900MiB?"),
            (&|config| config.max_file = Some(Size::Bytes(50)), "did you mean 50%?"),
            (&|config| config.move_bytes_per_s = Some(50), "did you mean 50MiB?"),
            (&|config| config.reserve = Size::Bytes(50 << 50), "is more than the file system"),
            (&|config| config.high = Size::Bytes(50 << 50), "is more than the file system"),
            (&|config| (config.low, config.high) = (Size::Percent(95), Size::Bytes(1 << 20)), "moving would never stop"),
        ];
        for (change, words) in refused {
            let message = with(change).expect_err(words);
            assert!(message.contains(words), "{message}");
        }
    }
}
