//! A damaged segment: opening it fails or works, but neither crashes nor hangs.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use cachedfs::{Config, Instance, Options, Size};
use fastrand::Rng;
use rustix::fs::{CWD, OFlags};

fn use_it(config: &Config, path: &Path) -> Result<(), cachedfs::Error> {
    let instance = Instance::open(config)?;
    let bits = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let used = (|| {
        let file = instance.open_file(CWD, path, OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC, bits, &Options::default())?;
        file.read_at(0, &mut [0; 10_000])?;
        file.write_at(3000, b"some bytes")?;
        file.sync(false)?;
        file.set_len(5000)
    })();
    let _ = instance.status();
    instance.detach().and(used)
}

#[test]
fn damage_anywhere_is_an_error_or_an_answer() {
    let dir = tempfile::tempdir().expect("a directory");
    let config =
        Config { memory: Some(Size::Bytes(512 << 10)), runtime_dir: dir.path().to_owned(), files: 16, keep: true, ..Config::default() };
    let path = dir.path().join("file");
    use_it(&config, &path).expect("whole");
    let segment = Instance::segment_path(&config);
    let whole = fs::read(&segment).expect("kept");
    let many = std::env::var("FULL").is_ok_and(|full| full == "1");
    for seed in 0..if many { 300 } else { 30 } {
        println!("seed {seed}");
        let mut rng = Rng::with_seed(seed);
        // The settings may have been hit, too, and say that it is not to be kept.
        let _ = fs::remove_file(&segment);
        let damaged = fs::File::create_new(&segment).expect("made");
        rustix::fs::fallocate(&damaged, rustix::fs::FallocateFlags::empty(), 0, whole.len() as u64).expect("room");
        damaged.write_all_at(&whole, 0).expect("written");
        fs::set_permissions(&segment, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("changed");
        for _ in 0..rng.usize(1..40) {
            // The header and the metadata more often than pages.
            let most = if rng.bool() { 4096 } else { whole.len() };
            let at = rng.usize(..most) as u64;
            let value = if rng.bool() { [rng.u8(..); 4] } else { [[0; 4], [255; 4]][rng.usize(..2)] };
            damaged.write_all_at(&value, at.min(whole.len() as u64 - 4)).expect("damaged");
        }
        let _ = use_it(&config, &path);
    }
}
