//! Metadata: creating, stat, renaming and removing many small files.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use super::drives::{Drives, NEEDS};
use super::result_table::{Metric, ResultTable};
use crate::experiment::Need;
use crate::experiment::{Context, Experiment};
use crate::lab::{DriveSpeed, Lab, throttle};
use crate::outcome::Outcome;

const NAME: &str = "mount-metadata";

/// The experiment as `hotshelf bench` lists it.
pub const EXPERIMENT: Experiment = Experiment {
    name: NAME,
    about: "small files created, stat-ed, renamed and removed, one after the other: operations a second",
    source: "HyCache, Table III",
    paper: "68 operations a second against 362 of ext4 on the HDD (0.19); 322 (0.89) with a hash table in memory for the names",
    peers: "ext4 on the same HDD stand-in; mergerfs over the same two drives",
    devices: "loop devices over files in --dir: HDD 195 requests a second each way, SSD 26,000, by a control group",
    needs: NEEDS,
    room_mib: (500, 2200),
    takes: (8, 180),
    run,
};

const RATE: Metric = ("operations", "1/s");
const STEPS: [&str; 4] = ["create", "stat", "rename", "unlink"];
const DIR_FILES: u32 = 1000;

fn run(context: &Context) -> anyhow::Result<Outcome> {
    let mut lab = Lab::new(context)?;
    let files = context.pick(1_000, 30_000);
    let mib = context.pick(200, 1000);
    let drives = Drives::new(&mut lab, (mib, mib), &DriveSpeed::SSD, &DriveSpeed::HDD_RANDOM, &[])?;
    let mut sides = vec![("hotshelf", drives.pair.dir.clone()), ("ext4 on the HDD", drives.plain_hdd()?)];
    let mut outcome = Outcome::default();
    match Need::Program("mergerfs", "mergerfs").lacks() {
        None => sides.push(("mergerfs", lab.mergerfs("merged", &drives.ssd.dir, &drives.hdd.dir)?)),
        Some(why) => outcome.mark_missing("mergerfs", why),
    }
    context.progress.set_length(sides.len() as u64 * u64::from(context.runs));
    let mut table = ResultTable::new(NAME);
    context.interleave(sides.len(), |run, at| {
        let (side, dir) = &sides[at];
        context.progress.set_message(*side);
        one(context, &mut table, side, &dir.join(format!("run{run}")), files)
    })?;
    outcome.rows = table.rows();
    for step in std::iter::once("all four").chain(STEPS) {
        let claim = table.claim(step, RATE, "hotshelf", "ext4 on the HDD");
        let why = "names and attributes are remembered by the kernel; the drives write later, in either case";
        outcome.claims.extend(claim.map(|claim| if step == "all four" { claim.paper(68.0 / 362.0).why(why) } else { claim }));
        outcome.claims.extend(table.claim(step, RATE, "hotshelf", "mergerfs"));
    }
    outcome.notes.push(format!("{files} files of 11 bytes, {DIR_FILES} in a directory; the drives are slowed down by {}", throttle::how()));
    Ok(outcome)
}

fn one(context: &Context, table: &mut ResultTable, side: &str, dir: &Path, files: u32) -> anyhow::Result<()> {
    let path = |letter: char, n: u32| dir.join(format!("d{}/{letter}{n}", n / DIR_FILES));
    for n in 0..files.div_ceil(DIR_FILES) {
        std::fs::create_dir_all(dir.join(format!("d{n}")))?;
    }
    let mut all = 0.0;
    for step in STEPS {
        context.check_stopped()?;
        let begun = Instant::now();
        for n in 0..files {
            let from = path('f', n);
            match step {
                "create" => File::create_new(from)?.write_all(b"small file\n")?,
                "stat" => {
                    std::fs::symlink_metadata(from)?;
                }
                "rename" => std::fs::rename(from, path('g', n))?,
                _ => std::fs::remove_file(path('g', n))?,
            }
        }
        let took = begun.elapsed().as_secs_f64();
        all += took;
        table.add(side, step, RATE, f64::from(files) / took);
    }
    table.add(side, "all four", RATE, f64::from(files) * STEPS.len() as f64 / all);
    std::fs::remove_dir_all(dir)?;
    Ok(())
}
