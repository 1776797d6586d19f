//! Measures the cost of the broker: nanoseconds per request on a device in memory, directly and through a broker in another process,
//! alternately in one run. `bench/broker.sh` builds and runs it.
//!
//!     broker_cost ROUNDS                  one line of JSON for each case, medians over ROUNDS
//!     broker_cost serve DIR               the other process
//!     broker_cost alone BATCHES           both in one process, for callgrind: batches of 32 on a device that does nothing

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::broker::client::Admin;
use block::broker::{BrokerDevice, ConnectOptions, GrantSpec, Journal, Server, ServerOptions, Who};
use block::driver::{MemoryDevice, NullDevice};
use block::{Arena, Completion, Device, Geometry, Lba, Queue, QueueOptions, Request, Span, Submit, Tag};

const BLOCKS: u64 = 16_384;
const BLOCK_BYTES: u32 = 4096;

fn devices() -> Vec<(String, Arc<dyn Device>)> {
    let memory = MemoryDevice::new(BLOCK_BYTES, BLOCKS * u64::from(BLOCK_BYTES)).expect("memory");
    let null = NullDevice::new(Geometry::plain(BLOCK_BYTES, BLOCKS));
    vec![("memory".into(), Arc::new(memory)), ("null".into(), Arc::new(null))]
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", dir] => serve(Path::new(dir)),
        ["alone", batches] => alone(batches.parse().expect("a number")),
        [rounds] => measure(rounds.parse().expect("a number of rounds")),
        _ => panic!("usage: broker_cost ROUNDS"),
    }
}

fn server(dir: &Path, spin: Duration) -> Server {
    let journal = Journal::open(&dir.join("grants")).expect("a journal");
    let (socket, reset_timeout) = (dir.join("socket"), Duration::from_secs(1));
    Server::start(ServerOptions { socket, journal, devices: devices(), spin, reset_timeout }).expect("started")
}

/// Runs broker and client in one process, without polling, so that a profile counts only the cost of requests.
fn alone(batches: u64) {
    let dir = tempfile::tempdir().expect("a directory");
    let _server = server(dir.path(), Duration::ZERO);
    let socket = dir.path().join("socket");
    Admin::connect(&socket).expect("connected").grant(terms("null")).expect("granted");
    let device = connect(&socket, "null");
    let queue = Box::new(device.open_queue(32).expect("a queue"));
    let mut path = AccessPath { name: "alone", queue, spans: spans(device.arena()), sleeps: true };
    run(&mut path, 32, batches * 32);
}

fn terms(device: &str) -> GrantSpec {
    GrantSpec {
        who: Who::User(rustix::process::geteuid().as_raw()),
        device: device.into(),
        queues: 4,
        depth: 32,
        first: 0,
        blocks: None,
        read_only: false,
        memory_bytes: 1 << 20,
        bytes_per_s: None,
        requests_per_s: None,
    }
}

fn connect(socket: &Path, device: &str) -> BrokerDevice {
    let (device, arena_bytes) = (device.to_owned(), 1 << 20);
    let options = ConnectOptions { socket: socket.to_owned(), device, range: None, read_only: false, arena_bytes, reply_timeout: None };
    BrokerDevice::connect(&options).expect("allowed")
}

fn spans(arena: &Arena) -> Vec<Span> {
    (0..32).map(|at| arena.span(at * 4096, BLOCK_BYTES)).collect()
}

/// Runs the broker until standard input ends.
fn serve(dir: &Path) {
    let _server = server(dir, Duration::from_micros(50));
    println!("ready");
    let _ = std::io::stdout().flush();
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn start(dir: &Path) -> Child {
    let me = std::env::current_exe().expect("this program");
    let mut command = Command::new(me);
    command.arg("serve").arg(dir).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("a broker");
    let mut said = String::new();
    BufReader::new(child.stdout.as_mut().expect("a pipe")).read_line(&mut said).expect("ready");
    child
}

/// A way to reach the device: directly or through the broker.
struct AccessPath {
    name: &'static str,
    queue: Box<dyn Queue>,
    spans: Vec<Span>,
    sleeps: bool,
}

fn measure(rounds: usize) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut child = start(dir.path());
    let socket = dir.path().join("socket");
    let mut admin = Admin::connect(&socket).expect("connected");
    for (name, device) in devices() {
        admin.grant(terms(&name)).expect("granted");
        let far = connect(&socket, &name);
        let own = Arena::private(1 << 20).expect("memory");
        let mut near = device.queue(&QueueOptions { depth: 32, ..QueueOptions::default() }).expect("a queue");
        near.register(&own).expect("registered");
        let open = || Box::new(far.open_queue(32).expect("a queue"));
        let mut paths = [
            AccessPath { name: "direct", queue: near, spans: spans(&own), sleeps: false },
            AccessPath { name: "broker, polling", queue: open(), spans: spans(far.arena()), sleeps: false },
            AccessPath { name: "broker, waiting", queue: open(), spans: spans(far.arena()), sleeps: true },
        ];
        for batch in [1, 32] {
            report(&name, batch, rounds, &mut paths);
        }
    }
    drop(child.stdin.take());
    child.wait().expect("ended");
}

fn report(device: &str, batch: u64, rounds: usize, paths: &mut [AccessPath]) {
    let mut all: Vec<Vec<f64>> = vec![Vec::new(); paths.len()];
    for _ in 0..rounds {
        for (path, figures) in paths.iter_mut().zip(&mut all) {
            figures.push(run(path, batch, if path.sleeps && batch == 1 { 10_000 } else { 100_000 }));
        }
    }
    for (path, figures) in paths.iter().zip(&mut all) {
        figures.sort_by(f64::total_cmp);
        let (median, least) = (figures[figures.len() / 2], figures[0]);
        println!(
            "{{\"device\":\"{device}\",\"way\":\"{}\",\"batch\":{batch},\"ns\":{median:.0},\"ns_least\":{least:.0},\"rounds\":{rounds}}}",
            path.name
        );
    }
}

/// Returns the nanoseconds per 4 KiB read, with `batch` requests at a time.
fn run(path: &mut AccessPath, batch: u64, requests: u64) -> f64 {
    let mut ended = [Completion::EMPTY; 32];
    let mut lba = 0;
    let begin = Instant::now();
    for _ in 0..requests / batch {
        for tag in 0..batch {
            lba = (lba + 7919) % BLOCKS;
            let request = Request::read(Tag(tag), Lba(lba), 1);
            assert_eq!(path.queue.submit(&request, &path.spans[tag as usize..][..1]), Submit::Queued);
        }
        path.queue.ring();
        let mut left = batch;
        while left > 0 {
            let count = path.queue.poll(&mut ended);
            assert!(ended[..count].iter().all(|completion| completion.status.is_ok()));
            left -= count as u64;
            if left > 0 && path.sleeps && count == 0 {
                path.queue.wait(Duration::from_secs(1));
            }
        }
    }
    begin.elapsed().as_nanos() as f64 / (requests / batch * batch) as f64
}
