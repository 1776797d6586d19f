//! Collects measured values into rows.

use crate::outcome::Claim;
use crate::row::Row;

/// Name and unit of a metric.
pub type Metric = (&'static str, &'static str);

/// Bandwidth in 10^6 bytes per second.
pub const BANDWIDTH: Metric = ("bandwidth", "MB/s");
/// Completed requests or calls per second.
pub const IOPS: Metric = ("iops", "1/s");
/// Elapsed wall time in seconds.
pub const TIME: Metric = ("time", "s");

struct TableEntry {
    side: String,
    case: String,
    metric: Metric,
    values: Vec<f64>,
    command: Option<String>,
}

/// The values of one experiment.
pub struct ResultTable {
    experiment: &'static str,
    entries: Vec<TableEntry>,
}

impl ResultTable {
    /// Creates an empty table for an experiment.
    pub fn new(experiment: &'static str) -> ResultTable {
        ResultTable { experiment, entries: Vec::new() }
    }

    /// Adds a value of a side in a case.
    pub fn add(&mut self, side: &str, case: &str, metric: Metric, value: f64) {
        self.add_by(side, case, metric, value, None);
    }

    /// Adds a value with the command that measured it.
    pub fn add_by(&mut self, side: &str, case: &str, metric: Metric, value: f64, command: Option<String>) {
        let same = |entry: &&mut TableEntry| entry.side == side && entry.case == case && entry.metric == metric;
        match self.entries.iter_mut().find(same) {
            Some(entry) => entry.values.push(value),
            None => self.entries.push(TableEntry { side: side.into(), case: case.into(), metric, values: vec![value], command }),
        }
    }

    /// Returns all rows in order of first use.
    pub fn rows(&self) -> Vec<Row> {
        let row = |entry: &TableEntry| {
            let (metric, unit) = entry.metric;
            Row::new(self.experiment, &entry.side, &entry.case, metric, unit, entry.values.clone()).by(entry.command.as_deref())
        };
        self.entries.iter().map(row).collect()
    }

    /// Returns our ratio to a peer, if both were measured.
    pub fn claim(&self, case: &str, metric: Metric, ours: &str, peer: &str) -> Option<Claim> {
        Claim::of(&self.rows(), case, metric.0, ours, peer)
    }

    /// Returns the medians of a side over cases, for a line chart.
    pub fn line(&self, side: &str, metric: Metric, cases: &[(f64, String)]) -> Vec<(f64, f64)> {
        let rows = self.rows();
        let value =
            |case: &str| rows.iter().find(|row| row.side == side && row.case == case && row.metric == metric.0).map(|row| row.median);
        cases.iter().filter_map(|(x, case)| Some((*x, value(case)?))).collect()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn values_of_a_side_come_together() {
        let mut table = ResultTable::new("policies");
        for run in 0..3 {
            table.add("hotshelf", "a", IOPS, f64::from(10 + run));
            table.add("ext4", "a", IOPS, 5.0);
        }
        let rows = table.rows();
        assert_eq!((rows.len(), rows[0].median, rows[0].values.len()), (2, 11.0, 3));
        assert_eq!(table.claim("a", IOPS, "hotshelf", "ext4").map(|claim| claim.ratio), Some(2.2));
        assert_eq!(table.line("ext4", IOPS, &[(1.0, "a".into()), (2.0, "b".into())]), [(1.0, 5.0)]);
    }
}
