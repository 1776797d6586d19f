//! Any mix of calls leaves the bytes that plain memory would have.

use fastrand::Rng;

use crate::model::Pair;

#[test]
fn reads_what_was_written() {
    let seeds = if std::env::var_os("FULL").is_some_and(|full| full == "1") { 5000 } else { 30 };
    let first = std::env::var("SEED").map_or(0, |seed| seed.parse().expect("a number"));
    for seed in first..first + seeds {
        println!("seed {seed}");
        let mut random = Rng::with_seed(seed);
        let mut pair = Pair::random(&mut random);
        for _ in 0..200 {
            pair.step(&mut random).expect("nothing fails");
            pair.cache.pages().check();
        }
        pair.flush().expect("nothing fails");
        pair.read(0, pair.bytes.len()).expect("nothing fails");
    }
}
