//! The entry of a file says that a write has begun, and nobody knows whether it happened: the clean pages of the SSD may be older than the
//! file, and a change of the file may be ours.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use datapath::engine::{CacheEngine, Open, OpenFileError, OpenOptions};
use parking_lot::Mutex;
use rustix::io::Errno;
use ssdcache::{FileKey, Mode, PAGE_BYTES, SsdCache};

use super::model::{CELL, CELLS, cell_bytes};
use super::world::{Handle, Kind, Machine};
use super::{FILES, Process, SSD, Setup, formatted, open_at, read};

const KEY: u64 = FILES.start;
const PAGE: usize = PAGE_BYTES / CELL;
/// Many files, of one page each: more than the SSD has room for, with their entries.
const MANY: u64 = 150;

fn bytes_of(key: u64, cells: std::ops::Range<usize>, version: u64) -> Vec<u8> {
    cells.flat_map(|cell| cell_bytes(key, cell, version)).collect()
}

fn versions(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks(CELL).map(|cell| u64::from_le_bytes(cell[..8].try_into().expect("eight"))).collect()
}

fn setup(mode: Mode) -> Setup {
    Setup { records: 2, ..Setup::plain(mode) }
}

fn start(machine: &Arc<Machine>, setup: Setup) -> Process {
    let region = setup.segment();
    Process::start(machine, &region, &setup.processes(&region), setup)
}

/// Returns a machine after a power cut. The SSD has a clean copy of each page of the file but the first, which is dirty there, and the
/// entry says `writing`.
fn with_one_dirty_page() -> Arc<Machine> {
    let machine = Machine::new(Kind::Memory, 0, formatted());
    let process = start(&machine, setup(Mode::WriteBack));
    let open = open_at(&machine, &process.engine, KEY);
    open.write(0, &bytes_of(KEY, 0..CELLS, 1)).expect("written");
    open.sync().expect("on the SSD");
    open.clean().expect("below");
    open.write(0, &bytes_of(KEY, 0..PAGE, 2)).expect("written");
    open.sync().expect("on the SSD");
    Machine::new(Kind::Memory, 1, machine.cut(1))
}

fn reads(machine: &Arc<Machine>, engine: &Arc<CacheEngine>) -> Vec<u64> {
    versions(&read(&open_at(machine, engine, KEY), 0..CELLS))
}

/// The file was changed after its entry was written, by us or not. The leader writes its dirty page back before any process opens it.
#[test]
fn clean_pages_are_not_current_because_the_leader_has_written_to_the_file_since() {
    let machine = with_one_dirty_page();
    let process = start(&machine, setup(Mode::WriteBack));
    machine.foreign_write(KEY, 5 * PAGE_BYTES, &bytes_of(KEY, 5 * PAGE..6 * PAGE, 9));
    process.engine.clean_all(&mut |_| {}).expect("all below");
    let now = reads(&machine, &process.engine);
    assert_eq!(now, versions(&machine.bytes(KEY)));
    assert!(now[..PAGE] == [2; PAGE] && now[5 * PAGE..6 * PAGE] == [9; PAGE], "{now:?}");
}

/// Write-through: the entry says so until the file was not written for a while. Its record is used for another file, and another program
/// changes it.
#[test]
fn clean_pages_are_not_current_because_the_entry_is_settled() {
    let machine = Machine::new(Kind::Memory, 0, formatted());
    let process = start(&machine, setup(Mode::WriteThrough));
    let open = open_at(&machine, &process.engine, KEY);
    open.write(0, &bytes_of(KEY, 0..CELLS, 1)).expect("written");
    open.sync().expect("synced");
    // The second reading of each page puts it on the SSD.
    for _ in 0..4 {
        open.drop_clean_range(0..u64::MAX).expect("dropped");
        read(&open, 0..CELLS);
        process.engine.step_inline();
    }
    open.write(0, &bytes_of(KEY, 0..PAGE, 2)).expect("written");
    drop(open);
    let others: Vec<Open> = (FILES.start + 1..FILES.end).map(|key| open_at(&machine, &process.engine, key)).collect();
    assert_eq!(process.engine.knows(FileKey(KEY)), Ok(false), "its record is used for another file");
    drop(others);
    machine.foreign_write(KEY, 5 * PAGE_BYTES, &bytes_of(KEY, 5 * PAGE..6 * PAGE, 9));
    for _ in 0..20 {
        machine.tick(1_000);
        process.engine.step_inline();
    }
    assert_eq!(reads(&machine, &process.engine), versions(&machine.bytes(KEY)));
}

