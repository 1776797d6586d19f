//! `hotshelf check`.

use indicatif::ProgressBar;

use crate::args::CheckArgs;

/// Looks over an unmounted pair, or a cache; `false` when something was found and not repaired.
pub fn check(args: &CheckArgs) -> anyhow::Result<bool> {
    let repair = args.repair && !args.dry_run;
    let Some(hdd) = &args.hdd else {
        if args.ssd.is_dir() {
            let what =
                format!("{} is a directory: give the HDD directory of the pair, too; see `hotshelf check --help`", args.ssd.display());
            return Err(crate::Usage(what).into());
        }
        return crate::cache::check_path(&args.ssd, repair, args.json);
    };
    let bar = if crate::verbosity::shows_progress() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    let report = hybridfs::check::check_pair(&args.ssd, hdd, repair, &mut |files| {
        bar.set_message(format!("{files} files"));
        bar.tick();
    });
    bar.finish_and_clear();
    let report = report?;
    if args.json {
        say_lines!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        for finding in &report.findings {
            let repaired = if finding.repaired { " (repaired)" } else { "" };
            say!("{}: {}: {}{repaired}", finding.kind, finding.path, finding.detail);
        }
        let left = report.findings.iter().filter(|finding| !finding.repaired).count();
        let verdict = if left == 0 { "clean".to_owned() } else { format!("{left} findings") };
        say!("{} files in {} directories: {verdict}", report.files, report.dirs);
    }
    Ok(report.findings.iter().all(|finding| finding.repaired))
}
