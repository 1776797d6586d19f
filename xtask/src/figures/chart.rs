//! Draws the README's bar chart as SVG: how many times faster than its peer each row of the summary is, on a logarithmic axis.

use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{number, parse};

/// Pixels.
const WIDTH: f64 = 760.0;
const LEFT: f64 = 250.0;
const RIGHT: f64 = 70.0;
const ROW: f64 = 26.0;
const TOP: f64 = 40.0;
/// Decades of the axis: from 0.1 to 1000 times.
const FROM: f64 = -1.0;
const TO: f64 = 3.0;

/// Returns the chart of all stored rows that have a `bar`: its label, and its value divided by `per`.
pub fn svg(lines: &[Value]) -> Result<String> {
    let mut bars = Vec::new();
    for bar in lines.iter().map(|line| &line["bar"]).filter(|bar| !bar.is_null()) {
        let label = bar["label"].as_str().context("a bar without a label")?;
        let times = parse(number(&bar["value"], lines)?)? / parse(number(&bar["per"], lines)?)?;
        ensure!(times.is_finite() && times > 0.0, "{label}: {times} cannot be drawn");
        bars.push((label, times));
    }
    let height = TOP + ROW * bars.len() as f64 + 12.0;
    let x = |times: f64| LEFT + (times.log10().clamp(FROM, TO) - FROM) / (TO - FROM) * (WIDTH - LEFT - RIGHT);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"13\" role=\"img\">\n<title>Speed of hotshelf relative to its peers</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    for times in [0.1, 1.0, 10.0, 100.0, 1000.0] {
        let (at, end) = (x(times), height - 12.0);
        let color = if times == 1.0 { "#333333" } else { "#cccccc" };
        writeln!(out, "<line x1=\"{at:.1}\" y1=\"{:.1}\" x2=\"{at:.1}\" y2=\"{end:.1}\" stroke=\"{color}\"/>", TOP - 8.0)?;
        writeln!(out, "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555555\">{times}×</text>", TOP - 14.0)?;
    }
    for (index, (label, times)) in bars.iter().enumerate() {
        let top = TOP + ROW * index as f64;
        let (from, to) = (x(times.min(1.0)), x(times.max(1.0)));
        let color = if *times < 1.0 { "#c0603a" } else { "#2f6f9f" };
        let base = top + 13.0;
        writeln!(out, "<text x=\"{:.1}\" y=\"{base:.1}\" text-anchor=\"end\" fill=\"#222222\">{}</text>", LEFT - 10.0, escaped(label))?;
        writeln!(out, "<rect x=\"{from:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"17\" fill=\"{color}\"/>", to - from)?;
        let shown = if *times < 10.0 { format!("{times:.2}") } else { format!("{times:.0}") };
        writeln!(out, "<text x=\"{:.1}\" y=\"{base:.1}\" fill=\"#222222\">{shown}×</text>", to + 5.0)?;
    }
    out.push_str("</svg>\n");
    Ok(out)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_bar_begins_at_one_and_ends_at_its_ratio() {
        let lines = [serde_json::json!({ "bar": { "label": "a < b", "value": "28,000", "per": "2,800" } }), serde_json::json!({})];
        let text = svg(&lines).expect("drawn");
        let per_decade = (WIDTH - LEFT - RIGHT) / 4.0;
        assert!(text.contains(&format!("<rect x=\"{:.1}\" y=\"{TOP:.1}\" width=\"{per_decade:.1}\"", LEFT + per_decade)), "{text}");
        assert!(text.contains("a &lt; b") && text.contains(">10×<"), "{text}");
        assert!(svg(&[serde_json::json!({ "bar": { "label": "a", "value": "0", "per": "1" } })]).is_err());
    }
}
