//! Results on disk and in the terminal.
//!
//! `NAME.jsonl` holds everything of one experiment, one record in a line, distinguished by its first key: `run`, `row`, `claim`,
//! `missing`, `note`, `plot`. The file is written atomically, so it is always complete.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

use crate::csv::quoted;
use crate::experiment::{Context, Experiment, RunScale};
use crate::machine::Machine;
use crate::numbers::{short, times};
use crate::outcome::{Claim, Missing, Outcome, Plot};
use crate::plot;
use crate::row::Row;

/// How an experiment was run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Name of the measured experiment.
    pub experiment: String,
    /// Scale of the run; figures of different scales are not comparable.
    pub size: String,
    /// How often each case was measured.
    pub runs: u32,
    /// Seed of the random number generator.
    pub seed: u64,
    /// The command line that was run.
    pub command: String,
    /// Time of the run, seconds since 1970.
    pub at: u64,
    /// Duration of the run, in seconds.
    pub took: f64,
    /// Versions of the programs involved.
    pub programs: Vec<String>,
    /// The machine it was measured on.
    pub machine: Machine,
}

/// The stored results of one experiment.
#[derive(Clone, PartialEq, Debug)]
pub struct Results {
    /// How the experiment was run.
    pub run: Run,
    /// The outcome that was measured.
    pub outcome: Outcome,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ResultLine {
    Run(Box<Run>),
    Row(Row),
    Claim(Claim),
    Missing(Missing),
    Note(String),
    Plot(Plot),
}

impl Run {
    /// Describes a run that is about to start.
    pub fn new(experiment: &Experiment, context: &Context, command: &str) -> Run {
        let at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Run {
            experiment: experiment.name.into(),
            size: if context.scale == RunScale::Small { "small" } else { "full" }.into(),
            runs: context.runs,
            seed: context.seed,
            command: command.into(),
            at,
            took: 0.0,
            programs: experiment.versions(),
            machine: Machine::here(),
        }
    }

    /// Returns whether the other run gives comparable figures, so that it need not be repeated.
    pub fn is_like(&self, other: &Run) -> bool {
        let of = |run: &Run| (run.experiment.clone(), run.size.clone(), run.runs, run.seed, run.machine.version.clone());
        of(self) == of(other)
    }
}

/// Writes `NAME.jsonl`, `NAME.csv` and the plots; returns their paths.
///
/// # Errors
/// The directory cannot be written.
pub fn write(dir: &Path, run: &Run, outcome: &Outcome) -> anyhow::Result<Vec<PathBuf>> {
    fs::create_dir_all(dir).with_context(|| format!("{}", dir.display()))?;
    let mut lines = vec![ResultLine::Run(Box::new(run.clone()))];
    lines.extend(outcome.rows.iter().cloned().map(ResultLine::Row));
    lines.extend(outcome.claims.iter().cloned().map(ResultLine::Claim));
    lines.extend(outcome.missing.iter().cloned().map(ResultLine::Missing));
    lines.extend(outcome.notes.iter().cloned().map(ResultLine::Note));
    lines.extend(outcome.plots.iter().cloned().map(ResultLine::Plot));
    let lines = lines.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
    let mut written = Vec::new();
    for plot in &outcome.plots {
        written.push(save(dir, &format!("{}.csv", plot.name), &plot::csv(plot))?);
        written.push(save(dir, &format!("{}.svg", plot.name), &plot::svg(plot))?);
    }
    let name = &run.experiment;
    written.push(save(dir, &format!("{name}.csv"), &csv(&outcome.rows))?);
    written.push(save(dir, &format!("{name}.jsonl"), &(lines.join("\n") + "\n"))?);
    Ok(written)
}

/// Writes a file atomically.
pub(crate) fn save(dir: &Path, name: &str, text: &str) -> anyhow::Result<PathBuf> {
    let (path, half) = (dir.join(name), dir.join(format!(".{name}.half")));
    let done = fs::File::create(&half).and_then(|mut file| file.write_all(text.as_bytes())).and_then(|()| fs::rename(&half, &path));
    if done.is_err() {
        // The file may not exist.
        let _ = fs::remove_file(&half);
    }
    done.with_context(|| format!("{}", path.display()))?;
    Ok(path)
}

/// Reads a result file.
///
/// # Errors
/// The file cannot be read, or is no result.
pub fn read(path: &Path) -> anyhow::Result<Results> {
    let text = fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
    let (mut run, mut outcome) = (None, Outcome::default());
    for (at, line) in text.lines().enumerate() {
        let wrong = || format!("{}, line {}: not a result of `hotshelf bench run`", path.display(), at + 1);
        match serde_json::from_str(line).with_context(wrong)? {
            ResultLine::Run(one) => run = Some(*one),
            ResultLine::Row(row) => outcome.rows.push(row),
            ResultLine::Claim(claim) => outcome.claims.push(claim),
            ResultLine::Missing(missing) => outcome.missing.push(missing),
            ResultLine::Note(note) => outcome.notes.push(note),
            ResultLine::Plot(plot) => outcome.plots.push(plot),
        }
    }
    let run = run.with_context(|| format!("{}: it does not say how it was measured", path.display()))?;
    Ok(Results { run, outcome })
}

/// Reads all results of a directory, in the order of `bench list`, unknown ones last.
///
/// # Errors
/// The directory cannot be read, or has no results.
pub fn read_all(dir: &Path) -> anyhow::Result<Vec<Results>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("{}", dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "jsonl") {
            all.push(read(&path)?);
        }
    }
    if all.is_empty() {
        bail!("{} has no results: `hotshelf bench run all --out {}` makes them", dir.display(), dir.display());
    }
    let place = |name: &str| crate::ALL.iter().position(|one| one.name == name).unwrap_or(usize::MAX);
    all.sort_by(|a, b| place(&a.run.experiment).cmp(&place(&b.run.experiment)).then(a.run.experiment.cmp(&b.run.experiment)));
    Ok(all)
}

