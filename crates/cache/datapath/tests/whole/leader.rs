//! A leader's thread panics over a request: that request fails, another process leads within a second, and no caller waits forever.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use datapath::engine::{BackingFile, CacheEngine, Environment, Layout, Limits, OpenOptions, Parts, Sizes, Stamp};
use pagecache::Shape;
use parking_lot::Mutex;
use rustix::io::Errno;
use shm::{PageSize, ProcessSlots, Region};
use ssdcache::{FileKey, Mode};

#[derive(Default)]
struct File(Mutex<Vec<u8>>);

impl BackingFile for File {
    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<usize> {
        let bytes = self.0.lock();
        let from = bytes.get(at as usize..).unwrap_or_default();
        let len = from.len().min(to.len());
        to[..len].copy_from_slice(&from[..len]);
        Ok(len)
    }
    fn write_at(&self, at: u64, from: &[u8]) -> io::Result<()> {
        let mut bytes = self.0.lock();
        let end = at as usize + from.len();
        let len = bytes.len().max(end);
        bytes.resize(len, 0);
        bytes[at as usize..end].copy_from_slice(from);
        Ok(())
    }
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.lock().resize(len as usize, 0);
        Ok(())
    }
    fn punch(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn set_mtime(&self, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn stamp(&self) -> io::Result<Stamp> {
        Ok(Stamp { size: self.0.lock().len() as u64, ..Stamp::default() })
    }
}

/// The environment of one of the processes.
struct ReadAround {
    file: Arc<File>,
    begun: Instant,
    /// Whether its leader panics when it opens a file.
    is_broken: AtomicBool,
    reports: AtomicU32,
}

impl Environment for ReadAround {
    fn open(&self, _: FileKey, _: &Path, _: &[u32], _: bool) -> io::Result<Arc<dyn BackingFile>> {
        if self.is_broken.load(Ordering::Acquire) {
            // Panics without a message: the panic hook is shared by all tests.
            std::panic::resume_unwind(Box::new(()));
        }
        Ok(Arc::clone(&self.file) as Arc<dyn BackingFile>)
    }
    fn now_ms(&self) -> u32 {
        self.begun.elapsed().as_millis() as u32
    }
    fn realtime_ns(&self) -> u64 {
        1
    }
    fn report(&self, _: &str) {
        self.reports.fetch_add(1, Ordering::AcqRel);
    }
}

#[test]
fn a_leader_that_panics_is_followed_by_another() {
    let sizes = Sizes { frames: Shape::new(64), ssd: None, files: 16 };
    let limits = Limits::new(0);
    let layout = Layout::of(sizes);
    let region = Arc::new(Region::private(layout.bytes, PageSize::Small).expect("memory"));
    CacheEngine::format(&region, sizes, &limits, Mode::WriteBack, 1, "");
    let processes = Arc::new(ProcessSlots::in_process(Arc::clone(&region), layout.processes_at()));
    let file = Arc::new(File::default());
    let process = |is_broken: bool| {
        let is_broken = AtomicBool::new(is_broken);
        let world = Arc::new(ReadAround { file: Arc::clone(&file), begun: Instant::now(), is_broken, reports: AtomicU32::new(0) });
        let parts = Parts {
            region: Arc::clone(&region),
            processes: Arc::clone(&processes),
            device: None,
            plain: None,
            world: Arc::clone(&world) as Arc<dyn Environment>,
            limits,
        };
        (CacheEngine::attach(parts).expect("attached"), world)
    };
    let (broken, broken_world) = process(true);
    let first = std::thread::spawn({
        let broken = Arc::clone(&broken);
        move || broken.work()
    });
    broken.ready().expect("it leads");
    let (good, _) = process(false);
    let second = std::thread::spawn({
        let good = Arc::clone(&good);
        move || good.work()
    });
    let open =
        good.open(FileKey(7), Path::new("/file"), OpenOptions::default(), Arc::clone(&file) as Arc<dyn BackingFile>).expect("opened");
    open.write(0, b"written").expect("written");
    let begun = Instant::now();
    assert_eq!(open.sync(), Err(Errno::IO), "what it panicked over has failed");
    let synced = (0..1000).find_map(|_| open.sync().ok().map(|()| begun.elapsed()));
    assert!(synced.is_some_and(|took| took < Duration::from_secs(3)), "{synced:?}");
    assert_eq!(*file.0.lock(), b"written");
    drop(open);
    broken_world.is_broken.store(false, Ordering::Release);
    for (engine, thread) in [(broken, first), (good, second)] {
        engine.detach();
        thread.join().expect("no panic gets out");
    }
    // By the first leader, when another one may already lead.
    assert!(broken_world.reports.load(Ordering::Acquire) > 0, "it is reported");
}
