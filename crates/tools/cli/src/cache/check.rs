//! `hotshelf cache check`.

use std::path::{Path, PathBuf};

use cachedfs::image;

use super::args::{CheckArgs, This};
use super::{bar, locate, serve, size};

/// Looks over the SSD; `false` when something was found and not repaired.
pub fn check(args: &CheckArgs) -> anyhow::Result<bool> {
    let located = locate::this(&args.this)?;
    if args.repair {
        serve::take_down(&located)?
    } else {
        serve::refuse_if_used(&located)?
    }
    let bar = bar("{bar:30} {pos}/{len} pages {eta} left")?;
    let checked = image::check(located.ssd("check")?, args.repair, &mut |done, of| {
        bar.set_length(of);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let checked = checked?;
    let left = checked.findings.iter().filter(|finding| !finding.repaired).count();
    if args.json {
        say_lines!("{}", serde_json::to_string_pretty(&checked)?);
        return Ok(left == 0);
    }
    let contents = &checked.contents;
    say!("{}  (UUID {}, opened {} times)", contents.path.display(), contents.uuid, contents.generation.saturating_sub(2));
    say!(
        "  room      {} in {} segments of {} pages, {} in use",
        size(contents.bytes),
        contents.segments,
        contents.segment_pages,
        contents.segments_used
    );
    say!("  cached    {} pages of {} files, {} read and compared", contents.pages, checked.files, checked.verified_pages);
    say!("  dirty     {} pages ({}), in no other place", contents.dirty_pages, size(contents.dirty_pages * 4096));
    say!("  written   {} since it was formatted", size(contents.written_ever_bytes));
    say!("  recovery  {} ms, {} pages read", contents.recovery_ms, contents.recovery_reads);
    for finding in &checked.findings {
        say!("{}: {}{}", finding.kind, finding.detail, if finding.repaired { " (repaired)" } else { "" });
    }
    let repaired = checked.findings.len() - left;
    match (left, repaired) {
        (0, 0) => say!("clean"),
        (0, _) => say!("{repaired} findings, repaired"),
        _ => say!("{left} findings: --repair drops what is damaged"),
    }
    Ok(left == 0)
}

/// Checks the SSD of a cache for `hotshelf check CACHE`.
pub fn check_path(cache: &Path, repair: bool, json: bool) -> anyhow::Result<bool> {
    check(&CheckArgs { this: This { cache: PathBuf::from(cache), config: None }, repair, json })
}
