//! `hotshelf cache top`: what happens now, again and again.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use cachedfs::{Status, Tier, mode_name};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::args::TopArgs;
use super::locate;
use super::report::Report;
use super::{show, size, status};

/// The shortest interval.
const LEAST: Duration = Duration::from_millis(100);

/// Shows the activity of a cache until the user ends it.
pub fn top(args: &TopArgs) -> anyhow::Result<bool> {
    let located = locate::which(&args.which)?;
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
    let ended = std::sync::mpsc::channel();
    std::thread::spawn(move || ended.0.send(signals.forever().next()));
    let clears = std::io::stdout().is_terminal() && !args.json;
    let (mut before, mut at) = (status::of(&located)?, Instant::now());
    for _ in 0..args.count.unwrap_or(u64::MAX) {
        if ended.1.recv_timeout(args.interval.0.max(LEAST)).is_ok() {
            break;
        }
        let (now, seconds) = (status::of(&located)?, at.elapsed().as_secs_f64());
        at = Instant::now();
        if args.json {
            let (status, tiers) = (&now.status, rates(&before.status, &now.status, seconds));
            let (dirty_bytes, leader_pid) = (status.dirty_bytes, status.leader_pid);
            let (name, in_use) = (&status.name, now.in_use);
            let line = json!({
                "name": name, "in_use": in_use, "seconds": seconds, "tiers": tiers, "dirty_bytes": dirty_bytes, "leader_pid": leader_pid,
            });
            say!("{line}");
        } else {
            if clears {
                // From the upper left corner on, and nothing below.
                let _ = std::io::stdout().write_all(b"\x1b[H\x1b[2J");
            }
            panel(&before.status, &now, seconds);
        }
        let _ = std::io::stdout().flush();
        before = now;
    }
    Ok(true)
}

fn panel(before: &Status, now: &Report, seconds: f64) {
    let status = &now.status;
    if !now.in_use {
        say!("{}: not in use", status.name);
        return;
    }
    let leader = status.leader_pid.map_or("nobody".to_owned(), |pid| format!("process {pid}"));
    let processes = show::processes(status);
    say!("{}  {}, {processes}, {leader} leads", status.name, mode_name(status.mode));
    let ssd = status.ssd.as_ref().map_or(String::new(), |ssd| format!(", SSD {} of {}", size(ssd.pages * 4096), size(ssd.bytes)));
    let used = status.memory.pages.saturating_sub(status.memory.free_pages) * 4096;
    say!(
        "memory {} of {}{ssd}, dirty {} of {}",
        size(used),
        size(status.memory.bytes),
        size(status.memory.dirty_pages * 4096),
        size(status.dirty_limit_bytes)
    );
    let head = ["TIER", "PAGES/S", "SHARE", "READ/S", "WRITTEN/S", "CALLS/S", "READ P50", "P99", "P99.9", "ERRORS"];
    let rates = rates(before, status, seconds);
    crate::queue::table(
        &head,
        rates.iter().zip(&status.tiers).map(|(rate, tier)| {
            let [p50, p99, p999] = show::percentiles(&tier.read_latency);
            let per_s = |bytes: f64| size(bytes as u64);
            let (pages, calls) = (format!("{:.0}", rate.pages_per_s), format!("{:.0}", rate.requests_per_s));
            let (share, errors) = (format!("{:.1} %", rate.ratio * 100.0), tier.errors.to_string());
            let (read, written) = (per_s(rate.read_bytes_per_s), per_s(rate.written_bytes_per_s));
            vec![tier.name.clone(), pages, share, read, written, calls, p50, p99, p999, errors]
        }),
    );
    let worker = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
    say!(
        "worker {:.0} pages/s promoted, {:.0} pages/s written back in {:.0} writes/s, {:.0} pages/s read ahead or around",
        worker(status.promoted_pages, before.promoted_pages),
        worker(status.written_back_pages, before.written_back_pages),
        worker(status.below_writes, before.below_writes),
        worker(status.read_ahead_pages + status.read_around_pages, before.read_ahead_pages + before.read_around_pages)
    );
}

/// What a tier did in a second.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
struct Rate {
    tier: String,
    pages_per_s: f64,
    /// Of the pages read in this time.
    ratio: f64,
    read_bytes_per_s: f64,
    written_bytes_per_s: f64,
    requests_per_s: f64,
}

/// A cache that was made anew meanwhile begins at zero: less than nothing is nothing.
fn rates(before: &Status, now: &Status, seconds: f64) -> Vec<Rate> {
    let nothing = Tier::default();
    let old = |tier: &Tier| before.tiers.iter().find(|old| old.name == tier.name).unwrap_or(&nothing);
    let pages: u64 = now.tiers.iter().map(|tier| tier.hits.saturating_sub(old(tier).hits)).sum();
    let rate = |tier: &Tier| {
        let old = old(tier);
        let per_s = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds.max(1e-3);
        let hits = tier.hits.saturating_sub(old.hits);
        Rate {
            tier: tier.name.clone(),
            pages_per_s: per_s(tier.hits, old.hits),
            ratio: if pages == 0 { 0.0 } else { hits as f64 / pages as f64 },
            read_bytes_per_s: per_s(tier.read_bytes, old.read_bytes),
            written_bytes_per_s: per_s(tier.written_bytes, old.written_bytes),
            requests_per_s: per_s(tier.requests, old.requests),
        }
    };
    now.tiers.iter().map(rate).collect()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn rates_are_differences_and_never_negative() {
        let with = |hits: [u64; 2]| {
            let tier = |name: &str, hits| Tier { name: name.into(), hits, read_bytes: hits * 4096, ..Tier::default() };
            Status { tiers: vec![tier("ram", hits[0]), tier("below", hits[1])], ..Status::default() }
        };
        let rates_of = rates(&with([10, 10]), &with([40, 20]), 2.0);
        assert_eq!((rates_of[0].pages_per_s, rates_of[0].ratio, rates_of[0].read_bytes_per_s), (15.0, 0.75, 61440.0));
        assert_eq!(rates_of[1].ratio, 0.25);
        let anew = rates(&with([10, 10]), &with([0, 0]), 1.0);
        assert!(anew.iter().all(|rate| rate.pages_per_s == 0.0 && rate.ratio == 0.0));
        assert_eq!(rates(&Status::default(), &with([5, 0]), 1.0)[0].pages_per_s, 5.0);
    }
}
