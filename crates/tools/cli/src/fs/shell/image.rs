//! mkfs, df, checkfs: the image as a whole.

use anyhow::{Context, bail};
use stack::DeviceName;
use stack::rawfs::fs::check;
use stack::rawfs::{BLOCK_BYTES, DiskSettings, FormatOptions, Settings, Store};

use super::session::Session;
use super::verbs::MkfsArgs;
use crate::fs::{bytes, human};

/// Makes an empty file system, and works on it from then on.
pub fn mkfs(session: &mut Session, args: &MkfsArgs) -> anyhow::Result<()> {
    if session.fs.is_some() && !args.force {
        bail!("{} holds a file system, which is kept (see --force in `help mkfs`)", session.image);
    }
    session.detach()?;
    let made = match session.image.clone() {
        DeviceName::Path(image) => {
            // As `hotshelf fs mkfs` does it: nobody may have the image, nor do we.
            session.device = None;
            let args = crate::fs::args::MkfsArgs {
                image,
                size: args.size,
                metadata: args.metadata,
                log: args.log,
                force: args.force,
                json: false,
            };
            crate::fs::mkfs::make_and_tell(&args).map(|(summary, _)| summary)
        }
        _ => format(session, args),
    };
    let attached = if matches!(&session.image, DeviceName::Path(path) if !path.exists()) { Ok(()) } else { session.attach() };
    let summary = made?;
    attached?;
    writeln!(session.out, "{summary}")?;
    Ok(())
}

/// What has no name in the machine's file system.
fn format(session: &Session, args: &MkfsArgs) -> anyhow::Result<String> {
    let device = session.device.as_ref().context("the device is not open")?;
    let disk = stack::disk_on(&**device, &DiskSettings::default())?;
    let size = bytes(args.size, "--size")?.map(|size| size / BLOCK_BYTES as u64);
    if size.is_some_and(|blocks| blocks > disk.blocks()) {
        bail!("{} has {}: less than --size", session.image, human(disk.blocks() * BLOCK_BYTES as u64));
    }
    let options = FormatOptions {
        blocks: size,
        metadata_bytes: bytes(args.metadata, "--metadata")?,
        log_bytes: bytes(args.log, "--log")?,
        discard: true,
        ..FormatOptions::default()
    };
    Store::format(&disk, &options)?;
    let (store, _) = Store::open(disk, &Settings::default())?;
    let data = human(crate::fs::mkfs::make_root(store)?.blocks * BLOCK_BYTES as u64);
    Ok(format!("{}: a file system with {data} for data", session.image))
}

/// Tells how full it is.
pub fn df(session: &mut Session) -> anyhow::Result<()> {
    let (usage, stat) = (session.fs()?.store().usage(), session.fs()?.stat_fs());
    let block = BLOCK_BYTES as u64;
    let rows = [("data", usage.blocks * block, stat.free * block), ("metadata", usage.nodes * 4 * block, usage.nodes_free * 4 * block)];
    for (what, all, free) in rows {
        let percent = (all.saturating_sub(free) * 100).checked_div(all).unwrap_or(0);
        writeln!(session.out, "{what:9} {:>12} {:>12} free, {percent:>3}% used", human(all), human(free))?;
    }
    Ok(())
}

/// Looks over everything; what is only in memory is written first.
pub fn check(session: &mut Session) -> anyhow::Result<()> {
    let fs = session.fs()?;
    if !session.read_only {
        fs.sync()?;
        fs.store().checkpoint()?;
    }
    let nodes = fs.store().check()?;
    let report = check::check(fs.store())?;
    let mut findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    findings.extend(nodes.leaked.iter().map(|slot| format!("node {slot} of the metadata is in use and belongs to nothing: space is lost")));
    findings.extend(nodes.wrong.iter().map(|slot| format!("node {slot} of the metadata is free or used twice: it may be overwritten")));
    for finding in &findings {
        writeln!(session.out, "{finding}")?;
    }
    let verdict = if findings.is_empty() { "clean".to_owned() } else { format!("{} findings", findings.len()) };
    let (names, dirs, files, blocks) = (report.names, report.dirs, report.files, report.blocks);
    writeln!(session.out, "{names} names in {dirs} directories, {files} files, {blocks} blocks: {verdict}")?;
    if findings.is_empty() { Ok(()) } else { bail!("{} findings, told above", findings.len()) }
}
