//! Quota, blocks and memory: requests beyond a grant are refused, logged, and do not reach the drive.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use block::broker::entry::Layout;
use block::broker::protocol::{BrokerRequest, Reply, Talk, VERSION};
use block::broker::{Refusal, Wish};
use block::{Error, Lba, Queue, Request, Submit, Tag};
use shm::Region;

use crate::setting::{ALONE, Broker, DEVICE, connect, reap, refusal, terms, wait_until};

/// The captured log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn has(&self, words: &str) -> bool {
        String::from_utf8_lossy(&self.0.lock().expect("no panic")).contains(words)
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Encodes a request with any memory.
fn entry(slot: u32, lba: u64, (at, bytes, arena): (u64, u32, u32)) -> [u8; 64] {
    let read = Request::read(Tag(slot.into()), Lba(lba), 1);
    let mut entry = [0; 64];
    (entry[0], entry[1]) = (1, 0);
    entry[4..8].copy_from_slice(&slot.to_le_bytes());
    entry[8..16].copy_from_slice(&read.lba.0.to_le_bytes());
    entry[16..20].copy_from_slice(&read.blocks.to_le_bytes());
    entry[20..22].copy_from_slice(&1_u16.to_le_bytes());
    entry[32..40].copy_from_slice(&at.to_le_bytes());
    entry[40..44].copy_from_slice(&bytes.to_le_bytes());
    entry[44..48].copy_from_slice(&arena.to_le_bytes());
    entry
}

fn ask(talk: &mut Talk, question: &BrokerRequest, fd: Option<&Region>) -> Reply {
    let fd = fd.map(|region| region.fd().expect("shared"));
    talk.send(question, fd.as_slice()).expect("sent");
    talk.receive().expect("answered")
}

/// A client that does not validate its requests.
struct Raw {
    _talk: Talk,
    rings: Region,
    bell: OwnedFd,
    layout: Layout,
}

fn raw(broker: &Broker) -> Raw {
    let mut talk = Talk::new(UnixStream::connect(broker.socket()).expect("connected"), 1 << 20);
    let wish = Wish { device: DEVICE.into(), range: None, read_only: false };
    assert!(matches!(ask(&mut talk, &BrokerRequest::Open { version: VERSION, wish }, None), Reply::Opened { .. }));
    let arena = Region::shared("raw", 64 << 10).expect("memory");
    assert!(matches!(ask(&mut talk, &BrokerRequest::Arena { bytes: 64 << 10 }, Some(&arena)), Reply::Arena { number: 0 }));
    assert!(matches!(ask(&mut talk, &BrokerRequest::Queue { depth: 8 }, None), Reply::Queue { .. }));
    let (rings, bell) = (talk.take_fd().expect("memory"), talk.take_fd().expect("a bell"));
    let layout = Layout::new(8);
    Raw { rings: Region::attach(rings, layout.bytes).expect("attached"), bell, layout, _talk: talk }
}

#[test]
fn what_is_beyond_a_grant_is_refused_and_logged_and_reaches_no_block() {
    let _alone = ALONE.lock();
    let log = Log::default();
    let out = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || out.clone()).finish();
    tracing::subscriber::set_global_default(subscriber).expect("the only one");
    let broker = Broker::new();
    assert!(matches!(refusal(connect(&broker.socket(), None)), Refusal::NoGrant { .. }));
    broker.grant(terms());
    let before = vec![0x5a; 4096 * 512];
    broker.device.set_content(1, before.clone());
    // Quota.
    let device = connect(&broker.socket(), None).expect("allowed");
    let mut held: Vec<_> = (0..4).map(|_| device.open_queue(8).expect("within the quota")).collect();
    assert_eq!(refusal(device.open_queue(8)), Refusal::TooManyQueues { open: 4, most: 4 });
    assert!(matches!(refusal(connect(&broker.socket(), Some((0, 10)))), Refusal::OutOfRange { .. }));
    wait_until("they are logged", || log.has("4 queues are open") && log.has("has no grant"));
    // Blocks.
    let memory = device.arena().allocate(512).expect("room");
    memory.write(0, &[1; 512]);
    for lba in [1000, 4000, u64::MAX] {
        assert_eq!(held[0].submit(&Request::write(Tag(1), Lba(lba), 1), &[memory.span()]), Submit::Queued);
        held[0].ring();
        assert_eq!(reap(&mut held[0], 1)[0].status, Err(Error::OutOfRange));
    }
    wait_until("it is logged", || log.has("a request is refused"));
    drop(held);
    // Memory: missing arenas, and bytes beyond the end.
    let client = raw(&broker);
    let fetched = broker.device.done().fetched;
    let wrong = [(0, 512, 1), (0, 512, u32::MAX), ((64 << 10) - 511, 512, 0), (u64::MAX, 512, 0), (1 << 40, 512, 0)];
    for (slot, memory) in (0..).zip(wrong) {
        client.rings.write(client.layout.commands.entries_at + slot as usize * 64, &entry(slot, 5, memory));
    }
    client.rings.u32(client.layout.commands.tail_at).store(wrong.len() as u32, Ordering::Release);
    rustix::net::send(&client.bell, &[1], rustix::net::SendFlags::NOSIGNAL).expect("rung");
    let refused = || broker.admin().stat().expect("stat").iter().map(|queue| queue.refused).sum::<u64>();
    wait_until("they are refused", || refused() == wrong.len() as u64);
    assert_eq!(client.rings.u32(client.layout.completions.tail_at).load(Ordering::Acquire), wrong.len() as u32, "each is notified");
    assert_eq!(broker.device.done().fetched, fetched, "the drive has seen none of them");
    assert!(broker.device.content(1) == before, "no block was written");
}
