//! Completion modes side by side on a device that takes a fixed time: latency, CPU time, and the chosen state.
//!
//! ```text
//! completion [--rounds N] [--ms N] [--jitter PERCENT] [--hogs N] [--threads N] [--latencies US,US] [--depths N,N] [--csv]
//! completion --cost-of bare|polling|interrupt|adaptive:1|32 --requests N
//! ```
//! Each round runs every mode on every latency and depth in sequence; the output has the median of the rounds for each figure.
//! The device's interrupt is a kernel timer; a poll only reads the clock. `--hogs` keeps that number of CPUs busy meanwhile;
//! `--threads` sets the number of submitters, each with a queue. The last lines are the cost of a completion thread with idle
//! queues, and what the wrapper adds to a request. The second form measures only this, to count instructions with callgrind.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use block::clock::{Clock, Monotonic, Time};
use block::completion::{Adaptive, Counters, Leftover, Mode, Reap, Reaper, ReaperOptions, Sleeper, System, WakeupLatency};
use block::driver::NullDevice;
use block::{Arena, Armed, Completion, Error, Geometry, Queue, Request, Span, Submit, Tag};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_create, timerfd_settime,
};

const MODES: [Mode; 3] = [Mode::Polling, Mode::Interrupt, Mode::Adaptive];

const FLOOR: WakeupLatency =
    WakeupLatency { timer: Duration::from_micros(15), timer_late: Duration::from_micros(17), event: Duration::from_micros(3) };

fn main() {
    let options = Options::from_args();
    if options.cost_of.is_some() {
        return cost(&options);
    }
    let stop = AtomicBool::new(false);
    println!("floor {:?}, load {}", WakeupLatency::of_machine(), load());
    std::thread::scope(|scope| {
        for _ in 0..options.hogs {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop()
                }
            });
        }
        compare(&options);
        stop.store(true, Ordering::Relaxed);
    });
    MODES.into_iter().for_each(idle);
    cost(&options);
    println!("load {}", load());
}

fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_default().split(' ').take(3).collect::<Vec<_>>().join(" ")
}

struct Options {
    rounds: usize,
    run: Duration,
    jitter: f64,
    hogs: usize,
    threads: usize,
    cost_of: Option<String>,
    requests: u64,
    latencies_us: Vec<u64>,
    depths: Vec<u32>,
    csv: bool,
}

impl Options {
    fn from_args() -> Options {
        let mut options = Options {
            rounds: 5,
            run: Duration::from_millis(200),
            jitter: 0.0,
            hogs: 0,
            threads: 1,
            cost_of: None,
            requests: 1_000_000,
            latencies_us: vec![8, 20, 80, 400],
            depths: vec![1, 4, 32],
            csv: false,
        };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let mut value = || args.next().unwrap_or_else(|| panic!("{arg} needs a value"));
            match arg.as_str() {
                "--rounds" => options.rounds = number(&value()),
                "--ms" => options.run = Duration::from_millis(number(&value())),
                "--jitter" => options.jitter = number::<f64>(&value()) / 100.0,
                "--hogs" => options.hogs = number(&value()),
                "--threads" => options.threads = number(&value()),
                "--requests" => options.requests = number(&value()),
                "--cost-of" => options.cost_of = Some(value()),
                "--latencies" => options.latencies_us = value().split(',').map(number).collect(),
                "--depths" => options.depths = value().split(',').map(number).collect(),
                "--csv" => options.csv = true,
                _ => panic!("what is {arg}?"),
            }
        }
        options
    }
}

fn number<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| panic!("{text} is no number"))
}

