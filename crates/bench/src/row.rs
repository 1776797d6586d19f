//! One figure.

use serde::Serialize;

/// What was measured of one side in one case, all runs.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The experiment's name.
    pub experiment: &'static str,
    /// Who was measured: `hotshelf`, `fio io_uring`, ...
    pub side: String,
    /// Doing what.
    pub case: String,
    /// `iops`, `latency_p99`, ...
    pub metric: &'static str,
    /// Of the values.
    pub unit: &'static str,
    /// One for each run, in order.
    pub values: Vec<f64>,
    /// Middle value.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// What makes the same figure elsewhere, if it is a program's.
    pub command: Option<String>,
}

impl Row {
    /// From the values of all runs, of which there is at least one.
    pub fn new(experiment: &'static str, side: &str, case: &str, metric: &'static str, unit: &'static str, values: Vec<f64>) -> Row {
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (sorted[0], sorted[sorted.len() - 1]);
        Row { experiment, side: side.into(), case: case.into(), metric, unit, median: middle(&sorted), min, max, values, command: None }
    }

    /// With the command that made it.
    #[must_use]
    pub fn by(mut self, command: Option<&str>) -> Row {
        self.command = command.map(str::to_owned);
        self
    }
}

pub(crate) fn middle(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) { f64::midpoint(sorted[half - 1], sorted[half]) } else { sorted[half] }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        let median = |values: &[f64]| Row::new("x", "a", "b", "iops", "1/s", values.to_vec()).median;
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[7.0]), 7.0);
    }
}
