//! One number for the memory of a whole file system: what it is divided into, and what is in use of it.
//!
//! ```text
//!  allocator   1/4, at most 1/16 and 48 MiB: its overhead over the requested bytes, and the program; of the others:
//!  bitmaps     as the image is large: half a byte for each block of 4 KiB
//!  buffers     3/32, 1 MiB to 8 MiB for each of the three queue classes; 8 MiB for the log, batches, lone requests and spare blocks
//!  the rest    at most 1/4 changed nodes (twice what begins a checkpoint)   7/16 files not written yet    1/8 data that the log has
//!              1/16 open files   5/16 nodes as on the device, which give way to those, down to a few
//!              what they do not use, and at least 1/16: blocks that were read
//! ```
//!
//! What is full is made room in, except for open files: one more is ENFILE. What is given out is counted to the byte; what the
//! allocator takes beside it is a guess, right for the one our programs have (decisions/31).

use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::cache::{EACH_BYTES, SPARES_MAX};
use super::calls::Fs;
use super::core::FsCore;
use super::error::Result;
use super::record::RecordBody;
use super::settings::FsSettings;
use super::table::InodeState;
use crate::budget::MemoryPart;
use crate::{BudgetSettings, DiskSettings, Settings};

/// What an open file takes, at most: its record with content of 3 KiB, its name, its handle.
pub const FILE_BYTES: usize = 5 << 10;
/// What a file takes that is to be written back, beside content and blocks.
const LISTED_BYTES: u64 = 1 << 10;
/// What is left for everything else has to be as much.
const LEAST: usize = 14 << 20;
/// Batches that the log has not written, one that is being built, and the buffers of requests that are alone.
const BESIDE: usize = 6 << 20;
const QUEUE_CLASSES: usize = 3;
const MIB: usize = 1 << 20;
/// The fixed overhead of the allocator: what waits to go back to the system, and the program.
const ALLOCATOR: usize = 48 * MIB;

/// Memory for all of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    bytes: usize,
}

impl Memory {
    /// So many bytes in all.
    pub fn of(bytes: usize) -> Memory {
        Memory { bytes }
    }

    /// What is given out: the allocator takes the rest.
    fn given(self) -> usize {
        (self.bytes / 4 * 3).max((self.bytes / 16 * 15).saturating_sub(ALLOCATOR))
    }

    /// The least of which so many bytes are given out.
    fn giving(bytes: usize) -> usize {
        (bytes.div_ceil(3) * 4).min((bytes + ALLOCATOR).div_ceil(15) * 16)
    }

    fn class(self) -> usize {
        (self.given() / 32).clamp(MIB, 8 * MIB)
    }

    /// How the disk is to be opened.
    pub fn disk(self) -> DiskSettings {
        DiskSettings { buffer_bytes: self.class(), ..DiskSettings::default() }
    }

    /// The least for an image of so many blocks, in bytes.
    pub fn least(blocks: u64) -> usize {
        let kept = LEAST + bitmaps(blocks);
        let (small, large) = (kept + QUEUE_CLASSES * MIB, kept + QUEUE_CLASSES * 8 * MIB);
        let given = if small / 32 <= MIB { small } else { large.min(kept / 29 * 32 + 64) };
        Memory::giving(given)
    }

    /// Sets what store and files take, for a device of so many blocks.
    ///
    /// # Errors
    /// ENOMEM: it is less than [`Memory::least`].
    pub fn divide(self, blocks: u64, store: &mut Settings, files: &mut FsSettings) -> Result<()> {
        let rest =
            self.given().checked_sub(QUEUE_CLASSES * self.class() + bitmaps(blocks)).filter(|rest| *rest >= LEAST).ok_or(Errno::NOMEM)?;
        let part = (rest - BESIDE - SPARES_MAX * EACH_BYTES) / 16;
        store.node_cache_bytes = part * 5;
        store.dirty_bytes = part * 2;
        store.filled_bytes = part * 2;
        files.dirty_bytes = part * 7;
        files.open_max = part / FILE_BYTES;
        files.cache_bytes = part;
        store.budget = Some(BudgetSettings { bytes: part * 15, blocks_bytes: part });
        Ok(())
    }
}

