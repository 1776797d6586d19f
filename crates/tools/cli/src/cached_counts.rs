//! What a cached mount has read and written, for people and for Prometheus.

use std::fmt::Write;

use mount::cached::{MountCounts, SideStatus, TierReads};

use crate::cache::{size, time};
use crate::prometheus::escape;
use crate::show::span;

/// What is known of one cached mount.
pub struct MountMetrics {
    /// The directory where it is mounted.
    pub mountpoint: String,
    /// Its reads and writes, while its daemon runs.
    pub counts: Option<MountCounts>,
    /// Its slow side, if it has a deadline.
    pub side: Option<SideStatus>,
}

fn name_of(tier: &TierReads) -> &'static str {
    match tier.name {
        "ram" => "memory",
        "ssd" => "SSD",
        _ => "slow side",
    }
}

/// Returns what the status says of the reads and writes of a mount.
pub fn lines(counts: &MountCounts, side: Option<&SideStatus>) -> Vec<String> {
    let each = |what: &dyn Fn(&TierReads) -> String| {
        let tiers = counts.tiers.iter().map(|tier| format!("{} {}", name_of(tier), what(tier)));
        tiers.collect::<Vec<_>>().join(", ")
    };
    let pages = each(&|tier| {
        let unit = if tier.name == "ram" { " pages" } else { "" };
        format!("{}{unit} ({:.1} %)", tier.pages, tier.ratio * 100.0)
    });
    let latency = each(&|tier| match tier.read_latency {
        latency if latency.count == 0 => "-".to_owned(),
        latency => format!("{} / {}", time(latency.p50_us), time(latency.p99_us)),
    });
    let (saved, read, written) = (size(counts.saved_bytes), size(counts.below_read_bytes), size(counts.below_written_bytes));
    let leads =
        if counts.is_leader && counts.has_others { " (the daemon leads: it writes back for all programs of the cache)" } else { "" };
    let age = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs().saturating_sub(counts.since_s);
    let mut lines = vec![
        format!("reads     {pages}"),
        format!("latency   {latency} (median / 99 %)"),
        format!("saved     {saved}; read from the slow side {read}, written to it {written}{leads}"),
    ];
    if let Some(side) = side {
        lines.push(format!("failures  {} timed out, {} failed", side.timed_out_total, side.failed_total));
    }
    let note = "reads that the kernel answers from its page cache are not among them";
    lines.push(format!("counted   since the daemon began {} ago; {note}", span(age)));
    lines
}

