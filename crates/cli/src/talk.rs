//! Commands that ask the daemon of a mount.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hybridfs::report::{Answer, Ask, Status, TierName};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use mount::control::{ControlClient, escape};
use mount::source::{Mounted, is_dead, mounted, without_following};

use crate::args::{MigrateArgs, Side, StatusArgs, UnmountArgs, WhyArgs};
use crate::verbosity::{is_verbose, shows_progress};
use crate::{cache, show};

/// The mount a path is below, and the path below it. The last name is not followed if it is a link.
fn locate(path: &Path) -> anyhow::Result<(Mounted, PathBuf)> {
    let absolute = std::path::absolute(path).with_context(|| format!("{}", path.display()))?;
    let real = match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => match std::fs::canonicalize(parent) {
            Ok(parent) => parent.join(name),
            // The mount itself may be dead: asking its daemon says so.
            Err(_) if parent.ancestors().any(is_dead) => absolute,
            Err(error) => return Err(error).with_context(|| format!("{}", path.display())),
        },
        _ => absolute,
    };
    let all = mounted().context("reading the list of mounts")?;
    let best =
        all.into_iter().filter(|mounted| real.starts_with(&mounted.mountpoint)).max_by_key(|mounted| mounted.mountpoint.as_os_str().len());
    let Some(best) = best else { bail!("{} is not below a hotshelf mount: `hotshelf status` lists them", path.display()) };
    let below = real.strip_prefix(&best.mountpoint).unwrap_or(Path::new("")).to_owned();
    Ok((best, below))
}

fn at_mountpoint(path: &Path) -> anyhow::Result<Mounted> {
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| without_following(path));
    let all = mounted().context("reading the list of mounts")?;
    match all.into_iter().find(|mounted| mounted.mountpoint == real) {
        Some(mounted) => Ok(mounted),
        None => bail!("no hotshelf is mounted on {}: `hotshelf status` lists the mounts", path.display()),
    }
}

fn connect(mounted: &Mounted) -> anyhow::Result<ControlClient> {
    ControlClient::connect(&mounted.ssd, &mounted.hdd).with_context(|| {
        let at = mounted.mountpoint.display();
        if is_dead(&mounted.mountpoint) {
            return format!("the daemon of {at} is gone: mount it again, or `hotshelf unmount {at}`");
        }
        format!("the daemon of {at} cannot be reached (you must be the user who mounted it, or root)")
    })
}

fn ask(mounted: &Mounted, question: &Ask) -> anyhow::Result<Answer> {
    let answer = connect(mounted)?.ask(question, &mut |_| {}).context("asking the daemon")?;
    match answer {
        Answer::Failed { message } => bail!("{message}"),
        answer => Ok(answer),
    }
}

fn status_of(mounted: &Mounted) -> anyhow::Result<Box<Status>> {
    match ask(mounted, &Ask::Status)? {
        Answer::Status(status) => Ok(status),
        other => bail!("the daemon gave an answer of another kind: {other:?}"),
    }
}

/// `hotshelf status`.
pub fn status(args: &StatusArgs) -> anyhow::Result<bool> {
    if let Some(path) = &args.mountpoint
        && at_mountpoint(path).is_err()
        && locate(path).is_err()
        && cache::is_cache(path)
    {
        return cache::status_of(path, args.json);
    }
    let mounts = match &args.mountpoint {
        Some(path) => vec![at_mountpoint(path).or_else(|error| locate(path).map(|(mounted, _)| mounted).map_err(|_| error))?],
        None => mounted().context("reading the list of mounts")?,
    };
    let mut all = Vec::new();
    let mut complete = true;
    for mounted in &mounts {
        match status_of(mounted) {
            Ok(status) => all.push(status),
            Err(error) if args.mountpoint.is_none() => {
                eprintln!("hotshelf: {}: {error:#}", mounted.mountpoint.display());
                complete = false;
            }
            Err(error) => return Err(error),
        }
    }
    let caches = if args.mountpoint.is_none() { caches(&mut complete) } else { Vec::new() };
    if args.json {
        let text = match (&args.mountpoint, all.as_slice()) {
            (Some(_), [one]) => serde_json::to_string_pretty(one)?,
            _ => {
                let mounts = all.iter().map(serde_json::to_value);
                let all: Vec<_> = mounts.chain(caches.iter().map(serde_json::to_value)).collect::<Result<_, _>>()?;
                serde_json::to_string_pretty(&all)?
            }
        };
        say!("{text}");
    } else if all.is_empty() && caches.is_empty() && complete {
        say!("no hotshelf is mounted, and there is no cache");
    } else {
        all.iter().for_each(|status| show::status(status));
        caches.iter().for_each(cache::show);
    }
    Ok(complete)
}

