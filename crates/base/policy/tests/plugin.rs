//! Shared objects as policies: the example, and ones that break each rule of hotshelf_policy.h.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use policy::plugin::Plugin;
use policy::{FileId, Policy, PolicyError, Record};
use proptest::prelude::*;
use tempfile::TempDir;

/// A policy that does nothing. Tests append `victim` and a table, which they can make invalid.
const CALLS: &str = r#"
#include <stddef.h>
#include "hotshelf_policy.h"
static int it;
static void *create(void) { return &it; }
static void destroy(void *p) { (void)p; }
static void insert(void *p, uint64_t file, uint64_t size, uint32_t last_open_s, uint16_t opens) {
    (void)p; (void)file; (void)size; (void)last_open_s; (void)opens;
}
static void touch(void *p, uint64_t file, uint32_t now_s) { (void)p; (void)file; (void)now_s; }
static void resize(void *p, uint64_t file, uint64_t size) { (void)p; (void)file; (void)size; }
static void forget(void *p, uint64_t file) { (void)p; (void)file; }
"#;

/// Records its calls in the file LOG.
const LOGGER: &str = r#"
#include <stdio.h>
#include "hotshelf_policy.h"
#define SAY(...) do { fprintf(f, __VA_ARGS__); fputc('\n', f); } while (0)
static void *create(void) { return fopen(LOG, "w"); }
static void destroy(void *f) { SAY("destroy"); fclose(f); }
static void insert(void *f, uint64_t file, uint64_t size, uint32_t last_open_s, uint16_t opens) {
    SAY("insert %d %d %d %d", (int)file, (int)size, (int)last_open_s, opens);
}
static void touch(void *f, uint64_t file, uint32_t now_s) { SAY("touch %d %d", (int)file, (int)now_s); }
static void resize(void *f, uint64_t file, uint64_t size) { SAY("resize %d %d", (int)file, (int)size); }
static void forget(void *f, uint64_t file) { SAY("remove %d", (int)file); }
static int victim(void *f, uint64_t nth, uint64_t *file) { SAY("victim %d", (int)nth); *file = 2; return nth < 9; }
"#;

const FIELDS: [&str; 10] = [
    "HOTSHELF_POLICY_ABI",
    "sizeof(struct hotshelf_policy_v1_table)",
    "\"test\"",
    "create",
    "destroy",
    "insert",
    "touch",
    "resize",
    "forget",
    "victim",
];
const ABI: usize = 0;
const BYTES: usize = 1;
const NAME: usize = 2;
const CREATE: usize = 3;

fn table(fields: &[&str]) -> String {
    format!(
        "static const struct hotshelf_policy_v1_table table = {{ {} }};\n\
         const struct hotshelf_policy_v1_table *hotshelf_policy_v1(void) {{ return &table; }}\n",
        fields.join(", ")
    )
}

/// The policy that does nothing, with another search and one field changed.
fn source(victim: &str, at: usize, value: &str) -> String {
    let mut fields = FIELDS;
    fields[at] = value;
    let head = "static int victim(void *p, uint64_t nth, uint64_t *file)";
    format!("{CALLS}{head} {{ (void)p; (void)nth; (void)file; {victim} }}\n{}", table(&fields))
}

fn with_field(at: usize, value: &str) -> String {
    source("return 0;", at, value)
}

fn with_victim(victim: &str) -> String {
    source(victim, ABI, FIELDS[ABI])
}

fn scratch() -> TempDir {
    tempfile::tempdir().expect("a scratch directory")
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode set");
}

fn compile_file(source: &Path, dir: &Path, define: &str) -> PathBuf {
    let object = dir.join("policy.so");
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", define, "-I"]).arg(include);
    let out = cc.arg("-o").arg(&object).arg(source).output();
    let out = out.unwrap_or_else(|error| panic!("these tests need a C compiler called `cc` (package gcc): {error}"));
    assert!(out.status.success(), "cc: {}", String::from_utf8_lossy(&out.stderr));
    set_mode(&object, 0o755);
    object
}

fn compile(source: &str, dir: &Path) -> PathBuf {
    let file = dir.join("policy.c");
    fs::write(&file, source).expect("the source is written");
    compile_file(&file, dir, "-DPLAIN")
}

