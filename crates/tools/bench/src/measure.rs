//! Checks and runs an experiment.

use std::path::Path;

use crate::experiment::{Context, Experiment, RunScale, StoppedError};
use crate::needs;
use crate::outcome::Outcome;

impl Experiment {
    /// Returns why the experiment cannot run on this machine; empty if it can.
    pub fn lacks(&self) -> Vec<String> {
        needs::lacks(self.needs)
    }

    /// Returns the versions of the programs involved.
    pub fn versions(&self) -> Vec<String> {
        needs::versions(self.needs)
    }

    /// Returns why the experiment cannot run in this context, including missing scratch space.
    pub fn cannot(&self, context: &Context) -> Option<String> {
        let mut why = self.lacks();
        why.extend(self.lacks_room(context));
        (!why.is_empty()).then(|| why.join("; "))
    }

    fn lacks_room(&self, context: &Context) -> Option<String> {
        let wanted = if context.scale == RunScale::Small { self.room_mib.0 } else { self.room_mib.1 };
        let dir = context.dir.display();
        match free_mib(&context.dir) {
            Ok(free) if free < wanted => {
                Some(format!("it needs {wanted} MiB in {dir}, and {free} MiB are free: give another place with --dir"))
            }
            Ok(_) => None,
            Err(error) => Some(format!("{dir}: {error}")),
        }
    }

    /// Runs the experiment. If the scratch directory filled up meanwhile, the error says so: a full disk below a loop device looks like a
    /// broken one.
    ///
    /// # Errors
    /// Errors of the experiment.
    pub fn measure(&self, context: &Context) -> anyhow::Result<Outcome> {
        (self.run)(context).map_err(|error| match self.lacks_room(context) {
            Some(why) if !error.is::<StoppedError>() => anyhow::anyhow!("{error:#} ({why})"),
            _ => error,
        })
    }
}

fn free_mib(dir: &Path) -> std::io::Result<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize) >> 20)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_disk_that_filled_up_meanwhile_is_reported() {
        let dir = tempfile::tempdir().expect("a directory");
        let context = Context::small(dir.path().to_owned());
        let said = |one: &Experiment| format!("{:#}", one.measure(&context).expect_err("it fails"));
        let broken = Experiment { run: |_| anyhow::bail!("mkfs: Input/output error"), ..*crate::find("policies").expect("there is one") };
        let full = Experiment { room_mib: (u64::MAX, u64::MAX), ..broken };
        assert!(said(&full).contains("mkfs: Input/output error (it needs"));
        let stopped = Experiment { run: |_| Err(StoppedError.into()), ..full };
        assert!(stopped.measure(&context).expect_err("it ends").is::<StoppedError>());
        assert_eq!(said(&broken), "mkfs: Input/output error");
    }

    #[test]
    fn a_directory_without_room_is_reported() {
        let dir = tempfile::tempdir().expect("a directory");
        let context = Context::small(dir.path().to_owned());
        let block = crate::find("policies").expect("there is one");
        assert_eq!(block.cannot(&context), None);
        let large = Experiment { room_mib: (u64::MAX, u64::MAX), needs: &[], ..*block };
        assert!(large.cannot(&context).is_some_and(|why| why.contains("are free") && why.contains("--dir")));
        let nowhere = Context::small("/nonexistent".into());
        assert!(large.cannot(&nowhere).is_some_and(|why| why.contains("/nonexistent")));
    }
}
