//! The outcome of an experiment.

use serde::{Deserialize, Serialize};

use crate::row::{Better, Row, Spread};

/// Everything that an experiment reports.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Outcome {
    /// All figures that were measured.
    pub rows: Vec<Row>,
    /// Our ratios to peers, with the paper's ratios.
    pub claims: Vec<Claim>,
    /// What was not measured, and why.
    pub missing: Vec<Missing>,
    /// Notes that the reader needs.
    pub notes: Vec<String>,
    /// Line charts of the figures.
    pub plots: Vec<Plot>,
}

/// Our ratio to a peer, from the same run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Claim {
    /// The case that was measured.
    pub what: String,
    /// Name of the metric: `iops`, `time`, ...
    pub metric: String,
    /// Our side of the ratio.
    pub ours: String,
    /// The peer's side of the ratio.
    pub peer: String,
    /// Ours divided by the peer's: median over all runs.
    pub ratio: f64,
    /// The smallest ratio of all runs.
    pub min: f64,
    /// The largest ratio of all runs.
    pub max: f64,
    /// The paper's value of the same ratio.
    pub paper: Option<f64>,
    /// Why ours differs from the paper's, or other remarks.
    pub why: String,
}

impl Claim {
    /// Computes a claim from the rows of both sides, if both were measured. With equal numbers of runs, run by run.
    pub fn of(rows: &[Row], case: &str, metric: &str, ours: &str, peer: &str) -> Option<Claim> {
        let find = |side: &str| rows.iter().find(|row| row.case == case && row.metric == metric && row.side == side);
        let (one, other) = (find(ours)?, find(peer)?);
        let ratios: Vec<f64> = if one.values.len() == other.values.len() {
            one.values.iter().zip(&other.values).map(|(a, b)| a / b).collect()
        } else {
            vec![one.median / other.median]
        };
        ratios.iter().all(|ratio| ratio.is_finite()).then(|| Claim::direct(case, metric, ours, peer, &ratios))
    }

    /// Creates a claim from at least one ratio.
    pub fn direct(what: &str, metric: &str, ours: &str, peer: &str, ratios: &[f64]) -> Claim {
        let Spread { median, min, max, .. } = Spread::of(ratios);
        let [what, metric, ours, peer] = [what, metric, ours, peer].map(str::to_owned);
        Claim { what, metric, ours, peer, ratio: median, min, max, paper: None, why: String::new() }
    }

    /// Sets the ratio of the paper.
    #[must_use]
    pub fn paper(mut self, ratio: f64) -> Claim {
        self.paper = Some(ratio);
        self
    }

    /// Sets the remark on the ratio.
    #[must_use]
    pub fn why(mut self, text: impl Into<String>) -> Claim {
        self.why = text.into();
        self
    }

    /// Returns which direction of the ratio is good for us.
    pub fn better(&self) -> Better {
        Better::of(&self.metric)
    }
}

/// Something that was not measured.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Missing {
    /// A side, a case, or the whole experiment.
    pub what: String,
    /// The reason, and what would help.
    pub why: String,
}

/// A line chart with a name.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plot {
    /// File name without its extension.
    pub name: String,
    /// Title shown above the chart.
    pub title: String,
    /// Label of the horizontal axis, with its unit.
    pub x: String,
    /// Label of the vertical axis, with its unit.
    pub y: String,
    /// Logarithmic horizontal axis: for sizes and counts that double.
    #[serde(default)]
    pub log_x: bool,
    /// The lines of the chart.
    pub series: Vec<Series>,
}

/// One line of a chart.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Series {
    /// Name shown in the legend.
    pub name: String,
    /// The points, ordered by x.
    pub points: Vec<(f64, f64)>,
}

impl Outcome {
    /// Creates an outcome in which nothing was measured.
    pub fn not_measured(what: &str, why: impl Into<String>) -> Outcome {
        let mut outcome = Outcome::default();
        outcome.mark_missing(what, why);
        outcome
    }

    /// Records that something was not measured.
    pub fn mark_missing(&mut self, what: &str, why: impl Into<String>) {
        self.missing.push(Missing { what: what.to_owned(), why: why.into() });
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_ratio_is_that_of_each_run() {
        let row = |side: &str, values: &[f64]| Row::new("x", side, "read", "iops", "1/s", values.to_vec());
        let rows = [row("hotshelf", &[10.0, 40.0, 90.0]), row("ext4", &[10.0, 20.0, 30.0]), row("none", &[0.0, 0.0, 0.0])];
        let claim = Claim::of(&rows, "read", "iops", "hotshelf", "ext4").expect("both");
        assert_eq!((claim.ratio, claim.min, claim.max), (2.0, 1.0, 3.0));
        assert!(Claim::of(&rows, "read", "iops", "hotshelf", "absent").is_none());
        assert!(Claim::of(&rows, "read", "iops", "hotshelf", "none").is_none(), "nothing to divide by");
    }
}
