// long: one child program and the scenarios that run it in several processes.
//! Several processes in one instance: each is this program again, told by its environment what to do.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cachedfs::{AsyncReader, Config, File, Instance, Kind, Mode, Options, Size, SubmitResult};
use rustix::fs::{AtFlags, CWD, OFlags, RenameFlags};

/// What a child finds in its environment: the directory, the mode, whether there is an SSD.
const DIR: &str = "CACHEDFS_TEST_DIR";

fn config(dir: &Path, mode: Mode, has_ssd: bool) -> Config {
    Config {
        memory: Some(Size::Bytes(1 << 20)),
        ssd: has_ssd.then(|| dir.join("ssd")),
        ssd_size: has_ssd.then_some(Size::Bytes(8 << 20)),
        mode,
        files: 64,
        runtime_dir: dir.to_owned(),
        ..Config::default()
    }
}

fn open(instance: &Arc<Instance>, path: &Path, flags: OFlags) -> File {
    let bits = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    instance.open_file(CWD, path, flags | OFlags::CLOEXEC, bits, &Options::default()).expect("opened")
}

/// A process that runs commands, line by line, and replies with a line each.
struct Other {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Other {
    fn start(dir: &Path, mode: &str, has_ssd: bool) -> Other {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(DIR, dir)
            .env("MODE", mode)
            .env("SSD", if has_ssd { "1" } else { "0" })
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        let mut other = Other { child, answers };
        assert_eq!(other.answer(), "ready");
        other
    }

    fn answer(&mut self) -> String {
        // The test harness prints other lines, too.
        loop {
            let mut line = String::new();
            assert_ne!(self.answers.read_line(&mut line).expect("an answer"), 0, "the child ended");
            if let Some((_, answer)) = line.trim_end().split_once("> ") {
                return answer.to_owned();
            }
        }
    }

    fn tell(&mut self, what: &str) {
        writeln!(self.child.stdin.as_mut().expect("piped"), "{what}").expect("to_error");
    }

    fn ask(&mut self, what: &str) -> String {
        self.tell(what);
        self.answer()
    }

    fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }

    fn end(mut self) {
        assert_eq!(self.ask("end"), "left");
        self.child.wait().expect("gone");
    }
}

/// Not a test by itself: the other process.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let mode = cachedfs::mode_of(&std::env::var("MODE").expect("a mode")).expect("a mode");
    let config = config(&dir, mode, std::env::var("SSD").is_ok_and(|ssd| ssd == "1"));
    let instance = Instance::open(&config).expect("an instance");
    let mut file = Some(open(&instance, &dir.join("file"), OFlags::RDWR | OFlags::CREATE));
    println!("> ready");
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        let words: Vec<&str> = line.split(' ').collect();
        let here = file.as_ref();
        let number = |n: usize| words[n].parse::<u64>().expect("a number");
        let to_error = |result: Result<u64, cachedfs::Error>| match result {
            Ok(number) => number.to_string(),
            Err(error) => format!("error {}", error.errno()),
        };
        let answer = match (words[0], here) {
            ("write", Some(file)) => to_error(file.write_at(number(1), words[2].as_bytes()).map(|done| done as u64)),
            ("append", Some(file)) => (0..number(1))
                .try_for_each(|_| file.append(words[2].as_bytes()).map(drop))
                .map_or_else(|error| error.to_string(), |()| "done".into()),
            ("read", Some(file)) => {
                let mut bytes = vec![0; number(2) as usize];
                let got = file.read_at(number(1), &mut bytes).expect("read");
                String::from_utf8_lossy(&bytes[..got]).into_owned()
            }
            ("size", Some(file)) => file.len().expect("a length").to_string(),
            ("cut", Some(file)) => to_error(file.set_len(number(1)).map(|()| 0)),
            ("sync", Some(file)) => to_error(file.sync(false).map(|()| 0)),
            ("read-on", Some(file)) => {
                println!("> reading");
                read_on(file)
            }
            ("put", _) => {
                let written = open(&instance, &dir.join(words[1]), OFlags::RDWR | OFlags::CREATE);
                written.write_at(0, words[1].as_bytes()).expect("written");
                written.sync(false).expect("synced");
                if words[2] == "open" {
                    file = Some(written);
                }
                "put".into()
            }
            ("rename", _) => {
                instance.rename(CWD, &dir.join(words[1]), CWD, &dir.join(words[2]), RenameFlags::empty()).expect("moved");
                "moved".into()
            }
            ("leads", _) => (instance.status().leader_pid == Some(std::process::id())).to_string(),
            ("end", _) => {
                drop(file.take());
                instance.detach().expect("left");
                println!("> left");
                return;
            }
            (other, _) => panic!("{other}?"),
        };
        println!("> {answer}");
    }
}

