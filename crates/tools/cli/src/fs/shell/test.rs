//! Every command on an image in memory.

use std::sync::{Arc, Mutex};

use super::complete::candidates;
use super::dispatch::{self, Next};
use super::session::Session;
use super::{definitions, in_a_line, words};

/// What was said.
#[derive(Clone, Default)]
struct CapturedOutput(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for CapturedOutput {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("said").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

struct Shell {
    session: Session,
    said: CapturedOutput,
}

impl Shell {
    fn bare() -> Shell {
        let said = CapturedOutput::default();
        let image = "memory:64MiB".parse().expect("a device");
        Shell { session: Session::open(image, false, Box::new(said.clone())).expect("opened"), said }
    }

    fn new() -> Shell {
        let mut shell = Shell::bare();
        shell.does("mkfs");
        shell
    }

    fn run(&mut self, script: &str) -> anyhow::Result<String> {
        for typed in words::commands(script.as_bytes()).expect("whole") {
            if dispatch::run(&mut self.session, &typed.words)? == Next::Quit {
                break;
            }
        }
        Ok(String::from_utf8(std::mem::take(&mut self.said.0.lock().expect("said"))).expect("text"))
    }

    fn does(&mut self, script: &str) -> String {
        self.run(script).unwrap_or_else(|error| panic!("{script}: {}", in_a_line(&error)))
    }

    fn refuses(&mut self, script: &str) -> String {
        let text = in_a_line(&self.run(script).expect_err(script));
        assert!(!text.contains('\n') && !text.contains("os error"), "{text}");
        text
    }
}

#[test]
fn directories_and_names() {
    let mut shell = Shell::new();
    shell.does("mkdir a a/b; mkdir -p c/d/e c/d; touch a/f; write a/g hello; ln a/g a/h; ln -s ../a/g c/s");
    assert_eq!(shell.does("ls; ls a c"), "a/\nc/\n/a:\nb/\nf\ng\nh\n/c:\nd/\ns\n");
    assert_eq!(shell.does("lsr c"), "/c/\n/c/d/\n/c/d/e/\n/c/s\n");
    assert_eq!(shell.does("tree c"), "/c\n    d\n        e\n    s -> ../a/g\n");
    assert_eq!(shell.does("cd c/d; pwd; cd ..; pwd; cat s; cd; pwd"), "/c/d\n/c\nhello/\n");
    assert_eq!(shell.does("mv a/f a/b; mv a z; ls z z/b; readlink c/s"), "/z:\nb/\ng\nh\n/z/b:\nf\n../a/g\n");
    shell.does("rm z/h; rmdir c/d/e; rm -r z/b; rm -f nothing");
    assert_eq!(shell.does("lsr"), "/\n/c/\n/c/d/\n/c/s\n/z/\n/z/g\n");
    assert!(shell.refuses("rm z").contains("give -r"));
    assert!(shell.refuses("rmdir z").contains("not empty"));
    assert!(shell.refuses("cd z/g").contains("not a directory"));
    assert!(shell.refuses("ls nothing").contains("/nothing: No such file"));
    assert!(shell.refuses("mkdir z").contains("exists"));
    assert!(shell.refuses("mv c z/g nothing").contains("no directory for several"));
    assert!(shell.does("checkfs").contains("clean"));
}

#[test]
fn contents() {
    let mut shell = Shell::new();
    shell.does("write f 'a b'  c; append f d; owrite f 1 XY; write 'a file' ''");
    assert_eq!(shell.does("cat f"), "aXY cd");
    shell.does("truncate 3 f; truncate 1MiB g; owrite g 1048570 end");
    assert_eq!(shell.does("cat f f"), "aXYaXY");
    assert_eq!(shell.does("cat g").len(), 1 << 20);
    shell.does("mkdir -p d/e; write d/x 1; write d/e/y 2; cp f d; cp -r d copy; rm g");
    assert_eq!(shell.does("catr copy"), "/copy/e/y:\n2\n/copy/f:\naXY\n/copy/x:\n1\n");
    assert!(shell.refuses("cp d other").contains("give -r"));
    assert!(shell.refuses("cp -r d d/e").contains("into itself"));
    assert!(shell.refuses("cp f f").contains("same file"));
    assert!(shell.refuses("cat d").contains("directory"));
    assert!(shell.refuses("owrite nothing 0 x").contains("No such file"));
    assert!(shell.refuses("truncate 10% f").contains("percentage"));
    assert!(shell.does("du").contains("names  /"));
    assert!(shell.does("df").contains("metadata"));
}

#[test]
fn attributes() {
    let mut shell = Shell::new();
    shell.does("touch f; chown 12:34 f; chmod 4751 f; mkdir d; chmod 1777 d; ln -s f s");
    let long = shell.does("ls -l");
    assert!(long.contains("-rwsr-x--x   1    12    34            0 ") && long.contains("drwxrwxrwt") && long.contains("s -> f"), "{long}");
    let stat = shell.does("chown :7 f; stat f s");
    assert!(stat.contains("user 12, group 7") && stat.contains("/s: symbolic link -> f"), "{stat}");
    assert!(shell.refuses("chmod 9 f").contains("octal"));
    assert!(shell.refuses("chown x f").contains("no number"));
    assert!(shell.refuses("chown : f").contains("neither"));
}

#[test]
fn transactions_are_all_or_nothing() {
    let mut shell = Shell::new();
    shell.does("write old before; begin; write old after; write new 1; append new 2; touch empty; owrite new 0 9");
    assert_eq!(shell.does("cat old; ls"), "beforeold\n");
    assert!(shell.refuses("mkdir d").contains("not allowed inside a transaction"));
    assert!(shell.refuses("begin").contains("already"));
    assert_eq!(shell.does("commit; cat old new; ls"), "3 files\nafter92empty\nnew\nold\n");
    shell.does("begin; write old x; write other x; abort");
    assert_eq!(shell.does("cat old; ls"), "afterempty\nnew\nold\n");
    assert!(shell.refuses("commit").contains("no transaction"));
    shell.does("begin");
    assert!(shell.refuses("write nowhere/f x").contains("/nowhere: No such file"));
}

#[test]
fn a_commit_that_fails_changes_nothing() {
    let mut shell = Shell::new();
    shell.does("write old before; begin; write old after; write taken x");
    assert!(shell.refuses("truncate 20TiB taken").contains("File too large"));
    let fs = shell.session.fs().expect("made");
    drop(fs.mkdir(fs.root(), b"/taken", 0o700, &shell.session.creds).expect("by another"));
    let refusal = shell.refuses("commit");
    assert!(refusal.contains("nothing of it has happened"), "{refusal}");
    assert_eq!(shell.does("cat old; ls"), "beforeold\ntaken/\n");
    assert!(shell.does("checkfs").contains("clean"));
}

#[test]
fn files_of_the_machine_come_and_go() {
    let dir = tempfile::tempdir().expect("a directory");
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    std::fs::create_dir_all(from.join("sub/empty")).expect("made");
    let content: Vec<u8> = (0..3_000_000_u32).flat_map(|n| if n < 400_000 { 0 } else { n as u8 }.to_le_bytes()).collect();
    std::fs::write(from.join("large"), &content).expect("written");
    std::fs::write(from.join("sub/small name"), "small").expect("written");
    std::os::unix::fs::symlink("large", from.join("link")).expect("linked");
    let mut shell = Shell::new();
    let (from, to) = (from.display(), to.display());
    shell.does(&format!("mkdir d; import {from} d; import {from}/large; import {from}/large d/from/sub/large; import {from}/large"));
    assert_eq!(
        shell.does("lsr d; ls"),
        "/d/\n/d/from/\n/d/from/large\n/d/from/link\n/d/from/sub/\n/d/from/sub/empty/\n/d/from/sub/large\n\
         /d/from/sub/small name\nd/\nlarge\n"
    );
    shell.does(&format!("rm d/from/sub/large; export d/from {to}; export large {to}/again"));
    let out =
        std::process::Command::new("diff").args(["-r", "--no-dereference", &from.to_string(), &to.to_string()]).output().expect("diff");
    assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), format!("Only in {to}: again"));
    assert!(std::fs::read(dir.path().join("to/again")).expect("read") == content);
    assert!(shell.refuses(&format!("export large {to}/again")).contains("is kept"));
    shell.does(&format!("export -f d/from/sub/'small name' {to}/again"));
    assert_eq!(std::fs::read(dir.path().join("to/again")).expect("read"), b"small");
    assert!(shell.refuses("import /nowhere/at/all").contains("/nowhere/at/all: No such file"));
    assert!(shell.refuses("export nothing").contains("No such file"));
    shell.does(&format!("begin; import {from}/large twice; import '{from}/sub/small name' d/s; commit"));
    assert_eq!(shell.does("cat d/s"), "small");
    // A link that the image brings is not followed out of where it is exported to.
    shell.does(&format!("mkdir -p evil/x; ln -s /etc evil/x/l; mkdir other; mkdir other/x; mkdir other/x/l; export evil {to}/e"));
    assert!(shell.refuses(&format!("export other/x {to}/e")).contains("exists"));
    assert!(shell.does("checkfs").contains("clean"));
}

