//! The control socket: `.hotshelf/control` on the SSD (on the HDD while the SSD is read-only), JSON lines, for the mounting user and root.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hybridfs::report::{ControlReply, ControlRequest, Status, TierName, Why};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::socket_server::{SocketServer, send};
use crate::source::MountEntry;

const SOCKET: &str = "control";
const LINE_MAX: usize = 1 << 20;
/// What a daemon may answer in one line. It may be another user's.
const ANSWER_MAX: usize = 4 << 20;
const CLIENTS_MAX: usize = 16;
/// Longest time a client may be idle, and may take to send one request.
const IDLE: Duration = Duration::from_secs(60);
const REQUEST: Duration = Duration::from_secs(10);

/// Handles the requests that clients send over the control socket.
pub trait ControlHandler: Send + Sync + 'static {
    /// The state of the mount.
    fn status(&self) -> Status;
    /// Everything known of a path.
    fn why(&self, path: &[u8]) -> Result<Why, String>;
    /// Keeps a path on the SSD, or no longer.
    fn pin(&self, path: &[u8], on: bool) -> Result<String, String>;
    /// Moves a file or a tree.
    /// Stops when `progress` answers false.
    fn migrate(&self, path: &[u8], to: TierName, progress: &mut dyn FnMut(u64, u64, u64, u64) -> bool) -> Result<String, String>;
    /// Brings everything from one side to the other. Stops when `progress` answers false.
    fn retire(&self, side: TierName, dry_run: bool, progress: &mut dyn FnMut(u64, u64, u64, u64) -> bool) -> Result<String, String>;
    /// Changes settings; none if one of them cannot be.
    fn set(&self, changes: &BTreeMap<String, String>, dry_run: bool) -> Result<String, String>;
    /// Saves what is saved now and then.
    fn flush(&self) -> Result<String, String>;
    /// Begins an orderly unmount.
    fn stop(&self);
}

/// The listening side; ends when dropped.
pub struct ControlServer {
    _socket: SocketServer,
}

impl ControlServer {
    /// Listens in the hidden directory. The caller holds the pair's lock, so a socket that is there is stale.
    pub fn start(dir: OwnedFd, handler: Arc<dyn ControlHandler>) -> std::io::Result<ControlServer> {
        let clients = Arc::new(AtomicUsize::new(0));
        let on_client = move |stream| {
            serve_beside_others(stream, &handler, &clients);
            ControlFlow::Continue(())
        };
        Ok(ControlServer { _socket: SocketServer::start(dir, SOCKET, "control", on_client)? })
    }
}

/// Serves a client on a thread of its own, unless there are too many.
fn serve_beside_others(mut stream: UnixStream, handler: &Arc<dyn ControlHandler>, clients: &Arc<AtomicUsize>) {
    let counted = CountedClient::new(clients);
    if clients.load(Ordering::Relaxed) > CLIENTS_MAX {
        let _ = send(&mut stream, &ControlReply::Failed { message: format!("{CLIENTS_MAX} others ask already: try again") });
        return;
    }
    let handler = Arc::clone(handler);
    let started = std::thread::Builder::new().name("control-client".into()).spawn(move || {
        let _counted = counted;
        if let Err(error) = serve(stream, &*handler) {
            tracing::debug!(%error, "a control client went away");
        }
    });
    if let Err(error) = started {
        tracing::warn!(%error, "a control client cannot be served");
    }
}

/// One client; not one any more when dropped, by a panic too.
struct CountedClient(Arc<AtomicUsize>);

impl CountedClient {
    fn new(clients: &Arc<AtomicUsize>) -> CountedClient {
        clients.fetch_add(1, Ordering::Relaxed);
        CountedClient(clients.clone())
    }
}