fn example(dir: &Path) -> PathBuf {
    compile_file(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/largest_first.c"), dir, "-DPLAIN")
}

fn load(source: &str) -> Result<Plugin, PolicyError> {
    let dir = scratch();
    // What is loaded stays mapped when its name is gone.
    Plugin::load(&compile(source, dir.path()))
}

fn refusal(source: &str) -> PolicyError {
    load(source).err().expect("it must be refused")
}

fn loaded(source: &str) -> Plugin {
    load(source).unwrap_or_else(|error| panic!("{error}"))
}

fn record(file: u64, size: u64) -> Record {
    Record { file: FileId(file), size, last_open_s: 100, opens: 1 }
}

fn any_file(_: FileId) -> bool {
    true
}

/// Searches without success; returns how many files were checked.
fn search_in_vain(policy: &mut Plugin, limit: usize) -> usize {
    let mut calls = 0;
    let victim = policy.victim(limit, &mut |_| {
        calls += 1;
        false
    });
    assert_eq!(victim, None);
    calls
}

#[test]
fn the_example_takes_the_largest_first() {
    let dir = scratch();
    let mut policy = Plugin::load(&example(dir.path())).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(policy.name(), "largest-first");
    for (file, size) in [(1, 10), (2, 30), (3, 20), (4, 40)] {
        policy.insert(record(file, size));
    }
    assert_eq!(policy.victim(4096, &mut |file| file.0 < 4), Some(FileId(2)));
    assert_eq!(policy.victim(1, &mut |file| file.0 < 4), None);
    assert_eq!([4, 2, 3, 1, 5].map(|file| policy.rank(FileId(file))), [Some(0.0), Some(0.25), Some(0.5), Some(0.75), None]);
    policy.resize(FileId(1), 100);
    // Known: only resized.
    policy.insert(record(4, 5));
    policy.touch(FileId(4), 200);
    let expected = Record { file: FileId(4), size: 5, last_open_s: 200, opens: 2 };
    assert_eq!((policy.len(), policy.record(FileId(4))), (4, Some(expected)));
    for file in [1, 2, 3, 4].map(FileId) {
        assert_eq!(policy.victim(4096, &mut any_file), Some(file));
        policy.remove(file);
    }
    assert_eq!((policy.len(), policy.record(FileId(4))), (0, None));
    assert_eq!(policy.victim(4096, &mut any_file), None);
}

#[test]
fn the_example_is_found_by_its_path() {
    let dir = scratch();
    let object = example(dir.path());
    let link = dir.path().join("link.so");
    symlink(&object, &link).expect("linked");
    for path in [object, link] {
        let policy = policy::by_name(path.to_str().expect("a plain path")).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(policy.name(), "largest-first");
    }
}

#[test]
fn the_example_agrees_with_a_list() {
    let dir = scratch();
    let object = example(dir.path());
    // What happens, the file, the size.
    let step = (0..5u8, 0..100u64, 0..1000u64);
    proptest!(|(steps in proptest::collection::vec(step, 0..300))| {
        let mut policy = Plugin::load(&object).expect("loaded before");
        let mut model: Vec<(u64, u64)> = Vec::new();
        for (what, file, size) in steps {
            let known = model.iter().position(|(other, _)| *other == file);
            match what {
                0 | 1 => policy.insert(record(file, size)),
                2 => policy.resize(FileId(file), size),
                3 => policy.remove(FileId(file)),
                _ => policy.touch(FileId(file), 1),
            }
            match (what, known) {
                (0 | 1, None) => model.push((file, size)),
                (0..=2, Some(at)) => model[at].1 = size,
                (3, Some(at)) => {
                    model.remove(at);
                }
                _ => {}
            }
            prop_assert_eq!(policy.len(), model.len());
            let victim = policy.victim(4096, &mut |file| file.0 % 3 > 0);
            let size = victim.map(|file| policy.record(file).expect("a victim is known").size);
            prop_assert_eq!(size, model.iter().filter(|(file, _)| file % 3 > 0).map(|(_, size)| *size).max());
        }
    });
}

#[test]
fn it_is_notified_of_known_files_only_and_destroyed_at_the_end() {
    let dir = scratch();
    let log = dir.path().join("log");
    let file = dir.path().join("log.c");
    fs::write(&file, format!("{LOGGER}{}", table(&FIELDS))).expect("the source is written");
    let object = compile_file(&file, dir.path(), &format!("-DLOG=\"{}\"", log.display()));
    let mut policy = Plugin::load(&object).unwrap_or_else(|error| panic!("{error}"));
    policy.touch(FileId(1), 5);
    policy.resize(FileId(1), 5);
    policy.remove(FileId(1));
    assert_eq!(policy.victim(4096, &mut any_file), None);
    policy.insert(Record { file: FileId(2), size: 7, last_open_s: 8, opens: 9 });
    policy.insert(Record { file: FileId(2), size: 70, last_open_s: 80, opens: 90 });
    policy.touch(FileId(2), 10);
    assert_eq!(policy.victim(4096, &mut any_file), Some(FileId(2)));
    policy.remove(FileId(2));
    policy.remove(FileId(2));
    drop(policy);
    let logged = fs::read_to_string(log).expect("a log");
    let expected = ["insert 2 7 8 9", "resize 2 70", "touch 2 10", "victim 0", "remove 2", "destroy"];
    assert_eq!(logged.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn records_come_by_last_open() {
    let mut policy = loaded(&with_victim("return 0;"));
    (1..=3).for_each(|file| policy.insert(record(file, 1)));
    policy.touch(FileId(1), 200);
    let mut order = Vec::new();
    policy.export(&mut |record| order.push(record.file.0));
    assert_eq!(order, [2, 3, 1]);
}

#[test]
fn another_version_is_named() {
    let error = refusal(&with_field(ABI, "2"));
    assert!(matches!(error, PolicyError::Version { found: 2, ours: 1, .. }), "{error}");
}

#[test]
fn a_table_that_is_too_small_is_refused() {
    for bytes in ["0", "8", "sizeof(struct hotshelf_policy_v1_table) - 1"] {
        let error = refusal(&with_field(BYTES, bytes));
        assert!(matches!(&error, PolicyError::Load { detail, .. } if detail.contains("bytes")), "{error}");
    }
    // More at the end is nothing to us.
    loaded(&with_field(BYTES, "sizeof(struct hotshelf_policy_v1_table) + 8"));
}

#[test]
fn an_empty_place_in_the_table_is_refused() {
    for (at, name) in FIELDS.iter().enumerate().skip(CREATE) {
        // Named all the same, or the compiler finds it unused.
        let error = refusal(&with_field(at, &format!("1 ? NULL : {name}")));
        assert!(matches!(&error, PolicyError::Load { detail, .. } if detail.contains("empty places")), "{name}: {error}");
    }
}

#[test]
fn no_table_is_refused() {
    let entry = "const struct hotshelf_policy_v1_table *hotshelf_policy_v1(void) { return 0; }";
    let error = refusal(&format!("#include \"hotshelf_policy.h\"\n{entry}\n"));
    assert!(matches!(&error, PolicyError::Load { detail, .. } if detail.contains("no table")), "{error}");
}

#[test]
fn no_entry_point_is_refused() {
    let error = refusal("int something_else(void) { return 1; }\n");
    assert!(matches!(&error, PolicyError::Load { detail, .. } if detail.contains("hotshelf_policy_v1")), "{error}");
}

#[test]
fn a_call_to_a_function_that_is_nowhere_is_found_at_once() {
    let error = refusal(&format!("int nowhere_at_all(void);\n{}", with_victim("return nowhere_at_all();")));
    assert!(matches!(&error, PolicyError::Load { detail, .. } if detail.contains("nowhere_at_all")), "{error}");
}

#[test]
fn create_without_a_policy_is_refused() {
    let source = with_victim("return 0;").replace("return &it;", "return it ? &it : NULL;");
    let error = refusal(&source);
    assert!(matches!(&error, PolicyError::Load { detail, .. } if detail.contains("could not make")), "{error}");
}

#[test]
fn names_are_one_short_line() {
    assert_eq!(loaded(&with_field(NAME, r#""a\n\033[1mb\377""#)).name(), "a[1mb\u{fffd}");
    let long = format!("\"{}\"", "x".repeat(1000));
    assert_eq!(loaded(&with_field(NAME, &long)).name().len(), 64);
    assert!(loaded(&with_field(NAME, "NULL")).name().ends_with("policy.so"));
}

#[test]
fn a_victim_that_was_never_inserted_ends_the_search() {
    let mut policy = loaded(&with_victim("*file = nth == 1 ? 77 : 1; return 1;"));
    (1..=3).for_each(|file| policy.insert(record(file, 1)));
    assert_eq!(search_in_vain(&mut policy, 4096), 1);
    assert_eq!(policy.rank(FileId(2)), Some(1.0));
    // Once removed it is as unknown as any.
    policy.remove(FileId(1));
    assert_eq!(policy.victim(4096, &mut any_file), None);
}

#[test]
fn the_same_victim_for_ever_ends_the_search() {
    let mut policy = loaded(&with_victim("*file = 1; return 1;"));
    (1..=3).for_each(|file| policy.insert(record(file, 1)));
    for limit in [0, 2, 4096, usize::MAX] {
        assert_eq!(search_in_vain(&mut policy, limit), limit.min(3));
    }
}

#[test]
fn a_rank_is_at_most_one_when_a_file_is_named_again_and_again() {
    let mut policy = loaded(&with_victim("*file = nth < 9 ? 1 : 2; return 1;"));
    (1..=2).for_each(|file| policy.insert(record(file, 1)));
    assert_eq!([1, 2].map(|file| policy.rank(FileId(file))), [Some(0.0), Some(1.0)]);
}

#[test]
fn answers_other_than_one_are_no_victim() {
    for answer in ["0", "2", "-1"] {
        let mut policy = loaded(&with_victim(&format!("*file = 1; return {answer};")));
        policy.insert(record(1, 1));
        assert_eq!(policy.victim(4096, &mut any_file), None, "{answer}");
    }
}

#[test]
fn what_others_can_write_is_refused() {
    let dir = scratch();
    let object = compile(&with_victim("return 0;"), dir.path());
    for mode in [0o775, 0o757, 0o777] {
        set_mode(&object, mode);
        let error = Plugin::load(&object).err().expect("others can write it");
        assert!(matches!(&error, PolicyError::Unsafe { path } if path.ends_with("policy.so")), "{error}");
    }
    set_mode(&object, 0o700);
    for (mode, right) in [(0o777, false), (0o770, false), (0o1777, true), (0o700, true)] {
        set_mode(dir.path(), mode);
        match Plugin::load(&object).err() {
            None => assert!(right, "{mode:o}"),
            Some(PolicyError::Unsafe { path }) => assert!(!right && path.file_name() == dir.path().file_name(), "{mode:o}"),
            Some(error) => panic!("{error}"),
        }
    }
}

#[test]
fn what_is_no_shared_object_is_refused() {
    let dir = scratch();
    let [text, empty, pipe] = ["text.so", "empty.so", "pipe.so"].map(|name| dir.path().join(name));
    for (file, content) in [(&text, "not an object\n"), (&empty, "")] {
        fs::write(file, content).expect("written");
        set_mode(file, 0o644);
    }
    assert!(Command::new("mkfifo").args(["-m", "600"]).arg(&pipe).status().expect("mkfifo runs").success());
    for path in [text.as_path(), &empty, &pipe, dir.path()] {
        let error = Plugin::load(path).err().expect("no object");
        assert!(matches!(error, PolicyError::Load { .. }), "{error}");
        assert_eq!(error.to_string().lines().count(), 1, "{error}");
    }
}

#[test]
fn a_missing_file_is_named() {
    let dir = scratch();
    let dangling = dir.path().join("dangling.so");
    symlink("nowhere", &dangling).expect("linked");
    for path in [dangling, dir.path().join("missing.so")] {
        let error = Plugin::load(&path).err().expect("nothing is there");
        assert!(matches!(&error, PolicyError::File { source, .. } if source.kind() == std::io::ErrorKind::NotFound), "{error}");
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    }
}
