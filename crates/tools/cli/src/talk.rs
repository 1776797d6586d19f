//! Commands that send requests to the daemon of a mount.

use std::collections::{BTreeMap, VecDeque};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hybridfs::report::{ControlReply, ControlRequest, Status, TierName, Why};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use mount::control::{ControlClient, escape};
use mount::source::{MountEntry, is_dead, mounted, without_following};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::args::{MigrateArgs, SetArgs, Side, StatusArgs, UnmountArgs, WhyArgs};
use crate::verbosity::{is_verbose, shows_progress};
use crate::{Usage, cache, cached_mount, prometheus, show};

/// Returns the mount that a path is in, and the path relative to it. The last name is not followed if it is a link.
fn locate(path: &Path) -> anyhow::Result<(MountEntry, PathBuf)> {
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
    let relative = real.strip_prefix(&best.mountpoint).unwrap_or(Path::new("")).to_owned();
    Ok((best, relative))
}

/// The pair that is mounted there.
pub fn at_mountpoint(path: &Path) -> anyhow::Result<MountEntry> {
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| without_following(path));
    let all = mounted().context("reading the list of mounts")?;
    match all.into_iter().find(|mounted| mounted.mountpoint == real) {
        Some(mounted) => Ok(mounted),
        None => bail!("no hotshelf is mounted on {}: `hotshelf status` lists the mounts", path.display()),
    }
}

/// Whether the kernel's directory may be looked at without waiting for a stranger's daemon.
fn is_mine(mounted: &MountEntry) -> bool {
    mounted.owner == rustix::process::geteuid().as_raw()
}

fn connect(mounted: &MountEntry, deadline: Option<Instant>) -> anyhow::Result<ControlClient> {
    ControlClient::connect(mounted, deadline).with_context(|| {
        let at = mounted.mountpoint.display();
        if is_mine(mounted) && is_dead(&mounted.mountpoint) {
            return format!("the daemon of {at} is gone: mount it again, or `hotshelf unmount {at}`");
        }
        format!("the daemon of {at} cannot be reached (you must be the user who mounted it, or root)")
    })
}

/// How long a daemon may take for its answer. None: as long as it works.
fn timeout(request: &ControlRequest) -> Option<Duration> {
    match request {
        ControlRequest::Status => Some(Duration::from_secs(10)),
        ControlRequest::Migrate { .. } | ControlRequest::Retire { .. } => None,
        // A slow disk may have to be asked, or a large tree.
        ControlRequest::Why { .. }
        | ControlRequest::Pin { .. }
        | ControlRequest::Unpin { .. }
        | ControlRequest::Set { .. }
        | ControlRequest::Flush
        | ControlRequest::Stop => Some(Duration::from_secs(60)),
    }
}

fn request(mounted: &MountEntry, request: &ControlRequest) -> anyhow::Result<ControlReply> {
    request_within(mounted, request, timeout(request))
}

fn request_within(mounted: &MountEntry, request: &ControlRequest, timeout: Option<Duration>) -> anyhow::Result<ControlReply> {
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let answer = connect(mounted, deadline)?.ask(request, &mut |_| {});
    match answer.with_context(|| format!("the daemon of {} sent no valid reply", mounted.mountpoint.display()))? {
        ControlReply::Failed { message } => bail!("{message}"),
        answer => Ok(answer),
    }
}

/// The state of a mount.
pub fn status_of(mounted: &MountEntry) -> anyhow::Result<Box<Status>> {
    status_within(mounted, timeout(&ControlRequest::Status))
}

fn status_within(mounted: &MountEntry, timeout: Option<Duration>) -> anyhow::Result<Box<Status>> {
    match request_within(mounted, &ControlRequest::Status, timeout)? {
        ControlReply::Status(status) => Ok(status),
        _ => bail!("the daemon of {} sent an unexpected reply", mounted.mountpoint.display()),
    }
}

/// The daemons of all mounts have so long together.
const ALL_MOUNTS: Duration = Duration::from_secs(3);
/// Daemons queried at a time: each may send a reply of the largest size.
const AT_A_TIME: usize = 8;