impl Drop for CountedClient {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn serve(stream: UnixStream, handler: &dyn ControlHandler) -> std::io::Result<()> {
    stream.set_write_timeout(Some(IDLE))?;
    let mut out = stream.try_clone()?;
    let mut input = LineReader::new(stream, LINE_MAX);
    loop {
        let line = match input.next(Some(Instant::now() + IDLE), Some(REQUEST)) {
            Ok(Some(line)) => line,
            Ok(None) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                return send(&mut out, &ControlReply::Failed { message: "a request must be one line of at most 1 MiB".into() });
            }
            Err(error) => return Err(error),
        };
        match serde_json::from_slice::<ControlRequest>(&line) {
            Ok(ask) => answer(&mut out, handler, ask)?,
            Err(error) => send(&mut out, &ControlReply::Failed { message: format!("not a request this version knows: {error}") })?,
        }
    }
}

/// Lines from a peer that may send too much, too slowly or nothing.
pub(crate) struct LineReader {
    stream: UnixStream,
    /// Longer lines are an error.
    max: usize,
    read: Vec<u8>,
    /// So much of it has no line feed.
    searched: usize,
}

impl LineReader {
    /// Reads lines of at most `max` bytes from a peer.
    pub fn new(stream: UnixStream, max: usize) -> LineReader {
        LineReader { stream, max, read: Vec::new(), searched: 0 }
    }

    /// The next line until the deadline; after its first byte it must end within `whole`. None: the peer has closed.
    pub fn next(&mut self, mut deadline: Option<Instant>, whole: Option<Duration>) -> std::io::Result<Option<Vec<u8>>> {
        let mut limit = whole.filter(|_| !self.read.is_empty());
        loop {
            if let Some(end) = self.read[self.searched..].iter().position(|byte| *byte == b'\n') {
                let rest = self.read.split_off(self.searched + end + 1);
                self.searched = 0;
                return Ok(Some(std::mem::replace(&mut self.read, rest)));
            }
            self.searched = self.read.len();
            if self.read.len() > self.max {
                return Err(std::io::Error::new(ErrorKind::InvalidData, format!("a line of more than {} bytes", self.max)));
            }
            if let Some(limit) = limit.take() {
                let latest = Instant::now() + limit;
                deadline = Some(deadline.map_or(latest, |deadline| deadline.min(latest)));
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(left)?;
            let mut chunk = [0; 16 << 10];
            match self.stream.read(&mut chunk) {
                Ok(0) if self.read.is_empty() => return Ok(None),
                Ok(0) => return Err(std::io::Error::new(ErrorKind::InvalidData, "the last line has no end")),
                Ok(length) => {
                    limit = whole.filter(|_| self.read.is_empty());
                    self.read.extend_from_slice(&chunk[..length]);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether a client has said that it will ask no more: it was interrupted, or has gone.
fn has_hung_up(stream: &UnixStream) -> bool {
    let mut byte = [0];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match rustix::net::recv(stream, &mut byte, flags) {
        Ok((_, read)) => read == 0,
        Err(error) => !matches!(error, Errno::AGAIN | Errno::INTR),
    }
}

fn answer(out: &mut UnixStream, handler: &dyn ControlHandler, ask: ControlRequest) -> std::io::Result<()> {
    let done = |outcome: Result<String, String>| match outcome {
        Ok(message) => ControlReply::Done { message },
        Err(message) => ControlReply::Failed { message },
    };
    let answer = match ask {
        ControlRequest::Status => ControlReply::Status(Box::new(handler.status())),
        ControlRequest::Why { path } => match handler.why(&unescape(&path)) {
            Ok(why) => ControlReply::Why(Box::new(why)),
            Err(message) => ControlReply::Failed { message },
        },
        ControlRequest::Pin { path } => done(handler.pin(&unescape(&path), true)),
        ControlRequest::Unpin { path } => done(handler.pin(&unescape(&path), false)),
        ControlRequest::Migrate { path, to } => {
            let outcome = handler.migrate(&unescape(&path), to, &mut |files, files_done, bytes, bytes_done| {
                !has_hung_up(out) && send(out, &ControlReply::Progress { files, files_done, bytes, bytes_done }).is_ok()
            });
            done(outcome)
        }
        ControlRequest::Retire { side, dry_run } => {
            let outcome = handler.retire(side, dry_run, &mut |files, files_done, bytes, bytes_done| {
                !has_hung_up(out) && send(out, &ControlReply::Progress { files, files_done, bytes, bytes_done }).is_ok()
            });
            done(outcome)
        }
        ControlRequest::Set { changes, dry_run } => done(handler.set(&changes, dry_run)),
        ControlRequest::Flush => done(handler.flush()),
        ControlRequest::Stop => {
            handler.stop();
            ControlReply::Done { message: "unmounting".into() }
        }
    };
    send(out, &answer)
}

/// Connects to a socket of this user, by whom it is served, too. Sending must end by the deadline.
pub(crate) fn connect(dir: &OwnedFd, name: &str, owner: u32, deadline: Option<Instant>) -> std::io::Result<UnixStream> {
    let stranger = |what| std::io::Error::new(ErrorKind::PermissionDenied, format!("{what} is not of the user who mounted it ({owner})"));
    let name = rustix::fs::openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = rustix::fs::fstat(&name)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket || stat.st_uid != owner {
        return Err(stranger("the control socket"));
    }
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // A listener that accepts nobody would keep us waiting.
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)));
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Send, left)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(format!("/proc/self/fd/{}", name.as_raw_fd()))?)?;
    if rustix::net::sockopt::socket_peercred(&socket)?.uid.as_raw() != owner {
        return Err(stranger("the process behind the control socket"));
    }
    Ok(socket.into())
}

/// The asking side.
///
/// The daemon may be another user's, and so may the directories of the pair. So the socket is that of the user whom the kernel names as
/// the one who mounted, nothing is followed on the way to it, and what comes back has a limit.
pub struct ControlClient {
    input: LineReader,
    out: UnixStream,
    deadline: Option<Instant>,
}

impl ControlClient {
    /// Connects to the daemon of a mount. The conversation must end by the deadline.
    pub fn connect(mounted: &MountEntry, deadline: Option<Instant>) -> std::io::Result<ControlClient> {
        let on = |side: &Path| Self::connect_in(side, mounted.owner, deadline);
        on(&mounted.ssd).or_else(|error| on(&mounted.hdd).map_err(|_| error))
    }