/// In use, taken, and copies of pages that a checkpoint writes.
fn bitmaps(blocks: u64) -> usize {
    usize::try_from(blocks / 2).unwrap_or(usize::MAX)
}

impl Fs {
    /// Memory in use, in bytes, but for the disk's buffers and what is on the stack: nodes, blocks, bitmaps, and what is in use of files,
    /// each as if it were as large as it can be.
    pub fn memory_bytes(&self) -> u64 {
        let (core, usage) = (self.core(), self.store().usage());
        let files = (core.table.len().saturating_sub(core.dirty.lock().len()) * FILE_BYTES) as u64;
        usage.memory_bytes + usage.bitmap_bytes + core.cache.bytes() + core.unwritten() + files
    }
}

impl FsCore {
    /// What was written and is in memory alone, in bytes.
    pub fn unwritten(&self) -> u64 {
        self.dirty_pages.load(Ordering::SeqCst) * EACH_BYTES as u64 + self.dirty_files.load(Ordering::SeqCst)
    }

    /// Blocks are written, or will not be.
    pub fn fewer_unwritten(&self, blocks: u64) {
        self.dirty_pages.fetch_sub(blocks, Ordering::SeqCst);
        self.tell_unwritten();
    }

    /// Tells who shares the memory how much of it is not written yet.
    pub fn tell_unwritten(&self) {
        if let Some(budget) = self.store.budget() {
            budget.set(MemoryPart::Unwritten, usize::try_from(self.unwritten()).unwrap_or(usize::MAX));
        }
    }

    /// Counts a file until it is written back. Its lock is held.
    pub fn weigh(&self, state: &mut InodeState) {
        let content = if let RecordBody::Inline(content) = &state.record.body { content.len() as u64 } else { 0 };
        let now = if state.listed { LISTED_BYTES + content } else { 0 };
        self.dirty_files.fetch_add(now, Ordering::SeqCst);
        self.dirty_files.fetch_sub(state.weight, Ordering::SeqCst);
        state.weight = now;
        self.tell_unwritten();
    }
}

impl super::cache::BlockCache {
    /// Bytes of the blocks that are here.
    pub fn bytes(&self) -> u64 {
        (self.len() * EACH_BYTES) as u64
    }
}

#[cfg(test)]
mod test {
    use block::driver::MemoryDevice;

    use super::*;
    use crate::fs::Creds;
    use crate::fs::test::{file, pattern};
    use crate::{Disk, FormatOptions, Store};

    /// FULL=1: a million files.
    #[test]
    fn any_number_of_files_stays_below_one_number() {
        let full = std::env::var_os("FULL").is_some_and(|full| full == "1");
        let (count, device_bytes) = if full { (1_000_000, 6 << 30) } else { (6_000, 128 << 20) };
        let device = MemoryDevice::new(512, device_bytes).expect("memory");
        let blocks = device_bytes / crate::BLOCK_BYTES as u64;
        let memory = Memory::of(Memory::least(blocks) + MIB);
        let disk = || Disk::open(&device, &memory.disk()).expect("queues");
        Store::format(&disk(), &FormatOptions::default()).expect("formatted");
        let (mut settings, mut files) = (Settings::default(), FsSettings::default());
        memory.divide(blocks, &mut settings, &mut files).expect("enough");
        let open_max = files.open_max;
        let (store, _) = Store::open(disk(), &settings).expect("opened");
        Fs::format(&store, crate::fs::Timestamp::default()).expect("made");
        let (fs, _) = Fs::open(store, files).expect("opened");
        let (mut most, mut rng, content) = (0, crate::testing::rng(), pattern(1, 9000));
        for n in 0..count {
            let dir = format!("/{}", n / 1000);
            if n % 1000 == 0 {
                drop(fs.mkdir(fs.root(), dir.as_bytes(), 0o755, &Creds::root()).expect("made"));
            }
            let open = file(&fs, &format!("{dir}/{n}"));
            open.write(&content[..rng.usize(..content.len())]).expect("written");
            if n % 100 == 0 {
                let other = rng.u32(..n + 1);
                let other = file(&fs, &format!("/{}/{other}", other / 1000));
                let _ = other.read_at(&mut [0; 4096], 0).expect("read");
                most = most.max(fs.memory_bytes());
            }
        }
        let held: Vec<_> = (0..open_max).map(|n| file(&fs, &format!("/0/{}", n % 1000))).collect();
        let more = fs.open_at(fs.root(), b"/0/1", rustix::fs::OFlags::RDONLY, 0, &Creds::root());
        assert_eq!(more.map(drop).map_err(|error| error.errno()), Err(Errno::NFILE));
        most = most.max(fs.memory_bytes());
        drop(held);
        println!("{count} files, at most {most} bytes of {}", memory.bytes);
        assert!(most as usize <= memory.given() - QUEUE_CLASSES * memory.class());
        drop(file(&fs, "/0/1"));
        fs.close().expect("closed");
    }

