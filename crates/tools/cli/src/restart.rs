//! `hotshelf restart`: the daemon of a cached mount goes on as the program that is installed now.

use std::path::Path;

use anyhow::{Context, bail};
use mount::cached::{CachedMount, OWN_VERSION, RestartReply, reply_to_check};
use mount::source::{is_dead, without_following};

use crate::args::{RestartArgs, TakeoverArgs};
use crate::{Usage, cached_mount, daemon, verbosity};

/// Asks the daemon of a mount to restart, and waits until the new program serves it.
pub fn restart(args: &RestartArgs) -> anyhow::Result<bool> {
    let found = cached_at(&args.mountpoint)?;
    let shown = found.mountpoint.display();
    if !found.is_ours() {
        bail!("{shown} is mounted by user {}, who alone may restart its daemon (sudo -u '#{0}' hotshelf restart {shown})", found.owner);
    }
    if is_dead(&found.mountpoint) {
        bail!("the daemon of {shown} is gone: `hotshelf unmount {shown}`, and mount it again");
    }
    let located = cached_mount::cache_of(&found).with_context(|| format!("the cache {} of {shown} is not known", found.cache.display()))?;
    let device = found.device().with_context(|| format!("{shown} is not mounted any more"))?;
    let reply = mount::cached::restart(&located.config, &device).with_context(|| {
        format!(
            "the daemon of {shown} did not restart, or is of a version that cannot: its log and `hotshelf status` tell whether it serves"
        )
    })?;
    match reply {
        RestartReply::Restarted { before, after, pause_ms, files } => {
            let s = if files == 1 { "" } else { "s" };
            tell!("{shown}: hotshelf {before} was replaced by {after}; {files} open file{s}, a pause of {pause_ms} ms");
            Ok(true)
        }
        RestartReply::Failed { message } => bail!("{shown} was not restarted: {message}"),
        RestartReply::Held => bail!("{shown} was not restarted: its daemon waits for something else"),
    }
}

/// Returns the cached directory that is mounted there.
fn cached_at(path: &Path) -> anyhow::Result<CachedMount> {
    // The name itself is not followed: its daemon may be a stranger's, or gone.
    let real = without_following(path);
    let real = if mount::source::type_at(&real).is_some() { real } else { std::fs::canonicalize(path).unwrap_or(real) };
    if let Some(found) = mount::cached::mount_at(&real) {
        return Ok(found);
    }
    match mount::source::type_at(&real) {
        Some(kind) if kind.starts_with("fuse.hotshelf") => {
            bail!("{}: restart is not supported for this kind of mount yet ({kind}): unmount, and mount again", path.display())
        }
        _ => bail!("no hotshelf is mounted on {}: `hotshelf status` lists the mounts", path.display()),
    }
}

/// Goes on with a mount, or says whether this program could.
pub fn take_over(args: &TakeoverArgs) -> anyhow::Result<bool> {
    if let Some(format) = args.check {
        let Some(consent) = reply_to_check(format) else {
            bail!("hotshelf {OWN_VERSION} cannot take over a state of version {format}");
        };
        say!("{consent}");
        return Ok(true);
    }
    let state = args.state.ok_or_else(|| Usage("the number of the state is missing".into()))?;
    if args.words.iter().any(|word| word == "-v" || word == "--verbose") {
        verbosity::set(false, true);
    }
    daemon::log_to_stderr()?;
    mount::cached::take_over(state)?;
    Ok(true)
}
