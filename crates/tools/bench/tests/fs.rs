//! Small runs of the rawfs benchmarks beside a kernel file system: operations take effect, and data read is what was written.

use std::time::Duration;

use bench::fs::Files;
use bench::fs::kernel::Kernel;
use bench::fs::kv::{self, RawFile};
use bench::fs::raw::{Raw, RawOptions};
use bench::fs::small::{self, SyncPolicy};

fn raw(dir: &tempfile::TempDir) -> Raw {
    let image = dir.path().join("image");
    std::fs::File::create(&image).expect("a file").set_len(64 << 20).expect("sized");
    let options = RawOptions { memory: 24 << 20, write_back: Duration::ZERO, metadata: None };
    Raw::make(&image, options).expect("a file system")
}

#[test]
fn small_files_are_what_was_written_on_both_sides() {
    let dir = tempfile::tempdir().expect("a directory");
    let raw = raw(&dir);
    let names = dir.path().join("names");
    std::fs::create_dir(&names).expect("made");
    let kernel = Kernel::new(names).expect("there");
    for (seed, durable) in [(1, SyncPolicy::End), (2, SyncPolicy::Every(50)), (3, SyncPolicy::Each)] {
        let plan = small::SmallFilesPlan { files: 200, operations: 300, threads: 2, durable, seed };
        // Each plan has its own directory tree.
        for files in [&raw as &dyn Files, &kernel] {
            let mut begun = false;
            let dir = format!("run{seed}");
            let below = small::TestFiles::new(files, &dir).expect("made");
            small::run(&below, &plan, || {
                begun = true;
                Ok(())
            })
            .expect("done");
            assert!(begun);
        }
    }
    raw.close().expect("closed");
}

#[test]
fn a_key_value_store_works_on_both_sides() {
    let dir = tempfile::tempdir().expect("a directory");
    let raw = raw(&dir);
    let plan =
        kv::KvPlan { keys: 300, getters: 1, putters: 1, duration: Duration::from_millis(50), durable_every: 2, cache: 64 << 10, seed: 1 };
    let ours = kv::run(RawFile::make(&raw, "kv").expect("a file"), &plan, || Ok(())).expect("done");
    let theirs = kv::run(kv::kernel_file(&dir.path().join("kv")).expect("a file"), &plan, || Ok(())).expect("done");
    for measured in [ours, theirs] {
        assert!(!measured.gets.is_empty() && !measured.puts.is_empty());
    }
    raw.close().expect("closed");
}
