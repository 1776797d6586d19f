//! The settings of a cache in their file: written whole, or one line of them changed.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use cachedfs::Config;

/// Writes them down, whole or not at all; of those that are as nobody changed otherwise, nothing.
pub fn write(file: &Path, config: &Config) -> anyhow::Result<()> {
    let table = |config: &Config| toml::Table::try_from(config).context("the settings as TOML");
    let (mut changed, plain) = (table(config)?, table(&Config::default())?);
    changed.retain(|key, value| key == "name" || plain.get(key) != Some(value));
    let text = toml::to_string(&BTreeMap::from([("cache", changed)])).context("the settings as TOML")?;
    let text = format!(
        "# Settings of a cache of hotshelf; `hotshelf cache create --help` and man hotshelf-cache.toml describe the others.\n\
         # Programs use it with HOTSHELF_CONFIG={}\n\n{text}",
        file.display()
    );
    replace(file, &text)
}

/// The text of a settings file, to be put back if the settings cannot be used.
pub struct SavedSettings {
    file: PathBuf,
    text: String,
}

impl SavedSettings {
    /// Reads the text of a settings file.
    pub fn of(file: &Path) -> anyhow::Result<SavedSettings> {
        let text = std::fs::read_to_string(file).with_context(|| format!("{}: the settings cannot be read", file.display()))?;
        Ok(SavedSettings { file: file.to_owned(), text })
    }

    /// Writes the text back to its file.
    pub fn restore(&self) -> anyhow::Result<()> {
        replace(&self.file, &self.text)
    }
}

/// Changes one of them, and nothing else of what people wrote there.
pub fn change(file: &Path, key: &str, value: &str, wanted: &Config) -> anyhow::Result<()> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("{shown}: the settings cannot be read"))?;
    let changed = with_line(&text, key, value).filter(|changed| Config::parse(changed).is_ok_and(|config| config == *wanted));
    let Some(changed) = changed else { bail!("{shown}: write `{key} = {value}` into its table [cache] yourself: its form is unusual") };
    replace(file, &changed)
}

/// The text with that line in its table `[cache]`.
fn with_line(text: &str, key: &str, value: &str) -> Option<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let begin = 1 + lines.iter().position(|line| line.trim() == "[cache]")?;
    let end = lines[begin..].iter().position(|line| line.trim_start().starts_with('[')).map_or(lines.len(), |end| begin + end);
    // Both spellings of a key are read.
    let is_it = |line: &String| line.split_once('=').is_some_and(|(name, _)| name.trim().replace('-', "_") == key);
    let line = format!("{key} = {value}");
    match lines[begin..end].iter().position(is_it) {
        Some(at) => lines[begin + at] = line,
        None => lines.insert(begin, line),
    }
    Some(lines.join("\n") + "\n")
}

fn replace(file: &Path, text: &str) -> anyhow::Result<()> {
    let shown = || format!("{}: the settings cannot be written", file.display());
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(dir).with_context(shown)?;
    let temporary = file.with_extension(format!("toml.{}", std::process::id()));
    // Left by one that was killed; a new one follows no link.
    let _ = std::fs::remove_file(&temporary);
    let mut to = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(&temporary).with_context(shown)?;
    let written = to.write_all(text.as_bytes()).and_then(|()| to.sync_all()).and_then(|()| std::fs::rename(&temporary, file));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written.with_context(shown)?;
    std::fs::File::open(dir).and_then(|dir| dir.sync_all()).with_context(shown)
}

#[cfg(test)]
mod test {
    use super::*;
    use cachedfs::Mode;

    #[test]
    fn what_is_written_is_read_and_one_line_changes_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("a/b.toml");
        let config = Config { name: "b".into(), ssd: Some("/ssd/b".into()), ..Config::default() };
        write(&file, &config).expect("written");
        assert_eq!(Config::read(&file).expect("read"), config);

        let text = "[library]\nqueue_depth = 16\n[cache] \n# why\n  mode=\"write-back\" \n\n\
                    [[cache.rules]]\nglob = \"*\"\nmode = \"read-only\"\n";
        std::fs::write(&file, text).expect("written");
        let wanted = Config { mode: Mode::WriteAround, ..Config::read(&file).expect("read") };
        change(&file, "mode", "\"write-around\"", &wanted).expect("changed");
        let now = std::fs::read_to_string(&file).expect("read");
        assert_eq!(now, text.replace("  mode=\"write-back\" ", "mode = \"write-around\""));

        std::fs::write(&file, "[cache]\n").expect("written");
        change(&file, "mode", "\"write-around\"", &Config { mode: Mode::WriteAround, ..Config::default() }).expect("added");
        assert_eq!(std::fs::read_to_string(&file).expect("read"), "[cache]\nmode = \"write-around\"\n");
        std::fs::write(&file, "cache = { mode = \"write-back\" }\n").expect("written");
        let error = change(&file, "mode", "\"write-around\"", &wanted).expect_err("unusual").to_string();
        assert!(error.contains("yourself"), "{error}");
    }
}
