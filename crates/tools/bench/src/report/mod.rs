//! One HTML page of all results, without network, scripts or a fixed colour scheme.

mod bars;
mod glance;

use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::experiment::Experiment;
use crate::numbers::{short, times};
use crate::outcome::Outcome;
use crate::plot;
use crate::results::{Results, Run, save};
use crate::row::Row;
use crate::svg::{self, escape};

/// Number of metrics that are drawn; the table has the others.
const DRAWN: usize = 3;
/// Maximum groups of bars; larger experiments have line charts.
const GROUPS: usize = 16;

/// Writes the page, and each chart as a file in `NAME-charts` beside it; returns their paths.
///
/// # Errors
/// A file cannot be written.
pub fn write(all: &[Results], path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or("report.html".as_ref()).to_string_lossy().into_owned();
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let dir = parent.join(format!("{stem}-charts"));
    std::fs::create_dir_all(&dir).map_err(|error| anyhow::anyhow!("{}: {error}", dir.display()))?;
    let mut written = vec![save(parent, &name, &page(all))?];
    if let Some(chart) = glance::chart(all, GLANCE) {
        written.push(save(&dir, "at-a-glance.svg", &svg::file(&chart))?);
    }
    for one in all {
        for (name, chart) in charts(one) {
            written.push(save(&dir, &format!("{name}.svg"), &svg::file(&chart))?);
        }
    }
    Ok(written)
}

const GLANCE: &str = "How many times better than the peer";

/// Returns the whole page as HTML.
pub fn page(all: &[Results]) -> String {
    let mut body = String::new();
    let _ = write!(body, "<a class=\"skip\" href=\"#main\">To the figures</a>\n<header>{}</header>\n<main id=\"main\">\n", head(all));
    if let Some(chart) = glance::chart(all, GLANCE) {
        body += "<section aria-label=\"at a glance\">\n<h2 id=\"glance\">At a glance</h2>\n<p>Each line is one of ours beside one peer, \
                 in the same run on the same device; in parentheses the paper's. The line through a mark reaches from the smallest to \
                 the largest ratio of all runs.</p>\n";
        body += &chart;
        body += "</section>\n";
    }
    all.iter().for_each(|one| body += &section(one));
    body += "</main>\n";
    let style = [include_str!("page.css"), svg::STYLE].concat();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, \
         initial-scale=1\">\n<title>hotshelf: measured</title>\n<style>\n{style}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )
}

fn head(all: &[Results]) -> String {
    let mut text = "<h1>hotshelf, measured beside its peers</h1>\n".to_owned();
    if let Some(one) = all.first() {
        let machine = &one.run.machine;
        let small = all.iter().filter(|one| one.run.size == "small").count();
        let _ = writeln!(
            text,
            "<p class=\"lead\">{}, {} cores, {} GiB of memory, Linux {}, {}; hotshelf {}. Both sides of every pair were measured in turn \
             on this machine: ratios hold elsewhere more than figures do.</p>",
            escape(&machine.cpu),
            machine.cores,
            (machine.memory_bytes + (1 << 29)) >> 30,
            escape(&machine.kernel),
            escape(&machine.system),
            escape(&machine.version)
        );
        if small > 0 {
            let what = if small == all.len() { "All experiments".into() } else { format!("{small} of {} experiments", all.len()) };
            let _ = writeln!(
                text,
                "<p class=\"missing\"><strong>{what} ran in the small size.</strong> That shows that they work; their figures mean \
                 little.</p>"
            );
        }
    }
    text += "<nav aria-label=\"experiments\">\n<ul>\n";
    for one in all {
        let name = escape(&one.run.experiment);
        let source = crate::find(&one.run.experiment).map_or("", |known| known.source);
        let _ = writeln!(text, "<li><a href=\"#{name}\">{name}</a> <span class=\"source\">{}</span></li>", escape(source));
    }
    text + "</ul>\n</nav>\n"
}

/// Returns file names and charts.
fn charts(one: &Results) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for metric in metrics(&one.outcome) {
        if let Some(chart) = bars::chart(&one.outcome.rows, &metric) {
            found.push((format!("{}-{metric}", one.run.experiment), chart));
        }
    }
    found.extend(one.outcome.plots.iter().map(|plot| (plot.name.clone(), plot::chart(plot))));
    found
}

/// Returns the metrics drawn as bars: the first ones with peers, if there are not too many cases.
fn metrics(outcome: &Outcome) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for row in &outcome.rows {
        let peers = |other: &&Row| other.metric == row.metric && other.case == row.case && other.side != row.side;
        if !found.contains(&row.metric) && outcome.rows.iter().any(|other| peers(&other)) {
            found.push(row.metric.clone());
        }
    }
    let cases = |metric: &String| {
        let mut cases: Vec<&str> = outcome.rows.iter().filter(|row| row.metric == *metric).map(|row| row.case.as_str()).collect();
        cases.dedup();
        cases.len()
    };
    found.retain(|metric| cases(metric) <= GROUPS);
    found.truncate(DRAWN);
    found
}

fn section(one: &Results) -> String {
    let Results { run, outcome } = one;
    let name = escape(&run.experiment);
    let mut text = format!("<section aria-labelledby=\"{name}\">\n<h2 id=\"{name}\">{name}</h2>\n");
    if let Some(known) = crate::find(&run.experiment) {
        text += &about(known);
    }
    for missing in &outcome.missing {
        let _ =
            writeln!(text, "<p class=\"missing\"><strong>{}: not measured.</strong> {}</p>", escape(&missing.what), escape(&missing.why));
    }
    charts(one).iter().for_each(|(_, chart)| text += chart);
    text += &claims(outcome);
    if !outcome.notes.is_empty() {
        text += "<h3>To know</h3>\n<ul>\n";
        outcome.notes.iter().for_each(|note| text += &format!("<li>{}</li>\n", escape(note)));
        text += "</ul>\n";
    }
    text += &rows(&outcome.rows);
    text += &how(run, outcome);
    text + "</section>\n"
}

