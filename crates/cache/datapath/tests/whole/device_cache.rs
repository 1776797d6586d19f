//! A cached device keeps flushed data, reports write failures, and loses no accepted write.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use block::driver::MemoryDevice;
use block::{Params, Tracked};
use datapath::engine::{BackingFile, Stamp};
use datapath::{DeviceCache, DeviceCacheOptions, DeviceFile, DeviceHandle};
use fastrand::Rng;
use pagecache::PAGE_BYTES;
use parking_lot::Mutex;
use rustix::io::Errno;

/// A device that keeps written bytes in a volatile cache until it is flushed.
struct Disk {
    state: Mutex<DiskState>,
}

struct DiskState {
    bytes: Vec<u8>,
    durable: Vec<u8>,
    bad_pages: BTreeSet<usize>,
    /// Whether the next flush fails and unflushed data is lost.
    forgets: bool,
}

impl Disk {
    fn new(bytes: usize) -> Arc<Disk> {
        let state = DiskState { bytes: vec![0; bytes], durable: vec![0; bytes], bad_pages: BTreeSet::new(), forgets: false };
        Arc::new(Disk { state: Mutex::new(state) })
    }

    fn set_bad(&self, pages: impl IntoIterator<Item = usize>) {
        self.state.lock().bad_pages = pages.into_iter().collect();
    }

    fn durable(&self) -> Vec<u8> {
        self.state.lock().durable.clone()
    }
}

impl DiskState {
    fn check(&self, at: u64, len: usize) -> io::Result<()> {
        assert!(at.is_multiple_of(PAGE_BYTES as u64), "the engine transfers whole pages");
        let pages = at as usize / PAGE_BYTES..(at as usize + len).div_ceil(PAGE_BYTES);
        let is_bad = self.bad_pages.range(pages).next().is_some();
        if is_bad { Err(Errno::IO.into()) } else { Ok(()) }
    }
}

impl BackingFile for Disk {
    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<usize> {
        let state = self.state.lock();
        let len = to.len().min(state.bytes.len() - at as usize);
        state.check(at, len)?;
        to[..len].copy_from_slice(&state.bytes[at as usize..at as usize + len]);
        Ok(len)
    }
    fn write_at(&self, at: u64, from: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock();
        state.check(at, from.len())?;
        state.bytes[at as usize..at as usize + from.len()].copy_from_slice(from);
        Ok(())
    }
    fn sync(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.forgets) {
            state.bytes = state.durable.clone();
            return Err(Errno::IO.into());
        }
        state.durable = state.bytes.clone();
        Ok(())
    }
    fn set_len(&self, _: u64) -> io::Result<()> {
        panic!("a device has a fixed size")
    }
    fn punch(&self, _: u64, _: u64) -> io::Result<()> {
        panic!("a device has no holes")
    }
    fn set_mtime(&self, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn stamp(&self) -> io::Result<Stamp> {
        Ok(Stamp { size: self.state.lock().bytes.len() as u64, ..Stamp::default() })
    }
}

fn cache(disk: &Arc<Disk>, frames: u32) -> (DeviceCache, DeviceHandle) {
    let cache = DeviceCache::open(Arc::clone(disk) as Arc<dyn BackingFile>, &DeviceCacheOptions::new(frames)).expect("opened");
    let handle = cache.handle().expect("a handle");
    (cache, handle)
}

const PAGE: u64 = PAGE_BYTES as u64;

fn lives(cache: &DeviceCache, bytes: usize, seed: u64, durable: &dyn Fn() -> Option<Vec<u8>>) {
    let mut random = Rng::with_seed(seed);
    let handle = cache.handle().expect("a handle");
    let mut model = vec![0; bytes];
    for value in 0..200_u8 {
        let at = random.usize(..bytes);
        let len = random.usize(1..=40_000.min(bytes - at));
        let range = at as u64..(at + len) as u64;
        match random.u32(..10) {
            0..4 => {
                cache.write(&handle, range.start, &vec![value; len]).expect("written");
                model[at..at + len].fill(value);
            }
            4..7 => {
                let mut found = vec![0; len];
                cache.read(&handle, range.start, &mut found).expect("read");
                assert!(found == model[at..at + len], "{len} bytes at {at}");
            }
            7 => cache.write_back(range).expect("written back"),
            8 => cache.invalidate(range).expect("dropped"),
            _ => {
                cache.flush(&handle).expect("flushed");
                assert!(durable().is_none_or(|durable| durable == model), "a flush makes everything durable");
            }
        }
    }
    cache.flush(&handle).expect("flushed");
    assert!(durable().is_none_or(|durable| durable == model));
}

