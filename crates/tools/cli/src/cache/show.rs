//! A cache for people.

use cachedfs::{Latency, Ssd, Status, Tier, mode_name};

use super::report::Report;
use super::size;

/// Prints the state of one cache as a compact panel.
pub fn report(report: &Report) {
    let status = &report.status;
    if report.in_use {
        let leader = status.leader_pid.map_or("nobody".to_owned(), |pid| format!("process {pid}"));
        let processes = processes(status);
        say!("{}  ({}, {processes}, {leader} leads, up {})", status.name, mode_name(status.mode), crate::show::span(status.uptime_s));
    } else {
        say!("{}  ({}, not in use)", status.name, mode_name(status.mode));
    }
    if let Some(settings) = &report.settings {
        say!("  settings  {}", settings.display());
    }
    let by = status.mode_by.as_ref().map(|by| format!("as {by} said")).into_iter();
    let reasons: Vec<String> = by.chain(status.mode_because.clone()).collect();
    if !reasons.is_empty() {
        say!("  mode      {}: {}", mode_name(status.mode), reasons.join("; "));
    }
    if status.memory.pages > 0 {
        memory(status);
    }
    if let Some(of) = &status.ssd {
        ssd(of, report.in_use, status.uptime_s);
    }
    if report.in_use {
        tiers(&status.tiers);
        work(status);
    } else if status.dirty_bytes > 0 {
        let place = if status.ssd.is_some() { "on the SSD" } else { "in memory" };
        say!("  dirty     {} are {place} only: `hotshelf cache flush` writes them to their files", size(status.dirty_bytes));
    }
    stranded(status);
    for lost in status.lost.iter().filter(|lost| !status.stranded.iter().any(|one| one.path == lost.path)) {
        say!("  lost      {} bytes {} to {}: {}", lost.path.display(), lost.start, lost.end, lost.why);
    }
    for note in &status.notes {
        say!("  note      {note}");
    }
}

/// Files that somebody has to decide about, and with which commands.
pub fn stranded(status: &Status) {
    for one in &status.stranded {
        let (path, bytes) = (one.path.display(), size(one.dirty_bytes));
        if one.why == "missing" {
            say!("  stranded  {path}: moved or removed by another program; {bytes} of it are newer here: move it back, or");
        } else {
            say!("  stranded  {path}: changed by another program; {bytes} of it are newer here:");
        }
        say!("            `hotshelf cache export {path} TO` saves what the cache has");
        say!("            `hotshelf cache discard {path}` gives that up");
        if one.why != "missing" {
            say!("            `hotshelf cache force {path}` writes it over the file");
        }
    }
}

/// Formats the processes that are attached to the cache.
pub fn processes(status: &Status) -> String {
    match status.processes.iter().filter(|process| process.alive).count() {
        1 => "1 process".to_owned(),
        alive => format!("{alive} processes"),
    }
}

fn memory(status: &Status) {
    let memory = &status.memory;
    let used = memory.pages.saturating_sub(memory.free_pages) * 4096;
    let (dirty, pinned) = (size(memory.dirty_pages * 4096), size(memory.pinned_pages * 4096));
    say!(
        "  memory    {} of {} used, {dirty} dirty, {pinned} pinned; with metadata {}",
        size(used),
        size(memory.bytes),
        size(memory.segment_bytes)
    );
}

fn ssd(ssd: &Ssd, in_use: bool, uptime_s: u64) {
    say!("  ssd       {}", ssd.path.display());
    if ssd.drained {
        say!("            drained: not used until `hotshelf cache drain --undo {}`", ssd.path.display());
    }
    if let Some(failed) = &ssd.failed {
        say!("            failed: {failed}");
    }
    if ssd.bytes == 0 {
        return;
    }
    say!("            {} of {} used, {} dirty", size(ssd.pages * 4096), size(ssd.bytes), size(ssd.dirty_pages * 4096));
    let budget = ssd.bytes_per_day.map_or("no limit".to_owned(), |most| format!("{} a day allowed", size(most)));
    let ever = size(ssd.written_ever_bytes);
    if in_use {
        // A few minutes are too short to estimate a day.
        let rate = if uptime_s < 600 { String::new() } else { format!("{} a day at this rate, ", size(ssd.written_per_day_bytes)) };
        say!("  wear      {ever} written ever, {rate}{budget}; amplification {:.3}", ssd.write_amplification);
        say!("  recovery  {} ms for {} pages", ssd.recovery_ms, ssd.recovery_pages);
    } else {
        say!("  wear      {ever} written ever");
        say!("  recovery  {} ms, as of now", ssd.recovery_ms);
    }
    if ssd.damaged_pages > 0 || ssd.lost_pages > 0 {
        say!("  damaged   {}; dirty pages lost with it: {}", ssd.damaged_pages, ssd.lost_pages);
    }
}

fn tiers(tiers: &[Tier]) {
    if tiers.is_empty() {
        return;
    }
    let head = ["TIER", "PAGES READ", "SHARE", "READ", "WRITTEN", "READ P50", "P99", "P99.9", "WRITE P50", "P99", "ERRORS"];
    crate::queue::table(
        &head,
        tiers.iter().map(|tier| {
            let [p50, p99, p999] = percentiles(&tier.read_latency);
            let [write_p50, write_p99, _] = percentiles(&tier.write_latency);
            let share = format!("{:.1} %", tier.ratio * 100.0);
            let (hits, errors) = (tier.hits.to_string(), tier.errors.to_string());
            vec![
                tier.name.clone(),
                hits,
                share,
                size(tier.read_bytes),
                size(tier.written_bytes),
                p50,
                p99,
                p999,
                write_p50,
                write_p99,
                errors,
            ]
        }),
    );
}

fn work(status: &Status) {
    say!(
        "  worker    {} pages promoted, {} written back in {} writes, {} read ahead, {} around; {} syncs",
        status.promoted_pages,
        status.written_back_pages,
        status.below_writes,
        status.read_ahead_pages,
        status.read_around_pages,
        status.syncs
    );
    if status.ssd.is_some() {
        let refused = &status.refused;
        let (first, stream, budget, rule, full) = (refused.first_touch, refused.stream, refused.budget, refused.rule, refused.full);
        say!("  refused   {first} pages read once, {stream} in streams, {budget} over budget, {rule} by rule, {full} without a place");
    }
    let (all, memory, limit) = (size(status.dirty_bytes), size(status.memory.dirty_pages * 4096), size(status.dirty_limit_bytes));
    say!("  dirty     {all} in all; in memory {memory} of {limit} allowed; {} times a writer had to wait", status.throttled);
    say!("  files     {} of {} known", status.files, status.files_max);
    for process in status.processes.iter().filter(|process| !process.alive) {
        say!("  dead      process {} (process slot {}): what it left is being put in order", process.pid, process.slot);
    }
}

/// Formats the percentiles p50, p99 and p99.9 of a latency histogram.
pub fn percentiles(latency: &Latency) -> [String; 3] {
    let shown = |us: f64| if latency.count == 0 { "-".to_owned() } else { time(us) };
    [shown(latency.p50_us), shown(latency.p99_us), shown(latency.p999_us)]
}

/// Formats a time of so many microseconds.
pub fn time(us: f64) -> String {
    match us {
        ..1.0 => format!("{:.0} ns", us * 1000.0),
        ..1000.0 => format!("{us:.1} us"),
        ..1_000_000.0 => format!("{:.1} ms", us / 1000.0),
        _ => format!("{:.1} s", us / 1_000_000.0),
    }
}
