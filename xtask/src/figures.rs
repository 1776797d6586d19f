//! The README's tables of figures, from the file in which they are stored: each number once, and none made by hand.
//!
//! A line of the file is a table's head, or a row: its cells as text with `{}` where a number stands, and the numbers.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

const STORED: &str = "bench/stored/readme.jsonl";
const README: &str = "README.md";
const BEGIN: &str = "<!-- figures: ";
const END: &str = "<!-- end of figures -->";

/// Writes the tables; `check`: only says whether they are as they should be.
pub fn run(root: &Path, check: bool) -> Result<()> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).with_context(|| format!("reading {path}"));
    let (is, stored) = (read(README)?, read(STORED)?);
    let wanted = with_tables(&is, &stored)?;
    if is == wanted {
        return Ok(());
    }
    if check {
        let line = is.lines().zip(wanted.lines()).position(|(a, b)| a != b).map_or(0, |at| at + 1);
        bail!("{README}, line {line}: a table is not what {STORED} has: change the figures there and run `cargo xtask figures`");
    }
    std::fs::write(root.join(README), wanted).with_context(|| format!("writing {README}"))?;
    println!("{README}");
    Ok(())
}

/// The text with every table between its marks made anew.
fn with_tables(text: &str, stored: &str) -> Result<String> {
    let lines: Vec<Value> = stored.lines().enumerate().map(|(at, line)| parsed(at, line)).collect::<Result<_>>()?;
    let (mut out, mut used, mut inside) = (String::new(), 0, false);
    for line in text.lines() {
        if line == END {
            ensure!(inside, "{README}: `{END}` without a begin");
            inside = false;
        }
        if !inside {
            out.push_str(line);
            out.push('\n');
        }
        let Some(rest) = line.strip_prefix(BEGIN) else { continue };
        let name = rest.split(';').next().unwrap_or_default().trim();
        let (table, count) = table(name, &lines)?;
        used += count;
        out.push_str(&format!("\n{table}\n"));
        inside = true;
    }
    ensure!(!inside, "{README}: a table without `{END}`");
    ensure!(used == lines.len(), "{STORED}: {} lines belong to no table of {README}", lines.len() - used);
    Ok(out)
}

fn parsed(at: usize, line: &str) -> Result<Value> {
    serde_json::from_str(line).with_context(|| format!("{STORED}, line {}", at + 1))
}

/// One table, and how many lines it took.
fn table(name: &str, lines: &[Value]) -> Result<(String, usize)> {
    let of = |line: &&Value| line["table"] == name;
    let head = lines.iter().filter(of).find_map(|line| line["head"].as_array()).with_context(|| format!("{STORED} has no table {name}"))?;
    let words = |all: &[Value]| all.iter().map(|one| one.as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>();
    let mut text = line(&words(head)) + &format!("|{}\n", "---|".repeat(head.len()));
    let mut count = 1;
    for row in lines.iter().filter(of).filter(|line| line["head"].is_null()) {
        let what = row["row"].as_str().context("a row has a name")?;
        let cells = row["cells"].as_array().with_context(|| format!("{what}: no cells"))?;
        ensure!(cells.len() + 1 == head.len(), "{STORED}, {what}: {} cells under {} heads", cells.len(), head.len() - 1);
        let mut all = vec![what.to_owned()];
        for (at, cell) in words(cells).iter().enumerate() {
            let values = row["values"][at].as_array().map_or(Vec::new(), |all| words(all));
            all.push(filled(cell, &values).with_context(|| format!("{STORED}, {what}"))?);
        }
        text += &line(&all);
        count += 1;
    }
    Ok((text, count))
}

/// The numbers in their places.
fn filled(cell: &str, values: &[String]) -> Result<String> {
    let mut parts = cell.split("{}");
    let mut text = parts.next().unwrap_or_default().to_owned();
    let mut values = values.iter();
    for part in parts {
        let value = values.next().context("fewer numbers than places")?;
        ensure!(value.replace(',', "").parse::<f64>().is_ok(), "`{value}` is no number");
        text += value;
        text += part;
    }
    ensure!(values.next().is_none(), "more numbers than places");
    Ok(text)
}

fn line(cells: &[String]) -> String {
    cells.iter().fold(String::from("|"), |line, cell| if cell.is_empty() { line + " |" } else { format!("{line} {cell} |") }) + "\n"
}

#[cfg(test)]
mod test {
    use super::*;

    const STORE: &str = "{\"table\":\"a\",\"head\":[\"\",\"ours\",\"peer\"]}\n\
                         {\"table\":\"a\",\"row\":\"reads\",\"cells\":[\"{}; {} times\",\"\"],\"values\":[[\"1,000\",\"2.00\"],[]]}\n";
    const TEXT: &str = "before\n<!-- figures: a; x -->\n\nold\n\n<!-- end of figures -->\nafter\n";

    #[test]
    fn a_table_is_made_of_the_numbers() {
        let made = with_tables(TEXT, STORE).expect("made");
        let table = "| | ours | peer |\n|---|---|---|\n| reads | 1,000; 2.00 times | |\n";
        assert_eq!(made, format!("before\n<!-- figures: a; x -->\n\n{table}\n<!-- end of figures -->\nafter\n"));
        assert_eq!(with_tables(&made, STORE).expect("made"), made, "twice is the same");
    }

    #[test]
    fn what_does_not_fit_is_told() {
        for (from, to) in
            [("2.00\"]", "2.00\",\"3\"]"), ("2.00", "two"), ("\"cells\":[", "\"cells\":[\"\","), ("\"a\",\"row\"", "\"b\",\"row\"")]
        {
            assert!(with_tables(TEXT, &STORE.replace(from, to)).is_err(), "{from}");
        }
        assert!(with_tables("<!-- figures: z; -->\n<!-- end of figures -->\n", STORE).is_err());
    }
}
