//! A cache that a group shares, used by two ordinary users who are its members, beside an outsider: what not all members can reach
//! is nowhere in the shared memory, neither its bytes nor its name; and what they cannot reach any more goes from there.
//!
//! Each user is this program again, under another user's number (setpriv(1), for root). An ordinary user can be no other: then the
//! rules alone are tested (`group.rs`).

use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cachedfs::{Config, File, Instance, Mode, Options, Size};
use rustix::fs::{CWD, OFlags};

const DIR: &str = "CACHEDFS_GROUP_DIR";
const ALICE: u32 = 40_001;
const BOB: u32 = 40_002;
const OUTSIDER: u32 = 40_003;
const TEAM: u32 = 40_100;

fn config(dir: &Path) -> Config {
    Config {
        memory: Some(Size::Bytes(1 << 20)),
        mode: Mode::WriteBack,
        files: 64,
        group: Some(TEAM.to_string()),
        keep: true,
        runtime_dir: dir.join("run"),
        ..Config::default()
    }
}

/// A process of another user that runs commands, line by line, and replies with a line each.
struct User {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl User {
    fn start(dir: &Path, uid: u32) -> User {
        let groups = if uid == OUTSIDER { uid.to_string() } else { format!("{uid},{TEAM}") };
        let mut child = Command::new("setpriv")
            .args(["--reuid", &uid.to_string(), "--regid", &uid.to_string(), "--groups", &groups])
            .arg(dir.join("program"))
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(DIR, dir)
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("setpriv starts");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        let mut user = User { child, answers };
        assert_eq!(user.answer(), "ready");
        user
    }

    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.answers.read_line(&mut line).expect("an answer"), 0, "the user ended");
            if let Some((_, answer)) = line.trim_end().split_once("> ") {
                return answer.to_owned();
            }
        }
    }

    fn ask(&mut self, what: &str) -> String {
        writeln!(self.child.stdin.as_mut().expect("piped"), "{what}").expect("to_error");
        self.answer()
    }

    /// Asks until the answer is that, or so long that it will never be.
    fn ask_until(&mut self, what: &str, wanted: &str) {
        let begun = Instant::now();
        loop {
            let answer = self.ask(what);
            if answer == wanted {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{what}: {answer}, not {wanted}");
            std::thread::yield_now();
        }
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test by itself: one of the users.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let config = config(&dir);
    let mut instance = None;
    let mut files: HashMap<String, File> = HashMap::new();
    println!("> ready");
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        let words: Vec<&str> = line.split(' ').collect();
        let to_error = |result: Result<String, cachedfs::Error>| result.unwrap_or_else(|error| format!("error {}", error.errno()));
        let answer = match words[..] {
            ["attach"] => to_error(Instance::open(&config).map(|opened| {
                instance = Some(opened);
                "attached".to_owned()
            })),
            ["open", name, flags] => {
                let flags = if flags == "rw" { OFlags::RDWR } else { OFlags::RDONLY };
                let instance = instance.as_ref().expect("attached");
                let opened =
                    instance.open_file(CWD, &dir.join(name), flags | OFlags::CLOEXEC, rustix::fs::Mode::empty(), &Options::default());
                to_error(opened.map(|file| {
                    files.insert(name.to_owned(), file);
                    "opened".to_owned()
                }))
            }
            ["close", name] => files.remove(name).map_or("none", |_| "closed").to_owned(),
            ["read", name] => to_error(files[name].view(0..100).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())),
            ["write", name, text] => to_error(files[name].write_at(0, text.as_bytes()).map(|done| done.to_string())),
            ["stat", name] => to_error(files[name].stat().map(|stat| stat.st_size.to_string())),
            ["sync", name] => to_error(files[name].sync(false).map(|()| "synced".to_owned())),
            // As a member of the group can do it with another program.
            ["grep", word] => match fs::read(Instance::segment_path(&config)) {
                Ok(bytes) => bytes.windows(word.len()).any(|part| part == word.as_bytes()).to_string(),
                Err(error) => format!("error {}", error.raw_os_error().unwrap_or(0)),
            },
            _ => panic!("{line}?"),
        };
        println!("> {answer}");
    }
}

fn put(path: &Path, text: &str, owner: u32, group: u32, mode: u32) {
    fs::write(path, text).expect("written");
    chown(path, Some(owner), Some(group)).expect("given away");
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("changed");
}

fn set(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("changed");
}