    fn connect_in(side: &Path, owner: u32, deadline: Option<Instant>) -> std::io::Result<ControlClient> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::open(side.join(".hotshelf"), flags | OFlags::DIRECTORY, Mode::empty())?;
        let stream = connect(&dir, SOCKET, owner, deadline)?;
        Ok(ControlClient { out: stream.try_clone()?, input: LineReader::new(stream, ANSWER_MAX), deadline })
    }

    /// The connection, to say by closing its way there that the work shall stop.
    pub fn stopper(&self) -> std::io::Result<UnixStream> {
        self.out.try_clone()
    }

    /// Asks once; `progress` sees what comes before the answer.
    pub fn ask(&mut self, ask: &ControlRequest, progress: &mut dyn FnMut(&ControlReply)) -> std::io::Result<ControlReply> {
        match send(&mut self.out, ask) {
            // Hung up on; what was said before that is still there to be read.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            other => other?,
        }
        loop {
            let Some(line) = self.input.next(self.deadline, None)? else {
                return Err(std::io::Error::new(ErrorKind::UnexpectedEof, "the daemon ended"));
            };
            match serde_json::from_slice::<ControlReply>(&line)? {
                going @ ControlReply::Progress { .. } => progress(&going),
                answer => return Ok(answer),
            }
        }
    }
}

/// A path as text without loss: `%` and bytes that are no UTF-8 become `%xx`.
pub fn escape(path: &Path) -> String {
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        text.push_str(&chunk.valid().replace('%', "%25"));
        for byte in chunk.invalid() {
            text.push_str(&format!("%{byte:02x}"));
        }
    }
    text
}

/// Undoes [`escape`]; other text stays unchanged.
pub fn unescape(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digit = |at: usize| bytes.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        let escaped = digit(at + 1).zip(digit(at + 2)).filter(|_| bytes[at] == b'%');
        match escaped.map(|(high, low)| (high << 4 | low) as u8) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    out
}

