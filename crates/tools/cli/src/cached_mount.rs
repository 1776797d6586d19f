//! `hotshelf mount --cache CACHE DIRECTORY MOUNTPOINT`: a directory as a mount whose file data goes through a cache.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use mount::cached::{CachedMount, CachedOptions, MountCounts, OfflinePolicy, SideStatus, run};
use mount::{MountFlags, SessionOptions};

use crate::cache::locate::{self, Located};
use crate::hidden_files::{hides_files, warn_of_hidden};
use crate::mount_args::MountArgs;
use crate::{Usage, cache, cached_counts, daemon};

const THREADS: usize = 8;
/// Longer than the disks of a sleeping NAS take to start.
const DEADLINE_SECONDS: u64 = 30;
const USAGE: &str = "hotshelf mount --cache CACHE DIRECTORY MOUNTPOINT";

/// Mounts, in the background unless asked otherwise.
pub fn mount(args: &MountArgs, cache: &Path, flags: MountFlags) -> anyhow::Result<bool> {
    refuse_flags_of_pairs(args)?;
    let (directory, mountpoint) = places(args)?;
    let located = locate::by_name_or_path(cache)?;
    let shown = located.shown();
    let Located { config, .. } = located;
    let options = CachedOptions {
        directory: directory.clone(),
        cache: config,
        ttl: args.cache_ttl.map(Duration::from_secs),
        names: args.names.unwrap_or_default(),
        deadline: Duration::from_secs(args.deadline.unwrap_or(DEADLINE_SECONDS)),
        offline: offline_policy(args)?,
        mode: args.cache_mode.unwrap_or(cachedfs::Mode::WriteThrough),
        session: SessionOptions {
            mountpoint: mountpoint.clone(),
            source: mount::source::source_name(Path::new(&shown), &directory).to_string_lossy().into_owned(),
            allow_other: args.allow_other,
            read_only: args.read_only,
            threads: if args.single_thread { 1 } else { args.threads.map_or(THREADS, usize::from) },
            uring: args.uring.unwrap_or_default(),
            flags,
        },
    };
    daemon::log_filter(args.log_level.as_deref(), "mount")?;
    if args.dry_run {
        return Ok(true);
    }
    let hides = hides_files(&mountpoint);
    if !args.foreground && !args.ready_pipe {
        let log = args.log_file.as_deref().map(daemon::open_log).transpose()?.map_or_else(Stdio::null, Stdio::from);
        let words: Vec<_> = std::env::args_os().skip(1).collect();
        return match daemon::start_again(&words, log)? {
            None => {
                warn_of_hidden(hides, &mountpoint);
                Ok(true)
            }
            Some((status, said)) if said.is_empty() => anyhow::bail!("the daemon ended ({status}) without a word: give it --log-file"),
            Some((_, said)) => anyhow::bail!("{said}"),
        };
    }
    daemon::log_to_stderr()?;
    let announce = args.ready_pipe;
    run(&options, move || {
        if announce {
            daemon::announce_ready();
        } else {
            warn_of_hidden(hides, &mountpoint);
        }
    })?;
    Ok(true)
}

fn places(args: &MountArgs) -> anyhow::Result<(PathBuf, PathBuf)> {
    let (Some(directory), Some(mountpoint)) = (&args.mountpoint, &args.second) else {
        let missing = if args.mountpoint.is_none() { "the directory and the mount point are" } else { "the mount point is" };
        return Err(Usage(format!("{missing} missing: {USAGE}")).into());
    };
    let absolute = |path: &Path| std::path::absolute(path).with_context(|| path.display().to_string());
    Ok((absolute(directory)?, absolute(mountpoint)?))
}

/// Returns what is written while the directory does not reply. Writes that go through to it need it.
fn offline_policy(args: &MountArgs) -> anyhow::Result<OfflinePolicy> {
    let offline = args.offline.unwrap_or_default();
    if offline == OfflinePolicy::WriteBack && args.cache_mode != Some(cachedfs::Mode::WriteBack) {
        return Err(Usage("--offline write-back needs a mount that writes back: add --cache-mode write-back".into()).into());
    }
    Ok(offline)
}

