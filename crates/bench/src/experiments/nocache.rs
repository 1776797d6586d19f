//! The page cache out of the way: by too little memory for it, and by `hotshelf nocache` with memory to spare.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use super::book::{BANDWIDTH, Book};
use crate::experiment::{Context, Experiment};
use crate::fio::FileJob;
use crate::lab::{Lab, memory};
use crate::needs::Need;
use crate::outcome::Outcome;
use crate::programs;

const NAME: &str = "nocache";

pub const EXPERIMENT: Experiment = Experiment {
    name: NAME,
    about: "six fio jobs, once with so little memory that the page cache is no help, once under `hotshelf nocache` with memory to spare",
    source: "paper 004, Fig. 6",
    paper: "within 10 % of each other for all six",
    peers: "the same jobs in a memory control group of 48 MiB (reads) and 96 MiB (writes)",
    devices: "ext4 on a loop device over a file in --dir, past the page cache below where its file system can",
    needs: &[Need::Root, Need::Loop, Need::LittleMemory, Need::Program("fio", "fio"), Need::Program("mkfs.ext4", "e2fsprogs")],
    room_mib: (320, 1500),
    takes: (10, 360),
    run,
};

const SIDES: [&str; 3] = ["hotshelf nocache", "little memory", "page cache"];
/// fio's word, bytes of a request, the group's MiB.
const JOBS: [(&str, u64, u64, &str); 6] = [
    ("read", 256 << 10, 48, "sequential read, 256 KiB"),
    ("write", 256 << 10, 96, "sequential write, 256 KiB"),
    ("rw", 256 << 10, 96, "sequential mixed, 256 KiB"),
    ("randread", 4 << 10, 48, "random read, 4 KiB"),
    ("randwrite", 4 << 10, 96, "random write, 4 KiB"),
    ("randrw", 4 << 10, 96, "random mixed, 4 KiB"),
];

fn run(context: &Context) -> anyhow::Result<Outcome> {
    if let Some(why) = lacks(context)? {
        return Ok(Outcome::not_measured("all of it", why));
    }
    let mut lab = Lab::new(context)?;
    let file_mib = context.pick(160, 1024);
    let disk = lab.loop_device("device", file_mib * 5 / 4 + 32, None)?;
    lab.ext4(&disk)?;
    let path = disk.dir.join("file");
    crate::files::fill(context, &path, file_mib, context.seed)?;
    let mut book = Book::new(NAME);
    context.progress.set_length(JOBS.len() as u64 * 3 * u64::from(context.runs));
    for (rw, request_bytes, memory_mib, case) in JOBS {
        context.progress.set_message(case);
        let group = memory::group(&mut lab, memory_mib)?;
        context.in_turn(SIDES.len(), |run, side| {
            super::drives::forget(std::slice::from_ref(&path))?;
            let (duration, _) = context.duration();
            let seed = context.seed + u64::from(run);
            let job = FileJob { path: &path, rw, request_bytes, file_mib, processes: 1, direct: false, duration: Some(duration * 3), seed };
            let load = job.run_by(context, &wrapper(context, SIDES[side], &group, &disk.dir))?;
            book.add_by(SIDES[side], case, BANDWIDTH, load.bandwidth / 1e6, Some(load.command));
            Ok(())
        })?;
    }
    let mut outcome = Outcome { rows: book.rows(), ..Outcome::default() };
    for (.., case) in JOBS {
        let claim = book.claim(case, BANDWIDTH, SIDES[0], SIDES[1]).context("both were measured")?;
        outcome.claims.push(claim.paper(1.0).why("the closer to 1 the better: both are to be the drive's own speed"));
    }
    outcome.leave_out("the kernel module", "it is for the kernels of the guest: make test-vm");
    outcome.notes.push("sync engine (psync); the page cache's own figure stands beside to show what is taken away".into());
    Ok(outcome)
}

/// Why there is no `hotshelf nocache` here that works.
fn lacks(context: &Context) -> anyhow::Result<Option<String>> {
    let words = ["nocache", "--path", "/", "--", "true"].map(std::ffi::OsStr::new);
    let Err(error) = programs::run_path(context, &context.program, &words) else { return Ok(None) };
    context.go_on()?;
    let said = format!("{error:#}");
    let guest = "the kernel module is measured in a guest: make test-vm";
    Ok(Some(if said.contains("subcommand") { format!("this hotshelf has no command `nocache`; {guest}") } else { said }))
}

/// The words before fio.
fn wrapper(context: &Context, side: &str, group: &Path, dir: &Path) -> Vec<OsString> {
    match side {
        "hotshelf nocache" => {
            let words: [&std::ffi::OsStr; 5] =
                [context.program.as_os_str(), "nocache".as_ref(), "--path".as_ref(), dir.as_os_str(), "--".as_ref()];
            words.map(OsString::from).to_vec()
        }
        "little memory" => {
            let mut enter = OsString::from("echo $$ >'");
            enter.push(PathBuf::from(group).join("cgroup.procs"));
            enter.push("' && exec \"$@\"");
            vec!["sh".into(), "-c".into(), enter, "sh".into()]
        }
        _ => Vec::new(),
    }
}

impl FileJob<'_> {
    /// Under another program, given by its words.
    fn run_by(&self, context: &Context, before: &[OsString]) -> anyhow::Result<crate::fio::FileLoad> {
        let Some((program, rest)) = before.split_first() else { return self.run(context) };
        let mut command = Command::new(program);
        command.args(rest).arg("fio").args(self.words());
        let shown: Vec<String> = std::iter::once(program).chain(rest).map(|word| word.to_string_lossy().into_owned()).collect();
        let shown = format!("{} fio {}", shown.join(" "), self.words().join(" "));
        crate::fio::file_load(&programs::finish(context, command, None)?, shown)
    }
}
