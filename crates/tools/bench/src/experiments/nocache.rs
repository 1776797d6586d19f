//! Taking the page cache out: by little memory, and by `hotshelf nocache` with plenty of memory.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;

use super::result_table::{BANDWIDTH, ResultTable};
use crate::experiment::Need;
use crate::experiment::{Context, Experiment};
use crate::fio::FileJob;
use crate::lab::{DriveSpeed, Lab, memory};
use crate::outcome::Outcome;
use crate::programs;

const NAME: &str = "nocache";

/// The experiment as `hotshelf bench` lists it.
pub const EXPERIMENT: Experiment = Experiment {
    name: NAME,
    about: "six fio jobs, once with so little memory that the page cache is no help, once under `hotshelf nocache` with memory to spare",
    source: "nofscache (MBWU), Fig. 6",
    paper: "within 10 % of each other for all six",
    peers: "the same jobs in a memory control group of 48 MiB (reads) and 96 MiB (writes)",
    devices: "ext4 on a loop device over a file in --dir, slowed down to 1,000 requests and 60 MB a second (--small: 8 times that), \
              mixed jobs to half of it for reads and half for writes",
    needs: &[
        Need::Root,
        Need::Loop,
        Need::Throttle,
        Need::LittleMemory,
        Need::Program("fio", "fio"),
        Need::Program("mkfs.ext4", "e2fsprogs"),
    ],
    room_mib: (320, 1500),
    takes: (25, 1700),
    run,
};

const STRICT: &str = "hotshelf nocache";
const BEHIND: &str = "hotshelf nocache, write cache";
const LITTLE: &str = "little memory";
const SIDES: [&str; 4] = [STRICT, LITTLE, "page cache", BEHIND];
/// A cgroup v1 limits memory but not dirty pages, so the device gets the dirty limit that a machine with so little memory has: this
/// fraction (vm.dirty_ratio). Without it a starved writer stalls for seconds and then runs at memory speed, so that the result depends on
/// when the clock was started.
const DIRTY_PART: u64 = 5;
/// fio's job type, request size, memory of the group in MiB. More than 32 MiB take minutes to fill with random writes.
const JOBS: [(&str, u64, u64, &str); 6] = [
    ("read", 256 << 10, 48, "sequential read, 256 KiB"),
    ("write", 256 << 10, 96, "sequential write, 256 KiB"),
    ("rw", 256 << 10, 96, "sequential mixed, 256 KiB"),
    ("randread", 4 << 10, 48, "random read, 4 KiB"),
    ("randwrite", 4 << 10, 32, "random write, 4 KiB"),
    ("randrw", 4 << 10, 32, "random mixed, 4 KiB"),
];