/// Refuses what only a pair of an SSD and an HDD directory has.
fn refuse_flags_of_pairs(args: &MountArgs) -> anyhow::Result<()> {
    let given = [
        ("--ssd", args.ssd.is_some()),
        ("--hdd", args.hdd.is_some()),
        ("--policy", args.policy.is_some()),
        ("--high", args.high.is_some()),
        ("--low", args.low.is_some()),
        ("--reserve", args.reserve.is_some()),
        ("--min-file-size", args.min_file_size.is_some()),
        ("--max-file-size", args.max_file_size.is_some()),
        ("--promotion", args.promotion.is_some()),
        ("--pin", !args.pin.is_empty()),
        ("--hdd-only", !args.hdd_only.is_empty()),
        ("--move-rate", args.move_rate.is_some()),
        ("--touch-window", args.touch_window.is_some()),
        ("--adopt", args.adopt),
        ("--no-passthrough", args.no_passthrough),
        ("--write-back", args.write_back),
        ("--clone-fd", args.clone_fd),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) => {
            let what = format!("{flag} belongs to a pair of directories (--ssd and --hdd), not to --cache");
            Err(Usage(format!("{what}: the cache has its own settings, see `hotshelf cache set --help`")).into())
        }
        None => Ok(()),
    }
}

/// Returns the cache of a mount of this user.
pub fn cache_of(found: &CachedMount) -> Option<Located> {
    if found.is_ours() { locate::by_name_or_path(&found.cache).ok() } else { None }
}

/// Returns the cached directory's mount that a path is in.
pub fn containing(path: &Path) -> Option<CachedMount> {
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| mount::source::without_following(path));
    let all = mount::cached::mounts().ok()?.into_iter();
    all.filter(|found| real.starts_with(&found.mountpoint)).max_by_key(|found| found.mountpoint.as_os_str().len())
}

/// Returns the mounts that this user may know: its own, and those of everybody for root.
pub fn visible() -> Vec<CachedMount> {
    let is_root = rustix::process::geteuid().is_root();
    mount::cached::mounts().unwrap_or_default().into_iter().filter(|found| is_root || found.is_ours()).collect()
}

/// Returns the state of the slow side of a mount of this user, if the mount has a deadline.
pub fn side_status(found: &CachedMount) -> Option<SideStatus> {
    mount::cached::side_status(&cache_of(found)?.config, &found.device()?)
}

/// Returns what a mount of this user has read and written since its daemon began.
fn counts(found: &CachedMount) -> Option<MountCounts> {
    mount::cached::mount_counts(&cache_of(found)?.config, &found.device()?)
}

/// Returns the metrics of these mounts, of those that are this user's, as Prometheus reads them.
pub fn prometheus_text(mounts: &[CachedMount]) -> String {
    let ours = mounts.iter().filter(|found| found.is_ours());
    let metrics = ours.map(|found| cached_counts::MountMetrics {
        mountpoint: found.mountpoint.display().to_string(),
        counts: counts(found),
        side: side_status(found),
    });
    cached_counts::prometheus_text(&metrics.collect::<Vec<_>>())
}

/// Says whether the slow side replies, or since when it has not, and what has not returned.
fn describe(side: &SideStatus) -> String {
    let counted = |count: u64, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let unfinished = match side.unfinished {
        0 => None,
        count => Some(format!("{} not finished", counted(count as u64, "call"))),
    };
    let Some(since) = side.away_since else {
        return unfinished.map_or_else(|| "replies".to_owned(), |unfinished| format!("replies ({unfinished})"));
    };
    let timed_out = counted(side.timed_out, "request");
    let unfinished = unfinished.map(|unfinished| format!(", {unfinished}")).unwrap_or_default();
    let (hour, minute, second) = (since / 3600 % 24, since / 60 % 60, since % 60);
    let ago = Duration::from_secs(std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs().saturating_sub(since));
    let ago = indicatif::HumanDuration(ago);
    format!("away since {hour:02}:{minute:02}:{second:02} UTC, {ago} ago ({timed_out} timed out{unfinished})")
}

