//! Latencies of requests, and their quantiles.

/// A list of latencies in milliseconds.
pub struct Latencies(Vec<f64>);

impl Latencies {
    /// Makes an empty list of latencies.
    pub fn new() -> Latencies {
        Latencies(Vec::new())
    }

    /// Adds a latency, given in nanoseconds.
    pub fn add(&mut self, nanoseconds: u64) {
        self.0.push(nanoseconds as f64 / 1e6);
    }

    /// Returns the number of latencies.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the latency of a quantile, in milliseconds.
    pub fn at(&mut self, part: f64) -> f64 {
        self.0.sort_by(f64::total_cmp);
        self.0.get((self.0.len() as f64 * part) as usize).copied().unwrap_or(f64::NAN)
    }
}
