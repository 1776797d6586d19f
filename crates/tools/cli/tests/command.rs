//! The command as people and scripts meet it: help, exit codes, JSON, generated files. Nothing is mounted here.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn hotshelf(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hotshelf")).args(words).stdin(Stdio::null()).output().expect("the command starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// What a good call prints.
fn printed(words: &[&str]) -> String {
    let out = hotshelf(words);
    assert!(out.status.success(), "{words:?}: {}", text(&out.stderr));
    text(&out.stdout)
}

/// The one line of a call that must fail with `code`.
fn refused(code: i32, words: &[&str]) -> String {
    let out = hotshelf(words);
    let message = text(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{words:?}: {message}");
    assert_eq!(out.stdout, b"", "{words:?} prints on standard output");
    assert_eq!(message.matches('\n').count(), 1, "{words:?}: {message}");
    assert!(message.starts_with("hotshelf: "), "{words:?}: {message}");
    message
}

/// The commands that a help lists.
fn listed(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // Indented further is the rest of a sentence.
    let lines = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = lines.filter_map(|line| line.split_whitespace().next()).map(str::to_owned);
    names.filter(|name| name != "help").collect()
}

/// The commands that `hotshelf --help` lists.
fn commands() -> Vec<String> {
    let names = listed(&printed(&["--help"]));
    assert!(names.len() > 9, "{names:?}");
    names
}

/// All commands, and those of commands: `bench run`.
fn commands_of_commands() -> Vec<String> {
    let children = |command: &String| listed(&help_of(command)).into_iter().map(|name| format!("{command} {name}")).collect::<Vec<_>>();
    commands().iter().flat_map(|command| std::iter::once(command.clone()).chain(children(command))).collect()
}

fn help_of(command: &str) -> String {
    let words: Vec<&str> = command.split(' ').chain(["--help"]).collect();
    printed(&words)
}

/// The long flags in a command's help.
fn flags(command: &str) -> Vec<String> {
    let help = help_of(command);
    let words = help.lines().take_while(|line| !line.starts_with("Example")).flat_map(str::split_whitespace);
    let words = words.map(|word| word.trim_start_matches('(')).filter(|word| word.starts_with("--"));
    words.map(|word| word.trim_end_matches([',', ';', ')', ']', ':']).to_owned()).collect()
}

#[test]
fn every_command_has_help_with_an_example_that_it_understands() {
    for command in commands_of_commands().into_iter().chain(["generate".into(), "umount".into()]) {
        let words: Vec<&str> = ["help"].into_iter().chain(command.split(' ')).collect();
        for help in [help_of(&command), printed(&words)] {
            let (_, example) = help.split_once("\nExample:\n").unwrap_or_else(|| panic!("{command} has no example: {help}"));
            let example = example.lines().next().unwrap_or_default().trim();
            let wanted = if command == "umount" { "hotshelf unmount" } else { &format!("hotshelf {command}") };
            assert!(example.starts_with(wanted), "{command}: {example}");
            // Its flags are those of the command.
            if !listed(&help).is_empty() {
                continue;
            }
            // What comes after two dashes is another program.
            for flag in example.split_whitespace().take_while(|word| *word != "--").filter(|word| word.starts_with("--")) {
                assert!(flags(&command).iter().any(|known| known == flag), "{command} has no {flag}");
            }
        }
    }
}

#[test]
fn commands_given_wrongly_exit_2_with_one_line_that_says_where_to_read() {
    for (words, says) in [
        (&["mont"][..], "unrecognized subcommand 'mont'"),
        (&["--turbo"], "unexpected argument '--turbo'"),
        (&["status", "--jsno"], "'--json'"),
        (&["mount", "--hihg", "80%"], "'--high'"),
        (&["mount", "--high"], "a value is required"),
        (&["mount", "--high", "lots", "/m"], "`lots` is not a size"),
        (&["mount", "--high", "101%", "/m"], "`101%` is not a size"),
        (&["mount", "--promotion", "soon", "/m"], "possible values: second-touch, on-open, never"),
        (&["mount", "--touch-window", "1d", "/m"], "invalid value '1d'"),
        (&["mount", "--touch-window", "-1", "/m"], "'-1'"),
        (&["mount", "--threads", "0", "/m"], "0 is not in 1..=256"),
        (&["mount", "--threads", "2", "--single-thread", "/m"], "cannot be used with"),
        (&["why"], "required arguments were not provided: <PATH>"),
        (&["migrate", "/m"], "--to <TO>"),
        (&["migrate", "/m", "--to", "tape"], "possible values: ssd, hdd"),
        (&["cache", "mode", "/c"], "<MODE>"),
        (&["cache", "mode", "/c", "fast"], "possible values: write-back"),
        (&["cache", "create", "/c", "--size", "lots"], "`lots` is not a size"),
        (&["cache", "create", "/c", "--dirty-age", "soon"], "`soon` is not a time"),
        (&["cache", "resize", "/c"], "--size"),
        (&["cache", "status", "--json", "--prometheus"], "cannot be used with"),
        (&["unmount", "/m", "--timeout", "soon"], "invalid value 'soon'"),
        (&["generate", "poems", "/tmp"], "possible values"),
    ] {
        let message = refused(2, words);
        assert!(message.contains(says), "{words:?}: {message}");
        let command = if commands().iter().any(|command| command == words[0]) || words[0] == "generate" { words[0] } else { "" };
        let read_on = format!("see `hotshelf {command} --help`\n").replace("  ", " ");
        assert!(message.ends_with(&read_on), "{words:?}: {message}");
    }
    for (words, says) in [
        (&["mount"][..], "--ssd is missing: hotshelf mount --ssd DIR"),
        (&["mount", "--ssd", "/a", "--hdd", "/b"], "MOUNTPOINT is missing: hotshelf mount"),
        (&["mount", "--ssd", "/a", "--hdd", "/b", "/m", "-o", "turbo"], "unknown mount option `turbo`: see"),
        (&["mount", "--ssd", "/a", "--hdd", "/b", "/m", "-o", "rw,high"], "needs a value: high=..."),
        (&["mount", "--ssd", "/a", "--hdd", "/b", "/m", "--move-rate", "5%"], "--move-rate must be a size such as"),
        (&["mount", "--ssd", "/a", "--hdd", "/b", "/m", "--min-file-size", "5%"], "--min-file-size must be a size such as"),
        (&["mount", "--ssd", "/a", "--hdd", "/b", "/m", "--high", "95"], "did you mean 95%?"),
        (&["mount", "--ssd", "/a", "--hdd", "/b", "/m", "--reserve", "5"], "did you mean 5%?"),
        (&["mount", "--ssd", "/", "--hdd", "/b", "/m", "--reserve", "5000TiB"], "is more than the file system of / has"),
        (&["mount", "--ssd", "/a", "--hdd", "/b", "/m", "--log-level", "loud"], "`loud` is no log level"),
        (&["cache", "create", "x", "--memory", "5000TiB"], "is more than this machine has"),
        (&["cache", "create", "x", "--memory", "25"], "did you mean 25%?"),
        (&["cache", "serve", "x", "--log-level", "info,loud"], "is no log level"),
        (&["/a", "/m"], "the source must be SSD_DIR:HDD_DIR"),
        (&["check", "/"], "/ is a directory: give the HDD directory of the pair, too"),
        (&["cache", "create", "/c", "--name", "a/b", "--size", "1GiB"], "`a/b` is no name"),
    ] {
        let message = refused(2, words);
        assert!(message.contains(says), "{words:?}: {message}");
    }
}

#[test]
fn without_a_command_the_help_is_shown() {
    let out = hotshelf(&[]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("Commands:"));
    assert!(printed(&["--version"]).starts_with("hotshelf "));
}

#[test]
fn failures_exit_1_with_one_line_that_says_what_to_do() {
    let dir = tempfile::tempdir().expect("a directory");
    let here = dir.path().to_str().expect("UTF-8");
    let none = format!("{here}/none");
    let mnt = tempfile::tempdir().expect("a directory");
    let mnt = mnt.path().to_str().expect("UTF-8");
    for (words, says) in [
        (&["mount", "--ssd", &none, "--hdd", here, mnt][..], "there is no such directory: create it"),
        (&["mount", "--ssd", &none, "--hdd", here, mnt, "--foreground", "--log-level", "error"], "no such directory: create it"),
        (&["mount", "--ssd", here, "--hdd", here, mnt], "must not contain each other"),
        (&["mount", "--ssd", here, "--hdd", mnt, &none], "is not a directory: create it"),
        (&["mount", "--config", &none], "the configuration file cannot be read: No such file"),
        (&["unmount", here], "`hotshelf status` lists the mounts"),
        (&["status", here], "`hotshelf status` lists the mounts"),
        (&["status", &none], "`hotshelf status` lists"),
        (&["why", here], "`hotshelf status` lists them"),
        (&["pin", here], "`hotshelf status` lists them"),
        (&["unpin", here], "`hotshelf status` lists them"),
        (&["migrate", here, "--to", "hdd"], "`hotshelf status` lists them"),
        (&["check", &none, here], "give the SSD directory and the HDD directory of a pair"),
        (&["generate", "man", "/dev/null/x"], "/dev/null/x"),
        (&["check", &none], "hotshelf cache create"),
        (&["cache", "check", &none], "hotshelf cache create"),
        (&["cache", "check", here], "is a directory: name a file in it"),
        (&["cache", "create", &none], "--size 100GiB"),
        (&["cache", "create", "/none/at/all", "--size", "1MiB"], "there is no directory /none/at: create it"),
        (&["cache", "status", "no-such-cache"], "`hotshelf status` lists the caches"),
    ] {
        let message = refused(1, words);
        assert!(message.contains(says), "{words:?}: {message}");
    }
}

#[test]
fn a_configuration_file_says_where_it_is_wrong_and_flags_win_over_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("pool.toml");
    let (path, here) = (file.to_str().expect("UTF-8"), dir.path().to_str().expect("UTF-8"));
    let with = |content: &str, words: &[&str]| {
        std::fs::write(&file, content).expect("written");
        refused(2, &[&["mount", "--config", path, "/m"], words].concat())
    };
    assert!(with("ssd = \"/a\"\n\nturbo = true\n", &[]).starts_with(&format!("hotshelf: {path}:3: unknown field `turbo`")));
    assert!(with("high = \"lots\"", &[]).starts_with(&format!("hotshelf: {path}:1: high: `lots` is not a size")));
    assert!(with("options = [\"turbo\"]", &[]).contains("unknown mount option `turbo`"));
    // The flag is looked at, not the file's line: only then is the missing directory told.
    let content = "ssd = \"/none/a\"\nhdd = \"/none/b\"\nhigh = \"10%\"\nlow = \"5%\"\n";
    std::fs::write(&file, content).expect("written");
    let message = refused(1, &["mount", "--config", path, here, "--ssd", "/none/c", "--foreground"]);
    assert!(message.contains("/none/c"), "{message}");
    assert!(hotshelf(&["mount", "--config", path, "/m", "--dry-run"]).status.success());
    assert!(hotshelf(&["/none/a:/none/b", "/m", "-f", "-o", "rw,dev,suid,nofail,high=70%"]).status.success());
}

