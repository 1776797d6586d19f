//! `hotshelf bench`: the experiments behind our figures.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use anyhow::Context as _;
use bench::results::{self, Results, Run};
use bench::{Context, Experiment, Outcome, RunScale, StoppedError, compare, lab, report};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::Usage;
use crate::args::{BenchArgs, BenchCommand, BenchRunArgs, BenchSize};

/// Runs the given command of `hotshelf bench`.
pub fn bench(args: &BenchArgs) -> anyhow::Result<bool> {
    match &args.command {
        BenchCommand::List { json } => list(*json),
        BenchCommand::Run(args) => run(args),
        BenchCommand::Report { dir, output } => page(dir, output),
        BenchCommand::Compare { before, now, json } => compared(before, now, *json),
    }
}

fn list(as_json: bool) -> anyhow::Result<bool> {
    if as_json {
        let line = |one: &Experiment| {
            json!({ "name": one.name, "about": one.about, "source": one.source, "paper": one.paper, "peers": one.peers,
                "devices": one.devices, "needs": one.needs.iter().map(|need| need.name()).collect::<Vec<_>>(), "lacks": one.lacks(),
                "room_mib": { "small": one.room_mib.0, "full": one.room_mib.1 },
                "seconds": { "small": one.takes.0, "full": one.takes.1 } })
        };
        say_lines!("{}", serde_json::to_string_pretty(&bench::ALL.iter().map(line).collect::<Vec<_>>())?);
        return Ok(true);
    }
    for one in bench::ALL {
        let lines = [("repeats", one.source), ("the paper", one.paper), ("beside", one.peers), ("devices", one.devices)];
        say!("{:<16} {}", one.name, one.about);
        lines.iter().filter(|(_, words)| !words.is_empty()).for_each(|(what, words)| say!("{:<16} {what}: {words}", ""));
        let needs: Vec<String> = one.needs.iter().map(|need| need.name()).collect();
        let room = format!("{} MiB ({} in full)", one.room_mib.0, one.room_mib.1);
        let needs = if needs.is_empty() { String::new() } else { format!("{}, ", needs.join(", ")) };
        say!("{:<16} needs: {needs}{room}; takes {} (about {} in full)", "", time(one.takes.0), time(one.takes.1));
        match one.lacks() {
            lacks if lacks.is_empty() => say!("{:<16} can run here", ""),
            lacks => say!("{:<16} CANNOT RUN HERE: {}", "", lacks.join("; ")),
        }
    }
    Ok(true)
}

fn time(seconds: u64) -> String {
    if seconds < 100 { format!("{seconds} s") } else { format!("{} min", seconds.div_ceil(60)) }
}

/// Set by a signal; as long as the process.
fn stopped() -> &'static AtomicBool {
    static STOPPED: OnceLock<&'static Arc<AtomicBool>> = OnceLock::new();
    STOPPED.get_or_init(|| {
        let flag: &'static Arc<AtomicBool> = Box::leak(Box::default());
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
            // Without it the signal ends us, and the next start takes away what is left.
            drop(signal_hook::flag::register(signal, Arc::clone(flag)));
        }
        flag
    })
}

fn run(args: &BenchRunArgs) -> anyhow::Result<bool> {
    let experiments = chosen(&args.names)?;
    for left in lab::clean_up()? {
        complain!("left by a run that was killed, taken away: {left}");
    }
    std::fs::create_dir_all(&args.out).with_context(|| format!("{}", args.out.display()))?;
    let mut left: u64 = experiments.iter().map(|one| takes(args, one)).sum();
    let (mut all_well, mut shown) = (true, Vec::new());
    for (at, experiment) in experiments.iter().enumerate() {
        let context = context(args)?;
        let run = Run::new(experiment, &context, &command());
        let known = args.out.join(format!("{}.jsonl", experiment.name));
        if args.resume && results::read(&known).is_ok_and(|done| done.run.is_like(&run) && !done.outcome.rows.is_empty()) {
            say!("{}: measured already ({})", experiment.name, known.display());
            left -= takes(args, experiment);
            continue;
        }
        context.progress.set_prefix(format!("[{}/{}] {}, {} left in all", at + 1, experiments.len(), experiment.name, time(left)));
        let done = one(experiment, &context, run, experiments.len() == 1);
        context.progress.finish_and_clear();
        let done = match done {
            Err(error) if error.is::<StoppedError>() => {
                let left = if lab::has_left_something() { "the next start takes away what is left" } else { "nothing is left behind" };
                anyhow::bail!("stopped, {left}; the same command with --resume goes on at {}", experiment.name)
            }
            done => done?,
        };
        all_well &= done.failed.is_none();
        left -= takes(args, experiment);
        let written = results::write(&args.out, &done.results.run, &done.results.outcome)?;
        if args.json {
            shown.push(json!({ "run": done.results.run, "rows": done.results.outcome.rows, "claims": done.results.outcome.claims,
                "missing": done.results.outcome.missing, "notes": done.results.outcome.notes }));
        } else {
            show(experiment, &done.results, &written);
        }
    }
    if args.json {
        say_lines!("{}", serde_json::to_string_pretty(&shown)?);
    }
    Ok(all_well)
}

