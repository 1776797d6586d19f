//! `hotshelf cache destroy`.

use anyhow::Context;
use cachedfs::{Instance, image};
use serde_json::json;

use super::args::DestroyArgs;
use super::{locate, serve};

/// Removes the SSD file or what marks the device, the segment if one was left, and the settings.
pub fn destroy(args: &DestroyArgs) -> anyhow::Result<bool> {
    let located = locate::this(&args.this)?;
    if located.config.drained && Instance::is_running(&located.config) {
        return remove_drained(args, &located);
    }
    // One that was killed may have left pages in memory: they are as dirty as those on the SSD.
    if args.discard {
        serve::refuse_if_used(&located)?
    } else {
        serve::refuse_if_needed(&located)?
    }
    if let Some(ssd) = &located.config.ssd
        && (cachedfs::user_space_nvme::is_meant(ssd) || std::fs::symlink_metadata(ssd).is_ok())
    {
        if args.dry_run {
            image::check_removal(ssd, args.discard)?;
        } else {
            image::remove(ssd, args.discard)?;
        }
    } else if let Some(ssd) = located.config.ssd.as_deref().filter(|_| args.discard && !args.dry_run) {
        image::forget_note(ssd)?;
    }
    if !args.dry_run {
        Instance::destroy(&located.config, true)?;
    }
    if let Some(file) = located.file.as_ref().filter(|_| !args.dry_run) {
        std::fs::remove_file(file).with_context(|| format!("{}: the settings cannot be removed", file.display()))?;
    }
    if args.json {
        say!("{}", json!({ "name": located.config.name, "dry_run": args.dry_run, "ssd": located.config.ssd, "settings": located.file }));
    } else if args.dry_run {
        let settings = located.file.as_ref().map_or(String::new(), |file| format!(", and its settings, {}", file.display()));
        say!("{} would be removed{settings}", located.shown());
    } else {
        say!("{} is gone", located.shown());
    }
    Ok(true)
}

/// Removes the SSD of a cache that is in use without it. The settings stay for its mounts.
fn remove_drained(args: &DestroyArgs, located: &locate::Located) -> anyhow::Result<bool> {
    let ssd = located.ssd("remove")?;
    if args.dry_run {
        image::check_removal(ssd, args.discard)?;
    } else {
        image::remove(ssd, args.discard)?;
    }
    if args.json {
        say!("{}", json!({ "name": located.config.name, "dry_run": args.dry_run, "ssd": ssd, "settings": null }));
    } else if args.dry_run {
        say!("{} would be removed; its settings would stay as long as it is in use", located.shown());
    } else {
        say!(
            "{0} is gone; the cache {1} has memory alone, and its settings stay as long as it is in use",
            located.shown(),
            located.config.name
        );
    }
    Ok(true)
}
