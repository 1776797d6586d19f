//! Several processes miss the same pages of a slow file: each is read once. Beside writes, what was read for others is never older than
//! the last write that had returned.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use datapath::engine::{BackingFile, CacheEngine, Environment, Layout, Limits, Open, OpenOptions, Parts, Sizes, Stamp};
use pagecache::Shape;
use parking_lot::Mutex;
use shm::{PageSize, ProcessSlots, Region};
use ssdcache::{FileKey, Mode};

const PAGE: usize = 4096;
/// How long a read of the slow file takes.
const SLOW: Duration = Duration::from_micros(500);

/// A file in memory whose reads take a while after the bytes were taken: what is returned may be old by then.
#[derive(Default)]
struct SlowFile {
    bytes: Mutex<Vec<u8>>,
    read: AtomicU64,
}

impl BackingFile for SlowFile {
    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<usize> {
        let len = {
            let bytes = self.bytes.lock();
            let from = bytes.get(at as usize..).unwrap_or_default();
            let len = from.len().min(to.len());
            to[..len].copy_from_slice(&from[..len]);
            len
        };
        std::thread::sleep(SLOW);
        self.read.fetch_add(len as u64, Ordering::Relaxed);
        Ok(len)
    }
    fn write_at(&self, at: u64, from: &[u8]) -> io::Result<()> {
        let mut bytes = self.bytes.lock();
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
        self.bytes.lock().resize(len as usize, 0);
        Ok(())
    }
    fn punch(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn set_mtime(&self, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn stamp(&self) -> io::Result<Stamp> {
        Ok(Stamp { size: self.bytes.lock().len() as u64, ..Stamp::default() })
    }
}

struct Surroundings {
    file: Arc<SlowFile>,
    begun: Instant,
}

impl Environment for Surroundings {
    fn open(&self, _: FileKey, _: &Path, _: &[u32], _: bool) -> io::Result<Arc<dyn BackingFile>> {
        Ok(Arc::clone(&self.file) as Arc<dyn BackingFile>)
    }
    fn now_ms(&self) -> u32 {
        self.begun.elapsed().as_millis() as u32
    }
    fn realtime_ns(&self) -> u64 {
        1
    }
    fn report(&self, words: &str) {
        println!("{words}");
    }
}

/// Processes of one instance, each with a thread that can lead, and the file that all have open.
struct Instance {
    file: Arc<SlowFile>,
    engines: Vec<(Arc<CacheEngine>, JoinHandle<()>)>,
    opens: Vec<Open>,
}

impl Instance {
    fn new(frames: u32, pages: usize, mode: Mode) -> Instance {
        let sizes = Sizes { frames: Shape::new(frames), ssd: None, files: 16 };
        let limits = Limits::new(0);
        let layout = Layout::of(sizes);
        let region = Arc::new(Region::private(layout.bytes, PageSize::Small).expect("memory"));
        CacheEngine::format(&region, sizes, &limits, mode, 1, "");
        let processes = Arc::new(ProcessSlots::in_process(Arc::clone(&region), layout.processes_at()));
        let bytes = (0..pages as u64).flat_map(|page| page_of(page, 0)).collect();
        let file = Arc::new(SlowFile { bytes: Mutex::new(bytes), read: AtomicU64::new(0) });
        let engines: Vec<_> = (0..4)
            .map(|_| {
                let world = Arc::new(Surroundings { file: Arc::clone(&file), begun: Instant::now() });
                let (region, processes) = (Arc::clone(&region), Arc::clone(&processes));
                let parts = Parts { region, processes, device: None, plain: None, world, limits };
                let engine = CacheEngine::attach(parts).expect("attached");
                let works = Arc::clone(&engine);
                (engine, std::thread::spawn(move || works.work()))
            })
            .collect();
        let open = |engine: &Arc<CacheEngine>| {
            let below = Arc::clone(&file) as Arc<dyn BackingFile>;
            engine.open(FileKey(7), Path::new("/file"), OpenOptions::default(), below).expect("opened")
        };
        let opens = engines.iter().map(|(engine, _)| open(engine)).collect();
        Instance { file, engines, opens }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.opens.clear();
        for (engine, thread) in self.engines.drain(..) {
            engine.detach();
            thread.join().expect("no panic");
        }
    }
}

/// Returns a page whose words name it and its version.
fn page_of(page: u64, version: u64) -> Vec<u8> {
    (page << 32 | version).to_le_bytes().repeat(PAGE / 8)
}

#[test]
fn processes_read_each_page_of_a_slow_file_once() {
    const PAGES: usize = 512;
    for (pages, is_shuffled) in [(1, false), (1, true), (8, false), (8, true), (64, true)] {
        let instance = Instance::new(2048, PAGES, Mode::WriteThrough);
        std::thread::scope(|threads| {
            for (seed, open) in (0..).zip(&instance.opens) {
                threads.spawn(move || {
                    let mut starts: Vec<usize> = (0..PAGES / pages).map(|n| n * pages).collect();
                    if is_shuffled {
                        fastrand::Rng::with_seed(seed).shuffle(&mut starts);
                    }
                    let mut bytes = vec![0; pages * PAGE];
                    for start in starts {
                        assert_eq!(open.read((start * PAGE) as u64, &mut bytes), Ok(bytes.len()));
                        let expected: Vec<u8> = (start..start + pages).flat_map(|page| page_of(page as u64, 0)).collect();
                        assert!(bytes == expected, "wrong bytes from page {start}");
                    }
                });
            }
        });
        let read = instance.file.read.load(Ordering::Relaxed);
        assert!(read * 100 <= (PAGES * PAGE) as u64 * 102, "{pages} pages a read, shuffled {is_shuffled}: {read} bytes");
    }
}

#[test]
fn a_read_for_others_is_never_older_than_a_write_that_had_returned() {
    const PAGES: u64 = 192;
    for mode in [Mode::WriteBack, Mode::WriteThrough, Mode::WriteAround] {
        // Frames for a third of the pages: they are read again and again.
        let instance = Instance::new(64, PAGES as usize, mode);
        let written: Vec<AtomicU64> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
        let until = Instant::now() + Duration::from_secs(1);
        std::thread::scope(|threads| {
            let (writer, readers) = instance.opens.split_first().expect("some");
            threads.spawn(|| {
                let mut version = 0;
                while Instant::now() < until {
                    version += 1;
                    // Mostly those that are read most.
                    let page = if fastrand::bool() { fastrand::u64(..8) } else { fastrand::u64(..PAGES) };
                    writer.write(page * PAGE as u64, &page_of(page, version)).expect("written");
                    written[page as usize].store(version, Ordering::Release);
                }
            });
            for open in readers {
                let written = &written;
                threads.spawn(move || {
                    let mut bytes = vec![0; PAGE];
                    while Instant::now() < until {
                        let page = if fastrand::bool() { fastrand::u64(..8) } else { fastrand::u64(..PAGES) };
                        let least = written[page as usize].load(Ordering::Acquire);
                        open.read(page * PAGE as u64, &mut bytes).expect("read");
                        let word = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
                        assert_eq!(bytes, page_of(page, word & u64::from(u32::MAX)), "page {page} is no version of it");
                        assert!(word & u64::from(u32::MAX) >= least, "{mode:?}: page {page}: {word:#x} after version {least}");
                    }
                });
            }
        });
    }
}
