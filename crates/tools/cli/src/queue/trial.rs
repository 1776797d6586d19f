//! `hotshelf queue try`: what a grant gives, by a client that does next to nothing.

use std::io::Read;
use std::time::{Duration, Instant};

use anyhow::bail;
use block::broker::{BrokerDevice, BrokerQueue, ConnectOptions};
use block::{Buf, Completion, Device, Lba, Queue, Request, Submit, Tag};
use serde_json::json;

use super::args::TryArgs;
use super::{device_name, socket};

/// How long a block may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Opens the queues and reads a block by each.
pub fn trial(args: &TryArgs) -> anyhow::Result<bool> {
    let options = ConnectOptions {
        socket: socket(&args.socket),
        device: device_name(&args.device),
        range: args.first.zip(args.blocks),
        read_only: args.read_only,
        arena_bytes: 64 << 10,
        reply_timeout: None,
    };
    let device = BrokerDevice::connect(&options)?;
    let geometry = device.geometry().clone();
    let Some(memory) = device.arena().allocate(geometry.block_bytes as usize) else { bail!("blocks of {} bytes", geometry.block_bytes) };
    let mut queues = Vec::new();
    let mut took = Vec::new();
    for _ in 0..args.queues {
        let mut queue = device.open_queue(args.depth)?;
        took.push(read_first(&mut queue, &memory)?);
        queues.push(queue);
    }
    let mean_us = took.iter().sum::<Duration>().as_secs_f64() * 1e6 / took.len().max(1) as f64;
    if args.json {
        let ids: Vec<u64> = queues.iter().map(BrokerQueue::id).collect();
        let (blocks, block_bytes, read_only) = (geometry.blocks, geometry.block_bytes, geometry.read_only);
        say!("{}", json!({ "queues": ids, "blocks": blocks, "block_bytes": block_bytes, "read_only": read_only, "read_us": mean_us }));
    } else {
        let (count, access) = (queues.len(), if geometry.read_only { "for reading" } else { "for reading and writing" });
        say!("{count} queues of {} blocks of {} bytes, {access}; a read took {mean_us:.1} us", geometry.blocks, geometry.block_bytes);
    }
    if args.hold {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
    }
    Ok(true)
}

fn read_first(queue: &mut BrokerQueue, memory: &Buf) -> anyhow::Result<Duration> {
    let begin = Instant::now();
    let request = Request::read(Tag(0), Lba(0), 1);
    if queue.submit(&request, &[memory.span()]) == Submit::Full {
        bail!("a queue that is new is full");
    }
    let mut ended = [Completion::EMPTY];
    while queue.poll(&mut ended) == 0 {
        if begin.elapsed() > TIMEOUT {
            bail!("the device did not answer within {} seconds", TIMEOUT.as_secs());
        }
        queue.wait(Duration::from_secs(1));
    }
    match ended[0].status {
        Ok(()) => Ok(begin.elapsed()),
        Err(error) => bail!("reading the first block: {error}"),
    }
}
