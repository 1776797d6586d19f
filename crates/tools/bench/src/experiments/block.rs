//! Throughput of one device through our queues, beside fio on the same device.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use ::block::QueueOptions;
use ::block::driver::{FileDevice, FileOptions};
use anyhow::bail;
use stack::DeviceName;

use crate::experiment::{Context, Experiment};
use crate::fio::{self, Engine};
use crate::lab::Lab;
use crate::load::{self, LoadJob, Pattern};
use crate::outcome::{Claim, Missing, Outcome};
use crate::row::Row;

const NAME: &str = "block";

/// The experiment as `hotshelf bench` lists it.
pub const EXPERIMENT: Experiment = Experiment {
    name: NAME,
    about: "128 KiB sequential and 4 KiB random reads and writes of one device, 1 and 4 threads, beside fio",
    source: "NVMeDirect, Fig. 5a and 5b",
    paper: "random reads 23 % and writes 5 % more IOPS than the kernel with one thread; both reach the drive with four, and in sequence",
    peers: "fio with io_uring (registered files and buffers) and with psync",
    devices: "a scratch file in --dir, with direct I/O where its file system can, or --device",
    needs: &[],
    room_mib: (80, 1100),
    takes: (5, 480),
    run,
};

/// Creates a scratch file without holes, so that every read reaches the device.
fn scratch(lab: &Lab<'_>) -> anyhow::Result<PathBuf> {
    let context = lab.context();
    let path = lab.dir().join("scratch");
    context.progress.set_message(format!("filling {}", path.display()));
    crate::files::fill(context, &path, context.pick(64, 1024), context.seed)?;
    Ok(path)
}

/// One case of the figure.
struct BlockCase {
    pattern: Pattern,
    write: bool,
    request_bytes: u32,
    threads: u32,
}

impl BlockCase {
    fn all(writes: bool) -> Vec<BlockCase> {
        let mut cases = Vec::new();
        for write in [false, true].into_iter().filter(|write| writes || !write) {
            cases.push(BlockCase { pattern: Pattern::Sequential, write, request_bytes: 128 << 10, threads: 1 });
            cases.extend([1, 4].map(|threads| BlockCase { pattern: Pattern::Random, write, request_bytes: 4096, threads }));
        }
        cases
    }

    fn name(&self) -> String {
        let pattern = if self.pattern == Pattern::Random { "random" } else { "sequential" };
        let op = if self.write { "write" } else { "read" };
        let plural = if self.threads == 1 { "" } else { "s" };
        format!("{pattern} {op}, {} KiB, {} thread{plural}", self.request_bytes >> 10, self.threads)
    }

    /// The paper compares with libaio at the same depth.
    fn claim(&self, rows: &[Row], peer: Engine) -> Option<Claim> {
        let claim = Claim::of(rows, &self.name(), "iops", "hotshelf", peer.side())?;
        if peer == Engine::Psync {
            return Some(claim.why("one request in flight against 32"));
        }
        let (paper, why) = match (self.pattern, self.threads, self.write) {
            (Pattern::Random, 1, false) => (1.23, "theirs goes around the kernel, here both go through its io_uring"),
            (Pattern::Random, 1, true) => (1.05, "theirs goes around the kernel, here both go through its io_uring"),
            _ => (1.0, "the device is the limit of both, as in the paper"),
        };
        Some(claim.paper(paper).why(why))
    }

    fn job(&self, context: &Context, run: u32) -> LoadJob {
        let (duration, warm_up) = context.duration();
        LoadJob {
            pattern: self.pattern,
            write: self.write,
            request_bytes: self.request_bytes,
            depth: 32,
            threads: self.threads,
            warm_up,
            duration,
            seed: context.seed + u64::from(run),
            queue: QueueOptions::default(),
        }
    }
}

fn run(context: &Context) -> anyhow::Result<Outcome> {
    let (name, scratch) = match &context.device {
        Some(name) => (name.clone(), None),
        None => {
            let lab = Lab::new(context)?;
            (DeviceName::Path(scratch(&lab)?), Some(lab))
        }
    };
    let mut outcome = Outcome::default();
    let writes = scratch.is_some() || context.destroy_data || is_memory(&name);
    if !writes {
        outcome.notes.push(format!("writes were left out: they would destroy what is on {name} (--destroy-data allows that)"));
    }
    let peers = peers(&name, &mut outcome.missing);
    let cases = BlockCase::all(writes);
    context.progress.set_length(cases.len() as u64 * u64::from(context.runs) * (1 + peers.len() as u64));
    for case in &cases {
        context.progress.set_message(case.name());
        measure(context, &name, case, &peers, &mut outcome)?;
        let claims = peers.iter().filter_map(|peer| case.claim(&outcome.rows, *peer)).collect::<Vec<_>>();
        outcome.claims.extend(claims);
    }
    outcome.notes.push("psync has one request in flight, whatever the depth of the others (32)".to_owned());
    Ok(outcome)
}

