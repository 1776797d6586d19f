//! `hotshelf bench`: the experiments behind our figures.

use std::io::IsTerminal;

use anyhow::Context as _;
use bench::{Context, Experiment, Extent, Machine, report};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::Usage;
use crate::args::{BenchArgs, BenchCommand, BenchRunArgs, BenchSize};

/// `hotshelf bench`.
pub fn bench(args: &BenchArgs) -> anyhow::Result<bool> {
    match &args.command {
        BenchCommand::List { json } => list(*json),
        BenchCommand::Run(args) => run(args),
    }
}

fn list(as_json: bool) -> anyhow::Result<bool> {
    if as_json {
        let line = |one: &Experiment| json!({ "name": one.name, "about": one.about, "source": one.source, "needs": one.needs });
        say!("{}", serde_json::to_string_pretty(&bench::ALL.iter().map(line).collect::<Vec<_>>())?);
        return Ok(true);
    }
    for one in bench::ALL {
        say!("{:<12} {}\n{:<12} source: {}\n{:<12} needs: {}", one.name, one.about, "", one.source, "", one.needs);
    }
    Ok(true)
}

fn run(args: &BenchRunArgs) -> anyhow::Result<bool> {
    let found =
        |name: &String| bench::find(name).ok_or_else(|| Usage(format!("there is no experiment `{name}`: see `hotshelf bench list`")));
    let experiments: Vec<&Experiment> = args.names.iter().map(found).collect::<Result<_, _>>()?;
    for experiment in experiments {
        let context = context(args)?;
        let machine = Machine::here();
        let outcome = (experiment.run)(&context).with_context(|| format!("experiment {}", experiment.name));
        context.progress.finish_and_clear();
        let outcome = outcome?;
        let written = report::write(&args.out, experiment.name, &machine, &outcome)?;
        if args.json {
            say!("{}", serde_json::to_string_pretty(&json!({ "machine": machine, "rows": outcome.rows, "notes": outcome.notes }))?);
            continue;
        }
        say!(
            "{} ({})\n{}, {} cores, Linux {}, load {:.1}",
            experiment.about,
            experiment.source,
            machine.cpu,
            machine.cores,
            machine.kernel,
            machine.load
        );
        say!("{}", report::table(&outcome.rows));
        outcome.notes.iter().for_each(|note| say!("note: {note}"));
        written.iter().for_each(|path| say!("written: {}", path.display()));
    }
    Ok(true)
}

fn context(args: &BenchRunArgs) -> anyhow::Result<Context> {
    let (extent, runs) = match args.size {
        BenchSize::Small => (Extent::Small, 1),
        BenchSize::Full => (Extent::Full, 5),
    };
    let progress = if std::io::stderr().is_terminal() { ProgressBar::new(0) } else { ProgressBar::hidden() };
    progress.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {eta} left {msg}").context("the progress bar's template")?);
    Ok(Context {
        device: args.device.clone(),
        destroy_data: args.destroy_data,
        dir: args.dir.clone(),
        extent,
        runs: args.runs.unwrap_or(runs),
        seed: args.seed,
        traces: args.trace.clone(),
        cache_sizes: args.cache.clone(),
        progress,
    })
}
