//! The table `[cache]` of the configuration file.
//!
//! ```toml
//! [cache]
//! name = "default"          # distinguishes the instances of a user
//! memory = "25%"            # of RAM; not said: a quarter, at most 1GiB
//! ssd = "/ssd/cache"        # a file, a block device, or nvme:0000:03:00.0/1; not said: none
//! ssd_size = "100GiB"       # of the file, when it is made
//! mode = "write-back"       # write-through, write-around, read-only, pass-through
//! rules = [{ glob = "*.log", admit = "never" }, { glob = "/data/index/**", pin = true }]
//! ```

use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use ssdcache::Mode;

use crate::error::Error;
use crate::{Age, Size};

/// The tables of the configuration file: ours, and the one of the C library (`capi`).
const TABLES: [&str; 2] = ["cache", "library"];

/// The settings of a new instance. A process that attaches to a running one uses those of that instance (see [`crate::Status::notes`]).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The name that distinguishes the instances of one user: letters, digits, `.`, `-` and `_`, at most 64.
    pub name: String,
    /// The memory for pages; a share is of RAM. Default: a quarter of RAM, at most 1 GiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    /// The SSD: a file, a block device, or a namespace of an NVMe controller with a user-space driver (`nvme:0000:03:00.0/1`,
    /// `vfio-user:/run/x.sock/1`). Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssd: Option<PathBuf>,
    /// The size of the SSD's file when it is created; a share is of the free space in its file system.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(alias = "ssd-size")]
    pub ssd_size: Option<Size>,
    /// Whether the SSD is drained: no process opens it, and the cache has its memory alone (`hotshelf cache drain`). It is opened all the
    /// same if it may have what no file has.
    #[serde(skip_serializing_if = "is_false")]
    pub drained: bool,
    /// The file of such a controller's flight recorder, for other processes to read: `hotshelf queue record FILE`. Default: private memory
    /// of the leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(alias = "record-file")]
    pub record_file: Option<PathBuf>,
    /// The write policy of the cache.
    #[serde(with = "mode")]
    pub mode: Mode,
    /// The amount of dirty pages at which writers wait; a share is of the memory.
    #[serde(alias = "dirty-limit")]
    pub dirty_limit: Size,
    /// The age at which dirty pages are written to the backing file.
    #[serde(alias = "dirty-age")]
    pub dirty_age: Age,
    /// The maximum read-ahead of a sequential reader; 0: none.
    #[serde(alias = "read-ahead")]
    pub read_ahead: Size,
    /// The amount that is read around a requested page from a slow disk while the SSD has room for it; 0: only that page.
    #[serde(alias = "read-around")]
    pub read_around: Size,
    /// Whether backing files are read and written with `O_DIRECT` where their file system supports it.
    pub direct: bool,
    /// Whether the cache is in private memory of this process, and not shared.
    pub private: bool,
    /// The group (name or number) whose members may attach. Default: only the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The permission bits of the segment's file, such as 0o660. Default: 0600, with a group 0660.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permissions: Option<u32>,
    /// The bytes written to the SSD in a day. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(alias = "bytes-per-day")]
    pub bytes_per_day: Option<Size>,
    /// Whether a page goes to the SSD at its second read instead of its first.
    #[serde(alias = "second-touch")]
    pub second_touch: bool,
    /// The length from which sequential reads are treated as streaming; the SSD does not keep such pages.
    #[serde(alias = "stream-cutoff")]
    pub stream_cutoff: Size,
    /// The rules for files: the first whose glob matches a file's path applies.
    pub rules: Vec<RuleConfig>,
    /// The maximum number of files with a record.
    pub files: u32,
    /// Whether the segment stays when the last process detaches.
    pub keep: bool,
    /// The directory of the shared-memory segments.
    #[serde(alias = "runtime-dir")]
    pub runtime_dir: PathBuf,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            name: "default".to_owned(),
            memory: None,
            ssd: None,
            ssd_size: None,
            drained: false,
            record_file: None,
            mode: Mode::WriteBack,
            dirty_limit: Size::Percent(20),
            dirty_age: Age(std::time::Duration::from_secs(30)),
            read_ahead: Size::Bytes(512 << 10),
            read_around: Size::Bytes(128 << 10),
            direct: false,
            private: false,
            group: None,
            permissions: None,
            bytes_per_day: None,
            second_touch: true,
            stream_cutoff: Size::Bytes(4 << 20),
            rules: Vec::new(),
            files: 65_536,
            keep: false,
            runtime_dir: PathBuf::from("/dev/shm"),
        }
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

/// The settings of files whose path matches.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleConfig {
    /// The glob for the absolute path; one without a `/` matches the last component.
    pub glob: String,
    /// The mode of these files, within the instance's.
    #[serde(default, with = "mode_option", skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Whether the SSD stores their pages.
    #[serde(default)]
    pub admit: Admit,
    /// Whether their pages stay in memory.
    #[serde(default)]
    pub pin: bool,
}

