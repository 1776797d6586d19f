//! The configuration file: anything a flag of `mount` can say, under the same names.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Deserialize;

use crate::args::MountArgs;

/// Every setting, as text and numbers; what is read from them is checked as the flag is.
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
    #[serde(alias = "min_file_size")]
    min_file_size: Option<String>,
    #[serde(alias = "max_file_size")]
    max_file_size: Option<String>,
    promotion: Option<String>,
    pin: Vec<String>,
    #[serde(alias = "hdd_only")]
    hdd_only: Vec<String>,
    #[serde(alias = "move_rate")]
    move_rate: Option<String>,
    #[serde(alias = "touch_window")]
    touch_window: Option<u32>,
    foreground: bool,
    #[serde(alias = "allow_other")]
    allow_other: bool,
    #[serde(alias = "single_thread")]
    single_thread: bool,
    threads: Option<u16>,
    #[serde(alias = "no_passthrough")]
    no_passthrough: bool,
    #[serde(alias = "write_back")]
    write_back: bool,
    #[serde(alias = "clone_fd")]
    clone_fd: bool,
    uring: Option<String>,
    #[serde(alias = "cache_ttl")]
    cache_ttl: Option<u64>,
    #[serde(alias = "read_only")]
    read_only: bool,
    #[serde(alias = "log_file")]
    log_file: Option<PathBuf>,
    #[serde(alias = "log_json")]
    log_json: bool,
    #[serde(alias = "log_level")]
    log_level: Option<String>,
    options: Vec<String>,
}

/// The settings of a file, as if they had been flags.
pub fn read(path: &Path) -> anyhow::Result<MountArgs> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{}: the configuration file cannot be read", path.display()))?;
    parse(&text, path)
}

fn parse(text: &str, path: &Path) -> anyhow::Result<MountArgs> {
    let file: File = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        crate::Usage(format!("{}:{line}: {}: see `hotshelf mount --help` for the settings", path.display(), error.message()))
    })?;
    let at = |name: &str| {
        let line = text.lines().position(|line| line.split_once('=').is_some_and(|(key, _)| key.trim().replace('_', "-") == name));
        format!("{}:{}: {name}", path.display(), line.map_or(1, |line| line + 1))
    };
    if file.single_thread && file.threads.is_some() {
        return Err(crate::Usage(format!("{}: not together with single-thread: remove one of them", at("threads"))).into());
    }
    if let Some(threads) = file.threads.filter(|threads| !(1..=256).contains(threads)) {
        return Err(crate::Usage(format!("{}: {threads} is not in 1..=256", at("threads"))).into());
    }
    Ok(MountArgs {
        ssd: file.ssd,
        hdd: file.hdd,
        mountpoint: file.mountpoint,
        config: None,
        policy: file.policy,
        high: setting(file.high, &at, "high")?,
        low: setting(file.low, &at, "low")?,
        reserve: setting(file.reserve, &at, "reserve")?,
        min_file_size: setting(file.min_file_size, &at, "min-file-size")?,
        max_file_size: setting(file.max_file_size, &at, "max-file-size")?,
        promotion: setting(file.promotion, &at, "promotion")?,
        pin: file.pin,
        hdd_only: file.hdd_only,
        move_rate: setting(file.move_rate, &at, "move-rate")?,
        touch_window: file.touch_window,
        foreground: file.foreground,
        allow_other: file.allow_other,
        single_thread: file.single_thread,
        threads: file.threads,
        no_passthrough: file.no_passthrough,
        write_back: file.write_back,
        clone_fd: file.clone_fd,
        uring: setting(file.uring, &at, "uring")?,
        cache_ttl: file.cache_ttl,
        read_only: file.read_only,
        adopt: false,
        log_file: file.log_file,
        log_json: file.log_json,
        log_level: file.log_level,
        options: file.options,
        dry_run: false,
        ready_pipe: false,
    })
}

fn setting<T>(value: Option<String>, at: &impl Fn(&str) -> String, name: &str) -> anyhow::Result<Option<T>>
where
    T: std::str::FromStr<Err = hybridfs::config::SettingError>,
{
    let Some(value) = value else { return Ok(None) };
    let parsed = value.parse().map_err(|error| crate::Usage(format!("{}: {error}", at(name))))?;
    Ok(Some(parsed))
}