/// Prints where a cached directory is mounted.
pub fn show(found: &CachedMount) {
    let state = if found.is_ours() && mount::source::is_dead(&found.mountpoint) { ", its daemon is gone: unmount it" } else { "" };
    say!("{}  (cached directory{state})", found.mountpoint.display());
    say!("  directory {}", found.directory.display());
    let side = side_status(found);
    if let Some(side) = &side {
        say!("  slow side: {}", describe(side));
    }
    say!("  cache     {}", found.cache.display());
    if let Some(counts) = counts(found) {
        cached_counts::lines(&counts, side.as_ref()).iter().for_each(|line| say!("  {line}"));
    }
}

/// Returns a mount as JSON, with the state of its cache if there is one.
pub fn as_json(found: &CachedMount, report: Option<&cache::Report>) -> serde_json::Value {
    let shown = |path: &Path| path.display().to_string();
    serde_json::json!({
        "mountpoint": shown(&found.mountpoint),
        "directory": shown(&found.directory),
        "cache": shown(&found.cache),
        "slow_side": side_status(found),
        "counts": counts(found),
        "cache_status": report,
    })
}

/// Runs `hotshelf status` for a mount: its state, and that of its cache.
pub fn status(found: &CachedMount, json: bool, prometheus: bool) -> anyhow::Result<bool> {
    let report = match cache_of(found) {
        Some(located) => Some(cache::report_of(&located)?),
        None => None,
    };
    if prometheus {
        let mounts = prometheus_text(std::slice::from_ref(found));
        say_lines!("{}", format!("{mounts}{}", cache::prometheus_text(report.as_slice())).trim_end());
    } else if json {
        say_lines!("{}", serde_json::to_string_pretty(&as_json(found, report.as_ref()))?);
    } else {
        show(found);
        report.iter().for_each(cache::show);
    }
    Ok(true)
}

/// Warns after an unmount that the slow side, which was away, has perhaps not everything that programs wrote.
pub fn warn_of_side(found: &CachedMount, side: Option<&SideStatus>) {
    let Some(side) = side.filter(|side| side.away_since.is_some()) else { return };
    let unfinished = match side.unfinished {
        0 => "",
        _ => "; calls that it had not finished may still take effect",
    };
    complain!("warning: {} is unmounted while {} is {}{unfinished}", found.mountpoint.display(), found.directory.display(), describe(side));
}

/// Checks after an unmount that nothing is left in a cache that nobody uses.
pub fn is_written_back(found: &CachedMount) -> anyhow::Result<bool> {
    let Some(located) = cache_of(found) else { return Ok(true) };
    let report = cache::report_of(&located)
        .with_context(|| format!("{} is unmounted; whether all its data is written back is not known", found.mountpoint.display()))?;
    if report.in_use || report.status.dirty_bytes == 0 {
        return Ok(true);
    }
    let shown = found.cache.display();
    anyhow::bail!(
        "{} is unmounted, and {} of it could not be written to {}: `hotshelf cache status {shown}` says why, `hotshelf cache flush \
         {shown}` tries again",
        found.mountpoint.display(),
        indicatif::HumanBytes(report.status.dirty_bytes),
        found.directory.display()
    )
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn calls_that_have_not_returned_are_counted_also_while_the_side_replies() {
        let shown =
            |away_since, timed_out, unfinished| describe(&SideStatus { away_since, timed_out, unfinished, ..SideStatus::default() });
        assert_eq!(
            [0, 1, 3].map(|count| shown(None, 7, count)),
            ["replies", "replies (1 call not finished)", "replies (3 calls not finished)"]
        );
        assert!(shown(Some(3661), 1, 0).starts_with("away since 01:01:01 UTC") && shown(Some(1), 1, 0).ends_with("(1 request timed out)"));
        assert!(shown(Some(1), 2, 1).ends_with("(2 requests timed out, 1 call not finished)"));
    }
}
