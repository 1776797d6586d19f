//! Blocks appended to files: asynchronous against synchronous, on a model of the paper's drive.

use sim::device::model::presets::NYTRO_5000_400GB;

use crate::experiment::{Context, Experiment};
use crate::outcome::{Claim, Outcome};
use crate::row::Row;
use crate::write_path::model::{ModelledFs, TimeScope};
use crate::write_path::{Sample, Sweep, Sweeps, WriteMode, WritePathBench};

const NAME: &str = "async-files";

/// The experiment as `hotshelf bench` lists it.
pub const EXPERIMENT: Experiment = Experiment {
    name: NAME,
    about: "blocks appended to 1 to 50 files of our file system: futures against a wait for each block, on a model of the paper's drive",
    source: "testFS with SPDK, Fig. 3 and 4",
    paper: "up to 1.5 times faster appending to one file, up to 3 times to many files",
    peers: "the same appends, each waiting for the one before; and each durable",
    devices: "a model of the paper's drive (Seagate Nytro 5000, 400 GB), its time virtual, that of our threads real; 512 MiB of memory",
    needs: &[],
    room_mib: (0, 0),
    takes: (4, 240),
    run,
};

/// At most 50 files of 100 blocks of 4 KiB are written at once; blocks are freed only by a checkpoint.
const DRIVE_BYTES: u64 = 256 << 20;
const SIDES: [WriteMode; 3] = [WriteMode::Sync, WriteMode::Each, WriteMode::Async];
/// Our block size, and the paper's.
const BLOCK_BYTES: [usize; 2] = [4096, 512];
/// "Up to" values from the paper's text: one file, and 50 files of 100 blocks.
const PAPER: [(&str, f64); 2] = [("e2e_write_num_blocks", 1.5), ("e2e_write_num_files_100bl", 3.0)];

fn run(context: &Context) -> anyhow::Result<Outcome> {
    let points: usize = crate::write_path::SWEEPS.iter().map(|sweep| sweep.points(context.scale).len()).sum();
    context.progress.set_length((points * BLOCK_BYTES.len() * 2) as u64);
    let mut outcome = Outcome { notes: notes(), ..Outcome::default() };
    for block_bytes in BLOCK_BYTES {
        for (counts, time) in [(TimeScope::All, "all"), (TimeScope::Device, "device")] {
            let sweeps = sweeps(context, block_bytes, counts)?;
            context.check_stopped()?;
            outcome.rows.extend(sweeps.done.iter().flat_map(|(sweep, points)| rows(sweep, points, block_bytes, counts)));
            outcome.claims.extend(sweeps.done.iter().filter_map(|(sweep, points)| claim(sweep, points, block_bytes, counts)));
            outcome.plots.extend(sweeps.plots(&format!("{NAME}-{block_bytes}-{time}-")));
        }
    }
    Ok(outcome)
}

fn sweeps(context: &Context, block_bytes: usize, counts: TimeScope) -> anyhow::Result<Sweeps> {
    let modelled = ModelledFs::new(&NYTRO_5000_400GB, DRIVE_BYTES, counts)?;
    let now = || modelled.now();
    let bench = WritePathBench {
        fs: &modelled.fs,
        now: &now,
        block_bytes,
        trials: context.pick(1, 3).max(context.runs),
        stopped: &|| context.check_stopped().is_err(),
    };
    Sweeps::run(&bench, context.scale, &SIDES, &|_, _| context.progress.inc(1))
}

/// Returns the rows at the largest size and at the best size.
fn rows(sweep: &Sweep, points: &[(u32, Sample)], block_bytes: usize, counts: TimeScope) -> Vec<Row> {
    let time = if counts == TimeScope::Device { "the device's time alone" } else { "with software" };
    let case = |what: &str| format!("{}, {what}, {block_bytes} B, {time}", sweep.name);
    let row = |what: &str, values: Vec<f64>| Row::new(NAME, "hotshelf", &case(what), "speedup", "", values);
    let best = |(_, a): &&(u32, Sample), (_, b): &&(u32, Sample)| a.speedup().total_cmp(&b.speedup());
    let (Some((at, last)), Some((_, best))) = (points.last(), points.iter().max_by(best)) else { return Vec::new() };
    let mut rows = vec![row(&at.to_string(), last.speedups()), row("best", best.speedups())];
    if !last.each.is_empty() {
        rows.push(row(&format!("{at} against durable each"), last.speedups_over_each()));
    }
    rows
}

/// Returns the best point of a sweep, beside the paper's "up to".
fn claim(sweep: &Sweep, points: &[(u32, Sample)], block_bytes: usize, counts: TimeScope) -> Option<Claim> {
    let (_, paper) = PAPER.iter().find(|(name, _)| *name == sweep.name)?;
    let best = points.iter().map(|(_, sample)| sample.speedup()).fold(0.0, f64::max);
    let (time, why) = match counts {
        TimeScope::Device => ("device alone", "without software the device's queues are the limit"),
        TimeScope::All => ("with software", "the CPU time of this machine is in it, two threads one after the other"),
    };
    let files = if sweep.name == PAPER[0].0 { "one file" } else { "files of 100 blocks" };
    let what = format!("{files}, best, {block_bytes} B, {time}");
    Some(Claim::direct(&what, "speedup", "hotshelf", "synchronous", &[best]).paper(*paper).why(why))
}

fn notes() -> Vec<String> {
    vec![
        "the drive is a model of the Seagate Nytro 5000 in virtual time; the processor time of our threads goes on in it, \
         that of two threads at the same time one after the other"
            .into(),
        "synchronous: each block is on the device before the next one, then one sync (the paper's baseline); durable each: O_DSYNC; \
         asynchronous: futures, a transaction if there are several files; all are durable at the end"
            .into(),
        "50 files of 100 blocks of 4 KiB are more than the drive's write buffer of 16 MiB: there its flash is the limit of both sides"
            .into(),
        "raw_seq: 4 KiB blocks, one request each; the drive's reads rest on a rule chosen to agree with the paper, see async-blocks".into(),
    ]
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::write_path::{AppendShape, SWEEPS, appends};

    /// The device's time is virtual: this asserts no speed of a machine.
    #[test]
    fn asynchronous_writing_gains_what_is_promised_of_the_device() {
        let modelled = ModelledFs::new(&NYTRO_5000_400GB, 128 << 20, TimeScope::Device).expect("a drive");
        let now = || modelled.now();
        let bench = WritePathBench { fs: &modelled.fs, now: &now, block_bytes: 4096, trials: 1, stopped: &|| false };
        let gain = |files, blocks| {
            appends(&bench, AppendShape { files, blocks }, &[WriteMode::Sync, WriteMode::Async]).expect("measured").speedup()
        };
        let (one, many) = (gain(1, 110), gain(20, 10));
        println!("one file {one:.2}, many files {many:.2}");
        assert!(one >= 1.5 && many >= 3.0, "one file {one:.2}, many files {many:.2}");
        for sweep in SWEEPS.iter().take(2) {
            let sample = sweep.measure(&bench, 100, &[]).expect("measured");
            assert!(sample.speedup() > 1.5, "{} {:.2}", sweep.name, sample.speedup());
        }
    }
}
