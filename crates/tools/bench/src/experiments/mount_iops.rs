//! Random requests of 4 KiB, one at a time.

use super::drives::{Drives, NEEDS};
use super::result_table::{IOPS, ResultTable};
use crate::experiment::{Context, Experiment};
use crate::fio::FileJob;
use crate::lab::{DriveSpeed, Lab, throttle};
use crate::outcome::Outcome;

const NAME: &str = "mount-iops";

/// The experiment as `hotshelf bench` lists it.
pub const EXPERIMENT: Experiment = Experiment {
    name: NAME,
    about: "random reads and writes of 4 KiB, O_DIRECT, one at a time: a file on the mount's SSD, and on ext4 on either drive",
    source: "HyCache, Table II",
    paper: "14,878 IOPS (random writes) against 195 of ext4 on the HDD: 76 times",
    peers: "ext4 on the same HDD stand-in, and on the SSD stand-in",
    devices: "loop devices over files in --dir: HDD 195 requests a second, SSD 26,000 (the paper's Tables I and II), by a control group",
    needs: NEEDS,
    room_mib: (400, 1400),
    takes: (7, 160),
    run,
};

const SIDES: [&str; 3] = ["hotshelf", "ext4 on the HDD", "ext4 on the SSD"];
const CASES: [(&str, &str); 2] = [("randwrite", "random writes"), ("randread", "random reads")];

fn run(context: &Context) -> anyhow::Result<Outcome> {
    let mut lab = Lab::new(context)?;
    let file_mib = context.pick(16, 256);
    let drives = Drives::new(&mut lab, (file_mib * 4, file_mib * 4), &DriveSpeed::SSD, &DriveSpeed::HDD_RANDOM, &[])?;
    let paths = [drives.pair.dir.join("file"), drives.plain_hdd()?.join("file"), drives.plain_ssd()?.join("file")];
    for path in &paths {
        crate::files::fill(context, path, file_mib, context.seed)?;
    }
    let (duration, _) = context.duration();
    let duration = Some(duration * 4);
    context.progress.set_length(CASES.len() as u64 * 3 * u64::from(context.runs));
    let mut table = ResultTable::new(NAME);
    for (rw, case) in CASES {
        context.progress.set_message(case);
        context.interleave(SIDES.len(), |run, side| {
            let seed = context.seed + u64::from(run);
            let job = FileJob { path: &paths[side], rw, request_bytes: 4096, file_mib, processes: 1, direct: true, duration, seed };
            let load = job.run(context)?;
            table.add_by(SIDES[side], case, IOPS, load.iops, Some(load.command));
            Ok(())
        })?;
    }
    let mut outcome = Outcome { rows: table.rows(), ..Outcome::default() };
    let why = "one request at a time: the time of one on this machine's loop device over the limit of 195 a second";
    for (_, case) in CASES {
        let paper = if case == "random writes" { Some(14_878.0 / 195.0) } else { None };
        let claim = table.claim(case, IOPS, "hotshelf", "ext4 on the HDD");
        outcome.claims.extend(claim.map(|claim| paper.map_or(claim.clone(), |paper| claim.paper(paper)).why(why)));
        let claim = table.claim(case, IOPS, "hotshelf", "ext4 on the SSD");
        outcome.claims.extend(claim.map(|claim| claim.why("share of the SSD's own speed")));
    }
    outcome.notes.push(format!("the drives are slowed down by {}", throttle::how()));
    Ok(outcome)
}