/// The bytes of an escaped path as a path.
pub fn unescape_path(text: &str) -> std::path::PathBuf {
    std::ffi::OsString::from_vec(unescape(text)).into()
}

#[cfg(test)]
mod test {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::AtomicU64;

    #[derive(Default)]
    struct FakeHandler {
        stopped: AtomicU64,
    }

    impl ControlHandler for FakeHandler {
        fn status(&self) -> Status {
            Status { pid: 7, ..Status::default() }
        }
        fn why(&self, path: &[u8]) -> Result<Why, String> {
            Err(format!("{}: no such file", String::from_utf8_lossy(path)))
        }
        fn pin(&self, path: &[u8], on: bool) -> Result<String, String> {
            assert_ne!(path, b"panic", "a panic, for a test");
            Ok(on.to_string())
        }
        fn migrate(&self, path: &[u8], _: TierName, progress: &mut dyn FnMut(u64, u64, u64, u64) -> bool) -> Result<String, String> {
            // Until it is stopped, by one client.
            let files = if path == b"endless" { u64::MAX } else { 1000 };
            let done = (0..files).find(|n| !progress(files, *n, 0, 0));
            self.stopped.fetch_add(u64::from(done.is_some()), Ordering::SeqCst);
            done.map_or_else(|| Ok("moved".into()), |_| Err("stopped".into()))
        }
        fn retire(&self, side: TierName, _: bool, _: &mut dyn FnMut(u64, u64, u64, u64) -> bool) -> Result<String, String> {
            Ok(side.to_string())
        }
        fn set(&self, changes: &BTreeMap<String, String>, _: bool) -> Result<String, String> {
            Ok(format!("{changes:?}"))
        }
        fn flush(&self) -> Result<String, String> {
            Ok(String::new())
        }
        fn stop(&self) {}
    }

