//! The control socket: `.hotshelf/control` on the SSD (on the HDD while the SSD is read-only), JSON lines, for the mounting user and root.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use hybridfs::report::{Answer, Ask, Status, TierName, Why};
use rustix::fs::{AtFlags, Mode, OFlags};

const SOCKET: &str = "control";
const LINE_MAX: u64 = 1 << 20;
const CLIENTS_MAX: usize = 16;

/// Who answers.
pub trait ControlHandler: Send + Sync + 'static {
    /// The state of the mount.
    fn status(&self) -> Status;
    /// Everything known of a path.
    fn why(&self, path: &[u8]) -> Result<Why, String>;
    /// Keeps a path on the SSD, or no longer.
    fn pin(&self, path: &[u8], on: bool) -> Result<String, String>;
    /// Moves a file or a tree.
    fn migrate(&self, path: &[u8], to: TierName, progress: &mut dyn FnMut(u64, u64, u64, u64)) -> Result<String, String>;
    /// Saves what is saved now and then.
    fn flush(&self) -> Result<String, String>;
    /// Begins an orderly unmount.
    fn stop(&self);
}

/// The listening side; ends when dropped.
pub struct ControlServer {
    dir: OwnedFd,
    ended: Arc<AtomicBool>,
}

impl ControlServer {
    /// Listens in the hidden directory. The caller holds the pair's lock, so a socket that is there is stale.
    pub fn start(dir: OwnedFd, handler: Arc<dyn ControlHandler>) -> std::io::Result<ControlServer> {
        match rustix::fs::unlinkat(&dir, SOCKET, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let listener = UnixListener::bind(socket_path(&dir))?;
        rustix::fs::chmodat(&dir, SOCKET, Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
        let ended = Arc::new(AtomicBool::new(false));
        let accept_ended = ended.clone();
        std::thread::Builder::new().name("control".into()).spawn(move || accept(&listener, &handler, &accept_ended))?;
        Ok(ControlServer { dir, ended })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        // Wakes the accepting thread.
        let _ = UnixStream::connect(socket_path(&self.dir));
        let _ = rustix::fs::unlinkat(&self.dir, SOCKET, AtFlags::empty());
    }
}

/// A path short enough for a socket's address, whatever the directory is called.
fn socket_path(dir: &OwnedFd) -> String {
    format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd())
}

fn accept(listener: &UnixListener, handler: &Arc<dyn ControlHandler>, ended: &AtomicBool) {
    let clients = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        if ended.load(Ordering::Acquire) {
            return;
        }
        let Ok(mut stream) = stream else {
            // Out of descriptors: that does not pass by asking again at once.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if !may_ask(&stream) {
            continue;
        }
        let counted = Counted::new(&clients);
        if clients.load(Ordering::Relaxed) > CLIENTS_MAX {
            let _ = send(&mut stream, &Answer::Failed { message: format!("{CLIENTS_MAX} others ask already: try again") });
            continue;
        }
        let handler = handler.clone();
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
}

/// One client; not one any more when dropped, by a panic too.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(clients: &Arc<AtomicUsize>) -> Counted {
        clients.fetch_add(1, Ordering::Relaxed);
        Counted(clients.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The mode of the socket says it too, but a directory's mode can be changed.
fn may_ask(stream: &UnixStream) -> bool {
    let me = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(stream).is_ok_and(|peer| peer.uid.is_root() || peer.uid == me)
}

fn serve(stream: UnixStream, handler: &dyn ControlHandler) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.set_write_timeout(Some(Duration::from_secs(60)))?;
    let mut out = stream.try_clone()?;
    let mut input = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        let got = input.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)?;
        if got == 0 {
            return Ok(());
        }
        if line.last() != Some(&b'\n') {
            return send(&mut out, &Answer::Failed { message: "a request must be one line of at most 1 MiB".into() });
        }
        match serde_json::from_slice::<Ask>(&line) {
            Ok(ask) => answer(&mut out, handler, ask)?,
            Err(error) => send(&mut out, &Answer::Failed { message: format!("not a request this version knows: {error}") })?,
        }
    }
}