fn chosen(names: &[String]) -> anyhow::Result<Vec<&'static Experiment>> {
    if names.iter().any(|name| name == "all") {
        return Ok(bench::ALL.iter().collect());
    }
    let found =
        |name: &String| bench::find(name).ok_or_else(|| Usage(format!("there is no experiment `{name}`: see `hotshelf bench list`")));
    Ok(names.iter().map(found).collect::<Result<_, _>>()?)
}

fn takes(args: &BenchRunArgs, one: &Experiment) -> u64 {
    if is_small(args) { one.takes.0 } else { one.takes.1 }
}

fn is_small(args: &BenchRunArgs) -> bool {
    args.small || matches!(args.size, BenchSize::Small)
}

struct Done {
    results: Results,
    failed: Option<anyhow::Error>,
}

/// Results name what could not be measured, and failures, unless the failed experiment is the only one.
fn one(experiment: &Experiment, context: &Context, mut run: Run, alone: bool) -> anyhow::Result<Done> {
    let begun = Instant::now();
    let (outcome, failed) = match experiment.cannot(context) {
        Some(why) if alone && !context.dir.is_dir() => anyhow::bail!("{}: {why}", experiment.name),
        Some(why) => (Outcome::not_measured("all of it", why), None),
        None => match experiment.measure(context) {
            Ok(outcome) => (outcome, None),
            Err(error) if alone || error.is::<StoppedError>() => return Err(error.context(format!("experiment {}", experiment.name))),
            Err(error) => (Outcome::not_measured("all of it", format!("it failed: {error:#}")), Some(error)),
        },
    };
    run.took = begun.elapsed().as_secs_f64();
    Ok(Done { results: Results { run, outcome }, failed })
}

fn show(experiment: &Experiment, results: &Results, written: &[std::path::PathBuf]) {
    let machine = &results.run.machine;
    let source = if experiment.source.is_empty() { String::new() } else { format!(" ({})", experiment.source) };
    say!("{}: {}{source}", experiment.name, experiment.about);
    say!("{}, {} cores, Linux {}, load {:.1}; {:.1} s", machine.cpu, machine.cores, machine.kernel, machine.load, results.run.took);
    let table = results::table(&results.outcome);
    if !table.is_empty() {
        say!("{table}");
    }
    results.outcome.missing.iter().for_each(|missing| say!("NOT MEASURED: {}: {}", missing.what, missing.why));
    results.outcome.notes.iter().for_each(|note| say!("note: {note}"));
    written.iter().for_each(|path| say!("written: {}", path.display()));
}

fn command() -> String {
    let words: Vec<String> = std::env::args().skip(1).collect();
    format!("hotshelf {}", words.join(" "))
}

fn context(args: &BenchRunArgs) -> anyhow::Result<Context> {
    let (scale, runs) = if is_small(args) { (RunScale::Small, 1) } else { (RunScale::Full, 5) };
    let progress = if std::io::stderr().is_terminal() { ProgressBar::new(0) } else { ProgressBar::hidden() };
    progress
        .set_style(ProgressStyle::with_template("{prefix}\n{bar:30} {pos}/{len} {eta} left {msg}").context("the progress bar's template")?);
    Ok(Context {
        device: args.device.clone(),
        destroy_data: args.destroy_data,
        dir: args.dir.clone(),
        scale,
        runs: args.runs.unwrap_or(runs),
        seed: args.seed,
        traces: args.trace.clone(),
        cache_sizes: args.cache.clone(),
        progress,
        program: std::env::current_exe().context("this program's own path")?,
        stopped: stopped(),
    })
}

fn page(dir: &Path, output: &Path) -> anyhow::Result<bool> {
    let all = results::read_all(dir)?;
    let written = report::write(&all, output)?;
    say!("{}: {} experiments, {} charts", output.display(), all.len(), written.len() - 1);
    Ok(true)
}

fn compared(before: &Path, now: &Path, as_json: bool) -> anyhow::Result<bool> {
    let comparison = compare::compare(&results::read_all(before)?, &results::read_all(now)?);
    if as_json {
        say_lines!("{}", serde_json::to_string_pretty(&comparison)?);
    } else {
        say_lines!("{}", comparison.text());
    }
    Ok(comparison.regressions().count() == 0)
}
