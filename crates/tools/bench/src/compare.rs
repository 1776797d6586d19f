//! Compares two sets of results: which figures became worse, beyond their spread.

use serde::Serialize;

use crate::numbers::short;
use crate::results::Results;
use crate::row::{Better, Row};

/// How one of our figures changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Worse, beyond both spreads and by more than [`LEAST`].
    Worse,
    /// Better, beyond both spreads and by more than [`LEAST`].
    Better,
    /// The spreads overlap, or the medians hardly differ.
    Same,
    /// Too few runs: the difference may be chance.
    Unsure,
}

/// One figure in both sets of results.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct MetricChange {
    /// Name of the measured experiment.
    pub experiment: String,
    /// The measured side of hotshelf.
    pub side: String,
    /// The case that was measured.
    pub case: String,
    /// Name of the metric, such as `iops`.
    pub metric: String,
    /// Median of the earlier results.
    pub before: f64,
    /// Median of the later results.
    pub after: f64,
    /// The later median divided by the earlier.
    pub ratio: f64,
    /// The assessment of this change.
    pub verdict: Verdict,
}

/// The comparison of two sets of results.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Comparison {
    /// All our figures that both sets have.
    pub changes: Vec<MetricChange>,
    /// Number of figures that only one set has.
    pub unmatched: usize,
    /// Other differences: machine, size, seed.
    pub notes: Vec<String>,
}

/// The smallest relative change that counts, even if all runs were equal.
pub const LEAST: f64 = 0.02;
/// Fewer runs say too little about the spread. Of three equal runs beside three, one pair in ten differs by chance; of five beside five,
/// one in 126.
const RUNS: usize = 5;

/// Compares earlier results with later ones.
pub fn compare(before: &[Results], after: &[Results]) -> Comparison {
    let (mut changes, mut unmatched, mut notes) = (Vec::new(), 0, Vec::new());
    for new in after {
        let Some(old) = before.iter().find(|old| old.run.experiment == new.run.experiment) else {
            unmatched += new.outcome.rows.iter().filter(|row| row.is_ours()).count();
            notes.push(format!("{}: only in the second", new.run.experiment));
            continue;
        };
        notes.extend(differences(old, new));
        for row in new.outcome.rows.iter().filter(|row| row.is_ours()) {
            let same = |other: &&Row| other.case == row.case && other.metric == row.metric && other.side == row.side;
            match old.outcome.rows.iter().find(same) {
                Some(other) => changes.push(change(other, row)),
                None => unmatched += 1,
            }
        }
    }
    let gone = |old: &&Results| !after.iter().any(|new| new.run.experiment == old.run.experiment);
    notes.extend(before.iter().filter(gone).map(|old| format!("{}: only in the first", old.run.experiment)));
    Comparison { changes, unmatched, notes }
}

fn differences(old: &Results, new: &Results) -> Vec<String> {
    let (a, b) = (&old.run, &new.run);
    let mut notes = Vec::new();
    let mut differ = |what: &str, one: String, other: String| {
        if one != other {
            notes.push(format!("{}: {what} {one} before, {other} now", a.experiment));
        }
    };
    differ("size", a.size.clone(), b.size.clone());
    differ("seed", a.seed.to_string(), b.seed.to_string());
    differ("processor", a.machine.cpu.clone(), b.machine.cpu.clone());
    differ("cores", a.machine.cores.to_string(), b.machine.cores.to_string());
    differ("kernel", a.machine.kernel.clone(), b.machine.kernel.clone());
    notes
}

fn change(old: &Row, new: &Row) -> MetricChange {
    let Row { experiment, side, case, metric, .. } = new.clone();
    let ratio = if old.median == new.median { 1.0 } else { new.median / old.median };
    MetricChange { experiment, side, case, metric, before: old.median, after: new.median, ratio, verdict: verdict(old, new) }
}

fn verdict(old: &Row, new: &Row) -> Verdict {
    let apart = new.min > old.max || new.max < old.min;
    let beyond_medians = (new.median - old.median).abs() > LEAST * old.median.abs();
    if !apart || !beyond_medians {
        return Verdict::Same;
    }
    if old.values.len() < RUNS || new.values.len() < RUNS {
        return Verdict::Unsure;
    }
    let good = (new.median > old.median) == (new.better() == Better::Higher);
    if good { Verdict::Better } else { Verdict::Worse }
}

impl Comparison {
    /// Returns the figures that became worse.
    pub fn regressions(&self) -> impl Iterator<Item = &MetricChange> {
        self.of(Verdict::Worse)
    }

    fn of(&self, verdict: Verdict) -> impl Iterator<Item = &MetricChange> {
        self.changes.iter().filter(move |change| change.verdict == verdict)
    }

    /// Formats the comparison as a table for the terminal.
    pub fn text(&self) -> String {
        let mut lines = Vec::new();
        for (verdict, word) in [(Verdict::Worse, "worse"), (Verdict::Better, "better"), (Verdict::Unsure, "unsure")] {
            for one in self.of(verdict) {
                let MetricChange { experiment, case, metric, ratio, .. } = one;
                let who = one.side.strip_prefix("hotshelf").unwrap_or_default();
                let values = format!("{} -> {}", short(one.before), short(one.after));
                lines.push(format!("{word:<7} {experiment:<14} {:<48} {metric:<18} {values:<24} {ratio:.2} times", format!("{case}{who}")));
            }
        }
        let count = |verdict| self.of(verdict).count();
        lines.extend(self.notes.iter().map(|note| format!("note: {note}")));
        lines.push(format!(
            "{} figures: {} worse, {} better, {} alike, {} apart but unsure (fewer than {RUNS} runs), {} without a counterpart",
            self.changes.len(),
            count(Verdict::Worse),
            count(Verdict::Better),
            count(Verdict::Same),
            count(Verdict::Unsure),
            self.unmatched
        ));
        lines.join("\n")
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn verdict_of(metric: &str, old: &[f64], new: &[f64]) -> Verdict {
        let row = |values: &[f64]| Row::new("x", "hotshelf", "c", metric, "", values.to_vec());
        verdict(&row(old), &row(new))
    }

    #[test]
    fn worse_is_beyond_both_spreads() {
        let old = [100.0, 105.0, 110.0, 115.0, 120.0];
        let (below, above) = ([70.0, 75.0, 80.0, 85.0, 90.0], [130.0, 131.0, 132.0, 133.0, 134.0]);
        assert_eq!(verdict_of("iops", &old, &below), Verdict::Worse);
        assert_eq!(verdict_of("iops", &old, &[70.0, 75.0, 80.0, 85.0, 101.0]), Verdict::Same, "the spreads touch");
        assert_eq!(verdict_of("iops", &old, &above), Verdict::Better);
        assert_eq!(verdict_of("latency_p99", &old, &above), Verdict::Worse);
        assert_eq!(verdict_of("iops", &[100.0; 5], &[99.0; 5]), Verdict::Same, "less than what counts");
        assert_eq!(verdict_of("iops", &old[..3], &below[..3]), Verdict::Unsure, "chance does that, too");
    }
}
