//! Builds the status of an instance from its segment, also for processes that are not attached.

use std::path::{Path, PathBuf};

use std::sync::Arc;

use datapath::engine::{Count, EngineStatus, FileStatus, Layout, Tier as Of, percentile};
use shm::{AttachError, ProcessSlot, ProcessSlots, Region};

use crate::attach::{Attachment, refused};
use crate::config::Config;
use crate::error::Error;
use crate::place::InstancePaths;
use crate::status::{Latency, Lost, Memory, ProcessStatus, RefusedPages, Ssd, Status, Stranded, Tier};

const PAGE: u64 = 4096;
/// Maximum number of ranges of damaged files that a status lists.
const LOST_MAX: usize = 4096;

/// Returns the status of an instance to which this process is attached.
pub fn of(part: &Attachment, config: &Config) -> Status {
    let mut status = match part.engine.status() {
        Ok(status) => describe(&status, &part.running, part.segment_bytes()),
        Err(error) => Status { notes: vec![error.to_string()], ..Status::default() },
    };
    status.segment = part.place.as_ref().map(|place| place.segment.clone());
    since(&mut status);
    if let (Some(to_error), Some(ssd)) = (&mut status.ssd, &part.ssd) {
        to_error.uuid = crate::image::hex(&ssd.uuid);
    }
    status.notes.extend(part.around.notes.lock().iter().cloned());
    status.notes.extend(differences(config, &part.running));
    status
}

/// An instance as a process sees it that is not attached.
pub struct View {
    /// What its segment says of all processes.
    pub status: EngineStatus,
    running: Config,
    segment: PathBuf,
    segment_bytes: u64,
}

/// Looks at an instance to which this process is not attached.
///
/// # Errors
/// The file is not the segment of an instance.
pub fn view(config: &Config) -> Result<Option<View>, Error> {
    if config.private {
        return Ok(None);
    }
    let place = InstancePaths::of(config)?;
    if place.open()?.is_none() {
        return Ok(None);
    }
    let region = match Region::open_file(&place.segment, place.sharing.group) {
        Ok(region) => Arc::new(region),
        Err(AttachError::System(error)) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refused(&place.segment, &error)),
    };
    let layout = Layout::read(&region).map_err(|why| refused(&place.segment, &why))?;
    let running = Config::parse(&Layout::settings(&region)).map_err(|why| refused(&place.segment, &why))?;
    let locks = ProcessSlots::open_lock_file(&place.locks, place.sharing).map_err(|why| refused(&place.locks, &why))?;
    let processes = ProcessSlots::open(Arc::clone(&region), layout.processes_at(), locks).map_err(|why| refused(&place.locks, &why))?;
    let status = EngineStatus::at(&region, &Arc::new(processes)).map_err(|why| refused(&place.segment, &why))?;
    Ok(Some(View { status, running, segment: place.segment, segment_bytes: region.len() as u64 }))
}

/// Returns the status of an instance to which this process is not attached.
///
/// # Errors
/// The file is not the segment of an instance.
pub fn status(config: &Config) -> Result<Option<Status>, Error> {
    let Some(view) = view(config)? else { return Ok(None) };
    let mut status = describe(&view.status, &view.running, view.segment_bytes);
    status.segment = Some(view.segment);
    since(&mut status);
    if let Some(ssd) = &mut status.ssd {
        ssd.uuid = crate::image::uuid_of(&ssd.path).unwrap_or_default();
    }
    Ok(Some(status))
}

/// Returns the age of the instance: that of its segment's name.
fn since(status: &mut Status) {
    let made = status.segment.as_ref().and_then(|path| std::fs::metadata(path).ok()?.created().ok());
    status.uptime_s = made.and_then(|made| made.elapsed().ok()).map_or(0, |age| age.as_secs());
    if let Some(ssd) = status.ssd.as_mut().filter(|_| status.uptime_s > 0) {
        let per_day = u128::from(ssd.written_bytes) * 86_400 / u128::from(status.uptime_s);
        ssd.written_per_day_bytes = per_day.min(u64::MAX.into()) as u64;
    }
}

