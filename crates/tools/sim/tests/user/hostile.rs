//! Both sides against a peer that sends anything: no panic, no hang, and the next peer is served.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use nvme::{Controller, Options};
use pci::user::wire::{Body, HEADER_BYTES, Header, command};
use pci::user::{Link, UserOptions};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use sim::nvme::served::Server;
use sim::nvme::{ControllerConfig, NamespaceConfig};

use super::setting::{Bench, full};

fn seeds(begin: u64, count: u64) -> Vec<u64> {
    if let Some(seed) = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()) {
        return vec![seed];
    }
    let begin = if full() { fastrand::u64(..1 << 48) } else { begin };
    (begin..begin + if full() { count * 50 } else { count }).collect()
}

/// Returns an arbitrary descriptor.
fn any_fd(random: &mut fastrand::Rng, dir: &Path) -> OwnedFd {
    match random.u8(..5) {
        0 => eventfd(0, EventfdFlags::CLOEXEC).expect("an event"),
        1 => memfd_create("any", MemfdFlags::CLOEXEC).expect("memory"),
        2 => std::fs::File::create(dir.join("any")).expect("a file").into(),
        3 => rustix::pipe::pipe().expect("a pipe").1,
        _ => {
            shm::Region::shared("any", 4096 << random.u32(..6)).expect("memory").fd().expect("shared").try_clone_to_owned().expect("copied")
        }
    }
}

fn any_fds(random: &mut fastrand::Rng, dir: &Path) -> Vec<OwnedFd> {
    let count = if random.bool() { random.usize(..2) } else { random.usize(..=16) };
    (0..count).map(|_| any_fd(random, dir)).collect()
}

/// Returns a body that resembles the protocol.
fn any_body(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut body = Body::new();
    for _ in 0..random.usize(..24) {
        body = match random.u8(..6) {
            0 => body.u32(random.u32(..)),
            1 => body.u64(random.u64(..)),
            2 => body.u32(1 << random.u32(..32)),
            3 => body.u64(4096 << random.u32(..20)),
            4 => body.bytes(b"{\"max_msg_fds\":9999}\0"),
            _ => body.u32(random.u32(..70)),
        };
    }
    body.0
}

/// Returns a correct reply, so that the client proceeds.
fn right_answer(header: &Header) -> (Vec<u8>, Vec<OwnedFd>) {
    let region = shm::Region::shared("registers", 0x4000).expect("memory");
    match header.command {
        command::VERSION => (Body::new().u16(0).u16(1).bytes(b"{\"capabilities\":{\"max_msg_fds\":8}}\0").0, vec![]),
        command::GET_INFO => (Body::new().u32(16).u32(2).u32(9).u32(5).0, vec![]),
        command::GET_REGION_INFO => {
            let body = Body::new().u32(64).u32(0xf).u32(0).u32(32).u64(0x4000).u64(0).u16(1).u16(1).u32(0).u32(1).u32(0);
            (body.u64(4096).u64(0x3000).0, vec![region.fd().expect("shared").try_clone_to_owned().expect("copied")])
        }
        command::GET_IRQ_INFO => (Body::new().u32(16).u32(1).u32(2).u32(9).0, vec![]),
        command::REGION_READ => (Body::new().u64(0).u32(0).u32(4).u32(0).0, vec![]),
        _ => (vec![], vec![]),
    }
}

