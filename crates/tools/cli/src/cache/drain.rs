//! `hotshelf cache drain`: an SSD that is to be taken away while the cache stays in use.

use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use cachedfs::{Config, Instance, Size, Status, image};
use serde_json::json;

use super::args::DrainArgs;
use super::exclusive::{self, Change, Changed, exclusively};
use super::locate::{self, Located};

/// Writes back what only the SSD has, and lets the cache go on without it, or with it again.
pub fn drain(args: &DrainArgs) -> anyhow::Result<bool> {
    let located = locate::this(&args.this)?;
    let ssd = located.ssd("drain")?.to_owned();
    if located.file.is_none() {
        bail!(
            "{} has no settings that this user has or may change: whoever created it drains it, or `hotshelf cache create` makes settings",
            located.shown()
        );
    }
    if located.config.group.is_some() {
        bail!(
            "{}: the SSD of a group's cache cannot be drained: its users end their programs, then `hotshelf cache destroy`",
            located.shown()
        );
    }
    let running = Instance::look(&located.config)?;
    let is_running = |status: &Status| status.processes.iter().any(|process| process.alive);
    let is_drained = running.as_ref().filter(|status| is_running(status)).and_then(|status| Some(status.ssd.as_ref()?.drained));
    let wanted = !args.undo;
    if located.config.drained == wanted && is_drained.is_none_or(|drained| drained == wanted) {
        report(args, &located, &Changed { outcome: false, mounts: 0, pause: Duration::ZERO });
        return Ok(true);
    }
    let has_failed = running.as_ref().and_then(|status| status.ssd.as_ref()).is_some_and(|ssd| ssd.failed.is_some());
    if wanted {
        refuse_lost(&located, running.as_ref())?;
        if exclusive::mounts_of(&located).is_empty() {
            exclusive::write_back(&located)?;
        }
    } else {
        refuse_missing(&ssd, args.size)?;
    }
    let config = Config { drained: wanted, ..located.config.clone() };
    let changed = exclusively(
        &located,
        Change {
            config: config.clone(),
            setting: Some(("drained", wanted.to_string())),
            make: Box::new(|| {
                match wanted {
                    // What a failed one has is known to be nothing that is needed.
                    true if has_failed => {}
                    true => refuse_dirty(&located)?,
                    false => make_if_missing(&ssd, args.size, &config)?,
                }
                Ok(true)
            }),
            undo: Box::new(|_| {}),
        },
    )?;
    report(args, &located, &changed);
    Ok(true)
}

/// Prints what was done; the outcome says whether anything was to be done.
fn report(args: &DrainArgs, located: &Located, changed: &Changed<bool>) {
    let (shown, name, pause) = (located.shown(), &located.config.name, changed.pause_shown());
    if args.json {
        let (ssd, pause_ms) = (&located.config.ssd, changed.pause.as_millis());
        let (drained, is_changed, mounts) = (!args.undo, changed.outcome, changed.mounts);
        say!("{}", json!({ "name": name, "ssd": ssd, "drained": drained, "changed": is_changed, "mounts": mounts, "pause_ms": pause_ms }));
    } else if args.undo {
        tell!("{shown} is in use {}{pause}", if changed.outcome { "again" } else { "already" });
    } else if !changed.outcome {
        tell!("{shown} is drained already");
    } else {
        tell!("{shown} is drained{pause}");
        tell!("no process uses it any more, and all it has is in the files: it can be unmounted, replaced or removed; until");
        tell!("  hotshelf cache drain --undo {shown}");
        tell!("the cache {name} has memory alone");
    }
}

/// Refuses to drain an SSD that failed with the only copy of something.
fn refuse_lost(located: &Located, running: Option<&Status>) -> anyhow::Result<()> {
    let Some(status) = running.filter(|status| status.ssd.as_ref().is_some_and(|ssd| ssd.failed.is_some())) else { return Ok(()) };
    if status.dirty_bytes > 0 || !status.lost.is_empty() {
        bail!(
            "{0} has failed, and {1} that only it has are in no file: `hotshelf cache status {0}` names the files, `hotshelf cache flush \
             --discard-lost {0}` gives them up",
            located.shown(),
            super::size(status.dirty_bytes)
        );
    }
    Ok(())
}

/// Refuses to drain what is still the only copy of something.
fn refuse_dirty(located: &Located) -> anyhow::Result<()> {
    let left = image::inspect(located.ssd("drain")?)?.dirty_pages;
    if left > 0 {
        bail!(
            "{}: {} on it are in no file yet, and nothing is changed: `hotshelf cache status {0}` says why",
            located.shown(),
            super::size(left * 4096)
        );
    }
    Ok(())
}

fn is_there(ssd: &Path) -> bool {
    cachedfs::user_space_nvme::is_meant(ssd) || std::fs::symlink_metadata(ssd).is_ok()
}

/// Refuses to use an SSD that is not there, or to make one that is.
fn refuse_missing(ssd: &Path, size: Option<Size>) -> anyhow::Result<()> {
    match (is_there(ssd), size) {
        (false, None) => bail!("{} is not there: bring it back, or give --size to make it anew", ssd.display()),
        (true, Some(_)) => bail!("{} is there, and --size would make it anew: leave it out, or remove the file", ssd.display()),
        _ => Ok(()),
    }
}

/// Makes the SSD file anew.
fn make_if_missing(ssd: &Path, size: Option<Size>, config: &Config) -> anyhow::Result<()> {
    if let Some(size) = size.filter(|_| !is_there(ssd)) {
        let group = config.group.as_deref().map(crate::queue::group_id).transpose()?;
        image::create(ssd, &image::Options { size: Some(size), force: false, group }, &mut |_, _| {})?;
    }
    Ok(())
}