fn run(context: &Context) -> anyhow::Result<Outcome> {
    if let Some(why) = lacks(context)? {
        return Ok(Outcome::not_measured("all of it", why));
    }
    let mut lab = Lab::new(context)?;
    let file_mib = context.pick(160, 1024);
    let disk = lab.loop_device("device", file_mib * 5 / 4 + 32)?;
    lab.ext4(&disk)?;
    let path = disk.dir.join("file");
    crate::files::fill(context, &path, file_mib, context.seed)?;
    let full = context.pick(DriveSpeed::SLOW_SSD.times(8), DriveSpeed::SLOW_SSD);
    let (mut table, mut limited) = (ResultTable::new(NAME), true);
    context.progress.set_length(JOBS.iter().map(|job| sides(job.0) as u64).sum::<u64>() * u64::from(context.runs));
    for (rw, request_bytes, memory_mib, case) in JOBS {
        context.progress.set_message(case);
        let group = memory::group(&mut lab, memory_mib)?;
        let speed = if is_mixed(rw) { full.shared() } else { full };
        context.interleave(sides(rw), |run, side| {
            // Remaining dirty pages would take minutes at the device's speed.
            lab.set_speed(&disk, &DriveSpeed::UNLIMITED)?;
            super::drives::drop_page_cache(std::slice::from_ref(&path))?;
            lab.set_speed(&disk, &speed)?;
            let dirty = (SIDES[side] == LITTLE).then_some((memory_mib << 20) / DIRTY_PART);
            limited &= lab.limit_dirty(&disk, dirty)?;
            let duration = context.pick(Duration::from_millis(300), Duration::from_secs(8));
            let seed = context.seed + u64::from(run);
            let job = FileJob { path: &path, rw, request_bytes, file_mib, processes: 1, direct: false, duration: Some(duration), seed };
            let load = job.run_by(context, &wrapper(context, SIDES[side], &group, memory_mib, &disk.dir))?;
            table.add_by(SIDES[side], case, BANDWIDTH, load.bandwidth / 1e6, Some(load.command));
            Ok(())
        })?;
    }
    let mut outcome = Outcome { rows: table.rows(), ..Outcome::default() };
    for (rw, _, _, case) in JOBS {
        let claim = table.claim(case, BANDWIDTH, STRICT, LITTLE).context("both were measured")?;
        let why = if rw == "rw" {
            "closer to 1 with the write cache: little memory, and the paper's module, serve reads of what was just written"
        } else {
            "the closer to 1 the better: both are to be the drive's own speed"
        };
        outcome.claims.push(claim.paper(1.0).why(why));
        let claim = table.claim(case, BANDWIDTH, BEHIND, LITTLE);
        outcome.claims.extend(claim.map(|claim| claim.paper(1.0).why("with --write-cache, a fifth of the group's memory")));
    }
    outcome.mark_missing("the kernel module", "it is for the kernels of the guest: bench/nofscache.sh");
    outcome.notes.push("sync engine (psync); the page cache's own figure stands beside to show what is taken away".into());
    outcome.notes.push("with little memory at most a fifth of it waits to be written, as vm.dirty_ratio has it".into());
    if !limited {
        outcome
            .notes
            .push("NOT limited: this kernel has no /sys/class/bdi/*/strict_limit (6.2 has); writes of little memory are by chance".into());
    }
    outcome.notes.push(format!("the drive is slowed down by {}", crate::lab::throttle::how()));
    Ok(outcome)
}

fn is_mixed(rw: &str) -> bool {
    matches!(rw, "rw" | "randrw")
}

/// Returns the number of sides of a job: the write cache has no effect on a job that only reads.
fn sides(rw: &str) -> usize {
    if rw.ends_with("read") { SIDES.len() - 1 } else { SIDES.len() }
}

/// Returns why `hotshelf nocache` does not work here.
fn lacks(context: &Context) -> anyhow::Result<Option<String>> {
    let words = ["nocache", "--path", "/", "--", "true"].map(std::ffi::OsStr::new);
    let Err(error) = programs::run_path(context, &context.program, &words) else { return Ok(None) };
    context.check_stopped()?;
    let said = format!("{error:#}");
    let guest = "the kernel module is measured in a guest: bench/nofscache.sh";
    Ok(Some(if said.contains("subcommand") { format!("this hotshelf has no command `nocache`; {guest}") } else { said }))
}

/// Returns the command that precedes fio.
fn wrapper(context: &Context, side: &str, group: &Path, memory_mib: u64, dir: &Path) -> Vec<OsString> {
    match side {
        STRICT | BEHIND => {
            let mut words = vec![context.program.clone().into_os_string(), "nocache".into(), "--path".into(), dir.into()];
            if side == BEHIND {
                words.extend(["--write-cache".into(), format!("{}MiB", memory_mib / DIRTY_PART).into()]);
            }
            words.push("--".into());
            words
        }
        LITTLE => {
            let mut enter = OsString::from("echo $$ >'");
            enter.push(PathBuf::from(group).join("cgroup.procs"));
            enter.push("' && exec \"$@\"");
            vec!["sh".into(), "-c".into(), enter, "sh".into()]
        }
        _ => Vec::new(),
    }
}

impl FileJob<'_> {
    /// Runs the job under another program, with a ramp-up.
    fn run_by(&self, context: &Context, before: &[OsString]) -> anyhow::Result<crate::fio::FileLoad> {
        let Some((program, rest)) = before.split_first() else { return self.run(context) };
        let mut words = self.words();
        words.push(format!("--ramp_time={}ms", context.pick(200, 6000)));
        let mut command = Command::new(program);
        command.args(rest).arg("fio").args(&words);
        let shown: Vec<String> = std::iter::once(program).chain(rest).map(|word| word.to_string_lossy().into_owned()).collect();
        let shown = format!("{} fio {}", shown.join(" "), words.join(" "));
        crate::fio::file_load(&programs::finish(context, command, None)?, shown)
    }
}
