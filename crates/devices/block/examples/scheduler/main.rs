//! Measures the cost and the benefit of the schedulers.
//!
//! ```text
//! scheduler cost            ns per request of each, with a device that does nothing
//! scheduler count NAME N    sends N requests through one; for tools that count instructions
//! scheduler share           foreground reads while a copy runs in the background, on models of a disk and of flash
//! ```
#![forbid(unsafe_code)]

mod cost;
mod disk;
mod flash;
mod latencies;
mod model;
mod share;

use block::Scheduler;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["cost"] => cost::compare(),
        ["count", name, requests] => count(name, requests),
        ["share"] => share::compare(),
        _ => {
            eprintln!("usage: scheduler cost | count NAME REQUESTS | share");
            std::process::exit(2);
        }
    }
}

fn count(name: &str, requests: &str) {
    let (Some(scheduler), Ok(requests)) = (Scheduler::parse(name), requests.parse()) else {
        eprintln!("no scheduler {name}, or no number {requests}");
        std::process::exit(2);
    };
    cost::run(scheduler, 32, cost::Pattern::Random, requests);
}
