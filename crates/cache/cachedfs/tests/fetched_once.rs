//! Threads of one process that miss the same pages share one read of the backing file.

use cachedfs::{Config, Instance, Mode, Options, Size};
use rustix::fs::{CWD, OFlags};

const PAGE: usize = 4096;

/// Returns how many bytes of backing files were read so far.
fn below_bytes(instance: &Instance) -> u64 {
    let tiers = instance.status().tiers;
    tiers.iter().find(|tier| tier.name == "below").expect("is shown").read_bytes
}

/// Threads that read the same file at the same time wait for each other's reads of the backing file: each byte is read from it once.
#[test]
fn threads_that_read_the_same_file_fetch_each_byte_once() {
    const SIZE: usize = 8 << 20;
    let dir = tempfile::tempdir().expect("a directory");
    let config = Config {
        name: "fetched-once".into(),
        memory: Some(Size::Bytes(64 << 20)),
        mode: Mode::ReadOnly,
        runtime_dir: dir.path().to_owned(),
        private: true,
        ..Config::default()
    };
    let instance = Instance::open(&config).expect("an instance");
    let content: Vec<u8> = (0..SIZE as u32 / 4).flat_map(u32::to_le_bytes).collect();
    for (name, piece, share) in [("large", 128 << 10, 1), ("small", PAGE, 1), ("by turns", 64 << 10, 2)] {
        let path = dir.path().join(name);
        std::fs::write(&path, &content).expect("written");
        let before = below_bytes(&instance);
        let bits = rustix::fs::Mode::empty();
        let file = instance.open_file(CWD, &path, OFlags::RDONLY | OFlags::CLOEXEC, bits, &Options::default()).expect("opened");
        std::thread::scope(|threads| {
            for thread in 0..4 {
                let (file, content) = (&file, &content);
                threads.spawn(move || {
                    let mut bytes = vec![0; piece];
                    for n in (thread % share..SIZE / piece).step_by(share) {
                        assert_eq!(file.read_at((n * piece) as u64, &mut bytes).expect("read"), piece);
                        assert!(bytes == content[n * piece..][..piece], "{name}: wrong bytes in piece {n}");
                    }
                });
            }
        });
        let read = below_bytes(&instance) - before;
        assert!(read <= SIZE as u64 * 102 / 100, "{name}: {read} bytes were read for {SIZE}");
    }
}
