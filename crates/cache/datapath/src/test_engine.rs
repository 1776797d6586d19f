//! An engine over files in memory, for tests of single steps.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use block::Device;
use block::driver::memory::MemoryDevice;
use pagecache::Marks;
use parking_lot::Mutex;
use shm::{PageSize, ProcessSlots, Region};
use ssdcache::{FileKey, Mode, PAGE_BYTES, SsdCache};

use crate::Worker;
use crate::engine::{BackingFile, CacheEngine, Environment, FileNo, Layout, Limits, Open, OpenOptions, Parts, Sizes, Stamp};

/// A file in memory with its own clock, which every reading advances.
#[derive(Default)]
pub(crate) struct File {
    pub(crate) bytes: Mutex<Vec<u8>>,
    times: Mutex<[i64; 2]>,
    /// Its present path. None: it has lost the name by which it was opened.
    pub(crate) name: Arc<Mutex<Option<PathBuf>>>,
    clock: AtomicI64,
    /// Whether calls of `set_len` fail.
    pub(crate) lengths_fail: AtomicBool,
    /// Whether each of the next calls of `stamp` fails, the last one first.
    pub(crate) stamps_fail: Mutex<Vec<bool>>,
    /// What `stamps_fail` becomes when the next hole fails.
    pub(crate) punch_fails: Mutex<Option<Vec<bool>>>,
    /// Runs at each sync, until it returns false.
    pub(crate) at_sync: Mutex<Option<FileHook>>,
    /// The same at each reading of the stamp.
    pub(crate) at_stamp: Mutex<Option<FileHook>>,
    /// Whether not all processes may see the file.
    pub(crate) is_private: AtomicBool,
    /// Whether the leader may not open the file.
    pub(crate) is_refused: AtomicBool,
    /// Whether no name leads to the file.
    pub(crate) is_gone: AtomicBool,
    /// Whether nobody has changed the file for long.
    pub(crate) is_old: AtomicBool,
    /// What was reported, where a test expects a report.
    pub(crate) reports: Mutex<Option<Vec<String>>>,
}

pub(crate) type FileHook = Box<dyn FnMut() -> bool + Send>;

impl File {
    fn time(&self) -> i64 {
        1 + self.clock.fetch_add(1, Ordering::Relaxed)
    }

    fn change(&self, change: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        change(&mut self.bytes.lock());
        *self.times.lock() = [self.time(); 2];
        Ok(())
    }
}

fn run(hook: &Mutex<Option<FileHook>>) {
    let taken = hook.lock().take();
    if let Some(mut taken) = taken
        && taken()
    {
        *hook.lock() = Some(taken);
    }
}

/// Writes ten bytes to the first page of a file, as a process does that has not noticed a change of the mode yet.
pub(crate) fn write_late(engine: &CacheEngine, no: FileNo, byte: u8) {
    let is_written = engine.pages.write(engine.name(no, 0), 0, &[byte; 10], Marks::DIRTY, 0);
    assert!(is_written, "the page is in memory");
}

impl BackingFile for File {
    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<usize> {
        let bytes = self.bytes.lock();
        let from = bytes.get(at as usize..).unwrap_or_default();
        let len = from.len().min(to.len());
        to[..len].copy_from_slice(&from[..len]);
        Ok(len)
    }
    fn write_at(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.change(|bytes| {
            let end = at as usize + from.len();
            let len = bytes.len().max(end);
            bytes.resize(len, 0);
            bytes[at as usize..end].copy_from_slice(from);
        })
    }
    fn sync(&self) -> io::Result<()> {
        run(&self.at_sync);
        Ok(())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        if self.lengths_fail.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Other.into());
        }
        self.change(|bytes| bytes.resize(len as usize, 0))
    }
    fn punch(&self, at: u64, len: u64) -> io::Result<()> {
        if let Some(next) = self.punch_fails.lock().take() {
            *self.stamps_fail.lock() = next;
            return Err(io::ErrorKind::Other.into());
        }
        self.change(|bytes| bytes[at as usize..(at + len) as usize].fill(0))
    }
    fn set_mtime(&self, ns: u64) -> io::Result<()> {
        *self.times.lock() = [ns as i64, self.time()];
        Ok(())
    }
    fn is_removed(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }
    fn has_lost_name(&self) -> bool {
        self.name.lock().is_none()
    }
    fn path(&self) -> Option<PathBuf> {
        self.name.lock().clone()
    }
    fn stamp(&self) -> io::Result<Stamp> {
        run(&self.at_stamp);
        if self.stamps_fail.lock().pop() == Some(true) {
            return Err(io::ErrorKind::Other.into());
        }
        let [mtime, ctime] = *self.times.lock();
        Ok(Stamp { size: self.bytes.lock().len() as u64, mtime, ctime })
    }
}

/// The files by key: number 7, and others that are made when they are opened. They share one name.
struct Files(Mutex<BTreeMap<FileKey, Arc<File>>>, Arc<File>);

