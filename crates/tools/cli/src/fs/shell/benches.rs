//! bench, run-experiments: on this image, in real time. The same on the model of a drive: `hotshelf bench run async-files`.

use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Context, bail};
use bench::RunScale;
use bench::write_path::{AppendShape, BlockAccess, SWEEPS, Sweeps, WriteMode, WritePathBench, appends, raw};
use indicatif::{ProgressBar, ProgressStyle};

use super::session::Session;
use super::verbs::{AppendArgs, BenchVerb, ExperimentArgs, RawArgs};

/// Runs the benchmark that was given.
pub fn bench(session: &mut Session, what: &BenchVerb) -> anyhow::Result<()> {
    let (begun, stop) = (Instant::now(), &*session.stop);
    let (now, stopped) = (|| begun.elapsed(), || stop.load(Ordering::Relaxed));
    let on = |trials, block: u32| {
        let fs = session.fs()?;
        Ok::<_, anyhow::Error>(WritePathBench { fs, now: &now, block_bytes: block as usize, trials, stopped: &stopped })
    };
    let of_blocks = |what, args: &RawArgs| raw(&on(args.trials, 4096)?, what, args.blocks);
    let sample = match what {
        BenchVerb::Appends(args) => {
            let shape = AppendShape { files: args.files, blocks: blocks(args)? };
            appends(&on(args.trials, args.block)?, shape, &[WriteMode::Sync, WriteMode::Each, WriteMode::Async])?
        }
        BenchVerb::RawRead(args) => of_blocks(BlockAccess::Read, args)?,
        BenchVerb::RawWrite(args) => of_blocks(BlockAccess::Write, args)?,
    };
    writeln!(session.out, "{}", sample.lines())?;
    Ok(())
}

/// A number of blocks, or as many as a file has.
fn blocks(args: &AppendArgs) -> anyhow::Result<u32> {
    if let Some(blocks) = args.input.to_str().and_then(|text| text.parse().ok()) {
        return if blocks == 0 { bail!("no blocks are nothing to measure") } else { Ok(blocks) };
    }
    let bytes = std::fs::metadata(&args.input).with_context(|| format!("{}", args.input.display()))?.len();
    if bytes == 0 {
        bail!("{}: is empty: nothing to measure", args.input.display());
    }
    u32::try_from(bytes.div_ceil(args.block.into())).with_context(|| format!("{}: too large", args.input.display()))
}

/// All series of the paper, as CSV and SVG.
pub fn experiments(session: &mut Session, args: &ExperimentArgs) -> anyhow::Result<()> {
    let scale = if args.small { RunScale::Small } else { RunScale::Full };
    let points: usize = SWEEPS.iter().map(|sweep| sweep.points(scale).len()).sum();
    let bar = if session.shows_progress { ProgressBar::new(points as u64) } else { ProgressBar::hidden() };
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {eta} left {msg}").context("the progress bar's template")?);
    std::fs::create_dir_all(&args.dir).with_context(|| format!("{}", args.dir.display()))?;
    let (begun, stop) = (Instant::now(), &*session.stop);
    let (now, stopped) = (|| begun.elapsed(), || stop.load(Ordering::Relaxed));
    let bench = WritePathBench { fs: session.fs()?, now: &now, block_bytes: args.block as usize, trials: args.trials, stopped: &stopped };
    let sweeps = Sweeps::run(&bench, scale, &[WriteMode::Sync, WriteMode::Async], &|sweep, at| {
        bar.set_message(format!("{} {at}", sweep.name));
        bar.inc(1);
    });
    bar.finish_and_clear();
    let sweeps = sweeps?;
    for (sweep, points) in &sweeps.done {
        if let Some((at, last)) = points.last() {
            writeln!(session.out, "{:<26} {at:>4}: asynchronous {:.2} times faster", sweep.name, last.speedup())?;
        }
    }
    for path in sweeps.write(&args.dir)? {
        writeln!(session.out, "written: {}", path.display())?;
    }
    Ok(())
}