#[test]
fn what_reports_does_so_in_json_too() {
    let json = |words: &[&str]| {
        let out = hotshelf(words);
        serde_json::from_slice::<Value>(&out.stdout).unwrap_or_else(|error| panic!("{words:?}: {error}: {}", text(&out.stdout)))
    };
    assert!(json(&["status", "--json"]).is_array());
    let dir = tempfile::tempdir().expect("a directory");
    let [ssd, hdd] = ["ssd", "hdd"].map(|side| dir.path().join(side));
    for side in [&ssd, &hdd] {
        std::fs::create_dir_all(side.join(".hotshelf/tmp")).expect("made");
        std::fs::write(side.join("twice"), side.as_os_str().as_encoded_bytes()).expect("written");
    }
    let [ssd, hdd] = [ssd.to_str().expect("UTF-8"), hdd.to_str().expect("UTF-8")];
    let found = json(&["check", ssd, hdd, "--json"]);
    let kinds: Vec<&Value> = found["findings"].as_array().expect("a list").iter().map(|finding| &finding["kind"]).collect();
    assert!(kinds.contains(&&Value::from("conflict")) && kinds.contains(&&Value::from("damaged")), "{found}");
    assert_eq!(hotshelf(&["check", ssd, hdd]).status.code(), Some(1));
    let doctor = json(&["doctor", "--json", "--ssd", ssd, "--hdd", hdd]);
    let lines = doctor.as_array().expect("a list");
    for what in ["kernel", "/dev/fuse", "passthrough", "ssd: write", "hdd: attributes"] {
        assert!(lines.iter().any(|line| line["what"] == what), "{what}: {doctor}");
    }
    assert!(lines.iter().all(|line| line["ok"].is_boolean() && line["detail"].is_string()));
    // Every command that has something to report has the flag.
    for command in ["status", "why", "check", "doctor"] {
        assert!(flags(command).iter().any(|flag| flag == "--json"), "{command}");
    }
}

