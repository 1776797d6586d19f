//! Writes the documents' tables of figures, and the README's chart, from the one file that stores the figures.
//!
//! A line of that file is the head of a table, or a row: its cells as text with `{}` for each number, and the numbers. A number is a
//! string, or a reference `{"of": [table, row, cell, index]}` to a number of another row, so that each number is stored once.

mod chart;

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

const STORED: &str = "bench/stored/readme.jsonl";
const DOCUMENTS: [&str; 2] = ["README.md", "docs/reference/figures.md"];
const CHART: &str = "docs/images/figures.svg";
const BEGIN: &str = "<!-- figures: ";
const END: &str = "<!-- end of figures -->";

/// Writes the tables and the chart; with `check`, fails if one of them differs from the stored figures.
pub fn run(root: &Path, check: bool) -> Result<()> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).with_context(|| format!("reading {path}"));
    let lines = parsed(&read(STORED)?)?;
    let mut used = 0;
    let mut wanted = vec![(CHART, chart::svg(&lines)?)];
    for document in DOCUMENTS {
        let (text, count) = with_tables(&read(document)?, &lines).with_context(|| document.to_owned())?;
        used += count;
        wanted.push((document, text));
    }
    ensure!(used == lines.len(), "{STORED}: {} lines are in no table of the documents", lines.len() - used);
    for (path, text) in wanted {
        let current = read(path).unwrap_or_default();
        if current == text {
            continue;
        }
        if check {
            let line = current.lines().zip(text.lines()).position(|(a, b)| a != b).map_or(0, |at| at + 1);
            bail!("{path}, line {line}: differs from {STORED}: change the figures there and run `cargo xtask figures`");
        }
        std::fs::write(root.join(path), text).with_context(|| format!("writing {path}"))?;
        println!("{path}");
    }
    Ok(())
}

fn parsed(stored: &str) -> Result<Vec<Value>> {
    let line = |(at, line)| serde_json::from_str(line).with_context(|| format!("{STORED}, line {}", at + 1));
    stored.lines().enumerate().map(line).collect()
}

/// Returns the text with every table between its marks written anew, and how many stored lines were used.
fn with_tables(text: &str, lines: &[Value]) -> Result<(String, usize)> {
    let (mut out, mut used, mut inside) = (String::new(), 0, false);
    for line in text.lines() {
        if line == END {
            ensure!(inside, "`{END}` without a begin");
            inside = false;
        }
        if !inside {
            out.push_str(line);
            out.push('\n');
        }
        let Some(rest) = line.strip_prefix(BEGIN) else { continue };
        let name = rest.split(';').next().unwrap_or_default().trim();
        let (table, count) = table(name, lines)?;
        used += count;
        out.push_str(&format!("\n{table}\n"));
        inside = true;
    }
    ensure!(!inside, "a table without `{END}`");
    Ok((out, used))
}

/// Returns one table, and how many stored lines it took.
fn table(name: &str, lines: &[Value]) -> Result<(String, usize)> {
    let of = |line: &&Value| line["table"] == name;
    let head = lines.iter().filter(of).find_map(|line| line["head"].as_array()).with_context(|| format!("{STORED} has no table {name}"))?;
    let words = |all: &[Value]| all.iter().map(|one| one.as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>();
    let mut text = line(&words(head)) + &format!("|{}\n", "---|".repeat(head.len()));
    let mut count = 1;
    for row in lines.iter().filter(of).filter(|line| line["head"].is_null()) {
        let what = row["row"].as_str().context("a row without a name")?;
        let cells = row["cells"].as_array().with_context(|| format!("{what}: no cells"))?;
        ensure!(cells.len() + 1 == head.len(), "{STORED}, {what}: {} cells under {} heads", cells.len(), head.len() - 1);
        let mut all = vec![what.to_owned()];
        for (at, cell) in words(cells).iter().enumerate() {
            let values = row["values"][at].as_array().map_or(&[][..], Vec::as_slice);
            let values: Vec<&str> = values.iter().map(|value| number(value, lines)).collect::<Result<_>>()?;
            all.push(filled(cell, &values).with_context(|| format!("{STORED}, {what}"))?);
        }
        text += &line(&all);
        count += 1;
    }
    Ok((text, count))
}

/// Returns a stored number, or the one that a reference names.
fn number<'a>(value: &'a Value, lines: &'a [Value]) -> Result<&'a str> {
    let found = match value["of"].as_array().map(Vec::as_slice) {
        None => Some(value),
        Some([table, row, cell, at]) => {
            let index = |value: &Value| value.as_u64().and_then(|index| usize::try_from(index).ok()).unwrap_or(usize::MAX);
            let line = lines.iter().find(|line| line["table"] == *table && line["row"] == *row);
            line.map(|line| &line["values"][index(cell)][index(at)])
        }
        Some(_) => None,
    };
    found.and_then(Value::as_str).with_context(|| format!("{STORED}: {value} names no number"))
}

/// Returns the cell with its numbers filled in.
fn filled(cell: &str, values: &[&str]) -> Result<String> {
    let mut parts = cell.split("{}");
    let mut text = parts.next().unwrap_or_default().to_owned();
    let mut values = values.iter();
    for part in parts {
        let value = values.next().context("fewer numbers than places")?;
        parse(value)?;
        text += value;
        text += part;
    }
    ensure!(values.next().is_none(), "more numbers than places");
    Ok(text)
}

fn parse(value: &str) -> Result<f64> {
    value.replace(',', "").parse().with_context(|| format!("`{value}` is no number"))
}

fn line(cells: &[String]) -> String {
    cells.iter().fold(String::from("|"), |line, cell| if cell.is_empty() { line + " |" } else { format!("{line} {cell} |") }) + "\n"
}

#[cfg(test)]
mod test {
    use super::*;

    const STORE: &str = "{\"table\":\"a\",\"head\":[\"\",\"ours\",\"peer\"]}\n\
                         {\"table\":\"a\",\"row\":\"reads\",\"cells\":[\"{}; {} times\",\"\"],\"values\":[[\"1,000\",\"2.00\"],[]]}\n\
                         {\"table\":\"a\",\"row\":\"again\",\"cells\":[\"{}\",\"\"],\"values\":[[{\"of\":[\"a\",\"reads\",0,1]}],[]]}\n";
    const TEXT: &str = "before\n<!-- figures: a; x -->\n\nold\n\n<!-- end of figures -->\nafter\n";

    fn made(text: &str, store: &str) -> Result<(String, usize)> {
        with_tables(text, &parsed(store)?)
    }

    #[test]
    fn a_table_is_made_of_the_numbers() {
        let (text, used) = made(TEXT, STORE).expect("made");
        let table = "| | ours | peer |\n|---|---|---|\n| reads | 1,000; 2.00 times | |\n| again | 2.00 | |\n";
        assert_eq!(text, format!("before\n<!-- figures: a; x -->\n\n{table}\n<!-- end of figures -->\nafter\n"));
        assert_eq!(made(&text, STORE).expect("made"), (text, 3), "twice is the same");
        assert_eq!(used, 3);
    }

    #[test]
    fn figures_that_do_not_fit_are_refused() {
        for (from, to) in
            [("2.00\"]", "2.00\",\"3\"]"), ("2.00", "two"), ("\"cells\":[", "\"cells\":[\"\","), ("reads\",0,1", "reads\",0,2"), ("{", "[")]
        {
            assert!(made(TEXT, &STORE.replace(from, to)).is_err(), "{from}");
        }
        assert!(made("<!-- figures: z; -->\n<!-- end of figures -->\n", STORE).is_err());
    }
}
