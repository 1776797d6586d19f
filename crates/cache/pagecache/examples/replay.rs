//! Replays page numbers, one a line on standard input (lines with `*` are skipped), and prints the miss ratio of each
//! replacement at a number of frames.
//!
//! `zcat sprite.trace.gz | cargo run --release -p pagecache --example replay -- 707`
#![forbid(unsafe_code)]

use std::io::BufRead;

use pagecache::{Config, FileKey, Lookup, PageCache, PageIndex, Purpose, Replacement, Room};

fn main() {
    let sizes: Vec<u32> = std::env::args().skip(1).map(|size| size.parse().expect("frames")).collect();
    let lines = std::io::stdin().lock().lines().map(|line| line.expect("text"));
    let pages: Vec<u64> = lines.filter_map(|line| line.trim().parse().ok()).collect();
    for frames in sizes {
        for replacement in [Replacement::Lru, Replacement::S3Fifo] {
            println!("{frames} frames, {replacement:?}: {:.4}", misses(&pages, frames, replacement) as f64 / pages.len() as f64);
        }
    }
}

fn misses(pages: &[u64], frames: u32, replacement: Replacement) -> usize {
    // Nothing ahead of need: as the reference simulator does.
    let config = Config { replacement, free_low: 0, free_high: 0, ..Config::new(frames) };
    let mut cache = PageCache::new(&config).expect("memory");
    let file = cache.open_file(FileKey(0)).expect("a place");
    let mut misses = 0;
    for page in pages.iter().map(|page| PageIndex(*page)) {
        match cache.lookup(file, page) {
            Lookup::Hit(frame) => cache.touch(frame),
            _ => {
                misses += 1;
                let Room::Frame(frame) = cache.allocate(file, page, Purpose::Demand) else { panic!("no frame is free") };
                cache.filled(frame);
            }
        }
    }
    misses
}