fn seeds() -> std::ops::Range<u64> {
    0..if std::env::var_os("FULL").is_some_and(|full| full == "1") { 300 } else { 8 }
}

#[test]
fn any_mix_of_calls_leaves_the_bytes_that_plain_memory_would_have() {
    for seed in seeds() {
        println!("seed {seed}");
        let bytes = 512 * Rng::with_seed(seed).usize(100..600);
        let disk = Disk::new(bytes);
        let (cache, _) = cache(&disk, 16 + seed as u32 * 4);
        lives(&cache, bytes, seed, &|| Some(disk.durable()));
    }
}

#[test]
fn also_over_the_queues_of_a_device() {
    for (seed, block) in seeds().zip([512, 4096].into_iter().cycle()) {
        println!("seed {seed}");
        let bytes = block as usize * Rng::with_seed(seed).usize(100..300);
        let device = MemoryDevice::new(block, bytes as u64).expect("memory").with_geometry(|geometry| {
            geometry.volatile_cache = true;
            geometry.transfer_bytes_max = 32 << 10;
            geometry.segments_max = 5;
        });
        let queue = || Tracked::new(device.open_queue(8), Params::default().timeouts());
        let file = Arc::new(DeviceFile::new(queue(), queue(), &Params::default()).expect("fits"));
        let cache = DeviceCache::open(file, &DeviceCacheOptions::new(16 + seed as u32)).expect("opened");
        let on_device = || {
            let mut found = vec![0; bytes];
            device.region().read(0, &mut found);
            Some(found)
        };
        lives(&cache, bytes, seed, &on_device);
    }
}

#[test]
fn threads_see_what_each_wrote() {
    const THREADS: usize = 3;
    // Stripes belong to the threads in turn, so that most pages belong to several threads.
    const STRIPE: usize = 1500;
    for seed in seeds() {
        println!("seed {seed}");
        let size = 200 << 10;
        let disk = Disk::new(size);
        let (cache, handle) = cache(&disk, 16 + (seed as u32 % 5) * 8);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let cache = &cache;
                scope.spawn(move || {
                    let mut random = Rng::with_seed(seed * THREADS as u64 + thread as u64);
                    let handle = cache.handle().expect("a handle");
                    let mut model = vec![0_u8; size / STRIPE / THREADS];
                    for _ in 0..300 {
                        let stripe = random.usize(..model.len());
                        let at = (stripe * THREADS + thread) * STRIPE;
                        let range = at as u64..(at + 10 * STRIPE).min(size) as u64;
                        match random.u32(..20) {
                            0..8 => {
                                let mut found = vec![0; STRIPE];
                                cache.read(&handle, range.start, &mut found).expect("read");
                                assert!(found.iter().all(|byte| *byte == model[stripe]), "stripe {stripe} of thread {thread}");
                            }
                            8..16 => {
                                model[stripe] = random.u8(..);
                                cache.write(&handle, range.start, &[model[stripe]; STRIPE]).expect("written");
                            }
                            16 => cache.flush(&handle).expect("flushed"),
                            17 => cache.write_back(range).expect("written back"),
                            // Other threads may write all the time.
                            _ => assert!(matches!(cache.invalidate(range), Ok(()) | Err(Errno::BUSY))),
                        }
                    }
                });
            }
        });
        cache.flush(&handle).expect("flushed");
        assert!(disk.durable() == disk.state.lock().bytes);
    }
}

#[test]
fn a_page_that_cannot_be_written_stays_and_hinders_no_other() {
    let disk = Disk::new(256 << 10);
    let (cache, handle) = cache(&disk, 32);
    disk.set_bad([5]);
    cache.write(&handle, 0, &[7; 10 * PAGE_BYTES]).expect("taken");
    assert_eq!(cache.flush(&handle), Err(Errno::IO));
    assert_eq!(cache.flush(&handle), Err(Errno::IO), "it is not forgotten");
    for page in [0, 4, 6, 9] {
        assert!(disk.durable()[page * PAGE_BYTES..][..PAGE_BYTES] == [7; PAGE_BYTES], "page {page} is durable");
    }
    let mut found = vec![0; 10 * PAGE_BYTES];
    cache.read(&handle, 0, &mut found).expect("all of it is in the cache");
    assert!(found.iter().all(|byte| *byte == 7));
    let mut others = vec![0; 32 * PAGE_BYTES];
    cache.read(&handle, 32 * PAGE, &mut others).expect("and others have room");
    cache.read(&handle, 5 * PAGE, &mut found[..PAGE_BYTES]).expect("it is not evicted");
    assert_eq!(cache.invalidate(5 * PAGE..6 * PAGE), Err(Errno::IO), "nor dropped before direct I/O");
    disk.set_bad([]);
    let later = cache.handle().expect("a handle");
    cache.flush(&later).expect("opened later: it has lost nothing");
    assert!(disk.durable()[..10 * PAGE_BYTES] == [7; 10 * PAGE_BYTES]);
}

