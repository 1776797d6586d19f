//! `hotshelf cache flush` and `mode`: what changes a cache that is in use.

use cachedfs::{Instance, mode_name};
use serde_json::json;

use super::args::{FlushArgs, ModeArgs};
use super::{bar, locate, settings, size};

/// Writes everything dirty below, and ends.
pub fn flush(args: &FlushArgs) -> anyhow::Result<bool> {
    let located = locate::which(&args.which)?;
    let instance = Instance::open(&located.config)?;
    let discarded = if args.discard_lost { instance.discard_lost()? } else { 0 };
    let bar = bar("{bar:30} {pos}/{len} pages {eta} left")?;
    // What is dirty now is in its files when the call is over, whoever wrote it there.
    let pages = instance.status().dirty_bytes / 4096;
    let flushed = instance.flush(&mut |done, of| {
        bar.set_length(of);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let status = instance.status();
    let lost = &status.lost;
    // What else is dirty by now is written by whoever stays.
    let left = instance.detach();
    if let Err(error) = flushed {
        // What can be done about each of them.
        if !args.json {
            super::show::stranded(&status);
        }
        return Err(error.into());
    }
    left?;
    if args.json {
        say!("{}", json!({ "name": located.config.name, "pages": pages, "bytes": pages * 4096, "lost": lost, "discarded": discarded }));
    } else {
        tell!("{}: {pages} pages ({}) are in their files now", located.shown(), size(pages * 4096));
        if args.discard_lost {
            tell!("{discarded} pages ({}) that only its SSD had were given up", size(discarded * 4096));
        }
        for lost in lost {
            say!("lost: {} bytes {} to {}: {}", lost.path.display(), lost.start, lost.end, lost.why);
        }
    }
    Ok(lost.is_empty())
}

/// Changes the mode, of those who use the cache now and from now on.
pub fn mode(args: &ModeArgs) -> anyhow::Result<bool> {
    let located = locate::this(&args.this)?;
    let (from, is_used) = match Instance::look(&located.config)? {
        None => (located.config.mode, false),
        Some(status) => {
            let instance = Instance::open(&located.config)?;
            let changed = instance.set_mode(args.mode);
            let left = instance.detach();
            changed?;
            left?;
            (status.mode, true)
        }
    };
    if let Some(file) = &located.file {
        let wanted = cachedfs::Config { mode: args.mode, ..cachedfs::Config::read(file)? };
        settings::change(file, "mode", &format!("\"{}\"", mode_name(args.mode)), &wanted)?;
    }
    let (before, now) = (mode_name(from), mode_name(args.mode));
    if args.json {
        say!("{}", json!({ "name": located.config.name, "mode": now, "before": before, "in_use": is_used, "settings": located.file }));
        return Ok(true);
    }
    let kept = match &located.file {
        Some(file) => format!(", and written to {}", file.display()),
        None if is_used => ", until the last program leaves".to_owned(),
        None => anyhow::bail!("{} is not in use and has no settings: `hotshelf cache create` writes them", located.shown()),
    };
    tell!("{}: {now} (it was {before}){kept}", located.shown());
    Ok(true)
}
