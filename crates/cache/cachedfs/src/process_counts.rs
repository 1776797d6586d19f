//! What one process reads and writes through a cache, from the counters of its process slot in the segment.
//!
//! The counters of a slot go on from its earlier owners, so a process notes where it begins ([`CountsBaseline`]). Whoever has that note
//! can read from the segment what the process has done since: the process itself has nothing to do for it.

use datapath::engine::{Count, Counters, EngineStatus, Tier};
use serde::{Deserialize, Serialize};
use shm::ProcessSlot;

use crate::config::Config;
use crate::error::Error;
use crate::instance::Instance;
use crate::report;
use crate::status::Latency;

const PAGE: u64 = 4096;

/// Where a page was read from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum ReadFrom {
    /// A frame in memory.
    Ram,
    /// The SSD.
    Ssd,
    /// The backing file.
    Below,
}

impl ReadFrom {
    /// All of them, the fastest first.
    pub const ALL: [ReadFrom; 3] = [ReadFrom::Ram, ReadFrom::Ssd, ReadFrom::Below];

    fn tier(self) -> Tier {
        match self {
            ReadFrom::Ram => Tier::Ram,
            ReadFrom::Ssd => Tier::Ssd,
            ReadFrom::Below => Tier::Below,
        }
    }
}

/// The reads and writes of a process.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessCounts {
    /// Pages that were read, in the order of [`ReadFrom::ALL`].
    pages: [u64; 3],
    /// Pages that were read from backing files before they were requested: ahead of a stream, or around a requested page.
    prefetched_pages: u64,
    below_read_bytes: u64,
    below_written_bytes: u64,
    /// Numbers of reads by their latency, in the buckets of the engine.
    latencies: [Vec<u64>; 3],
}

/// The counters of a process slot at the moment from which on a process counts its own reads and writes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CountsBaseline {
    slot: u8,
    generation: u32,
    counts: ProcessCounts,
}

/// What a process has done since its baseline.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProcessReport {
    /// The reads and writes of the process since then.
    pub counts: ProcessCounts,
    /// The number of processes that are attached to the cache.
    pub processes: u32,
    /// Whether it is the leader of the cache now, which writes back for all processes.
    pub is_leader: bool,
    /// Whether the cache has an SSD.
    pub has_ssd: bool,
}

impl ProcessCounts {
    fn of(status: &EngineStatus, process: ProcessSlot) -> ProcessCounts {
        let counters: &Counters = status.counters();
        let count = |what| counters.of(process, what);
        ProcessCounts {
            pages: [status.pages().hits_of(process), count(Count::SsdHits), count(Count::Misses)],
            prefetched_pages: count(Count::ReadAhead).saturating_add(count(Count::ReadAround)),
            below_read_bytes: count(Count::BelowRead),
            below_written_bytes: count(Count::BelowWritten),
            latencies: ReadFrom::ALL.map(|from| counters.latencies_of(process, from.tier()).to_vec()),
        }
    }

    /// Returns what came since `before`. The segment may be damaged and the note foreign: less than nothing is nothing.
    fn since(&self, before: &ProcessCounts) -> ProcessCounts {
        let buckets = |now: &[u64], before: &[u64]| {
            let before = before.iter().copied().chain(std::iter::repeat(0));
            now.iter().zip(before).map(|(now, before)| now.saturating_sub(before)).collect()
        };
        ProcessCounts {
            pages: std::array::from_fn(|n| self.pages[n].saturating_sub(before.pages[n])),
            prefetched_pages: self.prefetched_pages.saturating_sub(before.prefetched_pages),
            below_read_bytes: self.below_read_bytes.saturating_sub(before.below_read_bytes),
            below_written_bytes: self.below_written_bytes.saturating_sub(before.below_written_bytes),
            latencies: std::array::from_fn(|n| buckets(&self.latencies[n], &before.latencies[n])),
        }
    }

    /// Returns the number of pages that were read from there.
    pub fn pages(&self, from: ReadFrom) -> u64 {
        self.pages[from as usize]
    }

    /// Returns the share of all pages read that came from there, 0 to 1.
    pub fn ratio(&self, from: ReadFrom) -> f64 {
        let all: f64 = self.pages.iter().map(|pages| *pages as f64).sum();
        self.pages(from) as f64 / all.max(1.0)
    }

    /// Returns how long reads from there took. Of reads from memory, one of 64 reads of a single page is timed.
    pub fn latency(&self, from: ReadFrom) -> Latency {
        report::latency(&self.latencies[from as usize])
    }

    /// Returns the bytes that were read from backing files: pages that were requested, and others ahead and around.
    pub fn below_read_bytes(&self) -> u64 {
        self.below_read_bytes
    }

    /// Returns the bytes that were written to backing files: those written through, and as the leader those that are written back.
    pub fn below_written_bytes(&self) -> u64 {
        self.below_written_bytes
    }

    /// Returns the bytes that were served without the backing files. A page that was read from one before it was requested saves nothing
    /// when it is requested.
    pub fn saved_bytes(&self) -> u64 {
        let served = self.pages(ReadFrom::Ram).saturating_add(self.pages(ReadFrom::Ssd));
        served.saturating_sub(self.prefetched_pages).saturating_mul(PAGE)
    }
}

