//! What every driver has to do: over all namespaces, in every mode.

use block::{Arena, Device, Lba, Queue, QueueOptions, Request, Submit, Tag};

use super::cases;
use super::setting::{MODES, Waiting, buf, controller, function, next};

/// Requests of many lengths and places, of which every one is read back whole.
#[test]
fn what_is_written_is_read_every_way() {
    let Some(function) = function(None) else { return };
    let controller = controller(&function);
    let info = controller.info();
    println!("{} {} {}: transfers {:?}, queues {}", info.model, info.serial, info.firmware, info.transfer_bytes_max, controller.queues());
    assert_eq!(controller.smart().expect("its health").critical, 0);
    let namespaces = controller.namespaces();
    assert!(!namespaces.is_empty());
    for (id, found) in &namespaces {
        println!("namespace {id}: {:?}", found.as_ref().map(|found| (found.block_bytes, found.blocks)));
        for mode in MODES {
            let below = controller.namespace(*id).unwrap_or_else(|error| panic!("{error}"));
            written_and_read(&Waiting { below, mode }, u64::from(*id));
        }
    }
    assert_eq!((controller.resets(), controller.strays()), (0, 0));
}

fn written_and_read(device: &dyn Device, seed: u64) {
    let mut queue = device.queue(&QueueOptions { depth: 8, ..QueueOptions::default() }).unwrap_or_else(|error| panic!("{error}"));
    let arena = Arena::private(16 << 20).expect("memory");
    queue.register(&arena).expect("registered");
    let block = device.geometry().block_bytes as usize;
    // Below, at and above the largest transfer of a small drive, to the largest request there is.
    let lengths = [block, 4096, 8192, 12288, 65536, 1 << 20, block, 40960];
    let (mut lba, mut requests) = (7, Vec::new());
    for (tag, bytes) in lengths.into_iter().enumerate() {
        let blocks = (bytes / block) as u32;
        requests.push((Tag(tag as u64), Lba(lba), blocks, buf(&arena, bytes, seed + tag as u64), buf(&arena, bytes, 0)));
        lba += u64::from(blocks) + 3;
    }
    let mut run = |make: &dyn Fn(usize) -> Request, reads: bool| {
        for (at, (_, _, _, written, back)) in requests.iter().enumerate() {
            let span = if reads { back.span() } else { written.span() };
            assert_eq!(queue.submit(&make(at), &[span]), Submit::Queued);
        }
        let mut left = requests.len();
        while left > 0 {
            for completion in next(&mut queue) {
                assert_eq!(completion.status, Ok(()), "{completion:?}");
                left -= 1;
            }
        }
    };
    run(&|at| Request::write(requests[at].0, requests[at].1, requests[at].2), false);
    run(&|at| Request::read(requests[at].0, requests[at].1, requests[at].2), true);
    for (tag, lba, blocks, written, back) in &requests {
        assert!(written.to_vec() == back.to_vec(), "{tag:?} {lba:?} {blocks}");
    }
    assert_eq!(queue.submit(&Request::flush(Tag(99)), &[]), Submit::Queued);
    assert_eq!(next(&mut queue)[0].status, Ok(()));
}

#[test]
fn it_does_what_a_driver_must() {
    let Some(function) = function(None) else { return };
    let controller = controller(&function);
    let info = controller.info();
    println!("{} {} {}: {info:?}", info.model, info.serial, info.firmware);
    println!("queues {}, shadow doorbells {}", controller.queues(), controller.has_shadow_doorbells());
    println!("health {:?}", controller.smart().expect("its health"));
    let namespaces = controller.namespaces();
    assert!(!namespaces.is_empty());
    for (id, found) in namespaces {
        println!("namespace {id}: {found:?}");
        for mode in MODES {
            let below = controller.namespace(id).unwrap_or_else(|error| panic!("{error}"));
            let name = format!("{}/{id}, {}", function.name, mode.name());
            let device = Waiting { below, mode };
            let depths: &[u32] = if std::env::var("FULL").is_ok_and(|full| full == "1") { &[16, 1, 128] } else { &[16] };
            for &depth in depths {
                cases::all(&name, &device, &QueueOptions { depth, ..QueueOptions::default() });
            }
        }
    }
    assert_eq!((controller.resets(), controller.strays()), (0, 0));
}