/// Returns whether the device holds no data of the user.
fn is_memory(name: &DeviceName) -> bool {
    match name {
        DeviceName::Null { .. } | DeviceName::Memory { .. } => true,
        DeviceName::Fault { inner, .. } => is_memory(inner),
        DeviceName::Path(_) | DeviceName::Nvme { .. } => false,
    }
}

fn peers(name: &DeviceName, missing: &mut Vec<Missing>) -> Vec<Engine> {
    let why = match name {
        DeviceName::Path(path) if std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_char_device()) => {
            format!("fio's engines do not take {name}, an NVMe drive's node for its own commands")
        }
        DeviceName::Path(_) if fio::present() => return vec![Engine::IoUring, Engine::Psync],
        DeviceName::Path(_) => "fio is missing; install it: apt install fio".to_owned(),
        _ => format!("{name} is no file that fio could open"),
    };
    missing.push(Missing { what: "fio".into(), why });
    Vec::new()
}

/// Measures all sides in turn.
fn measure(context: &Context, name: &DeviceName, case: &BlockCase, peers: &[Engine], outcome: &mut Outcome) -> anyhow::Result<()> {
    let mut sides = vec![SideValues::new("hotshelf")];
    sides.extend(peers.iter().map(|peer| SideValues::new(peer.side())));
    for run in 0..context.runs {
        context.check_stopped()?;
        let job = case.job(context, run);
        let device = name.open()?;
        let load = load::run(&*device, &job)?;
        if load.failed > 0 {
            bail!("{}: {} requests failed on {name}", case.name(), load.failed);
        }
        let percentile = |share| load.latency_ns.value_at_quantile(share) as f64 / 1000.0;
        sides[0].add([load.iops(), load.iops_per_cpu_second(), percentile(0.5), percentile(0.99)]);
        context.progress.inc(1);
        for (peer, side) in peers.iter().zip(&mut sides[1..]) {
            let DeviceName::Path(path) = name else { continue };
            let load = fio::run(context, *peer, path, is_direct(path)?, &job)?;
            side.add([load.iops, load.iops_per_cpu_second, load.p50_us, load.p99_us]);
            side.command = Some(load.command);
            context.progress.inc(1);
        }
        drop(device);
    }
    outcome.rows.extend(sides.into_iter().flat_map(|side| side.rows(&case.name())));
    Ok(())
}

/// Uses direct I/O where our own driver does.
fn is_direct(path: &Path) -> anyhow::Result<bool> {
    Ok(FileDevice::open(path, &FileOptions { read_only: true, ..FileOptions::default() })?.direct())
}

const METRICS: [(&str, &str); 4] = [("iops", "1/s"), ("iops_per_cpu_second", "1/s"), ("latency_p50", "us"), ("latency_p99", "us")];

/// The values of one side, a list for each metric.
struct SideValues {
    name: &'static str,
    values: [Vec<f64>; 4],
    command: Option<String>,
}

impl SideValues {
    fn new(name: &'static str) -> SideValues {
        SideValues { name, values: Default::default(), command: None }
    }

    fn add(&mut self, values: [f64; 4]) {
        self.values.iter_mut().zip(values).for_each(|(all, value)| all.push(value));
    }

    fn rows(self, case: &str) -> Vec<Row> {
        let command = self.command.as_deref();
        METRICS
            .iter()
            .zip(self.values)
            .map(|(metric, values)| Row::new(NAME, self.name, case, metric.0, metric.1, values).by(command))
            .collect()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_somebody_could_miss_is_not_written_to() {
        let is_memory = |name: &str| super::is_memory(&name.parse().expect("a device"));
        assert!(is_memory("null") && is_memory("fault:eio@1-2:memory:1MiB"));
        assert!(!is_memory("/dev/sdb") && !is_memory("fault:eio@1-2:/dev/sdb"));
    }

    #[test]
    fn devices_in_memory_are_measured_alone() {
        let device = Some(DeviceName::Memory { bytes: 8 << 20 });
        let context = Context { device, ..Context::small("/nonexistent".into()) };
        let outcome = run(&context).expect("it runs");
        assert_eq!(outcome.rows.len(), 6 * METRICS.len());
        assert!(outcome.rows.iter().all(|row| row.median > 0.0 && row.side == "hotshelf"));
    }
}
