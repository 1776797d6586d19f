//! `hotshelf cache drain`: an SSD that is to be taken away while the cache stays in use.

use std::path::Path;

use anyhow::bail;
use cachedfs::{Config, Size, image};
use serde_json::json;

use super::args::DrainArgs;
use super::exclusive::{self, exclusively};
use super::{locate, settings};

/// Writes back what only the SSD has, and lets the cache go on without it, or with it again.
pub fn drain(args: &DrainArgs) -> anyhow::Result<bool> {
    let located = locate::this(&args.this)?;
    let ssd = located.ssd("drain")?.to_owned();
    let Some(file) = &located.file else {
        bail!("{} has no settings to write it to: `hotshelf cache create` makes them", located.shown());
    };
    let drained = !args.undo;
    let config = Config { drained, ..located.config.clone() };
    if located.config.drained == drained {
        tell!("{}: {}", located.shown(), if drained { "drained already" } else { "in use already" });
        return Ok(true);
    }
    if drained {
        exclusive::write_back(&located)?;
    }
    let change = || {
        if drained {
            refuse_dirty(&located)?;
        } else {
            make_if_missing(&ssd, args.size, &config)?;
        }
        Ok(((), config))
    };
    let changed =
        exclusively(&located, change, |wanted| settings::change(file, "drained", if drained { "true" } else { "false" }, wanted))?;
    if args.json {
        let pause_ms = changed.pause.as_millis();
        say!("{}", json!({ "name": located.config.name, "ssd": ssd, "drained": drained, "mounts": changed.mounts, "pause_ms": pause_ms }));
    } else if drained {
        tell!("{} is drained{}", located.shown(), changed.pause_shown());
        tell!("no process uses it any more, and all it has is in the files: it can be unmounted, replaced or removed; until");
        tell!("  hotshelf cache drain --undo {}", located.shown());
        tell!("the cache {} has memory alone", located.config.name);
    } else {
        tell!("{} is in use again{}", located.shown(), changed.pause_shown());
    }
    Ok(true)
}

/// Refuses to drain what is still the only copy of something.
fn refuse_dirty(located: &locate::Located) -> anyhow::Result<()> {
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

/// Makes the SSD file anew, or refuses to use one that is not there.
fn make_if_missing(ssd: &Path, size: Option<Size>, config: &Config) -> anyhow::Result<()> {
    if cachedfs::user_space_nvme::is_meant(ssd) || std::fs::symlink_metadata(ssd).is_ok() {
        return Ok(());
    }
    let shown = ssd.display();
    let Some(size) = size else { bail!("{shown} is not there: bring it back, or give --size to make it anew") };
    let group = config.group.as_deref().map(crate::queue::group_id).transpose()?;
    image::create(ssd, &image::Options { size: Some(size), force: false, group }, &mut |_, _| {})?;
    Ok(())
}
