//! `hotshelf fs mount`.

use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use mount::raw::run;
use mount::{MountFlags, SessionOptions};
use stack::rawfs::fs::{Fs, FsSettings, Memory};
use stack::rawfs::{Settings, Store};

use super::args::FsMountArgs;
use super::{bytes, is_path, open};
use crate::daemon;

/// Mounts, in the background unless asked otherwise.
pub fn mount(args: &FsMountArgs) -> anyhow::Result<bool> {
    if !args.foreground && !args.ready_pipe {
        let words: Vec<_> = std::env::args_os().skip(1).collect();
        daemon::log_filter(None, "fs mount")?;
        let log = args.log_file.as_deref().map(daemon::open_log).transpose()?.map_or_else(Stdio::null, Stdio::from);
        let hides = crate::hidden_files::hides_files(&args.mountpoint);
        return match daemon::start_again(&words, log)? {
            None => {
                crate::hidden_files::warn_of_hidden(hides, &args.mountpoint);
                Ok(true)
            }
            Some((status, said)) if said.is_empty() => anyhow::bail!("the daemon ended ({status}) without a word: see --log-file"),
            Some((_, said)) => anyhow::bail!("{said}"),
        };
    }
    daemon::log_to_stderr()?;
    let fs = open_fs(args)?;
    let options = SessionOptions {
        mountpoint: args.mountpoint.clone(),
        source: match is_path(&args.image) {
            true => std::path::absolute(&args.image).unwrap_or_else(|_| args.image.clone()),
            false => args.image.clone(),
        }
        .display()
        .to_string(),
        allow_other: args.allow_other,
        read_only: args.read_only,
        threads: args.threads.map_or(8, usize::from),
        uring: args.uring.unwrap_or_default(),
        flags: MountFlags { suid: args.suid, dev: args.dev, ..MountFlags::default() },
    };
    let announce = args.ready_pipe;
    run(fs, &options, move || {
        if announce {
            daemon::announce_ready();
        }
    })?;
    Ok(true)
}

fn open_fs(args: &FsMountArgs) -> anyhow::Result<Fs> {
    let memory = bytes(args.memory, "--memory")?.map(|bytes| Memory::of(usize::try_from(bytes).unwrap_or(usize::MAX)));
    // The mount syncs all every few seconds, which writes back as well: no second thread does.
    let (mut settings, mut files) = (Settings::default(), FsSettings { write_back: Duration::ZERO, ..FsSettings::default() });
    let named = || format!("{}", args.image.display());
    let disk = open(&args.image, false)?;
    if let Some(wanted) = bytes(args.memory, "--memory")?.filter(|wanted| *wanted > stack::cachedfs::machine_memory_bytes()) {
        let (wanted, there) = (super::human(wanted), super::human(stack::cachedfs::machine_memory_bytes()));
        return Err(crate::Usage(format!("--memory {wanted} is more than this machine has ({there})")).into());
    }
    if let Some(memory) = memory {
        let least = Memory::least(disk.blocks());
        let too_little = || format!("--memory: this image needs {} bytes at least", least);
        memory.divide(disk.blocks(), &mut settings, &mut files).with_context(too_little)?;
        // What the kernel holds open it holds.
        files.open_max = usize::MAX;
    }
    let (store, recovery) = Store::open(disk, &settings).with_context(named)?;
    if !recovery.clean {
        let (image, batches) = (args.image.display(), recovery.replayed);
        tracing::info!(%image, batches, "not unmounted cleanly: the log was replayed");
    }
    let (fs, orphans) = Fs::open(store, files).with_context(named)?;
    if orphans > 0 {
        tracing::info!(orphans, "files that had no name any more are removed");
    }
    Ok(fs)
}