    fn server() -> (tempfile::TempDir, ControlServer) {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join(".hotshelf")).expect("hidden");
        let hidden = std::fs::File::open(dir.path().join(".hotshelf")).expect("opened");
        let server = ControlServer::start(hidden.into(), Arc::new(FakeHandler::default())).expect("started");
        (dir, server)
    }

    #[test]
    fn questions_are_answered_after_garbage_and_impolite_clients() {
        let (dir, server) = server();
        let mut client = connect(dir.path());
        client.out.write_all(b"{\"ask\":\"dance\"}\n\xff\xfe\n").expect("sent");
        for _ in 0..2 {
            let line = client.input.next(None, None).expect("answered").expect("a line");
            assert!(String::from_utf8_lossy(&line).contains("\"failed\""), "{line:?}");
        }
        let mut gone = connect(dir.path());
        gone.out.write_all(b"{\"ask\":\"migrate\",\"path\":\"x\",\"to\":\"hdd\"}\n").expect("sent");
        drop(gone);
        assert!(matches!(client.ask(&ControlRequest::Status, &mut |_| {}), Ok(ControlReply::Status(status)) if status.pid == 7));
        let mut seen = 0;
        let moved = client.ask(&ControlRequest::Migrate { path: "x".into(), to: TierName::Hdd }, &mut |_| seen += 1);
        assert!(matches!(moved, Ok(ControlReply::Done { message }) if message == "moved"));
        assert_eq!(seen, 1000);
        drop(server);
        assert!(!dir.path().join(".hotshelf/control").exists());
    }

    #[test]
    fn a_client_too_many_is_reported_so_and_a_place_becomes_free_again() {
        let (dir, _server) = server();
        let mut clients: Vec<ControlClient> = (0..CLIENTS_MAX).map(|_| connect(dir.path())).collect();
        for client in &mut clients {
            assert!(matches!(client.ask(&ControlRequest::Status, &mut |_| {}), Ok(ControlReply::Status(_))));
        }
        let mut late = connect(dir.path());
        let answer = late.ask(&ControlRequest::Status, &mut |_| {});
        assert!(matches!(&answer, Ok(ControlReply::Failed { message }) if message.contains("try again")), "{answer:?}");
        drop(clients);
        let free = (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            let client = ControlClient::connect(&mounted(dir.path()), None);
            client
                .and_then(|mut client| client.ask(&ControlRequest::Status, &mut |_| {}))
                .is_ok_and(|answer| matches!(answer, ControlReply::Status(_)))
        });
        assert!(free);
    }

    #[test]
    fn a_panic_of_ours_does_not_take_a_place_for_good() {
        let (dir, _server) = server();
        for _ in 0..=CLIENTS_MAX {
            let mut client = connect(dir.path());
            client.ask(&ControlRequest::Pin { path: "panic".into() }, &mut |_| {}).expect_err("no answer");
        }
        // The last one's place may not be free yet.
        std::thread::sleep(Duration::from_millis(50));
        let mut client = connect(dir.path());
        assert!(matches!(client.ask(&ControlRequest::Status, &mut |_| {}), Ok(ControlReply::Status(_))));
    }

    fn mounted(dir: &Path) -> MountEntry {
        let owner = rustix::process::geteuid().as_raw();
        MountEntry { mountpoint: dir.into(), ssd: dir.into(), hdd: dir.into(), owner }
    }

    fn connect(dir: &Path) -> ControlClient {
        ControlClient::connect(&mounted(dir), None).expect("connected")
    }

    /// A pair whose daemon is somebody's own program.
    fn impostor(answers: impl FnOnce(UnixStream) + Send + 'static) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join(".hotshelf")).expect("hidden");
        let listener = UnixListener::bind(dir.path().join(".hotshelf/control")).expect("bound");
        std::thread::spawn(move || answers(listener.accept().expect("a client").0));
        dir
    }

    #[test]
    fn an_endless_answer_and_a_silent_daemon_are_given_up() {
        let dir = impostor(|mut client| while client.write_all(&[b'x'; 1 << 16]).is_ok() {});
        let error = connect(dir.path()).ask(&ControlRequest::Status, &mut |_| {}).expect_err("too long");
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        // A byte now and then does not help.
        let dir = impostor(|mut client| {
            while client.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(20))
            }
        });
        let begun = Instant::now();
        let deadline = Some(begun + Duration::from_millis(300));
        let mut client = ControlClient::connect(&mounted(dir.path()), deadline).expect("connected");
        let error = client.ask(&ControlRequest::Status, &mut |_| {}).expect_err("too slow");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(begun.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_socket_of_another_user_is_not_asked() {
        let dir = impostor(|_| ());
        let stranger = MountEntry { owner: rustix::process::geteuid().as_raw() + 1, ..mounted(dir.path()) };
        let error = ControlClient::connect(&stranger, None).err().expect("refused");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        // Nor one elsewhere, by a link.
        let (real, _server) = server();
        let linked = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(linked.path().join(".hotshelf")).expect("hidden");
        std::os::unix::fs::symlink(real.path().join(".hotshelf/control"), linked.path().join(".hotshelf/control")).expect("a link");
        ControlClient::connect(&mounted(linked.path()), None).err().expect("refused");
        let linked = tempfile::tempdir().expect("a directory");
        std::os::unix::fs::symlink(real.path().join(".hotshelf"), linked.path().join(".hotshelf")).expect("a link");
        ControlClient::connect(&mounted(linked.path()), None).err().expect("refused");
    }

    #[test]
    fn work_stops_when_its_client_hangs_up() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join(".hotshelf")).expect("hidden");
        let hidden = std::fs::File::open(dir.path().join(".hotshelf")).expect("opened");
        let fake = Arc::new(FakeHandler::default());
        let _server = ControlServer::start(hidden.into(), fake.clone()).expect("started");
        let endless = ControlRequest::Migrate { path: "endless".into(), to: TierName::Hdd };
        // Interrupted: it says how far it came.
        let mut client = connect(dir.path());
        let mut stopper = Some(client.stopper().expect("a connection"));
        let answer = client.ask(&endless, &mut |_| {
            stopper.take().into_iter().for_each(|stream| stream.shutdown(std::net::Shutdown::Write).expect("shut"));
        });
        assert!(matches!(&answer, Ok(ControlReply::Failed { message }) if message == "stopped"), "{answer:?}");
        // Gone.
        let mut gone = connect(dir.path());
        gone.out.write_all(&[&serde_json::to_vec(&endless).expect("plain data")[..], b"\n"].concat()).expect("sent");
        gone.input.next(None, None).expect("progress");
        drop(gone);
        let end = Instant::now() + Duration::from_secs(60);
        while fake.stopped.load(Ordering::SeqCst) < 2 {
            assert!(Instant::now() < end, "it goes on for nobody");
            std::thread::yield_now();
        }
    }

    /// Bytes, text, and requests with something wrong in them.
    fn lines() -> impl proptest::strategy::Strategy<Value = Vec<u8>> {
        use proptest::prelude::*;
        let bytes = proptest::collection::vec(any::<u8>(), 0..300);
        let text = "[ -~]{0,80}".prop_map(String::into_bytes);
        let word = "(ask|path|to|status|why|pin|migrate|hdd|[a-z]{0,5})";
        let object = proptest::collection::vec((word, prop_oneof![word.prop_map(|word| format!("{word:?}")), "[-0-9\\[{]{1,9}"]), 0..4)
            .prop_map(|pairs| {
                let pairs: Vec<String> = pairs.into_iter().map(|(key, value)| format!("{key:?}:{value}")).collect();
                format!("{{{}}}\n", pairs.join(",")).into_bytes()
            });
        let deep = (1usize..5000).prop_map(|depth| vec![b'['; depth]);
        let path = "(%[0-9a-fA-F+-]{0,3}|[./]|\\PC){0,20}".prop_map(|path: String| {
            let mut line = serde_json::to_vec(&ControlRequest::Why { path }).expect("plain data");
            line.push(b'\n');
            line
        });
        proptest::collection::vec(prop_oneof![bytes, text, object, deep, path], 1..4).prop_map(|parts| parts.concat())
    }

    #[test]
    fn after_any_lines_the_server_answers_the_next_client() {
        let (dir, _server) = server();
        proptest::proptest!(|(bytes in lines())| {
            let mut hostile = connect(dir.path());
            hostile.out.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
            hostile.out.write_all(&bytes).expect("sent");
            hostile.out.shutdown(std::net::Shutdown::Write).expect("shut");
            let mut answers = Vec::new();
            hostile.out.read_to_end(&mut answers).expect("the server ends the talk");
            let asked = bytes.split(|byte| *byte == b'\n').count() - usize::from(bytes.is_empty() || bytes.ends_with(b"\n"));
            let answered = answers.split_inclusive(|byte| *byte == b'\n').filter(|line| {
                let answer = serde_json::from_slice::<ControlReply>(line).expect("every line is an answer");
                !matches!(answer, ControlReply::Progress { .. })
            });
            proptest::prop_assert_eq!(answered.count(), asked);
            let mut client = connect(dir.path());
            let answer = client.ask(&ControlRequest::Status, &mut |_| {});
            proptest::prop_assert!(matches!(answer, Ok(ControlReply::Status(status)) if status.pid == 7));
        });
    }

    #[test]
    fn a_line_too_long_is_refused_in_bounded_memory() {
        let (dir, _server) = server();
        let mut client = connect(dir.path());
        // The server may hang up before it has read all of it.
        let _ = client.out.write_all(&vec![b' '; LINE_MAX + 1]);
        let line = client.input.next(None, None).expect("answered").expect("a line");
        assert!(String::from_utf8_lossy(&line).contains("one line of at most 1 MiB"), "{line:?}");
        assert!(!matches!(client.input.next(None, None), Ok(Some(_))));
    }

    #[test]
    fn what_is_no_escape_stays() {
        assert_eq!(unescape("a%2Fb%+f%%41%4%é"), "a/b%+f%A%4%é".as_bytes());
    }

    #[test]
    fn escaped_paths_come_back() {
        proptest::proptest!(|(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..40))| {
            let path = std::path::PathBuf::from(std::ffi::OsString::from_vec(bytes.clone()));
            proptest::prop_assert_eq!(unescape(&escape(&path)), bytes);
        });
    }
}
