//! Defaults: built in, or from the table `[library]` of the configuration file.
//!
//! ```toml
//! [library]
//! buffer_bytes = 67108864   # memory of each device for nvmed_get_buffer and for copies
//! queue_depth = 64          # and every other parameter of a handle or queue, by its name
//! ```
//!
//! The u calls use the table `[cache]`: see `cachedfs::Config`.

use std::path::Path;

use block::Params;
use block::handle::Key;
use parking_lot::Mutex;
use toml::{Table, Value};

use crate::api_error::{ApiError, ApiResult};

/// The default options of devices, queues and handles.
#[derive(Clone, PartialEq, Debug)]
pub struct Defaults {
    /// The parameters of queues and handles.
    pub params: Params,
    /// The memory of each device for buffers and copies, in bytes.
    pub buffer_bytes: u64,
    /// The configuration of the u calls' cache, from the table `[cache]`.
    pub cache: cachedfs::Config,
}

impl Default for Defaults {
    fn default() -> Self {
        Defaults { params: Params::default(), buffer_bytes: 32 << 20, cache: cachedfs::Config::default() }
    }
}

/// The defaults in use, since the library was initialised.
static DEFAULTS: Mutex<Option<Defaults>> = Mutex::new(None);

/// Returns the default options; built-in ones before the library is initialised.
pub fn defaults() -> Defaults {
    DEFAULTS.lock().clone().unwrap_or_default()
}

/// Returns whether the library has been initialised with defaults.
pub fn is_set() -> bool {
    DEFAULTS.lock().is_some()
}

/// Sets the default options; `None` after a shutdown.
pub fn set(defaults: Option<Defaults>) {
    *DEFAULTS.lock() = defaults;
}

/// Reads the defaults from a file. An unknown table or key is an error; keys may use `-` for `_`.
pub fn read(path: &Path) -> ApiResult<Defaults> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| ApiError::new(error.raw_os_error().unwrap_or(libc::EIO), format!("{shown}: the configuration file: {error}")))?;
    parse(&text).map_err(|fail| ApiError::new(fail.errno, format!("{shown}: {}", fail.text)))
}

fn parse(text: &str) -> ApiResult<Defaults> {
    let wrong = |what: String| ApiError::new(libc::EINVAL, what);
    let table: Table = text.parse().map_err(|error: toml::de::Error| wrong(error.message().to_owned()))?;
    let mut defaults = Defaults { cache: cachedfs::Config::parse(text)?, ..Defaults::default() };
    let Some(ours) = table.get("library") else { return Ok(defaults) };
    let ours = ours.as_table().ok_or_else(|| wrong("`library` has to be a table".to_owned()))?;
    for (given, value) in ours {
        let name = &given.replace('-', "_");
        if given != name && ours.contains_key(name) {
            return Err(wrong(format!("[library] {name}: is there twice, as `{given}` too")));
        }
        let number = match value {
            Value::Integer(number) => u64::try_from(*number).ok(),
            Value::Boolean(flag) => Some(u64::from(*flag)),
            _ => None,
        };
        let number = number.ok_or_else(|| wrong(format!("[library] {name}: needs a number, or true or false")))?;
        if name == "buffer_bytes" {
            defaults.buffer_bytes = number;
            continue;
        }
        let set = Key::from_name(name).and_then(|key| defaults.params.set(key, number));
        set.map_err(|error| wrong(format!("[library] {name}: {error}")))?;
    }
    Ok(defaults)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_table_of_ours_among_others() {
        let read = parse("[library]\nbuffer-bytes = 8192\nqueue_depth = 16\ncached = true\n").expect("understood");
        assert_eq!((read.buffer_bytes, read.params.queue_depth, read.params.cached), (8192, 16, true));
        assert_eq!(parse("[cache]\nname = \"mine\"").expect("understood").cache.name, "mine");
        assert_eq!(parse(""), Ok(Defaults::default()));
        for wrong in [
            "[library]\ncolour = 1",
            "[library]\nqueue_depth = 3",
            "[library]\nqueue_depth = \"a\"",
            "library = 1",
            "[",
            "[cache]\nx = 1",
            "ssd = 1",
            "[libary]\nqueue_depth = 16",
            "[library]\nqueue-depth = 4\nqueue_depth = 4",
        ] {
            assert_eq!(parse(wrong).err().map(|fail| fail.errno), Some(libc::EINVAL), "{wrong}");
        }
    }
}
