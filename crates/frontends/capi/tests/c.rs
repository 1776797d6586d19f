//! Programs in C, compiled as C and as C++, against the header and the library as they are.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;

const C: &[&str] = &["cc", "-std=c99", "-D_DEFAULT_SOURCE"];
const C11: &[&str] = &["cc", "-std=c11"];
const CPP: &[&str] = &["c++", "-x", "c++"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// The shared library that cargo built for this test, in a directory where the linker of programs finds it.
struct Library {
    dir: tempfile::TempDir,
}

impl Library {
    fn new() -> Library {
        let test = std::env::current_exe().expect("this test");
        let built = test.parent().expect("a directory").join("libhotshelf.so");
        assert!(built.is_file(), "{} was not built with this test", built.display());
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["libhotshelf.so", "libhotshelf.so.0"] {
            std::os::unix::fs::symlink(&built, dir.path().join(name)).expect("a link");
        }
        Library { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Compiles without a warning.
    fn compile(&self, compiler: &[&str], source: &Path) -> PathBuf {
        let program = self.path("program");
        let dir = self.dir.path().display();
        let mut command = Command::new(compiler[0]);
        command.args(&compiler[1..]).args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread", "-g", "-o"]).arg(&program);
        command.arg("-I").arg(root().join("include")).arg(source).args([&format!("-L{dir}"), "-lhotshelf", &format!("-Wl,-rpath,{dir}")]);
        let done = command.output().expect("a compiler");
        assert!(done.status.success(), "{}: {}", source.display(), String::from_utf8_lossy(&done.stderr));
        program
    }

    fn run(&self, compiler: &[&str], source: &str, arguments: &[&Path]) -> String {
        let program = self.compile(compiler, &root().join("crates/frontends/capi").join(source));
        let done = Command::new(program).args(arguments).output().expect("runs");
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success(), "{source}: {said}{}", String::from_utf8_lossy(&done.stderr));
        said
    }
}

/// What a program compiled last year relies on. A line may be added; one that changes breaks programs.
#[test]
fn sizes_places_and_constants_stay() {
    let library = Library::new();
    let expected = std::fs::read_to_string(root().join("crates/frontends/capi/tests/abi.txt")).expect("abi.txt");
    for compiler in [C, CPP] {
        assert_eq!(library.run(compiler, "tests/abi.c", &[]), expected, "{compiler:?}: compare with tests/abi.txt");
    }
    let header = std::fs::read_to_string(root().join("include/hotshelf.h")).expect("the header");
    for line in header.lines() {
        let name = line.strip_prefix("#define ").and_then(|rest| rest.split_once(' ')).map(|(name, _)| name);
        assert!(name.is_none_or(|name| expected.contains(&format!("{name} "))), "{line}: not in tests/abi.c");
    }
}

/// Nothing else is visible of the library, and nothing is missing.
#[test]
fn the_symbols_are_those_of_the_list() {
    let library = Library::new();
    let done = Command::new("nm").args(["-D", "--defined-only"]).arg(library.path("libhotshelf.so")).output().expect("nm");
    let said = String::from_utf8(done.stdout).expect("names");
    let mut found: Vec<&str> = said.lines().filter_map(|line| line.split_whitespace().last()).collect();
    found.sort_unstable();
    let list = std::fs::read_to_string(root().join("crates/frontends/capi/tests/symbols.txt")).expect("symbols.txt");
    assert_eq!(found, list.lines().collect::<Vec<_>>(), "compare with tests/symbols.txt");
    let header = std::fs::read_to_string(root().join("include/hotshelf.h")).expect("the header");
    for name in found {
        assert!(header.contains(&format!("{name}(")), "{name} is not in the header");
    }
}

#[test]
fn programs_that_are_wrong_get_errors_and_others_what_they_ask_for() {
    let library = Library::new();
    assert_eq!(library.run(C, "tests/behaviour.c", &[library.dir.path()]), "all is well\n");
}

#[test]
fn files_are_as_posix_has_them() {
    let library = Library::new();
    let dir = tempfile::tempdir().expect("a directory");
    assert_eq!(library.run(C, "tests/files.c", &[dir.path()]), "all is well\n");
}

/// With an SSD and without; the kernel's own mapping is what is compared with.
#[test]
fn mappings_show_what_a_read_would() {
    let library = Library::new();
    for ssd in ["ssd", "none"] {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(library.run(C, "tests/maps.c", &[dir.path(), Path::new(ssd)]), "all is well\n", "{ssd}");
    }
}

/// With an SSD and without.
#[test]
fn a_conflict_has_three_ways_out() {
    let library = Library::new();
    for ssd in ["ssd", "none"] {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(library.run(C, "tests/stranded.c", &[dir.path(), Path::new(ssd)]), "all is well\n", "{ssd}");
    }
}

/// As C and as C++.
#[test]
fn the_library_file_system_is_as_posix_has_it_and_survives_kills() {
    let library = Library::new();
    for compiler in [C11, CPP] {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(library.run(compiler, "tests/nvmedfs.c", &[dir.path()]), "all is well\n", "{compiler:?}");
    }
}

/// With an SSD, where reads come through its queue.
#[test]
fn asynchronous_reads_are_of_those_who_ask() {
    let library = Library::new();
    let dir = tempfile::tempdir().expect("a directory");
    assert_eq!(library.run(C, "tests/uaio.c", &[dir.path()]), "all is well\n");
    // A process that ends while one of its threads has reads in flight, in a UAIO that was promised to that thread.
    for how in ["asleep", "at-it"] {
        let begun = std::time::Instant::now();
        assert_eq!(library.run(C, "tests/uaio.c", &[dir.path(), Path::new(how)]), "");
        assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{how}: it hung");
    }
}

/// The example, on memory and on a file.
#[test]
fn the_example_works_as_c_and_as_cpp() {
    let library = Library::new();
    let file = library.path("device");
    std::fs::File::create(&file).and_then(|file| file.set_len(16 << 20)).expect("a file");
    for compiler in [C, CPP] {
        for device in [Path::new("memory:16MiB"), &file] {
            let said = library.run(compiler, "examples/raw_device.c", &[device]);
            assert!(said.ends_with("all is well\n"), "{said}");
        }
    }
}

/// Runs the program for a raw device that the tutorial shows.
#[test]
fn the_program_of_the_tutorial_works() {
    let library = Library::new();
    let page = std::fs::read_to_string(root().join("docs/tutorials/link-the-library.md")).expect("the tutorial");
    let code = page.split("```c\n").last().and_then(|rest| rest.split("```").next()).expect("a program in the tutorial");
    let source = library.path("tutorial.c");
    std::fs::write(&source, code).expect("written");
    let program = library.compile(C, &source);
    let done = Command::new(program).output().expect("runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(String::from_utf8_lossy(&done.stdout), "read back: hello\n");
}
