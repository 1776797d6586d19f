//! Zipf-distributed numbers, drawn as in YCSB (Gray et al., "Quickly generating billion-record synthetic databases", SIGMOD 1994).

/// A generator of Zipf-distributed numbers; small ones are frequent.
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    count: u64,
    theta: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    /// Creates a generator of `count` numbers, at least 2, with an exponent below 1.
    pub fn new(count: u64, theta: f64) -> Zipf {
        let zeta = |count: u64| (1..=count).map(|n| (n as f64).powf(-theta)).sum::<f64>();
        let (all, two) = (zeta(count), zeta(2));
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - theta)) / (1.0 - two / all);
        Zipf { count, theta, alpha: 1.0 / (1.0 - theta), zeta: all, eta }
    }

    /// Returns the next random number.
    pub fn draw(&self, rng: &mut fastrand::Rng) -> u64 {
        let u = rng.f64();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5_f64.powf(self.theta) {
            return 1;
        }
        ((self.count as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64).min(self.count - 1)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_first_tenth_is_most_of_it() {
        let (zipf, mut rng) = (Zipf::new(1000, 0.99), fastrand::Rng::with_seed(1));
        let draws: Vec<u64> = (0..10_000).map(|_| zipf.draw(&mut rng)).collect();
        assert!(draws.iter().all(|n| *n < 1000));
        let low = draws.iter().filter(|n| **n < 100).count();
        assert!((6000..8500).contains(&low), "{low}");
    }
}