/// Asynchronously, until it is killed.
fn read_on(file: &File) -> ! {
    let mut reads = AsyncReader::new(32);
    let pages = file.len().expect("a length") / 4096;
    loop {
        while reads.under_way() < 32 {
            // Reads from memory or from the backing file have completed; those that waited are forgotten.
            if let SubmitResult::Ended(ended) = reads.begin(file, fastrand::u64(..pages) * 4096, vec![0; 4096], ()) {
                drop(ended);
            }
        }
        reads.wait(Duration::MAX);
        while reads.take().is_some() {}
    }
}

const BOTH: [(Mode, &str, bool); 5] = [
    (Mode::WriteBack, "write-back", false),
    (Mode::WriteBack, "write-back", true),
    (Mode::WriteThrough, "write-through", true),
    (Mode::WriteAround, "write-around", false),
    (Mode::PassThrough, "pass-through", false),
];

#[test]
fn each_sees_what_the_other_writes() {
    for (mode, name, has_ssd) in BOTH {
        let dir = tempfile::tempdir().expect("a directory");
        let mut other = Other::start(dir.path(), name, has_ssd);
        let instance = Instance::open(&config(dir.path(), mode, has_ssd)).expect("joined");
        assert_eq!(instance.status().processes.len(), 2);
        let file = open(&instance, &dir.path().join("file"), OFlags::RDWR | OFlags::APPEND);
        assert_eq!(other.ask("write 0 hello"), "5");
        assert_eq!(&*file.view(0..100).expect("read"), b"hello", "{mode:?}");
        file.append(b" world").expect("appended");
        assert_eq!(other.ask("read 0 100"), "hello world");
        assert_eq!(other.ask("cut 3"), "0");
        assert_eq!(file.len().expect("a length"), 3);
        assert_eq!(&*file.view(0..100).expect("read"), b"hel");
        // Both append at once: nothing is lost, nothing mixed.
        other.tell("append 300 0123456789");
        for _ in 0..300 {
            file.append(b"abcdefghij").expect("appended");
        }
        assert_eq!(other.answer(), "done");
        let whole = file.view(0..u64::MAX).expect("read");
        assert_eq!(whole.len(), 3 + 6000);
        let pieces = |piece: &[u8]| whole[3..].chunks(10).filter(|chunk| *chunk == piece).count();
        assert_eq!((pieces(b"0123456789"), pieces(b"abcdefghij")), (300, 300), "{mode:?}");
        drop(file);
        instance.detach().expect("left");
        other.end();
        assert_eq!(fs::read(dir.path().join("file")).expect("below"), &*whole);
        assert!(!Instance::segment_path(instance.config()).exists());
    }
}

#[test]
fn whoever_is_killed_loses_nothing_that_was_written() {
    for has_ssd in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let mut leader = Other::start(dir.path(), "write-back", has_ssd);
        assert_eq!(leader.ask("sync"), "0", "which somebody who leads has answered");
        assert_eq!(leader.ask("leads"), "true");
        let instance = Instance::open(&config(dir.path(), Mode::WriteBack, has_ssd)).expect("joined");
        let file = open(&instance, &dir.path().join("file"), OFlags::RDWR);
        assert_eq!(leader.ask("write 100000 theirs"), "6");
        file.write_at(0, b"ours").expect("written");
        leader.kill();
        // The lead is ours now, and works.
        file.sync(false).expect("synced");
        assert_eq!(instance.status().leader_pid, Some(std::process::id()));
        let mut bytes = [0; 6];
        assert_eq!(file.read_at(100_000, &mut bytes).expect("read"), 6);
        assert_eq!(&bytes, b"theirs");
        drop(file);
        instance.detach().expect("left");
        let below = fs::read(dir.path().join("file")).expect("below");
        assert_eq!((&below[..4], &below[100_000..]), (&b"ours"[..], &b"theirs"[..]));
    }
}