fn csv(rows: &[Row]) -> String {
    let mut text = String::from("experiment,side,case,metric,unit,median,min,max,mad,runs\n");
    for row in rows {
        let words = [&row.experiment, &row.side, &row.case, &row.metric, &row.unit].map(|word| quoted(word));
        text += &format!("{},{},{},{},{},{}\n", words.join(","), row.median, row.min, row.max, row.mad, row.values.len());
    }
    text
}

/// Formats a table: a line for each of our cases and metrics, with the peers and our ratio to each.
pub fn table(outcome: &Outcome) -> String {
    let rows = &outcome.rows;
    let mut lines = Vec::new();
    for ours in rows.iter().filter(|row| row.is_ours()) {
        let same = |row: &&Row| row.case == ours.case && row.metric == ours.metric && !row.is_ours();
        let peers: Vec<String> = rows
            .iter()
            .filter(same)
            .map(|row| format!("{} {} (ratio {:.2})", row.side, short(row.median), ours.median / row.median))
            .collect();
        let who = ours.side.strip_prefix("hotshelf").unwrap_or_default();
        let case = format!("{}{who}", ours.case);
        lines.push(format!("{case:<52} {:<20} {:>12} {:<5} {}", ours.metric, short(ours.median), ours.unit, peers.join(", ")));
    }
    for claim in outcome.claims.iter().filter(|claim| claim.paper.is_some()) {
        let paper = claim.paper.unwrap_or_default();
        let who = claim.ours.strip_prefix("hotshelf").unwrap_or_default();
        lines.push(format!(
            "{:<52} {:<20} {:>12} {:<5} paper: {}",
            format!("{}{who} / {}", claim.what, claim.peer),
            claim.metric,
            times(claim.ratio),
            "times",
            times(paper)
        ));
    }
    lines.join("\n")
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::outcome::Series;

    fn row(side: &str, value: f64) -> Row {
        Row::new("policies", side, "read, 4 KiB", "iops", "1/s", vec![value])
    }

    #[test]
    fn peers_stand_beside_ours_with_the_ratio() {
        let outcome = Outcome { rows: vec![row("hotshelf", 300.0), row("fio io_uring", 150.0)], ..Outcome::default() };
        let table = table(&outcome);
        assert_eq!(table.lines().count(), 1);
        assert!(table.contains("ratio 2.00"), "{table}");
    }

    #[test]
    fn everything_is_written_and_reads_back() {
        let dir = tempfile::tempdir().expect("a directory");
        let series = vec![Series { name: "reads".into(), points: vec![(1.0, 1.0), (2.0, 4.0)] }];
        let plot = Plot { name: "curve".into(), title: "t".into(), x: "blocks".into(), y: "speedup".into(), log_x: false, series };
        let mut outcome = Outcome { rows: vec![row("hotshelf", 1.5)], notes: vec!["note".into()], plots: vec![plot], ..Outcome::default() };
        outcome.claims.push(Claim::direct("read", "iops", "hotshelf", "ext4", &[2.0]).paper(3.0).why("less of it"));
        outcome.mark_missing("mergerfs", "apt install mergerfs");
        let run = Run::new(crate::find("policies").expect("there is one"), &Context::small(".".into()), "hotshelf bench run policies");
        let written = write(dir.path(), &run, &outcome).expect("written");
        let names: Vec<String> = written.iter().map(|path| path.file_name().expect("a name").to_string_lossy().into_owned()).collect();
        assert_eq!(names, ["curve.csv", "curve.svg", "policies.csv", "policies.jsonl"]);
        let text = |name: &str| fs::read_to_string(dir.path().join(name)).expect("read");
        assert_eq!(text("policies.csv").lines().nth(1), Some("policies,hotshelf,\"read, 4 KiB\",iops,1/s,1.5,1.5,1.5,0,1"));
        assert_eq!(text("curve.csv"), "blocks,reads\n1,1\n2,4\n");
        assert!(text("curve.svg").contains("speedup"));
        let back = read_all(dir.path()).expect("read");
        assert_eq!(back, [Results { run, outcome }]);
        fs::write(dir.path().join("other.jsonl"), "{\"what\": 1}\n").expect("written");
        assert!(read_all(dir.path()).is_err_and(|error| format!("{error:#}").contains("other.jsonl, line 1")));
    }
}
