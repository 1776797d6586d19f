//! PostMark: many mail and news files, created, read, appended to and deleted.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, ensure};

use super::result_table::{ResultTable, TIME};
use crate::experiment::Need;
use crate::experiment::{Context, Experiment};
use crate::lab::{Disk, DriveSpeed, Lab, throttle};
use crate::outcome::{Outcome, Plot, Series};
use crate::programs;

const NAME: &str = "postmark";

/// The experiment as `hotshelf bench` lists it.
pub const EXPERIMENT: Experiment = Experiment {
    name: NAME,
    about: "PostMark with data of half to twice the SSD, and the reverse: the mount by LRU and by LFU, and ext4 on the HDD",
    source: "HyCache, Fig. 11 and 12",
    paper: "faster than ext4 while the data fits the SSD (4 GB), and less so from 6 GB on; LRU and LFU hardly differ",
    peers: "ext4 on the same HDD stand-in",
    devices: "loop devices over files in --dir, mounted sync: HDD 195 requests a second each way, SSD 26,000, by a control group",
    needs: &[
        Need::Root,
        Need::Loop,
        Need::Fuse,
        Need::Throttle,
        Need::Program("postmark", "postmark"),
        Need::Program("mkfs.ext4", "e2fsprogs"),
    ],
    room_mib: (120, 2400),
    takes: (16, 600),
    run,
};

const SIDES: [&str; 3] = ["hotshelf, lru", "hotshelf, lfu", "ext4 on the HDD"];
/// Average file size in bytes: 50,000 to 350,000.
const FILE: u64 = 200_000;

/// One case of the figures, in MiB.
struct PostmarkCase {
    data: u64,
    ssd: u64,
}

impl PostmarkCase {
    fn name(&self) -> String {
        format!("{} MiB of data, {} MiB of SSD", self.data, self.ssd)
    }
}

fn cases(context: &Context) -> Vec<PostmarkCase> {
    let (data, ssd): (&[u64], &[u64]) = context.pick((&[2, 5], &[]), (&[32, 64, 96, 128], &[32, 96, 128]));
    let usual = context.pick(4, 64);
    let by_data = data.iter().map(|data| PostmarkCase { data: *data, ssd: usual });
    by_data.chain(ssd.iter().map(|ssd| PostmarkCase { data: 64, ssd: *ssd })).collect()
}

fn run(context: &Context) -> anyhow::Result<Outcome> {
    let cases = cases(context);
    let mut table = ResultTable::new(NAME);
    context.progress.set_length(cases.len() as u64 * 3 * u64::from(context.runs));
    for case in &cases {
        context.progress.set_message(case.name());
        context.interleave(SIDES.len(), |run, side| {
            let mut lab = Lab::new(context)?;
            let took = one(&mut lab, case, SIDES[side], context.seed + u64::from(run))?;
            table.add(SIDES[side], &case.name(), TIME, took);
            Ok(())
        })?;
    }
    let mut outcome = Outcome { rows: table.rows(), ..Outcome::default() };
    for case in &cases {
        for ours in &SIDES[..2] {
            let why = "the paper's bars have no numbers against the HDD; here every write is durable when it returns";
            outcome.claims.extend(table.claim(&case.name(), TIME, ours, "ext4 on the HDD").map(|claim| claim.why(why)));
        }
    }
    let usual = cases[0].ssd;
    let grown: Vec<(f64, String)> = cases.iter().filter(|case| case.ssd == usual).map(|case| (case.data as f64, case.name())).collect();
    let series = SIDES.iter().map(|side| Series { name: (*side).into(), points: table.line(side, TIME, &grown) }).collect();
    let title = format!("PostMark with {usual} MiB of SSD");
    outcome.plots.push(Plot { name: format!("{NAME}-data"), title, x: "MiB of data".into(), y: "seconds".into(), log_x: false, series });
    outcome
        .notes
        .push(format!("the drives are slowed down by {}; in full the paper's sizes by 64; new file systems for each run", throttle::how()));
    Ok(outcome)
}

fn one(lab: &mut Lab<'_>, case: &PostmarkCase, side: &str, seed: u64) -> anyhow::Result<f64> {
    let least = lab.context().pick(32, 64);
    let hdd = lab.drive("hdd", least.max(case.data * 3), &DriveSpeed::HDD_RANDOM)?;
    let Some(policy) = side.strip_prefix("hotshelf, ") else {
        sync_mount(lab, &hdd)?;
        return postmark(lab, &hdd.dir.join("mail"), case, seed);
    };
    let ssd = lab.drive("ssd", case.ssd, &DriveSpeed::SSD)?;
    sync_mount(lab, &hdd)?;
    sync_mount(lab, &ssd)?;
    let pair = lab.mount_pair("mnt", &ssd.dir, &hdd.dir, &["--policy", policy])?;
    let took = postmark(lab, &pair.dir.join("mail"), case, seed)?;
    lab.unmount_pair(&pair)?;
    Ok(took)
}

/// Remounts with `sync`: every change is on the drive before the call returns.
fn sync_mount(lab: &Lab<'_>, disk: &Disk) -> anyhow::Result<()> {
    programs::run(lab.context(), "mount", &["-o".as_ref(), "remount,sync".as_ref(), disk.dir.as_os_str()]).map(drop)
}

fn postmark(lab: &Lab<'_>, dir: &Path, case: &PostmarkCase, seed: u64) -> anyhow::Result<f64> {
    std::fs::create_dir_all(dir)?;
    let number = (case.data << 20) / FILE;
    let script = lab.dir().join("postmark.cfg");
    let words = format!(
        "set location {}\nset number {number}\nset transactions {}\nset size 50000 350000\nset read 262144\nset write 262144\n\
         set seed {seed}\nset buffering false\nrun\nquit\n",
        dir.display(),
        // PostMark divides by zero with fewer than 10.
        lab.context().pick(number / 2, number * 2).max(10)
    );
    std::fs::write(&script, words)?;
    let mut command = Command::new("postmark");
    command.arg(&script);
    let begun = Instant::now();
    let said = programs::finish(lab.context(), command, None).context("PostMark")?;
    // PostMark exits with 0 after errors, but without a report.
    ensure!(String::from_utf8_lossy(&said).contains("Time:"), "PostMark did not come to its end");
    Ok(begun.elapsed().as_secs_f64())
}