#[test]
fn each_handle_hears_once_of_what_failed_in_the_background() {
    let disk = Disk::new(64 << 10);
    let (cache, handle) = cache(&disk, 16);
    let other = cache.handle().expect("a handle");
    cache.write(&handle, 0, &[1; PAGE_BYTES]).expect("taken");
    disk.set_bad([0]);
    assert_eq!(cache.write_back(0..PAGE), Err(Errno::IO));
    disk.set_bad([]);
    for handle in [&handle, &other] {
        assert_eq!(cache.flush(handle), Err(Errno::IO));
        cache.flush(handle).expect("reported already");
    }
}

#[test]
fn a_flush_that_forgets_is_repaired_from_the_cache() {
    let disk = Disk::new(64 << 10);
    // So many that no pages are written in the background before the test says.
    let (cache, handle) = cache(&disk, 64);
    cache.write(&handle, 0, &[3; 8 * PAGE_BYTES]).expect("taken");
    disk.state.lock().forgets = true;
    assert_eq!(cache.flush(&handle), Err(Errno::IO));
    assert!(disk.durable()[..8 * PAGE_BYTES].iter().all(|byte| *byte == 0), "the device has forgotten");
    cache.flush(&handle).expect("written once more");
    assert!(disk.durable()[..8 * PAGE_BYTES].iter().all(|byte| *byte == 3));
}

#[test]
fn a_writer_whose_pages_cannot_be_written_gets_an_error_in_the_end() {
    let disk = Disk::new(256 << 10);
    let (cache, handle) = cache(&disk, 16);
    disk.set_bad(0..64);
    let write = |page: u64| cache.write(&handle, page * PAGE, &[page as u8 + 1; PAGE_BYTES]);
    let taken = (0..64).take_while(|page| write(*page).is_ok()).count();
    assert!((8..=16).contains(&taken), "half of the cache, or what it holds: {taken}");
    let mut found = vec![0; taken * PAGE_BYTES];
    cache.read(&handle, 0, &mut found).expect("what was taken is there");
    assert!(found.chunks(PAGE_BYTES).zip(1..).all(|(page, value)| page.iter().all(|byte| *byte == value)));
    disk.set_bad([]);
    assert_eq!(cache.flush(&handle), Err(Errno::IO), "the earlier failure");
    cache.flush(&handle).expect("all is durable");
    assert!(disk.durable()[..found.len()] == found);
}

#[test]
fn a_bad_page_behind_a_stream_fails_no_read_before_it() {
    let disk = Disk::new(1 << 20);
    disk.set_bad([200]);
    let (cache, handle) = cache(&disk, 128);
    let mut found = vec![0; PAGE_BYTES];
    for page in 0..200 {
        cache.read(&handle, page * PAGE, &mut found).expect("it is good");
    }
    assert_eq!(cache.read(&handle, 200 * PAGE, &mut found), Err(Errno::IO));
    cache.read(&handle, 201 * PAGE, &mut found).expect("it is good");
}

#[test]
fn what_does_not_fit_is_refused() {
    let device = MemoryDevice::new(8192, 64 << 10).expect("memory");
    let queue = || Tracked::new(device.open_queue(4), Params::default().timeouts());
    let refused = DeviceFile::new(queue(), queue(), &Params::default()).err().expect("refused");
    assert!(refused.to_string().contains("8192 bytes"), "{refused}");
    let disk = Disk::new(10_240);
    let (cache, handle) = cache(&disk, 16);
    assert_eq!(cache.read(&handle, 10_239, &mut [0; 2]), Err(Errno::INVAL));
    assert_eq!(cache.write(&handle, u64::MAX, &[0; 2]), Err(Errno::INVAL));
    cache.write(&handle, 10_238, &[9; 2]).expect("the last bytes");
    cache.flush(&handle).expect("flushed");
    assert_eq!(disk.durable()[10_237..], [0, 9, 9]);
}
