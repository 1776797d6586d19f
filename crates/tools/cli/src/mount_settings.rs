//! The settings of `hotshelf mount`, wherever they are given: as flags, as options of mount(8), or as keys of a configuration file.
//!
//! [`MountArgs`] is the only definition. A setting is the name of a flag with its value as text; clap checks it. Settings of one place
//! are a [`Layer`], and [`resolve`] makes the arguments of several layers.

use std::any::TypeId;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use anyhow::Context;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

use crate::Usage;
use crate::mount_args::MountArgs;

/// Flags that are given on a command line only: the file cannot name another one, and `adopt` is meant for one mount.
const NO_KEYS: [&str; 10] = ["cache", "cache-mode", "names", "deadline", "offline", "second", "config", "adopt", "dry-run", "ready-pipe"];

/// Flags that are no options of mount(8), which has its own words for them.
const NO_OPTIONS: [&str; 12] =
    ["cache", "cache-mode", "names", "deadline", "offline", "second", "ssd", "hdd", "mountpoint", "options", "dry-run", "ready-pipe"];

/// A setting of the first name replaces one of the second name in a lower layer.
const REPLACES: [(&str, &str); 3] = [
    // A mark that is given alone does not fit the other mark of a lower layer.
    ("high", "low"),
    ("threads", "single-thread"),
    ("single-thread", "threads"),
];

/// A setting as it was given: the name of its flag, and its value as text.
#[derive(Clone, Debug)]
struct Setting {
    name: String,
    /// Empty for a flag without a value.
    value: OsString,
}

/// The settings of one place.
#[derive(Clone, Debug, Default)]
pub struct Layer(Vec<Setting>);

/// The type of a setting's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueType {
    /// A flag without a value.
    Boolean,
    /// A whole number.
    Number,
    /// Text, which may be a path or a size.
    Text,
    /// Several texts.
    List,
}

impl ValueType {
    /// Returns the type of a flag's value.
    pub fn of(arg: &Arg) -> ValueType {
        let value = arg.get_value_parser().type_id();
        if !arg.get_action().takes_values() {
            ValueType::Boolean
        } else if matches!(arg.get_action(), clap::ArgAction::Append) {
            ValueType::List
        } else if [TypeId::of::<u16>(), TypeId::of::<u32>(), TypeId::of::<u64>()].iter().any(|number| value == *number) {
            ValueType::Number
        } else {
            ValueType::Text
        }
    }
}

/// Returns the name of a setting: that of its flag, also for arguments without one.
pub fn name_of(arg: &Arg) -> String {
    arg.get_id().as_str().replace('_', "-")
}

/// Returns every setting that can be a key of a configuration file.
pub fn keys() -> Vec<Arg> {
    definition().get_arguments().filter(|arg| !NO_KEYS.contains(&name_of(arg).as_str())).cloned().collect()
}

fn definition() -> Command {
    Layer::augment_args(Command::new("mount")).no_binary_name(true).disable_help_flag(true)
}

/// Adds the defaults of [`hybridfs::Config`] and [`mount::Options`] to the help of their flags.
fn with_defaults(command: Command) -> Command {
    let config = hybridfs::Config::default();
    let options = mount::Options::new(config.clone(), std::path::PathBuf::new());
    let defaults = [
        ("policy", config.policy),
        ("high", config.high.to_string()),
        ("low", config.low.to_string()),
        ("reserve", config.reserve.to_string()),
        ("min_file_size", config.min_file_bytes.to_string()),
        ("promotion", config.promotion.to_string()),
        ("touch_window", config.promotion_window_secs.to_string()),
        ("threads", options.threads.to_string()),
        ("cache_ttl", options.cache_ttl_s.to_string()),
    ];
    command.mut_args(|arg| match defaults.iter().find(|(id, _)| *id == arg.get_id().as_str()) {
        Some((_, default)) => {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            arg.help(format!("{help} [default: {default}]"))
        }
        None => arg,
    })
}

fn find<'a>(definition: &'a Command, name: &str) -> Option<&'a Arg> {
    definition.get_arguments().find(|arg| name_of(arg) == name)
}

impl Layer {
    /// Returns the last value of a setting.
    pub fn value(&self, name: &str) -> Option<&OsStr> {
        self.0.iter().rev().find(|setting| setting.name == name).map(|setting| setting.value.as_os_str())
    }

    /// Returns all values of a setting.
    pub fn list(&self, name: &str) -> Vec<String> {
        self.0.iter().filter(|setting| setting.name == name).map(|setting| setting.value.to_string_lossy().into_owned()).collect()
    }

    /// Removes all values of a setting.
    pub fn remove(&mut self, name: &str) {
        self.0.retain(|setting| setting.name != name);
    }

