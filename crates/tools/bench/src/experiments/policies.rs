//! Miss ratios of all replacement policies on traces, beside published counts; and of both cache tiers together.

use std::path::PathBuf;

use pagecache::Replacement;
use pagecache::Shape;
use ssdcache::AdmissionLimits;

use crate::experiment::{Context, Experiment, RunScale};
use crate::outcome::{Outcome, Plot, Series};
use crate::replay::{
    Cache, CacheSize, Files, Reference, Shared, SsdIndex, TierHits, TierReader, TieredCache, Trace, misses, reference, synthetic,
};
use crate::row::Row;

const NAME: &str = "policies";

/// The experiment as `hotshelf bench` lists it.
pub const EXPERIMENT: Experiment = Experiment {
    name: NAME,
    about: "miss ratios of every policy, and of RAM and SSD together, on traces (--trace) or synthetic ones, beside libCacheSim",
    source: "Yang et al., SOSP 2023; the policies of HyCache, section IV.B",
    paper: "none of the five papers has this figure; libCacheSim's published miss counts replace it",
    peers: "libCacheSim's published counts, for the traces they were made from; a cache of the SSD's size that admits every page",
    devices: "none: the caches' metadata, without I/O",
    needs: &[],
    room_mib: (0, 0),
    takes: (8, 120),
    run,
};

/// The source of [`reference`].
const PEER: &str = "libCacheSim";
/// Minimum number of frames of a shard; smaller caches are not split.
const SHARD_FRAMES_MIN: u32 = 64;
const SPLIT: u32 = 16;
/// Minimum number of pages of an SSD cache.
const SSD_PAGES_MIN: u32 = 24;

fn run(context: &Context) -> anyhow::Result<Outcome> {
    let traces = if context.traces.is_empty() {
        synthetic(context.seed, if context.scale == RunScale::Small { 100_000 } else { 1_000_000 })
    } else {
        context.traces.iter().map(|path: &PathBuf| Trace::read(path)).collect::<Result<_, _>>()?
    };
    let sizes = if context.cache_sizes.is_empty() { default_sizes(context.scale) } else { context.cache_sizes.clone() };
    context.progress.set_length((traces.len() * sizes.len()) as u64);
    let mut outcome = Outcome { notes: notes(), ..Outcome::default() };
    for trace in &traces {
        let mut pages: Vec<u32> = sizes.iter().map(|size| size.of(trace)).collect();
        pages.sort_unstable();
        pages.dedup();
        context.progress.set_message(trace.name.clone());
        context.check_stopped()?;
        let mut lines: Vec<Series> = Vec::new();
        for pages in &pages {
            for (order, ratio) in one_size(trace, *pages, context.seed, &mut outcome.rows)? {
                let share = 100.0 * f64::from(*pages) / trace.distinct as f64;
                match lines.iter_mut().find(|line| line.name == order) {
                    Some(line) => line.points.push((share, ratio)),
                    None => lines.push(Series { name: order, points: vec![(share, ratio)] }),
                }
            }
            context.progress.inc(1);
        }
        for pair in pages.windows(2) {
            both_tiers(trace, pair[0], pair[1], &mut outcome)?;
        }
        outcome.plots.push(plot(trace, lines));
    }
    Ok(outcome)
}

fn default_sizes(scale: RunScale) -> Vec<CacheSize> {
    let percents: &[f64] = if scale == RunScale::Small { &[1.0, 10.0] } else { &[0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0] };
    percents.iter().map(|percent| CacheSize::Percent(*percent)).collect()
}

/// Computes the miss ratio of each policy.
fn one_size(trace: &Trace, pages: u32, seed: u64, rows: &mut Vec<Row>) -> anyhow::Result<Vec<(String, f64)>> {
    let requests = trace.pages.len() as u64;
    let published = reference::of(requests, trace.distinct, pages);
    let mut ratios = Vec::new();
    for (who, order, mut cache) in caches(pages, seed)? {
        let case = format!("{}, {pages} pages, {who}, {order}", trace.name);
        let ratio = misses(&mut *cache, trace) as f64 / requests as f64;
        rows.push(Row::new(NAME, "hotshelf", &case, "miss_ratio", "", vec![ratio]));
        if let Some(theirs) = published.and_then(|one: &Reference| one.misses(order)) {
            rows.push(Row::new(NAME, PEER, &case, "miss_ratio", "", vec![theirs as f64 / requests as f64]));
        }
        ratios.push((format!("{who}, {order}"), ratio));
    }
    Ok(ratios)
}

