//! A client that writes nonsense into all shared memory while the broker serves an honest client.

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use block::broker::entry::Layout;
use block::broker::protocol::{BrokerRequest, Reply, Talk, VERSION};
use block::broker::{GrantSpec, Wish};
use block::{Lba, Queue, Request, Submit, Tag};
use rustix::net::SendFlags;
use shm::Region;
use std::os::fd::{AsFd, OwnedFd};

use crate::setting::{BLOCKS, Broker, DEVICE, me, reap, terms, wait_until};

/// The raw interface of a queue: its memory and its notifier.
struct Raw {
    _talk: Talk,
    rings: Region,
    arena: Region,
    bell: OwnedFd,
    layout: Layout,
}

const DEPTH: u32 = 8;

fn ask(talk: &mut Talk, question: &BrokerRequest, fd: Option<&Region>) -> Reply {
    let fd = fd.map(|region| region.fd().expect("shared"));
    talk.send(question, fd.as_slice()).expect("sent");
    talk.receive().expect("answered")
}

fn raw(broker: &Broker) -> Raw {
    let mut talk = Talk::new(UnixStream::connect(broker.socket()).expect("connected"), 1 << 20);
    let wish = Wish { device: DEVICE.into(), range: None, read_only: false };
    assert!(matches!(ask(&mut talk, &BrokerRequest::Open { version: VERSION, wish }, None), Reply::Opened { .. }));
    let arena = Region::shared("hostile", 64 << 10).expect("memory");
    assert!(matches!(ask(&mut talk, &BrokerRequest::Arena { bytes: 64 << 10 }, Some(&arena)), Reply::Arena { number: 0 }));
    let answer = ask(&mut talk, &BrokerRequest::Queue { depth: DEPTH }, None);
    assert!(matches!(answer, Reply::Queue { .. }), "{answer:?}");
    let (rings, bell) = (talk.take_fd().expect("memory"), talk.take_fd().expect("a bell"));
    let layout = Layout::new(DEPTH);
    Raw { rings: Region::attach(rings, layout.bytes).expect("attached"), arena, bell, layout, _talk: talk }
}

