//! What came of an experiment.

use serde::{Deserialize, Serialize};

use crate::row::{Better, Row, Spread};

/// What came of it.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Outcome {
    /// Every figure.
    pub rows: Vec<Row>,
    /// Ours beside a peer's, with what the paper has.
    pub claims: Vec<Claim>,
    /// What was not measured, and what it takes.
    pub missing: Vec<Missing>,
    /// What the reader must know.
    pub notes: Vec<String>,
    /// To look at.
    pub plots: Vec<Plot>,
}

/// One of ours by one of a peer's, in the same run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Claim {
    /// Doing what.
    pub what: String,
    /// Of what: `iops`, `time`, ...
    pub metric: String,
    /// Our side, and whom it stands beside.
    pub ours: String,
    /// Whom it stands beside.
    pub peer: String,
    /// Ours by theirs, the median over all runs.
    pub ratio: f64,
    /// The smallest of all runs.
    pub min: f64,
    /// The largest of all runs.
    pub max: f64,
    /// What the paper has for the same ratio.
    pub paper: Option<f64>,
    /// Why ours is not the paper's, or what else is to know.
    pub why: String,
}

impl Claim {
    /// From the rows of both sides, if both were measured. Where both have as many runs, each run's ratio is one.
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

    /// From ratios themselves, at least one.
    pub fn direct(what: &str, metric: &str, ours: &str, peer: &str, ratios: &[f64]) -> Claim {
        let Spread { median, min, max, .. } = Spread::of(ratios);
        let [what, metric, ours, peer] = [what, metric, ours, peer].map(str::to_owned);
        Claim { what, metric, ours, peer, ratio: median, min, max, paper: None, why: String::new() }
    }

    /// With the paper's ratio.
    #[must_use]
    pub fn paper(mut self, ratio: f64) -> Claim {
        self.paper = Some(ratio);
        self
    }

    /// With what is to know.
    #[must_use]
    pub fn why(mut self, text: impl Into<String>) -> Claim {
        self.why = text.into();
        self
    }

    /// Which direction of the ratio is good for us.
    pub fn better(&self) -> Better {
        Better::of(&self.metric)
    }
}

/// What was left out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Missing {
    /// A side, a case, or all of it.
    pub what: String,
    /// Why, and what would help.
    pub why: String,
}

/// A line chart.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plot {
    /// File name without its end.
    pub name: String,
    /// Above it.
    pub title: String,
    /// Of the horizontal axis, with its unit.
    pub x: String,
    /// Of the vertical axis, with its unit.
    pub y: String,
    /// The horizontal axis is logarithmic: sizes, counts that double.
    #[serde(default)]
    pub log_x: bool,
    /// The lines.
    pub series: Vec<Series>,
}

/// One line of a chart.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Series {
    /// In the legend.
    pub name: String,
    /// In order of x.
    pub points: Vec<(f64, f64)>,
}

impl Outcome {
    /// Nothing but what is missing.
    pub fn not_measured(what: &str, why: impl Into<String>) -> Outcome {
        let mut outcome = Outcome::default();
        outcome.mark_missing(what, why);
        outcome
    }

    /// Something was not measured.
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
