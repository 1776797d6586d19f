//! What every driver has to do, over controllers of many kinds.

use block::{Device, Lba, OpenError, QueueOptions, Request, Tag};
use nvme::{Controller, Options};
use sim::nvme::{CommandTiming, ControllerConfig, NamespaceConfig, SoftController};

use super::cases;
use super::setting::{Setting, run};

#[test]
fn what_was_written_is_read() {
    let setting = Setting::new(ControllerConfig::default(), 1);
    let mut queue = setting.queue(8);
    let (data, back) = (setting.buf(8192, 7), setting.buf(8192, 0));
    assert_eq!(run(&mut queue, Request::write(Tag(1), Lba(3), 2), &[&data]), Ok(()));
    assert_eq!(run(&mut queue, Request::read(Tag(2), Lba(3), 2), &[&back]), Ok(()));
    assert_eq!(back.to_vec(), data.to_vec());
    assert_eq!(setting.device.content(1)[3 * 4096], 7);
    drop(queue);
    setting.check();
}

/// Sizes of blocks, of transfers, doorbells, caches, memory; polled or not.
fn shapes() -> Vec<(String, ControllerConfig, Options)> {
    let mut all = Vec::new();
    for (number, block_bytes) in [512_u32, 4096].into_iter().enumerate() {
        for transfer_pages_shift in [1, 5, 0] {
            for other in [false, true] {
                let namespaces = vec![NamespaceConfig::plain(block_bytes, 1 << 20 >> (9 * number)); 1 + usize::from(other)];
                let shape = ControllerConfig {
                    namespaces,
                    transfer_pages_shift,
                    entries_max: if other { 16 } else { 1024 },
                    stride_shift: if other { 2 } else { 0 },
                    doorbell_buffer: other,
                    volatile_cache: other,
                    ranges_max: if other { 3 } else { 0 },
                    shared_memory_only: other && transfer_pages_shift == 5,
                    ..ControllerConfig::default()
                };
                let name = format!("{block_bytes} bytes, transfers 2^{transfer_pages_shift} pages, the other way: {other}");
                all.push((name, shape, Options::default()));
            }
        }
    }
    for (_, shape, _) in &mut all {
        shape.namespaces.iter_mut().for_each(|namespace| namespace.blocks = (8 << 20) / u64::from(namespace.block_bytes));
    }
    all
}

#[test]
fn every_kind_of_controller_does_what_a_driver_must_in_real_time() {
    for (name, shape, options) in shapes() {
        let device = SoftController::real(shape.clone(), 1);
        let controller = Controller::open(device.function(), options).expect("ready");
        assert_eq!(controller.has_shadow_doorbells(), shape.doorbell_buffer);
        for id in 1..=shape.namespaces.len() as u32 {
            let namespace = controller.namespace(id).expect("a namespace");
            let depth = [32, 1, 128][id as usize];
            let options = QueueOptions { depth, device_polled: id == 2, ..QueueOptions::default() };
            cases::all(&format!("{name}, namespace {id}"), &namespace, &options);
        }
        assert_eq!(device.violations(), Vec::<String>::new(), "{name}");
        drop(controller);
        assert_eq!(device.done().shutdowns, 1, "{name}: shut down cleanly");
    }
}

#[test]
fn answers_out_of_order_and_late_are_put_to_their_requests_in_virtual_time() {
    for (name, shape, options) in shapes() {
        let shape = ControllerConfig { timing: CommandTiming::Between(1_000, 500_000), ..shape };
        let setting = Setting::with(shape, options, 3);
        for depth in [1, 64] {
            let options = QueueOptions { depth, ..QueueOptions::default() };
            cases::all(&name, &setting.namespace(1), &options);
        }
        setting.check();
    }
}

#[test]
fn formats_that_nothing_here_can_use_are_refused_with_words() {
    let plain = NamespaceConfig::plain(512, 1000);
    let namespaces = vec![
        plain,
        NamespaceConfig { metadata_bytes: 8, ..plain },
        NamespaceConfig { write_protected: true, ..plain },
        NamespaceConfig::plain(128 << 10, 4),
    ];
    let setting = Setting::new(ControllerConfig { namespaces, ..ControllerConfig::default() }, 1);
    let refused = |id| match setting.controller.namespace(id) {
        Err(OpenError::Unusable(what)) => what,
        other => panic!("{other:?}"),
    };
    assert!(refused(2).contains("8 bytes of metadata"), "{}", refused(2));
    assert!(refused(4).contains("nothing that can be used"), "{}", refused(4));
    assert!(refused(9).contains("has no namespace 9"), "{}", refused(9));
    let frozen = setting.namespace(3);
    assert!(frozen.geometry().read_only && !frozen.geometry().discard);
    assert_eq!(setting.namespace(1).info().names.uuid, [1; 16]);
}

#[test]
fn queues_run_out_and_come_back() {
    let setting = Setting::new(ControllerConfig { queues: 2, ..ControllerConfig::default() }, 1);
    let (first, second) = (setting.queue(4), setting.queue(4));
    let options = QueueOptions { depth: 4, ..QueueOptions::default() };
    let refused = setting.namespace(1).open_queue(&options).map(drop).expect_err("there are two");
    assert!(refused.to_string().contains("no more queues"), "{refused}");
    drop(first);
    assert_eq!(setting.queue(4).number(), 1);
    drop(second);
    setting.check();
}