impl MountArgs {
    /// Takes from `lower` what is not said here. Lists grow: every rule counts, wherever it is written.
    pub fn fill(&mut self, lower: MountArgs) {
        let MountArgs { ssd, hdd, mountpoint, config, policy, high, low, reserve, min_file_size, max_file_size, promotion, .. } = lower;
        // A mark that is given alone brings the other with it: one of each kind would make no sense.
        let marks = self.high.is_none() && self.low.is_none();
        if marks {
            (self.high, self.low) = (high, low);
        } else if self.high.is_none() {
            self.high = high;
        }
        // The same for the two ways to say how many threads there are.
        if !self.single_thread && self.threads.is_none() {
            (self.single_thread, self.threads) = (lower.single_thread, lower.threads);
        }
        or(&mut self.ssd, ssd);
        or(&mut self.hdd, hdd);
        or(&mut self.mountpoint, mountpoint);
        or(&mut self.config, config);
        or(&mut self.policy, policy);
        or(&mut self.reserve, reserve);
        or(&mut self.min_file_size, min_file_size);
        or(&mut self.max_file_size, max_file_size);
        or(&mut self.promotion, promotion);
        or(&mut self.uring, lower.uring);
        or(&mut self.move_rate, lower.move_rate);
        or(&mut self.touch_window, lower.touch_window);
        or(&mut self.cache_ttl, lower.cache_ttl);
        or(&mut self.log_file, lower.log_file);
        or(&mut self.log_level, lower.log_level);
        self.pin.extend(lower.pin);
        self.hdd_only.extend(lower.hdd_only);
        self.foreground |= lower.foreground;
        self.allow_other |= lower.allow_other;
        self.no_passthrough |= lower.no_passthrough;
        self.write_back |= lower.write_back;
        self.clone_fd |= lower.clone_fd;
        self.read_only |= lower.read_only;
        self.adopt |= lower.adopt;
        self.log_json |= lower.log_json;
    }
}

fn or<T>(upper: &mut Option<T>, lower: Option<T>) {
    if upper.is_none() {
        *upper = lower;
    }
}

#[cfg(test)]
mod test {
    use clap::CommandFactory;
    use hybridfs::Size;

    use super::*;

    const EXAMPLE: &str = include_str!("../../../../contrib/example.toml");

    fn read_text(text: &str) -> anyhow::Result<MountArgs> {
        parse(text, Path::new("x.toml"))
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
        let cli = crate::args::Cli::command();
        let mount = cli.find_subcommand("mount").expect("mount");
        // `config` names the file; `adopt` is said once, by somebody who looked; the others are our own.
        let no_setting = ["config", "adopt", "dry_run", "ready_pipe"];
        let mut flags: Vec<String> = mount.get_arguments().map(|arg| arg.get_id().to_string().replace('_', "-")).collect();
        flags.retain(|flag| !no_setting.contains(&flag.replace('-', "_").as_str()));
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
    fn what_is_wrong_is_told_with_its_line() {
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
        let file = || read_text("policy = \"lfu\"\nhigh = \"50%\"\nlow = \"40%\"\npin = [\"b\"]\nsingle-thread = true").expect("read");
        let mut args = MountArgs { policy: Some("lru".into()), pin: vec!["a".into()], threads: Some(4), ..MountArgs::default() };
        args.fill(file());
        assert_eq!((args.policy.as_deref(), args.high, args.low), (Some("lru"), Some(Size::Percent(50)), Some(Size::Percent(40))));
        assert_eq!((args.pin, args.threads, args.single_thread), (vec!["a".to_owned(), "b".into()], Some(4), false));
        let mut args = MountArgs { high: Some(Size::Percent(30)), ..MountArgs::default() };
        args.fill(file());
        assert_eq!((args.high, args.low), (Some(Size::Percent(30)), None), "the file's low mark is above this high mark");
        let mut args = MountArgs { low: Some(Size::Percent(30)), ..MountArgs::default() };
        args.fill(file());
        assert_eq!((args.high, args.low), (Some(Size::Percent(50)), Some(Size::Percent(30))));
    }
}
