//! What a run is over, from its seed.

use std::path::{Path, PathBuf};

use cachedfs::{Config, Mode, Size};
use fastrand::Rng;

/// Names of files, in directories that are there, in one that comes and goes, and one that a symbolic link may have.
pub const NAMES: [&str; 6] = ["a/0", "b/1", "a/2", "b/3", "d/4", "a/s"];
/// What comes and goes.
pub const DIRS: [&str; 3] = ["d", "e", "a/f"];
/// What the symbolic link leads to, in whichever directory it is.
pub const LINKED: &str = "../b/1";
pub const SIDES: [&str; 2] = ["cached", "plain"];
/// Bytes of a file, at most, when a call begins behind its end.
pub const LONGEST: u64 = 300 << 10;
/// All but read-only, which comes by a change of the mode: there is nothing to do from the begin.
pub const MODES: [Mode; 5] = [Mode::WriteBack, Mode::WriteThrough, Mode::WriteAround, Mode::PassThrough, Mode::ReadOnly];

#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub seed: u64,
    pub mode: Mode,
    pub has_ssd: bool,
    pub memory: u64,
    pub direct: bool,
}

impl Setup {
    pub fn of(seed: u64) -> Setup {
        let mut rng = Rng::with_seed(seed);
        // What is dirty is the harder half.
        let mode = if rng.bool() { Mode::WriteBack } else { MODES[rng.usize(..4)] };
        let memory = [256 << 10, 512 << 10, 2 << 20, 16 << 20][rng.usize(..4)];
        Setup { seed, mode, has_ssd: rng.bool(), memory, direct: rng.u8(..8) == 0 }
    }

    pub fn config(self, dir: &Path) -> Config {
        Config {
            memory: Some(Size::Bytes(self.memory)),
            ssd: self.has_ssd.then(|| dir.join("ssd")),
            ssd_size: self.has_ssd.then_some(Size::Bytes(4 << 20)),
            second_touch: self.seed.is_multiple_of(2),
            dirty_age: ["50ms", "5s"][usize::from(self.seed.is_multiple_of(3))].parse().expect("a time"),
            direct: self.direct,
            mode: self.mode,
            files: 64,
            runtime_dir: dir.to_owned(),
            ..Config::default()
        }
    }
}

pub fn path_in(dir: &Path, side: usize, name: usize) -> PathBuf {
    dir.join(SIDES[side]).join(NAMES[name])
}
