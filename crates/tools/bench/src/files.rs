//! Scratch files for measurements.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::Context as _;

use crate::experiment::Context;

/// Writes a file of incompressible bytes, durable and determined by the seed.
///
/// # Errors
/// The file cannot be written, usually for lack of space.
pub fn fill(context: &Context, path: &Path, mib: u64, seed: u64) -> anyhow::Result<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut piece = vec![0; 1 << 20];
    let name = || format!("{}", path.display());
    let mut file = File::create(path).with_context(name)?;
    for _ in 0..mib {
        context.check_stopped()?;
        random.fill(&mut piece);
        file.write_all(&piece).with_context(name)?;
    }
    file.sync_all().with_context(name)
}
