//! `hotshelf cache resize`.

use cachedfs::image;
use serde_json::json;

use super::args::ResizeArgs;
use super::{bar, locate, serve, settings, size};

/// Another size of the SSD file, of the memory, or both.
pub fn resize(args: &ResizeArgs) -> anyhow::Result<bool> {
    let mut located = locate::this(&args.this)?;
    serve::take_down(&located)?;
    if let Some(memory) = args.memory {
        located.config.memory = Some(memory);
        if located.file.is_none() {
            anyhow::bail!("{} has no settings to write the memory's size to: `hotshelf cache create` makes them", located.shown());
        }
    }
    let resized = match args.size {
        None => None,
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
    if let (Some(file), Some(memory)) = (&located.file, args.memory) {
        settings::change(file, "memory", &format!("\"{memory}\""), &located.config)?;
    }
    if args.json {
        say_lines!(
            "{}",
            serde_json::to_string_pretty(&json!({ "name": located.config.name, "ssd": resized, "memory": located.config.memory }))?
        );
        return Ok(true);
    }
    if let Some(resized) = resized {
        let (before, now) = (size(resized.bytes_before), size(resized.bytes));
        say!("{}: {now} (it was {before}), {} pages kept, {} left out", located.shown(), resized.pages, resized.left_out);
    }
    if let Some(memory) = args.memory {
        say!("{}: memory {memory}, from the next start on", located.shown());
    }
    Ok(true)
}
