//! The key-value workload of the NVMeDFS paper (section IV.B): keys of 32 bytes with a Zipf distribution, values of 512 bytes, threads
//! that get and threads that put, and the tail latency of both. Both sides use redb over one file.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use hdrhistogram::Histogram;
use redb::{Database, Durability, ReadableDatabase, StorageBackend, TableDefinition};
use rustix::fs::OFlags;

use super::raw::{Raw, wrong};
use super::zipf::Zipf;

const TABLE: TableDefinition<&[u8; 32], &[u8]> = TableDefinition::new("t");
const VALUE: usize = 512;
/// Exponent of the Zipf distribution, as in YCSB.
const THETA: f64 = 0.99;
/// Keys of one transaction while the store is filled.
const FILLED: u64 = 10_000;

/// The parameters of the workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvPlan {
    /// Number of keys in the store.
    pub keys: u64,
    /// Number of threads that get.
    pub getters: u32,
    /// Number of threads that put.
    pub putters: u32,
    /// Duration of the measured part.
    pub duration: Duration,
    /// Every nth put of a thread is durable on return, with all earlier ones.
    pub durable_every: u64,
    /// Size of the store's own cache, in bytes.
    pub cache: usize,
    /// Seed of the random number generator.
    pub seed: u64,
}

/// The measured times of the workload.
pub struct KvTimes {
    /// Duration of the measured part.
    pub time: Duration,
    /// Time to fill the store, with a sync.
    pub setup: Duration,
    /// Latencies of gets, in nanoseconds.
    pub gets: Histogram<u64>,
    /// Latencies of puts, in nanoseconds.
    pub puts: Histogram<u64>,
}

/// A file of rawfs as a storage backend of redb.
#[derive(Debug)]
pub struct RawFile(FileHandle);

struct FileHandle(rawfs::fs::File);

impl std::fmt::Debug for FileHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "file {}", self.0.node().ino())
    }
}

impl RawFile {
    /// Creates the file.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn make(raw: &Raw, name: &str) -> io::Result<RawFile> {
        raw.open(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL).map(|file| RawFile(FileHandle(file)))
    }
}

impl StorageBackend for RawFile {
    fn len(&self) -> io::Result<u64> {
        self.0.0.node().stat().map(|stat| stat.size).map_err(|error| wrong(&error))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let done = self.0.0.read_at(out, offset).map_err(|error| wrong(&error))?;
        if done == out.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.0.set_len(len).map_err(|error| wrong(&error))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.0.sync().map_err(|error| wrong(&error))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let done = self.0.0.write_at(data, offset).map_err(|error| wrong(&error))?;
        if done == data.len() { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
    }
}

/// Opens a kernel file through redb's own backend.
///
/// # Errors
/// Errors of the kernel.
pub fn kernel_file(path: &std::path::Path) -> anyhow::Result<redb::backends::FileBackend> {
    let file = File::options().read(true).write(true).create_new(true).open(path)?;
    Ok(redb::backends::FileBackend::new(file)?)
}

fn key(number: u64) -> [u8; 32] {
    let mut key = [b'k'; 32];
    // Scatters popular keys.
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key[24..].copy_from_slice(&number.to_be_bytes());
    key
}

fn value(number: u64, rng: &mut fastrand::Rng) -> [u8; VALUE] {
    let mut value = [0; VALUE];
    rng.fill(&mut value);
    value[..8].copy_from_slice(&number.to_le_bytes());
    value
}

/// Puts keys in one transaction.
fn put(db: &Database, numbers: impl Iterator<Item = u64>, durable: bool, rng: &mut fastrand::Rng) -> anyhow::Result<()> {
    let mut transaction = db.begin_write()?;
    transaction.set_durability(if durable { Durability::Immediate } else { Durability::None })?;
    {
        let mut table = transaction.open_table(TABLE)?;
        for number in numbers {
            table.insert(&key(number), &value(number, rng)[..])?;
        }
    }
    Ok(transaction.commit()?)
}

fn get(db: &Database, number: u64) -> anyhow::Result<()> {
    let table = db.begin_read()?.open_table(TABLE)?;
    let found = table.get(&key(number))?;
    let right = found.is_some_and(|value| value.value().len() == VALUE && value.value()[..8] == number.to_le_bytes());
    ensure!(right, "key {number} has a wrong value");
    Ok(())
}

/// Creates a histogram of nanoseconds, up to ten minutes.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("bounds in order")
}

/// Fills a store, calls `begin` and measures.
///
/// # Errors
/// Errors of the store; a value differs from what was put.
pub fn run(backend: impl StorageBackend, plan: &KvPlan, begin: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<KvTimes> {
    let at = Instant::now();
    let db = Database::builder().set_cache_size(plan.cache).create_with_backend(backend)?;
    let mut rng = fastrand::Rng::with_seed(plan.seed);
    for from in (0..plan.keys).step_by(FILLED as usize) {
        let to = plan.keys.min(from + FILLED);
        put(&db, from..to, to == plan.keys, &mut rng)?;
    }
    let setup = at.elapsed();
    begin()?;
    let (zipf, over, failed) = (Zipf::new(plan.keys, THETA), AtomicBool::new(false), AtomicU64::new(0));
    let at = Instant::now();
    let loops = |seat: u32, work: &dyn Fn(u64, u64, &mut fastrand::Rng) -> anyhow::Result<()>| {
        let mut rng = fastrand::Rng::with_seed(plan.seed.wrapping_mul(31).wrapping_add(u64::from(seat)));
        let mut taken = histogram();
        for n in 1.. {
            let (number, begin) = (zipf.draw(&mut rng), Instant::now());
            if let Err(error) = work(n, number, &mut rng) {
                eprintln!("{error:#}");
                failed.fetch_add(1, Ordering::Relaxed);
                break;
            }
            taken.saturating_record(begin.elapsed().as_nanos() as u64);
            if over.load(Ordering::Relaxed) {
                break;
            }
        }
        taken
    };
    let (gets, puts) = std::thread::scope(|scope| {
        let (loops, db) = (&loops, &db);
        let getter = |seat| scope.spawn(move || loops(seat, &|_, number, _| get(db, number)));
        let every = plan.durable_every;
        let putter =
            |seat| scope.spawn(move || loops(seat, &|n, number, rng| put(db, std::iter::once(number), n.is_multiple_of(every), rng)));
        let getters: Vec<_> = (0..plan.getters).map(getter).collect();
        let putters: Vec<_> = (plan.getters..plan.getters + plan.putters).map(putter).collect();
        std::thread::sleep(plan.duration);
        over.store(true, Ordering::Relaxed);
        let join = |threads: Vec<std::thread::ScopedJoinHandle<'_, Histogram<u64>>>| {
            let mut all = histogram();
            threads.into_iter().for_each(|thread| all.add(thread.join().expect("no panic")).expect("of one kind"));
            all
        };
        (join(getters), join(putters))
    });
    let time = at.elapsed();
    ensure!(failed.load(Ordering::Relaxed) == 0, "a thread failed");
    put(&db, std::iter::empty(), true, &mut rng)?;
    Ok(KvTimes { time, setup, gets, puts })
}