/// Labels beside the mount, what comes behind the name, and the value.
type Sample = (String, &'static str, f64);

/// Returns the metrics of these mounts. Each metric is named once, whatever the number of mounts.
pub fn prometheus_text(mounts: &[MountMetrics]) -> String {
    let mut text = String::new();
    let mut metric = |kind: &str, name: &str, help: &str, samples: &dyn Fn(&MountMetrics) -> Vec<Sample>| {
        let all: Vec<_> = mounts.iter().flat_map(|mount| samples(mount).into_iter().map(|sample| (&mount.mountpoint, sample))).collect();
        if all.is_empty() {
            return;
        }
        let _ = writeln!(text, "# HELP hotshelf_mount_{name} {help}\n# TYPE hotshelf_mount_{name} {kind}");
        for (mountpoint, (labels, suffix, value)) in all {
            let _ = writeln!(text, "hotshelf_mount_{name}{suffix}{{mount=\"{}\"{labels}}} {value}", escape(mountpoint));
        }
    };
    let counted = |value: fn(&MountCounts) -> f64| {
        move |mount: &MountMetrics| mount.counts.iter().map(|counts| (String::new(), "", value(counts))).collect::<Vec<Sample>>()
    };
    let of_side = |value: fn(&SideStatus) -> f64| {
        move |mount: &MountMetrics| mount.side.iter().map(|side| (String::new(), "", value(side))).collect::<Vec<Sample>>()
    };
    metric("counter", "read_pages_total", "Pages that the daemon read, by the tier that had them.", &|mount| {
        let tiers = mount.counts.iter().flat_map(|counts| &counts.tiers);
        tiers.map(|tier| (format!(",tier=\"{}\"", tier.name), "", tier.pages as f64)).collect()
    });
    metric("summary", "read_latency_seconds", "How long reads took by tier, since the daemon began.", &|mount| {
        mount.counts.iter().flat_map(|counts| &counts.tiers).flat_map(latencies).collect()
    });
    let saved = counted(|counts| counts.saved_bytes as f64);
    metric("gauge", "saved_bytes", "Read without the slow side since the daemon began, less what was read ahead from it.", &saved);
    let (read, written) = (counted(|counts| counts.below_read_bytes as f64), counted(|counts| counts.below_written_bytes as f64));
    metric("counter", "below_read_bytes_total", "Bytes read from the slow side.", &read);
    metric("counter", "below_written_bytes_total", "Bytes that the daemon wrote to the slow side.", &written);
    let is_there = of_side(|side| f64::from(u8::from(side.away_since.is_none())));
    metric("gauge", "below_up", "Whether the slow side replies.", &is_there);
    metric("counter", "timed_out_total", "Requests that the slow side held too long.", &of_side(|side| side.timed_out_total as f64));
    metric("counter", "failed_total", "Requests that failed as on a broken disk or server.", &of_side(|side| side.failed_total as f64));
    text
}

fn latencies(tier: &TierReads) -> Vec<Sample> {
    let latency = &tier.read_latency;
    let quantile = |(quantile, us): (&str, f64)| (format!(",tier=\"{}\",quantile=\"{quantile}\"", tier.name), "", us / 1e6);
    let shown = [("0.5", latency.p50_us), ("0.9", latency.p90_us), ("0.99", latency.p99_us), ("0.999", latency.p999_us)];
    let quantiles = shown.into_iter().filter(|_| latency.count > 0).map(quantile);
    quantiles.chain([(format!(",tier=\"{}\"", tier.name), "_count", latency.count as f64)]).collect()
}

#[cfg(test)]
mod test {
    use cachedfs::Latency;

    use super::*;

    fn example(mountpoint: &str, pages: [u64; 3]) -> MountMetrics {
        let all = pages.iter().sum::<u64>().max(1) as f64;
        let read_latency = Latency { p50_us: 1.0, p99_us: 2500.0, count: 7, ..Latency::default() };
        let tier = |(name, pages)| TierReads { name, pages, ratio: pages as f64 / all, read_latency };
        let tiers = ["ram", "ssd", "below"].into_iter().zip(pages).map(tier).collect();
        let counts = MountCounts { tiers, saved_bytes: 4096, below_read_bytes: 8192, ..MountCounts::default() };
        let side = SideStatus { timed_out_total: 3, failed_total: 1, ..SideStatus::default() };
        MountMetrics { mountpoint: mountpoint.into(), counts: Some(counts), side: Some(side) }
    }

    #[test]
    fn the_status_says_where_reads_were_answered_and_what_is_not_counted() {
        let MountMetrics { counts, side, .. } = example("/m", [6, 3, 1]);
        let mut counts = counts.expect("counted");
        let shown = lines(&counts, side.as_ref());
        assert_eq!(shown[0], "reads     memory 6 pages (60.0 %), SSD 3 (30.0 %), slow side 1 (10.0 %)");
        assert_eq!(shown[1], "latency   memory 1.0 us / 2.5 ms, SSD 1.0 us / 2.5 ms, slow side 1.0 us / 2.5 ms (median / 99 %)");
        assert_eq!(shown[2], "saved     4.00 KiB; read from the slow side 8.00 KiB, written to it 0 B");
        assert_eq!(shown[3], "failures  3 timed out, 1 failed");
        assert!(shown[4].contains("page cache"));
        // Without a deadline, and before the first read.
        counts.tiers.iter_mut().for_each(|tier| tier.read_latency = Latency::default());
        (counts.is_leader, counts.has_others) = (true, true);
        let shown = lines(&counts, None);
        assert_eq!((shown.len(), shown[1].as_str()), (4, "latency   memory -, SSD -, slow side - (median / 99 %)"));
        assert!(shown[2].contains("writes back for all programs"));
    }

    #[test]
    fn metrics_have_their_help_and_type_once_and_labels_are_escaped() {
        let text = prometheus_text(&[example("/a", [6, 3, 1]), example("/odd \"name\"\n", [0, 0, 9])]);
        for line in [
            "# HELP hotshelf_mount_read_pages_total Pages that the daemon read, by the tier that had them.",
            "# TYPE hotshelf_mount_read_pages_total counter",
            "hotshelf_mount_read_pages_total{mount=\"/a\",tier=\"ssd\"} 3",
            "hotshelf_mount_read_pages_total{mount=\"/odd \\\"name\\\"\\n\",tier=\"below\"} 9",
            "hotshelf_mount_read_latency_seconds{mount=\"/a\",tier=\"ram\",quantile=\"0.99\"} 0.0025",
            "hotshelf_mount_read_latency_seconds_count{mount=\"/a\",tier=\"ram\"} 7",
            "hotshelf_mount_saved_bytes{mount=\"/a\"} 4096",
            "hotshelf_mount_below_up{mount=\"/a\"} 1",
            "hotshelf_mount_timed_out_total{mount=\"/a\"} 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
        let types: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE ")).collect();
        assert!(types.iter().enumerate().all(|(n, line)| !types[..n].contains(line)), "{types:?}");
        assert!(types.iter().all(|line| line.ends_with(" counter") == line.contains("_total ")), "{types:?}");
        // A mount whose daemon is gone, without a deadline.
        let gone = MountMetrics { mountpoint: "/m".into(), counts: None, side: None };
        assert_eq!((prometheus_text(&[gone]), prometheus_text(&[])), (String::new(), String::new()));
    }
}
