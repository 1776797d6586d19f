//! `hotshelf cache warm`: files are read into the cache before they are needed.

use std::cell::Cell;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use cachedfs::{Admit, File};
use indicatif::ProgressBar;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::args::WarmArgs;
use super::files::AttachedCaches;
use super::walk::for_each;
use super::{bar, size};

const PAGE_BYTES: u64 = 4096;
/// What is read before the SSD is waited for.
const WINDOW_BYTES: u64 = 1 << 20;
/// Pages that the SSD has not taken yet when the next window is read. It takes them in batches, so that some always wait for others.
const WAITING_MOST: u64 = 128;
/// The time in which the SSD has to take pages that were read.
const SSD_WAIT: Duration = Duration::from_secs(5);
/// The number of parts of a file that are looked at again in the end.
const LEFT_MAX: usize = 1 << 16;
/// How often pages are read again that the SSD has not taken.
const PASSES_MAX: u32 = 8;
const SETTLE_POLL: Duration = Duration::from_millis(20);
const POLL: Duration = Duration::from_millis(1);

/// What was done.
#[derive(Default)]
struct Done {
    files: u64,
    read_bytes: u64,
    present_bytes: u64,
    refused_bytes: u64,
    is_interrupted: bool,
}

/// Reads the files into the cache.
pub fn warm(args: &WarmArgs) -> anyhow::Result<bool> {
    let paths = paths(args)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The second one ends the program at once.
        signal_hook::flag::register_conditional_shutdown(signal, 130, interrupted.clone()).context("watching for interrupts")?;
        signal_hook::flag::register(signal, interrupted.clone()).context("watching for interrupts")?;
    }
    let bar = bar("{bytes} {binary_bytes_per_sec} {msg}")?;
    let mut caches = AttachedCaches::new(&args.of);
    let mut done = Done::default();
    let pace = Pace { per_second: args.limit.map(|limit| limit.of(u64::MAX).max(1)), begun: Instant::now(), bytes: Cell::new(0) };
    let is_well = for_each(&paths, &mut caches, Some(Admit::Always), &mut |file, path| {
        if interrupted.load(Ordering::Relaxed) {
            done.is_interrupted = true;
            return Ok(());
        }
        bar.set_message(crate::terminal::line(&path.display().to_string()).into_owned());
        one(file, &mut done, &pace, &bar, &interrupted)?;
        done.files += 1;
        Ok(())
    });
    bar.finish_and_clear();
    if is_well || done.files > 0 || args.of.json {
        report(args, &done);
    }
    Ok(is_well && done.refused_bytes == 0 && !done.is_interrupted)
}

fn paths(args: &WarmArgs) -> anyhow::Result<Vec<PathBuf>> {
    let mut paths = args.paths.clone();
    let Some(list) = &args.list else { return Ok(paths) };
    let named = || format!("reading the list {}", list.display());
    let lines: Box<dyn BufRead> = match list.as_os_str() == "-" {
        true => Box::new(std::io::stdin().lock()),
        false => Box::new(BufReader::new(std::fs::File::open(list).with_context(named)?)),
    };
    for line in lines.split(b'\n') {
        let line = line.with_context(named)?;
        if !line.is_empty() {
            paths.push(std::ffi::OsString::from_vec(line).into());
        }
    }
    Ok(paths)
}

/// Reads what the cache does not have of a file.
fn one(file: &File, done: &mut Done, pace: &Pace, bar: &ProgressBar, interrupted: &AtomicBool) -> anyhow::Result<()> {
    let length = file.len()?;
    if file.residency_in(0..1)?.is_none() {
        // It bypasses the cache: to read it would be for nothing.
        done.refused_bytes += length;
        return Ok(());
    }
    let has_ssd = file.instance().config().ssd.is_some() && file.instance().without_ssd().is_none();
    let mut left = Vec::new();
    let mut at = 0;
    while let Some(window) = next_window(file, at, length) {
        at = window.end;
        if interrupted.load(Ordering::Relaxed) {
            done.is_interrupted = true;
            return Ok(());
        }
        let bytes = window.end - window.start;
        bar.inc(bytes);
        let before = missing(file, &window, has_ssd)?;
        if before == 0 {
            done.present_bytes += bytes;
            continue;
        }
        let (read, after) = read(file, &window, has_ssd)?;
        done.read_bytes += read;
        pace.keep(read);
        if has_ssd && after == before && after > WAITING_MOST {
            // The SSD takes nothing: to wait for it again for each part would take hours.
            done.refused_bytes += length - window.start;
            return Ok(());
        }
        if left.len() < LEFT_MAX {
            left.push(window);
        }
    }
    done.refused_bytes += again(file, left, has_ssd, pace, interrupted)?.min(length);
    Ok(())
}

/// Returns the next part of the file that has data.
fn next_window(file: &File, at: u64, length: u64) -> Option<Range<u64>> {
    let start = match rustix::fs::seek(file.fd(), SeekFrom::Data(at)) {
        Ok(start) => start / WINDOW_BYTES * WINDOW_BYTES,
        Err(Errno::NXIO) => return None,
        Err(_) => at,
    };
    let start = start.max(at);
    (start < length).then(|| start..(start + WINDOW_BYTES).min(length))
}

