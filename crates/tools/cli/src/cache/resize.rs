//! `hotshelf cache resize`.

use std::time::Duration;

use cachedfs::image::{self, Resized};
use cachedfs::{Config, Instance, Size, Status};
use serde_json::json;

use super::args::ResizeArgs;
use super::exclusive::{Change, Changed, exclusively, mounts_of};
use super::locate::{self, Located};
use super::{bar, create, serve, size};

/// Another size of the SSD file, of the memory, or both.
pub fn resize(args: &ResizeArgs) -> anyhow::Result<bool> {
    let located = locate::this(&args.this)?;
    if args.memory.is_some() && located.file.is_none() {
        anyhow::bail!("{} has no settings to write the memory's size to: `hotshelf cache create` makes them", located.shown());
    }
    let config = Config { memory: args.memory.or(located.config.memory), ..located.config.clone() };
    // What is known to be wrong is said before anybody has to wait.
    config.check()?;
    create::sizes_make_sense(&config)?;
    let checked = args.size.map(|size| Ok::<_, anyhow::Error>(image::check_size(located.ssd("resize")?, size)?)).transpose()?.flatten();
    let changed = if args.dry_run { plan(args, &located, checked)? } else { change(args, &located, config.clone())? };
    let (resized, pause) = (&changed.outcome, changed.pause_shown());
    if args.json {
        say_lines!(
            "{}",
            serde_json::to_string_pretty(&json!({
                "name": config.name,
                "dry_run": args.dry_run,
                "ssd": resized,
                "memory": config.memory,
                "mounts": changed.mounts,
                "pause_ms": changed.pause.as_millis()
            }))?
        );
        return Ok(true);
    }
    if let Some(resized) = resized.as_ref() {
        let (before, now) = (size(resized.bytes_before), size(resized.bytes));
        if args.dry_run {
            say!("{}: would have {now} (it has {before}, and {} pages in it)", located.shown(), resized.pages);
            return Ok(memory_planned(args, &located, changed.mounts));
        }
        say!("{}: {now} (it was {before}), {} pages kept, {} left out{pause}", located.shown(), resized.pages, resized.left_out);
    }
    if args.dry_run {
        return Ok(memory_planned(args, &located, changed.mounts));
    }
    if let Some(memory) = args.memory {
        let when = if changed.mounts == 0 { ", from the next start on" } else { "" };
        let pause = if resized.is_none() { &*pause } else { "" };
        say!("{}: memory {memory}{when}{pause}", located.shown());
    }
    Ok(true)
}

/// Changes the sizes.
fn change(args: &ResizeArgs, located: &Located, config: Config) -> anyhow::Result<Changed<Option<Resized>>> {
    let has_failed = |status: Status| status.ssd.is_some_and(|ssd| ssd.failed.is_some());
    if Instance::look(&located.config)?.is_some_and(has_failed) {
        anyhow::bail!("{0} has failed: take it out with `hotshelf cache drain {0}` first", located.shown());
    }
    let bar = bar("{bar:30} {pos}/{len} pages {eta} left")?;
    let resize = |size: Size| {
        let resized = image::resize(located.ssd("resize")?, size, &mut |done, of| {
            bar.set_length(of);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        Ok::<_, anyhow::Error>(resized?)
    };
    let change = Change {
        config,
        setting: args.memory.map(|memory| ("memory", format!("\"{memory}\""))),
        make: Box::new(|| args.size.map(resize).transpose()),
        undo: Box::new(|resized: &Option<Resized>| {
            let before = resized.as_ref().map(|resized| Size::Bytes(resized.bytes_before));
            if let Some(Err(error)) = before.map(resize) {
                complain!("{}: it keeps its new size: {error:#}", located.shown());
            }
        }),
    };
    exclusively(located, change)
}

/// Returns what would be changed; `checked` has the bytes of the SSD's file before and after.
fn plan(args: &ResizeArgs, located: &Located, checked: Option<(u64, u64)>) -> anyhow::Result<Changed<Option<Resized>>> {
    let mounts = mounts_of(located).len();
    let planned = |outcome| Ok(Changed { outcome, mounts, pause: Duration::ZERO });
    if mounts == 0 {
        serve::refuse_if_needed(located)?;
        return planned(args.size.map(|size| Ok::<_, anyhow::Error>(image::plan_resize(located.ssd("resize")?, size)?)).transpose()?);
    }
    let pages = Instance::look(&located.config)?.and_then(|status| status.ssd).map_or(0, |ssd| ssd.pages);
    planned(checked.map(|(bytes_before, bytes)| Resized { bytes_before, bytes, pages, left_out: 0 }))
}

/// Says which memory size it would have, if another size is requested.
fn memory_planned(args: &ResizeArgs, located: &Located, mounts: usize) -> bool {
    if let Some(memory) = args.memory {
        let when = if mounts == 0 { ", from the next start on" } else { "" };
        say!("{}: would have memory {memory}{when}", located.shown());
    }
    true
}
