//! Tests of the schedulers: random mixes of requests against an oracle, shares, and individual cases.

mod cases;
mod clock;
mod mix;
mod rogue;
mod shares;

/// Returns the number of rounds of a random test: more with FULL=1.
fn rounds(few: u64) -> u64 {
    if cfg!(miri) {
        1
    } else if std::env::var_os("FULL").is_some_and(|full| full == "1") {
        few * 100
    } else {
        few
    }
}
