//! `hotshelf retire`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use hybridfs::Config;
use hybridfs::report::{ControlRequest, TierName};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::args::{RetireArgs, Side};
use crate::{Usage, talk};

/// Brings everything to the other side, by the daemon of a mount, or here if the pair is not mounted.
pub fn retire(args: &RetireArgs) -> anyhow::Result<bool> {
    let side = match args.side {
        Some(Side::Ssd) => TierName::Ssd,
        Some(Side::Hdd) => TierName::Hdd,
        None => return Err(Usage("which side: ssd or hdd?".into()).into()),
    };
    match (&args.mountpoint, &args.ssd, &args.hdd) {
        (Some(mountpoint), ..) => {
            let mounted = talk::at_mountpoint(mountpoint)?;
            talk::long_work(&mounted, &ControlRequest::Retire { side, dry_run: args.dry_run })
        }
        (None, Some(ssd), Some(hdd)) => unmounted(ssd, hdd, side, args.dry_run),
        _ => Err(Usage("give the mount point, or --ssd and --hdd of a pair that is not mounted".into()).into()),
    }
}

fn unmounted(ssd: &Path, hdd: &Path, side: TierName, dry_run: bool) -> anyhow::Result<bool> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The second one ends the program.
        signal_hook::flag::register_conditional_shutdown(signal, 130, interrupted.clone()).context("watching for interrupts")?;
        signal_hook::flag::register(signal, interrupted.clone()).context("watching for interrupts")?;
    }
    let running = hybridfs::start(Config { ssd: ssd.to_owned(), hdd: hdd.to_owned(), ..Config::default() })?;
    let bar = talk::progress_bar()?;
    let outcome = running.fs.retire(side, dry_run, &mut |files, files_done, bytes, bytes_done| {
        bar.set_length(bytes);
        bar.set_position(bytes_done);
        bar.set_message(format!("{files_done} of {files} files"));
        !interrupted.load(Ordering::SeqCst)
    });
    bar.finish_and_clear();
    running.close();
    match outcome {
        Ok(message) => tell!("{message}"),
        Err(message) => bail!("{message}"),
    }
    Ok(true)
}
