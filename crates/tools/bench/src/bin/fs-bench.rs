//! `fs-bench files|kv side=rawfs|kernel on=DEVICE|DIRECTORY ...`: one side of `bench/small-files.sh` and `bench/kv.sh`.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use bench::fs::Files;
use bench::fs::args::{Args, say};
use bench::fs::kernel::Kernel;
use bench::fs::kv::{self, RawFile};
use bench::fs::raw::{Raw, RawOptions};
use bench::fs::small::{self, SyncPolicy};

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The measured file system.
enum Side {
    Raw(Raw),
    Kernel(Kernel, PathBuf),
}

fn side(args: &mut Args) -> anyhow::Result<Side> {
    let (side, on) = (args.need("side")?, PathBuf::from(args.need("on")?));
    let memory = args.get::<usize>("memory_mib", 256)? << 20;
    let write_back = Duration::from_secs(args.get("write_back_s", 30)?);
    let metadata = Some(args.get::<u64>("metadata_mib", 0)? << 20).filter(|bytes| *bytes > 0);
    match &*side {
        "rawfs" => Ok(Side::Raw(Raw::make(&on, RawOptions { memory, write_back, metadata })?)),
        "kernel" => Ok(Side::Kernel(Kernel::new(on.clone())?, on)),
        _ => bail!("side={side}"),
    }
}

/// Returns the kernel's counters of the device: requests, sectors, flushes.
fn counted(stat: &str) -> anyhow::Result<[u64; 3]> {
    if stat.is_empty() {
        return Ok([0; 3]);
    }
    let text = std::fs::read_to_string(stat).with_context(|| stat.to_owned())?;
    let all: Vec<u64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    Ok([4, 6, 15].map(|at| all.get(at).copied().unwrap_or(0)))
}

/// Returns the CPU time of this process, in seconds.
fn cpu() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Counters at the start of the measurement.
#[derive(Default)]
struct StartCounters {
    cpu: f64,
    counted: [u64; 3],
}

/// Saves the counters at the start; the script subtracts them from the final ones.
fn begin(to: &mut StartCounters, stat: &str) -> anyhow::Result<()> {
    *to = StartCounters { cpu: cpu(), counted: counted(stat)? };
    Ok(())
}

fn say_begin(begin: &StartCounters, cpu_s: f64) {
    let [requests, sectors, flushes] = begin.counted;
    say("cpu_s", format!("{:.2}", cpu_s - begin.cpu));
    say("requests0", requests);
    say("sectors0", sectors);
    say("flushes0", flushes);
}

fn files(args: &mut Args) -> anyhow::Result<()> {
    let durable = match &*args.get("durable", "end".to_owned())? {
        "end" => SyncPolicy::End,
        "each" => SyncPolicy::Each,
        every => SyncPolicy::Every(every.parse().with_context(|| format!("durable={every}"))?),
    };
    let plan = small::SmallFilesPlan {
        files: args.get("files", 10_000)?,
        operations: args.get("operations", 50_000)?,
        threads: args.get("threads", 1)?,
        durable,
        seed: args.get("seed", 1)?,
    };
    let stat = args.get("stat", String::new())?;
    let side = side(args)?;
    args.end()?;
    let mut from = StartCounters::default();
    let of: &dyn Files = match &side {
        Side::Raw(raw) => raw,
        Side::Kernel(kernel, _) => kernel,
    };
    let measured = small::run(of, &plan, || begin(&mut from, &stat))?;
    let used = cpu();
    say("setup_s", format!("{:.2}", measured.setup.as_secs_f64()));
    say("mix_s", format!("{:.3}", measured.mix.as_secs_f64()));
    say("last_sync_s", format!("{:.3}", measured.last_sync.as_secs_f64()));
    say("ops", format!("{:.0}", plan.operations as f64 / measured.mix.as_secs_f64()));
    say_begin(&from, used);
    if let Side::Raw(raw) = side {
        raw.close()?;
    }
    Ok(())
}

fn kv(args: &mut Args) -> anyhow::Result<()> {
    let plan = kv::KvPlan {
        keys: args.get("keys", 10_000)?,
        getters: args.get("getters", 1)?,
        putters: args.get("putters", 1)?,
        duration: Duration::from_millis(args.get("ms", 1000)?),
        durable_every: args.get("durable_every", 1)?,
        cache: args.get::<usize>("cache_mib", 16)? << 20,
        seed: args.get("seed", 1)?,
    };
    let stat = args.get("stat", String::new())?;
    let side = side(args)?;
    args.end()?;
    let mut from = StartCounters::default();
    let measured = match &side {
        Side::Raw(raw) => kv::run(RawFile::make(raw, "kv")?, &plan, || begin(&mut from, &stat))?,
        Side::Kernel(_, dir) => kv::run(kv::kernel_file(&dir.join("kv"))?, &plan, || begin(&mut from, &stat))?,
    };
    let used = cpu();
    say("setup_s", format!("{:.2}", measured.setup.as_secs_f64()));
    for (name, all) in [("get", &measured.gets), ("put", &measured.puts)] {
        say(&format!("{name}_ops"), format!("{:.0}", all.len() as f64 / measured.time.as_secs_f64()));
        for percent in [90.0, 95.0, 99.0] {
            say(&format!("{name}_p{percent}_us"), format!("{:.1}", all.value_at_percentile(percent) as f64 / 1e3));
        }
    }
    say_begin(&from, used);
    if let Side::Raw(raw) = side {
        raw.close()?;
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    let what = words.next().unwrap_or_default();
    let mut args = Args::of(words)?;
    match &*what {
        "files" => files(&mut args)?,
        "kv" => kv(&mut args)?,
        _ => bail!("fs-bench files|kv side=rawfs|kernel on=DEVICE|DIRECTORY ..."),
    }
    println!();
    Ok(())
}
