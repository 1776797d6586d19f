//! One number for the memory of a whole file system: what it is divided into, and what is in use of it.
//!
//! ```text
//!  bitmaps     as the image is large: half a byte for each block of 4 KiB
//!  buffers     3/32, 1 MiB to 8 MiB for each of the three lanes
//!  the rest    3/8 nodes as on the device   1/4 changed nodes (twice what begins a checkpoint)   1/16 data that the log has
//!              3/16 blocks that were read   1/16 blocks not written yet                          1/16 open files
//! ```
//!
//! What is full is made room in, except for open files: one more is ENFILE.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::calls::Fs;
use super::core::Core;
use super::error::Result;
use super::settings::FsSettings;
use crate::{BLOCK_BYTES, DiskSettings, Settings};

/// What an open file takes, at most: its record with content of 3 KiB, its name, its handle.
pub const FILE_BYTES: usize = 5 << 10;
/// What is left for everything else has to be as much.
const LEAST: usize = 8 << 20;
const LANES: usize = 3;
const MIB: usize = 1 << 20;

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

    fn lane(self) -> usize {
        (self.bytes / 32).clamp(MIB, 8 * MIB)
    }

    /// How the disk is to be opened.
    pub fn disk(self) -> DiskSettings {
        DiskSettings { buffer_bytes: self.lane(), ..DiskSettings::default() }
    }

    /// The least for an image of so many blocks, in bytes.
    pub fn least(blocks: u64) -> usize {
        let kept = LEAST + bitmaps(blocks);
        let (small, large) = (kept + LANES * MIB, kept + LANES * 8 * MIB);
        if small / 32 <= MIB { small } else { large.min(kept / 29 * 32 + 64) }
    }

    /// Sets what store and files take, for a device of so many blocks.
    ///
    /// # Errors
    /// ENOMEM: it is less than [`Memory::least`].
    pub fn divide(self, blocks: u64, store: &mut Settings, files: &mut FsSettings) -> Result<()> {
        let rest = self.bytes.checked_sub(LANES * self.lane() + bitmaps(blocks)).filter(|rest| *rest >= LEAST).ok_or(Errno::NOMEM)?;
        store.node_cache_bytes = rest / 8 * 3;
        store.dirty_bytes = rest / 8;
        store.filled_bytes = rest / 16;
        files.cache_bytes = rest / 16 * 3;
        files.dirty_bytes = rest / 16;
        files.open_max = rest / 16 / FILE_BYTES;
        Ok(())
    }
}

/// In use, taken, and copies of pages that a checkpoint writes.
fn bitmaps(blocks: u64) -> usize {
    usize::try_from(blocks / 2).unwrap_or(usize::MAX)
}

/// An open file, counted as long as it is.
pub struct Counted(Arc<Core>);

impl Counted {
    /// One more.
    ///
    /// # Errors
    /// ENFILE: there are as many as there may be.
    pub fn new(core: &Arc<Core>) -> Result<Counted> {
        let counted = Counted(Arc::clone(core));
        // Dropped, it is taken back.
        if core.opened.fetch_add(1, Ordering::Relaxed) < core.settings.open_max { Ok(counted) } else { Err(Errno::NFILE.into()) }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.opened.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Fs {
    /// Memory in use, in bytes, but for the disk's buffers and what is on the stack: nodes, blocks, bitmaps, and what is in use of files,
    /// each as if it were as large as it can be.
    pub fn memory_bytes(&self) -> u64 {
        let (core, usage) = (self.core(), self.store().usage());
        let files = (core.table.len() * FILE_BYTES) as u64;
        usage.memory_bytes + usage.bitmap_bytes + core.cache.bytes() + self.unwritten_bytes() + files
    }
}

impl super::cache::Cache {
    /// Bytes of the blocks that are here.
    pub fn bytes(&self) -> u64 {
        (self.len() * BLOCK_BYTES) as u64
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
        let blocks = device_bytes / BLOCK_BYTES as u64;
        let memory = Memory::of(Memory::least(blocks) + MIB);
        let disk = || Disk::open(&device, &memory.disk()).expect("queues");
        Store::format(&disk(), &FormatOptions::default()).expect("formatted");
        let (mut settings, mut files) = (Settings::default(), FsSettings::default());
        memory.divide(blocks, &mut settings, &mut files).expect("enough");
        let open_max = files.open_max;
        let (store, _) = Store::open(disk(), &settings).expect("opened");
        Fs::format(&store, crate::fs::Stamp::default()).expect("made");
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
        assert!(most as usize <= memory.bytes - LANES * memory.lane());
        drop(file(&fs, "/0/1"));
        fs.close().expect("closed");
    }

    #[test]
    fn all_of_it_is_given_out_and_too_little_is_told() {
        let (mut settings, mut files) = (Settings::default(), FsSettings::default());
        for (total, blocks) in [(64 * MIB, 1 << 18), (1 << 30, 1 << 28), (16 << 30, 1 << 20)] {
            Memory::of(total).divide(blocks, &mut settings, &mut files).expect("enough");
            let of_store = settings.node_cache_bytes + 2 * settings.dirty_bytes + settings.filled_bytes;
            let all = of_store
                + files.cache_bytes
                + files.dirty_bytes
                + files.open_max * FILE_BYTES
                + LANES * Memory::of(total).lane()
                + bitmaps(blocks);
            assert!(all <= total && all > total / 10 * 9, "{all} of {total}");
        }
        let least = Memory::least(1 << 18);
        assert!(Memory::of(least).divide(1 << 18, &mut settings, &mut files).is_ok());
        assert!(Memory::of(least - 1).divide(1 << 18, &mut settings, &mut files).is_err());
        for blocks in [1 << 22, 1 << 26, 1 << 30] {
            assert!(Memory::of(Memory::least(blocks)).divide(blocks, &mut settings, &mut files).is_ok(), "{blocks}");
        }
    }
}
