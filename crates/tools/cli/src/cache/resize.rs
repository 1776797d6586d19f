//! `hotshelf cache resize`.

use cachedfs::image;
use serde_json::json;

use super::args::ResizeArgs;
use super::{bar, locate, serve, settings, size};

/// Another size of the SSD file, of the memory, or both.
pub fn resize(args: &ResizeArgs) -> anyhow::Result<bool> {
    let mut located = locate::this(&args.this)?;
    if args.dry_run {
        serve::refuse_if_needed(&located)?;
    } else {
        serve::take_down(&located)?;
    }
    if let Some(memory) = args.memory {
        located.config.memory = Some(memory);
        if located.file.is_none() {
            anyhow::bail!("{} has no settings to write the memory's size to: `hotshelf cache create` makes them", located.shown());
        }
    }
    let resized = match args.size {
        None => None,
        Some(size) if args.dry_run => Some(image::plan_resize(located.ssd("resize")?, size)?),
        Some(size) => {
            let bar = bar("{bar:30} {pos}/{len} pages {eta} left")?;
            let resized = image::resize(located.ssd("resize")?, size, &mut |done, of| {
                bar.set_length(of);
                bar.set_position(done);
            });
            bar.finish_and_clear();
            Some(resized?)
        }
    };
    if let (Some(file), Some(memory)) = (&located.file, args.memory)
        && !args.dry_run
    {
        settings::change(file, "memory", &format!("\"{memory}\""), &located.config)?;
    }
    if args.json {
        say_lines!(
            "{}",
            serde_json::to_string_pretty(
                &json!({ "name": located.config.name, "dry_run": args.dry_run, "ssd": resized, "memory": located.config.memory })
            )?
        );
        return Ok(true);
    }
    if let Some(resized) = resized {
        let (before, now) = (size(resized.bytes_before), size(resized.bytes));
        if args.dry_run {
            say!("{}: would have {now} (it has {before}, and {} pages in it)", located.shown(), resized.pages);
            return Ok(memory_planned(args, &located));
        }
        say!("{}: {now} (it was {before}), {} pages kept, {} left out", located.shown(), resized.pages, resized.left_out);
    }
    if args.dry_run {
        return Ok(memory_planned(args, &located));
    }
    if let Some(memory) = args.memory {
        say!("{}: memory {memory}, from the next start on", located.shown());
    }
    Ok(true)
}

/// Says which memory size it would have, if another size is requested.
fn memory_planned(args: &ResizeArgs, located: &locate::Located) -> bool {
    if let Some(memory) = args.memory {
        say!("{}: would have memory {memory}, from the next start on", located.shown());
    }
    true
}
