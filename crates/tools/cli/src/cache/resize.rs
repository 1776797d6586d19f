//! `hotshelf cache resize`.

use std::time::Duration;

use cachedfs::image::{self, Resized};
use cachedfs::{Config, Size};
use serde_json::json;

use super::args::ResizeArgs;
use super::exclusive::{Changed, exclusively};
use super::{bar, locate, serve, settings, size};

/// Another size of the SSD file, of the memory, or both.
pub fn resize(args: &ResizeArgs) -> anyhow::Result<bool> {
    let located = locate::this(&args.this)?;
    if args.memory.is_some() && located.file.is_none() {
        anyhow::bail!("{} has no settings to write the memory's size to: `hotshelf cache create` makes them", located.shown());
    }
    let config = Config { memory: args.memory.or(located.config.memory), ..located.config.clone() };
    let changed = if args.dry_run {
        serve::refuse_if_needed(&located)?;
        let planned = args.size.map(|size| Ok::<_, anyhow::Error>(image::plan_resize(located.ssd("resize")?, size)?)).transpose()?;
        Changed { outcome: planned, mounts: 0, pause: Duration::ZERO }
    } else {
        let change = || Ok((args.size.map(|size| resize_ssd(&located, size)).transpose()?, config.clone()));
        exclusively(&located, change, |wanted| match (&located.file, args.memory) {
            (Some(file), Some(memory)) => settings::change(file, "memory", &format!("\"{memory}\""), wanted),
            _ => Ok(()),
        })?
    };
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
            return Ok(memory_planned(args, &located));
        }
        say!("{}: {now} (it was {before}), {} pages kept, {} left out{pause}", located.shown(), resized.pages, resized.left_out);
    }
    if args.dry_run {
        return Ok(memory_planned(args, &located));
    }
    if let Some(memory) = args.memory {
        let when = if changed.mounts == 0 { ", from the next start on" } else { "" };
        let pause = if resized.is_none() { &*pause } else { "" };
        say!("{}: memory {memory}{when}{pause}", located.shown());
    }
    Ok(true)
}

/// Gives the SSD another size, with a bar.
fn resize_ssd(located: &locate::Located, size: Size) -> anyhow::Result<Resized> {
    let bar = bar("{bar:30} {pos}/{len} pages {eta} left")?;
    let resized = image::resize(located.ssd("resize")?, size, &mut |done, of| {
        bar.set_length(of);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    Ok(resized?)
}

/// Says which memory size it would have, if another size is requested.
fn memory_planned(args: &ResizeArgs, located: &locate::Located) -> bool {
    if let Some(memory) = args.memory {
        say!("{}: would have memory {memory}, from the next start on", located.shown());
    }
    true
}
