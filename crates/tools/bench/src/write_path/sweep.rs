//! The five series of the paper's `run-experiments`, with its columns and curves.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::sample::median;
use super::{AppendShape, BlockAccess, Sample, WriteMode, WritePathBench, appends, raw};
use crate::experiment::RunScale;
use crate::outcome::{Plot, Series};
use crate::plot;

/// One series of measured points.
#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    /// Name of the series and of its file.
    pub name: &'static str,
    /// Name of the first column.
    pub column: &'static str,
    /// The largest value of it, as in the paper.
    pub most: u32,
    what: SweepKind,
}

#[derive(Clone, Copy, Debug)]
enum SweepKind {
    Raw(BlockAccess),
    /// Blocks appended to one file.
    Blocks,
    /// This many blocks appended to each of several files.
    Files(u32),
}

/// All series of the paper.
pub const SWEEPS: [Sweep; 5] = [
    Sweep { name: "raw_seq_read", column: "num_blocks", most: 200, what: SweepKind::Raw(BlockAccess::Read) },
    Sweep { name: "raw_seq_write", column: "num_blocks", most: 200, what: SweepKind::Raw(BlockAccess::Write) },
    Sweep { name: "e2e_write_num_blocks", column: "num_blocks", most: 110, what: SweepKind::Blocks },
    Sweep { name: "e2e_write_num_files_100bl", column: "num_files", most: 50, what: SweepKind::Files(100) },
    Sweep { name: "e2e_write_num_files_10bl", column: "num_files", most: 50, what: SweepKind::Files(10) },
];

impl Sweep {
    /// Returns the points that are measured.
    pub fn points(&self, scale: RunScale) -> Vec<u32> {
        match scale {
            RunScale::Full => (1..=self.most).collect(),
            RunScale::Small => [1, 5, 20, 50, self.most].into_iter().filter(|at| *at < self.most).chain([self.most]).collect(),
        }
    }

    /// Measures one point.
    ///
    /// # Errors
    /// Errors of the file system; interrupted.
    pub fn measure(&self, bench: &WritePathBench<'_>, at: u32, sides: &[WriteMode]) -> anyhow::Result<Sample> {
        match self.what {
            SweepKind::Raw(blocks) => raw(bench, blocks, at),
            SweepKind::Blocks => appends(bench, AppendShape { files: 1, blocks: at }, sides),
            SweepKind::Files(blocks) => appends(bench, AppendShape { files: at, blocks }, sides),
        }
    }

    /// Returns the bytes of data at a point; raw blocks have 4 KiB.
    fn bytes(&self, at: u32, block_bytes: usize) -> f64 {
        let blocks = match self.what {
            SweepKind::Raw(_) => return f64::from(at) * stack::rawfs::BLOCK_BYTES as f64,
            SweepKind::Blocks => at,
            SweepKind::Files(blocks) => at * blocks,
        };
        f64::from(blocks) * block_bytes as f64
    }
}

/// All series that were measured.
pub struct Sweeps {
    /// Block size of files, in bytes.
    pub block_bytes: usize,
    /// Each series with its points.
    pub done: Vec<(Sweep, Vec<(u32, Sample)>)>,
}

impl Sweeps {
    /// Measures all series; calls `on_point` after each point.
    ///
    /// # Errors
    /// Errors of the file system; interrupted.
    pub fn run(bench: &WritePathBench<'_>, scale: RunScale, sides: &[WriteMode], on_point: &dyn Fn(&Sweep, u32)) -> anyhow::Result<Sweeps> {
        let mut done = Vec::new();
        for sweep in SWEEPS {
            let mut points = Vec::new();
            for at in sweep.points(scale) {
                points.push((at, sweep.measure(bench, at, sides).with_context(|| format!("{} {at}", sweep.name))?));
                on_point(&sweep, at);
            }
            done.push((sweep, points));
        }
        Ok(Sweeps { block_bytes: bench.block_bytes, done })
    }

    /// Writes `NAME.csv` with the paper's columns for each series, and its curves as SVG.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn write(&self, dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
        std::fs::create_dir_all(dir).with_context(|| format!("{}", dir.display()))?;
        let mut written = Vec::new();
        for (sweep, points) in &self.done {
            written.push(crate::results::save(dir, &format!("{}.csv", sweep.name), &csv(sweep, points))?);
        }
        for plot in self.plots("") {
            written.push(crate::results::save(dir, &format!("{}.svg", plot.name), &plot::svg(&plot))?);
        }
        Ok(written)
    }

    /// Returns the paper's figures 3 and 4a to 4d.
    pub fn plots(&self, prefix: &str) -> Vec<Plot> {
        let speedups = |names: &[(&str, &str)]| -> Vec<Series> { names.iter().map(|(name, label)| self.speedups(name, label)).collect() };
        let plot = |name: &str, title: &str, x: &str, y: &str, series| {
            let [name, title, x, y] = [format!("{prefix}{name}"), title.to_owned(), x.to_owned(), y.to_owned()];
            Plot { name, title, x, y, log_x: false, series }
        };
        let (times, rate) = ("times faster", "MB/s of file data");
        vec![
            plot(
                "raw",
                "BlockAccess one by one and at once",
                "blocks",
                times,
                speedups(&[("raw_seq_read", "reads"), ("raw_seq_write", "writes")]),
            ),
            plot(
                "single-file-speedup",
                "BlockAccess appended to a file",
                "blocks",
                times,
                speedups(&[("e2e_write_num_blocks", "one file")]),
            ),
            plot("single-file-throughput", "BlockAccess appended to a file", "blocks", rate, self.rates("e2e_write_num_blocks")),
            plot(
                "multi-file-speedup",
                "BlockAccess appended to files in one transaction",
                "files",
                times,
                speedups(&[("e2e_write_num_files_100bl", "100 blocks each"), ("e2e_write_num_files_10bl", "10 blocks each")]),
            ),
            plot("multi-file-throughput", "100 blocks appended to each file", "files", rate, self.rates("e2e_write_num_files_100bl")),
        ]
    }

    fn points(&self, name: &str) -> &(Sweep, Vec<(u32, Sample)>) {
        self.done.iter().find(|(sweep, _)| sweep.name == name).expect("all were measured")
    }

    fn speedups(&self, name: &str, label: &str) -> Series {
        let points = self.points(name).1.iter().map(|(at, sample)| (f64::from(*at), sample.speedup())).collect();
        Series { name: label.to_owned(), points }
    }

    fn rates(&self, name: &str) -> Vec<Series> {
        let (sweep, points) = self.points(name);
        let series = |label: &str, of: fn(&Sample) -> &Vec<f64>| {
            let rate = |(at, sample): &(u32, Sample)| (f64::from(*at), sweep.bytes(*at, self.block_bytes) / median(of(sample)));
            Series { name: label.to_owned(), points: points.iter().filter(|(_, sample)| !of(sample).is_empty()).map(rate).collect() }
        };
        let all = [series("asynchronous", |s| &s.later), series("synchronous", |s| &s.sync), series("durable each", |s| &s.each)];
        all.into_iter().filter(|series| !series.points.is_empty()).collect()
    }
}

fn csv(sweep: &Sweep, points: &[(u32, Sample)]) -> String {
    let head = format!("{},trials,sync_min_us,sync_max_us,sync_avg_us,async_min_us,async_max_us,async_avg_us\n", sweep.column);
    points.iter().fold(head, |text, (at, sample)| text + &format!("{at},{}\n", sample.columns()))
}