/// Reads pages again whose frame another page took before they were brought to the SSD. Returns the bytes that it does not take.
fn again(file: &File, mut windows: Vec<Range<u64>>, has_ssd: bool, pace: &Pace, interrupted: &AtomicBool) -> anyhow::Result<u64> {
    let mut missing_pages = 0;
    for _ in 0..PASSES_MAX {
        missing_pages = settle(file, &windows, has_ssd)?;
        if missing_pages == 0 || !has_ssd || interrupted.load(Ordering::Relaxed) {
            break;
        }
        windows.retain(|window| missing(file, window, has_ssd).is_ok_and(|pages| pages > 0));
        for window in &windows {
            pace.keep(read(file, window, has_ssd)?.0);
        }
    }
    Ok(missing_pages * PAGE_BYTES)
}

/// Waits until the SSD has what was read, for a second. Returns how many pages it has not. The last pages wait for others to fill their
/// batch, which a sync ends; the leader takes the pages after it has served requests, so that one sync is not enough.
fn settle(file: &File, windows: &[Range<u64>], has_ssd: bool) -> anyhow::Result<u64> {
    let begun = Instant::now();
    loop {
        file.sync(true)?;
        let missing = windows.iter().try_fold(0, |sum, window| anyhow::Ok(sum + missing(file, window, has_ssd)?))?;
        if missing == 0 || !has_ssd || begun.elapsed() > Duration::from_secs(1) {
            return Ok(missing);
        }
        std::thread::sleep(SETTLE_POLL);
    }
}

/// Reads a window and waits until the SSD has most of it. Returns the bytes read, and the pages that the cache does not have.
fn read(file: &File, window: &Range<u64>, has_ssd: bool) -> anyhow::Result<(u64, u64)> {
    if has_ssd {
        file.release(window.clone())?;
    }
    let mut buffer = vec![0; (window.end - window.start) as usize];
    let read = file.read_long(window.start, &mut buffer)?;
    Ok((read as u64, wait_for(file, std::slice::from_ref(window), has_ssd, WAITING_MOST)?))
}

/// Returns how many pages of a window the cache does not have where they should be.
fn missing(file: &File, window: &Range<u64>, has_ssd: bool) -> anyhow::Result<u64> {
    let pages = window.end.div_ceil(PAGE_BYTES) - window.start / PAGE_BYTES;
    let part = file.residency_in(window.clone())?;
    Ok(part.map_or(pages, |part| part.pages - if has_ssd { part.on_ssd } else { part.in_memory }))
}

/// Waits until the cache has windows that were read, but for some pages. Returns how many pages it has not.
fn wait_for(file: &File, windows: &[Range<u64>], has_ssd: bool, but_for: u64) -> anyhow::Result<u64> {
    let begun = Instant::now();
    loop {
        let missing = windows.iter().try_fold(0, |sum, window| anyhow::Ok(sum + missing(file, window, has_ssd)?))?;
        if missing <= but_for || !has_ssd || begun.elapsed() > SSD_WAIT {
            return Ok(missing);
        }
        std::thread::sleep(POLL);
    }
}

/// The limit of bytes in a second.
struct Pace {
    per_second: Option<u64>,
    begun: Instant,
    bytes: Cell<u64>,
}

impl Pace {
    /// Counts bytes that were read, and sleeps until so many may have been.
    fn keep(&self, bytes: u64) {
        self.bytes.set(self.bytes.get().saturating_add(bytes));
        let Some(per_second) = self.per_second else { return };
        let due = Duration::try_from_secs_f64(self.bytes.get() as f64 / per_second as f64).unwrap_or(Duration::MAX);
        std::thread::sleep(due.saturating_sub(self.begun.elapsed()));
    }
}

fn report(args: &WarmArgs, done: &Done) {
    let Done { files, read_bytes, present_bytes, refused_bytes, is_interrupted } = done;
    if args.of.json {
        say!(
            "{}",
            json!({ "files": files, "read_bytes": read_bytes, "present_bytes": present_bytes, "refused_bytes": refused_bytes,
                "interrupted": is_interrupted })
        );
        return;
    }
    tell!("{files} files: {} read into the cache, {} were there", size(*read_bytes), size(*present_bytes));
    if *refused_bytes > 0 {
        complain!(
            "the cache did not take {}: it is full of dirty or pinned pages, its daily limit of bytes is used up, or its mode does not \
             keep what is read; `hotshelf cache status` says which",
            size(*refused_bytes)
        );
    }
    if *is_interrupted {
        complain!("interrupted: the same command goes on from here");
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_pace_keeps_to_its_limit_only() {
        let pace = |per_second| Pace { per_second, begun: Instant::now(), bytes: Cell::new(0) };
        pace(None).keep(u64::MAX);
        let limited = pace(Some(10 << 20));
        limited.keep(1 << 20);
        limited.keep(1 << 20);
        assert!(limited.begun.elapsed() >= Duration::from_millis(200));
    }
}
