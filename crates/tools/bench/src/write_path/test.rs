use super::*;
use sim::device::model::presets::NYTRO_5000_400GB;

#[test]
fn every_series_is_measured_and_written_and_leaves_nothing_behind() {
    let modelled = model::ModelledFs::new(&NYTRO_5000_400GB, 64 << 20, model::TimeScope::All).expect("a drive");
    let free = modelled.fs.stat_fs().free;
    let now = || modelled.now();
    let bench = WritePathBench { fs: &modelled.fs, now: &now, block_bytes: 512, trials: 2, stopped: &|| false };
    let measured = |sweep: Sweep| {
        let points = [1, 3].map(|at| (at, sweep.measure(&bench, at, &[WriteMode::Sync, WriteMode::Async]).expect("measured")));
        (sweep, points.to_vec())
    };
    let sweeps = Sweeps { block_bytes: 512, done: SWEEPS.map(measured).to_vec() };
    let dir = tempfile::tempdir().expect("a directory");
    let written = sweeps.write(dir.path()).expect("written");
    assert_eq!(written.len(), 10);
    let text = std::fs::read_to_string(dir.path().join("e2e_write_num_files_10bl.csv")).expect("read");
    let head = "num_files,trials,sync_min_us,sync_max_us,sync_avg_us,async_min_us,async_max_us,async_avg_us";
    assert_eq!(text.lines().next(), Some(head));
    let row: Vec<f64> = text.lines().nth(2).expect("two points").split(',').map(|word| word.parse().expect("a number")).collect();
    assert!(row.len() == 8 && row[0] == 3.0 && row[1] == 2.0 && row[2..].iter().all(|value| *value > 0.0), "{row:?}");
    modelled.fs.sync().expect("synced");
    modelled.fs.store().checkpoint().expect("written");
    assert_eq!(modelled.fs.stat_fs().free, free, "blocks came back");
}

#[test]
fn who_interrupts_finds_no_files_left() {
    let modelled = model::ModelledFs::new(&NYTRO_5000_400GB, 64 << 20, model::TimeScope::All).expect("a drive");
    let (now, turns) = (|| modelled.now(), std::cell::Cell::new(0));
    let stopped = || {
        turns.set(turns.get() + 1);
        turns.get() > 2
    };
    let bench = WritePathBench { fs: &modelled.fs, now: &now, block_bytes: 4096, trials: 5, stopped: &stopped };
    let error = appends(&bench, AppendShape { files: 3, blocks: 2 }, &[WriteMode::Sync, WriteMode::Async]).expect_err("stopped");
    assert_eq!(error.to_string(), "interrupted");
    let root = modelled.fs.open_node(modelled.fs.root(), rustix::fs::OFlags::RDONLY, &stack::rawfs::fs::Creds::root()).expect("opened");
    let mut names = 0;
    root.read_dir(&mut |_, _| {
        names += 1;
        true
    })
    .expect("listed");
    assert_eq!(names, 2, "the dots");
}
