//! Bar charts: one group for each case, one bar for each side, with the spread of all runs.

use crate::numbers::short;
use crate::row::{Better, Row};
use crate::svg::{self, WIDTH, fit, text};

const SIDE: f64 = 190.0;
const VALUE: f64 = 120.0;
const BAR: f64 = 16.0;
const STEP: f64 = 22.0;

/// Returns a chart of one metric. `None`: no case has two sides.
pub fn chart(rows: &[Row], metric: &str) -> Option<String> {
    let mut cases: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|row| row.metric == metric) {
        if !cases.contains(&row.case.as_str()) {
            cases.push(&row.case);
        }
    }
    let of = |case: &str| rows.iter().filter(|row| row.metric == metric && row.case == case).collect::<Vec<_>>();
    cases.retain(|case| of(case).len() > 1);
    let first = rows.iter().find(|row| row.metric == metric)?;
    if cases.is_empty() {
        return None;
    }
    let sides = sides(rows, metric);
    let good = if Better::of(metric) == Better::Higher { "longer is better" } else { "shorter is better" };
    let unit = if first.unit.is_empty() { String::new() } else { format!(", {}", first.unit) };
    let title = format!("{}{unit}", metric.replace('_', " "));
    let mut body = text(0.0, 18.0, "head", &title) + &text(WIDTH, 18.0, "soft end", &format!("{good}; the longest of a group fills it"));
    let mut y = 30.0;
    let mut description = Vec::new();
    for case in &cases {
        y += 16.0;
        body += &text(0.0, y, "case", &fit(case, WIDTH));
        y += 8.0;
        let group = of(case);
        body += &bars(&group, &sides, y);
        y += group.len() as f64 * STEP + 6.0;
        let values: Vec<String> = group.iter().map(|row| format!("{} {}", row.side, short(row.median))).collect();
        description.push(format!("{case}: {}", values.join(", ")));
    }
    Some(svg::chart(y, &title, &description.join("; "), &body))
}

/// Returns the sides in order of appearance: a side has the same colour in every group.
fn sides<'a>(rows: &'a [Row], metric: &str) -> Vec<&'a str> {
    let mut sides: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|row| row.metric == metric) {
        if !sides.contains(&row.side.as_str()) {
            sides.push(&row.side);
        }
    }
    sides
}

fn bars(group: &[&Row], sides: &[&str], top: f64) -> String {
    let longest = group.iter().map(|row| row.max).fold(f64::MIN_POSITIVE, f64::max);
    let room = WIDTH - SIDE - VALUE;
    let mut body = String::new();
    for (at, row) in group.iter().enumerate() {
        let y = top + at as f64 * STEP;
        let colour = sides.iter().position(|side| *side == row.side).unwrap_or(0) % 6;
        let long = |value: f64| (room * value / longest).clamp(0.0, room);
        body += &text(SIDE - 8.0, y + 12.5, "end", &fit(&row.side, SIDE - 10.0));
        body += &format!(
            "<rect class=\"f{colour}\" x=\"{SIDE}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR}\" rx=\"2\"/>\n",
            long(row.median).max(1.0)
        );
        if row.max > row.min {
            let (from, to, mid) = (SIDE + long(row.min), SIDE + long(row.max), y + BAR / 2.0);
            let (up, down) = (mid - 4.0, mid + 4.0);
            body += &format!(
                "<path class=\"whisker\" d=\"M{from:.1} {mid:.1}H{to:.1}M{from:.1} {up:.1}V{down:.1}M{to:.1} {up:.1}V{down:.1}\"/>\n"
            );
        }
        body += &text(WIDTH, y + 12.5, "end", &format!("{} {}", short(row.median), row.unit));
    }
    body
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn cases_with_one_side_are_left_to_the_table() {
        let row = |side: &str, case: &str| Row::new("x", side, case, "iops", "1/s", vec![1.0, 2.0, 4.0]);
        assert!(chart(&[row("hotshelf", "a")], "iops").is_none());
        let drawn = chart(&[row("hotshelf", "a"), row("ext4", "a"), row("hotshelf", "b")], "iops").expect("one group");
        assert_eq!(drawn.matches("<rect").count(), 2);
        assert_eq!(drawn.matches("whisker").count(), 2);
    }
}