/// Sends arbitrary replies until the client disconnects.
fn hostile_server(listener: &UnixListener, seed: u64, dir: &Path) {
    let mut random = fastrand::Rng::with_seed(seed);
    let (socket, _) = listener.accept().expect("a client");
    let link = Link::over(socket.into()).expect("a link");
    let right_for = random.usize(..12);
    let until = || Some(Instant::now() + Duration::from_secs(5));
    for number in 0.. {
        let Ok(message) = link.receive(until()) else { return };
        let header = message.header;
        let sent = if number < right_for {
            let (mut body, fds) = right_answer(&header);
            if header.command == command::REGION_READ {
                // The requested location, with an arbitrary value.
                body = [&message.body[..16], &random.u64(..).to_ne_bytes()[..message.body[12].min(8).into()]].concat();
            }
            let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
            link.send(&header.reply().message(&body), &fds, until())
        } else {
            let (body, fds) = (any_body(&mut random), any_fds(&mut random, dir));
            let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
            match random.u8(..8) {
                0 => return,
                1 => link.send(&Header::request(header.id, random.u16(..16)).message(&body), &fds, until()),
                2 => link.send(&Header { id: random.u16(..), ..header.reply() }.message(&body), &fds, until()),
                3 => link.send(&header.failure(random.i32(..)).message(&body), &fds, until()),
                4 => {
                    // A wrong length.
                    let mut bytes = header.reply().message(&body);
                    bytes[4..8].copy_from_slice(&(random.u32(..) >> random.u32(..32)).to_ne_bytes());
                    link.send(&bytes, &fds, until())
                }
                5 => {
                    let bytes = header.reply().message(&body);
                    link.send(&bytes[..random.usize(1..=bytes.len())], &fds, until())
                }
                _ => link.send(&header.reply().message(&body), &fds, until()),
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

#[test]
fn a_server_that_says_anything_does_not_make_the_client_panic_or_hang() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("hostile.sock");
    let listener = UnixListener::bind(&path).expect("a socket");
    for seed in seeds(1, 150) {
        std::thread::scope(|scope| {
            scope.spawn(|| hostile_server(&listener, seed, dir.path()));
            let begun = Instant::now();
            let options = UserOptions { reply_timeout: Duration::from_millis(20), ..UserOptions::default() };
            if let Ok(function) = pci::user::open_with(&path, &options) {
                let region = function.dma.allocate(8192).expect("memory");
                if let Ok(at) = function.dma.map(&region) {
                    function.mmio.read64(0);
                    function.mmio.write32(0x1000, 1);
                    function.irq.wait(0, Duration::from_millis(1));
                    function.irq.clear(0);
                    function.dma.unmap(&region, at);
                }
                let admin_timeout = Duration::from_millis(20);
                // Any result is accepted.
                let _ = Controller::open(function.clone(), Options { admin_timeout, ..Options::default() });
                assert!(!function.dma.cut_off(), "SEED={seed}: this process is alive");
            }
            // The server sets CAP.TO, at most 128 seconds; everything else is short.
            assert!(begun.elapsed() < Duration::from_secs(140), "SEED={seed}");
        });
    }
}

/// A client that sends arbitrary messages.
fn hostile_client(path: &Path, seed: u64, dir: &Path) {
    let mut random = fastrand::Rng::with_seed(seed);
    let link = Link::over(UnixStream::connect(path).expect("connected").into()).expect("a link");
    let until = || Some(Instant::now() + Duration::from_secs(20));
    let memory = shm::Region::shared("guest", 1 << 16).expect("memory");
    for number in 0..random.u16(..60) {
        let begins = number == 0 && random.u8(..8) > 0;
        let kind = if begins { command::VERSION } else { random.u16(..16) };
        let mut fds = any_fds(&mut random, dir);
        let body = match kind {
            command::VERSION if begins => Body::new().u16(0).u16(1).bytes(b"{}\0").0,
            command::DMA_MAP if random.bool() => {
                fds = vec![memory.fd().expect("shared").try_clone_to_owned().expect("copied")];
                Body::new().u32(32).u32(3).u64(0).u64(4096 * random.u64(..64)).u64(4096 * random.u64(..17)).0
            }
            // Registers of the controller: it is enabled with queues anywhere.
            command::REGION_WRITE if random.bool() => {
                let at = [0x14, 0x24, 0x28, 0x30, 0x1000, 0x1004, 0x1008][random.usize(..7)];
                let value = [0x0046_0001, 0, 4096 * random.u32(..64), random.u32(..64), random.u32(..)][random.usize(..5)];
                Body::new().u64(at).u32(0).u32(4).u32(value).0
            }
            _ => any_body(&mut random),
        };
        for at in (0..memory.len()).step_by(8) {
            if random.u8(..16) == 0 {
                memory.write(at, &random.u64(..).to_ne_bytes());
            }
        }
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        let mut header = Header::request(number, kind);
        header.flags = if random.u8(..10) == 0 { random.u32(..64) } else { 0 };
        let mut bytes = header.message(&body);
        match random.u8(..20) {
            0 => bytes[4..8].copy_from_slice(&(random.u32(..) >> random.u32(..32)).to_ne_bytes()),
            1 => bytes.truncate(random.usize(1..=bytes.len())),
            _ => {}
        }
        let whole = bytes.len() >= HEADER_BYTES && bytes[4..8] == (bytes.len() as u32).to_ne_bytes();
        if link.send(&bytes, &fds, until()).is_err() || !whole || header.is_reply() {
            return;
        }
        if !header.wants_no_reply() && link.receive(until()).is_err() {
            return;
        }
    }
}

#[test]
fn a_client_that_says_anything_does_not_end_the_server() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("victim.sock");
    let shape = ControllerConfig { namespaces: vec![NamespaceConfig::plain(512, 128)], vectors: 9, ..ControllerConfig::default() };
    let server = Server::bind(&path, shape, 1, Duration::from_micros(10)).expect("bound");
    std::thread::scope(|scope| {
        scope.spawn(|| server.run().expect("served"));
        for seed in seeds(1, 100) {
            println!("SEED={seed}");
            hostile_client(&path, seed, dir.path());
            if seed % 10 == 0 {
                let function = pci::user::open(&path).expect("connected");
                let controller = Controller::open(function, Options::default()).expect("ready");
                let mut bench = Bench::new(&controller, 4, false);
                let buf = bench.buf(seed as u8);
                assert_eq!(bench.run(block::Request::write(block::Tag(1), block::Lba(7), 1), Some(&buf)), Ok(()), "SEED={seed}");
            }
        }
        server.end();
    });
}