    /// Whether it has a setting that excludes another one.
    fn excludes(&self, name: &str) -> bool {
        self.0.iter().any(|setting| is_replaced(name, &setting.name) && is_replaced(&setting.name, name))
    }

    /// Adds an option of mount(8), if a flag has its name. Of options that exclude each other the last one counts.
    ///
    /// # Errors
    /// The value is missing or invalid.
    pub fn add_option(&mut self, name: &str, value: Option<&str>) -> anyhow::Result<bool> {
        let definition = definition();
        let key = name.replace('_', "-");
        let Some(arg) = find(&definition, &key).filter(|_| !NO_OPTIONS.contains(&key.as_str())) else { return Ok(false) };
        let value = match ValueType::of(arg) {
            ValueType::Boolean => "",
            _ => value.ok_or_else(|| Usage(format!("-o {name} needs a value: {name}=...")))?,
        };
        let setting = Setting { name: key, value: value.into() };
        check(&definition, &setting).map_err(|why| Usage(format!("-o {name}: {why}; see `hotshelf mount --help`")))?;
        self.0.retain(|other| !(is_replaced(&other.name, &setting.name) && is_replaced(&setting.name, &other.name)));
        self.0.push(setting);
        Ok(true)
    }
}

fn is_replaced(name: &str, by: &str) -> bool {
    REPLACES.contains(&(by, name))
}

/// Returns the word of a command line that gives a setting.
fn word(definition: &Command, setting: &Setting) -> OsString {
    let arg = find(definition, &setting.name);
    let mut word = match arg.and_then(Arg::get_long) {
        Some(long) => OsString::from(format!("--{long}")),
        None => return setting.value.clone(),
    };
    if arg.is_some_and(|arg| arg.get_action().takes_values()) {
        word.push("=");
        word.push(&setting.value);
    }
    word
}

/// Checks the value of a setting, and returns what is wrong with it.
fn check(definition: &Command, setting: &Setting) -> Result<(), String> {
    // What has no name is a path or a list of options, and any text will do.
    let has_name = find(definition, &setting.name).is_some_and(|arg| arg.get_long().is_some());
    let words = has_name.then(|| word(definition, setting));
    let Err(error) = definition.clone().try_get_matches_from(words) else { return Ok(()) };
    let is_number = find(definition, &setting.name).is_some_and(|arg| ValueType::of(arg) == ValueType::Number);
    if is_number && setting.value.to_str().is_none_or(|text| text.parse::<i128>().is_err()) {
        return Err(format!("`{}` is not a number", setting.value.display()));
    }
    if let Some(source) = std::error::Error::source(&error) {
        return Err(source.to_string());
    }
    match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(valid)) => Err(format!("`{}` is not one of {}", setting.value.display(), valid.join(", "))),
        _ => Err(format!("`{}` is no value of it", setting.value.display())),
    }
}

/// Makes the arguments of several layers, the highest first. Lists of all layers are joined.
///
/// # Errors
/// Settings of different layers exclude each other.
pub fn resolve(layers: &[&Layer]) -> anyhow::Result<MountArgs> {
    let definition = definition();
    let (mut words, mut positional) = (Vec::new(), Vec::new());
    for (level, layer) in layers.iter().enumerate() {
        let higher = || layers[..level].iter().flat_map(|layer| &layer.0);
        for (at, setting) in layer.0.iter().enumerate().filter(|(_, setting)| setting.name != "options") {
            let arg = find(&definition, &setting.name).with_context(|| format!("{} is no setting", setting.name))?;
            let is_list = ValueType::of(arg) == ValueType::List;
            let is_given = |other: &Setting| other.name == setting.name;
            let is_overridden = higher().any(is_given) || layer.0[at + 1..].iter().any(is_given);
            if !is_list && is_overridden || higher().any(|other| is_replaced(&setting.name, &other.name)) {
                continue;
            }
            if arg.is_positional() { &mut positional } else { &mut words }.push(word(&definition, setting));
        }
    }
    words.push("--".into());
    words.extend(positional);
    let matches = definition.try_get_matches_from(words).map_err(|error| Usage(error.to_string()))?;
    Ok(MountArgs::from_arg_matches(&matches)?)
}

/// Reads the settings of a configuration file. Each key is the name of a flag, with `-` or `_`.
///
/// # Errors
/// The file cannot be read; a key or a value in it is invalid.
pub fn read_file(path: &Path) -> anyhow::Result<Layer> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{}: the configuration file cannot be read", path.display()))?;
    parse(&text, path)
}