/// Asks many daemons at a time. Those that have not answered within [`ALL_MOUNTS`] are left alone: the directories of a stranger's pair
/// may be on a file system that never answers, which no deadline ends.
fn status_of_all(mounts: &[MountEntry]) -> Vec<anyhow::Result<Box<Status>>> {
    let (send, answers) = std::sync::mpsc::channel();
    let todo = Arc::new(Mutex::new((0..mounts.len()).zip(mounts.to_vec()).collect::<VecDeque<_>>()));
    for _ in 0..AT_A_TIME.min(mounts.len()) {
        let (todo, send) = (Arc::clone(&todo), send.clone());
        std::thread::spawn(move || {
            let next = || todo.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop_front();
            while let Some((at, mounted)) = next() {
                if send.send((at, status_within(&mounted, Some(ALL_MOUNTS)))).is_err() {
                    break;
                }
            }
        });
    }
    drop(send);
    let mut all: Vec<Option<anyhow::Result<Box<Status>>>> = mounts.iter().map(|_| None).collect();
    let deadline = Instant::now() + ALL_MOUNTS;
    while let Ok((at, status)) = answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        all[at] = Some(status);
    }
    let silent = || Err(anyhow::anyhow!("no answer within {} s", ALL_MOUNTS.as_secs()));
    all.into_iter().map(|status| status.unwrap_or_else(silent)).collect()
}

/// Of the mounts that this user may ask: first its own, then, if it is root, those of others. Of the others' there is nothing to tell, and
/// that is no failure.
fn status_of_mounts(complete: &mut bool) -> anyhow::Result<Vec<Status>> {
    let (mine, others): (Vec<MountEntry>, Vec<MountEntry>) =
        mounted().context("reading the list of mounts")?.into_iter().partition(is_mine);
    let others = if rustix::process::geteuid().is_root() { others } else { Vec::new() };
    let mut statuses = Vec::new();
    for mounts in [mine, others] {
        for (mounted, status) in mounts.iter().zip(status_of_all(&mounts)) {
            match status {
                Ok(status) => statuses.push(*status),
                Err(error) => {
                    complain!("{}: {error:#}", mounted.mountpoint.display());
                    *complete = false;
                }
            }
        }
    }
    Ok(statuses)
}

/// Runs `hotshelf status` and returns whether every mount and cache answered.
pub fn status(args: &StatusArgs) -> anyhow::Result<bool> {
    if let Some(path) = &args.mountpoint
        && at_mountpoint(path).is_err()
        && locate(path).is_err()
        && cache::is_cache(path)
    {
        return cache::status_of(path, args.json, args.prometheus);
    }
    if let Some(path) = &args.mountpoint
        && at_mountpoint(path).is_err()
        && let Some(found) = cached_mount::containing(path)
    {
        return cached_mount::status(&found, args.json, args.prometheus);
    }
    let mut complete = true;
    let all = match &args.mountpoint {
        Some(path) => {
            vec![*status_of(&at_mountpoint(path).or_else(|error| locate(path).map(|(mounted, _)| mounted).map_err(|_| error))?)?]
        }
        None => status_of_mounts(&mut complete)?,
    };
    let caches = if args.mountpoint.is_none() { caches(&mut complete) } else { Vec::new() };
    let cached = if args.mountpoint.is_none() { cached_mount::visible() } else { Vec::new() };
    if args.prometheus {
        say_lines!(
            "{}",
            [prometheus::text(&all), cached_mount::prometheus_text(&cached), cache::prometheus_text(&caches)].concat().trim_end()
        );
    } else if args.json {
        let text = match (&args.mountpoint, all.as_slice()) {
            (Some(_), [one]) => serde_json::to_string_pretty(one)?,
            _ => {
                let mounts = all.iter().map(serde_json::to_value);
                let cached = cached.iter().map(|found| Ok(cached_mount::as_json(found, None)));
                let all: Vec<_> = mounts.chain(cached).chain(caches.iter().map(serde_json::to_value)).collect::<Result<_, _>>()?;
                serde_json::to_string_pretty(&all)?
            }
        };
        say_lines!("{text}");
    } else if all.is_empty() && caches.is_empty() && cached.is_empty() && complete {
        say!("nothing is mounted, and no caches exist");
    } else {
        all.iter().for_each(show::status);
        cached.iter().for_each(cached_mount::show);
        caches.iter().for_each(cache::show);
    }
    Ok(complete)
}

/// Runs `hotshelf set` on a running mount.
pub fn set(args: &SetArgs) -> anyhow::Result<bool> {
    let mut changes = BTreeMap::new();
    for change in &args.changes {
        let (name, value) = change.split_once('=').ok_or_else(|| Usage(format!("`{change}` is not NAME=VALUE, as high=95%")))?;
        if changes.insert(name.replace('_', "-"), value.to_owned()).is_some() {
            return Err(Usage(format!("{name} is given twice")).into());
        }
    }
    set_on(&at_mountpoint(&args.mountpoint)?, changes, args.dry_run)
}

