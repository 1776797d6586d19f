//! The cache beside plain bytes: the same calls to both, the same bytes wanted.

use std::sync::Arc;

use block::Error;
use datapath::{BlockCache, Handle, Settings, WriteMode};
use fastrand::Rng;
use pagecache::{PAGE_BYTES, PageIndex, Replacement};

use crate::device::{Device, TestQueue};

/// A cache, its device, and what should be read; none: it may be anything.
pub struct Pair {
    pub device: Device,
    pub cache: BlockCache<TestQueue>,
    pub handle: Handle,
    pub bytes: Vec<Option<u8>>,
    block: u64,
    pub mode: WriteMode,
}

impl Pair {
    /// A cache of 4 to 64 frames over a device somewhat larger, of any shape.
    pub fn random(random: &mut Rng) -> Pair {
        let block = [512, 1024, 4096][random.usize(..3)];
        let bytes = u64::from(block) * random.u64(1..=(160 << 10) / u64::from(block));
        let device = Device::new(block, bytes, random.u64(..));
        let mut settings = Settings::new(random.u32(4..=64));
        settings.mode = [WriteMode::Back, WriteMode::Back, WriteMode::Through, WriteMode::Durable][random.usize(..4)];
        settings.pages.replacement = if random.bool() { Replacement::Lru } else { Replacement::S3Fifo };
        settings.pages.free_low = random.u32(0..3);
        settings.pages.free_high = settings.pages.free_low * 2;
        settings.waiters = 1;
        Pair::new(device, settings, random.usize(1..=2), 1 << random.u32(0..5))
    }

    pub fn new(device: Device, mut settings: Settings, queues: usize, depth: u32) -> Pair {
        settings.clock = Arc::new(device.clone());
        let mode = settings.mode;
        let cache = BlockCache::open((0..queues).map(|_| device.queue(depth)).collect(), settings).expect("opened");
        let handle = cache.handle();
        let bytes = vec![Some(0); device.state.lock().durable.len()];
        let block = u64::from(block::Device::geometry(&device.memory).block_bytes);
        Pair { device, cache, handle, bytes, block, mode }
    }

    fn range(&self, random: &mut Rng) -> (usize, usize) {
        let at = random.usize(..self.bytes.len());
        let most = [16, PAGE_BYTES, 6 * PAGE_BYTES, 6 * PAGE_BYTES, 100 * PAGE_BYTES][random.usize(..5)];
        let bytes = random.usize(1..=most.min(self.bytes.len() - at));
        if random.bool() { (at, bytes) } else { self.whole_pages(at, bytes) }
    }

    fn whole_pages(&self, at: usize, bytes: usize) -> (usize, usize) {
        let begin = at / PAGE_BYTES * PAGE_BYTES;
        let end = (at + bytes).next_multiple_of(PAGE_BYTES).min(self.bytes.len());
        (begin, end - begin)
    }

    /// Any call. Its error, if it had one.
    pub fn step(&mut self, random: &mut Rng) -> Result<(), Error> {
        let (at, bytes) = self.range(random);
        match random.u32(..100) {
            0..40 => self.read(at, bytes),
            40..80 => self.write(at, bytes, random),
            80..84 => self.flush(),
            84..88 => self.discard(at, bytes),
            88..91 => self.cache.write_back(at as u64..(at + bytes) as u64).map(|()| self.is_on_device(at, bytes)),
            91..94 => self.direct_write(at, bytes, random),
            94..97 => self.pin(at),
            97 => {
                self.device.state.lock().now_ns += 10_000_000_000;
                self.cache.tick();
                Ok(())
            }
            98 => {
                self.cache.set_limit(random.u32(4..80));
                Ok(())
            }
            _ => {
                self.handle = self.cache.handle();
                Ok(())
            }
        }
    }

    pub fn read(&mut self, at: usize, bytes: usize) -> Result<(), Error> {
        let mut found = vec![0xee; bytes];
        self.cache.read(&mut self.handle, at as u64, &mut found)?;
        self.compare(at, &found, "read");
        Ok(())
    }

    fn compare(&self, at: usize, found: &[u8], what: &str) {
        for (at, found) in (at..).zip(found) {
            assert!(self.bytes[at].is_none_or(|wanted| wanted == *found), "{what}: byte {at} is {found}, not {:?}", self.bytes[at]);
        }
    }

    pub fn write(&mut self, at: usize, bytes: usize, random: &mut Rng) -> Result<(), Error> {
        let mut data = vec![0; bytes];
        random.fill(&mut data);
        let outcome = self.cache.write(&mut self.handle, at as u64, &data);
        for (byte, new) in self.bytes[at..at + bytes].iter_mut().zip(&data) {
            // A write that failed may be done in part.
            *byte = if outcome.is_ok() || *byte == Some(*new) { Some(*new) } else { None };
        }
        if outcome.is_ok() && self.mode == WriteMode::Through {
            self.is_on_device(at, bytes);
        }
        if outcome.is_ok() && self.mode == WriteMode::Durable {
            let durable = self.device.state.lock().durable[at..at + bytes].to_vec();
            self.compare(at, &durable, "durable");
        }
        outcome
    }

    pub fn flush(&mut self) -> Result<(), Error> {
        self.cache.flush(&mut self.handle)?;
        let durable = self.device.state.lock().durable.clone();
        self.compare(0, &durable, "durable");
        Ok(())
    }

    fn is_on_device(&self, at: usize, bytes: usize) {
        self.compare(at, &self.device.bytes()[at..at + bytes], "on the device");
    }

    fn discard(&mut self, at: usize, bytes: usize) -> Result<(), Error> {
        let block = self.block as usize;
        let (begin, end) = (at / block * block, (at + bytes).next_multiple_of(block));
        let outcome = self.cache.discard(begin as u64..end as u64);
        self.bytes[begin..end].fill(None);
        outcome
    }

    /// Past the cache, as a handle in direct mode would.
    fn direct_write(&mut self, at: usize, bytes: usize, random: &mut Rng) -> Result<(), Error> {
        let range = at as u64..(at + bytes) as u64;
        self.cache.invalidate(range.clone())?;
        let mut data = vec![0; bytes];
        random.fill(&mut data);
        self.device.memory.region().write(at, &data);
        self.cache.invalidate(range)?;
        for (byte, new) in self.bytes[at..].iter_mut().zip(data) {
            *byte = Some(new);
        }
        Ok(())
    }

    pub fn pin(&mut self, at: usize) -> Result<(), Error> {
        let page = PageIndex::of(at as u64);
        let pinned = self.cache.pin(&mut self.handle, page)?;
        let begin = page.offset() as usize;
        assert_eq!(pinned.bytes(), PAGE_BYTES.min(self.bytes.len() - begin));
        let place = self.cache.pages().arena().region().position(pinned.address()).expect("in the arena");
        let mut found = vec![0; PAGE_BYTES];
        self.cache.pages().arena().region().read(place, &mut found);
        self.compare(begin, &found[..pinned.bytes()], "pinned");
        assert!(found[pinned.bytes()..].iter().all(|byte| *byte == 0), "behind the device's end is nothing");
        // Now and then the page goes while it is looked at.
        if at.is_multiple_of(3) {
            self.cache.invalidate(begin as u64..(begin + pinned.bytes()) as u64)?;
        }
        self.cache.unpin(pinned);
        Ok(())
    }
}