fn answer(out: &mut UnixStream, handler: &dyn ControlHandler, ask: Ask) -> std::io::Result<()> {
    let done = |outcome: Result<String, String>| match outcome {
        Ok(message) => Answer::Done { message },
        Err(message) => Answer::Failed { message },
    };
    let answer = match ask {
        Ask::Status => Answer::Status(Box::new(handler.status())),
        Ask::Why { path } => match handler.why(&unescape(&path)) {
            Ok(why) => Answer::Why(Box::new(why)),
            Err(message) => Answer::Failed { message },
        },
        Ask::Pin { path } => done(handler.pin(&unescape(&path), true)),
        Ask::Unpin { path } => done(handler.pin(&unescape(&path), false)),
        Ask::Migrate { path, to } => {
            let outcome = handler.migrate(&unescape(&path), to, &mut |files, files_done, bytes, bytes_done| {
                // The move goes on when the asker is gone; it only tells nobody.
                let _ = send(out, &Answer::Progress { files, files_done, bytes, bytes_done });
            });
            done(outcome)
        }
        Ask::Flush => done(handler.flush()),
        Ask::Stop => {
            handler.stop();
            Answer::Done { message: "unmounting".into() }
        }
    };
    send(out, &answer)
}

fn send(out: &mut UnixStream, answer: &Answer) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    out.write_all(&line)
}

/// The asking side.
pub struct ControlClient {
    input: BufReader<UnixStream>,
    out: UnixStream,
}

impl ControlClient {
    /// Connects to the daemon of the pair with these directories.
    pub fn connect(ssd: &Path, hdd: &Path) -> std::io::Result<ControlClient> {
        Self::connect_in(ssd).or_else(|error| Self::connect_in(hdd).map_err(|_| error))
    }

