//! Verifies the disks after a power cut.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};
use sim::durability::{DurabilityOracle, FoundFile};

use crate::shell::{Mounts, ran};

/// Mounts the disks, runs recovery, and compares the files.
pub fn verify(hotshelf: &Path, scratch: &Path, disks: &[Vec<u8>], promises: &DurabilityOracle, crash_at: Option<u8>) -> Result<()> {
    std::fs::create_dir_all(scratch)?;
    for (name, disk) in crate::DISKS.iter().zip(disks) {
        write_sparse(&image(scratch, name), disk)?;
    }
    let mut mounts = Mounts::default();
    let sides = crate::mount_sides(&mut mounts, scratch, |name| image(scratch, name)).context("mounting the disks after the cut")?;
    let mountpoint = mounts.directory(scratch.join("mnt"))?;
    let flags = ["--promotion", "never"];
    if crash_at.is_some() && mounts.pair(hotshelf, &sides, &mountpoint, &flags, crash_at).is_ok() {
        // Recovery had fewer steps.
        mounts.unmount_last()?;
    }
    mounts.pair(hotshelf, &sides, &mountpoint, &flags, None)?;
    let (mut found, mut dirs) = (Vec::new(), BTreeSet::new());
    walk(&mountpoint, "", &mut found, &mut dirs)?;
    promises.check(&found, &dirs).map_err(|wrong| anyhow!(wrong))?;
    for side in &sides {
        let left: Vec<PathBuf> = std::fs::read_dir(side.join(".hotshelf/tmp"))?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
        if !left.is_empty() {
            bail!("temporaries are left: {left:?}");
        }
    }
    let status = ran(Command::new(hotshelf).args(["status", "--json"]).arg(&mountpoint))?;
    if status.contains("could not be") || status.contains("damaged") {
        bail!("recovery complains: {status}");
    }
    mounts.unmount_last()?;
    ran(Command::new(hotshelf).arg("check").args(&sides)).context("check")?;
    mounts.unmount_all()
}

fn image(scratch: &Path, name: &str) -> PathBuf {
    scratch.join(format!("{name}.img"))
}

/// Writes only non-zero blocks.
fn write_sparse(path: &Path, bytes: &[u8]) -> Result<()> {
    const PIECE: usize = 64 << 10;
    let file = File::create(path)?;
    file.set_len(bytes.len() as u64)?;
    for (n, piece) in bytes.chunks(PIECE).enumerate() {
        if piece.iter().any(|byte| *byte != 0) {
            file.write_all_at(piece, (n * PIECE) as u64)?;
        }
    }
    Ok(())
}

fn walk(root: &Path, below: &str, found: &mut Vec<FoundFile>, dirs: &mut BTreeSet<String>) -> Result<()> {
    for entry in std::fs::read_dir(root.join(below))? {
        let entry = entry?;
        let name = entry.file_name().into_string().map_err(|name| anyhow!("{name:?} is an unknown name"))?;
        let path = if below.is_empty() { name } else { format!("{below}/{name}") };
        if path == "lost+found" {
            continue;
        }
        if entry.file_type()?.is_dir() {
            walk(root, &path, found, dirs)?;
            dirs.insert(path);
        } else {
            let bytes = std::fs::read(entry.path()).with_context(|| path.clone())?;
            found.push(FoundFile { path, bytes });
        }
    }
    Ok(())
}