/// The names of files in a directory that a process of the instance moves are known to the next leader, too.
#[test]
fn files_in_a_directory_that_we_moved_are_found_after_the_leader_is_killed() {
    for (has_ssd, flags) in [(false, RenameFlags::empty()), (true, RenameFlags::empty()), (false, RenameFlags::EXCHANGE)] {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        fs::create_dir_all(path("one/sub")).expect("made");
        let mut leader = Other::start(dir.path(), "write-back", has_ssd);
        assert_eq!((leader.ask("sync").as_str(), leader.ask("leads").as_str()), ("0", "true"));
        let instance = Instance::open(&config(dir.path(), Mode::WriteBack, has_ssd)).expect("joined");
        let mut moved = vec![("one/sub/file", "two/sub/file")];
        if flags == RenameFlags::EXCHANGE {
            fs::create_dir(path("two")).expect("made");
            moved.push(("two/file", "one/file"));
        }
        for (before, _) in &moved {
            open(&instance, &path(before), OFlags::RDWR | OFlags::CREATE).write_at(0, before.as_bytes()).expect("written");
        }
        instance.rename(CWD, &path("one"), CWD, &path("two"), flags).expect("moved");
        leader.kill();
        instance.flush(&mut |_, _| ()).unwrap_or_else(|error| panic!("ssd {has_ssd} {flags:?}: {error}"));
        for (before, now) in moved {
            assert_eq!(fs::read(path(now)).expect("below"), before.as_bytes(), "{flags:?}");
        }
        instance.detach().expect("left");
    }
}

/// Kills the only process and removes its memory, as a loss of power does. The SSD is there, and its dirty data.
fn lose_power(process: Other, dir: &Path) -> Arc<Instance> {
    process.kill();
    let config = config(dir, Mode::WriteBack, true);
    fs::remove_file(Instance::segment_path(&config)).expect("removed");
    Instance::open(&config).expect("an instance")
}

/// Synced data on the SSD reaches its file after a loss of power, though the file's directory was renamed since.
#[test]
fn files_in_a_renamed_directory_are_found_after_a_loss_of_power() {
    for is_ours in [true, false] {
        // To another directory, which the leader notes on the SSD; or within its parent, where it is searched for.
        for (how, to) in [("open", "other/two"), ("closed", "other/two"), ("closed", "two")] {
            let dir = tempfile::tempdir().expect("a directory");
            let path = |name: &str| dir.path().join(name);
            fs::create_dir_all(path("one/sub")).expect("made");
            fs::create_dir(path("other")).expect("made");
            let mut process = Other::start(dir.path(), "write-back", true);
            assert_eq!(process.ask(&format!("put one/sub/file {how}")), "put");
            if is_ours {
                assert_eq!(process.ask(&format!("rename one {to}")), "moved");
            } else {
                fs::rename(path("one"), path(to)).expect("moved");
            }
            let now = path(to).join("sub/file");
            let name = now.as_os_str().as_encoded_bytes();
            let begun = Instant::now();
            while to != "two" && !fs::read(path("ssd")).expect("the SSD").windows(name.len()).any(|bytes| bytes == name) {
                assert!(begun.elapsed() < Duration::from_secs(30), "the new name is not noted");
                std::thread::sleep(Duration::from_millis(50));
            }
            let instance = lose_power(process, dir.path());
            instance.flush(&mut |_, _| ()).unwrap_or_else(|error| panic!("ours {is_ours}, {how}, to {to}: {error}"));
            assert_eq!(fs::read(&now).expect("below"), b"one/sub/file", "ours {is_ours}, {how}, to {to}");
            assert!(instance.status().stranded.is_empty());
            instance.detach().expect("left");
        }
    }
}