    fn connect_in(side: &Path) -> std::io::Result<ControlClient> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(side.join(".hotshelf"), flags, Mode::empty())?;
        let stream = UnixStream::connect(socket_path(&dir))?;
        Ok(ControlClient { out: stream.try_clone()?, input: BufReader::new(stream) })
    }

    /// Asks once; `progress` sees what comes before the answer.
    pub fn ask(&mut self, ask: &Ask, progress: &mut dyn FnMut(&Answer)) -> std::io::Result<Answer> {
        let mut line = serde_json::to_vec(ask)?;
        line.push(b'\n');
        match self.out.write_all(&line) {
            // Hung up on; what was said before that is still there to be read.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
            other => other?,
        }
        loop {
            let mut line = Vec::new();
            if self.input.read_until(b'\n', &mut line)? == 0 {
                return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the daemon ended"));
            }
            match serde_json::from_slice::<Answer>(&line)? {
                going @ Answer::Progress { .. } => progress(&going),
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

/// Undoes [`escape`]; what is no escape stays as it is.
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

    struct Fake;

    impl ControlHandler for Fake {
        fn status(&self) -> Status {
            Status { pid: 7, ..Status::default() }
        }
        fn why(&self, path: &[u8]) -> Result<Why, String> {
            Err(format!("{}: no such file", String::from_utf8_lossy(path)))
        }
        fn pin(&self, path: &[u8], on: bool) -> Result<String, String> {
            assert_ne!(path, b"panic", "a bug of ours, for a test");
            Ok(on.to_string())
        }
        fn migrate(&self, _: &[u8], _: TierName, progress: &mut dyn FnMut(u64, u64, u64, u64)) -> Result<String, String> {
            (0..1000).for_each(|n| progress(1000, n, 0, 0));
            Ok("moved".into())
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
        let server = ControlServer::start(hidden.into(), Arc::new(Fake)).expect("started");
        (dir, server)
    }

    #[test]
    fn questions_are_answered_after_garbage_and_impolite_clients() {
        let (dir, server) = server();
        let mut client = ControlClient::connect_in(dir.path()).expect("connected");
        client.out.write_all(b"{\"ask\":\"dance\"}\n\xff\xfe\n").expect("sent");
        for _ in 0..2 {
            let mut line = String::new();
            client.input.read_line(&mut line).expect("answered");
            assert!(line.contains("\"failed\""), "{line}");
        }
        let mut gone = ControlClient::connect_in(dir.path()).expect("connected");
        gone.out.write_all(b"{\"ask\":\"migrate\",\"path\":\"x\",\"to\":\"hdd\"}\n").expect("sent");
        drop(gone);
        assert!(matches!(client.ask(&Ask::Status, &mut |_| {}), Ok(Answer::Status(status)) if status.pid == 7));
        let mut seen = 0;
        let moved = client.ask(&Ask::Migrate { path: "x".into(), to: TierName::Hdd }, &mut |_| seen += 1);
        assert!(matches!(moved, Ok(Answer::Done { message }) if message == "moved"));
        assert_eq!(seen, 1000);
        drop(server);
        assert!(!dir.path().join(".hotshelf/control").exists());
    }

    #[test]
    fn a_client_too_many_is_told_so_and_a_place_becomes_free_again() {
        let (dir, _server) = server();
        let mut clients: Vec<ControlClient> =
            (0..CLIENTS_MAX).map(|_| ControlClient::connect(dir.path(), dir.path()).expect("connected")).collect();
        for client in &mut clients {
            assert!(matches!(client.ask(&Ask::Status, &mut |_| {}), Ok(Answer::Status(_))));
        }
        let mut late = ControlClient::connect(dir.path(), dir.path()).expect("connected");
        let answer = late.ask(&Ask::Status, &mut |_| {});
        assert!(matches!(&answer, Ok(Answer::Failed { message }) if message.contains("try again")), "{answer:?}");
        drop(clients);
        let free = (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            let client = ControlClient::connect(dir.path(), dir.path());
            client.and_then(|mut client| client.ask(&Ask::Status, &mut |_| {})).is_ok_and(|answer| matches!(answer, Answer::Status(_)))
        });
        assert!(free);
    }

    #[test]
    fn a_panic_of_ours_does_not_take_a_place_for_good() {
        let (dir, _server) = server();
        for _ in 0..=CLIENTS_MAX {
            let mut client = ControlClient::connect(dir.path(), dir.path()).expect("connected");
            client.ask(&Ask::Pin { path: "panic".into() }, &mut |_| {}).expect_err("no answer");
        }
        // The last one's place may not be free yet.
        std::thread::sleep(Duration::from_millis(50));
        let mut client = ControlClient::connect(dir.path(), dir.path()).expect("connected");
        assert!(matches!(client.ask(&Ask::Status, &mut |_| {}), Ok(Answer::Status(_))));
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
            let mut line = serde_json::to_vec(&Ask::Why { path }).expect("plain data");
            line.push(b'\n');
            line
        });
        proptest::collection::vec(prop_oneof![bytes, text, object, deep, path], 1..4).prop_map(|parts| parts.concat())
    }

    #[test]
    fn after_any_lines_the_server_answers_the_next_client() {
        let (dir, _server) = server();
        proptest::proptest!(|(bytes in lines())| {
            let mut hostile = ControlClient::connect(dir.path(), dir.path()).expect("connected");
            hostile.out.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
            hostile.out.write_all(&bytes).expect("sent");
            hostile.out.shutdown(std::net::Shutdown::Write).expect("shut");
            let mut answers = Vec::new();
            hostile.input.read_to_end(&mut answers).expect("the server ends the talk");
            let asked = bytes.split(|byte| *byte == b'\n').count() - usize::from(bytes.is_empty() || bytes.ends_with(b"\n"));
            let answered = answers.split_inclusive(|byte| *byte == b'\n').filter(|line| {
                let answer = serde_json::from_slice::<Answer>(line).expect("every line is an answer");
                !matches!(answer, Answer::Progress { .. })
            });
            proptest::prop_assert_eq!(answered.count(), asked);
            let mut client = ControlClient::connect(dir.path(), dir.path()).expect("connected");
            let answer = client.ask(&Ask::Status, &mut |_| {});
            proptest::prop_assert!(matches!(answer, Ok(Answer::Status(status)) if status.pid == 7));
        });
    }

    #[test]
    fn a_line_too_long_is_refused_in_bounded_memory() {
        let (dir, _server) = server();
        let mut client = ControlClient::connect(dir.path(), dir.path()).expect("connected");
        // The server may hang up before it has read all of it.
        let _ = client.out.write_all(&vec![b' '; LINE_MAX as usize]);
        let mut line = String::new();
        client.input.read_line(&mut line).expect("answered");
        assert!(line.contains("one line of at most 1 MiB"), "{line}");
        assert_eq!(client.input.read_line(&mut String::new()).expect("ended"), 0);
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