fn about(known: &Experiment) -> String {
    let mut text = format!("<p>{}.</p>\n<dl class=\"facts\">\n", escape(known.about));
    for (what, words) in [("repeats", known.source), ("the paper found", known.paper), ("beside", known.peers), ("devices", known.devices)]
    {
        if !words.is_empty() {
            let _ = writeln!(text, "<dt>{what}</dt><dd>{}</dd>", escape(words));
        }
    }
    text + "</dl>\n"
}

fn claims(outcome: &Outcome) -> String {
    if outcome.claims.is_empty() {
        return String::new();
    }
    let mut text = "<div class=\"wide\"><table>\n<caption>Ours by the peer's</caption>\n<thead><tr><th scope=\"col\">what</th><th \
                    scope=\"col\">metric</th><th scope=\"col\">beside</th><th scope=\"col\" class=\"n\">ratio</th><th scope=\"col\" \
                    class=\"n\">of all runs</th><th scope=\"col\" class=\"n\">the paper's</th><th scope=\"col\">why, and what to \
                    know</th></tr></thead>\n<tbody>\n"
        .to_owned();
    for claim in &outcome.claims {
        let who = claim.ours.strip_prefix("hotshelf").unwrap_or_default();
        let spread = if claim.min == claim.max { String::new() } else { format!("{} to {}", times(claim.min), times(claim.max)) };
        let paper = claim.paper.map_or("–".into(), times);
        let _ = writeln!(
            text,
            "<tr><th scope=\"row\">{}{}</th><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{spread}</td><td \
             class=\"n\">{paper}</td><td>{}</td></tr>",
            escape(&claim.what),
            escape(who),
            escape(&claim.metric.replace('_', " ")),
            escape(&claim.peer),
            times(claim.ratio),
            escape(&claim.why)
        );
    }
    text + "</tbody>\n</table></div>\n"
}

fn rows(rows: &[Row]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "<details><summary>All {} figures</summary>\n<div class=\"wide\"><table>\n<caption>Medians and spread</caption>\n<thead><tr><th \
         scope=\"col\">case</th><th scope=\"col\">side</th><th scope=\"col\">metric</th><th scope=\"col\" class=\"n\">median</th><th \
         scope=\"col\" class=\"n\">smallest</th><th scope=\"col\" class=\"n\">largest</th><th scope=\"col\" class=\"n\">runs</th></tr>\
         </thead>\n<tbody>\n",
        rows.len()
    );
    for row in rows {
        let _ = writeln!(
            text,
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td class=\"n\">{} {}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td></tr>",
            escape(&row.case),
            escape(&row.side),
            escape(&row.metric.replace('_', " ")),
            short(row.median),
            escape(&row.unit),
            short(row.min),
            short(row.max),
            row.values.len()
        );
    }
    text + "</tbody>\n</table></div></details>\n"
}

fn how(run: &Run, outcome: &Outcome) -> String {
    let mut commands: Vec<&str> = outcome.rows.iter().filter_map(|row| row.command.as_deref()).collect();
    commands.dedup();
    let mut lines = vec![
        format!("$ {}", run.command),
        format!(
            "size {}, {} runs, seed {}, {:.1} s, load of the machine before {:.1}",
            run.size, run.runs, run.seed, run.took, run.machine.load
        ),
    ];
    lines.extend(run.programs.iter().cloned());
    lines.extend(commands.iter().map(|command| format!("$ {command}")));
    format!("<details><summary>How it was measured</summary>\n<pre>{}</pre></details>\n", escape(&lines.join("\n")))
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::Context;
    use crate::outcome::{Claim, Plot, Series};

    fn results() -> Results {
        let row = |side: &str, value: f64| Row::new("policies", side, "read <4 KiB>", "iops", "1/s", vec![value, value * 2.0]);
        let rows = vec![row("hotshelf", 300.0), row("ext4", 150.0).by(Some("fio --x"))];
        let claims = Claim::of(&rows, "read <4 KiB>", "iops", "hotshelf", "ext4").map(|claim| claim.paper(1.5)).into_iter().collect();
        let series = vec![Series { name: "reads".into(), points: vec![(1.0, 1.0), (2.0, 4.0)] }];
        let plots = vec![Plot { name: "curve".into(), title: "t".into(), x: "x".into(), y: "y".into(), log_x: false, series }];
        let mut outcome = Outcome { rows, claims, notes: vec!["a & b".into()], plots, ..Outcome::default() };
        outcome.mark_missing("mergerfs", "apt install mergerfs");
        let run = Run::new(crate::find("policies").expect("there is one"), &Context::small(".".into()), "hotshelf bench run policies");
        Results { run, outcome }
    }

    #[test]
    fn the_page_stands_alone_and_has_everything() {
        let page = page(&[results()]);
        for words in ["At a glance", "ratio", "apt install mergerfs", "a &amp; b", "read &lt;4 KiB&gt;", "fio --x", "small size"] {
            assert!(page.contains(words), "{words}");
        }
        assert_eq!(page.matches("<svg").count(), 3);
        let foreign = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!foreign.contains("http") && !page.contains("<script") && !page.contains("NaN"));
    }

    #[test]
    fn charts_are_files_too() {
        let dir = tempfile::tempdir().expect("a directory");
        let written = write(&[results()], &dir.path().join("report.html")).expect("written");
        assert_eq!(written.len(), 4);
        assert!(written.iter().all(|path| path.is_file()));
        assert!(dir.path().join("report-charts/policies-iops.svg").is_file());
    }
}
