//! Miss ratios on the reference traces.

use super::oracle::cache;
use super::*;
use crate::PageIndex;

/// The number of frames, and the miss ratios of FIFO, LRU and S3-FIFO.
type Sizes = [(u32, f64, f64, f64); 2];

/// The miss ratios in ../shared/traces/README.md.
const REFERENCE: &[(&str, Sizes)] = &[
    ("sprite", [(70, 0.8304, 0.8367, 0.7873), (707, 0.1804, 0.1352, 0.1404)]),
    ("2_pools", [(99, 0.8079, 0.7823, 0.5542), (993, 0.5011, 0.4562, 0.4567)]),
    ("loop", [(10, 1.0, 1.0, 1.0), (101, 1.0, 1.0, 0.9102)]),
    ("multi2", [(56, 0.9689, 0.9649, 0.9026), (568, 0.7021, 0.6308, 0.4904)]),
];

fn pages_of(trace: &str) -> Option<Vec<u64>> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../../shared/traces");
    let gzip = std::process::Command::new("gzip").arg("-dc").arg(format!("{dir}/{trace}.trace.gz")).output().ok()?;
    let text = String::from_utf8(gzip.stdout).ok()?;
    Some(text.lines().filter_map(|line| line.trim().parse().ok()).collect()).filter(|pages: &Vec<u64>| !pages.is_empty())
}

/// Returns the share of requests that miss, with one shard.
fn misses(requests: &[u64], frames: u32, replacement: Replacement) -> f64 {
    let (pages, ..) = cache(&Shape { frames, shards: 1, ghosts: frames - frames / 10, replacement });
    let bytes = [0; crate::PAGE_BYTES];
    let mut misses = 0;
    for page in requests {
        let name = Name { file: FileNo(0), page: PageIndex(*page) };
        if !pages.read(name, 0, &mut [0; 1]) {
            misses += 1;
            assert_eq!(pages.insert(name, &bytes, Marks::NONE, pages.ticket(name), 0), Inserted::Done);
        }
    }
    f64::from(misses) / requests.len() as f64
}

/// FIFO and LRU must agree to the last digit given; S3-FIFO must be at least as good, within a hundredth.
#[test]
#[cfg(not(miri))]
fn miss_ratios_are_those_of_the_reference() {
    let full = std::env::var_os("FULL").is_some_and(|full| full == "1");
    // The longest trace runs only in a full test.
    for (trace, sizes) in REFERENCE.iter().filter(|(trace, _)| full || *trace != "loop") {
        let Some(requests) = pages_of(trace) else {
            println!("skipped: no ../shared/traces/{trace}.trace.gz");
            return;
        };
        for (frames, fifo, lru, s3fifo) in sizes {
            let ours = |replacement| misses(&requests, *frames, replacement);
            let (our_fifo, our_lru, our_s3fifo) = (ours(Replacement::Fifo), ours(Replacement::Lru), ours(Replacement::S3Fifo));
            println!("{trace} {frames}: FIFO {our_fifo:.4} ({fifo}), LRU {our_lru:.4} ({lru}), S3-FIFO {our_s3fifo:.4} ({s3fifo})");
            assert!((our_fifo - fifo).abs() < 0.000_06 && (our_lru - lru).abs() < 0.000_06, "{trace} {frames}");
            assert!(our_s3fifo - s3fifo < 0.01, "{trace} {frames}: S3-FIFO misses {our_s3fifo:.4}, the reference {s3fifo}");
        }
    }
}
