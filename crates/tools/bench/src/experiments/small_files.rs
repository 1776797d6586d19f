//! Small files on an image of rawfs and on ext4, on the same loop device.

use super::result_table::{Metric, ResultTable};
use crate::experiment::Need;
use crate::experiment::{Context, Experiment};
use crate::fs::Files;
use crate::fs::kernel::Kernel;
use crate::fs::raw::{Raw, RawOptions};
use crate::fs::small::{self, SyncPolicy};
use crate::lab::{Disk, Lab};
use crate::outcome::Outcome;

const NAME: &str = "small-files";

/// The experiment as `hotshelf bench` lists it.
pub const EXPERIMENT: Experiment = Experiment {
    name: NAME,
    about: "files of 4 to 16 KiB created, deleted, read and appended to at random: a rawfs image through the library, and ext4",
    source: "NVMeDFS, Fig. 8",
    paper: "12.5 % less time than ext4, and 23 % fewer bytes written (1,000,000 files, 5,000,000 operations)",
    peers: "ext4, made anew on the same device before each run",
    devices: "a loop device over a file in --dir, with direct I/O where its file system can",
    needs: &[Need::Root, Need::Loop, Need::Program("mkfs.ext4", "e2fsprogs")],
    room_mib: (320, 2600),
    takes: (8, 180),
    run,
};

const RATE: Metric = ("operations", "1/s");
const WRITTEN: Metric = ("bytes_written", "MB");
const REQUESTS: Metric = ("write_requests", "");

fn run(context: &Context) -> anyhow::Result<Outcome> {
    let mut lab = Lab::new(context)?;
    let disk = lab.loop_device("device", context.pick(256, 2048))?;
    let (files, operations, every) = context.pick((2_000, 8_000, 1_000), (100_000, 500_000, 10_000));
    let cases =
        [("durable at the end", SyncPolicy::End), ("durable each so many", SyncPolicy::Every(every)), ("durable each", SyncPolicy::Each)];
    let mut table = ResultTable::new(NAME);
    context.progress.set_length(cases.len() as u64 * 2 * u64::from(context.runs));
    for (case, durable) in cases {
        context.progress.set_message(case);
        let operations = if durable == SyncPolicy::Each { operations / 8 } else { operations };
        context.interleave(2, |run, side| {
            let seed = context.seed + u64::from(run);
            let plan = small::SmallFilesPlan { files, operations, threads: 1, durable, seed };
            let who = if side == 0 { "hotshelf" } else { "ext4" };
            let (rate, counted) = if side == 0 { ours(&disk, &plan)? } else { theirs(&mut lab, &disk, &plan)? };
            table.add(who, case, RATE, rate);
            table.add(who, case, WRITTEN, counted.written_bytes as f64 / 1e6);
            table.add(who, case, REQUESTS, counted.writes as f64);
            Ok(())
        })?;
    }
    let mut outcome = Outcome { rows: table.rows(), ..Outcome::default() };
    for (case, _) in cases {
        let rate = table.claim(case, RATE, "hotshelf", "ext4");
        let written = table.claim(case, WRITTEN, "hotshelf", "ext4");
        if case == "durable at the end" {
            outcome.claims.extend(rate.map(|claim| claim.paper(1.0 / 0.875).why("the paper does not say when data became durable")));
            outcome.claims.extend(written.map(|claim| claim.paper(0.77).why("ext4 has its journal here as there")));
        } else {
            outcome.claims.extend(rate.into_iter().chain(written));
        }
    }
    outcome.notes.push(format!("{files} files, {operations} operations (an eighth where each is durable), everything synced each {every}"));
    outcome.notes.push("ours has 64 MiB of memory, ext4 what the machine has; bytes are the device's, until unmount or close".into());
    Ok(outcome)
}

/// Creates a rawfs image on the device.
pub fn image(disk: &Disk) -> anyhow::Result<Raw> {
    let write_back = std::time::Duration::from_secs(30);
    Raw::make(&disk.device, RawOptions { memory: 64 << 20, write_back, metadata: None })
}

type Measured = (f64, crate::lab::Counters);

fn ours(disk: &Disk, plan: &small::SmallFilesPlan) -> anyhow::Result<Measured> {
    let raw = image(disk)?;
    let (rate, before) = measure(disk, &raw, plan)?;
    raw.close()?;
    Ok((rate, disk.counters()?.since(&before)))
}

fn theirs(lab: &mut Lab<'_>, disk: &Disk, plan: &small::SmallFilesPlan) -> anyhow::Result<Measured> {
    lab.ext4(disk)?;
    let (rate, before) = measure(disk, &Kernel::new(disk.dir.clone())?, plan)?;
    lab.unmount(&disk.dir)?;
    Ok((rate, disk.counters()?.since(&before)))
}

fn measure(disk: &Disk, files: &dyn Files, plan: &small::SmallFilesPlan) -> anyhow::Result<Measured> {
    let mut before = crate::lab::Counters::default();
    let measured = small::run(files, plan, || {
        before = disk.counters()?;
        Ok(())
    })?;
    Ok((plan.operations as f64 / measured.mix.as_secs_f64(), before))
}
