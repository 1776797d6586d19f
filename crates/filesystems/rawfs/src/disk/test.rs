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
    disk.write_blocks(QueueClass::Data, &writes).expect("written");
    let mut back = vec![0xff; 6 * BLOCK_BYTES];
    disk.read_blocks(QueueClass::Metadata, Block(5), &mut back).expect("read");
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
                disk.write_blocks(QueueClass::Data, &[(at, &data)]).expect("written");
                let mut back = vec![0; bytes];
                disk.read_blocks(QueueClass::Data, at, &mut back).expect("read");
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
    assert_eq!(disk.read_blocks(QueueClass::Data, behind, &mut block), Err(Error::Device(block::Error::OutOfRange)));
    assert_eq!(disk.write_blocks(QueueClass::Data, &[(behind, &block)]), Err(Error::Device(block::Error::OutOfRange)));
    assert!(disk.start_writes(QueueClass::Data, &[(Block(0), &block)]).finish().is_ok());
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
        disk.write_later(QueueClass::Data, &[(at, &data)], future.promise(0), Tag(tag as u64));
    }
    assert!(future.wait_polling(|| disk.drive(QueueClass::Data, std::time::Duration::from_secs(1))));
    let failures = future.take_failures();
    assert_eq!((failures.kept.len(), failures.kept[0].tag, failures.lost), (1, Tag(2), 0));
    assert!(!disk.drive(QueueClass::Data, std::time::Duration::ZERO));
    let mut back = vec![0; data.len()];
    disk.read_blocks(QueueClass::Control, Block(400), &mut back).expect("read");
    assert!(back == data);
}

#[test]
fn what_is_waited_for_alone_needs_no_queue() {
    use block::driver::{FileDevice, FileOptions};
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(32 << 20).expect("sized");
    let device = FileDevice::open(file.path(), &FileOptions::default()).expect("opened");
    let disk = Disk::open(&device, &DiskSettings::default()).expect("queues");
    let bytes = |n: u8, len: usize| (0..len).map(|at| n.wrapping_add((at / 777) as u8)).collect::<Vec<u8>>();
    std::thread::scope(|scope| {
        // More threads than there are such queues: the others' go by the queue classes.
        for n in 0..6_u8 {
            let (disk, bytes) = (&disk, &bytes);
            scope.spawn(move || {
                for turn in 0..20 {
                    let (at, one, other) = (Block(u64::from(n) * 200), bytes(n + turn, 3 * BLOCK_BYTES), bytes(n, 2 * BLOCK_BYTES));
                    let row = [(at, &one[..]), (at.after(3), &other[..])];
                    if turn % 2 == 0 { disk.write_through(QueueClass::Control, &row) } else { disk.write_blocks(QueueClass::Data, &row) }
                        .expect("written");
                    let mut back = vec![0; 5 * BLOCK_BYTES];
                    disk.read_blocks(QueueClass::Data, at, &mut back).expect("read");
                    assert!(back == [one, other].concat());
                }
            });
        }
    });
    disk.flush().expect("flushed");
    let counts = disk.counts();
    assert_eq!((counts.writes, counts.through, counts.reads, counts.flushes), (120, 60, 120, 1));
    // What is wrong is said, as often as there are queues and more, and all goes on.
    let mut block = [0; BLOCK_BYTES];
    for _ in 0..5 {
        assert_eq!(disk.read_blocks(QueueClass::Data, Block(disk.blocks()), &mut block), Err(Error::Device(block::Error::OutOfRange)));
    }
    disk.read_blocks(QueueClass::Data, Block(0), &mut block).expect("read");
    assert!(block[..] == bytes(19, BLOCK_BYTES)[..]);
}
