//! Having a cache for oneself while it is mounted: its mounts leave it for a moment, and programs wait.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use cachedfs::{Config, Instance};
use mount::cached::{CachedMount, HeldMount, hold};

use super::locate::Located;
use super::settings::{self, SavedSettings};
use super::{bar, serve};
use crate::cached_mount;

/// A change of a cache that no process uses meanwhile.
pub struct Change<'a, T> {
    /// The settings of the cache afterwards.
    pub config: Config,
    /// The key of the settings that changes, and its value as TOML.
    pub setting: Option<(&'static str, String)>,
    /// Makes the change of the SSD.
    pub make: Box<dyn FnOnce() -> anyhow::Result<T> + 'a>,
    /// Changes it back, if the cache cannot be used afterwards.
    pub undo: Box<dyn FnOnce(&T) + 'a>,
}

/// What was done to a cache, and what its mounts had to do with it.
#[derive(Debug)]
pub struct Changed<T> {
    /// The outcome of the change.
    pub outcome: T,
    /// Mounts that left the cache for the change.
    pub mounts: usize,
    /// How long programs waited, at most.
    pub pause: Duration,
}

impl<T> Changed<T> {
    /// Returns a sentence's end about the mounts.
    pub fn pause_shown(&self) -> String {
        match self.mounts {
            0 => String::new(),
            1 => format!("; programs on its mount waited for {} ms", self.pause.as_millis()),
            mounts => format!("; programs on its {mounts} mounts waited for {} ms", self.pause.as_millis()),
        }
    }
}

/// Changes a cache that no process uses meanwhile. Its mounts leave it, and go on with the new settings; after an error, with those that
/// they had.
///
/// # Errors
/// Other programs use the cache, a mount cannot leave it, or what is dirty cannot be written back; then nothing is changed.
pub fn exclusively<T>(located: &Located, change: Change<'_, T>) -> anyhow::Result<Changed<T>> {
    let mounts = mounts_of(located);
    if mounts.is_empty() {
        serve::take_down(located)?;
        // What is attached to is the same as at the next start; only whether others have begun to use the SSD has to be seen.
        let is_checked = change.config.drained != located.config.drained;
        let (outcome, instance) = apply(located, change, is_checked)?;
        instance.map_or(Ok(()), |instance| instance.detach())?;
        return Ok(Changed { outcome, mounts: 0, pause: Duration::ZERO });
    }
    refuse_own_files(located, &mounts)?;
    // Most of it while programs go on.
    write_back(located)?;
    // Whoever stops this command in the foreground would stop the mounts.
    let ignored = signal_hook::flag::register(signal_hook::consts::SIGTSTP, Arc::new(AtomicBool::new(false)));
    let mut held = hold_all(located, mounts)?;
    let (count, config) = (held.len(), change.config.clone());
    let changed = prepare(located, &mut held).and_then(|()| apply(located, change, true));
    let pause = go_on_all(held, changed.is_ok().then_some(&config));
    if let Ok(id) = ignored {
        signal_hook::low_level::unregister(id);
    }
    match (changed, pause) {
        (Ok((outcome, instance)), Ok(pause)) => {
            instance.map_or(Ok(()), |instance| instance.detach())?;
            Ok(Changed { outcome, mounts: count, pause })
        }
        (Ok((_, instance)), Err(error)) => {
            let _ = instance.map(|instance| instance.detach());
            Err(error.context("the cache is changed"))
        }
        (Err(error), Ok(_)) => Err(error),
        (Err(error), Err(also)) => Err(anyhow!("{error:#}; and {also:#}")),
    }
}

/// Makes sure that nobody else uses the cache that its mounts have left, and that all is written back.
fn prepare(located: &Located, held: &mut [(CachedMount, HeldMount)]) -> anyhow::Result<()> {
    serve::refuse_if_used(located)?;
    write_back(located)?;
    for (found, mount) in held {
        mount.begin_change().with_context(|| format!("{}: nothing is changed", found.mountpoint.display()))?;
    }
    serve::take_down(located)
}

/// Changes the cache, writes the settings, and attaches to see that it can be used so, if that is to be checked. If it cannot, all is as
/// before.
fn apply<T>(located: &Located, change: Change<'_, T>, is_checked: bool) -> anyhow::Result<(T, Option<Arc<Instance>>)> {
    let saved = located.file.as_deref().filter(|_| change.setting.is_some()).map(SavedSettings::of).transpose()?;
    let outcome = (change.make)()?;
    // Before the cache is used so: whoever begins to use it then finds these.
    let written = match (&located.file, &change.setting) {
        (Some(file), Some((key, value))) => settings::change(file, key, value, &change.config),
        _ => Ok(()),
    };
    let attached = written.and_then(|()| if is_checked { attach(&change.config).map(Some) } else { Ok(None) });
    match attached {
        Ok(instance) => Ok((outcome, instance)),
        Err(error) => {
            (change.undo)(&outcome);
            match saved.map_or(Ok(()), |saved| saved.restore()) {
                Ok(()) => Err(error),
                Err(also) => Err(anyhow!("{error:#}; and {also:#}")),
            }
        }
    }
}

/// Attaches to a cache, and checks that it uses its SSD as these settings say.
fn attach(config: &Config) -> anyhow::Result<Arc<Instance>> {
    let instance = Instance::open(config).context("the cache cannot be used after the change, which is undone")?;
    let is_drained = instance.status().ssd.is_some_and(|ssd| ssd.drained);
    if config.ssd.is_some() && is_drained != config.drained {
        let _ = instance.detach();
        bail!("another program has begun to use the cache meanwhile, with the settings of before, which are in force again: try again");
    }
    Ok(instance)
}

