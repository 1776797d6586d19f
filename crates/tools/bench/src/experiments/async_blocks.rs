//! Blocks one by one: synchronously and all at once.

use std::time::Duration;

use sim::device::curve;
use sim::device::model::presets;

use crate::experiment::{Context, Experiment, RunScale};
use crate::outcome::{Claim, Outcome, Plot, Series};
use crate::row::Row;

const NAME: &str = "async-blocks";

/// The experiment as `hotshelf bench` lists it.
pub const EXPERIMENT: Experiment = Experiment {
    name: NAME,
    about: "1 to 200 blocks of 512 bytes in sequence: asynchronous against synchronous, on a model of the paper's drive",
    source: "testFS with SPDK, Fig. 3",
    paper: "reads up to 7 times faster, writes up to 2 times",
    peers: "the same blocks one by one",
    devices: "a model of the paper's drive (Seagate Nytro 5000, 400 GB) in virtual time",
    needs: &[],
    room_mib: (0, 0),
    takes: (1, 2),
    run,
};

/// Selects a value of a row.
type Value = fn(&curve::Row) -> f64;

/// Software time of testFS and SPDK for a request. The paper does not state it; this estimate comes near its figures.
const PAPERS_SOFTWARE: Duration = Duration::from_micros(12);
/// The paper's values at 200 blocks, from its text.
const PAPER: [f64; 2] = [7.0, 2.0];

fn run(context: &Context) -> anyhow::Result<Outcome> {
    let counts: Vec<u32> = match context.scale {
        RunScale::Small => vec![1, 10, 50, 100, 200],
        RunScale::Full => (1..=200).collect(),
    };
    context.progress.set_length(2);
    let alone = curve::rows(&presets::NYTRO_5000_400GB, &counts, Duration::ZERO);
    context.progress.inc(1);
    let papers = curve::rows(&presets::NYTRO_5000_400GB, &counts, PAPERS_SOFTWARE);
    context.progress.inc(1);
    let points =
        |value: Value, rows: &[curve::Row]| -> Vec<(f64, f64)> { rows.iter().map(|row| (f64::from(row.count), value(row))).collect() };
    let speedups = [
        ("reads", points(curve::Row::read_speedup, &alone)),
        ("writes", points(curve::Row::write_speedup, &alone)),
        ("reads, 12 us of software each", points(curve::Row::read_speedup, &papers)),
        ("writes, 12 us of software each", points(curve::Row::write_speedup, &papers)),
    ];
    let times: [(&str, Value); 4] = [
        ("read, one by one", |row| row.read_sync_us),
        ("read, all at once", |row| row.read_async_us),
        ("write, one by one", |row| row.write_sync_us),
        ("write, all at once", |row| row.write_async_us),
    ];
    let times = times.map(|(name, value)| (name, points(value, &alone)));
    Ok(Outcome {
        rows: rows(&speedups),
        claims: claims(&speedups),
        notes: notes(),
        plots: vec![speedup_plot(&speedups), time_plot(&times)],
        ..Outcome::default()
    })
}

fn last(points: &[(f64, f64)]) -> f64 {
    points.last().map_or(0.0, |point| point.1)
}

fn rows(speedups: &[(&str, Vec<(f64, f64)>)]) -> Vec<Row> {
    speedups.iter().map(|(name, points)| Row::new(NAME, "hotshelf", &format!("200 {name}"), "speedup", "", vec![last(points)])).collect()
}

fn claims(speedups: &[(&str, Vec<(f64, f64)>)]) -> Vec<Claim> {
    let whys = [
        "by choice: a rule of the model that no data sheet tells was chosen so",
        "the device's time alone; with what software the paper's figures hint at, see below",
        "what the paper's software costs is not told: 12 us is a guess",
        "what the paper's software costs is not told: 12 us is a guess",
    ];
    let known = speedups.iter().zip(PAPER.into_iter().cycle()).zip(whys);
    known
        .map(|(((name, points), paper), why)| {
            Claim::direct(&format!("200 {name}"), "speedup", "hotshelf", "one by one", &[last(points)]).paper(paper).why(why)
        })
        .collect()
}

fn notes() -> Vec<String> {
    vec![
        "the drive is a model of the Seagate Nytro 5000 in virtual time: no software above it, except where told".into(),
        "reads rest on a rule no data sheet tells, how requests that wait for one flash page are served: it was chosen after the \
         simplest one gave 5.2; so reads agree with the paper by choice, and confirm nothing"
            .into(),
    ]
}

fn speedup_plot(lines: &[(&str, Vec<(f64, f64)>)]) -> Plot {
    plot("async-blocks-speedup", "Asynchronous against synchronous blocks", "times faster", lines)
}

fn time_plot(lines: &[(&str, Vec<(f64, f64)>)]) -> Plot {
    plot("async-blocks-time", "Time for a number of blocks", "us", lines)
}

fn plot(name: &str, title: &str, y: &str, lines: &[(&str, Vec<(f64, f64)>)]) -> Plot {
    let series = lines.iter().map(|(name, points)| Series { name: (*name).into(), points: points.clone() }).collect();
    Plot { name: name.into(), title: title.into(), x: "blocks".into(), y: y.into(), log_x: false, series }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_curve_is_drawn_to_200_blocks() {
        let context = Context::small(".".into());
        let outcome = run(&context).expect("it runs");
        assert_eq!(outcome.plots.len(), 2);
        let speedup = |case: &str| outcome.rows.iter().find(|row| row.side == "hotshelf" && row.case == case).map(|row| row.median);
        assert!(speedup("200 reads") >= Some(7.0) && speedup("200 writes") >= Some(2.0), "the model's time is virtual");
    }
}
