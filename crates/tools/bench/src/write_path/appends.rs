//! Blocks appended to files: the paper's `e2e_write`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use block::Tag;
use block::future::{Future, Keep, Waiting};
use rustix::fs::OFlags;
use stack::rawfs::fs::{Creds, File, Fs};

use super::{Sample, WriteMode, WritePathBench};

/// The number of files and of blocks appended to each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AppendShape {
    /// Number of files, written one after the other and made durable together.
    pub files: u32,
    /// Number of blocks of each file.
    pub blocks: u32,
}

/// Appends to new files, which are removed afterwards.
///
/// # Errors
/// Errors of the file system; interrupted.
pub fn appends(bench: &WritePathBench<'_>, shape: AppendShape, sides: &[WriteMode]) -> anyhow::Result<Sample> {
    let data: Vec<u8> = (0..bench.block_bytes * shape.blocks as usize).map(|at| (at % 251) as u8).collect();
    let dir = format!("/.bench-{}", std::process::id());
    let (fs, creds) = (bench.fs, Creds::root());
    fs.mkdir(fs.root(), dir.as_bytes(), 0o700, &creds).with_context(|| dir.clone())?;
    let outcome = bench.trials(sides, |side| trial(bench, &dir, shape, &data, side));
    let removed = fs.rmdir(fs.root(), dir.as_bytes(), &creds);
    let sample = outcome?;
    removed.context(dir)?;
    Ok(sample)
}

fn trial(bench: &WritePathBench<'_>, dir: &str, shape: AppendShape, data: &[u8], side: WriteMode) -> anyhow::Result<Duration> {
    let (fs, creds) = (bench.fs, Creds::root());
    let how = match side {
        WriteMode::Sync => OFlags::DIRECT,
        WriteMode::Each => OFlags::DSYNC,
        WriteMode::Async => OFlags::empty(),
    };
    let name = |n: u32| format!("{dir}/{n}").into_bytes();
    let open = |n: u32| fs.open_at(fs.root(), &name(n), OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | how, 0o600, &creds);
    let mut files = Vec::new();
    let outcome = (0..shape.files).try_for_each(|n| open(n).map(|file| files.push(Arc::new(file))));
    let outcome = outcome.map_err(anyhow::Error::from).and_then(|()| {
        // Earlier work is not measured.
        fs.sync()?;
        fs.store().checkpoint()?;
        bench.time(|| {
            if side == WriteMode::Async { together(fs, &files, data, bench.block_bytes) } else { one_by_one(fs, &files, data, bench) }
        })
    });
    let made = files.len() as u32;
    drop(files);
    (0..made).try_for_each(|n| fs.unlink(fs.root(), &name(n), &creds))?;
    outcome
}

fn one_by_one(fs: &Fs, files: &[Arc<File>], data: &[u8], bench: &WritePathBench<'_>) -> anyhow::Result<()> {
    for file in files {
        for (n, block) in (0..).zip(data.chunks(bench.block_bytes)) {
            if file.write_at(block, n * bench.block_bytes as u64)? < block.len() {
                bail!("no space is left");
            }
        }
    }
    Ok(fs.sync()?)
}

fn together(fs: &Fs, files: &[Arc<File>], data: &[u8], block_bytes: usize) -> anyhow::Result<()> {
    let mut future = Future::new(1, Keep::Bounded(1));
    let blocks = || (0..).zip(data.chunks(block_bytes)).map(|(n, block): (u64, _)| (n * block_bytes as u64, block));
    if let [file] = files {
        for (at, block) in blocks() {
            future.expect(0, 1);
            fs.write_later(file, block.to_vec(), at, future.promise(0), Tag(at))?;
        }
        future.expect(0, 1);
        fs.sync_later(file, future.promise(0), Tag(u64::MAX))?;
    } else {
        let mut transaction = fs.begin();
        for file in files {
            blocks().try_for_each(|(at, block)| transaction.write_at(file, block, at))?;
        }
        future.expect(0, 1);
        fs.commit_later(transaction, future.promise(0), Tag(0))?;
    }
    future.wait(Waiting::Park, Duration::MAX);
    let failures = future.take_failures();
    failures.kept.first().map_or(Ok(()), |failed| bail!("a block was not written: {}", failed.error))
}
