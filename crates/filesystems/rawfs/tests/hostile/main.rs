//! Damaged and forged images: whatever is in them, they are opened, walked, read, written, checked, repaired and shown without a
//! panic, a hang or endless memory; and what was repaired opens, and the check finds nothing more in it.
//!
//! The images of `corpus/` are changed at random, by somebody who knows how sums are made: only what the numbers mean can tell.
//! FULL=1 goes on for half an hour (or HOSTILE_SECONDS), where no run has been. A failure prints its seed: SEED=n runs that one
//! alone; seeds that failed once are in [`KEPT`].

mod corpus;
mod forge;
mod uses;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What failed once.
const KEPT: &[u64] = &[
    9_207_570_287_350_021_964,
    6_673_749_410_553_909_832,
    18_282_099_203_252_126_801,
    1_846_835_158_631_801_653,
    7_896_977_901_997_773_782,
    12_710_953_607_434_276_703,
    7_641_905_413_057_424_777,
    13_003_732_500_154_022_388,
    7_716_968_400_463_134_870,
    274_639_087_016_047_322,
];
/// Seeds that are run each time.
const FEW: u64 = 30;
const FULL_SECONDS: u64 = 30 * 60;
/// An image that takes so long is taken for a hang. Most take a few hundredths of a second.
const HANG: Duration = Duration::from_secs(300);

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Ends the process with the seed in hand if one takes for ever.
struct Watch {
    seed: Arc<AtomicU64>,
    turn: Arc<AtomicU64>,
}

impl Watch {
    fn start() -> Watch {
        let watch = Watch { seed: Arc::default(), turn: Arc::default() };
        let (seed, turn) = (Arc::clone(&watch.seed), Arc::clone(&watch.turn));
        std::thread::spawn(move || {
            let (mut last, mut since) = (0, Instant::now());
            loop {
                std::thread::sleep(Duration::from_secs(1));
                let now = turn.load(Ordering::Relaxed);
                if now != last {
                    (last, since) = (now, Instant::now());
                } else if since.elapsed() > HANG {
                    eprintln!("a hang: SEED={}", seed.load(Ordering::Relaxed));
                    std::process::exit(101);
                }
            }
        });
        watch
    }

    fn next(&self, seed: u64) {
        self.seed.store(seed, Ordering::Relaxed);
        self.turn.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("SEED={}", self.seed.load(Ordering::Relaxed));
        }
    }
}

/// Changes an image, and does all there is to do with it.
fn one(images: &[Vec<u8>], seed: u64, tally: &mut uses::Tally) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut image = images[rng.usize(..images.len())].clone();
    forge::forge(&mut image, &mut rng);
    uses::use_all(&image, &mut rng, tally);
}

#[test]
fn damaged_images_are_errors_or_harmless_and_can_be_repaired() {
    let (images, watch, mut tally) = (corpus::all(), Watch::start(), uses::Tally::default());
    let mut run = |seed: u64| {
        watch.next(seed);
        one(&images, seed, &mut tally);
    };
    if let Some(seed) = number("SEED") {
        run(seed);
    } else {
        KEPT.iter().copied().for_each(&mut run);
        if std::env::var_os("FULL").is_some_and(|full| full == "1") {
            let end = Instant::now() + Duration::from_secs(number("HOSTILE_SECONDS").unwrap_or(FULL_SECONDS));
            let mut rng = fastrand::Rng::new();
            while Instant::now() < end {
                run(rng.u64(..));
            }
        } else {
            (0..FEW).for_each(&mut run);
            assert!(tally.repaired > 0 && tally.opened > 0 && tally.refused > 0, "the test looks at what it should: {tally:?}");
        }
    }
    println!("{tally:?}");
}

#[test]
fn the_images_of_the_corpus_are_whole_and_have_what_was_put_there() {
    for (image, wanted) in corpus::all().iter().zip(corpus::FILES) {
        let mut tally = uses::Tally::default();
        uses::use_all(image, &mut fastrand::Rng::with_seed(1), &mut tally);
        assert_eq!((tally.opened, tally.findings, tally.files), (1, 0, *wanted), "{tally:?}");
    }
}