impl Raw {
    fn ring(&self) {
        let _ = rustix::net::send(&self.bell, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    fn has_ended(&self) -> bool {
        block::broker::entry::read_state(&self.rings).is_some()
    }

    /// Writes some nonsense: almost valid entries, almost valid indexes, or arbitrary bytes anywhere.
    fn spoil(&self, random: &mut fastrand::Rng, tail: &mut u32) {
        match random.u8(..20) {
            0 => self.rings.write(random.usize(64..512), &[random.u8(..)]),
            1 => self.rings.u32(self.layout.commands.tail_at).store(random.u32(..), Ordering::Release),
            2 => self.rings.u32(self.layout.completions.head_at).store(random.u32(..), Ordering::Release),
            3 => {
                let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(200).collect();
                self.rings.write(random.usize(..self.layout.bytes - 200), &bytes);
            }
            4 => self.arena.fill(0..4096, random.u8(..)),
            _ => {
                let entry = self.layout.commands.entries_at + (*tail % (2 * DEPTH)) as usize * 64;
                self.rings.write(entry, &command(random));
                *tail = tail.wrapping_add(1);
                self.rings.u32(self.layout.commands.tail_at).store(*tail, Ordering::Release);
                let taken = self.rings.u32(self.layout.completions.tail_at).load(Ordering::Acquire);
                self.rings.u32(self.layout.completions.head_at).store(taken, Ordering::Release);
            }
        }
        if random.u8(..4) == 0 {
            self.ring();
        }
    }
}

/// Returns the entry of a request in which any field may be near a limit.
fn command(random: &mut fastrand::Rng) -> [u8; 64] {
    let mut entry = [0; 64];
    let border = |random: &mut fastrand::Rng, near: u64| {
        let base = [0, near, u64::MAX, 1 << 32, 1 << 55][random.usize(..5)];
        base.wrapping_add(random.u64(..5)).wrapping_sub(2)
    };
    entry[0] = random.u8(1..=6);
    entry[1] = random.u8(..2);
    entry[2] = random.u8(..3);
    entry[3] = random.u8(..);
    let slots = if random.u8(..50) == 0 { u32::MAX } else { DEPTH };
    entry[4..8].copy_from_slice(&random.u32(..slots).to_le_bytes());
    entry[8..16].copy_from_slice(&border(random, 1000).to_le_bytes());
    let blocks = if random.bool() { 1 } else { border(random, 1000) as u32 };
    entry[16..20].copy_from_slice(&blocks.to_le_bytes());
    let segments = if random.u8(..50) == 0 { random.u16(..) } else { random.u16(..3) };
    entry[20..22].copy_from_slice(&segments.to_le_bytes());
    for at in [32, 48] {
        let first = if random.bool() { random.u64(..128) * 512 } else { border(random, 64 << 10) };
        entry[at..at + 8].copy_from_slice(&first.to_le_bytes());
        let bytes = if random.bool() { 512 } else { border(random, 64 << 10) as u32 };
        entry[at + 8..at + 12].copy_from_slice(&bytes.to_le_bytes());
        let arenas = if random.u8(..20) == 0 { u32::MAX } else { 1 };
        entry[at + 12..at + 16].copy_from_slice(&random.u32(..arenas).to_le_bytes());
    }
    entry
}

#[test]
fn nonsense_ends_nobody_elses_queue_and_reaches_no_other_blocks() {
    let broker = Broker::new();
    broker.grant(GrantSpec { queues: 4, ..terms(me()) });
    // An honest client of other blocks on the same device, served by the same thread.
    broker.grant(GrantSpec { first: 3000, blocks: Some(100), ..terms(me()) });
    let region = broker.device.memory.region();
    region.fill(0..BLOCKS as usize * 512, 0xcc);
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let over = AtomicBool::new(false);
    let rounds = if std::env::var_os("FULL").is_some_and(|full| full == "1") { 5_000 } else { 120 };
    let (mut ended, mut served) = (0, 0_u64);
    std::thread::scope(|scope| {
        let honest = scope.spawn(|| {
            let device = broker.connect(Some((3000, 100))).expect("allowed");
            let mut queue = device.open_queue(8).expect("a queue");
            let memory = device.arena().allocate(1024).expect("room");
            let mut count = 0_u64;
            while !over.load(Ordering::Acquire) {
                let (out, back) = (memory.span().part(0, 512), memory.span().part(512, 512));
                memory.write(0, &[(count % 200) as u8; 512]);
                assert_eq!(queue.submit(&Request::write(Tag(1), Lba(count % 100), 1), &[out]), Submit::Queued);
                queue.ring();
                assert_eq!(reap(&mut queue, 1)[0].status, Ok(()));
                assert_eq!(queue.submit(&Request::read(Tag(2), Lba(count % 100), 1), &[back]), Submit::Queued);
                queue.ring();
                assert_eq!(reap(&mut queue, 1)[0].status, Ok(()));
                assert_eq!(memory.to_vec()[512..], [(count % 200) as u8; 512]);
                count += 1;
            }
            count
        });
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..rounds {
            let raw = raw(&broker);
            let mut tail = 0;
            for _ in 0..random.u32(1..300) {
                raw.spoil(&mut random, &mut tail);
                if raw.has_ended() {
                    break;
                }
                if random.u8(..8) == 0 {
                    std::thread::yield_now();
                }
            }
            ended += u32::from(raw.has_ended());
            served += broker.admin().stat().expect("stat").iter().map(|queue| queue.requests).sum::<u64>();
            drop(raw);
            // The queue of the honest client remains.
            wait_until("the queue of the hostile client is gone", || broker.open() <= 1);
        }
        over.store(true, Ordering::Release);
        assert!(honest.join().expect("no panic") > 0);
    });
    println!("{ended} of {rounds} sessions were ended by the broker, {served} requests were served");
    assert!(ended > 0 && served > 0, "the nonsense was too plain, or too good");
    let mut all = vec![0; BLOCKS as usize * 512];
    region.read(0, &mut all);
    let outside = |first: usize, end: usize| all[first * 512..end * 512].iter().all(|byte| *byte == 0xcc);
    assert!(outside(0, 1000) && outside(2000, 3000) && outside(3100, BLOCKS as usize), "blocks outside the grants were written");
}

#[test]
fn garbage_and_impolite_talk_on_the_socket_ends_only_that_talk() {
    use std::io::Write;
    let broker = Broker::new();
    broker.grant(terms(me()));
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let file = tempfile::tempfile().expect("a file");
    for round in 0..200 {
        let mut stream = UnixStream::connect(broker.socket()).expect("connected");
        let bytes: Vec<u8> = match round % 4 {
            0 => (0..random.usize(..3000)).map(|_| random.u8(..)).collect(),
            1 => vec![b'['; random.usize(..70_000)],
            2 => b"{\"ask\":\"open\",\"version\":1,\"device\":\"memory\",\"range\":[0,".to_vec(),
            _ => b"{\"ask\":\"list\"}\n".repeat(random.usize(..50)),
        };
        // The broker may have closed the connection already.
        let _ = stream.write_all(&bytes);
        let talk = Talk::new(stream, 1 << 20);
        let _ = talk.send(&BrokerRequest::Stat, &[file.as_fd(), file.as_fd(), file.as_fd(), file.as_fd()]);
    }
    assert!(broker.connect(None).and_then(|device| device.open_queue(8)).is_ok());
}
