//! The models against their data sheets.

use block::driver::null::NullDevice;
use block::{Op, Queue};

use super::presets::{HDDS, HddPreset, NYTRO_5000_400GB, SSDS, ST500DM002, SsdPreset};
use super::workload::{Measurement, Workload, measure};
use super::{HddModel, SsdModel, TimedQueue};
use crate::device::clock::{Virtual, VirtualClock};

/// Permitted relative deviation from the data sheet.
const TOLERANCE: f64 = 0.10;

fn ssd(preset: &SsdPreset, clean: bool, workload: Workload) -> Measurement {
    let clock = VirtualClock::default();
    let geometry = preset.geometry();
    let device = SsdModel::new(preset.params, &geometry).with_clean(if clean { preset.bytes } else { 0 });
    let queue = NullDevice::new(geometry).open_queue(preset.depth_max.min(256));
    measure(&mut TimedQueue::simulated(queue, device, &clock), &clock, workload, 1)
}

fn hdd_with(preset: &HddPreset, cache: bool, workload: Workload) -> Measurement {
    let clock = VirtualClock::default();
    let geometry = preset.geometry();
    let mut params = preset.params;
    if !cache {
        params.write_cache_bytes = 0;
    }
    let model = HddModel::new(params, &geometry, 32);
    let queue = NullDevice::new(geometry).open_queue(32);
    measure(&mut TimedQueue::new(queue, model, Virtual::new(&clock)), &clock, workload, 1)
}

fn hdd(preset: &HddPreset, workload: Workload) -> Measurement {
    hdd_with(preset, true, workload)
}

#[track_caller]
fn near(what: &str, found: f64, sheet: f64) {
    let off = found / sheet - 1.0;
    println!("{what}: {found:.0}, the sheet has {sheet:.0} ({:+.1} %)", off * 100.0);
    assert!(off.abs() <= TOLERANCE, "{what}: {found:.0}, the sheet has {sheet:.0}");
}

#[test]
fn solid_state_drives_do_what_their_sheets_say() {
    for preset in SSDS {
        let (name, sheet) = (preset.name, preset.sheet);
        let depth = preset.depth_max.min(32);
        let run = |workload| ssd(preset, preset.clean, workload);
        near(&format!("{name} sequential reads, MB/s"), run(Workload::sequential(Op::Read, depth, 3000)).mb_s, sheet.read_mb_s);
        near(&format!("{name} sequential writes, MB/s"), run(Workload::sequential(Op::Write, depth, 6000)).mb_s, sheet.write_mb_s);
        let single = run(Workload::random(Op::Read, 1, 2000)).iops;
        near(&format!("{name} random reads at depth 1"), single, sheet.read_iops_single);
        near(&format!("{name} random reads"), run(Workload::random(Op::Read, sheet.read_depth, 20_000)).iops, sheet.read_iops);
        near(&format!("{name} random writes"), run(Workload::random(Op::Write, depth, 40_000)).iops, sheet.write_iops);
        let deep = run(Workload::random(Op::Read, depth, 20_000)).iops;
        assert!(deep > 3.0 * single && deep <= sheet.read_iops * 1.1, "{name}: {deep:.0} random reads at depth {depth}");
    }
}

#[test]
fn collecting_garbage_shows_as_rare_long_writes() {
    let run = |clean| ssd(&NYTRO_5000_400GB, clean, Workload::random(Op::Write, 32, 60_000));
    let (clean, full) = (run(true), run(false));
    assert!(clean.iops > 4.0 * full.iops, "clean {:.0}, full {:.0}", clean.iops, full.iops);
    assert!(full.longest > 10 * full.mean, "longest {:?}, mean {:?}", full.longest, full.mean);
}

#[test]
fn hard_disks_do_what_their_sheets_say() {
    for preset in HDDS {
        let (name, params) = (preset.name, preset.params);
        let turn = 60.0 / f64::from(params.rpm);
        let single = hdd(preset, Workload::random(Op::Read, 1, 2000)).iops;
        let sheet = 1.0 / ((params.seek_average + params.overhead).as_secs_f64() + turn / 2.0);
        near(&format!("{name} random reads at depth 1"), single, sheet);
        let deep = hdd(preset, Workload::random(Op::Read, 32, 2000)).iops;
        println!("{name} random reads at depth 32: {deep:.0}");
        assert!((1.7..4.0).contains(&(deep / single)), "{name}: choosing from 32 gives {deep:.0} for {single:.0}");
        for depth in [1, 32] {
            let read = hdd(preset, Workload::sequential(Op::Read, depth, 3000)).mb_s;
            near(&format!("{name} sequential reads at depth {depth}, MB/s"), read, params.outer_mb_s.into());
        }
        let write = hdd(preset, Workload::sequential(Op::Write, 32, 3000)).mb_s;
        near(&format!("{name} sequential writes, MB/s"), write, params.outer_mb_s.into());
        let cached = hdd(preset, Workload::random(Op::Write, 1, 3000)).iops;
        let uncached = hdd_with(preset, false, Workload::random(Op::Write, 1, 1000)).iops;
        println!("{name} random writes: {cached:.0} through the cache, {uncached:.0} without");
        assert!(cached > 1.7 * uncached && uncached < single, "{name}: {cached:.0} through the cache, {uncached:.0} without");
    }
}

#[test]
fn a_flush_waits_for_the_medium() {
    use block::{Clock, Completion, Lba, Request, Submit, Tag};
    let clock = VirtualClock::default();
    let geometry = ST500DM002.geometry();
    let model = HddModel::new(ST500DM002.params, &geometry, 32);
    let queue = NullDevice::new(geometry).open_queue(32);
    let mut queue = TimedQueue::new(queue, model, Virtual::new(&clock));
    let arena = block::Arena::private(4096).expect("memory");
    let buffer = arena.allocate(4096).expect("room");
    let mut run = |request: Request, data: &[block::Span]| {
        let begun = clock.now();
        assert_eq!(queue.submit(&request, data), Submit::Queued);
        let mut ended = [Completion::EMPTY; 4];
        while queue.poll(&mut ended) == 0 {
            queue.wait(std::time::Duration::from_secs(1));
        }
        assert_eq!(ended[0].status, Ok(()));
        clock.now().since(begun)
    };
    let write = run(Request::write(Tag(1), Lba(500_000_000), 8), &[buffer.span()]);
    let flush = run(Request::flush(Tag(2)), &[]);
    let idle = run(Request::flush(Tag(3)), &[]);
    let through = run(Request::write_fua(Tag(4), Lba(1000), 8), &[buffer.span()]);
    assert!(write < std::time::Duration::from_micros(200) && idle < std::time::Duration::from_micros(200), "{write:?} {idle:?}");
    assert!(flush > std::time::Duration::from_millis(5) && through > std::time::Duration::from_millis(5), "{flush:?} {through:?}");
}
