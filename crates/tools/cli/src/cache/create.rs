//! `hotshelf cache create`.

use std::path::Path;

use anyhow::{Context, bail};
use cachedfs::{Config, image};
use serde_json::json;

use super::args::CreateArgs;
use super::locate::Located;
use super::{bar, serve, settings, size};
use crate::Usage;

/// Formats the SSD and writes the settings down.
pub fn create(args: &CreateArgs) -> anyhow::Result<bool> {
    let config = config(args)?;
    let file = Config::file_of(&config.name);
    if !args.force
        && let Some(other) = other_of_that_name(&config)
    {
        bail!("{other} is called {} already and is kept: give this one another --name", config.name);
    }
    sizes_make_sense(&config)?;
    serve::take_down(&Located { config: config.clone(), file: Some(file.clone()) })?;
    let made = match &config.ssd {
        Some(ssd) => Some(format(ssd, args, &config)?),
        None => None,
    };
    if let Err(error) = settings::write(&file, &config) {
        // A file that nobody knows would be in the way of the next try.
        if let (Some(ssd), Some(made)) = (&config.ssd, &made)
            && made.is_new
        {
            image::remove(ssd, true)?;
        }
        return Err(error);
    }
    if args.json {
        say_lines!(
            "{}",
            serde_json::to_string_pretty(&json!({ "name": config.name, "settings": file, "ssd": config.ssd, "image": made }))?
        );
        return Ok(true);
    }
    match (&config.ssd, &made) {
        (Some(ssd), Some(made)) => {
            let replaced = made.replaced.as_ref().map_or(String::new(), |what| format!("; {what} is overwritten"));
            tell!("{}: a cache of {}, {} pages in {} segments{replaced}", ssd.display(), size(made.bytes), made.pages, made.segments);
        }
        _ => tell!("{}: a cache in memory alone; with --size or the path of a device it has an SSD, too", config.name),
    }
    tell!("its settings are in {}; programs use it with", file.display());
    tell!("  export HOTSHELF_CONFIG={}", file.display());
    Ok(true)
}

fn config(args: &CreateArgs) -> anyhow::Result<Config> {
    let usage = |what: String| Usage(format!("{what}; see `hotshelf cache create --help`"));
    let is_controller = cachedfs::user_space_nvme::is_meant(&args.cache);
    let is_path =
        is_controller || args.size.is_some() || args.cache.exists() || args.cache.to_str().is_none_or(|given| given.contains('/'));
    let ssd = if is_path { Some(absolute(&args.cache)?) } else { None };
    let name = match (&args.name, &ssd) {
        (Some(name), _) => name.clone(),
        (None, Some(ssd)) => Config::name_for(ssd),
        (None, None) => args.cache.to_string_lossy().into_owned(),
    };
    if !Config::is_name(&name) {
        return Err(usage(format!("`{name}` is no name: letters, digits, `-`, `_` and `.`, at most 64, not beginning with `.`")).into());
    }
    let plain = Config::default();
    let config = Config {
        name,
        ssd,
        memory: args.memory,
        record_file: args.record_file.clone(),
        mode: args.mode.unwrap_or(plain.mode),
        group: args.group.clone(),
        dirty_limit: args.dirty_limit.unwrap_or(plain.dirty_limit),
        dirty_age: args.dirty_age.unwrap_or(plain.dirty_age),
        read_ahead: args.read_ahead.unwrap_or(plain.read_ahead),
        read_around: args.read_around.unwrap_or(plain.read_around),
        bytes_per_day: args.bytes_per_day,
        stream_cutoff: args.stream_cutoff.unwrap_or(plain.stream_cutoff),
        second_touch: !args.first_touch,
        direct: args.direct,
        files: args.files.unwrap_or(plain.files),
        runtime_dir: args.runtime_dir.clone().unwrap_or_else(|| plain.runtime_dir.clone()),
        keep: args.keep,
        ..plain
    };
    config.check().map_err(|error| usage(error.to_string()))?;
    Ok(config)
}

/// What no machine like this one can give is not what was meant.
pub fn sizes_make_sense(config: &Config) -> anyhow::Result<()> {
    let ram = cachedfs::machine_memory_bytes();
    if let Some(memory) = config.memory.filter(|memory| memory.of(ram) > ram) {
        let (wanted, there) = (size(memory.of(ram)), size(ram));
        return Err(Usage(format!("--memory {wanted} is more than this machine has ({there}): did you mean a share, such as 25%?")).into());
    }
    Ok(())
}

fn absolute(path: &Path) -> anyhow::Result<std::path::PathBuf> {
    if cachedfs::user_space_nvme::is_meant(path) {
        return Ok(cachedfs::user_space_nvme::absolute(path));
    }
    std::path::absolute(path).with_context(|| format!("{}", path.display()))
}

/// Another cache's settings, of one that is still there, would be overwritten.
fn other_of_that_name(config: &Config) -> Option<String> {
    let file = Config::file_of(&config.name);
    let there = match Config::read(&file) {
        Ok(there) => there,
        // Somebody wrote something there, even if it is wrong.
        Err(_) if file.symlink_metadata().is_ok() => return Some(format!("a cache whose settings cannot be read ({})", file.display())),
        Err(_) => return None,
    };
    match (there.ssd, &config.ssd) {
        (Some(ssd), ours) if Some(&ssd) != ours.as_ref() && (ssd.exists() || cachedfs::user_space_nvme::is_meant(&ssd)) => {
            Some(ssd.display().to_string())
        }
        (None, _) => Some(format!("a cache in memory alone ({})", file.display())),
        _ => None,
    }
}

fn format(ssd: &Path, args: &CreateArgs, config: &Config) -> anyhow::Result<image::Made> {
    let group = match &config.group {
        Some(group) => Some(crate::queue::group_id(group)?),
        None => None,
    };
    let bar = bar("{bar:30} {bytes}/{total_bytes} {eta} left")?;
    let options = image::Options { size: args.size, force: args.force, group };
    let made = image::create(ssd, &options, &mut |done, of| {
        bar.set_length(of);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    Ok(made?)
}
