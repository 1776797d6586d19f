//! How long recovery takes and how long readers are unsure; how well write-back merges. Figures are printed, bounds are counts.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::time::Instant;

use shm::{PageSize, Region};

use crate::shared::SharedMap;
use crate::summary::{ENTRIES, Entry, EntryKind, PreviousSegment, SummaryHeader};
use crate::*;

/// O_DIRECT of x86-64 and others with generic flags, open(2): else the file is read through the page cache.
const O_DIRECT: i32 = if cfg!(target_arch = "x86_64") { 0o40000 } else { 0 };
const UUID: [u8; 16] = [5; 16];

/// A full cache of one file's random pages, in full batches; of the pages only the checksums are there.
fn make(file: &File, shape: Shape) {
    let write = |at: DevicePage, page: &Page| file.write_all_at(page, at.0 * PAGE_BYTES as u64).expect("room in /tmp");
    let formatted = SsdCache::format(UUID, shape);
    (0..2).for_each(|n| write(DevicePage(n as u64), &formatted[n]));
    file.set_len(shape.device_pages() * PAGE_BYTES as u64).expect("a sparse file");
    let (mut rng, mut page) = (fastrand::Rng::with_seed(1), [0; PAGE_BYTES]);
    let batches = shape.segment_pages.div_ceil(ENTRIES as u32 + 1);
    // The last segment is empty, so that no page is read: how long that takes depends on its size alone.
    for seq in 1..u64::from(shape.segments) {
        for batch in 0..batches {
            let position = batch * (ENTRIES as u32 + 1);
            let count = (ENTRIES as u32).min(shape.segment_pages - position - 1);
            let entries: Vec<Entry> = (0..count)
                .map(|_| {
                    let page = PageIndex(rng.u64(..PAGE_INDEX_END));
                    Entry { key: FileKey(7), page, kind: EntryKind::Clean { checksum: rng.u32(..) } }
                })
                .collect();
            let before = PreviousSegment { batches: if seq == 1 { 0 } else { batches as u16 }, skipped: 0 };
            let durable = if batch + 1 == batches { batch } else { 0 };
            let head = SummaryHeader { uuid: UUID, seq, life: 1, batch, position, durable, before, tail: 1 };
            let at = DevicePage(2 + seq * u64::from(shape.segment_pages) + u64::from(position));
            head.encode(&entries, at, &mut page);
            write(at, &page);
        }
    }
    file.sync_all().expect("synced");
}

/// Reads with so many threads at once.
fn read_all(file: &File, wanted: &[DevicePage], each: &mut dyn FnMut(usize, &Page)) {
    let threads = 16;
    let share = wanted.len().div_ceil(threads).max(1);
    let read: Vec<Vec<Page>> = std::thread::scope(|scope| {
        let read = |part: &[DevicePage]| {
            let mut buffer = vec![0_u8; 2 * PAGE_BYTES];
            let begin = buffer.as_ptr().align_offset(PAGE_BYTES);
            let page = |at: &DevicePage| {
                let page = &mut buffer[begin..begin + PAGE_BYTES];
                file.read_exact_at(page, at.0 * PAGE_BYTES as u64).expect("in the file");
                Page::try_from(&page[..]).expect("a page")
            };
            part.iter().map(page).collect()
        };
        let parts: Vec<_> = wanted.chunks(share).map(|part| scope.spawn(move || read(part))).collect();
        parts.into_iter().map(|part| part.join().expect("read")).collect()
    });
    read.iter().flatten().enumerate().for_each(|(n, page)| each(n, page));
}

/// The CPU time of this thread (proc(5), schedstat).
fn on_cpu() -> std::time::Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    std::time::Duration::from_nanos(text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0))
}

