//! The mount over a file system in memory: its own bandwidth, without a drive.

use super::result_table::{BANDWIDTH, ResultTable};
use crate::experiment::Need;
use crate::experiment::{Context, Experiment};
use crate::fio::FileJob;
use crate::lab::Lab;
use crate::outcome::{Outcome, Plot, Series};

const NAME: &str = "mount-memory";

/// The experiment as `hotshelf bench` lists it.
pub const EXPERIMENT: Experiment = Experiment {
    name: NAME,
    about: "1 to 24 processes read and write 64 KiB at a time: a file system in memory, and the mount over it, also without passthrough",
    source: "HyCache, Fig. 6 and 10",
    paper: "FUSE alone gives about 500 MB/s to one process where memory gives gigabytes; 24 processes get 3.78 of 10.80 GB/s (0.35)",
    peers: "the same file system in memory, without us",
    devices: "tmpfs",
    needs: &[Need::Root, Need::Fuse, Need::Program("fio", "fio")],
    room_mib: (0, 0),
    takes: (6, 150),
    run,
};

const DAEMON: &str = "hotshelf, through the daemon";

fn run(context: &Context) -> anyhow::Result<Outcome> {
    let mut lab = Lab::new(context)?;
    let counts: &[u32] = context.pick(&[1, 2], &[1, 2, 4, 8, 16, 24]);
    let file_mib = context.pick(16, 48);
    let room = file_mib * u64::from(counts.iter().copied().max().unwrap_or(1)) * 5 / 4 + 32;
    let mut sides = vec![("memory", lab.tmpfs("plain", room)?)];
    for (side, name, flags) in [("hotshelf", "fast", &[][..]), (DAEMON, "daemon", &["--no-passthrough"][..])] {
        let (ssd, hdd) = (lab.tmpfs(&format!("{name}-ssd"), room)?, lab.tmpfs(&format!("{name}-hdd"), room)?);
        let flags: Vec<&str> = ["--promotion", "never", "--high", "99%", "--low", "98%"].into_iter().chain(flags.iter().copied()).collect();
        sides.push((side, lab.mount_pair(&format!("{name}-mnt"), &ssd, &hdd, &flags)?.dir));
    }
    let (duration, _) = context.duration();
    let mut table = ResultTable::new(NAME);
    context.progress.set_length(counts.len() as u64 * 2 * sides.len() as u64 * u64::from(context.runs));
    for processes in counts {
        for rw in ["write", "read"] {
            let case = case(rw, *processes);
            context.progress.set_message(case.clone());
            context.interleave(sides.len(), |run, at| {
                let (side, dir) = &sides[at];
                let file;
                let path = if *processes > 1 {
                    dir
                } else {
                    file = dir.join("bench.0.0");
                    &file
                };
                let (duration, seed) = (Some(duration), context.seed + u64::from(run));
                let job = FileJob { path, rw, request_bytes: 64 << 10, file_mib, processes: *processes, direct: false, duration, seed };
                let load = job.run(context)?;
                table.add_by(side, &case, BANDWIDTH, load.bandwidth / 1e6, Some(load.command));
                Ok(())
            })?;
        }
    }
    Ok(outcome(&table, counts))
}

fn case(rw: &str, processes: u32) -> String {
    format!("{rw}, {processes} process{}", if processes == 1 { "" } else { "es" })
}

fn outcome(table: &ResultTable, counts: &[u32]) -> Outcome {
    let mut outcome = Outcome { rows: table.rows(), ..Outcome::default() };
    for rw in ["read", "write"] {
        let cases: Vec<(f64, String)> = counts.iter().map(|count| (f64::from(*count), case(rw, *count))).collect();
        let line = |side: &&str| Series { name: (*side).to_owned(), points: table.line(side, BANDWIDTH, &cases) };
        let series = ["hotshelf", DAEMON, "memory"].iter().map(line).collect();
        let title = format!("{} 64 KiB at a time, all processes together", if rw == "read" { "Reading" } else { "Writing" });
        outcome.plots.push(Plot { name: format!("{NAME}-{rw}"), title, x: "processes".into(), y: "MB/s".into(), log_x: false, series });
        for (side, why) in
            [("hotshelf", "the kernel reads and writes the backing file directly"), (DAEMON, "every request is a message to the daemon")]
        {
            for count in counts {
                let claim = table.claim(&case(rw, *count), BANDWIDTH, side, "memory").map(|claim| claim.why(why));
                let claim = claim.map(|claim| if side == DAEMON && *count == 24 { claim.paper(3.78 / 10.80) } else { claim });
                outcome.claims.extend(claim);
            }
        }
    }
    outcome.notes.push("passthrough needs Linux 6.9 and root; without it both hotshelf rows go through the daemon".into());
    outcome
}