#[test]
fn who_interrupts_an_import_leaves_nothing_of_the_file() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("f"), vec![1; 100]).expect("written");
    let mut shell = Shell::new();
    shell.session.stop.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(shell.refuses(&format!("import {}", dir.path().display())).contains("interrupted"));
    shell.session.stop.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(shell.does("ls"), "");
}

#[test]
fn every_command_has_help_and_a_wrong_word_is_one_line() {
    let mut shell = Shell::new();
    let all = shell.does("help");
    for verb in definitions().get_subcommands() {
        let name = verb.get_name();
        assert!(all.contains(name) && verb.get_about().is_some(), "{name}");
        let help = shell.does(&format!("help {name}"));
        assert!(help.contains("Usage:"), "{name}: {help}");
        assert!(shell.refuses(&format!("{name} --no-such-option")).contains(&format!("see `help {name}`")), "{name}");
    }
    assert_eq!(shell.does("help ls"), shell.does("ls --help"));
    assert!(shell.refuses("lss").contains("see `help`"));
    assert!(shell.refuses("help lss").contains("no command `lss`"));
    assert!(shell.refuses("cat").contains("see `help cat`"));
    assert!(shell.refuses("cat ''").contains("empty"));
    shell.session.history.push("pwd".into());
    assert_eq!(shell.does("history"), "    1  pwd\n");
    assert_eq!(dispatch::run(&mut shell.session, &[b"exit".to_vec()]).expect("quits"), Next::Quit);
}

