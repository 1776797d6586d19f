//! A key-value store over a file of rawfs and over a file of ext4.

use std::time::Duration;

use super::result_table::{Metric, ResultTable};
use super::small_files::image;
use crate::experiment::Need;
use crate::experiment::{Context, Experiment};
use crate::fs::kv::{self, KvPlan, KvTimes, RawFile};
use crate::lab::{Disk, Lab};
use crate::outcome::Outcome;

const NAME: &str = "kv-store";

/// The experiment as `hotshelf bench` lists it.
pub const EXPERIMENT: Experiment = Experiment {
    name: NAME,
    about: "a key-value store (redb), Zipf-distributed keys, one thread each for gets and puts: on a rawfs image, and on ext4",
    source: "NVMeDFS, Fig. 7 and Table I",
    paper: "12 % more gets and 17 % more puts than over ext4; 99 of 100 gets within 59 us (ext4: 438 us)",
    peers: "ext4, made anew on the same device before each run",
    devices: "a loop device over a file in --dir, with direct I/O where its file system can",
    needs: &[Need::Root, Need::Loop, Need::Program("mkfs.ext4", "e2fsprogs")],
    room_mib: (320, 2200),
    takes: (9, 420),
    run,
};

const GETS: Metric = ("gets", "1/s");
const PUTS: Metric = ("puts", "1/s");
const TAILS: [(f64, Metric); 3] = [(90.0, ("latency_get_p90", "us")), (95.0, ("latency_get_p95", "us")), (99.0, ("latency_get_p99", "us"))];
/// The paper's Table I: NVMeDFS divided by ext4.
const PAPER_TAILS: [f64; 3] = [23.0 / 24.0, 25.0 / 74.0, 59.0 / 438.0];

fn run(context: &Context) -> anyhow::Result<Outcome> {
    let mut lab = Lab::new(context)?;
    let disk = lab.loop_device("device", context.pick(256, 2048))?;
    let (keys, ms) = context.pick((5_000, 600), (200_000, 20_000));
    let cases = [("each put durable", 1), ("one put in 100 durable", 100)];
    let mut table = ResultTable::new(NAME);
    context.progress.set_length(cases.len() as u64 * 2 * u64::from(context.runs));
    for (case, durable_every) in cases {
        context.progress.set_message(case);
        context.interleave(2, |run, side| {
            let seed = context.seed + u64::from(run);
            let plan = KvPlan { keys, getters: 1, putters: 1, duration: Duration::from_millis(ms), durable_every, cache: 4 << 20, seed };
            let measured = if side == 0 { ours(&disk, &plan)? } else { theirs(&mut lab, &disk, &plan)? };
            let who = if side == 0 { "hotshelf" } else { "ext4" };
            let seconds = measured.time.as_secs_f64();
            table.add(who, case, GETS, measured.gets.len() as f64 / seconds);
            table.add(who, case, PUTS, measured.puts.len() as f64 / seconds);
            for (percent, metric) in TAILS {
                table.add(who, case, metric, measured.gets.value_at_percentile(percent) as f64 / 1e3);
            }
            Ok(())
        })?;
    }
    let mut outcome = Outcome { rows: table.rows(), ..Outcome::default() };
    let why = "the paper does not say which puts were durable, and its store was another";
    for (case, _) in cases {
        outcome.claims.extend(table.claim(case, GETS, "hotshelf", "ext4").map(|claim| claim.paper(1.12).why(why)));
        outcome.claims.extend(table.claim(case, PUTS, "hotshelf", "ext4").map(|claim| claim.paper(1.17).why(why)));
        for ((_, metric), paper) in TAILS.into_iter().zip(PAPER_TAILS) {
            let claim = table.claim(case, metric, "hotshelf", "ext4").map(|claim| claim.paper(paper).why("the paper's Table I"));
            outcome.claims.extend(claim);
        }
    }
    outcome.mark_missing("a raw device", "redb wants a file that it can make longer; the paper found it no different from ext4");
    outcome.notes.push(format!("{keys} keys of 32 bytes, values of 512 bytes, {ms} ms each, 4 MiB of the store's own cache"));
    Ok(outcome)
}

fn ours(disk: &Disk, plan: &KvPlan) -> anyhow::Result<KvTimes> {
    let raw = image(disk)?;
    let measured = kv::run(RawFile::make(&raw, "kv")?, plan, || Ok(()))?;
    raw.close()?;
    Ok(measured)
}

fn theirs(lab: &mut Lab<'_>, disk: &Disk, plan: &KvPlan) -> anyhow::Result<KvTimes> {
    lab.ext4(disk)?;
    let measured = kv::run(kv::kernel_file(&disk.dir.join("kv"))?, plan, || Ok(()))?;
    lab.unmount(&disk.dir)?;
    Ok(measured)
}