/// What is moved while no process of the cache runs is named in the status, can be saved, and is written when it is opened.
#[test]
fn a_file_that_nobody_finds_after_a_loss_of_power_is_named_and_has_a_way_out() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    fs::create_dir_all(path("one/sub")).expect("made");
    fs::create_dir(path("other")).expect("made");
    let mut process = Other::start(dir.path(), "write-back", true);
    assert_eq!(process.ask("put one/sub/file closed"), "put");
    process.kill();
    fs::rename(path("one"), path("other/two")).expect("moved");
    let config = config(dir.path(), Mode::WriteBack, true);
    fs::remove_file(Instance::segment_path(&config)).expect("removed");
    let instance = Instance::open(&config).expect("an instance");
    let begun = Instant::now();
    while instance.status().stranded.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(30), "the status does not name it");
        std::thread::sleep(Duration::from_millis(20));
    }
    let stranded = instance.status().stranded;
    assert_eq!(stranded.iter().map(|one| (&*one.path, &*one.why)).collect::<Vec<_>>(), [(&*path("one/sub/file"), "missing")]);
    instance.export(&path("one/sub/file"), &path("copy")).expect("exported");
    assert_eq!(fs::read(path("copy")).expect("a copy"), b"one/sub/file");
    drop(open(&instance, &path("other/two/sub/file"), OFlags::RDWR));
    instance.flush(&mut |_, _| ()).expect("all below");
    assert_eq!(fs::read(path("other/two/sub/file")).expect("below"), b"one/sub/file");
    assert!(instance.status().stranded.is_empty());
    instance.detach().expect("left");
}

/// A process that is killed closes its files: the leader holds those that are dirty as after any other close.
#[test]
fn what_a_killed_process_left_dirty_is_found_where_it_was_moved() {
    for has_ssd in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("sub")).expect("made");
        let instance = Instance::open(&config(dir.path(), Mode::WriteBack, has_ssd)).expect("an instance");
        let mut other = Other::start(dir.path(), "write-back", has_ssd);
        assert_eq!(other.ask("write 5000 theirs"), "6");
        other.kill();
        let begun = Instant::now();
        while instance.status().processes.len() > 1 {
            assert!(begun.elapsed() < Duration::from_secs(30), "not reaped");
            std::thread::sleep(Duration::from_millis(5));
        }
        let (before, now) = (dir.path().join("file"), dir.path().join("sub/elsewhere"));
        fs::rename(before, &now).expect("moved");
        instance.flush(&mut |_, _| ()).unwrap_or_else(|error| panic!("ssd {has_ssd}: {error}"));
        assert_eq!(&fs::read(&now).expect("below")[5000..], b"theirs");
        instance.detach().expect("left");
    }
}