fn compare(options: &Options) {
    let cases: Vec<(u64, u32, Mode)> = options
        .latencies_us
        .iter()
        .flat_map(|us| options.depths.iter().flat_map(move |depth| MODES.map(|mode| (*us, *depth, mode))))
        .collect();
    let mut figures: Vec<Vec<Figures>> = vec![Vec::new(); cases.len()];
    for round in 0..options.rounds {
        for (case, figures) in cases.iter().zip(&mut figures) {
            figures.push(run(case, options, round as u64));
        }
    }
    println!("device_us,depth,mode,mean_us,p99_us,cpu_us_per_io,iops,iops_per_cpu_s,chose");
    for ((us, depth, mode), figures) in cases.iter().zip(&figures) {
        let median = |of: fn(&Figures) -> f64| {
            let mut all: Vec<f64> = figures.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        let (cpu, iops) = (median(|run| run.cpu_us), median(|run| run.iops));
        let (mean, p99) = (median(|run| run.mean_us), median(|run| run.p99_us));
        let chose = chosen(&figures[figures.len() / 2].counters);
        if options.csv {
            println!("{us},{depth},{},{mean:.2},{p99:.2},{cpu:.2},{iops:.0},{:.0},{chose}", mode.name(), 1e6 / cpu);
        } else {
            let per_cpu = 1e6 / cpu;
            let name = mode.name();
            println!("{us:>4} us  {depth:>2}  {name:<9}  {mean:>8.2} {p99:>8.2} {cpu:>8.2} {iops:>9.0} {per_cpu:>9.0}  {chose}");
        }
    }
}

/// Returns the shares of the kinds of waits, in percent.
fn chosen(counters: &Counters) -> String {
    let waits = counters.waits.max(1);
    let percent = |part: u64| part * 100 / waits;
    let (slept, blocked) = (percent(counters.sleeps), percent(counters.interrupt_wakes));
    format!("poll {} sleep {slept} block {blocked} %", 100_u64.saturating_sub(slept + blocked))
}

#[derive(Clone, Copy)]
struct Figures {
    mean_us: f64,
    p99_us: f64,
    cpu_us: f64,
    iops: f64,
    counters: Counters,
}

/// The measurements of one submitter.
struct Seen {
    latencies_ns: Vec<u64>,
    cpu: Duration,
    counters: Counters,
}

/// Runs several submitters at the same time.
fn run(case: &(u64, u32, Mode), options: &Options, seed: u64) -> Figures {
    let begin = Monotonic::default();
    let seen: Vec<Seen> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.threads).map(|_| scope.spawn(|| submit_for_a_while(case, options, seed))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let took = begin.now().since(Time(0)).as_secs_f64();
    let cpu: f64 = seen.iter().map(|seen| seen.cpu.as_secs_f64()).sum();
    let counters = seen[0].counters;
    let mut latencies: Vec<u64> = seen.into_iter().flat_map(|seen| seen.latencies_ns).collect();
    latencies.sort_unstable();
    let count = latencies.len() as f64;
    Figures {
        mean_us: latencies.iter().sum::<u64>() as f64 / count / 1e3,
        p99_us: latencies[latencies.len() * 99 / 100] as f64 / 1e3,
        cpu_us: cpu * 1e6 / count,
        iops: count / took,
        counters,
    }
}

/// Keeps as many requests in flight as the depth, and measures them.
fn submit_for_a_while(&(us, depth, mode): &(u64, u32, Mode), options: &Options, seed: u64) -> Seen {
    let clock = Monotonic::default();
    let device = Timed::new(depth, Duration::from_micros(us), options.jitter, clock, seed);
    let mut queue = Adaptive::with(device, mode, WakeupLatency::of_machine(), clock, System::default());
    let mut since = vec![Time(0); depth as usize];
    let mut latencies_ns: Vec<u64> = Vec::with_capacity(1 << 20);
    let mut ended = [Completion::EMPTY; 32];
    let system = System::default();
    let submit = |queue: &mut Adaptive<Timed>, tag: u64, since: &mut [Time]| {
        since[tag as usize] = clock.now();
        assert_eq!(queue.submit(&Request::flush(Tag(tag)), &[]), Submit::Queued);
    };
    (0..u64::from(depth)).for_each(|tag| submit(&mut queue, tag, &mut since));
    let (cpu, until) = (system.cpu(), clock.now().after(options.run));
    while clock.now() < until {
        queue.wait(Duration::from_secs(1));
        let found = queue.poll(&mut ended);
        let now = clock.now();
        for completion in &ended[..found] {
            latencies_ns.push(now.since(since[completion.tag.0 as usize]).as_nanos() as u64);
            submit(&mut queue, completion.tag.0, &mut since);
        }
    }
    Seen { latencies_ns, cpu: system.cpu() - cpu, counters: queue.counters() }
}

/// Prints the cost of the wrapper: requests to a device that does nothing, submitted and polled in batches.
fn cost(options: &Options) {
    for batch in [1, 32] {
        let mut line = format!("cost, batch {batch}:");
        for of in ["bare", "polling", "interrupt", "adaptive"] {
            if options.cost_of.as_ref().is_none_or(|only| *only == format!("{of}:{batch}")) {
                line += &format!(" {of} {:.1} ns", cost_of(of, batch, options.requests));
            }
        }
        println!("{line} per request");
    }
}

fn cost_of(of: &str, batch: u64, requests: u64) -> f64 {
    let clock = Monotonic::default();
    let device = NullDevice::new(Geometry::plain(4096, 1 << 20)).open_queue(32);
    match MODES.into_iter().find(|mode| mode.name() == of) {
        // The wakeup latency is not measured, so that a count of instructions contains nothing else.
        Some(mode) => submit_and_poll(&mut Adaptive::with(device, mode, FLOOR, clock, System::default()), batch, requests),
        None => submit_and_poll(&mut { device }, batch, requests),
    }
}

fn submit_and_poll(queue: &mut impl Queue, batch: u64, requests: u64) -> f64 {
    let clock = Monotonic::default();
    let mut ended = [Completion::EMPTY; 32];
    for _ in 0..requests / batch {
        (0..batch).for_each(|tag| assert_eq!(queue.submit(&Request::flush(Tag(tag)), &[]), Submit::Queued));
        queue.ring();
        assert_eq!(queue.poll(&mut ended) as u64, batch);
    }
    clock.now().since(Time(0)).as_nanos() as f64 / requests as f64
}

/// Prints the CPU use of the whole process while a completion thread serves queues with nothing in flight.
fn idle(mode: Mode) {
    struct Quiet;
    impl Reap for Quiet {
        fn reap(&self) -> usize {
            0
        }
        fn expected(&self) -> Option<Time> {
            None
        }
        fn event(&self) -> Option<BorrowedFd<'_>> {
            None
        }
        fn arm(&self) -> Armed {
            Armed::Waiting
        }
    }
    let clock = Monotonic::default();
    let reaper = Reaper::start(ReaperOptions { mode, floor: WakeupLatency::of_machine() }, clock).expect("a thread");
    for _ in 0..8 {
        reaper.add(Arc::new(Quiet)).expect("added");
    }
    let cpu = || Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).expect("a time");
    let (begin, before) = (clock.now(), cpu());
    std::thread::sleep(Duration::from_secs(1));
    let part = (cpu() - before).as_secs_f64() / clock.now().since(begin).as_secs_f64();
    println!("idle, {}, 8 queues: {:.4} % of a CPU", mode.name(), part * 100.0);
    assert_eq!(reaper.stop(Time::NEVER), Leftover::Nothing);
}