/// Returns what a process has done, if it still has its process slot.
fn report_of(status: &EngineStatus, baseline: &CountsBaseline) -> Option<ProcessReport> {
    let (process, processes) = (ProcessSlot(baseline.slot), status.processes());
    let is_there = || processes.generation(process) == Some(baseline.generation);
    if !is_there() {
        return None;
    }
    let counts = ProcessCounts::of(status, process).since(&baseline.counts);
    let is_leader = processes.leader().is_some_and(|leader| processes.pid(process) == Some(leader));
    // Another process may have taken the slot meanwhile.
    let (processes, has_ssd) = (processes.taken().count_ones(), status.sizes().ssd.is_some());
    is_there().then_some(ProcessReport { counts, processes, is_leader, has_ssd })
}

impl Instance {
    /// Notes where this process begins to count its reads and writes. None: it is not attached.
    pub fn counts_baseline(&self) -> Option<CountsBaseline> {
        self.while_attached(|part| {
            let (status, process) = (part.engine.status().ok()?, part.engine.process_slot());
            let generation = part.engine.processes().generation(process)?;
            Some(CountsBaseline { slot: process.0, generation, counts: ProcessCounts::of(&status, process) })
        })
    }

    /// Returns what a process of a cache has done since its baseline, also for callers that are not attached. None: it has left the cache.
    ///
    /// # Errors
    /// [`crate::Kind::Segment`]: the file is not the segment of an instance.
    pub fn counts_since(config: &Config, baseline: &CountsBaseline) -> Result<Option<ProcessReport>, Error> {
        Instance::here_or_else(
            config,
            |instance| instance.while_attached(|part| report_of(&part.engine.status().ok()?, baseline)),
            || Ok(report::view(config)?.and_then(|view| report_of(&view.status, baseline))),
        )
    }
}

#[cfg(test)]
mod test {
    use rustix::fs::{CWD, Mode, OFlags};

    use super::*;
    use crate::options::Options;

    fn counts(pages: [u64; 3], prefetched_pages: u64) -> ProcessCounts {
        ProcessCounts { pages, prefetched_pages, latencies: [vec![1, 2], vec![], vec![5]], ..ProcessCounts::default() }
    }

    #[test]
    fn what_came_since_is_never_negative() {
        let (before, now) = (counts([10, 20, 30], 4), counts([15, 20, 90], 6));
        let since = now.since(&before);
        assert_eq!((since.pages, since.prefetched_pages, since.saved_bytes()), ([5, 0, 60], 2, 3 * PAGE));
        assert_eq!(since.latencies, [vec![0, 0], vec![], vec![0]]);
        let back = before.since(&now);
        assert_eq!((back.pages, back.saved_bytes()), ([0, 0, 0], 0));
        assert_eq!(back.ratio(ReadFrom::Ram), 0.0);
        // A note with other buckets, and a damaged segment.
        let other = ProcessCounts { latencies: [vec![], vec![9; 3], vec![]], ..ProcessCounts::default() };
        assert_eq!(now.since(&other).latencies, now.latencies);
        let damaged = counts([u64::MAX, u64::MAX, u64::MAX], 0);
        assert_eq!(damaged.saved_bytes(), u64::MAX);
        assert!((damaged.ratio(ReadFrom::Below) - 1.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn a_process_counts_from_its_baseline_until_it_leaves() {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
        let memory = Some(crate::Size::Bytes(1 << 20));
        let config = Config { runtime_dir: dir.path().to_owned(), memory, keep: true, ..Config::default() };
        let path = dir.path().join("file");
        std::fs::write(&path, [7; 3 * PAGE as usize]).expect("written");
        let instance = Instance::open(&config).expect("an instance");
        let read = || {
            let file = instance.open_file(CWD, &path, OFlags::RDONLY, Mode::empty(), &Options::default()).expect("opened");
            for page in 0..3 {
                assert_eq!(file.read_at(page * PAGE, &mut [0; PAGE as usize]).expect("read"), PAGE as usize);
            }
        };
        let since = |baseline: &CountsBaseline| Instance::counts_since(&config, baseline).expect("sound");
        let first = instance.counts_baseline().expect("attached");
        read();
        let cold = since(&first).expect("attached").counts;
        assert_eq!(cold.pages.iter().sum::<u64>(), 3);
        assert!(cold.pages(ReadFrom::Below) >= 1 && cold.latency(ReadFrom::Below).count >= 1, "{cold:?}");
        assert_eq!((cold.below_read_bytes(), cold.saved_bytes()), (3 * PAGE, 0), "{cold:?}");
        let second = instance.counts_baseline().expect("attached");
        read();
        let warm = since(&second).expect("attached");
        assert_eq!((warm.counts.pages, warm.counts.saved_bytes(), warm.has_ssd), ([3, 0, 0], 3 * PAGE, false));
        assert_eq!(since(&first).expect("attached").counts.saved_bytes(), 3 * PAGE);
        // As it is kept in a file; and of a slot that does not exist, or is another process's by now.
        let kept = toml::to_string(&first).expect("text");
        assert_eq!(toml::from_str::<CountsBaseline>(&kept).expect("sane"), first);
        assert_eq!(since(&CountsBaseline { slot: 200, ..first.clone() }), None);
        assert_eq!(since(&CountsBaseline { generation: first.generation + 2, ..first.clone() }), None);
        instance.detach().expect("left");
        assert_eq!(since(&first), None);
        // The counters of the slot go on in the segment, which is kept; those of the next owner begin anew.
        let again = Instance::open(&config).expect("an instance");
        let next = again.counts_baseline().expect("attached");
        assert_eq!((since(&first), since(&next).map(|report| report.counts.pages)), (None, Some([0, 0, 0])));
        again.detach().expect("left");
    }
}
