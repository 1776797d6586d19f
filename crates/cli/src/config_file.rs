//! The configuration file: anything a flag of `mount` can say, under the same names.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Deserialize;

use crate::args::MountArgs;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct File {
    ssd: Option<PathBuf>,
    hdd: Option<PathBuf>,
    mountpoint: Option<PathBuf>,
    policy: Option<String>,
    high: Option<String>,
    low: Option<String>,
    reserve: Option<String>,
    min_file_size: Option<String>,
    max_file_size: Option<String>,
    promotion: Option<String>,
    pin: Vec<String>,
    hdd_only: Vec<String>,
    move_rate: Option<String>,
    touch_window: Option<u32>,
    allow_other: bool,
    single_thread: bool,
    threads: Option<u16>,
    no_passthrough: bool,
    clone_fd: bool,
    cache_ttl: Option<u64>,
    read_only: bool,
    log_file: Option<PathBuf>,
    log_json: bool,
    log_level: Option<String>,
    options: Vec<String>,
}

/// Fills what the flags left open from the file.
pub fn apply(path: &Path, args: &mut MountArgs) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{}: the configuration file cannot be read", path.display()))?;
    let file: File = toml::from_str(&text).map_err(|error| {
        let line = error.span().map_or(0, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        crate::Usage(format!("{}:{line}: {}", path.display(), error.message()))
    })?;
    let setting = |name: &str, value: Option<String>| Parsed { path: path.to_owned(), name: name.to_owned(), value };
    args.ssd = args.ssd.take().or(file.ssd);
    args.hdd = args.hdd.take().or(file.hdd);
    args.mountpoint = args.mountpoint.take().or(file.mountpoint);
    args.policy = args.policy.take().or(file.policy);
    args.high = args.high.take().map_or_else(|| setting("high", file.high).parse(), |given| Ok(Some(given)))?;
    args.low = args.low.take().map_or_else(|| setting("low", file.low).parse(), |given| Ok(Some(given)))?;
    args.reserve = args.reserve.take().map_or_else(|| setting("reserve", file.reserve).parse(), |given| Ok(Some(given)))?;
    args.min_file_size =
        args.min_file_size.take().map_or_else(|| setting("min-file-size", file.min_file_size).parse(), |given| Ok(Some(given)))?;
    args.max_file_size =
        args.max_file_size.take().map_or_else(|| setting("max-file-size", file.max_file_size).parse(), |given| Ok(Some(given)))?;
    args.promotion = args.promotion.take().map_or_else(|| setting("promotion", file.promotion).parse(), |given| Ok(Some(given)))?;
    args.move_rate = args.move_rate.take().map_or_else(|| setting("move-rate", file.move_rate).parse(), |given| Ok(Some(given)))?;
    args.pin.extend(file.pin);
    args.hdd_only.extend(file.hdd_only);
    args.touch_window = args.touch_window.or(file.touch_window);
    args.threads = args.threads.or(file.threads);
    args.cache_ttl = args.cache_ttl.or(file.cache_ttl);
    args.allow_other |= file.allow_other;
    args.single_thread |= file.single_thread;
    args.no_passthrough |= file.no_passthrough;
    args.clone_fd |= file.clone_fd;
    args.read_only |= file.read_only;
    args.log_json |= file.log_json;
    args.log_file = args.log_file.take().or(file.log_file);
    args.log_level = args.log_level.take().or(file.log_level);
    args.options.extend(file.options);
    Ok(())
}

struct Parsed {
    path: PathBuf,
    name: String,
    value: Option<String>,
}

impl Parsed {
    fn parse<T: std::str::FromStr<Err = hybridfs::config::BadSetting>>(self) -> anyhow::Result<Option<T>> {
        let Some(value) = self.value else { return Ok(None) };
        let parsed = value.parse().map_err(|error| crate::Usage(format!("{}: {}: {error}", self.path.display(), self.name)))?;
        Ok(Some(parsed))
    }
}