#[test]
fn doctor_says_what_is_missing_and_fails_when_nothing_works_without_it() {
    let out = hotshelf(&["doctor", "--ssd", "/none/ssd"]);
    assert_eq!(out.status.code(), Some(1));
    let message = text(&out.stdout);
    assert!(message.lines().any(|line| line.starts_with("missing  ssd: write") && line.contains("/none/ssd: No such file")), "{message}");
    assert!(message.lines().all(|line| line.starts_with("ok       ") || line.starts_with("missing  ")), "{message}");
    let dir = tempfile::tempdir().expect("a directory");
    hotshelf(&["doctor", "--hdd", dir.path().to_str().expect("UTF-8")]);
    assert_eq!(std::fs::read_dir(dir.path()).expect("read").count(), 0, "the probe is left behind");
}

#[test]
fn a_reader_that_has_read_enough_is_no_failure() {
    for words in [&["doctor"][..], &["status"], &["mount", "--help"]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_hotshelf"))
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        drop(child.stdout.take());
        let out = child.wait_with_output().expect("it ends");
        // Other mounts of this machine may have something to say of their own.
        let message = text(&out.stderr);
        assert!(!message.contains("panicked") && !message.to_lowercase().contains("broken pipe"), "{words:?}: {message}");
    }
}

fn files(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).expect("read").map(|entry| entry.expect("an entry").file_name().into_string());
    names.map(|name| name.expect("UTF-8")).collect()
}