/// Changes settings of a mount.
pub fn set_on(mounted: &MountEntry, changes: BTreeMap<String, String>, dry_run: bool) -> anyhow::Result<bool> {
    if let ControlReply::Done { message } = request(mounted, &ControlRequest::Set { changes, dry_run })? {
        say!("{message}");
    }
    Ok(true)
}

/// Returns the state of every cache that can be read, and prints why the others cannot.
fn caches(complete: &mut bool) -> Vec<cache::Report> {
    let (readable, failed): (Vec<_>, Vec<_>) = cache::all().into_iter().partition(Result::is_ok);
    for error in failed.into_iter().filter_map(Result::err) {
        complain!("{error:#}");
        *complete = false;
    }
    readable.into_iter().flatten().collect()
}

/// What `why` tells of a file, by the kind of its mount. The fields keep their order.
#[derive(serde::Serialize)]
#[serde(untagged)]
enum WhyReport {
    Hybrid(Box<Why>),
    Cached(serde_json::Value),
}

/// Runs `hotshelf why` for each given path.
pub fn why(args: &WhyArgs) -> anyhow::Result<bool> {
    let mut all = Vec::new();
    let of = cache::args::CacheOf { cache: None, config: None, json: false };
    // One for all paths: each takes a process slot of its cache.
    let mut caches = cache::files::AttachedCaches::new(&of);
    let well = for_each(&args.paths, |path| {
        if cached_mount::containing(path).is_some() {
            let report = cache::why::look(&mut caches, path)?;
            if args.json {
                all.push(WhyReport::Cached(report.as_json()));
            } else {
                report.show();
            }
            return Ok(true);
        }
        let (mounted, relative) = locate(path)?;
        match request(&mounted, &ControlRequest::Why { path: escape(&relative) })? {
            ControlReply::Why(why) if args.json => all.push(WhyReport::Hybrid(why)),
            ControlReply::Why(why) => show::why(&why),
            _ => bail!("the daemon sent an unexpected reply"),
        }
        Ok(true)
    })?;
    match &all[..] {
        [one] if args.paths.len() == 1 => say_lines!("{}", serde_json::to_string_pretty(one)?),
        all if args.json => say_lines!("{}", serde_json::to_string_pretty(all)?),
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
                complain!("{error:#}");
                well = false;
            }
        }
    }
    Ok(well)
}

/// Runs `hotshelf pin`, or `hotshelf unpin` if `on` is false.
pub fn pin(paths: &[PathBuf], on: bool) -> anyhow::Result<bool> {
    for_each(paths, |path| {
        let (mounted, relative) = locate(path)?;
        let path = escape(&relative);
        if let ControlReply::Done { message } =
            request(&mounted, &if on { ControlRequest::Pin { path } } else { ControlRequest::Unpin { path } })?
        {
            tell!("{message}");
        }
        Ok(true)
    })
}

/// Runs `hotshelf migrate` for each given path.
pub fn migrate(args: &MigrateArgs) -> anyhow::Result<bool> {
    let to = match args.to {
        Side::Ssd => TierName::Ssd,
        Side::Hdd => TierName::Hdd,
    };
    for_each(&args.paths, |path| if args.dry_run { would_migrate(path, to) } else { migrate_one(path, to) })
}

fn migrate_one(path: &Path, to: TierName) -> anyhow::Result<bool> {
    if INTERRUPTED.load(Ordering::SeqCst) {
        bail!("{}: not started", path.display());
    }
    let (mounted, relative) = locate(path)?;
    long_work(&mounted, &ControlRequest::Migrate { path: escape(&relative), to })
}

/// The bar of a long work that says how far it is in files and bytes.
pub fn progress_bar() -> anyhow::Result<ProgressBar> {
    let bar = if shows_progress() { ProgressBar::new(0) } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta} left {msg}");
    bar.set_style(style.context("the progress bar's template")?);
    Ok(bar)
}