/// Another program has moved the file since, so that it is found only when it is opened at its new place.
#[test]
fn a_missing_file_with_an_unsettled_entry_is_no_conflict_when_it_is_found() {
    let machine = with_one_dirty_page();
    let process = start(&machine, setup(Mode::WriteBack));
    machine.touch(KEY);
    machine.is_missing.store(true, Ordering::Relaxed);
    assert_eq!(process.engine.clean_all(&mut |_| {}), Err(Errno::NOENT));
    machine.is_missing.store(false, Ordering::Relaxed);
    let now = reads(&machine, &process.engine);
    assert!(now[..PAGE] == [2; PAGE] && now[PAGE..] == [1; CELLS - PAGE], "{now:?}");
    for _ in 0..20 {
        machine.tick(1_000);
        process.engine.step_inline();
    }
    process.engine.clean_all(&mut |_| {}).expect("all below");
    assert_eq!(versions(&machine.bytes(KEY)), now);
}

fn open_one(machine: &Arc<Machine>, engine: &Arc<CacheEngine>, key: u64) -> Result<Open, OpenFileError> {
    let below = Arc::new(Handle { machine: Arc::clone(machine), key });
    engine.open(FileKey(key), format!("/f{key}").as_ref(), OpenOptions::default(), below)
}

/// Dirty pages of more files than there is room for entries: no write-back begins without its entry, and the log never stays full.
#[test]
fn a_write_back_without_room_for_its_entry_does_not_begin() {
    let many = if cfg!(debug_assertions) { 2 } else { 60 };
    let seeds = std::env::var("SIM_SEED").ok().and_then(|seed| seed.parse().ok()).map_or(0..many, |seed: u64| seed..seed + 1);
    let mut cuts = 0;
    for seed in seeds {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut ssd = vec![0; SSD.device_pages() as usize * PAGE_BYTES];
        for (page, bytes) in ssd.chunks_exact_mut(PAGE_BYTES).zip(SsdCache::format([9; 16], SSD)) {
            page.copy_from_slice(&bytes);
        }
        let setup = Setup { records: 256, ..Setup::plain(Mode::WriteBack) };
        let machine = Machine::new(Kind::Memory, 0, Machine::empty(ssd, 1..MANY + 1));
        let process = start_without_files(&machine, setup);
        // For each file, the last synced version and the last one.
        let known = Arc::new(Mutex::new(vec![(0_u64, 0_u64); MANY as usize + 1]));
        let taken = Arc::new(Mutex::new(Vec::new()));
        {
            let (out, known, weak, mut rng) = (Arc::clone(&taken), Arc::clone(&known), Arc::downgrade(&machine), rng.fork());
            machine.set_moment(Some(Box::new(move || {
                if rng.u32(..300) == 0
                    && let Some(machine) = weak.upgrade()
                {
                    out.lock().push((machine.cut(rng.u64(..)), known.lock().clone()));
                }
            })));
        }
        for version in 1..1_000_u64 {
            let key = rng.u64(1..MANY + 1);
            let open = open_one(&machine, &process, key).unwrap_or_else(|failed| panic!("seed {seed}, file {key}: {failed}"));
            known.lock()[key as usize].1 = version;
            assert_eq!(open.write(0, &bytes_of(key, 0..PAGE, version)), Ok(PAGE_BYTES), "seed {seed}, file {key}");
            if rng.u8(..3) > 0 {
                assert_eq!(open.sync(), Ok(()), "seed {seed}, file {key}, version {version}");
                known.lock()[key as usize].0 = version;
            }
            if rng.u8(..8) == 0 {
                machine.tick(rng.u32(..100));
                process.step_inline();
            }
        }
        machine.set_moment(None);
        process.clean_all(&mut |_| {}).expect("all below");
        for (remains, known) in taken.lock().drain(..) {
            cuts += 1;
            let machine = Machine::new(Kind::Memory, cuts, remains);
            let process = start_without_files(&machine, setup);
            if rng.bool() {
                process.clean_all(&mut |_| {}).unwrap_or_else(|errno| panic!("seed {seed}: {errno}"));
            }
            for (key, (synced, last)) in (1..=MANY).zip(&known[1..]) {
                let open = open_one(&machine, &process, key).unwrap_or_else(|failed| panic!("seed {seed}, file {key}: {failed}"));
                let now = versions(&read(&open, 0..PAGE));
                let is_right = now.iter().all(|is| (*synced..=*last).contains(is)) && (*synced == 0 || now.len() == PAGE);
                assert!(is_right, "seed {seed}, file {key}: {now:?}, not {synced} to {last}");
            }
        }
    }
    println!("{cuts} power cuts");
}

fn start_without_files(machine: &Arc<Machine>, setup: Setup) -> Arc<CacheEngine> {
    let region = setup.segment();
    let engine = Process::attach(machine, &region, &setup.processes(&region), setup);
    engine.lead_inline(datapath::Worker::begin(&engine));
    engine
}
