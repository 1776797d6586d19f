//! The status of mounts as Prometheus reads it (text exposition format 0.0.4), as `cache::prometheus` has it of caches.

use std::fmt::Write;

use hybridfs::report::{Status, TierStatus};

/// Returns the metrics of these mounts. Each metric is named once, whatever the number of mounts.
pub fn text(mounts: &[Status]) -> String {
    let mut text = String::new();
    let mut metric = |kind: &str, name: &str, help: &str, samples: &dyn Fn(&Status) -> Vec<(&'static str, f64)>| {
        if mounts.is_empty() {
            return;
        }
        let _ = writeln!(text, "# HELP hotshelf_mount_{name} {help}\n# TYPE hotshelf_mount_{name} {kind}");
        for status in mounts {
            for (labels, value) in samples(status) {
                let _ = writeln!(text, "hotshelf_mount_{name}{{mount=\"{}\"{labels}}} {value}", escape(&status.mountpoint));
            }
        }
    };
    let one = |value: f64| vec![("", value)];
    let sides = |status: &Status, value: &dyn Fn(&TierStatus) -> f64| {
        vec![(",tier=\"ssd\"", value(&status.ssd)), (",tier=\"hdd\"", value(&status.hdd))]
    };
    metric("gauge", "uptime_seconds", "Since the mount.", &|status| one(status.uptime_s as f64));
    metric("gauge", "capacity_bytes", "Size of the file system of a side.", &|status| sides(status, &|side| side.capacity_bytes as f64));
    metric("gauge", "used_bytes", "In use on the file system of a side.", &|status| sides(status, &|side| side.used_bytes as f64));
    metric("gauge", "free_bytes", "Free on the file system of a side.", &|status| sides(status, &|side| side.free_bytes as f64));
    metric("gauge", "degraded", "Whether a side is read-only or answers errors.", &|status| {
        sides(status, &|side| f64::from(u8::from(side.degraded.is_some())))
    });
    metric("gauge", "ssd_files", "Regular files on the SSD.", &|status| {
        status.ssd.files.map(|files| ("", files as f64)).into_iter().collect()
    });
    metric("gauge", "high_bytes", "Use of the SSD above which demotion starts.", &|status| one(status.high_bytes as f64));
    metric("gauge", "low_bytes", "Use of the SSD below which demotion stops.", &|status| one(status.low_bytes as f64));
    metric("gauge", "reserve_bytes", "Space of the SSD in reserve.", &|status| one(status.reserve_bytes as f64));
    metric("counter", "opens_total", "Opens of regular files, by the side where they were.", &|status| {
        vec![(",tier=\"ssd\"", status.hits as f64), (",tier=\"hdd\"", status.misses as f64)]
    });
    metric("counter", "moves_total", "Moves that finished, by their target.", &|status| {
        vec![(",to=\"ssd\"", status.promotions as f64), (",to=\"hdd\"", status.demotions as f64)]
    });
    metric("counter", "moved_bytes_total", "Bytes moved, both ways.", &|status| one(status.moved_bytes as f64));
    metric("counter", "moves_dropped_total", "Moves given up because the file was in use.", &|status| one(status.moves_dropped as f64));
    metric("counter", "moves_failed_total", "Moves that failed with an error.", &|status| one(status.moves_failed as f64));
    metric("gauge", "moves_waiting", "Moves that wait.", &|status| one(status.queue as f64));
    metric("gauge", "moves_running", "Moves that run now.", &|status| one(status.running.len() as f64));
    metric("gauge", "open_files", "Files that are open.", &|status| one(status.open_files as f64));
    metric("gauge", "conflicts", "Paths that are on both sides.", &|status| one(status.conflicts.len() as f64));
    metric("gauge", "warnings", "Number of warnings that status shows.", &|status| one(status.warnings.len() as f64));
    text
}

/// Escapes the value of a label.
pub fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn every_metric_is_named_once_and_names_are_escaped() {
        let status = |mountpoint: &str, hits| Box::new(Status { mountpoint: mountpoint.into(), hits, ..Status::default() });
        let text = text(&[*status("/pool", 7), *status("/odd \"name\"\n", 9)]);
        assert!(text.contains("hotshelf_mount_opens_total{mount=\"/pool\",tier=\"ssd\"} 7\n"), "{text}");
        assert!(text.contains("hotshelf_mount_opens_total{mount=\"/odd \\\"name\\\"\\n\",tier=\"ssd\"} 9\n"), "{text}");
        let types: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE ")).collect();
        let mut once = types.clone();
        once.dedup();
        assert_eq!(types, once);
        assert!(types.iter().all(|line| line.ends_with(" counter") == line.contains("_total ")), "{types:?}");
        assert_eq!(super::text(&[]), "");
    }
}
