//! What tests share.

/// Chance that is the same each time; SEED=n, or one that no run has had under FULL=1. Prints its seed.
pub fn rng() -> fastrand::Rng {
    let given = std::env::var("SEED").ok().map(|seed| seed.parse().expect("a number"));
    let seed = given.unwrap_or_else(|| if full() { fastrand::u64(..) } else { 1 });
    println!("SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

/// Whether much is to be tried.
pub fn full() -> bool {
    std::env::var_os("FULL").is_some_and(|full| full == "1")
}
