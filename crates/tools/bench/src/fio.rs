//! fio as a peer: the same load by another program.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use crate::experiment::Context;
use crate::load::{LoadJob, Pattern};
use crate::programs;

/// The figures that fio reports of a load.
#[derive(Debug)]
pub struct FioLoad {
    /// Number of completed requests per second.
    pub iops: f64,
    /// Requests per second of CPU time, user and system.
    pub iops_per_cpu_second: f64,
    /// Median latency of a request, microseconds.
    pub p50_us: f64,
    /// 99th percentile of the latency, microseconds.
    pub p99_us: f64,
    /// The command line that was run.
    pub command: String,
}

/// The I/O engine of fio.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// io_uring with registered files and buffers.
    IoUring,
    /// One blocking call at a time; the depth is 1 whatever the job says.
    Psync,
}

impl Engine {
    /// Returns the name of the side in tables.
    pub fn side(self) -> &'static str {
        match self {
            Engine::IoUring => "fio io_uring",
            Engine::Psync => "fio psync",
        }
    }
}

/// Returns whether fio is installed.
pub fn present() -> bool {
    programs::find("fio").is_some()
}

/// Runs the job on a file or block device.
///
/// # Errors
/// fio fails, or its output cannot be parsed.
pub fn run(context: &Context, engine: Engine, path: &Path, direct: bool, job: &LoadJob) -> anyhow::Result<FioLoad> {
    let pattern = match (job.pattern, job.write) {
        (Pattern::Random, false) => "randread",
        (Pattern::Random, true) => "randwrite",
        (Pattern::Sequential, false) => "read",
        (Pattern::Sequential, true) => "write",
    };
    let seconds = |duration: Duration| format!("{}ms", duration.as_millis());
    let mut words = vec![
        "--name=bench".to_owned(),
        format!("--filename={}", path.display()),
        format!("--rw={pattern}"),
        format!("--bs={}", job.request_bytes),
        format!("--numjobs={}", job.threads),
        format!("--direct={}", u8::from(direct)),
        format!("--runtime={}", seconds(job.duration)),
        format!("--ramp_time={}", seconds(job.warm_up)),
        format!("--randseed={}", job.seed),
    ];
    let fixed =
        ["--time_based", "--thread", "--group_reporting", "--norandommap", "--randrepeat=1", "--invalidate=0", "--output-format=json"];
    words.extend(fixed.map(str::to_owned));
    if job.pattern == Pattern::Sequential && job.threads > 1 {
        words.push(format!("--offset_increment={}%", 100 / job.threads));
    }
    match engine {
        Engine::Psync => words.push("--ioengine=psync".into()),
        Engine::IoUring => {
            words.extend(["--ioengine=io_uring", "--fixedbufs", "--registerfiles"].map(str::to_owned));
            words.push(format!("--iodepth={}", job.depth));
            words.extend(job.queue.device_polled.then(|| "--hipri".to_owned()));
            words.extend(job.queue.kernel_submits.then(|| "--sqthread_poll".to_owned()));
        }
    }
    let (did, command) = call(context, &words)?;
    read(&did, job, command)
}

/// Returns fio's result of its first job, and the command line.
fn call(context: &Context, words: &[String]) -> anyhow::Result<(Value, String)> {
    let shown = format!("fio {}", words.join(" "));
    let args: Vec<&std::ffi::OsStr> = words.iter().map(std::ffi::OsStr::new).collect();
    let stdout = programs::run(context, "fio", &args)?;
    Ok((first_job(&stdout)?, shown))
}

fn first_job(stdout: &[u8]) -> anyhow::Result<Value> {
    // fio may print messages before its JSON.
    let begin = stdout.iter().position(|byte| *byte == b'{').context("fio wrote no JSON")?;
    let mut all: Value = serde_json::from_slice(&stdout[begin..]).context("fio's JSON")?;
    Ok(all["jobs"][0].take())
}

fn read(did: &Value, job: &LoadJob, command: String) -> anyhow::Result<FioLoad> {
    let side = &did[if job.write { "write" } else { "read" }];
    let number = |value: &Value| value.as_f64().context("fio's JSON lacks a figure");
    let iops = number(&side["iops"])?;
    // Percentage of the wall time of all jobs together.
    let busy = (number(&did["usr_cpu"])? + number(&did["sys_cpu"])?) / 100.0 * f64::from(job.threads);
    let percentile = |key: &str| number(&side["clat_ns"]["percentile"][key]).map(|ns| ns / 1000.0);
    Ok(FioLoad {
        iops,
        iops_per_cpu_second: iops / busy.max(1e-9),
        p50_us: percentile("50.000000")?,
        p99_us: percentile("99.000000")?,
        command,
    })
}

/// A job on files of a directory, buffered or not.
#[derive(Clone, Debug)]
pub struct FileJob<'a> {
    /// The file, or for several processes a directory with one file each.
    pub path: &'a Path,
    /// fio's job type: `read`, `write`, `randread`, ...
    pub rw: &'a str,
    /// Size of a request, in bytes.
    pub request_bytes: u64,
    /// Size of each file, MiB.
    pub file_mib: u64,
    /// Number of processes, each with a file.
    pub processes: u32,
    /// Bypasses the page cache (`O_DIRECT`).
    pub direct: bool,
    /// Duration. `None`: one pass over the file, with a sync at the end of writes.
    pub duration: Option<Duration>,
    /// Seed of the random number generator.
    pub seed: u64,
}

/// The result of a file job, reads and writes together.
#[derive(Clone, Debug)]
pub struct FileLoad {
    /// Number of completed requests per second.
    pub iops: f64,
    /// Bandwidth in bytes per second.
    pub bandwidth: f64,
    /// The command line that was run.
    pub command: String,
}

impl FileJob<'_> {
    /// Returns the arguments for fio.
    pub fn words(&self) -> Vec<String> {
        let place = if self.processes > 1 { "directory" } else { "filename" };
        let mut words = vec![
            "--name=bench".to_owned(),
            format!("--{place}={}", self.path.display()),
            format!("--rw={}", self.rw),
            format!("--bs={}", self.request_bytes),
            format!("--size={}m", self.file_mib),
            format!("--numjobs={}", self.processes),
            format!("--direct={}", u8::from(self.direct)),
            format!("--randseed={}", self.seed),
        ];
        let fixed = ["--ioengine=psync", "--fallocate=none", "--group_reporting", "--norandommap", "--output-format=json"];
        words.extend(fixed.map(str::to_owned));
        match self.duration {
            Some(duration) => words.extend(["--time_based".to_owned(), format!("--runtime={}ms", duration.as_millis())]),
            None if self.rw.contains("write") => words.push("--end_fsync=1".into()),
            None => {}
        }
        words
    }

    /// Runs the job and returns its figures.
    ///
    /// # Errors
    /// fio fails.
    pub fn run(&self, context: &Context) -> anyhow::Result<FileLoad> {
        let (did, command) = call(context, &self.words())?;
        Ok(load_of(&did, command))
    }
}

/// Parses fio's output of a file job; `command` is the command line to show.
///
/// # Errors
/// The output is not fio's JSON.
pub fn file_load(stdout: &[u8], command: String) -> anyhow::Result<FileLoad> {
    Ok(load_of(&first_job(stdout)?, command))
}

fn load_of(did: &Value, command: String) -> FileLoad {
    let sum = |key: &str| did["read"][key].as_f64().unwrap_or(0.0) + did["write"][key].as_f64().unwrap_or(0.0);
    FileLoad { iops: sum("iops"), bandwidth: sum("bw_bytes"), command }
}
