//! `hotshelf fs mkfs`.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::json;
use stack::cachedfs::image::what_is_there;
use stack::rawfs::fs::{Creds, Fs, FsSettings, SetAttr, Stamp};
use stack::rawfs::{BLOCK_BYTES, Block, Disk, FormatOptions, Lane, Settings, Store};

use super::args::MkfsArgs;
use super::{bytes, human, is_path, open};
use crate::Usage;

/// Blocks at the begin of a drive that are looked at: any file system has something there.
const BLANK_BLOCKS: u64 = 256;

/// Makes the file if it is not there, and an empty file system in it.
pub fn mkfs(args: &MkfsArgs) -> anyhow::Result<bool> {
    let (told, report) = make_and_tell(args)?;
    if args.json {
        say!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(true);
    }
    tell!("{told}");
    tell!("to see it as a directory: hotshelf fs mount {} DIRECTORY", args.image.display());
    Ok(true)
}

/// The same; returns what is to be told, for people and for programs.
pub fn make_and_tell(args: &MkfsArgs) -> anyhow::Result<(String, serde_json::Value)> {
    let options = FormatOptions {
        metadata_bytes: bytes(args.metadata, "--metadata")?,
        log_bytes: bytes(args.log, "--log")?,
        discard: true,
        ..FormatOptions::default()
    };
    let (size, is_new) = (bytes(args.size, "--size")?, is_path(&args.image) && !args.image.exists());
    if is_new {
        let size = size.ok_or_else(|| Usage(format!("{}: no such file: say how large it shall be, with --size", args.image.display())))?;
        make(&args.image, size)?;
    }
    let made = format(args, size.filter(|_| !is_new), &options);
    if made.is_err() && is_new {
        // A file that is no image would be in the way of the next try.
        std::fs::remove_file(&args.image).with_context(|| format!("{}", args.image.display()))?;
    }
    let (usage, replaced) = made?;
    let (data, metadata) = (usage.blocks * BLOCK_BYTES as u64, usage.nodes * (16 << 10));
    let report = json!({
        "image": args.image, "data_bytes": data, "metadata_bytes": metadata, "log_bytes": usage.log_bytes, "replaced": replaced,
    });
    let replaced = replaced.map_or(String::new(), |what| format!("; {what} is overwritten"));
    let told =
        format!("{}: a file system with {} for data and {} for metadata{replaced}", args.image.display(), human(data), human(metadata));
    Ok((told, report))
}

fn make(image: &Path, size: u64) -> anyhow::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(image).with_context(|| format!("{}", image.display()))?;
    file.set_len(size / BLOCK_BYTES as u64 * BLOCK_BYTES as u64).with_context(|| format!("{}: {}", image.display(), human(size)))
}

/// A drive that has no name in the machine's file system: whether its begin is blank.
fn what_is_on(disk: &Disk) -> std::io::Result<Option<String>> {
    let blocks = disk.blocks().min(BLANK_BLOCKS);
    let mut begin = vec![0; blocks as usize * BLOCK_BYTES];
    disk.read_blocks(Lane::Data, Block(0), &mut begin).map_err(std::io::Error::other)?;
    Ok(begin.iter().any(|byte| *byte != 0).then(|| "something".to_owned()))
}

type Made = (stack::rawfs::Usage, Option<String>);

fn format(args: &MkfsArgs, size: Option<u64>, options: &FormatOptions) -> anyhow::Result<Made> {
    let image = &args.image;
    if is_path(image) {
        let kind = std::fs::metadata(image).with_context(|| format!("{}", image.display()))?.file_type();
        if !kind.is_file() && !kind.is_block_device() && !kind.is_char_device() {
            return Err(Usage(format!("{}: neither a file nor a device", image.display())).into());
        }
    }
    // Nobody else has it from here on.
    let disk = open(image, false)?;
    let replaced = if is_path(image) { what_is_there(image) } else { what_is_on(&disk) };
    let replaced = replaced.with_context(|| format!("{}", image.display()))?;
    if let Some(what) = &replaced
        && !args.force
    {
        bail!("{} holds {what}, which is kept: choose another place (see --force in `hotshelf fs mkfs --help`)", image.display());
    }
    let blocks = size.map(|size| size / BLOCK_BYTES as u64);
    if blocks.is_some_and(|blocks| blocks > disk.blocks()) {
        bail!("{} has {}: less than --size", image.display(), human(disk.blocks() * BLOCK_BYTES as u64));
    }
    Store::format(&disk, &FormatOptions { blocks, ..options.clone() }).with_context(|| format!("{}", image.display()))?;
    let (store, _) = Store::open(disk, &Settings::default())?;
    let usage = make_root(store)?;
    Ok((usage, replaced))
}

/// Makes the top directory, which belongs to the user who makes the file system, and closes the store.
pub fn make_root(store: Store) -> anyhow::Result<stack::rawfs::Usage> {
    Fs::format(&store, Stamp::now())?;
    let usage = store.usage();
    let (fs, _) = Fs::open(store, FsSettings::default())?;
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let owner = SetAttr { owner: Some((Some(user), Some(group))), ..SetAttr::default() };
    fs.set_attr(fs.root(), &owner, &Creds::root())?;
    fs.close()?;
    Ok(usage)
}
