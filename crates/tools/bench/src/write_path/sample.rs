//! The measurements at one point of a curve.

/// What a writer waits for; see the module documentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteMode {
    /// Waits for each block to reach the device.
    Sync,
    /// Waits for each block to be durable.
    Each,
    /// Waits once, for all blocks.
    Async,
}

/// The times of all trials, in microseconds.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Sample {
    /// All times of the mode [`WriteMode::Sync`].
    pub sync: Vec<f64>,
    /// Times of [`WriteMode::Each`]; empty if it was not measured.
    pub each: Vec<f64>,
    /// All times of the mode [`WriteMode::Async`].
    pub later: Vec<f64>,
}

/// Returns minimum, maximum and mean.
fn three(values: &[f64]) -> [f64; 3] {
    let (min, max) = values.iter().fold((f64::MAX, 0.0_f64), |(min, max), value| (min.min(*value), max.max(*value)));
    [min, max, values.iter().sum::<f64>() / values.len() as f64]
}

/// Returns the median.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    crate::row::middle(&sorted)
}

fn by_trial(slow: &[f64], fast: &[f64]) -> Vec<f64> {
    slow.iter().zip(fast).map(|(slow, fast)| slow / fast).collect()
}

impl Sample {
    pub(super) fn of(&mut self, side: WriteMode) -> &mut Vec<f64> {
        match side {
            WriteMode::Sync => &mut self.sync,
            WriteMode::Each => &mut self.each,
            WriteMode::Async => &mut self.later,
        }
    }

    /// Returns the speed-up of asynchronous writes, trial by trial: the modes of a trial are measured in turn.
    pub fn speedups(&self) -> Vec<f64> {
        by_trial(&self.sync, &self.later)
    }

    /// Returns the speed-up over [`WriteMode::Each`], trial by trial; empty if it was not measured.
    pub fn speedups_over_each(&self) -> Vec<f64> {
        by_trial(&self.each, &self.later)
    }

    /// Returns the speed-up of asynchronous writes, by medians.
    pub fn speedup(&self) -> f64 {
        median(&self.sync) / median(&self.later)
    }

    /// Returns the speed-up over [`WriteMode::Each`], by medians.
    pub fn speedup_over_each(&self) -> Option<f64> {
        (!self.each.is_empty()).then(|| median(&self.each) / median(&self.later))
    }

    /// Returns the paper's columns: `trials,sync_min_us,sync_max_us,sync_avg_us,async_min_us,async_max_us,async_avg_us`.
    pub fn columns(&self) -> String {
        let numbers = |values: &[f64]| three(values).map(|value| format!("{value:.3}")).join(",");
        format!("{},{},{}", self.sync.len(), numbers(&self.sync), numbers(&self.later))
    }

    /// Formats the paper's figures and the medians of the speed-up for the terminal.
    pub fn lines(&self) -> String {
        let side = |name: &str, values: &[f64]| {
            let [min, max, mean] = three(values);
            format!("\n{name:<18} min {min:>10.1} us, max {max:>10.1} us, mean {mean:>10.1} us, median {:>10.1} us", median(values))
        };
        let mut text = format!("trials {}, asynchronous {:.2} times faster (medians)", self.sync.len(), self.speedup());
        if let Some(times) = self.speedup_over_each() {
            text += &format!(", {times:.2} times than durable each");
        }
        text += &side("synchronous", &self.sync);
        text += &side("asynchronous", &self.later);
        if !self.each.is_empty() {
            text += &side("durable each", &self.each);
        }
        text
    }
}