/// The cache knows one name of a file. What it knows nothing of any more, is written back while the leader still has the file open.
#[test]
fn a_file_that_lost_one_of_its_names_is_found_after_the_leader_is_killed() {
    for has_ssd in [false, true] {
        for is_ours in [true, false] {
            let dir = tempfile::tempdir().expect("a directory");
            let path = |name: &str| dir.path().join(name);
            fs::create_dir(path("sub")).expect("made");
            fs::write(path("sub/other"), "before").expect("written");
            fs::hard_link(path("sub/other"), path("one")).expect("linked");
            let mut leader = Other::start(dir.path(), "write-back", has_ssd);
            assert_eq!((leader.ask("sync").as_str(), leader.ask("leads").as_str()), ("0", "true"));
            let instance = Instance::open(&config(dir.path(), Mode::WriteBack, has_ssd)).expect("joined");
            open(&instance, &path("one"), OFlags::RDWR).write_at(0, b"behind").expect("written");
            if is_ours {
                instance.unlink(CWD, &path("one"), AtFlags::empty()).expect("removed");
            } else {
                fs::remove_file(path("one")).expect("removed");
                let begun = Instant::now();
                while instance.status().dirty_bytes > 0 {
                    assert!(begun.elapsed() < Duration::from_secs(10), "the leader keeps it");
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            leader.kill();
            instance.flush(&mut |_, _| ()).unwrap_or_else(|error| panic!("ssd {has_ssd} ours {is_ours}: {error}"));
            assert_eq!(fs::read(path("sub/other")).expect("below"), b"behind");
            instance.detach().expect("left");
        }
    }
}

#[test]
fn whoever_is_killed_while_the_ssd_reads_for_him_harms_nobody() {
    let dir = tempfile::tempdir().expect("a directory");
    let instance = Instance::open(&config(dir.path(), Mode::WriteBack, true)).expect("an instance");
    let file = open(&instance, &dir.path().join("file"), OFlags::RDWR | OFlags::CREATE);
    let page = |n: u64, round: u64| [n, round].map(u64::to_le_bytes).concat().repeat(256);
    const PAGES: u64 = 1000;
    for round in 0..5 {
        (0..PAGES).for_each(|n| assert_eq!(file.write_at(n * 4096, &page(n, round)).expect("written"), 4096));
        file.sync(false).expect("synced");
        let mut others: Vec<Other> = (0..2).map(|_| Other::start(dir.path(), "write-back", true)).collect();
        others.iter_mut().for_each(|other| assert_eq!(other.ask("read-on"), "reading"));
        // While they read, pages change, and move on the SSD.
        for n in (0..PAGES).step_by(3) {
            file.write_at(n * 4096, &page(n, round + 100)).expect("written");
        }
        file.sync(false).expect("synced");
        others.into_iter().for_each(Other::kill);
        instance.check().expect("whole");
        let mut bytes = vec![0; 4096];
        for n in 0..PAGES {
            assert_eq!(file.read_at(n * 4096, &mut bytes).expect("read"), 4096);
            assert_eq!(bytes, page(n, if n % 3 == 0 { round + 100 } else { round }), "page {n}, round {round}");
        }
    }
    drop(file);
    instance.detach().expect("left");
}

#[test]
fn what_all_left_dead_is_taken_up_by_the_next() {
    for has_ssd in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let mut one = Other::start(dir.path(), "write-back", has_ssd);
        assert_eq!(one.ask("write 5000 kept"), "4");
        one.kill();
        let config = config(dir.path(), Mode::WriteBack, has_ssd);
        let status = Instance::look(&config).expect("looked").expect("there");
        assert!(status.dirty_bytes > 0 && status.processes.iter().all(|process| !process.alive));
        assert_eq!(Instance::destroy(&config, false).expect_err("dirty").errno(), 16);
        let instance = Instance::open(&config).expect("taken up");
        instance.flush(&mut |_, _| ()).expect("flushed");
        assert_eq!(&fs::read(dir.path().join("file")).expect("below")[5000..], b"kept");
        instance.detach().expect("left");
    }
}

#[test]
fn two_that_start_at_once_get_one_instance() {
    let dir = tempfile::tempdir().expect("a directory");
    let others: Vec<_> = std::thread::scope(|scope| {
        let starts: Vec<_> = (0..4).map(|_| scope.spawn(|| Other::start(dir.path(), "write-back", true))).collect();
        starts.into_iter().map(|start| start.join().expect("started")).collect()
    });
    let status = Instance::look(&config(dir.path(), Mode::WriteBack, true)).expect("looked").expect("there");
    assert_eq!(status.processes.iter().filter(|process| process.alive).count(), 4);
    assert_eq!(status.processes.iter().filter(|process| process.leads).count(), 1);
    others.into_iter().for_each(Other::end);
    assert!(!Instance::is_running(&config(dir.path(), Mode::WriteBack, true)));
}

#[test]
fn what_it_was_made_with_counts_and_a_segment_of_others_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let other = Other::start(dir.path(), "write-through", false);
    let wanted = Config { mode: Mode::WriteBack, ..config(dir.path(), Mode::WriteBack, false) };
    let instance = Instance::open(&wanted).expect("joined");
    let status = instance.status();
    assert_eq!(status.mode, Mode::WriteThrough);
    assert!(status.notes.iter().any(|note| note.contains("mode")), "{:?}", status.notes);
    assert!(Arc::ptr_eq(&instance, &Instance::open(&wanted).expect("again")), "one part a process");
    let file = open(&instance, &dir.path().join("file"), OFlags::RDONLY);
    assert_eq!(instance.detach().expect_err("a file is open").errno(), 16);
    drop(file);
    instance.detach().expect("left");
    assert_eq!(open_kind(&instance, &dir.path().join("file")), Some(Kind::Detached));
    other.end();
    // Somebody else's bytes.
    let segment = Instance::segment_path(&wanted);
    fs::write(&segment, vec![7; 1 << 20]).expect("written");
    assert_eq!(Instance::open(&wanted).expect_err("refused").kind(), Kind::Segment);
    assert!(Instance::look(&wanted).is_err());
    Instance::destroy(&wanted, true).expect("removed");
    assert!(!segment.exists());
}

