//! A synthetic load on a device: threads, each with a full queue.

use std::time::{Duration, Instant};

use block::tracked::Timeouts;
use block::{Arena, Buf, Completion, Device, Lba, OpenError, Queue, QueueOptions, Request, Submit, Tag, Tracked};
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

/// The access pattern of a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// Sequential; each thread in its own part, wrapping at the end.
    Sequential,
    /// Random, aligned to the length of a request.
    Random,
}

/// The parameters of a load.
#[derive(Clone, Debug)]
pub struct LoadJob {
    /// The access pattern of the requests.
    pub pattern: Pattern,
    /// Write requests; otherwise read requests.
    pub write: bool,
    /// Size of a request, in bytes.
    pub request_bytes: u32,
    /// Requests in flight of each thread.
    pub depth: u32,
    /// Number of threads, each with a queue.
    pub threads: u32,
    /// Duration of the warm-up, which is not counted.
    pub warm_up: Duration,
    /// Duration of the measured part.
    pub duration: Duration,
    /// Seed of the random number generator.
    pub seed: u64,
    /// Options of the queues; `depth` overrides theirs.
    pub queue: QueueOptions,
}

/// The result of a load.
#[derive(Debug)]
pub struct LoadResult {
    /// Number of requests that succeeded.
    pub requests: u64,
    /// Number of requests that failed.
    pub failed: u64,
    /// Wall time of the measurement.
    pub elapsed: Duration,
    /// CPU time of the threads, user and system.
    pub cpu: Duration,
    /// Latencies from submission to completion, in nanoseconds.
    pub latency_ns: Histogram<u64>,
}

impl LoadResult {
    /// Returns the completed requests per second.
    pub fn iops(&self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64()
    }

    /// Returns the requests per second of CPU time.
    pub fn iops_per_cpu_second(&self) -> f64 {
        self.requests as f64 / self.cpu.as_secs_f64().max(1e-9)
    }
}