/// Whether the SSD stores a file's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Admit {
    /// The SSD never stores them.
    Never,
    /// The SSD stores them at the second touch, except streams.
    #[default]
    Normal,
    /// The SSD stores them at the first touch, also streams.
    Always,
}

impl Config {
    /// Reads the table `[cache]` of a TOML text; without the table, returns the defaults. Keys may use `-` for `_`.
    ///
    /// # Errors
    /// The text is not TOML, a key is unknown, or a value is out of range.
    pub fn parse(text: &str) -> Result<Config, Error> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| Error::invalid(error.message()))?;
        if let Some(unknown) = table.keys().find(|key| !TABLES.contains(&key.as_str())) {
            let likely = if table.contains_key("cache") || !table[unknown].is_table() { "" } else { ": did you mean [cache]?" };
            let what = if table[unknown].is_table() { format!("[{unknown}]") } else { format!("`{unknown}` outside of a table") };
            return Err(Error::invalid(format!("{what} is not known{likely}; the tables are [cache] and [library]")));
        }
        let config = match table.get("cache") {
            None => Config::default(),
            Some(ours) => {
                ours.clone().try_into().map_err(|error: toml::de::Error| Error::invalid(format!("[cache] {}", error.message())))?
            }
        };
        config.check()?;
        Ok(config)
    }

    /// Returns the settings as a text for [`Config::parse`].
    ///
    /// # Errors
    /// A path is not UTF-8.
    pub fn to_text(&self) -> Result<String, Error> {
        let text = toml::to_string(&std::collections::BTreeMap::from([("cache", self)]));
        text.map_err(|error| Error::invalid(format!("the settings cannot be written as text: {error}")))
    }

    /// Reads a configuration file.
    ///
    /// # Errors
    /// See [`Config::parse`]; or the file cannot be read.
    pub fn read(path: &Path) -> Result<Config, Error> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| {
            let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO);
            Error::new(crate::Kind::System, errno, format!("{shown}: the configuration file: {error}"))
        })?;
        Config::parse(&text).map_err(|error| Error::invalid(format!("{shown}: {error}")))
    }

    /// Checks that the values are consistent.
    ///
    /// # Errors
    /// They are not; the message names the key.
    pub fn check(&self) -> Result<(), Error> {
        if !Config::is_name(&self.name) {
            return Err(Error::invalid("[cache] name: at most 64 letters, digits, `-`, `_` and `.`, not beginning with `.`"));
        }
        let sizes = [
            ("memory", self.memory, "%"),
            ("ssd_size", self.ssd_size, "GiB"),
            ("dirty_limit", Some(self.dirty_limit), "%"),
            ("bytes_per_day", self.bytes_per_day, "GiB"),
        ];
        for (key, size, unit) in sizes {
            // A number of bytes smaller than a page: the unit was forgotten.
            if let Some(Size::Bytes(bytes @ 1..4096)) = size {
                let unit = if unit == "%" && bytes > 100 { "MiB" } else { unit };
                return Err(Error::invalid(format!("[cache] {key}: {bytes} is {bytes} bytes: did you mean {bytes}{unit}?")));
            }
        }
        if self.ssd_size.is_some() && self.ssd.is_none() {
            return Err(Error::invalid("[cache] ssd_size: without `ssd` there is nothing of that size"));
        }
        match &self.ssd {
            Some(ssd) => self.check_ssd(ssd)?,
            None if self.drained => return Err(Error::invalid("[cache] drained: without `ssd` there is nothing to drain")),
            None => {}
        }
        if self.permissions.is_some_and(|bits| bits & !0o666 != 0 || bits & 0o600 != 0o600) {
            return Err(Error::invalid("[cache] permissions: 0o600, with bits of 0o066 for others"));
        }
        if !(16..1 << 20).contains(&self.files) {
            return Err(Error::invalid("[cache] files: 16 to 1048575"));
        }
        for rule in &self.rules {
            globset::Glob::new(&rule.glob).map_err(|error| Error::invalid(format!("[cache] rules: {error}")))?;
        }
        Ok(())
    }

    /// Checks whether the configuration can have this SSD.
    fn check_ssd(&self, ssd: &Path) -> Result<(), Error> {
        if !crate::ssd_name::is_meant(ssd) {
            return match self.record_file {
                Some(_) => Err(Error::invalid("[cache] record_file: only an SSD such as nvme:0000:03:00.0/1 has a flight recorder")),
                None => Ok(()),
            };
        }
        if crate::ssd_name::parse(ssd).is_none() {
            let what = format!("[cache] ssd: `{}` is no controller: nvme:0000:03:00.0/1 or vfio-user:SOCKET/1", ssd.display());
            return Err(Error::invalid(what));
        }
        if self.private {
            return Err(Error::invalid("[cache] private: not with an SSD that this library drives itself, which its processes share"));
        }
        Ok(())
    }
}