fn open_kind(instance: &Arc<Instance>, path: &Path) -> Option<Kind> {
    let opened = instance.open_file(CWD, path, OFlags::RDONLY, rustix::fs::Mode::empty(), &Options::default());
    opened.err().map(|error| error.kind())
}

#[test]
fn what_others_change_is_noticed_while_it_is_open() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("file");
    fs::write(&path, "before").expect("written");
    let instance = Instance::open(&config(dir.path(), Mode::WriteBack, false)).expect("an instance");
    let file = open(&instance, &path, OFlags::RDWR);
    assert_eq!(&*file.view(0..100).expect("read"), b"before");
    fs::write(&path, "behind our back").expect("written");
    // The kernel tells soon; nobody calls open or sync.
    let begun = Instant::now();
    while &*file.view(0..100).expect("read") != b"behind our back" {
        assert!(begun.elapsed() < Duration::from_secs(10), "not noticed");
        std::thread::yield_now();
    }
    // With dirty pages it is a conflict, which is not merged.
    file.write_at(0, b"OURS").expect("written");
    fs::write(&path, "theirs, and longer").expect("written");
    assert_eq!(file.sync(false).expect_err("a conflict").kind(), Kind::Conflict);
    assert_eq!(fs::read(&path).expect("below"), b"theirs, and longer");
    let status = instance.status();
    assert!(status.lost.iter().any(|lost| lost.path == path), "{status:?}");
    file.discard().expect("the backing file is valid");
    assert_eq!(&*file.view(0..100).expect("read"), b"theirs, and longer");
    file.sync(false).expect("synced");
    drop(file);
    instance.detach().expect("left");
}

#[test]
fn who_comes_and_goes_leaves_the_others_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut other = Other::start(dir.path(), "write-back", true);
    let config = config(dir.path(), Mode::WriteBack, true);
    let mut before = None;
    for round in 0..5 {
        let instance = Instance::open(&config).expect("joined");
        // The last round's is dropped only now: it must not take our process slot with it.
        before.replace(Arc::clone(&instance));
        let file = open(&instance, &dir.path().join("file"), OFlags::RDWR);
        file.write_at(0, format!("round {round}").as_bytes()).expect("written");
        assert_eq!(other.ask("read 0 100"), format!("round {round}"));
        let status = instance.status();
        assert_eq!(status.processes.iter().filter(|process| process.alive).count(), 2, "{:?}", status.processes);
        drop(file);
        instance.detach().expect("left");
    }
    other.end();
    assert_eq!(fs::read(dir.path().join("file")).expect("below"), b"round 4");
}

#[test]
fn many_that_leave_at_once_leave_nothing_dirty() {
    for _ in 0..3 {
        let dir = tempfile::tempdir().expect("a directory");
        let mut others: Vec<_> = (0..4).map(|_| Other::start(dir.path(), "write-back", false)).collect();
        for (n, other) in others.iter_mut().enumerate() {
            assert_eq!(other.ask(&format!("write {} x", n * 5000)), "1");
        }
        others.iter_mut().for_each(|other| other.tell("end"));
        for mut other in others {
            assert_eq!(other.answer(), "left");
            other.child.wait().expect("gone");
        }
        let below = fs::read(dir.path().join("file")).expect("below");
        assert_eq!(below.iter().filter(|byte| **byte == b'x').count(), 4);
        let config = config(dir.path(), Mode::WriteBack, false);
        assert!(!Instance::segment_path(&config).exists());
    }
}