/// Writes back what is dirty; the last process that leaves the cache takes its memory down.
pub fn write_back(located: &Located) -> anyhow::Result<()> {
    let bar = bar("writing back {bar:30} {pos}/{len} pages {eta} left")?;
    let instance = Instance::open(&located.config)?;
    let flushed = instance.flush(&mut |done, of| {
        bar.set_length(of);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let left = instance.detach();
    drop(instance);
    Instance::forget_left(&located.config);
    let unwritten = || format!("{}: not all is written back, and nothing is changed", located.shown());
    flushed.with_context(unwritten)?;
    left.with_context(unwritten)
}

/// Returns the mounts of this user that use a cache and have a daemon.
pub fn mounts_of(located: &Located) -> Vec<CachedMount> {
    let is_of = |found: &CachedMount| {
        cached_mount::cache_of(found).is_some_and(|other| other.config.name == located.config.name)
            && !mount::source::is_dead(&found.mountpoint)
    };
    mount::cached::mounts().unwrap_or_default().into_iter().filter(is_of).collect()
}

/// Refuses to stop the mounts on which the files lie that this command needs, or has open: it would wait for itself, also when it ends.
fn refuse_own_files(located: &Located, mounts: &[CachedMount]) -> anyhow::Result<()> {
    let devices: Vec<(&CachedMount, String)> = mounts.iter().filter_map(|found| Some((found, found.device()?))).collect();
    let mount_of = |device: u64| {
        let shown = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        devices.iter().find(|(_, device)| *device == shown).map(|(found, _)| found.mountpoint.display())
    };
    let beside = |path: &Path| path.parent().map(Path::to_owned);
    let needed: [Option<PathBuf>; 6] = [
        std::env::current_exe().ok(),
        located.config.ssd.clone(),
        located.file.clone(),
        located.file.as_deref().and_then(beside),
        Some(located.config.runtime_dir.clone()),
        cachedfs::state_directory(),
    ];
    for path in needed.into_iter().flatten() {
        let found = path.ancestors().find_map(|path| path.metadata().ok());
        if let Some(at) = found.and_then(|found| mount_of(found.dev())) {
            bail!("{} is on {at}, which cannot be used while its cache changes: unmount it first", path.display());
        }
    }
    for entry in std::fs::read_dir("/proc/self/fd").context("looking at the open files of this command")?.flatten() {
        if let Some(at) = entry.path().metadata().ok().and_then(|found| mount_of(found.dev())) {
            let name = std::fs::read_link(entry.path()).unwrap_or_default();
            bail!(
                "this command has {} open on {at}, which cannot be used while its cache changes: send its output elsewhere",
                name.display()
            );
        }
    }
    Ok(())
}

/// Lets all mounts leave the cache at once. If one cannot, those that have left go on.
fn hold_all(located: &Located, mounts: Vec<CachedMount>) -> anyhow::Result<Vec<(CachedMount, HeldMount)>> {
    let hold_one = |found: CachedMount| {
        let Some(device) = found.device() else { return Ok(None) };
        match hold(&located.config, &device) {
            Ok(held) => Ok(Some((found, held))),
            Err(error) => {
                Err(anyhow!("{} cannot leave its cache, and nothing is changed: {}", found.mountpoint.display(), describe(&error)))
            }
        }
    };
    let results: Vec<anyhow::Result<Option<(CachedMount, HeldMount)>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = mounts.into_iter().map(|found| scope.spawn(|| hold_one(found))).collect();
        let failed = || Err(anyhow!("a mount could not be reached, and nothing is changed"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| failed())).collect()
    });
    let mut held = Vec::new();
    let mut refused = None;
    for result in results {
        match result {
            Ok(one) => held.extend(one),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    let Some(error) = refused else { return Ok(held) };
    match go_on_all(held, None) {
        Ok(_) => Err(error),
        Err(also) => Err(anyhow!("{error:#}; and {also:#}")),
    }
}

/// Says why a daemon did not leave the cache.
fn describe(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => "its daemon is gone, or cannot be restarted (see its log)".into(),
        ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe => {
            "another command was at work on it, or its daemon ended: try again".into()
        }
        ErrorKind::TimedOut | ErrorKind::WouldBlock => "its daemon does not reply".into(),
        _ => error.to_string(),
    }
}

/// Lets all mounts go on, with these settings or those that they had. Returns the longest time that one of them answered nothing.
fn go_on_all(held: Vec<(CachedMount, HeldMount)>, config: Option<&Config>) -> anyhow::Result<Duration> {
    let go_on = |(found, held): (CachedMount, HeldMount)| {
        held.go_on(config).map_err(|error| {
            let (at, why) = (found.mountpoint.display(), describe(&error));
            anyhow!("{at} did not go on ({why}): if its daemon is gone, `hotshelf unmount {at}`, and mount it again; the cache is whole")
        })
    };
    let results: Vec<anyhow::Result<Duration>> = std::thread::scope(|scope| {
        let threads: Vec<_> = held.into_iter().map(|one| scope.spawn(|| go_on(one))).collect();
        let failed = || Err(anyhow!("a mount could not be notified to go on"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| failed())).collect()
    });
    results.into_iter().try_fold(Duration::ZERO, |longest, pause| Ok(longest.max(pause?)))
}