/// Asks for something that takes long, and shows how far it is.
pub fn long_work(mounted: &MountEntry, request: &ControlRequest) -> anyhow::Result<bool> {
    let bar = progress_bar()?;
    let mut client = connect(mounted, None)?;
    stop_when_interrupted(&client)?;
    let answer = client.ask(request, &mut |going| {
        if let ControlReply::Progress { files, files_done, bytes, bytes_done } = going {
            bar.set_length(*bytes);
            bar.set_position(*bytes_done);
            bar.set_message(format!("{files_done} of {files} files"));
        }
    });
    bar.finish_and_clear();
    match answer.context("asking the daemon")? {
        ControlReply::Done { message } => tell!("{message}"),
        ControlReply::Failed { message } => bail!("{message}"),
        _ => bail!("the daemon sent an unexpected reply"),
    }
    Ok(true)
}

/// Says what `migrate` would try to move, and moves nothing. A file that is in use or has several names may stay when it is tried.
fn would_migrate(path: &Path, to: TierName) -> anyhow::Result<bool> {
    let (mounted, _) = locate(path)?;
    let mut client = connect(&mounted, None)?;
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
        let (_, relative) = locate(&path)?;
        let answer = client.ask(&ControlRequest::Why { path: escape(&relative) }, &mut |_| {}).context("asking the daemon")?;
        if let ControlReply::Why(why) = answer
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

/// No further path is started.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// The first interrupt makes the daemon stop and report what it has done; the second ends this program.
fn stop_when_interrupted(client: &ControlClient) -> anyhow::Result<()> {
    let stopper = client.stopper().context("watching for interrupts")?;
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).context("watching for interrupts")?;
    std::thread::spawn(move || {
        for (n, _) in signals.forever().enumerate() {
            INTERRUPTED.store(true, Ordering::SeqCst);
            if n > 0 || stopper.shutdown(std::net::Shutdown::Write).is_err() {
                std::process::exit(130);
            }
        }
    });
    Ok(())
}

/// Runs `hotshelf unmount` and waits until the daemon has ended.
pub fn unmount(args: &UnmountArgs) -> anyhow::Result<bool> {
    let deadline = Instant::now() + Duration::from_secs(args.timeout);
    let real = std::fs::canonicalize(&args.mountpoint).unwrap_or_else(|_| without_following(&args.mountpoint));
    if let Some(image) = mount::raw::image_at(&real) {
        unmount_within(&real, &args.mountpoint, deadline)?;
        // Its daemon saves what is in memory, and lets go of the image then.
        while mount::raw::is_in_use(&image) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        if mount::raw::is_in_use(&image) {
            bail!("{} is unmounted, and its daemon still saves to {}: wait until it has ended", args.mountpoint.display(), image.display());
        }
        return Ok(true);
    }
    if let Some(cached) = mount::cached::mount_at(&real) {
        let side = cached_mount::side_status(&cached);
        // Before: another mount may get the device number as soon as this one is gone.
        let daemon =
            cached_mount::cache_of(&cached).and_then(|located| mount::cached::ServingDaemon::find(&located.config, &cached.device()?));
        unmount_within(&real, &args.mountpoint, deadline)?;
        let is_served = || daemon.as_ref().is_some_and(mount::cached::ServingDaemon::is_running);
        while is_served() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        if is_served() {
            bail!("{} is unmounted, and its daemon still writes data back: `hotshelf status` shows its cache", args.mountpoint.display());
        }
        cached_mount::warn_of_side(&cached, side.as_ref());
        return cached_mount::is_written_back(&cached);
    }
    let mounted = at_mountpoint(&args.mountpoint)?;
    let daemon = status_of(&mounted).map(|status| status.pid).ok();
    unmount_within(&mounted.mountpoint, &args.mountpoint, deadline)?;
    // The daemon saves its state before it ends.
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
fn unmount_within(mountpoint: &Path, given: &Path, deadline: Instant) -> anyhow::Result<()> {
    loop {
        let error = match mount::unmount::unmount(mountpoint, false) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if Instant::now() > deadline || !error.busy {
            let holders = holders(mountpoint);
            let who = if holders.is_empty() { String::new() } else { format!(": in use by {}", holders.join(", ")) };
            bail!("{} cannot be unmounted: {}{who}", given.display(), error.text);
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
        let uses_mount = |link: PathBuf| std::fs::read_link(link).is_ok_and(|target| target.starts_with(mountpoint));
        let mut fds = std::fs::read_dir(dir.join("fd")).into_iter().flatten().flatten();
        if uses_mount(dir.join("cwd")) || uses_mount(dir.join("exe")) || fds.any(|fd| uses_mount(fd.path())) {
            let name = std::fs::read_to_string(dir.join("comm")).unwrap_or_default();
            found.push(format!("{} (process {pid})", name.trim()));
        }
    }
    found
}