/// A device that completes each request after the same time, plus or minus the jitter.
struct Timed {
    geometry: Geometry,
    depth: u32,
    latency: Duration,
    jitter: f64,
    clock: Monotonic,
    random: fastrand::Rng,
    submitted: VecDeque<Tag>,
    /// Sorted by completion time.
    running: VecDeque<(Time, Tag)>,
    timer: OwnedFd,
}

impl Timed {
    fn new(depth: u32, latency: Duration, jitter: f64, clock: Monotonic, seed: u64) -> Timed {
        Timed {
            geometry: Geometry::plain(4096, 1 << 20),
            depth,
            latency,
            jitter,
            clock,
            random: fastrand::Rng::with_seed(seed),
            submitted: VecDeque::with_capacity(depth as usize),
            running: VecDeque::with_capacity(depth as usize),
            timer: timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK).expect("a timer"),
        }
    }

    /// Returns a lognormal time whose median is the latency.
    fn takes(&mut self) -> Duration {
        if self.jitter == 0.0 {
            return self.latency;
        }
        let (u, v) = (1.0 - self.random.f64(), self.random.f64());
        let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
        self.latency.mul_f64((normal * self.jitter).exp())
    }
}

impl Queue for Timed {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn register(&mut self, _: &Arena) -> Result<(), Error> {
        Ok(())
    }

    fn submit(&mut self, request: &Request, _: &[Span]) -> Submit {
        if self.in_flight() == self.depth {
            return Submit::Full;
        }
        self.submitted.push_back(request.tag);
        Submit::Queued
    }

    fn ring(&mut self) {
        if self.submitted.is_empty() {
            return;
        }
        let now = self.clock.now();
        while let Some(tag) = self.submitted.pop_front() {
            let due = now.after(self.takes());
            let at = self.running.partition_point(|(other, _)| *other <= due);
            self.running.insert(at, (due, tag));
        }
    }

    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        self.ring();
        let now = self.clock.now();
        let mut found = 0;
        while found < completions.len()
            && let Some((_, tag)) = self.running.pop_front_if(|(due, _)| *due <= now)
        {
            completions[found] = Completion { tag, status: Ok(()) };
            found += 1;
        }
        found
    }

    fn in_flight(&self) -> u32 {
        (self.submitted.len() + self.running.len()) as u32
    }

    fn wait(&mut self, at_most: Duration) {
        self.ring();
        let Some((due, _)) = self.running.front() else { return };
        let remaining = due.since(self.clock.now());
        if remaining.is_zero() {
            return;
        }
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: zero, it_value: remaining.try_into().expect("not so long") };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec).expect("set");
        let mut fds = [PollFd::new(&self.timer, PollFlags::IN)];
        let _ = poll(&mut fds, Timespec::try_from(at_most).ok().as_ref());
    }

    fn cancel(&mut self, _: Tag) {}

    fn reset(&mut self) -> Result<(), Error> {
        self.submitted.clear();
        self.running.clear();
        Ok(())
    }

    fn owns_buffer(&self, _: Tag) -> bool {
        false
    }

    fn take_released(&mut self) -> Option<Tag> {
        None
    }
}