fn describe(status: &EngineStatus, running: &Config, segment_bytes: u64) -> Status {
    let stats = status.pages().stats();
    let (counters, state) = (status.counters(), status.ssd_state());
    let files = status.files();
    let dirty_pages = u64::from(stats.marked).saturating_add(state.dirty);
    let failed = failure(status);
    Status {
        name: running.name.clone(),
        mode: status.mode(),
        mode_because: failed.clone(),
        processes: processes(status.processes()),
        leader_pid: status.processes().leader(),
        memory: Memory {
            bytes: u64::from(stats.frames) * PAGE,
            pages: stats.frames.into(),
            free_pages: stats.free.into(),
            dirty_pages: stats.marked.into(),
            pinned_pages: status.pages().pinned().into(),
            segment_bytes,
        },
        ssd: running.ssd.as_ref().map(|path| ssd(status, path, running, failed.as_deref())),
        tiers: tiers(status, stats.hits, stats.writes),
        promoted_pages: counters.sum(Count::Promoted),
        written_back_pages: counters.sum(Count::WrittenBack),
        below_writes: counters.sum(Count::BelowWrites),
        throttled: counters.sum(Count::Throttled),
        read_ahead_pages: counters.sum(Count::ReadAhead),
        read_around_pages: counters.sum(Count::ReadAround),
        syncs: counters.sum(Count::Syncs),
        leaders: state.leaders,
        leader_files: state.known,
        refused: RefusedPages {
            first_touch: counters.sum(Count::RefusedFirst),
            stream: counters.sum(Count::RefusedStream),
            budget: counters.sum(Count::RefusedBudget),
            rule: counters.sum(Count::RefusedRule),
            full: counters.sum(Count::RefusedFull),
        },
        files: files.len() as u32,
        files_max: status.sizes().files,
        dirty_bytes: dirty_pages.saturating_mul(PAGE),
        dirty_limit_bytes: u64::from(status.dirty_limit()) * PAGE,
        stranded: files.iter().filter_map(|file| stranded(status, file)).take(LOST_MAX).collect(),
        lost: files.iter().flat_map(|file| troubles(status, file)).take(LOST_MAX).collect(),
        ..Status::default()
    }
}

/// Returns why the SSD is not used any more.
fn failure(status: &EngineStatus) -> Option<String> {
    let state = status.ssd_state();
    let (why, unknown) = (std::io::Error::from_raw_os_error(state.failed? as i32), state.unknown);
    Some(match state {
        _ if status.sizes().ssd.is_none() => format!("the SSD failed: it could not be used when this instance was made ({why})"),
        _ if state.is_unsure => format!("the SSD failed: what is on it is not known, so no file is opened ({why})"),
        _ if unknown > 0 => format!("the SSD failed: {why}; {unknown} pages that only it has are of files that were not open"),
        _ => format!("the SSD failed: {why}"),
    })
}

fn ssd(status: &EngineStatus, path: &Path, running: &Config, failed: Option<&str>) -> Ssd {
    let (counters, state) = (status.counters(), status.ssd_state());
    let Some(shape) = status.sizes().ssd else {
        return Ssd { path: path.to_owned(), failed: failed.map(str::to_owned), drained: running.drained, ..Ssd::default() };
    };
    let (data, written) = (counters.sum(Count::SsdData), counters.sum(Count::SsdWritten));
    Ssd {
        path: path.to_owned(),
        bytes: u64::from(shape.slots()) * PAGE,
        pages: state.live,
        dirty_pages: state.dirty,
        books_bytes: ssdcache::shared_bytes(shape) as u64,
        user_bytes: data,
        written_bytes: written,
        write_amplification: if data == 0 { 0.0 } else { written as f64 / data as f64 },
        bytes_per_day: running.bytes_per_day.map(|size| size.of(u64::from(shape.slots()) * PAGE)),
        segments: shape.segments,
        segment_pages: shape.segment_pages,
        written_ever_bytes: state.written_ever,
        recovery_pages: state.found,
        recovery_ms: state.recovery_ms.into(),
        damaged_pages: counters.sum(Count::Damaged),
        lost_pages: state.lost,
        failed: failed.map(str::to_owned),
        ..Ssd::default()
    }
}

fn processes(processes: &ProcessSlots) -> Vec<ProcessStatus> {
    let (taken, leader) = (processes.taken(), processes.leader());
    let all = (0..ProcessSlots::COUNT as u8).filter(|process| taken >> process & 1 == 1).map(ProcessSlot);
    all.map(|process| {
        let pid = processes.pid(process).unwrap_or(0);
        ProcessStatus { slot: process.0, pid, alive: processes.is_alive(process), leads: leader == Some(pid) }
    })
    .collect()
}