/// Returns the name of a mode in configuration and commands.
pub fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::WriteBack => "write-back",
        Mode::WriteThrough => "write-through",
        Mode::WriteAround => "write-around",
        Mode::ReadOnly => "read-only",
        Mode::PassThrough => "pass-through",
    }
}

/// Returns the mode of that name.
///
/// # Errors
/// There is no such mode.
pub fn mode_of(name: &str) -> Result<Mode, Error> {
    let all = [Mode::WriteBack, Mode::WriteThrough, Mode::WriteAround, Mode::ReadOnly, Mode::PassThrough];
    let found = all.into_iter().find(|mode| mode_name(*mode) == name);
    found.ok_or_else(|| Error::invalid(format!("`{name}` is no mode: write-back, write-through, write-around, read-only or pass-through")))
}

pub(crate) mod mode {
    use super::*;

    /// Writes a mode by its name.
    pub fn serialize<S: Serializer>(mode: &Mode, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(mode_name(*mode))
    }

    /// Reads a mode from its name.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Mode, D::Error> {
        mode_of(&String::deserialize(from)?).map_err(serde::de::Error::custom)
    }
}

mod mode_option {
    use super::*;

    /// Writes an optional mode by its name.
    pub fn serialize<S: Serializer>(mode: &Option<Mode>, to: S) -> Result<S::Ok, S::Error> {
        match mode {
            Some(mode) => to.serialize_some(mode_name(*mode)),
            None => to.serialize_none(),
        }
    }

    /// Reads an optional mode from its name.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Mode>, D::Error> {
        mode::deserialize(from).map(Some)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_table_among_others() {
        let text = "[library]\nqueue_depth = 16\n[cache]\nmemory = \"64MiB\"\nmode = \"write-through\"\n\
                    rules = [{ glob = \"*.log\", admit = \"never\" }, { glob = \"/a/**\", mode = \"read-only\", pin = true }]\n";
        let config = Config::parse(text).expect("understood");
        assert_eq!((config.memory, config.mode, config.rules.len()), (Some(Size::Bytes(64 << 20)), Mode::WriteThrough, 2));
        assert_eq!((config.rules[0].admit, config.rules[1].mode), (Admit::Never, Some(Mode::ReadOnly)));
        assert_eq!(Config::parse("").expect("defaults"), Config::default());
    }

    #[test]
    fn both_spellings_of_a_key_mean_the_same() {
        let text = toml::to_string(&Config::default()).expect("as TOML");
        let (under, dashed): (Vec<_>, Vec<_>) = text
            .lines()
            .filter_map(|line| line.split_once(" = "))
            .filter(|(key, _)| key.contains('_'))
            .map(|(key, value)| (format!("{key} = {value}"), format!("{} = {value}", key.replace('_', "-"))))
            .unzip();
        assert!(under.len() > 5, "{under:?}");
        let read = |lines: &[String]| Config::parse(&format!("[cache]\n{}", lines.join("\n"))).expect("read");
        assert_eq!(read(&under), read(&dashed));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            ("[cache]\ncolour = 1", "colour"),
            ("[cache]\nmemory = \"much\"", "much"),
            ("[cache]\nmode = \"fast\"", "fast"),
            ("[cache]\nname = \"../x\"", "name"),
            ("[cache]\nssd_size = \"1GiB\"", "ssd"),
            ("[cache]\nrules = [{ glob = \"[\" }]", "rules"),
            ("[cache]\nrules = [{ glob = \"a\", what = 1 }]", "what"),
            ("cache = 1", "cache"),
            ("[cahce]\nmemory = \"1GiB\"", "did you mean [cache]"),
            ("ssd = \"/other\"\n[cache]\n", "`ssd` outside of a table"),
            ("[cache]\n[other]\n", "[other]"),
            ("[cache]\nmemory = 25", "25%"),
            ("[cache]\nmemory = \"512\"", "512MiB"),
            ("[cache]\ndirty_limit = \"20\"", "20%"),
            ("[cache]\nbytes-per-day = \"50\"", "50GiB"),
            ("[cache]\ndirty-age = \"1s\"\ndirty_age = \"2s\"", "dirty_age"),
        ] {
            let error = Config::parse(text).expect_err(text);
            assert_eq!(error.errno(), 22);
            assert!(error.to_string().contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let config =
            Config { rules: vec![RuleConfig { glob: "*".into(), mode: Some(Mode::ReadOnly), ..Default::default() }], ..Config::default() };
        let text = config.to_text().expect("written");
        assert_eq!(Config::parse(&text).expect("read"), config);
    }
}
