//! `hotshelf fs resize`.

use std::fs::OpenOptions;

use anyhow::{Context, bail};
use serde_json::json;
use stack::rawfs::fs::{Fs, FsSettings, resize as resized};
use stack::rawfs::{BLOCK_BYTES, Settings, Store};

use super::args::ResizeArgs;
use super::{bytes, human, is_path, open, spinner};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Gives an image another size. A file grows first and is cut last, so that the image in it is whole at any time.
pub fn resize(args: &ResizeArgs) -> anyhow::Result<bool> {
    let named = || format!("{}", args.image.display());
    let is_file = is_path(&args.image) && std::fs::metadata(&args.image).with_context(named)?.is_file();
    let wanted = bytes(args.size, "SIZE")?.map(|size| size / BLOCK);
    let settings = Settings { background: false, ..Settings::default() };
    // Nobody else has it from here on, and it is an image.
    let disk = open(&args.image, false)?;
    let (before, device) = (Store::superblocks(&disk).with_context(named)?, disk.blocks());
    let before = before.into_iter().flatten().map(|superblock| superblock.shape.blocks).max().unwrap_or(0);
    let blocks = wanted.unwrap_or(device);
    let (store, _) = Store::open(disk, &settings).with_context(named)?;
    let (mut fs, _) = Fs::open(store, FsSettings::default()).with_context(named)?;
    let least = resized::least_blocks(&fs);
    if blocks < least {
        fs.close()?;
        bail!(
            "{}: {} is too small for what is in it: at least {} bytes ({})",
            args.image.display(),
            human(blocks * BLOCK),
            least * BLOCK,
            human(least * BLOCK)
        );
    }
    if blocks > device {
        fs.close()?;
        if !is_file {
            bail!("{} has only {}", args.image.display(), human(device * BLOCK));
        }
        let file = OpenOptions::new().write(true).open(&args.image).with_context(named)?;
        file.set_len(blocks * BLOCK).and_then(|()| file.sync_all()).with_context(named)?;
        let (store, _) = Store::open(open(&args.image, false)?, &settings).with_context(named)?;
        (fs, _) = Fs::open(store, FsSettings::default()).with_context(named)?;
    }
    let spinner = spinner("moving data");
    let mut moved = 0;
    resized::resize(fs, blocks, &mut |blocks| {
        moved += blocks;
        spinner.set_message(format!("moved {}", human(moved * BLOCK)));
    })
    .with_context(named)?;
    spinner.finish_and_clear();
    if is_file && blocks < device {
        let file = OpenOptions::new().write(true).open(&args.image).with_context(named)?;
        file.set_len(blocks * BLOCK).and_then(|()| file.sync_all()).with_context(named)?;
    }
    if args.json {
        let (before, bytes) = (before * BLOCK, blocks * BLOCK);
        let report = json!({ "image": args.image, "before": before, "bytes": bytes, "least": least * BLOCK, "moved": moved * BLOCK });
        say_lines!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        say!(
            "{}: {} now, {} before; {} were moved",
            args.image.display(),
            human(blocks * BLOCK),
            human(before * BLOCK),
            human(moved * BLOCK)
        );
    }
    Ok(true)
}
