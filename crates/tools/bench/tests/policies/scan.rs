//! The cost of a scan of ten times the SSD for readers of the hot set: at most two points of hit ratio, during and after the scan.
//!
//! Two equal caches serve the same reads of the hot set; one also serves the scan, one page for each hot read.

use bench::replay::{Cache, Shared, SsdIndex, TierHits, TierReader, TieredCache, Zipf};
use pagecache::Shape;
use ssdcache::AdmissionLimits;

/// Pages of the SSD; a quarter of a million with FULL=1.
fn slots() -> u32 {
    if crate::is_full() { 1 << 18 } else { 1 << 12 }
}

/// Start of the scan: none of its pages is hot.
const FAR: u64 = 1 << 32;

struct Side {
    tiers: TieredCache,
    hot: Zipf,
    random: fastrand::Rng,
    reader: TierReader,
    hits: TierHits,
}

impl Side {
    /// Creates a warm cache: reads until admission has settled.
    fn new(hot_pages: u64, power: f64, ram: u32) -> Side {
        let ram = (ram > 0).then(|| Box::new(Shared::new(&Shape::new(ram), 1).expect("memory")) as Box<dyn Cache>);
        let tiers = TieredCache::new(ram, SsdIndex::new(slots()).expect("slots"), AdmissionLimits::new(slots()));
        let (hot, random) = (Zipf::new(hot_pages, power), fastrand::Rng::with_seed(7));
        let mut side = Side { tiers, hot, random, reader: TierReader::default(), hits: TierHits::default() };
        side.read(40 * u64::from(slots()));
        side
    }

    /// Reads the hot set and returns the hit ratio.
    fn read(&mut self, count: u64) -> f64 {
        self.read_beside(count, |_| {})
    }

    /// Reads the hot set, calling `other` before each read.
    fn read_beside(&mut self, count: u64, mut other: impl FnMut(&mut TieredCache)) -> f64 {
        let before = self.hits;
        for _ in 0..count {
            other(&mut self.tiers);
            let page = self.hot.draw(&mut self.random);
            self.tiers.read(&mut self.reader, page, &mut self.hits).expect("cached");
        }
        self.hits.since(&before).ratio()
    }
}

fn costs(what: &str, hot_pages: u64, power: f64, ram: u32, in_order: bool) {
    let length = 10 * u64::from(slots());
    let mut scan: Vec<u64> = (FAR..FAR + length).collect();
    if !in_order {
        fastrand::Rng::with_seed(11).shuffle(&mut scan);
    }
    let [mut alone, mut beside] = [(); 2].map(|()| Side::new(hot_pages, power, ram));
    let put_before = beside.tiers.stats().put;
    let (mut scanner, mut scanned, mut pages) = (TierReader::default(), TierHits::default(), scan.iter());
    let during = beside.read_beside(length, |tiers| {
        let page = pages.next().expect("as many as reads");
        tiers.read(&mut scanner, *page, &mut scanned).expect("cached");
    });
    let put = beside.tiers.stats().put - put_before;
    let (during_alone, after, after_alone) = (alone.read(length), beside.read(length), alone.read(length));
    let order = if in_order { "in order" } else { "at random" };
    println!(
        "{what}, {ram} pages of RAM, scan {order}: hot hits {:.2} % beside it, {:.2} % without; after it {:.2} %, {:.2} %; {put} pages put",
        100.0 * during,
        100.0 * during_alone,
        100.0 * after,
        100.0 * after_alone
    );
    assert_eq!(scanned.requests(), length);
    for (with, without) in [(during, during_alone), (after, after_alone)] {
        assert!(without - with <= 0.02, "{what}, {ram} pages of RAM, scan {order}: {with:.4} of {without:.4}");
    }
}

/// The hot set fits.
#[test]
fn a_hot_set_that_fits() {
    for ram in [0, slots() / 16] {
        costs("three quarters of the SSD", u64::from(slots()) * 3 / 4, 0.0, ram, true);
        costs("three quarters of the SSD", u64::from(slots()) * 3 / 4, 0.0, ram, false);
    }
}

/// Only the popular part fits, and has to be learned all the time.
#[test]
fn a_hot_set_without_an_end() {
    for ram in [0, slots() / 16] {
        costs("Zipf 0.9 over four times the SSD", u64::from(slots()) * 4, 0.9, ram, true);
        costs("Zipf 0.9 over four times the SSD", u64::from(slots()) * 4, 0.9, ram, false);
    }
}
