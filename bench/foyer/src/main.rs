//! `foyer-replay PAGES FILE SSD-DIR SSD-MIB MEMORY-KIB POLICY`: reads pages of 4 KiB, in the order of a list of page numbers (one a line),
//! through foyer's hybrid cache as a user of it would: `get`, and when it is not there, a `pread` of the file and an `insert`.
//!
//! Prints one line of `KEY=VALUE` for all requests and one for each place where a page was found (memory, ssd, below). Times are
//! nanoseconds and include the copy into the reader's buffer, as that of our own `upread` does. POLICY is s3fifo or lru.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use foyer::{
    BlockEngineConfig, DeviceBuilder, EvictionConfig, FsDeviceBuilder, HybridCache, HybridCacheBuilder, HybridCachePolicy, LruConfig,
    PsyncIoEngineConfig, S3FifoConfig,
};

const PAGE: usize = 4096;
/// Of foyer's device. Its default of 16 MiB would leave small devices with a handful of blocks.
const BLOCK: usize = 1 << 20;
/// What is in flight to the SSD; a cache of the size we measure must not be held there as a whole.
const BUFFERS: usize = 4 << 20;

type Cache = HybridCache<u64, Vec<u8>>;

async fn open(dir: &str, ssd: usize, memory: usize, policy: &str) -> Result<Cache, Box<dyn Error>> {
    let eviction: EvictionConfig = match policy {
        "s3fifo" => S3FifoConfig::default().into(),
        "lru" => LruConfig::default().into(),
        other => return Err(format!("policy {other}: s3fifo or lru").into()),
    };
    let device = FsDeviceBuilder::new(dir).with_capacity(ssd).with_direct(true).build()?;
    let engine = BlockEngineConfig::new(device).with_block_size(BLOCK).with_buffer_pool_size(BUFFERS);
    let cache = HybridCacheBuilder::new()
        .with_name("replay")
        .with_policy(HybridCachePolicy::WriteOnInsertion)
        .memory(memory)
        .with_shards(1)
        .with_weighter(|_: &u64, page: &Vec<u8>| page.len())
        .with_eviction_config(eviction)
        .storage()
        .with_io_engine_config(PsyncIoEngineConfig::new())
        .with_engine_config(engine)
        .build()
        .await?;
    Ok(cache)
}

/// Where a page was found, and how long each took.
#[derive(Default)]
struct Found {
    name: &'static str,
    took_ns: Vec<u32>,
}

impl Found {
    fn of(name: &'static str) -> Found {
        Found { name, took_ns: Vec::new() }
    }

    fn show(&mut self, all: usize) {
        self.took_ns.sort_unstable();
        let at = |share: f64| self.took_ns.get(((self.took_ns.len() as f64 * share) as usize).min(self.took_ns.len().saturating_sub(1)));
        let at = |share: f64| at(share).copied().unwrap_or(0);
        let mean = self.took_ns.iter().map(|&ns| f64::from(ns)).sum::<f64>() / self.took_ns.len().max(1) as f64;
        println!(
            "side=foyer found={} requests={} share={:.4} mean_ns={mean:.0} p50_ns={} p99_ns={} p999_ns={}",
            self.name,
            self.took_ns.len(),
            self.took_ns.len() as f64 / all.max(1) as f64,
            at(0.5),
            at(0.99),
            at(0.999),
        );
    }
}

async fn replay(cache: &Cache, pages: &[u64], below: &File) -> Result<[Found; 3], Box<dyn Error>> {
    let mut found = [Found::of("memory"), Found::of("ssd"), Found::of("below")];
    let mut buffer = vec![0u8; PAGE];
    for &page in pages {
        // Not part of the request: an entry does not tell by which way it came.
        let in_memory = cache.memory().contains(&page);
        let begin = Instant::now();
        let place = match cache.get(&page).await? {
            Some(entry) => {
                buffer.copy_from_slice(entry.value());
                usize::from(!in_memory)
            }
            None => {
                below.read_exact_at(&mut buffer, page * PAGE as u64)?;
                cache.insert(page, buffer.clone());
                2
            }
        };
        let took = begin.elapsed();
        black_box(&buffer);
        if buffer[..8] != page.to_le_bytes() {
            return Err(format!("page {page} has the bytes of another one").into());
        }
        found[place].took_ns.push(u32::try_from(took.as_nanos()).unwrap_or(u32::MAX));
    }
    Ok(found)
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, pages, file, dir, ssd, memory, policy] = args.as_slice() else {
        return Err("foyer-replay PAGES FILE SSD-DIR SSD-MIB MEMORY-KIB POLICY".into());
    };
    let text = std::fs::read_to_string(pages)?;
    let pages = text.lines().map(str::parse).collect::<Result<Vec<u64>, _>>()?;
    let below = File::open(file)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let cache = open(dir, ssd.parse::<usize>()? << 20, memory.parse::<usize>()? << 10, policy).await?;
        let begin = Instant::now();
        let mut found = replay(&cache, &pages, &below).await?;
        let took = begin.elapsed();
        println!("side=foyer found=all requests={} per_second={:.0}", pages.len(), pages.len() as f64 / took.as_secs_f64());
        found.iter_mut().for_each(|found| found.show(pages.len()));
        cache.close().await?;
        Ok(())
    })
}
