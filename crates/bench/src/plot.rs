//! Line charts as SVG.

use std::path::Path;

use anyhow::anyhow;
use plotters::prelude::*;

use crate::csv::quoted;
use crate::experiment::Plot;

/// Colours that people with the common colour weaknesses tell apart (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// The points, a column for each line; all lines have the same x.
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

/// Draws it into a file.
///
/// # Errors
/// The file cannot be written.
pub fn draw(plot: &Plot, path: &Path) -> anyhow::Result<()> {
    try_draw(plot, path).map_err(|error| anyhow!("{}: {error}", path.display()))
}

fn try_draw(plot: &Plot, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let points = || plot.series.iter().flat_map(|series| series.points.iter());
    let x_max = points().map(|point| point.0).fold(f64::MIN_POSITIVE, f64::max);
    let y_max = points().map(|point| point.1).fold(f64::MIN_POSITIVE, f64::max) * 1.05;
    let root = SVGBackend::new(path, (800, 500)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(&plot.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..x_max, 0.0..y_max)?;
    chart.configure_mesh().x_desc(&plot.x).y_desc(&plot.y).light_line_style(WHITE).draw()?;
    for (series, colour) in plot.series.iter().zip(COLOURS.iter().cycle()) {
        let style = colour.stroke_width(2);
        chart
            .draw_series(LineSeries::new(series.points.iter().copied(), style))?
            .label(&series.name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .position(SeriesLabelPosition::UpperLeft)
        .draw()?;
    root.present()?;
    Ok(())
}
