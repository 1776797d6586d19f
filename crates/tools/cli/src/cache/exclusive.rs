//! Having a cache for oneself while it is mounted: its mounts leave it for a moment, and programs wait.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use cachedfs::{Config, Instance};
use mount::cached::{CachedMount, HeldMount, hold};

use super::locate::Located;
use super::serve;
use crate::cached_mount;

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

/// Changes a cache that no process uses meanwhile. Its mounts leave it, and go on with the settings that `change` returns; `keep` writes
/// these down when it is known that the cache can be used with them. After an error they go on as before.
///
/// # Errors
/// Other programs use the cache, a mount cannot leave it, or what is dirty cannot be written back; then nothing is changed.
pub fn exclusively<T>(
    located: &Located,
    change: impl FnOnce() -> anyhow::Result<(T, Config)>,
    keep: impl FnOnce(&Config) -> anyhow::Result<()>,
) -> anyhow::Result<Changed<T>> {
    let mounts = mounts_of(located);
    if mounts.is_empty() {
        serve::take_down(located)?;
        let (outcome, config) = change()?;
        keep(&config)?;
        return Ok(Changed { outcome, mounts: 0, pause: Duration::ZERO });
    }
    refuse_own_files(located, &mounts)?;
    // Most of it while programs go on.
    write_back(located)?;
    let held = hold_all(located, mounts)?;
    let count = held.len();
    let changed = change_held(located, change, keep);
    let (outcome, config, attached) = match changed {
        Ok((outcome, config, attached)) => (Ok(outcome), config, Some(attached)),
        Err(error) => (Err(error), located.config.clone(), None),
    };
    let pause = go_on_all(held, &config);
    let left = attached.map_or(Ok(()), |instance| instance.detach());
    let outcome = outcome?;
    let pause = pause?;
    left?;
    Ok(Changed { outcome, mounts: count, pause })
}

/// Changes the cache that its mounts have left. Returns it attached, so that they find it ready.
fn change_held<T>(
    located: &Located,
    change: impl FnOnce() -> anyhow::Result<(T, Config)>,
    keep: impl FnOnce(&Config) -> anyhow::Result<()>,
) -> anyhow::Result<(T, Config, std::sync::Arc<Instance>)> {
    serve::refuse_if_used(located)?;
    write_back(located)?;
    serve::take_down(located)?;
    let (outcome, config) = change()?;
    let instance = Instance::open(&config).context("the cache cannot be used after the change")?;
    if let Err(error) = keep(&config) {
        let _ = instance.detach();
        return Err(error);
    }
    Ok((outcome, config, instance))
}

/// Writes back what is dirty; the last process that leaves the cache takes its memory down.
pub fn write_back(located: &Located) -> anyhow::Result<()> {
    let instance = Instance::open(&located.config)?;
    let flushed = instance.flush(&mut |_, _| {});
    let left = instance.detach();
    let unwritten = || format!("{}: not all is written back, and nothing is changed", located.shown());
    flushed.with_context(unwritten)?;
    left.with_context(unwritten)
}

/// Returns the mounts of this user that use a cache and have a daemon.
fn mounts_of(located: &Located) -> Vec<CachedMount> {
    let is_of = |found: &CachedMount| {
        cached_mount::cache_of(found).is_some_and(|other| other.config.name == located.config.name)
            && !mount::source::is_dead(&found.mountpoint)
    };
    mount::cached::mounts().unwrap_or_default().into_iter().filter(is_of).collect()
}

/// Refuses to stop the mounts on which the files lie that this command needs: it would wait for itself.
fn refuse_own_files(located: &Located, mounts: &[CachedMount]) -> anyhow::Result<()> {
    let program = std::env::current_exe().ok();
    let own = [program.as_deref(), located.config.ssd.as_deref(), located.file.as_deref(), Some(&*located.config.runtime_dir)];
    for path in own.into_iter().flatten() {
        let device = |path: &Path| Some(std::fs::metadata(path).or_else(|_| path.parent().unwrap_or(path).metadata()).ok()?.dev());
        let Some(device) = device(path) else { continue };
        let shown = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        if let Some(on) = mounts.iter().find(|found| found.device().is_some_and(|device| device == shown)) {
            bail!("{} is on {}, which cannot be used while its cache changes: unmount it first", path.display(), on.mountpoint.display());
        }
    }
    Ok(())
}

/// Lets all mounts leave the cache at once. If one cannot, those that have left go on.
fn hold_all(located: &Located, mounts: Vec<CachedMount>) -> anyhow::Result<Vec<(CachedMount, HeldMount)>> {
    let hold_one = |found: CachedMount| {
        let shown = found.mountpoint.display().to_string();
        let Some(device) = found.device() else { return Ok(None) };
        let held = hold(&located.config, &device).with_context(|| format!("{shown} cannot leave its cache, and nothing is changed"))?;
        Ok(Some((found, held)))
    };
    let results: Vec<anyhow::Result<Option<(CachedMount, HeldMount)>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = mounts.into_iter().map(|found| scope.spawn(|| hold_one(found))).collect();
        let joined = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a mount could not be asked, and nothing is changed")))
        };
        threads.into_iter().map(joined).collect()
    });
    let mut held = Vec::new();
    let mut refused = None;
    for result in results {
        match result {
            Ok(one) => held.extend(one),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    match refused {
        None => Ok(held),
        Some(error) => {
            go_on_all(held, &located.config)?;
            Err(error)
        }
    }
}

/// Lets all mounts go on with these settings. Returns the longest time that one of them answered nothing.
fn go_on_all(held: Vec<(CachedMount, HeldMount)>, config: &Config) -> anyhow::Result<Duration> {
    let go_on = |(found, held): (CachedMount, HeldMount)| {
        held.go_on(config).with_context(|| {
            let at = found.mountpoint.display();
            format!(
                "{at}: its daemon could not go on, and the mount is lost: `hotshelf unmount {at}`, and mount it again; the cache is whole"
            )
        })
    };
    let results: Vec<anyhow::Result<Duration>> = std::thread::scope(|scope| {
        let threads: Vec<_> = held.into_iter().map(|one| scope.spawn(|| go_on(one))).collect();
        let joined =
            |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join().unwrap_or_else(|_| bail!("a mount could not be told to go on"));
        threads.into_iter().map(joined).collect()
    });
    results.into_iter().try_fold(Duration::ZERO, |longest, pause| Ok(longest.max(pause?)))
}