fn parse(text: &str, path: &Path) -> anyhow::Result<Layer> {
    let at = |line: usize, what: &str| Usage(format!("{}:{}: {what}", path.display(), line + 1));
    let table: toml::Table = toml::from_str(text).map_err(|error: toml::de::Error| {
        let line = error.span().map_or(0, |span| text[..span.start.min(text.len())].matches('\n').count());
        at(line, &format!("{}: see `hotshelf mount --help` for the settings", error.message()))
    })?;
    let definition = definition();
    let mut layer = Layer::default();
    for (key, value) in table {
        let line = text.lines().position(|line| line.split_once('=').is_some_and(|(name, _)| name.trim() == key)).unwrap_or(0);
        let name = key.replace('_', "-");
        let Some(arg) = find(&definition, &name).filter(|_| !NO_KEYS.contains(&name.as_str())) else {
            return Err(at(line, &format!("unknown field `{key}`: see `hotshelf mount --help` for the settings")).into());
        };
        if layer.value(&name).is_some() {
            return Err(at(line, &format!("duplicate field `{name}`: remove one of them")).into());
        }
        if layer.excludes(&name) {
            let other = REPLACES.iter().find(|(_, other)| *other == name).map_or("", |(other, _)| other);
            return Err(at(line, &format!("{name}: not together with {other}: remove one of them")).into());
        }
        for value in values(arg, &value).ok_or_else(|| at(line, &invalid_type(arg, &value)))? {
            let setting = Setting { name: name.clone(), value: value.into() };
            check(&definition, &setting).map_err(|why| at(line, &format!("{name}: {why}")))?;
            layer.0.push(setting);
        }
    }
    Ok(layer)
}

/// Returns the values that a key gives: none for `false`. `None`: the value has another type.
fn values(arg: &Arg, value: &toml::Value) -> Option<Vec<String>> {
    match (ValueType::of(arg), value) {
        (ValueType::Boolean, toml::Value::Boolean(is_set)) => Some(is_set.then(String::new).into_iter().collect()),
        (ValueType::Number, toml::Value::Integer(number)) => Some(vec![number.to_string()]),
        (ValueType::Text, toml::Value::String(text)) => Some(vec![text.clone()]),
        (ValueType::List, toml::Value::Array(list)) => list.iter().map(|value| Some(value.as_str()?.to_owned())).collect(),
        _ => None,
    }
}

fn invalid_type(arg: &Arg, value: &toml::Value) -> String {
    let wanted = match ValueType::of(arg) {
        ValueType::Boolean => "true or false",
        ValueType::Number => "a number",
        ValueType::Text => "a string",
        ValueType::List => "a list of strings",
    };
    format!("invalid type: `{}` is {wanted}, not `{value}`", name_of(arg))
}

/// The arguments of `hotshelf mount` as the command line gives them, before other layers are added.
impl FromArgMatches for Layer {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Layer, clap::Error> {
        let mut layer = Layer::default();
        for arg in definition().get_arguments() {
            let id = arg.get_id().as_str();
            if matches.value_source(id) != Some(ValueSource::CommandLine) {
                continue;
            }
            let value = |value: &OsStr| if arg.get_action().takes_values() { value.to_owned() } else { OsString::new() };
            let values = matches.get_raw(id).into_iter().flatten().map(value);
            layer.0.extend(values.map(|value| Setting { name: name_of(arg), value }));
        }
        Ok(layer)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Layer::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Layer {
    fn augment_args(command: Command) -> Command {
        with_defaults(MountArgs::augment_args(command))
    }

    fn augment_args_for_update(command: Command) -> Command {
        with_defaults(MountArgs::augment_args_for_update(command))
    }
}

#[cfg(test)]
mod test {
    use hybridfs::Size;

    use super::*;

    const EXAMPLE: &str = include_str!("../../../../contrib/example.toml");

    fn read_text(text: &str) -> anyhow::Result<MountArgs> {
        resolve(&[&parse(text, Path::new("x.toml"))?])
    }

    fn on_the_command_line(words: &[&str]) -> Layer {
        Layer::from_arg_matches(&definition().try_get_matches_from(words).expect("valid")).expect("a layer")
    }

    /// The example with every setting that is commented out switched on, and the names of all settings in it.
    fn example() -> (String, Vec<String>) {
        let mut names = Vec::new();
        let lines = EXAMPLE.lines().map(|line| {
            let name = line.trim_start_matches('#').split(" = ").next().unwrap_or_default();
            if line.contains(" = ") && !line.starts_with("# ") && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-') {
                names.push(name.to_owned());
                // The two exclude each other.
                return if name == "threads" { String::new() } else { line.trim_start_matches('#').to_owned() };
            }
            line.to_owned()
        });
        (lines.collect::<Vec<_>>().join("\n"), names)
    }

