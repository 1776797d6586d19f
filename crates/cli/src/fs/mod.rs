//! `hotshelf fs`: file systems on raw devices and images.

pub mod args;
mod check;
mod df;
mod mkfs;
mod mount;

use std::path::Path;

use anyhow::Context;
use hybridfs::Size;
use stack::DeviceName;
use stack::rawfs::{Disk, DiskSettings};

use self::args::{FsArgs, FsCommand};
use crate::Usage;

/// Does what was asked for.
pub fn fs(args: &FsArgs) -> anyhow::Result<bool> {
    match &args.command {
        FsCommand::Mkfs(args) => mkfs::mkfs(args),
        FsCommand::Mount(args) => mount::mount(args),
        FsCommand::Check(args) => check::check(args),
        FsCommand::Df(args) => df::df(args),
    }
}

fn open(image: &Path, read_only: bool) -> anyhow::Result<Disk> {
    let name = DeviceName::Path(image.to_owned());
    stack::open_disk(&name, read_only, &DiskSettings::default()).with_context(|| format!("{}", image.display()))
}

fn bytes(size: Option<Size>, flag: &str) -> anyhow::Result<Option<u64>> {
    match size {
        None => Ok(None),
        Some(Size::Bytes(bytes)) => Ok(Some(bytes)),
        Some(Size::Percent(_)) => Err(Usage(format!("{flag} must be a size such as 64MiB; see `hotshelf fs --help`")).into()),
    }
}

/// Bytes as people read them.
fn human(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}
