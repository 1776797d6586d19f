//! `hotshelf fs check`.

use anyhow::Context;
use serde_json::json;
use stack::rawfs::fs::{Fs, FsSettings, check};
use stack::rawfs::{Settings, Store};

use super::args::CheckArgs;
use super::open;

/// Looks over a file system that is not in use; `false` when something is wrong. What a crash left is put right first, as by
/// every opening.
pub fn check(args: &CheckArgs) -> anyhow::Result<bool> {
    let named = || format!("{}", args.image.display());
    let (store, recovery) = Store::open(open(&args.image, false)?, &Settings::default()).with_context(named)?;
    let nodes = store.check().with_context(named)?;
    let (fs, orphans) = Fs::open(store, FsSettings::default()).with_context(named)?;
    let report = check::check(fs.store()).with_context(named)?;
    fs.close()?;
    let mut findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    findings.extend(nodes.leaked.iter().map(|slot| format!("node {slot} of the metadata is in use and belongs to nothing: space is lost")));
    findings.extend(nodes.wrong.iter().map(|slot| format!("node {slot} of the metadata is free or used twice: it may be overwritten")));
    if args.json {
        let report = json!({
            "image": args.image, "clean": recovery.clean, "batches_from_log": recovery.replayed, "unnamed_removed": orphans,
            "names": report.names, "directories": report.dirs, "files": report.files, "blocks": report.blocks, "findings": findings,
        });
        say!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(findings.is_empty());
    }
    if !recovery.clean {
        say!("it was not closed in order: {} changes taken from the log, {orphans} unnamed files removed", recovery.replayed);
    }
    for finding in &findings {
        say!("{finding}");
    }
    let verdict = if findings.is_empty() { "clean".to_owned() } else { format!("{} findings", findings.len()) };
    say!("{} names in {} directories, {} files, {} blocks: {verdict}", report.names, report.dirs, report.files, report.blocks);
    Ok(findings.is_empty())
}
