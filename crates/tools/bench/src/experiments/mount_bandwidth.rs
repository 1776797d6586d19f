//! Sequential reads and writes of a file, in requests of 4 KiB to 16 MiB.

use std::path::PathBuf;

use super::drives::{Drives, NEEDS, SLOW, drop_page_cache, size};
use super::result_table::{BANDWIDTH, ResultTable};
use crate::experiment::{Context, Experiment};
use crate::fio::FileJob;
use crate::lab::{DriveSpeed, Lab, throttle};
use crate::outcome::{Outcome, Plot, Series};

const NAME: &str = "mount-bandwidth";

/// The experiment as `hotshelf bench` lists it.
pub const EXPERIMENT: Experiment = Experiment {
    name: NAME,
    about: "a file read and written in sequence, 4 KiB to 16 MiB at a time: on the mount's SSD, on its HDD, and on ext4 on the HDD",
    source: "HyCache, Fig. 7 and 8",
    paper: "reads up to 2.2 and writes up to 2.18 times as fast as ext4 on the HDD (16 MiB), half at 4 KiB; FUSE on the HDD as ext4",
    peers: "ext4 on the same HDD stand-in; a file system in memory as the upper bound",
    devices: "loop devices over files in --dir: HDD 144 and 142 MB/s, SSD 480 and 330 MB/s (the paper's Table I), by a control group",
    needs: NEEDS,
    room_mib: (400, 4600),
    takes: (8, 660),
    run,
};

const SIDES: [&str; 4] = ["hotshelf", "ext4 on the HDD", "hotshelf on the HDD", "memory"];

fn run(context: &Context) -> anyhow::Result<Outcome> {
    let mut lab = Lab::new(context)?;
    let file_mib = context.pick(24, 512);
    let drives = Drives::new(&mut lab, (file_mib * 4, file_mib * 4), &DriveSpeed::SSD, &DriveSpeed::HDD_SEQUENTIAL, &[])?;
    let memory = lab.tmpfs("memory", file_mib * 3 / 2)?;
    let slow = format!("{SLOW}-file");
    // The measured path, and its backing files.
    let paths: [(PathBuf, Vec<PathBuf>); 4] = [
        (drives.pair.dir.join("file"), vec![drives.pair.ssd.join("file")]),
        (drives.plain_hdd()?.join("file"), Vec::new()),
        (drives.pair.dir.join(&slow), vec![drives.pair.hdd.join(&slow)]),
        (memory.join("file"), Vec::new()),
    ];
    let sizes: &[u64] = context.pick(&[4 << 10, 64 << 10, 16 << 20], &[4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20]);
    context.progress.set_length(sizes.len() as u64 * 2 * 4 * u64::from(context.runs));
    let mut table = ResultTable::new(NAME);
    for bytes in sizes {
        for rw in ["write", "read"] {
            let case = case(rw, *bytes);
            context.progress.set_message(case.clone());
            context.interleave(SIDES.len(), |run, side| {
                let (path, below) = &paths[side];
                drop_page_cache(&[vec![path.clone()], below.clone()].concat())?;
                let seed = context.seed + u64::from(run);
                let job = FileJob { path, rw, request_bytes: *bytes, file_mib, processes: 1, direct: false, duration: None, seed };
                let load = job.run(context)?;
                table.add_by(SIDES[side], &case, BANDWIDTH, load.bandwidth / 1e6, Some(load.command));
                Ok(())
            })?;
        }
    }
    Ok(outcome(&table, sizes))
}

fn case(rw: &str, bytes: u64) -> String {
    format!("{rw}, {}", size(bytes))
}

fn outcome(table: &ResultTable, sizes: &[u64]) -> Outcome {
    let mut outcome =
        Outcome { rows: table.rows(), plots: ["read", "write"].map(|rw| plot(table, rw, sizes)).into(), ..Outcome::default() };
    let limits = "at most what the SSD stand-in gives over the HDD's: 3.3 for reads, 2.3 for writes";
    for (rw, bytes, paper, why) in [
        ("read", 16 << 20, 2.2, limits),
        ("write", 16 << 20, 2.18, limits),
        ("read", 4 << 10, 0.5, "reads go straight to the SSD's file system (passthrough) and are read ahead there"),
        ("write", 4 << 10, 0.5, "writes of a settled file go straight to the SSD's file system (passthrough)"),
    ] {
        let claim = table.claim(&case(rw, bytes), BANDWIDTH, "hotshelf", "ext4 on the HDD");
        outcome.claims.extend(claim.map(|claim| claim.paper(paper).why(why)));
    }
    for rw in ["read", "write"] {
        let claim = table.claim(&case(rw, 16 << 20), BANDWIDTH, "hotshelf on the HDD", "ext4 on the HDD");
        outcome.claims.extend(claim.map(|claim| claim.paper(1.0).why("what the mount itself costs on a disk")));
    }
    outcome.notes.push(format!("the drives are slowed down by {}; the figure of a write has its fsync in it", throttle::how()));
    outcome.notes.push("every file is dropped from the page cache before it is read".into());
    outcome
}

fn plot(table: &ResultTable, rw: &str, sizes: &[u64]) -> Plot {
    let cases: Vec<(f64, String)> = sizes.iter().map(|bytes| ((bytes >> 10) as f64, case(rw, *bytes))).collect();
    // The upper bound would flatten all other lines.
    let series = SIDES[..3].iter().map(|side| Series { name: (*side).into(), points: table.line(side, BANDWIDTH, &cases) }).collect();
    let title = format!("{} in sequence", if rw == "read" { "Reading" } else { "Writing" });
    Plot { name: format!("{NAME}-{rw}"), title, x: "KiB of a request".into(), y: "MB/s".into(), log_x: true, series }
}
