//! fio as a peer: the same load, by another hand.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;

use crate::load::{Job, Pattern};

/// What fio reports of a load.
#[derive(Debug)]
pub struct FioLoad {
    /// Requests a second.
    pub iops: f64,
    /// Requests for each second on a processor, user and system.
    pub iops_per_cpu_second: f64,
    /// Half of the requests took less, microseconds.
    pub p50_us: f64,
    /// 99 of 100 requests took less, microseconds.
    pub p99_us: f64,
    /// As it was called.
    pub command: String,
}

/// Which way into the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// io_uring with registered files and buffers.
    IoUring,
    /// One blocking call at a time; the depth is 1 whatever the job says.
    Psync,
}

impl Engine {
    /// In tables.
    pub fn side(self) -> &'static str {
        match self {
            Engine::IoUring => "fio io_uring",
            Engine::Psync => "fio psync",
        }
    }
}

/// Whether there is a fio to call.
pub fn present() -> bool {
    Command::new("fio").arg("--version").output().is_ok_and(|out| out.status.success())
}

/// Runs the job on a file or block device.
///
/// # Errors
/// fio fails, or says what cannot be understood.
pub fn run(engine: Engine, path: &Path, direct: bool, job: &Job) -> anyhow::Result<FioLoad> {
    let mut command = Command::new("fio");
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
    let shown = format!("fio {}", words.join(" "));
    let out = command.args(&words).output().context("fio")?;
    if !out.status.success() {
        bail!("{shown}: {}", String::from_utf8_lossy(&out.stderr).lines().next().unwrap_or("failed"));
    }
    read(&out.stdout, job, shown)
}

fn read(stdout: &[u8], job: &Job, command: String) -> anyhow::Result<FioLoad> {
    // fio may say something before its JSON.
    let begin = stdout.iter().position(|byte| *byte == b'{').context("fio wrote no JSON")?;
    let all: Value = serde_json::from_slice(&stdout[begin..]).context("fio's JSON")?;
    let did = &all["jobs"][0];
    let side = &did[if job.write { "write" } else { "read" }];
    let number = |value: &Value| value.as_f64().context("fio's JSON lacks a figure");
    let iops = number(&side["iops"])?;
    // Per cent of the wall time of all jobs together.
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