// long: one scenario of three users, whose steps build on each other.
#[test]
fn members_find_in_the_segment_only_what_all_of_them_can_reach() {
    if !rustix::process::geteuid().is_root() {
        return println!("SKIP: needs root, to be other users; the rules are tested in src/group.rs");
    }
    let temporary = tempfile::tempdir().expect("a directory");
    let dir = temporary.path();
    set(dir, 0o755);
    fs::copy(std::env::current_exe().expect("this program"), dir.join("program")).expect("copied");
    set(&dir.join("program"), 0o755);
    for (name, mode) in [("run", 0o1777), ("private", 0o700), ("open", 0o755)] {
        fs::create_dir(dir.join(name)).expect("made");
        chown(dir.join(name), Some(ALICE), Some(ALICE)).expect("given away");
        set(&dir.join(name), mode);
    }
    put(&dir.join("private/hidden-name"), "HIDDEN-TEXT", ALICE, ALICE, 0o644);
    put(&dir.join("open/public-name"), "PUBLIC-TEXT", ALICE, ALICE, 0o644);
    put(&dir.join("open/second-name"), "SECOND-TEXT", ALICE, ALICE, 0o644);
    put(&dir.join("open/third-name"), "THIRD-TEXT", ALICE, ALICE, 0o644);
    put(&dir.join("open/fourth-name"), "FOURTH-TEXT", ALICE, ALICE, 0o644);
    put(&dir.join("open/team-name"), "TEAM-TEXT", ALICE, TEAM, 0o660);
    let (mut alice, mut bob, mut outsider) = (User::start(dir, ALICE), User::start(dir, BOB), User::start(dir, OUTSIDER));
    assert_eq!(alice.ask("attach"), "attached");
    assert_eq!(bob.ask("attach"), "attached");
    assert_eq!(outsider.ask("grep x"), "error 13", "an outsider sees nothing of it");

    // A file that everybody may read, in a directory that nobody else may search.
    assert_eq!(alice.ask("open private/hidden-name rw"), "opened");
    assert_eq!(alice.ask("read private/hidden-name"), "HIDDEN-TEXT");
    assert_eq!(alice.ask("write private/hidden-name HIDDEN-MORE"), "11");
    assert_eq!(alice.ask("read private/hidden-name"), "HIDDEN-MORE");
    assert_eq!(alice.ask("sync private/hidden-name"), "synced");
    for word in ["HIDDEN-TEXT", "HIDDEN-MORE", "hidden-name"] {
        assert_eq!(bob.ask(&format!("grep {word}")), "false", "{word}");
    }
    assert_eq!(fs::read(dir.join("private/hidden-name")).expect("below"), b"HIDDEN-MORE");

    // What all can reach is there for all.
    for name in ["public", "second", "third", "fourth"] {
        let text = format!("{}-TEXT", name.to_uppercase());
        assert_eq!(alice.ask(&format!("open open/{name}-name r")), "opened");
        assert_eq!(alice.ask(&format!("read open/{name}-name")), text);
        assert_eq!(bob.ask(&format!("grep {text}")), "true", "it is cached");
        assert_eq!(bob.ask(&format!("grep {name}-name")), "true");
    }
    assert_eq!(bob.ask("open open/public-name r"), "opened");
    assert_eq!(bob.ask("read open/public-name"), "PUBLIC-TEXT");

    // Removed while it is open: the kernel sends an event.
    set(&dir.join("open/public-name"), 0o600);
    bob.ask_until("grep PUBLIC-TEXT", "false");
    bob.ask_until("grep public-name", "false");
    assert_eq!(alice.ask("read open/public-name"), "PUBLIC-TEXT", "she has it open, and sees the backing file");
    assert_eq!(bob.ask("read open/public-name"), "PUBLIC-TEXT", "as with any file that was opened before");

    // Seen by a look at its attributes, by the next open, and while nobody has it open.
    set(&dir.join("open/second-name"), 0o640);
    assert_eq!(alice.ask("stat open/second-name"), "11");
    assert_eq!(bob.ask("grep SECOND-TEXT"), "false");
    assert_eq!(alice.ask("close open/third-name"), "closed");
    set(&dir.join("open/third-name"), 0o600);
    assert_eq!(alice.ask("open open/third-name r"), "opened");
    assert_eq!((bob.ask("grep THIRD-TEXT"), bob.ask("grep third-name")), ("false".into(), "false".into()));
    assert_eq!(alice.ask("read open/third-name"), "THIRD-TEXT");
    assert_eq!(alice.ask("close open/fourth-name"), "closed");
    fs::rename(dir.join("open/fourth-name"), dir.join("private/fourth-name")).expect("moved");
    bob.ask_until("grep FOURTH-TEXT", "false");
    bob.ask_until("grep fourth-name", "false");

    // What the group writes, with a directory on the way that is closed while it is open.
    assert_eq!(bob.ask("open open/team-name rw"), "opened");
    assert_eq!(bob.ask("write open/team-name TEAM-WROTE"), "10");
    assert_eq!(alice.ask("open open/team-name r"), "opened");
    assert_eq!(alice.ask("read open/team-name"), "TEAM-WROTE", "before it is below");
    assert_eq!(bob.ask("sync open/team-name"), "synced");
    set(&dir.join("open"), 0o700);
    alice.ask_until("grep TEAM-WROTE", "false");
    alice.ask_until("grep team-name", "false");
    assert_eq!(fs::read(dir.join("open/team-name")).expect("below"), b"TEAM-WROTE");
    assert_eq!(bob.ask("write open/team-name TEAM-AGAIN"), "10");
    assert_eq!(alice.ask("read open/team-name"), "TEAM-AGAIN", "past the cache, and coherent");
    assert_eq!(bob.ask("grep TEAM-AGAIN"), "false");
}