#[test]
fn how_long_recovery_takes() {
    let full = std::env::var("FULL").is_ok_and(|full| full == "1");
    let shape = Shape { segment_pages: 512, segments: if full { 2049 } else { 65 } };
    let path = std::env::temp_dir().join(format!("hotshelf-recovery-{}", std::process::id()));
    let mut options = File::options();
    options.read(true).write(true);
    make(&options.create_new(true).open(&path).expect("a new file"), shape);
    let (file, how) = match options.create_new(false).custom_flags(O_DIRECT).open(&path) {
        Ok(file) => (file, "O_DIRECT"),
        Err(_) => (options.custom_flags(0).open(&path).expect("the file"), "through the page cache"),
    };
    std::fs::remove_file(&path).expect("ours");
    let region = Arc::new(Region::private(shared_bytes(shape), PageSize::Small).expect("memory"));
    format_shared(&region, 0, shape);
    let (begin, cpu) = (Instant::now(), on_cpu());
    let mut reading = std::time::Duration::ZERO;
    let opened = recover(shape.device_pages(), Some(UUID), 1024, Some((&region, 0)), &[], |wanted, each| {
        let begin = Instant::now();
        let mut pages = Vec::with_capacity(wanted.len());
        read_all(&file, wanted, &mut |_, page| pages.push(*page));
        reading += begin.elapsed();
        pages.iter().enumerate().for_each(|(n, page)| each(n, page));
    });
    let (cache, found) = opened.expect("an image that we made");
    let (took, cpu) = (begin.elapsed(), on_cpu() - cpu);
    let live = cache.len().0;
    let per_million = took.as_secs_f64() / live as f64 * 1e6;
    println!("{live} pages recovered in {took:?}, {per_million:.3} s a million");
    println!("{reading:?} of it reading {} pages ({how}), {cpu:?} CPU time of its thread", found.reads);
    let to = SharedMap::private(shape).expect("memory");
    let times: Vec<_> = (0..5)
        .map(|_| {
            let begin = Instant::now();
            cache.shared.publish(&to).expect("the same shape");
            begin.elapsed()
        })
        .collect();
    println!("the exchange of {} bytes: first {:?}, then {:?}", shared_bytes(shape), times[0], times[4]);
    let slots = u64::from(shape.slots() - shape.segment_pages);
    assert!(live * 100 >= slots * 97 && found.damaged == 0, "{live} of {slots}: {found:?}");
    assert!(found.reads <= 2 * u64::from(shape.segments) + slots / 127 * 2 + 1024, "{}", found.reads);
}

/// Random writes over a tenth of a file, in write-back mode; written back a sweep at a time while more than three tenths of the
/// slots are dirty.
#[test]
fn write_back_of_random_writes_takes_half_as_many_writes() {
    let shape = Shape { segment_pages: 512, segments: 64 };
    let formatted = SsdCache::format(UUID, shape);
    let opened = recover(shape.device_pages(), None, 8, None, &[], |wanted, each| {
        for (n, at) in wanted.iter().enumerate() {
            each(n, formatted.get(at.0 as usize).unwrap_or(&[0; PAGE_BYTES]));
        }
    });
    let (mut cache, _) = opened.expect("fresh");
    cache.superblock(&mut [0; PAGE_BYTES]);
    cache.superblock_written();
    let (mut rng, mut items, bytes) = (fastrand::Rng::with_seed(3), Vec::new(), [1; PAGE_BYTES]);
    let flush = |cache: &mut SsdCache| {
        if let Some(sealed) = cache.seal(&mut [0; PAGE_BYTES]) {
            cache.ended(sealed.stamp, true);
        }
        cache.flush_ended(cache.flush_begins(), true);
    };
    // The file has four times the pages of the cache, so that a tenth of it is 13,000 pages.
    let (tenth, limit) = (u64::from(shape.slots()) * 4 / 10, u64::from(shape.slots()) * 3 / 10);
    let (mut pages, mut writes, mut after) = (0, 0, (FileKey(0), PageIndex(0)));
    for _ in 0..60_000 {
        let page = PageIndex(rng.u64(..tenth));
        while let Err(refused) = cache.put(FileKey(1), page, PageVersion::Dirty, &bytes) {
            flush(&mut cache);
            if refused != CacheError::Reclaim {
                continue;
            }
            while cache.reclaim() == Err(CacheError::Dirty) {
                cache.collect_dirty(CollectScope::Oldest(1), usize::MAX, &mut items);
                assert!(!items.is_empty());
                (pages, writes) = (pages + items.len(), writes + runs(&items).count());
                items.iter().for_each(|item| assert!(cache.written_back(item)));
            }
        }
        if cache.len().1 > limit {
            flush(&mut cache);
            cache.collect_sweep(after, 4096, &mut items);
            let Some(last) = items.last() else { continue };
            after = (last.key, last.page);
            (pages, writes) = (pages + items.len(), writes + runs(&items).count());
            items.iter().for_each(|item| assert!(cache.written_back(item)));
        }
    }
    println!("{pages} dirty pages written back in {writes} writes: {:.3} of them", writes as f64 / pages as f64);
    assert!(writes * 2 <= pages, "{writes} of {pages}");
}

