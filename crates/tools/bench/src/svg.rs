//! Shared parts of all charts: escaping, text widths, axis steps, colours by class, and the style of a standalone file.

/// The style of charts. The colours are safe for colour-blind readers (Okabe and Ito), lighter on a dark background.
pub const STYLE: &str = include_str!("report/chart.css");

/// Width of every chart, in SVG units; the page scales it.
pub const WIDTH: f64 = 760.0;

/// Returns an SVG element for a page: `body` in a frame of that height, with a description for screen readers.
pub fn chart(height: f64, title: &str, description: &str, body: &str) -> String {
    let (title, description) = (escape(title), escape(description));
    format!(
        "<svg class=\"chart\" role=\"img\" aria-label=\"{title}. {description}\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
         xmlns=\"http://www.w3.org/2000/svg\"><title>{title}</title><desc>{description}</desc>\n{body}</svg>\n"
    )
}

/// Returns the chart as a standalone file with its style.
pub fn file(chart: &str) -> String {
    let style = format!("<style>{STYLE}</style>\n<rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n");
    let sized = chart.replacen("<svg class=\"chart\"", "<svg class=\"chart\" width=\"760\"", 1);
    match sized.split_once("</desc>\n") {
        Some((head, rest)) => format!("{head}</desc>\n{style}{rest}"),
        None => sized,
    }
}

/// Escapes text for use in XML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns an SVG text element.
pub fn text(x: f64, y: f64, class: &str, words: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{}</text>\n", escape(words))
}

/// Estimates the width of text at 12 units.
pub fn width_of(words: &str) -> f64 {
    6.4 * words.chars().count() as f64
}

/// Truncates text to that width, with an ellipsis.
pub fn fit(words: &str, width: f64) -> String {
    let most = (width / 6.4) as usize;
    if words.chars().count() <= most { words.to_owned() } else { words.chars().take(most.saturating_sub(1)).collect::<String>() + "…" }
}

/// Returns the step and number of round ticks from 0 to at least `max`.
pub fn steps(max: f64) -> (f64, usize) {
    let raw = (max / 5.0).max(f64::MIN_POSITIVE);
    let unit = 10_f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|times| times * unit).find(|step| *step >= raw).unwrap_or(10.0 * unit);
    (step, (max / step).ceil().max(1.0) as usize)
}

/// Formats a number for an axis.
pub fn tick(value: f64) -> String {
    let size = value.abs();
    let (value, end) = match size {
        1e9.. => (value / 1e9, "G"),
        1e6.. => (value / 1e6, "M"),
        1e4.. => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = if end.is_empty() { format!("{value:.4}") } else { format!("{value:.2}") };
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{}{end}", if digits.is_empty() || digits == "-0" { "0" } else { digits })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn axes_have_round_steps() {
        assert_eq!(steps(1.0), (0.2, 5));
        assert_eq!(steps(7.3), (2.0, 4));
        assert_eq!(steps(90.0), (20.0, 5));
        assert!(steps(0.0).1 >= 1);
        assert_eq!([0.0, 0.25, 8000.0, 20_000.0, 1.5e6].map(tick), ["0", "0.25", "8000", "20k", "1.5M"]);
    }

    #[test]
    fn text_is_no_markup() {
        let chart = chart(10.0, "a<b", "\"x\" & y", &text(0.0, 0.0, "c", "<script>"));
        assert!(chart.contains("a&lt;b") && chart.contains("&lt;script&gt;") && !chart.contains("<script"));
        assert!(file(&chart).contains("<style>"));
        assert_eq!(fit("abcdef", 20.0), "ab…");
    }
}