#[test]
fn before_mkfs_there_is_nothing_to_look_at() {
    let mut shell = Shell::bare();
    for verb in ["ls", "write f x", "checkfs", "begin", "bench raw_seq_read 1 1"] {
        assert!(shell.refuses(verb).contains("see `help mkfs`"), "{verb}");
    }
    assert!(shell.refuses("mkfs --size 1TiB").contains("less than --size"));
    shell.does("help; mkfs --size 32MiB; write f x; cat f");
    assert!(shell.refuses("mkfs").contains("--force"));
    assert_eq!(shell.does("cat f"), "x");
    shell.does("mkfs --force");
    assert_eq!(shell.does("ls"), "");
    shell.session.read_only = true;
    for verb in ["mkfs --force", "touch f", "rm -r /", "sync; bench raw_seq_read 1 1"] {
        assert!(shell.refuses(verb).contains("--read-only"), "{verb}");
    }
}

#[test]
fn the_benches_measure_and_leave_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut shell = Shell::new();
    let free = shell.does("df");
    for bench in ["e2e_write 3 2 2", "e2e_write 5 1 --block 512", "raw_seq_read 2 4", "raw_seq_write 2 4"] {
        let said = shell.does(&format!("bench {bench}"));
        assert!(said.contains("times faster (medians)") && said.contains("\nasynchronous "), "{said}");
    }
    std::fs::write(dir.path().join("input"), vec![0; 5000]).expect("written");
    shell.does(&format!("bench e2e_write {}/input 1", dir.path().display()));
    assert!(shell.refuses("bench e2e_write 0").contains("nothing to measure"));
    assert!(shell.refuses("bench e2e_write /nowhere").contains("No such file"));
    assert!(shell.refuses("bench").contains("see `help bench`"));
    assert_eq!(shell.does("ls"), "");
    assert!(shell.does("checkfs").contains("clean"));
    assert_eq!(shell.does("df"), free);
}

#[test]
fn completion_knows_commands_and_paths() {
    let mut shell = Shell::new();
    shell.does("mkdir 'a dir' other; touch 'a dir/file' apple");
    let at = |line: &str| {
        let (start, pairs) = candidates(&shell.session, line);
        (start, pairs.into_iter().map(|pair| pair.replacement).collect::<Vec<_>>())
    };
    assert_eq!(at("mk"), (0, vec!["mkfs ".into(), "mkdir ".into()]));
    assert_eq!(at("help tr"), (5, vec!["tree ".into(), "truncate ".into()]));
    assert_eq!(at("bench raw_seq_r"), (6, vec!["raw_seq_read ".into()]));
    assert_eq!(at("pwd; cat a"), (9, vec!["'a dir'/".into(), "apple ".into()]));
    assert_eq!(at("cat 'a dir/"), (4, vec!["'a dir/file' ".into()]));
    assert_eq!(at("ls nothing/"), (3, vec![]));
    assert_eq!(at("import /proc/self/cmdl"), (7, vec!["/proc/self/cmdline ".into()]));
    assert_eq!(at("export apple /proc/self/cmdl"), (13, vec!["/proc/self/cmdline ".into()]));
}

/// Random lines made of what the commands know: no panic, and the image stays whole.
#[test]
fn random_commands_never_panic() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(33);
    println!("SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut shell = Shell::new();
    let verbs: Vec<String> = definitions().get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    // What reaches the machine, or takes its time, has separate tests.
    let verbs: Vec<&String> =
        verbs.iter().filter(|verb| !["import", "export", "bench", "run-experiments", "mkfs", "quit"].contains(&verb.as_str())).collect();
    let words =
        ["/", "a", "a/b", "../..", "-r", "-l", "--", "-", "0", "644", "1:1", "''", "'\\'", "\"", "#", ";", "4096", "1234567", "\u{7}"];
    for _ in 0..if std::env::var_os("FULL").is_some() { 20_000 } else { 1500 } {
        let mut line = verbs[rng.usize(0..verbs.len())].clone();
        for _ in 0..rng.usize(0..4) {
            line = format!("{line} {}", words[rng.usize(0..words.len())]);
        }
        let Ok(commands) = words::commands(line.as_bytes()) else { continue };
        for typed in commands {
            if let Err(error) = dispatch::run(&mut shell.session, &typed.words) {
                assert!(!in_a_line(&error).is_empty());
            }
            shell.said.0.lock().expect("said").clear();
        }
    }
    let _ = shell.run("abort");
    assert!(shell.does("checkfs").contains("clean"));
    shell.session.close().expect("closed");
}
