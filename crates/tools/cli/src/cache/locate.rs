//! Which cache is meant: by its name, by the path of its SSD, or by nothing.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use cachedfs::{Config, image, user_space_nvme};

use super::args::{This, Which};

/// A cache, and where its settings are written down, if they are.
#[derive(Debug)]
pub struct Located {
    /// The settings of the cache.
    pub config: Config,
    /// The configuration file, if the settings come from one.
    pub file: Option<PathBuf>,
}

impl Located {
    /// What it is called to people: its SSD's path, or its name.
    pub fn shown(&self) -> String {
        self.config.ssd.as_ref().map_or_else(|| self.config.name.clone(), |ssd| ssd.display().to_string())
    }

    /// Returns the path of the SSD device or file, if the cache has one.
    pub fn ssd(&self, doing: &str) -> anyhow::Result<&Path> {
        match &self.config.ssd {
            Some(ssd) => Ok(ssd),
            None => bail!("the cache {} has memory and no SSD: there is nothing to {doing}", self.config.name),
        }
    }
}

/// The one that is named; or that of `$HOTSHELF_CONFIG`, or `default`.
pub fn which(which: &Which) -> anyhow::Result<Located> {
    match (&which.cache, &which.config) {
        (Some(cache), config) => named(cache, config.as_deref()),
        (None, Some(file)) => read(file),
        (None, None) => match environment() {
            Some(file) => read(&file).context("$HOTSHELF_CONFIG"),
            None => by_name("default"),
        },
    }
}

/// The one that is named.
pub fn this(this: &This) -> anyhow::Result<Located> {
    named(&this.cache, this.config.as_deref())
}

/// Returns the cache of a name, or of the path of its SSD.
pub fn by_name_or_path(cache: &Path) -> anyhow::Result<Located> {
    named(cache, None)
}

fn environment() -> Option<PathBuf> {
    shm::environment::path("HOTSHELF_CONFIG")
}

fn read(file: &Path) -> anyhow::Result<Located> {
    Ok(Located { config: Config::read(file)?, file: Some(file.to_owned()) })
}

fn named(cache: &Path, config: Option<&Path>) -> anyhow::Result<Located> {
    if let Some(file) = config {
        let located = read(file)?;
        if is_of(&located.config, cache) {
            return Ok(located);
        }
        bail!("{} has the settings of {}, not of {}", file.display(), located.shown(), cache.display());
    }
    // What programs are pointed to counts before what is lying about.
    if let Some(located) = environment().and_then(|file| read(&file).ok()).filter(|located| is_of(&located.config, cache)) {
        return Ok(located);
    }
    match as_name(cache) {
        Some(name) => by_name(name),
        None => by_ssd(cache),
    }
}

/// A name, if it cannot be a path.
pub fn as_name(cache: &Path) -> Option<&str> {
    let name = cache.to_str().filter(|name| Config::is_name(name))?;
    (!cache.exists() || Config::file_of(name).exists()).then_some(name)
}

fn by_name(name: &str) -> anyhow::Result<Located> {
    let file = Config::file_of(name);
    if file.exists() {
        return read(&file);
    }
    if name == Config::default().name {
        return Ok(Located { config: Config::default(), file: None });
    }
    bail!("no cache named `{name}`: `hotshelf status` lists the caches, `hotshelf cache create` makes one")
}

fn by_ssd(ssd: &Path) -> anyhow::Result<Located> {
    for (file, config) in Config::known() {
        match config {
            Ok(config) if is_of(&config, ssd) => return Ok(Located { config, file: Some(file) }),
            _ => {}
        }
    }
    // Made on another machine, or by another user: it is a cache all the same.
    let found = image::inspect(ssd);
    if let Err(error) = &found
        && error.errno() != rustix::io::Errno::BUSY.raw_os_error()
    {
        return Err(found.map(|_| ()).unwrap_err().into());
    }
    let ssd = user_space_nvme::absolute(ssd);
    Ok(Located { config: Config { name: Config::name_for(&ssd), ssd: Some(ssd), ..Config::default() }, file: None })
}

fn is_of(config: &Config, cache: &Path) -> bool {
    let same = |ssd: &PathBuf| {
        let real = |path: &Path| std::fs::canonicalize(path).ok();
        let controller = |path: &Path| user_space_nvme::parse(path).map(|_| user_space_nvme::absolute(path));
        ssd == cache
            || controller(ssd).is_some_and(|ssd| controller(cache) == Some(ssd))
            || real(ssd).is_some_and(|ssd| real(cache).is_some_and(|cache| cache == ssd))
    };
    cache.to_str() == Some(&config.name) || config.ssd.as_ref().is_some_and(same)
}

/// Whether a path or name means a cache rather than a mount: for commands that know both.
pub fn is_cache(given: &Path) -> bool {
    let named = as_name(given).is_some_and(|name| name == Config::default().name || Config::file_of(name).exists());
    let is_dir = given.is_dir();
    named
        || (!is_dir && given.exists())
        || Config::known().iter().any(|(_, config)| config.as_ref().is_ok_and(|config| is_of(config, given)))
}
