//! Status and why, for people.

use hybridfs::report::{MoveTrouble, Status, TierStatus, Why};
use indicatif::HumanBytes;

/// Prints the state of one mount as a compact panel.
pub fn status(status: &Status) {
    say!("{}  (hotshelf {}, process {}, up {})", status.mountpoint, status.version, status.pid, span(status.uptime_s));
    tier("ssd", &status.ssd, Some((status.low_bytes, status.high_bytes)));
    tier("hdd", &status.hdd, None);
    let known = if status.scan_done { "" } else { ", the scan is still running" };
    say!("  files on the SSD  {}{known}", status.ssd.files.unwrap_or(0));
    say!("  opens             {} on the SSD, {} on the HDD, hit ratio {:.1} %", status.hits, status.misses, status.hit_ratio * 100.0);
    moves(status);
    say!("  policy            {}, promotion {}", status.policy, status.promotion);
    if status.max_file_bytes > 0 {
        // A daemon of before does not say.
        let (reserve, largest) = (HumanBytes(status.reserve_bytes), HumanBytes(status.max_file_bytes));
        say!("  limits            {reserve} of the SSD in reserve, no file above {largest} is promoted");
    }
    if let Some(side) = status.retired {
        say!("  retired           the {side}: nothing new goes there (`hotshelf retire`)");
    }
    if let Some(rate) = status.move_rate_bytes {
        say!("                    files move at no more than {} a second", HumanBytes(rate));
    }
    if status.promotion_opens_wanted > 0 {
        let opens = status.promotion_opens_wanted;
        say!("                    more is in use than fits: a file comes up after {opens} opens in a short time");
    }
    match &status.passthrough_reason {
        None => say!("  file data         straight to the SSD's file system (passthrough)"),
        Some(reason) => say!("  file data         through the daemon: {reason}"),
    }
    match &status.uring_reason {
        Some(reason) => say!("  requests          by /dev/fuse: {reason}"),
        None if status.uring => say!("  requests          over io_uring"),
        None => say!("  requests          by /dev/fuse"),
    }
    for pin in &status.pinned {
        say!("  pinned            {pin}");
    }
    for conflict in &status.conflicts {
        say!("  on both sides     {conflict} (the SSD's is shown, the HDD's is kept)");
    }
    for warning in &status.warnings {
        say!("  warning           {warning}");
    }
}

fn moves(status: &Status) {
    say!(
        "  moves             {} up, {} down, {} in all; {} waiting, {} given up, {} failed",
        status.promotions,
        status.demotions,
        HumanBytes(status.moved_bytes),
        status.queue,
        status.moves_dropped,
        status.moves_failed
    );
    for failure in &status.move_troubles {
        let MoveTrouble { to, cause, moves, first, stays, next_try_s } = failure;
        let next = match (stays, next_try_s) {
            (true, _) => "they stay where they are".to_owned(),
            (false, Some(seconds)) => format!("next try in {seconds} s"),
            (false, None) => "tried again, ever more rarely".to_owned(),
        };
        say!("    not moved       {moves} to the {to}: {cause}; the first: {first}; {next}");
    }
    for running in &status.running {
        say!(
            "    now             {} to the {}: {} of {}",
            running.path,
            running.to,
            HumanBytes(running.done_bytes),
            HumanBytes(running.total_bytes)
        );
    }
}

fn tier(name: &str, tier: &TierStatus, marks: Option<(u64, u64)>) {
    const WIDTH: u64 = 30;
    let cells = (tier.used_bytes * WIDTH).checked_div(tier.capacity_bytes).unwrap_or(0).min(WIDTH) as usize;
    let bar = format!("{}{}", "#".repeat(cells), ".".repeat(WIDTH as usize - cells));
    let marks = marks.map_or(String::new(), |(low, high)| format!(", marks {} / {}", HumanBytes(low), HumanBytes(high)));
    say!("  {name}  [{bar}]  {} of {} used{marks}  {}", HumanBytes(tier.used_bytes), HumanBytes(tier.capacity_bytes), tier.directory);
    if let Some(degraded) = &tier.degraded {
        say!("       degraded: {degraded}");
    }
    for limit in &tier.limits {
        say!("       {}: {limit}", tier.abilities.file_system);
    }
}

/// All that is known of one file.
pub fn why(why: &Why) {
    let side = why.tier.map_or_else(|| "both sides or either".to_owned(), |tier| format!("the {tier}"));
    say!("{}: {} of {} on {side}", if why.path.is_empty() { "/" } else { &why.path }, why.kind, HumanBytes(why.size_bytes));
    say!("  really   {}", why.real_path);
    match why.last_open_s {
        Some(last) => say!("  opened   {} times, last {} ago", why.opens, span(now_s().saturating_sub(last))),
        None => say!("  opened   no record"),
    }
    if let Some(rank) = why.rank {
        say!("  rank     {rank:.2} (0 is evicted next, 1 last)");
    }
    if let Some(pinned) = &why.pinned {
        say!("  pinned   {pinned}");
    }
    if let Some(last) = &why.last_move {
        say!("  moved    to the {} {} ago: {}", last.to, span(now_s().saturating_sub(last.at_s)), last.reason);
    }
    say!("  why      {}", why.reason);
    say!("  next     {}", why.next);
}

fn now_s() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A time as people say it.
pub fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}