    #[test]
    fn what_gave_way_is_read_again_as_it_was() {
        const BYTES: u64 = 96 << 20;
        let device = MemoryDevice::new(512, BYTES).expect("memory");
        let blocks = BYTES / crate::BLOCK_BYTES as u64;
        let memory = Memory::of(Memory::least(blocks));
        let disk = || Disk::open(&device, &memory.disk()).expect("queues");
        Store::format(&disk(), &FormatOptions::default()).expect("formatted");
        let (mut settings, mut files) = (Settings::default(), FsSettings::default());
        memory.divide(blocks, &mut settings, &mut files).expect("enough");
        // What is written waits little, so that most of it is read from the cache, or the device.
        files.write_back = std::time::Duration::from_millis(5);
        let (store, _) = Store::open(disk(), &settings).expect("opened");
        Fs::format(&store, crate::fs::Timestamp::default()).expect("made");
        let (fs, _) = Fs::open(store, files).expect("opened");
        std::thread::scope(|scope| {
            for thread in 0..3_u8 {
                let fs = &fs;
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(u64::from(thread));
                    let big = file(fs, &format!("/{thread}"));
                    let mut of = vec![0_u8; 1500];
                    for turn in 0..1500 {
                        let at = rng.usize(..of.len());
                        if rng.bool() {
                            of[at] = rng.u8(1..);
                            big.write_at(&[of[at]; 4096], at as u64 * 4096).expect("written");
                            drop(file(fs, &format!("/{thread}.{turn}")));
                        } else {
                            let mut page = [of[at]; 4096];
                            let read = big.read_at(&mut page, at as u64 * 4096).expect("read");
                            assert!(page[..read].iter().all(|byte| *byte == of[at]), "block {at}");
                        }
                        if rng.u8(..40) == 0 {
                            big.sync().expect("durable");
                        }
                    }
                });
            }
        });
        assert!(fs.memory_bytes() as usize <= memory.given() - QUEUE_CLASSES * memory.class());
        fs.close().expect("closed");
    }

    #[test]
    fn all_of_it_is_given_out_and_too_little_is_reported() {
        let (mut settings, mut files) = (Settings::default(), FsSettings::default());
        for (total, blocks) in [(64 * MIB, 1 << 18), (1 << 30, 1 << 28), (12 << 30, 1 << 21), (16 << 30, 1 << 20)] {
            Memory::of(total).divide(blocks, &mut settings, &mut files).expect("enough");
            let stays = 2 * settings.dirty_bytes + settings.filled_bytes + files.dirty_bytes + files.cache_bytes;
            let budget = settings.budget.expect("one for all");
            assert!(stays < budget.bytes && budget.blocks_bytes == files.cache_bytes);
            let beside = BESIDE
                + SPARES_MAX * EACH_BYTES
                + files.open_max * FILE_BYTES
                + QUEUE_CLASSES * Memory::of(total).class()
                + bitmaps(blocks);
            let all = budget.bytes + beside;
            let given = Memory::of(total).given();
            assert!(all <= given && all > given / 10 * 9, "{all} of {given}");
        }
        let least = Memory::least(1 << 18);
        assert!(Memory::of(least).divide(1 << 18, &mut settings, &mut files).is_ok());
        assert!(Memory::of(least - 1).divide(1 << 18, &mut settings, &mut files).is_err());
        for blocks in [1 << 22, 1 << 26, 1 << 30] {
            assert!(Memory::of(Memory::least(blocks)).divide(blocks, &mut settings, &mut files).is_ok(), "{blocks}");
        }
    }
}
