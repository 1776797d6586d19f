//! `hotshelf cache status`: of a cache that is used, and of one that is not.

use std::path::Path;

use cachedfs::{Config, Instance, Ssd, Status, image};

use super::args::{StatusArgs, Which};
use super::locate::{self, Located};
use super::report::Report;
use super::{prometheus, show};

/// Runs `hotshelf cache status` and prints the report.
pub fn status(args: &StatusArgs) -> anyhow::Result<bool> {
    if !args.all {
        let report = of(&locate::which(&args.which)?)?;
        print(&[report], args.json, args.prometheus, false)?;
        return Ok(true);
    }
    let (reports, failed): (Vec<_>, Vec<_>) = all().into_iter().partition(Result::is_ok);
    let reports: Vec<Report> = reports.into_iter().flatten().collect();
    print(&reports, args.json, args.prometheus, true)?;
    for error in failed.iter().filter_map(|one| one.as_ref().err()) {
        complain!("{error:#}");
    }
    Ok(failed.is_empty())
}

/// Prints the state of a cache for `hotshelf status CACHE`.
pub fn status_of(cache: &Path, json: bool, prometheus: bool) -> anyhow::Result<bool> {
    let which = Which { cache: Some(cache.to_owned()), config: None };
    status(&StatusArgs { which, all: false, json, prometheus })
}

/// Of several, as Prometheus reads it.
pub fn prometheus_text(reports: &[Report]) -> String {
    prometheus::text(reports)
}

fn print(reports: &[Report], json: bool, prometheus: bool, list: bool) -> anyhow::Result<()> {
    match reports {
        [one] if json && !list => say_lines!("{}", serde_json::to_string_pretty(one)?),
        _ if json => say_lines!("{}", serde_json::to_string_pretty(reports)?),
        _ if prometheus => say_lines!("{}", prometheus::text(reports).trim_end()),
        [] => say!("no caches exist: `hotshelf cache create` makes one"),
        _ => reports.iter().for_each(show::report),
    }
    Ok(())
}

/// Collects the state of one cache.
pub fn of(located: &Located) -> anyhow::Result<Report> {
    let running = Instance::look(&located.config)?;
    let in_use = running.as_ref().is_some_and(|status| status.processes.iter().any(|process| process.alive));
    let status = match running {
        Some(mut status) => {
            if !in_use {
                status.notes.push("shared memory exists; no process is attached: the next one continues with it".to_owned());
            }
            status
        }
        None => resting(&located.config)?,
    };
    Ok(Report { in_use, settings: located.file.clone(), status })
}

/// Collects the state of all caches in use and all that have settings; an error takes the place of a state that cannot be read.
pub fn all() -> Vec<anyhow::Result<Report>> {
    let mut known: Vec<anyhow::Result<Located>> = Vec::new();
    for (file, config) in Config::known() {
        known.push(config.map(|config| Located { config, file: Some(file) }).map_err(anyhow::Error::from));
    }
    let plain = Config::default();
    let has_default = known.iter().flatten().any(|located| located.config.name == plain.name);
    if !has_default && Instance::is_running(&plain) {
        known.push(Ok(Located { config: plain, file: None }));
    }
    known.into_iter().map(|located| of(&located?)).collect()
}

/// What a cache says that nobody uses: what its SSD holds.
fn resting(config: &Config) -> anyhow::Result<Status> {
    let mut status = Status { name: config.name.clone(), mode: config.mode, files_max: config.files, ..Status::default() };
    let Some(path) = &config.ssd else { return Ok(status) };
    let contents = match image::inspect(path) {
        Ok(contents) => contents,
        Err(error) => {
            status.ssd = Some(Ssd { path: path.clone(), failed: Some(error.to_string()), drained: config.drained, ..Ssd::default() });
            return Ok(status);
        }
    };
    status.dirty_bytes = contents.dirty_pages * 4096;
    status.ssd = Some(Ssd {
        path: path.clone(),
        uuid: contents.uuid,
        bytes: contents.bytes,
        pages: contents.pages,
        dirty_pages: contents.dirty_pages,
        written_ever_bytes: contents.written_ever_bytes,
        segments: contents.segments,
        segment_pages: contents.segment_pages,
        recovery_ms: contents.recovery_ms,
        recovery_pages: contents.pages,
        damaged_pages: contents.damaged_segments,
        lost_pages: contents.suspect_pages,
        drained: config.drained,
        ..Ssd::default()
    });
    Ok(status)
}
