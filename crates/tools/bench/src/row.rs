//! One measured figure.

use serde::{Deserialize, Serialize};

/// One side's values of one case and metric, over all runs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Name of the measured experiment.
    pub experiment: String,
    /// The measured side: `hotshelf`, `fio io_uring`, ...
    pub side: String,
    /// The case that was measured.
    pub case: String,
    /// Name of the metric: `iops`, `latency_p99`, ...
    pub metric: String,
    /// Unit of all these values.
    pub unit: String,
    /// One value for each run, in order.
    pub values: Vec<f64>,
    /// The median of all values.
    pub median: f64,
    /// The smallest of all values.
    pub min: f64,
    /// The largest of all values.
    pub max: f64,
    /// Median absolute deviation of the values.
    pub mad: f64,
    /// Command that reproduces the figure, if a program measured it.
    pub command: Option<String>,
}

impl Row {
    /// Creates a row from the values of all runs, at least one.
    pub fn new(experiment: &str, side: &str, case: &str, metric: &str, unit: &str, values: Vec<f64>) -> Row {
        let Spread { median, min, max, mad } = Spread::of(&values);
        let [experiment, side, case, metric, unit] = [experiment, side, case, metric, unit].map(str::to_owned);
        Row { experiment, side, case, metric, unit, median, min, max, mad, values, command: None }
    }

    /// Returns whether this is our figure, not a peer's.
    pub fn is_ours(&self) -> bool {
        self.side == OURS || self.side.starts_with("hotshelf ") || self.side.starts_with("hotshelf,")
    }

    /// Returns which direction is good.
    pub fn better(&self) -> Better {
        Better::of(&self.metric)
    }

    /// Sets the command that measured the figure.
    #[must_use]
    pub fn by(mut self, command: Option<&str>) -> Row {
        self.command = command.map(str::to_owned);
        self
    }
}

/// Name of our side in every experiment.
pub const OURS: &str = "hotshelf";

/// Which direction of a figure is good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Better {
    /// Higher is better: requests a second, hits.
    Higher,
    /// Lower is better: times, misses, bytes written.
    Lower,
}

impl Better {
    /// Returns the direction for a metric's name.
    pub fn of(metric: &str) -> Better {
        let lower = ["latency", "time", "miss", "written", "writes", "requests", "deviation", "cpu"];
        if lower.iter().any(|word| metric.starts_with(word) || metric.ends_with(word)) { Better::Lower } else { Better::Higher }
    }
}

/// Summary statistics of the values of all runs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    /// The median of all values.
    pub median: f64,
    /// The smallest of all values.
    pub min: f64,
    /// The largest of all values.
    pub max: f64,
    /// Median absolute deviation of the values.
    pub mad: f64,
}

impl Spread {
    /// Computes the statistics of at least one value.
    pub fn of(values: &[f64]) -> Spread {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max, median) = (sorted[0], sorted[sorted.len() - 1], middle(&sorted));
        let mut distances: Vec<f64> = sorted.iter().map(|value| (value - median).abs()).collect();
        distances.sort_by(f64::total_cmp);
        Spread { median, min, max, mad: middle(&distances) }
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
        assert_eq!(Spread::of(&[1.0, 2.0, 3.0, 10.0]).mad, 1.0);
    }

    #[test]
    fn what_is_good_follows_from_the_metric() {
        let lower = ["latency_p99", "time", "miss_ratio", "bytes_written", "write_requests"];
        assert!(lower.iter().all(|metric| Better::of(metric) == Better::Lower));
        assert!(["iops", "iops_per_cpu_second", "bandwidth", "hit_ratio", "speedup"].iter().all(|m| Better::of(m) == Better::Higher));
    }

    #[test]
    fn ours_is_distinguished_from_peers() {
        let ours = |side: &str| Row::new("x", side, "c", "iops", "", vec![1.0]).is_ours();
        assert!(ours("hotshelf") && ours("hotshelf, lru") && ours("hotshelf passthrough") && !ours("fio io_uring"));
    }
}