/// All caches of which something can be told; of the others it is said why not.
fn caches(complete: &mut bool) -> Vec<cache::Report> {
    let (told, failed): (Vec<_>, Vec<_>) = cache::all().into_iter().partition(Result::is_ok);
    for error in failed.into_iter().filter_map(Result::err) {
        eprintln!("hotshelf: {error:#}");
        *complete = false;
    }
    told.into_iter().flatten().collect()
}

/// `hotshelf why`.
pub fn why(args: &WhyArgs) -> anyhow::Result<bool> {
    let mut all = Vec::new();
    let well = for_each(&args.paths, |path| {
        let (mounted, below) = locate(path)?;
        match ask(&mounted, &Ask::Why { path: escape(&below) })? {
            Answer::Why(why) if args.json => all.push(why),
            Answer::Why(why) => show::why(&why),
            other => bail!("the daemon gave an answer of another kind: {other:?}"),
        }
        Ok(true)
    })?;
    match &all[..] {
        [one] if args.paths.len() == 1 => say!("{}", serde_json::to_string_pretty(one)?),
        all if args.json => say!("{}", serde_json::to_string_pretty(all)?),
        _ => {}
    }
    Ok(well)
}

/// Does something with each path. With several, one that fails is said and the others follow; `false`: one failed.
fn for_each(paths: &[PathBuf], mut does: impl FnMut(&Path) -> anyhow::Result<bool>) -> anyhow::Result<bool> {
    if let [path] = paths {
        return does(path);
    }
    let mut well = true;
    for path in paths {
        match does(path) {
            Ok(done) => well &= done,
            Err(error) => {
                eprintln!("hotshelf: {error:#}");
                well = false;
            }
        }
    }
    Ok(well)
}

/// `hotshelf pin` and `unpin`.
pub fn pin(paths: &[PathBuf], on: bool) -> anyhow::Result<bool> {
    for_each(paths, |path| {
        let (mounted, below) = locate(path)?;
        let path = escape(&below);
        if let Answer::Done { message } = ask(&mounted, &if on { Ask::Pin { path } } else { Ask::Unpin { path } })? {
            tell!("{message}");
        }
        Ok(true)
    })
}

/// `hotshelf migrate`.
pub fn migrate(args: &MigrateArgs) -> anyhow::Result<bool> {
    let to = match args.to {
        Side::Ssd => TierName::Ssd,
        Side::Hdd => TierName::Hdd,
    };
    for_each(&args.paths, |path| if args.dry_run { would_migrate(path, to) } else { migrate_one(path, to) })
}

fn migrate_one(path: &Path, to: TierName) -> anyhow::Result<bool> {
    let (mounted, below) = locate(path)?;
    let bar = if shows_progress() { ProgressBar::new(0) } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta} left {msg}");
    bar.set_style(style.context("the progress bar's template")?);
    let mut client = connect(&mounted)?;
    let answer = client.ask(&Ask::Migrate { path: escape(&below), to }, &mut |going| {
        if let Answer::Progress { files, files_done, bytes, bytes_done } = going {
            bar.set_length(*bytes);
            bar.set_position(*bytes_done);
            bar.set_message(format!("{files_done} of {files} files"));
        }
    });
    bar.finish_and_clear();
    match answer.context("asking the daemon")? {
        Answer::Done { message } => tell!("{message}"),
        Answer::Failed { message } => bail!("{message}"),
        other => bail!("the daemon gave an answer of another kind: {other:?}"),
    }
    Ok(true)
}

