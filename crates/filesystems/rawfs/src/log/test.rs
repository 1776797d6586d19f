use block::driver::MemoryDevice;

use super::group::HEADER_BYTES;
use super::read::LogSearch;
use super::*;
use crate::disk::DiskSettings;

const PLACE: RingRegion = RingRegion { start: Block(2), blocks: 32 };

fn disk() -> Disk {
    let device = MemoryDevice::new(512, 1 << 20).expect("memory");
    Disk::open(&device, &DiskSettings { buffer_bytes: 1 << 20, ..DiskSettings::default() }).expect("queues")
}

fn log(position: u64, lsn: u64) -> Log {
    Log::new(77, LogStart { place: PLACE, position, life: 5, lsn: Lsn(lsn) })
}

fn search(position: u64, lsn: u64) -> LogSearch {
    LogSearch { place: PLACE, position, life: 5, image: 77, lsn: Lsn(lsn) }
}

/// All records behind a position, as they are found.
fn records(disk: &Disk, search: LogSearch) -> Vec<Vec<u8>> {
    let found = search.run(disk).expect("read");
    let (mut all, mut position, mut bytes) = (Vec::new(), search.position, Vec::new());
    for header in &found.groups {
        search.read(disk, position, header.blocks(), &mut bytes).expect("read");
        all.extend(group::records(header, &bytes).expect("records").into_iter().map(<[u8]>::to_vec));
        position += header.blocks();
    }
    all
}

#[test]
fn what_is_synced_is_found_also_over_the_rings_end() {
    let (disk, log) = (disk(), log(1000, 40));
    let mut rng = fastrand::Rng::with_seed(3);
    let (mut tail, mut kept, mut released) = (1000, Vec::new(), Lsn(40));
    for round in 0..300_u64 {
        let record = vec![round as u8; rng.usize(..PLACE.batch_bytes_max())];
        while !log.has_room(record.len()).expect("healthy") {
            released = Lsn(released.0 + 1 + rng.u64(..log.durable().0 - released.0));
            tail = log.behind(released);
            log.release(released, tail);
            let gone = (released.0 - 40) as usize;
            kept.iter_mut().take(gone).for_each(|record: &mut Option<Vec<u8>>| *record = None);
        }
        let (lsn, _) = log.append(&record, false);
        kept.push(Some(record));
        if rng.u8(..3) == 0 || !log.has_room(PLACE.batch_bytes_max()).expect("healthy") {
            log.sync(&disk, lsn).expect("synced");
            let found = records(&disk, search(tail, released.0));
            let first = search(tail, released.0).run(&disk).expect("read").groups.first().map_or(lsn.0 + 1, |group| group.first.0);
            let behind = (released.0 + 1).saturating_sub(first) as usize;
            let wanted: Vec<Vec<u8>> = kept.iter().flatten().cloned().collect();
            assert!(found[behind..] == wanted, "round {round}");
        }
    }
}

#[test]
fn a_group_that_is_not_whole_ends_the_log_and_so_does_an_older_life() {
    let (disk, log) = (disk(), log(0, 0));
    for byte in 0..4 {
        let (lsn, _) = log.append(&[byte; 5000], true);
        log.sync(&disk, lsn).expect("synced");
    }
    let found = search(0, 0).run(&disk).expect("read");
    assert_eq!((found.groups.len(), found.durable, found.end), (4, Lsn(3), 8));
    let mut block = vec![0; BLOCK_BYTES];
    disk.read_blocks(QueueClass::Control, Block(2 + 5), &mut block).expect("read");
    block[9] ^= 1;
    disk.write_blocks(QueueClass::Control, &[(Block(2 + 5), &block)]).expect("written");
    assert_eq!(search(0, 0).run(&disk).expect("read").groups.len(), 2);
    assert_eq!(LogSearch { life: 6, ..search(0, 0) }.run(&disk).expect("read").groups.len(), 0);
    assert_eq!(LogSearch { image: 1, ..search(0, 0) }.run(&disk).expect("read").groups.len(), 0);
    assert_eq!(LogSearch { lsn: Lsn(0), ..search(2, 0) }.run(&disk).expect("read").groups.len(), 0, "a record is missing");
}

#[test]
fn what_is_durable_is_recorded_by_the_next_group() {
    let (disk, log) = (disk(), log(0, 0));
    let (lsn, _) = log.append(b"one", true);
    log.sync(&disk, Lsn(9)).expect("synced, as far as there is anything");
    assert_eq!((log.durable(), log.recorded()), (lsn, Lsn(0)));
    log.record(&disk).expect("recorded");
    assert_eq!(log.recorded(), lsn);
    let found = search(0, 0).run(&disk).expect("read");
    assert_eq!((found.groups.len(), found.durable), (2, lsn));
}

#[test]
fn a_failure_is_for_all_that_was_not_durable() {
    let (disk, log) = (disk(), log(0, 0));
    let (first, _) = log.append(b"one", true);
    log.sync(&disk, first).expect("synced");
    let (second, _) = log.append(b"two", true);
    log.fail(Error::Device(block::Error::Gone));
    assert_eq!(log.sync(&disk, first), Ok(()));
    assert_eq!(log.sync(&disk, second), Err(Error::Failed(block::Error::Gone)));
    assert_eq!(log.has_room(1), Err(Error::Failed(block::Error::Gone)));
}

#[test]
fn records_that_do_not_fill_their_group_are_refused() {
    let header = GroupHeader { position: 0, life: 1, image: 1, first: Lsn(1), durable: Lsn(0), records: 1, bytes: 8 };
    let group = |bytes: &[u8]| {
        let mut group = Vec::new();
        group::encode(header, bytes, &mut group);
        group
    };
    assert_eq!(group::records(&header, &group(&[4, 0, 0, 0, 1, 2, 3, 4])), Some(vec![&[1, 2, 3, 4][..]]));
    for wrong in [[5, 0, 0, 0, 1, 2, 3, 4], [3, 0, 0, 0, 1, 2, 3, 4], [255; 8]] {
        assert_eq!(group::records(&header, &group(&wrong)), None);
    }
    assert_eq!(group::records(&GroupHeader { bytes: 1 << 30, ..header }, &group(&[0; 8])), None);
    assert_eq!(group::blocks(BLOCK_BYTES - HEADER_BYTES), 1);
}