/// The cache, its policy and the implementation.
type Named = (String, &'static str, Box<dyn Cache>);

fn caches(pages: u32, seed: u64) -> anyhow::Result<Vec<Named>> {
    let mut all: Vec<Named> = Vec::new();
    for (order, replacement) in [("fifo", Replacement::Fifo), ("lru", Replacement::Lru), ("s3-fifo", Replacement::S3Fifo)] {
        let usual = Shape { replacement, ..Shape::new(pages) };
        for shards in [usual.shards, SPLIT] {
            let who = format!("shared page cache, {shards} {}", if shards == 1 { "shard" } else { "shards" });
            if shards != usual.shards && pages / shards < SHARD_FRAMES_MIN || all.iter().any(|(other, by, _)| *other == who && *by == order)
            {
                continue;
            }
            all.push((who, order, Box::new(Shared::new(&Shape { shards, ..usual }, seed)?)));
        }
    }
    for order in ["fifo", "lru", "lfu", "s3-fifo"] {
        all.push(("files".into(), order, Box::new(Files::new(order, pages)?)));
    }
    Ok(all)
}

fn both_tiers(trace: &Trace, ram: u32, ssd: u32, outcome: &mut Outcome) -> anyhow::Result<()> {
    if ssd < SSD_PAGES_MIN {
        outcome.notes.push(format!("{}: an SSD cache has {SSD_PAGES_MIN} pages at least, not {ssd}: no figures of both tiers", trace.name));
        return Ok(());
    }
    let usual = AdmissionLimits::new(ssd);
    for (what, limits) in [("", usual), (", as many ghosts", AdmissionLimits { ghosts: ssd, ..usual })] {
        let case = format!("{}, {ram} pages of RAM, {ssd} of SSD{what}", trace.name);
        outcome.rows.extend(tiers_with(limits, trace, ram, ssd, &case)?);
    }
    for (order, replacement) in [("s3-fifo", Replacement::S3Fifo), ("lru", Replacement::Lru)] {
        let case = format!("{}, {ram} pages of RAM, {ssd} of SSD by {order}, all admitted", trace.name);
        outcome.rows.extend(two_orders(replacement, trace, ram, ssd, &case)?);
    }
    Ok(())
}

/// Computes the upper reference of the SSD tier: a cache of its size that admits every page at once.
fn two_orders(replacement: Replacement, trace: &Trace, ram: u32, ssd: u32, case: &str) -> anyhow::Result<[Row; 3]> {
    let (mut frames, mut below) = (Shared::new(&Shape::new(ram), 1)?, Shared::new(&Shape { replacement, ..Shape::new(ssd) }, 1)?);
    let (mut ram_hits, mut ssd_hits) = (0_u64, 0_u64);
    for page in &trace.pages {
        if frames.access(*page) {
            ram_hits += 1;
        } else if below.access(*page) {
            ssd_hits += 1;
        }
    }
    let share = |count: u64| count as f64 / trace.pages.len().max(1) as f64;
    let figures = [("ram_hit_ratio", ram_hits), ("ssd_hit_ratio", ssd_hits), ("hit_ratio", ram_hits + ssd_hits)];
    Ok(figures.map(|(metric, count)| Row::new(NAME, "reference", case, metric, "", vec![share(count)])))
}

fn tiers_with(limits: AdmissionLimits, trace: &Trace, ram: u32, ssd: u32, case: &str) -> anyhow::Result<[Row; 4]> {
    let frames = Shared::new(&Shape::new(ram), 1)?;
    let mut tiers = TieredCache::new(Some(Box::new(frames)), SsdIndex::new(ssd)?, limits);
    let (mut reader, mut hits) = (TierReader::default(), TierHits::default());
    for page in &trace.pages {
        tiers.read(&mut reader, *page, &mut hits)?;
    }
    let share = |count: u64| count as f64 / hits.requests() as f64;
    let stats = tiers.stats();
    let figures = [
        ("ram_hit_ratio", share(hits.ram)),
        ("ssd_hit_ratio", share(hits.ssd)),
        ("hit_ratio", hits.ratio()),
        ("ssd_writes_a_read", share(stats.put + stats.reinserted + stats.summaries)),
    ];
    Ok(figures.map(|(metric, value)| Row::new(NAME, "hotshelf", case, metric, "", vec![value])))
}

fn notes() -> Vec<String> {
    vec![
        "each cache is the product's own code without I/O; every requested page is admitted".into(),
        format!("{PEER}: Python package libcachesim 0.3.5; fifo and lru must be equal, the others depend on details"),
        format!(
            "files: the orders in which files leave the SSD, with a page for each file; lfu ages, that of {PEER} does not; s3-fifo \
             moves a file up at its first open, and not its second"
        ),
        "RAM and SSD: shared page cache with s3-fifo above the SSD cache, which admits at the first touch while it has room and then at \
         the second, with as many ghosts as its memory allows, and no streams of more than 4 MiB; beside it a cache of the SSD's size by \
         s3-fifo or lru that takes all"
            .into(),
    ]
}

fn plot(trace: &Trace, series: Vec<Series>) -> Plot {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
    Plot {
        name: format!("{NAME}-{}", trace.name.chars().map(plain).collect::<String>()),
        title: format!("{}: {} requests of {} pages", trace.name, trace.pages.len(), trace.distinct),
        x: "cache, % of the pages".into(),
        y: "miss ratio".into(),
        log_x: false,
        series,
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_trace_of_ones_own_gets_its_table() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("mine.trace");
        let lines: String = (0..20_000u32).map(|at| format!("{}\n", at * at % 3000)).collect();
        std::fs::write(&path, lines).expect("written");
        let cache_sizes = vec![CacheSize::Pages(100), CacheSize::Percent(50.0)];
        let context = Context { traces: vec![path], cache_sizes, ..Context::small(".".into()) };
        let outcome = run(&context).expect("it runs");
        let ratio = |who: &str, order: &str| {
            let case = format!("mine, 100 pages, {who}, {order}");
            outcome.rows.iter().find(|row| row.case == case).map(|row| row.median)
        };
        for order in ["fifo", "lru"] {
            assert!(ratio("files", order).is_some());
            assert_eq!(ratio("files", order), ratio("shared page cache, 1 shard", order));
        }
        assert_eq!(outcome.plots.len(), 1);
        assert!(outcome.plots[0].series.iter().all(|line| line.points.len() == 2));
        assert!(outcome.rows.iter().any(|row| row.metric == "ssd_hit_ratio" && row.median > 0.0));
    }
}