/// Says what `migrate` would try to move, and moves nothing. A file that is in use or has several names may stay when it is tried.
fn would_migrate(path: &Path, to: TierName) -> anyhow::Result<bool> {
    let (mounted, _) = locate(path)?;
    let mut client = connect(&mounted)?;
    let device = path.symlink_metadata().with_context(|| format!("{}", path.display()))?.dev();
    let (mut files, mut bytes, mut waiting) = (0_u64, 0_u64, vec![path.to_owned()]);
    while let Some(path) = waiting.pop() {
        let named = || format!("{}", path.display());
        let meta = path.symlink_metadata().with_context(named)?;
        if meta.is_dir() && meta.dev() == device {
            for entry in path.read_dir().with_context(named)? {
                waiting.push(entry.with_context(named)?.path());
            }
        }
        if !meta.is_file() || meta.dev() != device {
            continue;
        }
        let (_, below) = locate(&path)?;
        let answer = client.ask(&Ask::Why { path: escape(&below) }, &mut |_| {}).context("asking the daemon")?;
        if let Answer::Why(why) = answer
            && why.tier.is_some_and(|tier| tier != to)
        {
            files += 1;
            bytes += why.size_bytes;
            if is_verbose() {
                say!("{}", path.display());
            }
        }
    }
    say!("{}: {files} files of {} would move to the {to}", path.display(), HumanBytes(bytes));
    Ok(true)
}

/// `hotshelf unmount`.
pub fn unmount(args: &UnmountArgs) -> anyhow::Result<bool> {
    let deadline = Instant::now() + Duration::from_secs(args.timeout);
    let real = std::fs::canonicalize(&args.mountpoint).unwrap_or_else(|_| without_following(&args.mountpoint));
    if let Some(image) = mount::raw::image_at(&real) {
        take_away(&real, &args.mountpoint, deadline)?;
        // Its daemon saves what is in memory, and lets go of the image then.
        while mount::raw::is_in_use(&image) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        return Ok(true);
    }
    let mounted = at_mountpoint(&args.mountpoint)?;
    let daemon = status_of(&mounted).map(|status| status.pid).ok();
    take_away(&mounted.mountpoint, &args.mountpoint, deadline)?;
    // The daemon saves its books before it ends.
    if let Some(pid) = daemon.filter(|pid| *pid != 0) {
        let process = PathBuf::from(format!("/proc/{pid}"));
        while process.exists() && !is_zombie(pid) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    // Whoever comes next wants the pair.
    while hybridfs::check::is_in_use(&mounted.ssd) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(true)
}

/// Unmounts; waits for those who use it until the deadline.
fn take_away(mountpoint: &Path, given: &Path, deadline: Instant) -> anyhow::Result<()> {
    loop {
        let said = match mount::unmount::unmount(mountpoint, false) {
            Ok(()) => return Ok(()),
            Err(said) => said,
        };
        if Instant::now() > deadline || !said.busy {
            let holders = holders(mountpoint);
            let who = if holders.is_empty() { String::new() } else { format!(": in use by {}", holders.join(", ")) };
            bail!("{} cannot be unmounted: {}{who}", given.display(), said.text);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Whether a process has ended but was not waited for. Its first thread may be a zombie while others still hold files open.
fn is_zombie(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let first_ended = stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'));
    first_ended && std::fs::read_dir(format!("/proc/{pid}/task")).map_or(true, |threads| threads.count() <= 1)
}

/// Whether a process is there and has not ended.
pub fn is_running(pid: u32) -> bool {
    PathBuf::from(format!("/proc/{pid}")).exists() && !is_zombie(pid)
}

/// Processes that have something open below a mount, as far as we may look.
fn holders(mountpoint: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let dir = process.path();
        let Some(pid) = dir.file_name().and_then(|name| name.to_str()).filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) else {
            continue;
        };
        let below = |link: PathBuf| std::fs::read_link(link).is_ok_and(|target| target.starts_with(mountpoint));
        let mut fds = std::fs::read_dir(dir.join("fd")).into_iter().flatten().flatten();
        if below(dir.join("cwd")) || below(dir.join("exe")) || fds.any(|fd| below(fd.path())) {
            let name = std::fs::read_to_string(dir.join("comm")).unwrap_or_default();
            found.push(format!("{} (process {pid})", name.trim()));
        }
    }
    found
}
