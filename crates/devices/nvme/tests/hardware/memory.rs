//! Memory that may not be locked, and content that somebody else wrote.

use block::{Arena, Device, Error, Lba, Queue, QueueOptions, Request, Submit, Tag};

use super::setting::{controller, function, next};

/// The limit of locked memory is some MiB (ulimit -l).
#[test]
fn memory_above_the_limit_is_refused_with_words() {
    let Some(function) = function(Some("limit")) else { return };
    let region = function.dma.allocate(256 << 20).expect("memory");
    let error = function.dma.map(&region).expect_err("it is above the limit").to_string();
    println!("{error}");
    assert!(error.contains("cannot be locked") && error.contains("ulimit -l"), "{error}");
    // What fits is mapped all the same, and given back.
    for _ in 0..4 {
        let region = function.dma.allocate(1 << 20).expect("memory");
        let at = function.dma.map(&region).unwrap_or_else(|error| panic!("{error}"));
        function.dma.unmap(&region, at);
    }
    let controller = controller(&function);
    let namespace = controller.namespace(1).expect("a namespace");
    let mut queue = namespace.open_queue(&QueueOptions { depth: 4, ..QueueOptions::default() }).expect("a queue");
    assert_eq!(queue.register(&Arena::private(256 << 20).expect("memory")), Err(Error::NoResources));
    queue.register(&Arena::private(1 << 20).expect("memory")).expect("registered");
}

/// After it is cut off, the device reaches nothing, and nothing more is mapped.
#[test]
fn what_is_cut_off_stays_so() {
    let Some(function) = function(None) else { return };
    let region = function.dma.allocate(8 << 20).expect("memory");
    let at = function.dma.map(&region).expect("mapped");
    assert!(at.0.is_multiple_of(4096) && at.0 > 0);
    assert!(function.dma.cut_off());
    assert!(matches!(function.dma.map(&region), Err(pci::DmaError::CutOff)));
    function.dma.unmap(&region, at);
    assert!(function.dma.cut_off());
    let mmio = &function.mmio;
    assert!(mmio.bytes() >= 0x1008);
    assert_eq!(mmio.read64(0) as u32, mmio.read32(0));
}

/// HOTSHELF_TEST_FILE: what the first namespace begins with; each byte of it is turned over, for somebody else to look at.
#[test]
fn what_the_kernel_wrote_is_read_and_the_other_way_round() {
    let Some(function) = function(Some("kernel")) else { return };
    let wanted = std::fs::read(std::env::var_os("HOTSHELF_TEST_FILE").expect("HOTSHELF_TEST_FILE")).expect("a file");
    let controller = controller(&function);
    let namespace = controller.namespace(1).expect("a namespace");
    let mut queue = namespace.queue(&QueueOptions::default()).expect("a queue");
    let arena = Arena::private(wanted.len().next_multiple_of(2 << 20)).expect("memory");
    queue.register(&arena).expect("registered");
    let block = namespace.geometry().block_bytes as usize;
    let step = 128 << 10;
    let buf = arena.allocate(step).expect("room");
    for at in (0..wanted.len()).step_by(step) {
        let part = &wanted[at..(at + step).min(wanted.len())];
        let (lba, blocks) = (Lba((at / block) as u64), (part.len() / block) as u32);
        let span = buf.span().part(0, part.len() as u32);
        let mut run = |request: Request| {
            assert_eq!(queue.submit(&request, &[span]), Submit::Queued);
            assert_eq!(next(&mut queue)[0].status, Ok(()));
        };
        run(Request::read(Tag(1), lba, blocks));
        assert!(buf.to_vec()[..part.len()] == *part, "at byte {at}");
        buf.write(0, &part.iter().map(|byte| !byte).collect::<Vec<u8>>());
        run(Request::write(Tag(2), lba, blocks));
    }
    assert_eq!(queue.submit(&Request::flush(Tag(3)), &[]), Submit::Queued);
    assert_eq!(next(&mut queue)[0].status, Ok(()));
}
