//! `hotshelf fs mkfs`.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use anyhow::{Context, bail};
use rustix::fs::{Mode, OFlags};
use serde_json::json;
use stack::cachedfs::image::what_is_there;
use stack::rawfs::fs::{Creds, Fs, FsSettings, SetAttr, Timestamp};
use stack::rawfs::{BLOCK_BYTES, Block, Disk, FormatOptions, QueueClass, Settings, Store};

use super::args::MkfsArgs;
use super::staging::{NewFile, by_number};
use super::{bytes, human, is_path, open};
use crate::Usage;

/// Blocks at the begin of a drive that are looked at: any file system has something there.
const BLANK_BLOCKS: u64 = 256;

/// Makes the file if it is not there, and an empty file system in it.
pub fn mkfs(args: &MkfsArgs) -> anyhow::Result<bool> {
    let (summary, report) = make_and_tell(args)?;
    if args.json {
        say_lines!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(true);
    }
    tell!("{summary}");
    tell!("to see it as a directory: hotshelf fs mount {} DIRECTORY", args.image.display());
    Ok(true)
}

/// Does the same, and returns the report for people and for programs.
pub fn make_and_tell(args: &MkfsArgs) -> anyhow::Result<(String, serde_json::Value)> {
    let options = FormatOptions {
        metadata_bytes: bytes(args.metadata, "--metadata")?,
        log_bytes: bytes(args.log, "--log")?,
        discard: true,
        ..FormatOptions::default()
    };
    let (size, is_new) = (bytes(args.size, "--size")?, is_path(&args.image) && !args.image.exists());
    let (usage, replaced) = if is_new {
        let size = size.ok_or_else(|| Usage(format!("{}: no such file: say how large it shall be, with --size", args.image.display())))?;
        make(args, size, &options)?
    } else {
        format(args, &args.image, size, &options)?
    };
    let (data, metadata) = (usage.blocks * BLOCK_BYTES as u64, usage.nodes * (16 << 10));
    let report = json!({
        "image": args.image, "data_bytes": data, "metadata_bytes": metadata, "log_bytes": usage.log_bytes, "replaced": replaced,
    });
    let replaced = replaced.map_or(String::new(), |what| format!("; {what} is overwritten"));
    let summary =
        format!("{}: a file system with {} for data and {} for metadata{replaced}", args.image.display(), human(data), human(metadata));
    Ok((summary, report))
}

/// Makes the file, which gets its name when there is a file system in it: half of one would be in the way of the next try.
fn make(args: &MkfsArgs, size: u64, options: &FormatOptions) -> anyhow::Result<Made> {
    let named = || format!("{}", args.image.display());
    let parent = args.image.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = args.image.file_name().with_context(named)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(parent, flags, Mode::empty()).with_context(named)?;
    let new = NewFile::new(dir.as_fd()).with_context(named)?;
    new.file().set_len(size / BLOCK_BYTES as u64 * BLOCK_BYTES as u64).with_context(|| format!("{}: {}", named(), human(size)))?;
    let path = by_number(new.file().as_fd());
    let made = format(args, Path::new(OsStr::from_bytes(path.as_bytes())), None, options)?;
    new.publish(name.as_bytes(), false).with_context(named)?;
    Ok(made)
}

/// A drive that has no name in the machine's file system: whether its begin is blank.
fn what_is_on(disk: &Disk) -> std::io::Result<Option<String>> {
    let blocks = disk.blocks().min(BLANK_BLOCKS);
    let mut begin = vec![0; blocks as usize * BLOCK_BYTES];
    disk.read_blocks(QueueClass::Data, Block(0), &mut begin).map_err(std::io::Error::other)?;
    Ok(begin.iter().any(|byte| *byte != 0).then(|| "something".to_owned()))
}

type Made = (stack::rawfs::Usage, Option<String>);

/// Formats what is at a path; what is wrong is said of the image.
fn format(args: &MkfsArgs, image: &Path, size: Option<u64>, options: &FormatOptions) -> anyhow::Result<Made> {
    if is_path(image) {
        let kind = std::fs::metadata(image).with_context(|| format!("{}", args.image.display()))?.file_type();
        if !kind.is_file() && !kind.is_block_device() && !kind.is_char_device() {
            return Err(Usage(format!("{}: neither a file nor a device", args.image.display())).into());
        }
    }
    // Nobody else has it from here on.
    let disk = open(image, false)?;
    let replaced = if is_path(image) { what_is_there(image) } else { what_is_on(&disk) };
    let replaced = replaced.with_context(|| format!("{}", args.image.display()))?;
    if let Some(what) = &replaced
        && !args.force
    {
        bail!("{} holds {what}, which is kept: choose another place (see --force in `hotshelf fs mkfs --help`)", args.image.display());
    }
    let blocks = size.map(|size| size / BLOCK_BYTES as u64);
    if blocks.is_some_and(|blocks| blocks > disk.blocks()) {
        bail!("{} has {}: less than --size", args.image.display(), human(disk.blocks() * BLOCK_BYTES as u64));
    }
    Store::format(&disk, &FormatOptions { blocks, ..options.clone() }).with_context(|| format!("{}", args.image.display()))?;
    let (store, _) = Store::open(disk, &Settings::default())?;
    let usage = make_root(store)?;
    Ok((usage, replaced))
}

/// Makes the top directory, which belongs to the user of the process, and closes the store.
pub fn make_root(store: Store) -> anyhow::Result<stack::rawfs::Usage> {
    Fs::format(&store, Timestamp::now())?;
    let usage = store.usage();
    let (fs, _) = Fs::open(store, FsSettings::default())?;
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let owner = SetAttr { owner: Some((Some(user), Some(group))), ..SetAttr::default() };
    fs.set_attr(fs.root(), &owner, &Creds::root())?;
    fs.close()?;
    Ok(usage)
}
