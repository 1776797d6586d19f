//! Proof of the schedulers: any mix of requests against an oracle, bounds, shares, and single cases by hand.

mod bounds;
mod cases;
mod clock;
mod mix;
mod rogue;
mod shares;

/// How much longer random tests run when asked to be thorough.
fn rounds(few: u64) -> u64 {
    if cfg!(miri) {
        1
    } else if std::env::var_os("FULL").is_some_and(|full| full == "1") {
        few * 100
    } else {
        few
    }
}