impl Environment for Files {
    fn open(&self, key: FileKey, _: &Path, _: &[u32], _: bool) -> io::Result<Arc<dyn BackingFile>> {
        if key == FileKey(7) && self.1.is_gone.load(Ordering::Relaxed) {
            return Err(rustix::io::Errno::NOENT.into());
        }
        if key == FileKey(7) && self.1.is_refused.load(Ordering::Relaxed) {
            return Err(rustix::io::Errno::ACCESS.into());
        }
        let make = || Arc::new(File { name: Arc::clone(&self.1.name), ..File::default() });
        Ok(Arc::clone(self.0.lock().entry(key).or_insert_with(make)) as Arc<dyn BackingFile>)
    }
    fn now_ms(&self) -> u32 {
        0
    }
    fn realtime_ns(&self) -> u64 {
        self.1.time() as u64
    }
    fn is_durable_by_age(&self, _: &Path, _: Stamp) -> bool {
        self.1.is_old.load(Ordering::Relaxed)
    }
    fn may_keep(&self, key: FileKey, _: &Path) -> bool {
        key != FileKey(7) || !self.1.is_private.load(Ordering::Relaxed)
    }
    fn report(&self, words: &str) {
        match &mut *self.1.reports.lock() {
            Some(reports) => reports.push(words.to_owned()),
            None => panic!("{words}"),
        }
    }
}

/// Returns a file, and a process that leads and has it open as number 7.
pub(crate) fn lead(mode: Mode) -> (Arc<File>, Arc<CacheEngine>, Open) {
    lead_over(mode, None)
}

/// Does the same with an SSD.
pub(crate) fn lead_with_ssd(mode: Mode) -> (Arc<File>, Arc<CacheEngine>, Open) {
    lead_over(mode, Some(ssdcache::Shape { segment_pages: 32, segments: 8 }))
}

fn lead_over(mode: Mode, ssd: Option<ssdcache::Shape>) -> (Arc<File>, Arc<CacheEngine>, Open) {
    let sizes = Sizes { frames: pagecache::Shape::new(64), ssd, files: 16 };
    let device = ssd.map(|shape| {
        let device = MemoryDevice::new(PAGE_BYTES as u32, 1 << 21).expect("memory");
        device.region().write(0, SsdCache::format([7; 16], shape).as_flattened());
        Arc::new(device) as Arc<dyn Device>
    });
    let layout = Layout::of(sizes);
    let region = Arc::new(Region::private(layout.bytes, PageSize::Small).expect("memory"));
    CacheEngine::format(&region, sizes, &Limits::new(0), mode, 1, "");
    let processes = Arc::new(ProcessSlots::in_process(Arc::clone(&region), layout.processes_at()));
    let file = Arc::new(File { name: Arc::new(Mutex::new(Some("/file".into()))), ..File::default() });
    let world = Arc::new(Files(Mutex::new([(FileKey(7), Arc::clone(&file))].into()), Arc::clone(&file)));
    let engine = CacheEngine::attach(Parts { region, processes, device: device.clone(), plain: device, world, limits: Limits::new(0) });
    let engine = engine.expect("attached");
    engine.lead_inline(Worker::begin(&engine));
    let options = OpenOptions { mode, ..OpenOptions::default() };
    let open = engine.open(FileKey(7), Path::new("/file"), options, Arc::clone(&file) as Arc<dyn BackingFile>);
    (file, engine, open.expect("opened"))
}

/// Returns the file of number 7 as two processes have it open, the first of which leads.
pub(crate) fn two_processes(mode: Mode) -> (Open, Open) {
    let (file, engine, first) = lead(mode);
    let parts = Parts {
        region: Arc::clone(engine.header.region()),
        processes: Arc::clone(&engine.processes),
        device: None,
        plain: None,
        world: Arc::clone(&engine.world),
        limits: Limits::new(0),
    };
    let other = CacheEngine::attach(parts).expect("attached");
    other.follow_inline(&engine);
    let options = OpenOptions { mode, ..OpenOptions::default() };
    let second = other.open(FileKey(7), Path::new("/file"), options, file as Arc<dyn BackingFile>);
    (first, second.expect("opened"))
}

/// Forgets what the segment has of a file, as after a loss of power, and leads.
pub(crate) fn restart(engine: &Arc<CacheEngine>, no: FileNo) {
    engine.drop_frames(no, 0..u64::MAX).expect("dropped");
    engine.records.get(no).set_key(None);
    engine.lead_inline(Worker::begin(engine));
}

pub(crate) fn opened(engine: &Arc<CacheEngine>) -> crate::engine::Open {
    let below = engine.world.open(FileKey(7), Path::new("/file"), &[], true).expect("there");
    let options = OpenOptions { mode: Mode::WriteBack, ..OpenOptions::default() };
    engine.open(FileKey(7), Path::new("/file"), options, below).expect("opened")
}
