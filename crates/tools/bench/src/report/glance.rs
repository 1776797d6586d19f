//! A summary chart of all claims: how many times better or worse than the peer, ours and the paper's, on one axis.

use crate::numbers::times;
use crate::outcome::Claim;
use crate::results::Results;
use crate::row::Better;
use crate::svg::{self, WIDTH, fit, text};

const LABEL: f64 = 372.0;
const VALUES: f64 = 96.0;
const STEP: f64 = 20.0;
/// The end of the axis; a dot there means "or more".
const MOST: f64 = 100.0;

/// Returns the gain: above 1 is good for us, whatever the metric.
pub fn gain(claim: &Claim, ratio: f64) -> f64 {
    if claim.better() == Better::Higher { ratio } else { 1.0 / ratio }
}

/// Returns the chart of one or several experiments.
pub fn chart(all: &[Results], title: &str) -> Option<String> {
    let claims = || all.iter().flat_map(|one| &one.outcome.claims);
    let values = claims().flat_map(|claim| [Some(claim.ratio), claim.paper].into_iter().flatten().map(|ratio| gain(claim, ratio)));
    let farthest = values.map(|value| value.ln().abs()).filter(|far| far.is_finite()).fold(2_f64.ln(), f64::max).min(MOST.ln());
    let axis = Axis(farthest * 1.08);
    let (mut body, mut y, mut description) = (legend(), 62.0, Vec::new());
    for one in all.iter().filter(|one| !one.outcome.claims.is_empty()) {
        y += 22.0;
        body += &text(0.0, y, "case", &one.run.experiment);
        let peer = &one.outcome.claims[0].peer;
        let several = one.outcome.claims.iter().any(|claim| claim.peer != *peer);
        if !several {
            body += &text(LABEL, y, "soft end", &fit(&format!("beside {peer}"), LABEL - svg::width_of(&one.run.experiment) - 20.0));
        }
        for claim in &one.outcome.claims {
            y += STEP;
            body += &axis.claim(claim, several, y);
            let paper = claim.paper.map_or(String::new(), |paper| format!(", the paper {}", times(gain(claim, paper))));
            description.push(format!("{} {}: {} times{paper}", claim.what, claim.metric, times(gain(claim, claim.ratio))));
        }
    }
    (!description.is_empty()).then(|| {
        let body = text(0.0, 18.0, "head", title) + &axis.grid(y + 8.0) + &body;
        svg::chart(y + 36.0, title, &description.join("; "), &body)
    })
}

fn legend() -> String {
    let mut body = dot(6.0, 36.0, true) + &text(18.0, 40.0, "soft", "ours, as good or better");
    body += &(dot(176.0, 36.0, false) + &text(188.0, 40.0, "soft", "ours, worse"));
    body += &(diamond(286.0, 36.0) + &text(298.0, 40.0, "soft", "the paper's"));
    body + &text(WIDTH, 40.0, "soft end", "to the right of 1: better than the peer")
}

fn dot(x: f64, y: f64, good: bool) -> String {
    if good {
        return format!("<circle class=\"f0\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\"/>\n");
    }
    format!("<path class=\"f1\" d=\"M{:.1} {:.1}h11l-5.5 9.5z\"/>\n", x - 5.5, y - 4.0)
}

fn diamond(x: f64, y: f64) -> String {
    format!("<path class=\"paper\" d=\"M{x:.1} {:.1}l5 5l-5 5l-5 -5z\"/>\n", y - 5.0)
}

/// A logarithmic axis with 1 in the middle and this limit on both sides.
struct Axis(f64);

impl Axis {
    fn x(&self, gain: f64) -> f64 {
        let (from, to) = (LABEL + 10.0, WIDTH - VALUES - 10.0);
        let share = (gain.ln() / self.0).clamp(-1.0, 1.0);
        from + (to - from) * (share + 1.0) / 2.0
    }

    fn grid(&self, bottom: f64) -> String {
        let mut body = String::new();
        for value in [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0_f64] {
            if value.ln().abs() > self.0 || (self.0 > 3.0 && ![0.01, 0.1, 1.0, 10.0, 100.0].contains(&value)) {
                continue;
            }
            let class = if value == 1.0 { "one" } else { "grid" };
            let x = self.x(value);
            body += &format!("<path class=\"{class}\" d=\"M{x:.1} 66V{bottom:.1}\"/>\n");
            body += &text(x, bottom + 16.0, "soft mid", &svg::tick(value));
            body += &text(x, 60.0, "soft mid", &svg::tick(value));
        }
        body
    }

    fn claim(&self, claim: &Claim, several: bool, y: f64) -> String {
        let (mine, mid) = (gain(claim, claim.ratio), y - 4.0);
        let who = claim.ours.strip_prefix("hotshelf").unwrap_or_default();
        let metric = claim.metric.replace('_', " ");
        let label =
            if several { format!("{}{who}: {metric} / {}", claim.what, claim.peer) } else { format!("{}{who}: {metric}", claim.what) };
        let mut body = text(LABEL, y, "end", &fit(&label, LABEL));
        let (from, to) = (self.x(gain(claim, claim.min)), self.x(gain(claim, claim.max)));
        body += &format!("<path class=\"whisker\" d=\"M{from:.1} {mid:.1}H{to:.1}\"/>\n");
        if let Some(paper) = claim.paper {
            body += &diamond(self.x(gain(claim, paper)), mid);
        }
        body += &dot(self.x(mine), mid, mine >= 0.995);
        let paper = claim.paper.map_or(String::new(), |paper| format!(" ({})", times(gain(claim, paper))));
        body + &text(WIDTH, y, "end", &format!("{}{paper}", times(mine)))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn less_time_is_to_the_right() {
        let claim = |metric: &str, ratio: f64| Claim::direct("x", metric, "hotshelf", "ext4", &[ratio]);
        assert_eq!(gain(&claim("time", 0.5), 0.5), 2.0);
        assert_eq!(gain(&claim("iops", 0.5), 0.5), 0.5);
        let axis = Axis(MOST.ln());
        assert!(axis.x(1000.0) <= WIDTH - VALUES && axis.x(1e-9) >= LABEL, "beyond the end is at the end");
        assert!((axis.x(1.0) * 2.0 - axis.x(10.0) - axis.x(0.1)).abs() < 1e-6);
    }
}
