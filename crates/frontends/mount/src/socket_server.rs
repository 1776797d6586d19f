//! A socket in a directory, for the user who mounted and root, and the thread that accepts its clients.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::Serialize;

/// How long the accepting thread waits when it has no descriptor for a client: that does not pass by asking again at once.
const SHORTAGE_WAIT: Duration = Duration::from_millis(100);

/// The listening side; ends when dropped.
pub struct SocketServer {
    dir: OwnedFd,
    name: String,
    /// The device and inode number of the socket.
    identity: Option<(u64, u64)>,
    has_ended: Arc<AtomicBool>,
}

impl SocketServer {
    /// Listens in a directory, and calls `on_client` for each client on a thread of this name, until that breaks. The caller is the only
    /// one who may listen there: a socket that is there is stale.
    ///
    /// # Errors
    /// The socket cannot be created, or the thread not started.
    pub fn start<F>(dir: OwnedFd, name: &str, thread: &str, mut on_client: F) -> io::Result<SocketServer>
    where
        F: FnMut(UnixStream) -> ControlFlow<()> + Send + 'static,
    {
        match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let listener = listen(&dir, name)?;
        let identity = identity_of(&dir, name);
        let has_ended = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&has_ended);
        std::thread::Builder::new().name(thread.into()).spawn(move || accept(&listener, &ended, &mut on_client))?;
        Ok(SocketServer { dir, name: name.to_owned(), identity, has_ended })
    }
}

impl Drop for SocketServer {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::Release);
        // Another one may have taken the name since.
        if self.identity.is_none() || identity_of(&self.dir, &self.name) != self.identity {
            return;
        }
        // Wakes the accepting thread.
        let _ = UnixStream::connect(socket_path(&self.dir, &self.name));
        let _ = rustix::fs::unlinkat(&self.dir, &*self.name, AtFlags::empty());
    }
}

fn identity_of(dir: &OwnedFd, name: &str) -> Option<(u64, u64)> {
    let found = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some((found.st_dev, found.st_ino))
}

/// Creates the socket, which has its mode from the beginning: nothing is done by its name afterwards.
fn listen(dir: &OwnedFd, name: &str) -> io::Result<UnixListener> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(socket_path(dir, name))?)?;
    rustix::net::listen(&socket, 128)?;
    Ok(socket.into())
}

/// Returns a path short enough for a socket's address, whatever the directory is called.
fn socket_path(dir: &OwnedFd, name: &str) -> String {
    format!("/proc/self/fd/{}/{name}", dir.as_raw_fd())
}

fn accept(listener: &UnixListener, has_ended: &AtomicBool, on_client: &mut dyn FnMut(UnixStream) -> ControlFlow<()>) {
    for client in listener.incoming() {
        if has_ended.load(Ordering::Acquire) {
            return;
        }
        match client {
            Ok(client) => {
                if may_ask(&client) && on_client(client).is_break() {
                    return;
                }
            }
            Err(_) => std::thread::sleep(SHORTAGE_WAIT),
        }
    }
}

/// Returns whether a client is root or this user. The mode of the socket says it too, but a directory's mode can be changed.
fn may_ask(stream: &UnixStream) -> bool {
    let me = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(stream).is_ok_and(|peer| peer.uid.is_root() || peer.uid == me)
}

/// Sends a message, one line of JSON.
///
/// # Errors
/// As write(2).
pub fn send(out: &mut UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    out.write_all(&line)
}

#[cfg(test)]
mod test {
    use super::*;
    use std::io::Read;
    use std::sync::mpsc::channel;

    #[test]
    fn clients_are_accepted_until_one_ends_it() {
        let temp = tempfile::tempdir().expect("a directory");
        let dir = || std::fs::File::open(temp.path()).expect("there").into();
        std::fs::write(temp.path().join("socket"), "stale").expect("written");
        let (gone, has_gone) = channel::<()>();
        let mut left = 2;
        let server = SocketServer::start(dir(), "socket", "test", move |mut client| {
            let _ = &gone;
            left -= 1;
            send(&mut client, &left).expect("sent");
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .expect("started");
        for expected in ["1\n", "0\n"] {
            let mut text = String::new();
            UnixStream::connect(socket_path(&dir(), "socket")).expect("connected").read_to_string(&mut text).expect("read");
            assert_eq!(text, expected);
        }
        assert!(has_gone.recv().is_err(), "the thread has ended");
        drop(server);
        assert!(!temp.path().join("socket").exists());
    }

    #[test]
    fn the_end_of_the_server_ends_its_thread() {
        let temp = tempfile::tempdir().expect("a directory");
        let dir = std::fs::File::open(temp.path()).expect("there").into();
        let (gone, has_gone) = channel::<()>();
        let server = SocketServer::start(dir, "socket", "test", move |_| {
            let _ = &gone;
            ControlFlow::Continue(())
        });
        drop(server.expect("started"));
        assert!(has_gone.recv().is_err());
    }
}