/// Runs a load to its end.
///
/// # Errors
/// A queue cannot be opened, or there is no memory for the buffers.
pub fn run(device: &dyn Device, job: &LoadJob) -> Result<LoadResult, OpenError> {
    let workers: Vec<Worker> = (0..job.threads).map(|index| Worker::open(device, job, index)).collect::<Result<_, _>>()?;
    let begin = std::sync::Barrier::new(workers.len());
    let loads: Vec<LoadResult> = std::thread::scope(|scope| {
        let threads: Vec<_> = workers.into_iter().map(|worker| scope.spawn(|| worker.work(&begin))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a worker does not panic")).collect()
    });
    Ok(loads.into_iter().reduce(LoadResult::and).expect("at least one thread"))
}

impl LoadResult {
    fn and(mut self, other: LoadResult) -> LoadResult {
        self.requests += other.requests;
        self.failed += other.failed;
        self.cpu += other.cpu;
        self.elapsed = self.elapsed.max(other.elapsed);
        self.latency_ns.add(&other.latency_ns).expect("the same bounds");
        self
    }
}

/// The state of one thread.
struct Worker {
    queue: Tracked<Box<dyn Queue>>,
    buffers: Vec<Buf>,
    submitted: Vec<Instant>,
    idle: Vec<usize>,
    job: LoadJob,
    /// Blocks of a request.
    blocks: u32,
    /// Number of request positions of this thread.
    places: u64,
    first: u64,
    next: u64,
    random: fastrand::Rng,
}

impl Worker {
    fn open(device: &dyn Device, job: &LoadJob, index: u32) -> Result<Worker, OpenError> {
        let below = device.queue(&QueueOptions { depth: job.depth, ..job.queue.clone() })?;
        let mut queue = Tracked::new(below, Timeouts::default());
        let no_memory =
            |what: &str| OpenError::Unusable(format!("no memory for {} requests of {} bytes: {what}", job.depth, job.request_bytes));
        let each = (job.request_bytes as usize).next_multiple_of(block::buffer::UNIT_BYTES);
        let arena = Arena::private(each * job.depth as usize).map_err(|error| no_memory(&error.to_string()))?;
        queue.register(&arena).map_err(|error| no_memory(&error.to_string()))?;
        let buffers: Vec<Buf> = (0..job.depth).map_while(|_| arena.allocate(job.request_bytes as usize)).collect();
        for buffer in &buffers {
            buffer.write(0, &vec![0xa5; buffer.len()]);
        }
        let geometry = device.geometry();
        let blocks = job.request_bytes / geometry.block_bytes;
        let all = geometry.blocks.checked_div(u64::from(blocks)).unwrap_or(0);
        let places = if job.pattern == Pattern::Random { all } else { all / u64::from(job.threads) };
        if places == 0 {
            return Err(OpenError::Unusable(format!(
                "requests of {} bytes do not fit {} bytes of device",
                job.request_bytes,
                geometry.bytes()
            )));
        }
        let first = if job.pattern == Pattern::Random { 0 } else { places * u64::from(index) };
        let random = fastrand::Rng::with_seed(job.seed ^ u64::from(index));
        let idle = (0..buffers.len()).collect();
        let submitted = vec![Instant::now(); buffers.len()];
        Ok(Worker { queue, submitted, idle, job: job.clone(), blocks, places, first, next: 0, random, buffers })
    }

    fn work(mut self, begin: &std::sync::Barrier) -> LoadResult {
        begin.wait();
        self.serve(self.job.warm_up);
        let cpu = thread_cpu();
        let mut load = self.serve(self.job.duration);
        load.cpu = thread_cpu().saturating_sub(cpu);
        while self.queue.in_flight() > 0 {
            self.queue.wait(Duration::from_millis(100));
            self.queue.poll(&mut [Completion::EMPTY; 64]);
        }
        load
    }

    fn serve(&mut self, duration: Duration) -> LoadResult {
        let latency_ns = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("sane bounds");
        let begun = Instant::now();
        let mut load = LoadResult { requests: 0, failed: 0, elapsed: Duration::ZERO, cpu: Duration::ZERO, latency_ns };
        let mut ended = [Completion::EMPTY; 64];
        let mut now = begun;
        while now - begun < duration {
            self.fill(now);
            let mut count = self.queue.poll(&mut ended);
            while count == 0 {
                self.queue.wait(Duration::from_millis(100));
                count = self.queue.poll(&mut ended);
            }
            now = Instant::now();
            for completion in &ended[..count] {
                let index = usize::try_from(completion.tag.0).expect("our own tag");
                let took = now - self.submitted[index];
                load.latency_ns.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
                load.requests += u64::from(completion.status.is_ok());
                load.failed += u64::from(completion.status.is_err());
                self.idle.push(index);
            }
        }
        load.elapsed = now - begun;
        load
    }

    fn fill(&mut self, now: Instant) {
        let mut any = false;
        while let Some(&index) = self.idle.last() {
            let place = match self.job.pattern {
                Pattern::Random => self.random.u64(..self.places),
                Pattern::Sequential => self.next,
            };
            let lba = Lba((self.first + place) * u64::from(self.blocks));
            let tag = Tag(index as u64);
            let request = if self.job.write { Request::write(tag, lba, self.blocks) } else { Request::read(tag, lba, self.blocks) };
            if self.queue.submit(&request, &[self.buffers[index].span()]) == Submit::Full {
                break;
            }
            self.next = (self.next + 1) % self.places;
            self.submitted[index] = now;
            self.idle.pop();
            any = true;
        }
        if any {
            self.queue.ring();
        }
    }
}

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod test {
    use super::*;
    use block::driver::MemoryDevice;

    #[test]
    fn a_load_reaches_the_device_and_counts_what_it_did() {
        let device = MemoryDevice::new(512, 1 << 20).expect("memory");
        let job = LoadJob {
            pattern: Pattern::Sequential,
            write: true,
            request_bytes: 4096,
            depth: 4,
            threads: 2,
            warm_up: Duration::ZERO,
            duration: Duration::from_millis(20),
            seed: 1,
            queue: QueueOptions::default(),
        };
        let load = run(&device, &job).expect("it runs");
        assert!(load.requests > 0 && load.failed == 0);
        assert_eq!(load.latency_ns.len(), load.requests);
        let written = |at| {
            let mut byte = [0];
            device.region().read(at, &mut byte);
            byte[0]
        };
        assert_eq!([written(0), written(1 << 19)], [0xa5; 2], "each thread begins in its own half");
        let too_long = LoadJob { request_bytes: 2 << 20, ..job };
        assert!(run(&device, &too_long).is_err());
    }
}
