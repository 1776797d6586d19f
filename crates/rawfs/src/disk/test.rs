use std::sync::Arc;

use block::driver::MemoryDevice;

use super::*;

fn disk(buffer_bytes: usize) -> Disk {
    let device = MemoryDevice::new(512, 32 << 20).expect("memory");
    let params = Params { queue_depth: 4, ..Params::default() };
    Disk::open(&device, &DiskSettings { buffer_bytes, params }).expect("opened")
}

#[test]
fn what_lies_side_by_side_goes_in_one_request() {
    let disk = disk(1 << 20);
    let blocks: Vec<[u8; BLOCK_BYTES]> = (0..4).map(|n| [n; BLOCK_BYTES]).collect();
    let writes = [(Block(5), &blocks[0][..]), (Block(6), &blocks[1][..]), (Block(9), &blocks[2][..]), (Block(10), &blocks[3][..])];
    disk.write_blocks(Lane::Data, &writes).expect("written");
    let mut back = vec![0xff; 6 * BLOCK_BYTES];
    disk.read_blocks(Lane::Metadata, Block(5), &mut back).expect("read");
    let firsts: Vec<u8> = back.chunks(BLOCK_BYTES).map(|block| block[0]).collect();
    assert_eq!(firsts, [0, 1, 0, 0, 2, 3]);
    let counts = disk.counts();
    assert_eq!((counts.writes, counts.written_bytes, counts.reads), (2, 4 * BLOCK_BYTES as u64, 1));
}

#[test]
fn more_than_there_are_buffers_and_places_for_by_many_threads() {
    let disk = Arc::new(disk(0));
    let bytes = 4 << 20;
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let disk = Arc::clone(&disk);
            scope.spawn(move || {
                let at = Block(u64::from(thread) * (bytes / BLOCK_BYTES) as u64);
                let data: Vec<u8> = (0..bytes).map(|at| thread.wrapping_add((at / 1000) as u8)).collect();
                disk.write_blocks(Lane::Data, &[(at, &data)]).expect("written");
                let mut back = vec![0; bytes];
                disk.read_blocks(Lane::Data, at, &mut back).expect("read");
                assert!(back == data);
            });
        }
    });
    disk.flush().expect("flushed");
    disk.discard(Extent::new(Block(0), 100)).expect("discarded");
    assert_eq!((disk.counts().flushes, disk.counts().discards), (1, 1));
}

#[test]
fn blocks_that_are_not_there_are_an_error() {
    let disk = disk(0);
    let mut block = [0; BLOCK_BYTES];
    let behind = Block(disk.blocks());
    assert_eq!(disk.read_blocks(Lane::Data, behind, &mut block), Err(Error::Device(block::Error::OutOfRange)));
    assert_eq!(disk.write_blocks(Lane::Data, &[(behind, &block)]), Err(Error::Device(block::Error::OutOfRange)));
    assert!(disk.start_writes(Lane::Data, &[(Block(0), &block)]).finish().is_ok());
}

#[test]
fn one_thread_waits_for_many_writes_and_hears_of_each_failure() {
    use block::Tag;
    use block::future::{Future, Keep};
    let disk = disk(0);
    let mut future = Future::new(1, Keep::All);
    let data = vec![7; 600 << 10];
    let behind = Block(disk.blocks() - 1);
    for (tag, at) in [Block(0), Block(200), behind, Block(400)].into_iter().enumerate() {
        future.expect(0, 1);
        disk.write_later(Lane::Data, &[(at, &data)], future.promise(0), Tag(tag as u64));
    }
    assert!(future.wait_polling(|| disk.drive(Lane::Data, std::time::Duration::from_secs(1))));
    let failures = future.take_failures();
    assert_eq!((failures.kept.len(), failures.kept[0].tag, failures.lost), (1, Tag(2), 0));
    assert!(!disk.drive(Lane::Data, std::time::Duration::ZERO));
    let mut back = vec![0; data.len()];
    disk.read_blocks(Lane::Control, Block(400), &mut back).expect("read");
    assert!(back == data);
}