fn tiers(status: &EngineStatus, ram_hits: u64, ram_writes: u64) -> Vec<Tier> {
    let counters = status.counters();
    let sum = |what| counters.sum(what);
    let (ssd_hits, misses) = (sum(Count::SsdHits), sum(Count::Misses));
    let all = (ram_hits as f64 + ssd_hits as f64 + misses as f64).max(1.0);
    let tier = |name: &str, of, hits: u64, read_bytes, written_bytes| Tier {
        name: name.to_owned(),
        hits,
        write_latency: latency(&counters.write_latencies(of)),
        ratio: hits as f64 / all,
        read_bytes,
        written_bytes,
        requests: hits,
        read_latency: latency(&counters.latencies(of)),
        ..Tier::default()
    };
    let ram_written = ram_writes.saturating_add(sum(Count::Writes));
    let mut tiers = vec![tier("ram", Of::Ram, ram_hits, ram_hits.saturating_mul(PAGE), ram_written.saturating_mul(PAGE))];
    if status.sizes().ssd.is_some() {
        let mut ssd = tier("ssd", Of::Ssd, ssd_hits, sum(Count::SsdRead), sum(Count::SsdWritten));
        ssd.errors = sum(Count::Damaged);
        tiers.push(ssd);
    }
    let failures = status.files().iter().map(|file| u64::from(file.failures.0)).sum();
    tiers.push(Tier { errors: failures, ..tier("below", Of::Below, misses, sum(Count::BelowRead), sum(Count::BelowWritten)) });
    tiers
}

/// Returns the percentiles of numbers of calls by their latency.
pub fn latency(buckets: &[u64]) -> Latency {
    let at = |per_mille| percentile(buckets, per_mille).map_or(0.0, |ns| ns as f64 / 1000.0);
    Latency {
        p50_us: at(500),
        p90_us: at(900),
        p99_us: at(990),
        p999_us: at(999),
        max_us: at(1000),
        count: buckets.iter().fold(0, |sum, count| u64::saturating_add(sum, *count)),
    }
}

/// A file that needs a decision of the user.
fn stranded(status: &EngineStatus, file: &FileStatus) -> Option<Stranded> {
    let why = match file {
        FileStatus { is_conflict: true, .. } => "conflict",
        FileStatus { is_missing: true, .. } => "missing",
        _ => return None,
    };
    Some(Stranded { path: file.path.clone(), why: why.to_owned(), dirty_bytes: status.dirty_bytes(file) })
}

/// Returns what needs attention: the exact ranges that a failed SSD lost, or else the file.
fn troubles(status: &EngineStatus, file: &FileStatus) -> Vec<Lost> {
    let ranges = if file.is_owed { status.only_on_ssd(file) } else { Vec::new() };
    if ranges.is_empty() {
        return trouble(file).into_iter().collect();
    }
    let why = "only the SSD had it, which failed";
    ranges.iter().map(|range| Lost { path: file.path.clone(), start: range.start, end: range.end, why: why.to_owned() }).collect()
}

/// A file that needs attention.
fn trouble(file: &FileStatus) -> Option<Lost> {
    let why = match file.failures {
        _ if file.is_over && !file.is_conflict && !file.is_missing => return None,
        // A separate list has these files with the possible decisions.
        _ if file.is_conflict => "changed by another program while the cache held newer pages of it".to_owned(),
        _ if file.is_missing => "moved or removed by another program while the cache held newer pages of it".to_owned(),
        (count, Some(errno)) => format!("{count} times it could not be written below: {}", std::io::Error::from(errno)),
        _ => return None,
    };
    Some(Lost { path: file.path.clone(), start: 0, end: file.size, why })
}

/// The settings of a process that differ from those of the running instance.
fn differences(ours: &Config, running: &Config) -> Vec<String> {
    let text = |config: &Config| toml::Table::try_from(config).unwrap_or_default();
    let (ours, running) = (text(ours), text(running));
    let differs = |(key, value): (&String, &toml::Value)| {
        let theirs = running.get(key);
        let is_other = theirs != Some(value) && key != "ssd_size" && key != "memory";
        is_other.then(|| match theirs {
            Some(theirs) => format!("[cache] {key}: the running instance has {theirs}, not {value}"),
            None => format!("[cache] {key}: the running instance has none, not {value}"),
        })
    };
    ours.iter().filter_map(differs).collect()
}
