//! The status as Prometheus reads it (text exposition format 0.0.4).
//!
//! By hand and not by a crate: clients keep live metrics that a program changes, while here a snapshot, which is there already, is
//! written once; what is left is a name, a help line and a number.

use std::fmt::Write;

use cachedfs::{Latency, Mode, Status, mode_name};

use super::report::Report;
use crate::prometheus::escape;

const MODES: [Mode; 5] = [Mode::WriteBack, Mode::WriteThrough, Mode::WriteAround, Mode::ReadOnly, Mode::PassThrough];

/// All of them in one text: each metric is named once, whatever the number of caches.
pub fn text(reports: &[Report]) -> String {
    let mut page = Page { reports, text: String::new() };
    page.state();
    page.tiers();
    page.memory();
    page.ssd();
    page.worker();
    page.text
}

struct Page<'a> {
    reports: &'a [Report],
    text: String,
}

/// Labels beside the cache's name, and the value.
type Sample = (Vec<(&'static str, String)>, f64);

impl Page<'_> {
    fn metric(&mut self, kind: &str, name: &str, help: &str, samples: impl Fn(&Report) -> Vec<Sample>) {
        let all: Vec<(&str, Sample)> = self
            .reports
            .iter()
            .flat_map(|report| samples(report).into_iter().map(|sample| (report.status.name.as_str(), sample)))
            .collect();
        if all.is_empty() {
            return;
        }
        let _ = writeln!(self.text, "# HELP hotshelf_{name} {help}\n# TYPE hotshelf_{name} {kind}");
        for (cache, (labels, value)) in all {
            // A summary's count has a separate name.
            let (labels, suffix) = match labels.split_last() {
                Some((("suffix", suffix), rest)) => (rest, suffix.as_str()),
                _ => (labels.as_slice(), ""),
            };
            let more: String = labels.iter().map(|(label, value)| format!(",{label}=\"{}\"", escape(value))).collect();
            let _ = writeln!(self.text, "hotshelf_{name}{suffix}{{cache=\"{}\"{more}}} {value}", escape(cache));
        }
    }

    /// One number a cache, of those in use.
    fn one(&mut self, kind: &str, name: &str, help: &str, value: impl Fn(&Status) -> Option<f64>) {
        self.metric(kind, name, help, |report| {
            value(&report.status).filter(|_| report.in_use).map(|value| (Vec::new(), value)).into_iter().collect()
        });
    }

    fn state(&mut self) {
        self.metric("gauge", "up", "Whether some process takes part in the cache.", |report| {
            vec![(Vec::new(), f64::from(u8::from(report.in_use)))]
        });
        self.metric("gauge", "mode", "1 for the mode in force.", |report| {
            let on = |mode: &Mode| f64::from(u8::from(*mode == report.status.mode));
            MODES.iter().map(|mode| (vec![("mode", mode_name(*mode).to_owned())], on(mode))).collect()
        });
        self.one("gauge", "mode_forced", "Whether the cache changed its mode itself.", |status| {
            Some(f64::from(u8::from(status.mode_because.is_some())))
        });
        self.one("gauge", "uptime_seconds", "Since the memory was made.", |status| Some(status.uptime_s as f64));
        self.one("gauge", "processes", "Processes that take part.", |status| {
            Some(status.processes.iter().filter(|process| process.alive).count() as f64)
        });
        self.one("gauge", "leader_pid", "The process that does the cache's work.", |status| status.leader_pid.map(f64::from));
        self.one("counter", "leaders_total", "Leaders so far.", |status| Some(f64::from(status.leaders)));
        self.one("gauge", "files", "Files that are known.", |status| Some(f64::from(status.files)));
        self.one("gauge", "files_max", "Files that can be known.", |status| Some(f64::from(status.files_max)));
    }

    fn per_tier(&mut self, kind: &str, name: &str, help: &str, value: impl Fn(&cachedfs::Tier) -> Vec<Sample>) {
        self.metric(kind, name, help, |report| {
            let named = |tier: &cachedfs::Tier| {
                let with = |(labels, number): Sample| ([vec![("tier", tier.name.clone())], labels].concat(), number);
                value(tier).into_iter().map(with).collect::<Vec<_>>()
            };
            report.status.tiers.iter().flat_map(named).collect()
        });
    }

    fn tiers(&mut self) {
        self.per_tier("counter", "tier_hits_total", "Pages that were read from the tier.", |tier| vec![(Vec::new(), tier.hits as f64)]);
        self.per_tier("gauge", "tier_hit_ratio", "Of all pages read, the share that the tier served.", |tier| {
            vec![(Vec::new(), tier.ratio)]
        });
        self.per_tier("counter", "tier_requests_total", "Calls to the tier.", |tier| vec![(Vec::new(), tier.requests as f64)]);
        self.per_tier("counter", "tier_bytes_total", "Bytes read from and written to the tier.", |tier| {
            let direction = |name: &str| vec![("direction", name.to_owned())];
            vec![(direction("read"), tier.read_bytes as f64), (direction("write"), tier.written_bytes as f64)]
        });
        self.per_tier("counter", "tier_errors_total", "Calls to the tier that failed.", |tier| vec![(Vec::new(), tier.errors as f64)]);
        self.per_tier("summary", "tier_latency_seconds", "How long the tier took, since the memory was made.", |tier| {
            [quantiles("read", &tier.read_latency), quantiles("write", &tier.write_latency)].concat()
        });
    }

    fn memory(&mut self) {
        let page = 4096.0;
        self.one("gauge", "memory_bytes", "Memory for pages.", |status| Some(status.memory.bytes as f64));
        self.one("gauge", "memory_free_bytes", "Of it, empty.", |status| Some(status.memory.free_pages as f64 * page));
        self.one("gauge", "memory_dirty_bytes", "Dirty part of it, newer than the backing files.", |status| {
            Some(status.memory.dirty_pages as f64 * page)
        });
        self.one("gauge", "memory_pinned_bytes", "Of it, pinned.", |status| Some(status.memory.pinned_pages as f64 * page));
        self.one("gauge", "segment_bytes", "Shared memory including metadata.", |status| Some(status.memory.segment_bytes as f64));
        self.one("gauge", "dirty_bytes", "Newer here than in the backing files.", |status| Some(status.dirty_bytes as f64));
        self.one("gauge", "dirty_limit_bytes", "At which writers wait.", |status| Some(status.dirty_limit_bytes as f64));
    }

    fn on_ssd(&mut self, kind: &str, name: &str, help: &str, value: impl Fn(&cachedfs::Ssd) -> Option<f64>) {
        self.metric(kind, name, help, |report| {
            report.status.ssd.as_ref().and_then(&value).map(|value| (Vec::new(), value)).into_iter().collect()
        });
    }

    fn ssd(&mut self) {
        let page = 4096.0;
        self.on_ssd("gauge", "ssd_up", "Whether the SSD is in order.", |ssd| Some(f64::from(u8::from(ssd.failed.is_none()))));
        self.on_ssd("gauge", "ssd_bytes", "Room for pages on the SSD.", |ssd| Some(ssd.bytes as f64));
        self.on_ssd("gauge", "ssd_used_bytes", "Pages that are cached on the SSD.", |ssd| Some(ssd.pages as f64 * page));
        self.on_ssd("gauge", "ssd_dirty_bytes", "Dirty pages among them, newer than the backing files.", |ssd| {
            Some(ssd.dirty_pages as f64 * page)
        });
        self.on_ssd("gauge", "ssd_books_bytes", "Memory for the metadata of the SSD.", |ssd| Some(ssd.books_bytes as f64));
        self.on_ssd("counter", "ssd_put_bytes_total", "Pages that were put on the SSD.", |ssd| Some(ssd.user_bytes as f64));
        self.on_ssd("counter", "ssd_written_bytes_total", "All that was written to the SSD.", |ssd| Some(ssd.written_bytes as f64));
        self.on_ssd("counter", "ssd_written_ever_bytes_total", "The same, since it was formatted.", |ssd| {
            Some(ssd.written_ever_bytes as f64)
        });
        self.on_ssd("gauge", "ssd_written_per_day_bytes", "What is written in a day at the rate so far.", |ssd| {
            Some(ssd.written_per_day_bytes as f64)
        });
        self.on_ssd("gauge", "ssd_budget_bytes", "What may be written in a day.", |ssd| ssd.bytes_per_day.map(|most| most as f64));
        self.on_ssd("gauge", "ssd_write_amplification", "Written by put.", |ssd| (ssd.user_bytes > 0).then_some(ssd.write_amplification));
        self.on_ssd("gauge", "ssd_recovery_seconds", "How long the last recovery took.", |ssd| Some(ssd.recovery_ms as f64 / 1000.0));
        self.on_ssd("gauge", "ssd_recovered_bytes", "What it found again.", |ssd| Some(ssd.recovery_pages as f64 * page));
        self.on_ssd("counter", "ssd_damaged_pages_total", "Not as they were written.", |ssd| Some(ssd.damaged_pages as f64));
        self.on_ssd("counter", "ssd_lost_pages_total", "Dirty pages that were lost.", |ssd| Some(ssd.lost_pages as f64));
    }

    fn worker(&mut self) {
        self.one("counter", "promoted_pages_total", "Put on the SSD because they were read.", |status| Some(status.promoted_pages as f64));
        self.one("counter", "written_back_pages_total", "Dirty pages written below.", |status| Some(status.written_back_pages as f64));
        self.metric("counter", "refused_pages_total", "Not put on the SSD, by reason.", |report| {
            let refused = &report.status.refused;
            let all = [
                ("first-touch", refused.first_touch),
                ("stream", refused.stream),
                ("budget", refused.budget),
                ("rule", refused.rule),
                ("full", refused.full),
            ];
            let shown = all.into_iter().filter(|_| report.in_use && report.status.ssd.is_some());
            shown.map(|(reason, pages)| (vec![("reason", reason.to_owned())], pages as f64)).collect()
        });
        self.one("counter", "below_writes_total", "Writes that this took, after merging.", |status| Some(status.below_writes as f64));
        self.one("counter", "read_ahead_pages_total", "Read ahead.", |status| Some(status.read_ahead_pages as f64));
        let around = |status: &Status| Some(status.read_around_pages as f64);
        self.one("counter", "read_around_pages_total", "Read because they lay around a requested page.", around);
        self.one("counter", "throttled_total", "Writers that had to wait for room.", |status| Some(status.throttled as f64));
        self.one("counter", "syncs_total", "Calls of sync.", |status| Some(status.syncs as f64));
        self.one("gauge", "lost_ranges", "Ranges of files that are lost or cannot be written.", |status| Some(status.lost.len() as f64));
    }
}

fn quantiles(direction: &str, latency: &Latency) -> Vec<Sample> {
    let direction = || ("direction", direction.to_owned());
    let one = |quantile: &str, us: f64| (vec![direction(), ("quantile", quantile.to_owned())], us / 1e6);
    let shown =
        [("0.5", latency.p50_us), ("0.9", latency.p90_us), ("0.99", latency.p99_us), ("0.999", latency.p999_us), ("1", latency.max_us)];
    let quantiles = shown.into_iter().filter(|_| latency.count > 0).map(|(quantile, us)| one(quantile, us));
    quantiles.chain([(vec![direction(), ("suffix", "_count".to_owned())], latency.count as f64)]).collect()
}

#[cfg(test)]
mod test {
    use std::collections::BTreeMap;

    use cachedfs::{Ssd, Tier};

    use super::*;

    fn example(name: &str) -> Report {
        let read_latency = Latency { p50_us: 0.25, p90_us: 1.0, p99_us: 2.5, p999_us: 90.0, max_us: 1000.0, count: 7 };
        let tier = |name: &str| Tier { name: name.into(), hits: 3, ratio: 0.75, read_bytes: 12288, read_latency, ..Tier::default() };
        let status = Status {
            name: name.into(),
            mode: Mode::WriteThrough,
            leader_pid: Some(42),
            tiers: vec![tier("ram"), tier("ssd")],
            ssd: Some(Ssd { bytes: 1 << 30, bytes_per_day: Some(5), ..Ssd::default() }),
            ..Status::default()
        };
        Report { in_use: true, settings: None, status }
    }

    /// A reader as strict as the format: samples by name and labels; types by name.
    fn read(text: &str) -> (BTreeMap<String, f64>, BTreeMap<String, String>) {
        let (mut samples, mut types) = (BTreeMap::new(), BTreeMap::new());
        let mut last = String::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                last = rest.split_once(' ').expect("a help").0.to_owned();
                continue;
            }
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a type");
                assert_eq!(name, last, "a type without its help");
                assert!(["counter", "gauge", "summary"].contains(&kind), "{line}");
                assert!(types.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} comes twice");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
                continue;
            }
            let (series, value) = line.rsplit_once(' ').expect("a value");
            let (name, labels) = series.split_once('{').expect("labels");
            assert!(name == last || name == format!("{last}_count"), "{name} is not of {last}");
            assert!(labels.ends_with("\"}") && labels.starts_with("cache=\""), "{line}");
            let value = value.parse().expect("a number");
            assert!(samples.insert(series.to_owned(), value).is_none(), "{series} comes twice");
        }
        (samples, types)
    }

    #[test]
    fn every_metric_is_reported_once_with_help_and_type_whatever_the_number_of_caches() {
        let (samples, types) = read(&text(&[example("a"), example("b \"quoted\" \\ \n")]));
        assert!(types.len() > 35, "{}", types.len());
        for (series, value) in [
            ("hotshelf_up{cache=\"a\"}", 1.0),
            ("hotshelf_mode{cache=\"a\",mode=\"write-through\"}", 1.0),
            ("hotshelf_mode{cache=\"a\",mode=\"write-back\"}", 0.0),
            ("hotshelf_tier_hits_total{cache=\"a\",tier=\"ssd\"}", 3.0),
            ("hotshelf_tier_bytes_total{cache=\"a\",tier=\"ram\",direction=\"read\"}", 12288.0),
            ("hotshelf_tier_latency_seconds{cache=\"a\",tier=\"ram\",direction=\"read\",quantile=\"0.99\"}", 2.5e-6),
            ("hotshelf_tier_latency_seconds_count{cache=\"a\",tier=\"ram\",direction=\"write\"}", 0.0),
            ("hotshelf_ssd_budget_bytes{cache=\"a\"}", 5.0),
            ("hotshelf_leader_pid{cache=\"b \\\"quoted\\\" \\\\ \\n\"}", 42.0),
        ] {
            assert_eq!(samples.get(series), Some(&value), "{series}");
        }
        assert_eq!(types["hotshelf_tier_latency_seconds"], "summary");
    }

    #[test]
    fn of_a_cache_that_nobody_uses_only_what_its_ssd_holds_is_reported() {
        let resting = Report { in_use: false, status: Status { tiers: Vec::new(), ..example("a").status }, settings: None };
        let (samples, _) = read(&text(&[resting]));
        assert_eq!(samples["hotshelf_up{cache=\"a\"}"], 0.0);
        assert!(samples.contains_key("hotshelf_ssd_bytes{cache=\"a\"}"));
        assert!(!samples.keys().any(|name| name.starts_with("hotshelf_leader") || name.starts_with("hotshelf_tier")));
        assert_eq!(text(&[]), "");
    }
}
