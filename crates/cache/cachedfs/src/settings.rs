//! The files with the settings of caches, one for each name. `HOTSHELF_CONFIG` points a program to one.

use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::error::Error;

/// Maximum length of a name.
const NAME_MAX: usize = 64;

impl Config {
    /// Returns the directory of the settings: hotshelf/caches in `$XDG_CONFIG_HOME`; if that is not set, in /etc for root, else in
    /// ~/.config.
    pub fn dir() -> PathBuf {
        let said = |name: &str| shm::environment::absolute_path(name);
        let home = || match rustix::process::geteuid().is_root() {
            true => "/etc".into(),
            false => said("HOME").unwrap_or_else(|| "/".into()).join(".config"),
        };
        said("XDG_CONFIG_HOME").unwrap_or_else(home).join("hotshelf/caches")
    }

    /// Returns the path of the settings of a cache, whether or not it exists.
    pub fn file_of(name: &str) -> PathBuf {
        Config::dir().join(format!("{name}.toml"))
    }

    /// Returns all settings by name; an unreadable file is listed with its error.
    pub fn known() -> Vec<(PathBuf, Result<Config, Error>)> {
        let entries = std::fs::read_dir(Config::dir()).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut files: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect();
        files.sort();
        files.into_iter().map(|path| (path.clone(), Config::read(&path))).collect()
    }

    /// Returns whether a cache may have this name: letters, digits, `-`, `_` and `.`, not starting with `.`.
    pub fn is_name(name: &str) -> bool {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !name.is_empty() && name.len() <= NAME_MAX && !name.starts_with('.') && name.chars().all(plain)
    }

    /// Returns the default name of a cache on this SSD: the last component of the path, without its extension.
    pub fn name_for(ssd: &Path) -> String {
        if let Some(name) = crate::user_space_nvme::short_name(ssd) {
            return name;
        }
        let stem = ssd.file_stem().unwrap_or_default().to_string_lossy();
        let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
        let name: String = stem.trim_start_matches('.').chars().map(plain).take(NAME_MAX).collect();
        if name.is_empty() { "cache".to_owned() } else { name }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn every_path_gives_a_name() {
        for (path, name) in
            [("/ssd/cache", "cache"), ("/dev/nvme0n1p3", "nvme0n1p3"), ("a b\u{e9}.img", "a-b-"), ("/x/.hid", "hid"), ("/", "cache")]
        {
            assert_eq!(Config::name_for(Path::new(path)), name);
            assert!(Config::is_name(name));
        }
        assert_eq!(Config::name_for(Path::new(&"x".repeat(200))).len(), NAME_MAX);
        assert!(["", ".x", "a/b", "a b", "a\n"].iter().all(|name| !Config::is_name(name)));
    }
}