    #[test]
    fn the_example_is_read_and_has_every_flag_once() {
        read_text(EXAMPLE).expect("as it is");
        let (all, mut names) = example();
        read_text(&all).expect("with everything in it");
        let mut flags: Vec<String> = keys().iter().map(name_of).collect();
        flags.sort();
        names.sort();
        assert_eq!(names, flags);
    }

    #[test]
    fn the_examples_defaults_are_the_defaults() {
        let (all, _) = example();
        let shown = read_text(&all).expect("read");
        let defaults = hybridfs::Config::default();
        assert_eq!(shown.policy, Some(defaults.policy));
        assert_eq!([shown.high, shown.low, shown.reserve], [Some(defaults.high), Some(defaults.low), Some(defaults.reserve)]);
        assert_eq!(shown.min_file_size, Some(Size::Bytes(defaults.min_file_bytes)));
        assert_eq!((shown.promotion, shown.touch_window), (Some(defaults.promotion), Some(defaults.promotion_window_secs)));
    }

    #[test]
    fn both_spellings_of_a_key_mean_the_same() {
        let (all, names) = example();
        assert!(names.iter().filter(|name| name.contains('-')).count() > 8, "{names:?}");
        let under: Vec<String> = all
            .lines()
            .map(|line| match line.split_once(" = ") {
                Some((key, value)) if !line.starts_with('#') => format!("{} = {value}", key.replace('-', "_")),
                _ => line.to_owned(),
            })
            .collect();
        let read = |text: &str| format!("{:?}", read_text(text).expect("read"));
        assert_eq!(read(&all), read(&under.join("\n")));
        assert!(read_text("touch-window = 1\ntouch_window = 2").is_err());
    }

    #[test]
    fn what_is_wrong_is_reported_with_its_line() {
        for (text, wanted) in [
            ("ssd = \"x\"\nturbo = true\n", "x.toml:2: unknown field `turbo`"),
            ("adopt = true", "x.toml:1: unknown field `adopt`"),
            ("\n\npin = \"one\"", "x.toml:3: invalid type"),
            ("high = \"80%\nlow = 3", "x.toml:1: "),
            ("# a\nhigh = \"lots\"", "x.toml:2: high: `lots` is not a size"),
            ("high = 80", "x.toml:1: invalid type"),
            ("ssd = \"x\"\npromotion = \"at-once\"", "x.toml:2: promotion: `at-once` is not one of"),
            ("threads = 0", "x.toml:1: threads: 0 is not in"),
            ("threads = 4\nsingle-thread = true", "x.toml:1: threads: not together"),
            ("touch-window = -1", "x.toml:1: "),
        ] {
            let error = read_text(text).expect_err(text);
            assert!(error.to_string().starts_with(wanted), "{error}");
            assert!(error.downcast_ref::<crate::Usage>().is_some(), "{error}");
        }
    }

    #[test]
    fn what_is_said_first_wins_and_rules_add_up() {
        let text = "policy = \"lfu\"\nhigh = \"50%\"\nlow = \"40%\"\npin = [\"b\"]\nsingle-thread = true";
        let file = parse(text, Path::new("x.toml")).expect("read");
        let over = |words: &[&str]| resolve(&[&on_the_command_line(words), &file]).expect("resolved");
        let args = over(&["--policy", "lru", "--pin", "a", "--threads=4"]);
        assert_eq!((args.policy.as_deref(), args.high, args.low), (Some("lru"), Some(Size::Percent(50)), Some(Size::Percent(40))));
        assert_eq!((args.pin, args.threads, args.single_thread), (vec!["a".to_owned(), "b".into()], Some(4), false));
        let args = over(&["--high=30%"]);
        assert_eq!((args.high, args.low), (Some(Size::Percent(30)), None), "the file's low mark is above this high mark");
        let args = over(&["--low=30%"]);
        assert_eq!((args.high, args.low), (Some(Size::Percent(50)), Some(Size::Percent(30))));
    }

    #[test]
    fn the_command_line_is_kept_as_it_is() {
        use std::os::unix::ffi::OsStrExt;
        let odd = OsStr::from_bytes(b"/\xff");
        let words = [
            OsStr::new("--ssd"),
            odd,
            OsStr::new("-o"),
            OsStr::new("ro,pin=x"),
            OsStr::new("--foreground"),
            OsStr::new("--"),
            OsStr::new("-m"),
        ];
        let layer = Layer::from_arg_matches(&definition().try_get_matches_from(words).expect("valid")).expect("a layer");
        assert_eq!(layer.list("options"), ["ro", "pin=x"]);
        let args = resolve(&[&layer]).expect("resolved");
        assert_eq!((args.ssd.as_deref(), args.mountpoint.as_deref()), (Some(Path::new(odd)), Some(Path::new("-m"))));
        assert!(args.foreground && !args.read_only && args.pin.is_empty());
    }
}