/// Hits of the SSD's tier alone on a trace of single pages: put after admission, the hot put again.
fn hits(trace: &[u64], shape: Shape, limits: AdmissionLimits) -> (u64, CacheStats) {
    let formatted = SsdCache::format(UUID, shape);
    let opened = recover(shape.device_pages(), None, 8, None, &[], |wanted, each| {
        for (n, at) in wanted.iter().enumerate() {
            each(n, formatted.get(at.0 as usize).unwrap_or(&[0; PAGE_BYTES]));
        }
    });
    let (mut cache, _) = opened.expect("fresh");
    let mut superblock = [0; PAGE_BYTES];
    cache.superblock(&mut superblock);
    cache.superblock_written();
    let (mut admission, mut hot, bytes, mut hits) = (Admission::new(limits, block::Time(0)), Vec::new(), [1; PAGE_BYTES], 0);
    let resolve = |cache: &mut SsdCache, refused| match refused {
        CacheError::Superblock => {
            cache.superblock(&mut [0; PAGE_BYTES]);
            cache.superblock_written();
        }
        CacheError::Seal | CacheError::Flush => {
            if let Some(sealed) = cache.seal(&mut [0; PAGE_BYTES]) {
                cache.ended(sealed.stamp, true);
            }
            cache.flush_ended(cache.flush_begins(), true);
        }
        other => panic!("{other}"),
    };
    for page in trace.iter().map(|page| PageIndex(*page)) {
        if let LookupResult::Hit(item) | LookupResult::Pending(item) = cache.lookup(FileKey(1), page) {
            cache.touch(&item);
            hits += 1;
            continue;
        }
        let has_room = cache.has_room();
        if admission.admit(block::Time(0), FileKey(1), page, 0, AdmissionRule::Normal, has_room) != AdmissionVerdict::Admit {
            continue;
        }
        while let Err(refused) = cache.put(FileKey(1), page, PageVersion::Clean, &bytes) {
            resolve(&mut cache, refused);
        }
        // Early, while the head has room for the hot pages to be written again.
        if cache.is_full() {
            cache.collect_hot(usize::MAX, &mut hot);
            for item in &hot {
                while let Err(refused @ (CacheError::Seal | CacheError::Flush)) = cache.reinsert(item, &bytes) {
                    resolve(&mut cache, refused);
                }
            }
            while let Err(refused) = cache.reclaim() {
                resolve(&mut cache, refused);
            }
        }
    }
    (hits, cache.stats())
}

/// Pages by number: one a line, or (CSV) version, time, operation, bytes, block of 512 bytes.
fn pages_of(text: &str) -> Vec<u64> {
    let pages = |line: &str| {
        let numbers: Vec<u64> = line.split(',').filter_map(|word| word.trim().parse().ok()).collect();
        match numbers[..] {
            [page] => page..page + 1,
            [.., bytes, block] => block / 8..(block * 512 + bytes).div_ceil(4096),
            [] => 0..0,
        }
    };
    text.lines().flat_map(pages).collect()
}

/// Traces ($HOTSHELF_TRACES) and the figures of S3-FIFO come with the project's reference data.
#[test]
fn miss_ratios_beside_s3_fifo() {
    let given = std::env::var_os("HOTSHELF_TRACES").map(std::path::PathBuf::from);
    let dir = given.unwrap_or_else(|| std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/traces"));
    let full = std::env::var("FULL").is_ok_and(|full| full == "1");
    let traces = [
        ("multi2.trace", 568, 0.4904),
        ("2_pools.trace", 993, 0.4567),
        ("sprite.trace", 707, 0.1404),
        ("cloudPhysicsIO.csv", 26_921, 0.8192),
    ];
    for (name, pages, s3_fifo) in &traces[..if full { 4 } else { 1 }] {
        let unpacked = std::process::Command::new("gzip").arg("-dc").arg(dir.join(format!("{name}.gz"))).output();
        let Some(unpacked) = unpacked.ok().filter(|unpacked| unpacked.status.success()) else {
            println!("SKIP: {name}: no trace in ../shared/traces, or no gzip");
            continue;
        };
        let trace = pages_of(&String::from_utf8_lossy(&unpacked.stdout));
        let segment_pages = 16.max(pages / 64);
        let shape = Shape { segment_pages, segments: pages / segment_pages };
        let (slots, usual) = (shape.slots(), AdmissionLimits::new(shape.slots()).ghosts);
        println!("{name}: {} requests, {slots} slots, S3-FIFO misses {s3_fifo:.4}", trace.len());
        let mut at_first_touch = u64::MAX;
        for (how, ghosts) in [("first touch", 0), ("second touch", usual), ("second touch, as many ghosts as slots", slots)] {
            let (hits, stats) = hits(&trace, shape, AdmissionLimits { ghosts, ..AdmissionLimits::new(slots) });
            let miss = 1.0 - hits as f64 / trace.len() as f64;
            println!("  {how}: misses {miss:.4}, {} put, amplification {:.2}", stats.put, stats.write_amplification());
            // Admission at the second touch writes few pages, and most of them again: the total of written pages counts.
            let written = stats.put + stats.reinserted + stats.summaries;
            assert!(hits > 0 && written <= at_first_touch, "{written} of {at_first_touch} pages written: {stats:?}");
            if ghosts == 0 {
                at_first_touch = written;
            }
        }
    }
}
