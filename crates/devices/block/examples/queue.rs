//! Writes and reads blocks of a device through a queue: `cargo run -p block --example queue`.
//!
//! The device is memory; `block::driver::FileDevice` opens a file or a block device in its place.
#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Duration;

use block::driver::MemoryDevice;
use block::{Arena, Completion, Lba, Queue, Request, Submit, Tag};

/// Submits one request, rings, and waits for its completion.
fn complete(queue: &mut dyn Queue, request: &Request, data: &[block::Span]) -> Result<Completion, Box<dyn Error>> {
    if queue.submit(request, data) == Submit::Full {
        return Err("the queue is full".into());
    }
    queue.ring();
    let mut completions = [Completion::EMPTY; 1];
    while queue.wait_and_poll(Duration::from_secs(1), &mut completions) == 0 {}
    Ok(completions[0])
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = MemoryDevice::new(512, 16 << 20)?;
    let mut queue = device.open_queue(8);
    // Requests name memory that the device can reach: an arena, registered once.
    let arena = Arena::private(2 << 20)?;
    queue.register(&arena)?;
    let buffer = arena.allocate(4096).ok_or("the arena is full")?;

    buffer.write(0, b"hello");
    let written = complete(&mut queue, &Request::write(Tag(1), Lba(8), 8), &[buffer.span()])?;
    buffer.write(0, b"-----");
    let read = complete(&mut queue, &Request::read(Tag(2), Lba(8), 8), &[buffer.span()])?;

    let mut text = [0; 5];
    buffer.read(0, &mut text);
    println!("write: {:?}; read: {:?}, {:?}", written.status, read.status, String::from_utf8_lossy(&text));
    Ok(())
}