#[test]
fn man_pages_and_completions_name_every_command_and_flag() {
    let dir = tempfile::tempdir().expect("a directory");
    let [man, completions] = ["man", "completions"].map(|what| dir.path().join(what));
    for (what, to) in [("man", &man), ("completions", &completions)] {
        printed(&["generate", what, to.to_str().expect("UTF-8")]);
    }
    let overview = std::fs::read_to_string(man.join("hotshelf.1")).expect("the overview");
    assert_eq!(files(&completions).len(), 3, "bash, zsh and fish");
    for command in commands() {
        assert!(overview.contains(&format!("hotshelf\\-{command}(1)")), "the overview does not name {command}");
    }
    for command in commands_of_commands() {
        let page = std::fs::read_to_string(man.join(format!("hotshelf-{}.1", command.replace(' ', "-")))).expect("its page");
        assert!(page.contains("Example:"), "the page of {command} has no example");
        for flag in flags(&command) {
            assert!(page.contains(&flag.replace('-', "\\-")), "the page of {command} does not name {flag}");
            for name in files(&completions) {
                let script = std::fs::read_to_string(completions.join(&name)).expect("a script");
                // fish says `-l high`, the others `--high`.
                let word = if name.ends_with(".fish") { format!("-l {}", flag.trim_start_matches('-')) } else { flag.clone() };
                assert!(script.contains(&word), "{name} does not name {flag} of {command}");
            }
        }
        assert!(!page.contains("ready\\-pipe"), "{command} shows what is hidden");
    }
    // Besides them there is a page for each `help`, which clap makes, and one for each configuration file (section 5).
    let pages = files(&man).into_iter().filter(|name| name.ends_with(".1") && !name.ends_with("-help.1")).count();
    assert_eq!(pages, commands_of_commands().len() + 1);
}
