//! Results on disk and on the terminal.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::json;

use crate::csv::quoted;
use crate::experiment::Outcome;
use crate::machine::Machine;
use crate::plot;
use crate::row::Row;

/// Writes `NAME.jsonl` (first line: the machine), `NAME.csv` and the plots; returns what was written.
///
/// # Errors
/// The directory cannot be written.
pub fn write(dir: &Path, name: &str, machine: &Machine, outcome: &Outcome) -> anyhow::Result<Vec<PathBuf>> {
    fs::create_dir_all(dir).with_context(|| format!("{}", dir.display()))?;
    let mut lines = vec![json!({ "machine": machine, "experiment": name, "notes": outcome.notes }).to_string()];
    lines.extend(outcome.rows.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?);
    let mut written = vec![save(dir, &format!("{name}.jsonl"), &(lines.join("\n") + "\n"))?];
    written.push(save(dir, &format!("{name}.csv"), &csv(&outcome.rows))?);
    for plot in &outcome.plots {
        written.push(save(dir, &format!("{}.csv", plot.name), &plot::csv(plot))?);
        let path = dir.join(format!("{}.svg", plot.name));
        plot::draw(plot, &path)?;
        written.push(path);
    }
    Ok(written)
}

fn save(dir: &Path, name: &str, text: &str) -> anyhow::Result<PathBuf> {
    let path = dir.join(name);
    let mut file = fs::File::create(&path).with_context(|| format!("{}", path.display()))?;
    file.write_all(text.as_bytes()).with_context(|| format!("{}", path.display()))?;
    Ok(path)
}

fn csv(rows: &[Row]) -> String {
    let mut text = String::from("experiment,side,case,metric,unit,median,min,max,runs\n");
    for row in rows {
        let words = [row.experiment, &row.side, &row.case, row.metric, row.unit].map(quoted);
        text += &format!("{},{},{},{},{}\n", words.join(","), row.median, row.min, row.max, row.values.len());
    }
    text
}

/// A table for people: a line for each case and metric, with the peers and our ratio to each.
pub fn table(rows: &[Row]) -> String {
    let mut lines = Vec::new();
    for ours in rows.iter().filter(|row| row.side == "hotshelf") {
        let same = |row: &&Row| row.case == ours.case && row.metric == ours.metric && row.side != ours.side;
        let peers: Vec<String> = rows
            .iter()
            .filter(same)
            .map(|row| format!("{} {} (ratio {:.2})", row.side, short(row.median), ours.median / row.median))
            .collect();
        lines.push(format!("{:<44} {:<20} {:>12} {:<5} {}", ours.case, ours.metric, short(ours.median), ours.unit, peers.join(", ")));
    }
    lines.join("\n")
}

fn short(value: f64) -> String {
    match value.abs() {
        // Ratios: four digits tell them apart.
        0.0..1.0 => format!("{value:.4}"),
        1.0..10.0 => format!("{value:.2}"),
        10.0..1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::experiment::{Plot, Series};

    fn row(side: &str, value: f64) -> Row {
        Row::new("x", side, "read, 4 KiB", "iops", "1/s", vec![value])
    }

    #[test]
    fn peers_stand_beside_ours_with_the_ratio() {
        let table = table(&[row("hotshelf", 300.0), row("fio io_uring", 150.0)]);
        assert_eq!(table.lines().count(), 1);
        assert!(table.contains("ratio 2.00"), "{table}");
    }

    #[test]
    fn everything_is_written_and_reads_back() {
        let dir = tempfile::tempdir().expect("a directory");
        let series = vec![Series { name: "reads".into(), points: vec![(1.0, 1.0), (2.0, 4.0)] }];
        let plot = Plot { name: "curve".into(), title: "t".into(), x: "blocks".into(), y: "speedup".into(), series };
        let outcome = Outcome { rows: vec![row("hotshelf", 1.5)], notes: vec!["note".into()], plots: vec![plot] };
        let written = write(dir.path(), "x", &Machine::here(), &outcome).expect("written");
        let names: Vec<String> = written.iter().map(|path| path.file_name().expect("a name").to_string_lossy().into_owned()).collect();
        assert_eq!(names, ["x.jsonl", "x.csv", "curve.csv", "curve.svg"]);
        let text = |name: &str| fs::read_to_string(dir.path().join(name)).expect("read");
        assert_eq!(text("x.csv").lines().nth(1), Some("x,hotshelf,\"read, 4 KiB\",iops,1/s,1.5,1.5,1.5,1"));
        assert_eq!(text("curve.csv"), "blocks,reads\n1,1\n2,4\n");
        assert!(text("curve.svg").contains("speedup"));
        for line in text("x.jsonl").lines() {
            serde_json::from_str::<serde_json::Value>(line).expect("JSON");
        }
    }
}
