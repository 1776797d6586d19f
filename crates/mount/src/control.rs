//! The control socket: `.hotshelf/control` on the SSD, JSON lines, for the mounting user and root.

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
        let Ok(stream) = stream else { continue };
        if !may_ask(&stream) || clients.load(Ordering::Relaxed) >= CLIENTS_MAX {
            continue;
        }
        clients.fetch_add(1, Ordering::Relaxed);
        let (handler, counted) = (handler.clone(), clients.clone());
        let started = std::thread::Builder::new().name("control-client".into()).spawn(move || {
            if let Err(error) = serve(stream, &*handler) {
                tracing::debug!(%error, "a control client went away");
            }
            counted.fetch_sub(1, Ordering::Relaxed);
        });
        if started.is_err() {
            clients.fetch_sub(1, Ordering::Relaxed);
        }
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
    /// Connects to the daemon of the pair with this SSD directory.
    pub fn connect(ssd: &Path) -> std::io::Result<ControlClient> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(ssd.join(".hotshelf"), flags, Mode::empty())?;
        let stream = UnixStream::connect(socket_path(&dir))?;
        Ok(ControlClient { out: stream.try_clone()?, input: BufReader::new(stream) })
    }

    /// Asks once; `progress` sees what comes before the answer.
    pub fn ask(&mut self, ask: &Ask, progress: &mut dyn FnMut(&Answer)) -> std::io::Result<Answer> {
        let mut line = serde_json::to_vec(ask)?;
        line.push(b'\n');
        self.out.write_all(&line)?;
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
        let hex = bytes.get(at + 1..at + 3).filter(|_| bytes[at] == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
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
        fn pin(&self, _: &[u8], on: bool) -> Result<String, String> {
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
        let mut client = ControlClient::connect(dir.path()).expect("connected");
        client.out.write_all(b"{\"ask\":\"dance\"}\n\xff\xfe\n").expect("sent");
        for _ in 0..2 {
            let mut line = String::new();
            client.input.read_line(&mut line).expect("answered");
            assert!(line.contains("\"failed\""), "{line}");
        }
        let mut gone = ControlClient::connect(dir.path()).expect("connected");
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
    fn escaped_paths_come_back() {
        proptest::proptest!(|(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..40))| {
            let path = std::path::PathBuf::from(std::ffi::OsString::from_vec(bytes.clone()));
            proptest::prop_assert_eq!(unescape(&escape(&path)), bytes);
        });
    }
}
