//! Line charts as SVG.

use crate::csv::quoted;
use crate::numbers::short;
use crate::outcome::{Plot, Series};
use crate::svg::{self, WIDTH, fit, steps, text, tick, width_of};

/// Returns the points as CSV, a column for each line; all lines have the same x values.
pub fn csv(plot: &Plot) -> String {
    let mut header = vec![quoted(&plot.x)];
    header.extend(plot.series.iter().map(|series| quoted(&series.name)));
    let mut lines = vec![header.join(",")];
    let count = plot.series.iter().map(|series| series.points.len()).max().unwrap_or(0);
    for at in 0..count {
        let x = plot.series.iter().find_map(|series| series.points.get(at)).map_or(String::new(), |point| point.0.to_string());
        let values = plot.series.iter().map(|series| series.points.get(at).map_or(String::new(), |point| point.1.to_string()));
        lines.push(std::iter::once(x).chain(values).collect::<Vec<_>>().join(","));
    }
    lines.join("\n") + "\n"
}

/// Returns the chart as an SVG file.
pub fn svg(plot: &Plot) -> String {
    svg::file(&chart(plot))
}

const LEFT: f64 = 64.0;
const RIGHT: f64 = 24.0;
const TALL: f64 = 260.0;
const LEGEND_LINE: f64 = 20.0;

/// Returns the chart as an element of a page.
pub fn chart(plot: &Plot) -> String {
    let legend = legend(&plot.series);
    let top = 48.0 + legend.lines * LEGEND_LINE;
    let frame = Frame::of(plot, top);
    let mut body = text(0.0, 18.0, "head", &fit(&plot.title, WIDTH)) + &legend.body + &frame.grid(plot);
    for (at, series) in plot.series.iter().enumerate() {
        body += &frame.line(series, at);
    }
    let last =
        |series: &Series| series.points.last().map_or(String::new(), |(x, y)| format!("{}: {} at {}", series.name, short(*y), tick(*x)));
    let description: Vec<String> = plot.series.iter().map(last).collect();
    svg::chart(top + TALL + 48.0, &plot.title, &format!("{} over {}. {}", plot.y, plot.x, description.join("; ")), &body)
}

struct Legend {
    body: String,
    lines: f64,
}

fn legend(series: &[Series]) -> Legend {
    let (mut body, mut x, mut line) = (String::new(), 0.0, 1.0);
    for (at, one) in series.iter().enumerate() {
        let wide = 44.0 + width_of(&one.name);
        if x + wide > WIDTH && x > 0.0 {
            (x, line) = (0.0, line + 1.0);
        }
        let y = 20.0 + line * LEGEND_LINE;
        body += &format!("<path class=\"l l{}\" d=\"M{x:.0} {:.0}h24\"/>\n", at % 6, y - 4.0);
        body += &text(x + 30.0, y, "", &one.name);
        x += wide;
    }
    Legend { body, lines: line }
}

/// Coordinates of the plot area.
struct Frame {
    top: f64,
    x_min: f64,
    x_max: f64,
    log: bool,
    y_step: f64,
    y_steps: usize,
}

impl Frame {
    fn of(plot: &Plot, top: f64) -> Frame {
        let points = || plot.series.iter().flat_map(|series| &series.points);
        let x_max = points().map(|point| point.0).fold(f64::MIN_POSITIVE, f64::max);
        let least = points().map(|point| point.0).fold(f64::INFINITY, f64::min);
        let log = plot.log_x && least > 0.0 && least < x_max;
        let (y_step, y_steps) = steps(points().map(|point| point.1).fold(0.0, f64::max));
        Frame { top, x_min: if log { least } else { 0.0 }, x_max, log, y_step, y_steps }
    }

    fn x(&self, value: f64) -> f64 {
        let share = if self.log { (value / self.x_min).ln() / (self.x_max / self.x_min).ln() } else { value / self.x_max };
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        self.top + TALL * (1.0 - value / (self.y_step * self.y_steps as f64))
    }

    fn grid(&self, plot: &Plot) -> String {
        let mut body = text(0.0, self.top - 10.0, "soft", &plot.y);
        for step in 0..=self.y_steps {
            let (value, right) = (step as f64 * self.y_step, WIDTH - RIGHT);
            let y = self.y(value);
            let class = if step == 0 { "axis" } else { "grid" };
            body += &format!("<path class=\"{class}\" d=\"M{LEFT} {y:.1}H{right}\"/>\n");
            body += &text(LEFT - 8.0, y + 4.0, "soft end", &tick(value));
        }
        let below = self.top + TALL + 18.0;
        for value in self.x_ticks(plot) {
            body += &text(self.x(value), below, "soft mid", &tick(value));
        }
        body + &text(LEFT + (WIDTH - LEFT - RIGHT) / 2.0, below + 20.0, "soft mid", &plot.x)
    }

    /// Ticks: the measured values on a logarithmic axis, otherwise round values.
    fn x_ticks(&self, plot: &Plot) -> Vec<f64> {
        if self.log {
            let longest = plot.series.iter().max_by_key(|series| series.points.len());
            return longest.map_or(Vec::new(), |series| series.points.iter().map(|point| point.0).collect());
        }
        let (step, count) = steps(self.x_max);
        (0..=count).map(|at| at as f64 * step).filter(|value| *value <= self.x_max * 1.001).collect()
    }

    fn line(&self, series: &Series, at: usize) -> String {
        let places: Vec<String> = series.points.iter().map(|(x, y)| format!("{:.1} {:.1}", self.x(*x), self.y(*y))).collect();
        let mut body = format!("<path class=\"l l{}\" d=\"M{}\"/>\n", at % 6, places.join("L"));
        // Few points are drawn as markers.
        if series.points.len() <= 16 {
            for (x, y) in &series.points {
                let description = format!("{}: {} at {}", series.name, short(*y), tick(*x));
                let (x, y, class) = (self.x(*x), self.y(*y), at % 6);
                let description = svg::escape(&description);
                body +=
                    &format!("<circle class=\"f{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.2\"><title>{description}</title></circle>\n");
            }
        }
        body
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn every_line_is_drawn_within_the_frame() {
        let series = |name: &str, points: &[(f64, f64)]| Series { name: name.into(), points: points.to_vec() };
        for log_x in [false, true] {
            let lines = vec![series("a", &[(1.0, 5.0), (1024.0, 50.0)]), series("b <i>", &[(1.0, 0.0), (1024.0, 7.0)])];
            let plot = Plot { name: "p".into(), title: "t".into(), x: "KiB".into(), y: "MB/s".into(), log_x, series: lines };
            let drawn = chart(&plot);
            assert_eq!(drawn.matches("<circle").count(), 4);
            assert!(drawn.contains("b &lt;i&gt;") && !drawn.contains("NaN") && !drawn.contains("inf"), "{drawn}");
        }
        let nothing = Plot { name: "p".into(), title: "t".into(), x: "x".into(), y: "y".into(), log_x: true, series: Vec::new() };
        assert!(!chart(&nothing).contains("NaN"));
    }
}
