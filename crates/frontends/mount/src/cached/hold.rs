//! A cache that its mounts leave for a moment, so that it can be given another size or another SSD: `hotshelf cache resize` and `drain`.
//!
//! ```text
//!   command --"hold"--> daemon: readers pause, files are handed over, the cache is left
//!           <--"held"--
//!     the command has the cache for itself
//!           --"go on", and with which settings--> attaches to the cache, opens the files, serves
//!           <--"restarted"--
//! ```
//!
//! A command that ends without a word has changed nothing, or all that it was about to change: the daemon goes on with the settings it had.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cachedfs::{Config, Instance};
use serde::{Deserialize, Serialize};
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::restart::{LINE_MAX, REPLY_MAX, RestartReply, connect_to};
use crate::control::LineReader;
use crate::socket_server::send;

/// What the command says when the cache may be used again.
#[derive(Serialize, Deserialize)]
struct GoOn {
    /// The settings of the cache, as a configuration file has them. None: those that the mount had.
    settings: Option<String>,
}

/// Tells the command that the cache is left, and waits until it may be used again. Returns the settings of the cache, if they are others
/// now; they are of the same cache.
pub fn wait_to_go_on(client: &mut UnixStream, before: &Config) -> Option<Config> {
    let told = send(client, &RestartReply::Held).and_then(|()| {
        client.set_read_timeout(None)?;
        LineReader::new(client.try_clone()?, LINE_MAX).next(None, None)
    });
    let settings = match told {
        Ok(Some(line)) => serde_json::from_slice::<GoOn>(&line).ok()?.settings?,
        Ok(None) => return None,
        Err(error) => {
            tracing::warn!(%error, "the command that had the cache for itself is gone");
            return None;
        }
    };
    let now = Config::parse(&settings).inspect_err(|error| tracing::error!(%error, "settings of the cache that cannot be used")).ok()?;
    if Instance::segment_path(&now) != Instance::segment_path(before) || now.private {
        tracing::error!(name = now.name, "settings of another cache");
        return None;
    }
    Some(now)
}

/// Remembers signals that ask this process to end while nobody serves the mount, which could not be unmounted then.
pub struct EndingSignals {
    has_come: Arc<AtomicBool>,
    registered: Vec<SigId>,
}

impl EndingSignals {
    /// Begins to remember these signals.
    pub fn remember() -> EndingSignals {
        let has_come = Arc::new(AtomicBool::new(false));
        let register = |signal| signal_hook::flag::register(signal, Arc::clone(&has_come)).ok();
        let registered = [SIGTERM, SIGINT, SIGHUP].into_iter().filter_map(register).collect();
        EndingSignals { has_come, registered }
    }

    /// Returns whether one has come.
    pub fn has_come(&self) -> bool {
        self.has_come.load(Ordering::Acquire)
    }
}

impl Drop for EndingSignals {
    fn drop(&mut self) {
        self.registered.drain(..).for_each(|id| _ = signal_hook::low_level::unregister(id));
    }
}

/// A mount whose daemon has left the cache and waits. Dropped, it goes on with the settings it had.
pub struct HeldMount {
    daemon: UnixStream,
    replies: LineReader,
}

/// Asks the daemon of a mount of this user, which has this device number and uses this cache, to leave the cache. Waits until it has.
///
/// # Errors
/// The daemon cannot be reached, or ended; or the sentence with which it refused.
pub fn hold(cache: &Config, device: &str) -> std::io::Result<HeldMount> {
    let deadline = Some(Instant::now() + REPLY_MAX);
    let mut daemon = connect_to(cache, device, deadline)?;
    daemon.write_all(b"hold\n")?;
    let mut replies = LineReader::new(daemon.try_clone()?, LINE_MAX);
    match next_reply(&mut replies, deadline)? {
        RestartReply::Held => Ok(HeldMount { daemon, replies }),
        RestartReply::Failed { message } => Err(std::io::Error::other(message)),
        RestartReply::Restarted { .. } => Err(std::io::Error::other("its daemon was restarted instead")),
    }
}

impl HeldMount {
    /// Lets the daemon use the cache again, with these settings. Returns how long no request was answered.
    ///
    /// # Errors
    /// The daemon ended, or has lost the mount.
    pub fn go_on(mut self, cache: &Config) -> std::io::Result<Duration> {
        let settings = Some(cache.to_text().map_err(std::io::Error::other)?);
        send(&mut self.daemon, &GoOn { settings })?;
        match next_reply(&mut self.replies, Some(Instant::now() + REPLY_MAX))? {
            RestartReply::Restarted { pause_ms, .. } => Ok(Duration::from_millis(pause_ms)),
            RestartReply::Failed { message } => Err(std::io::Error::other(message)),
            RestartReply::Held => Err(std::io::Error::other("its daemon waits still")),
        }
    }
}

fn next_reply(replies: &mut LineReader, deadline: Option<Instant>) -> std::io::Result<RestartReply> {
    match replies.next(deadline, None)? {
        Some(line) => Ok(serde_json::from_slice(&line)?),
        None => Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the daemon ended")),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    /// What a daemon goes on with when a command says this, or ends.
    fn goes_on_with(said: Option<&[u8]>) -> Option<Config> {
        let (mut daemon, mut command) = UnixStream::pair().expect("a pair");
        let waits = std::thread::spawn(move || wait_to_go_on(&mut daemon, &Config::default()));
        let mut replies = LineReader::new(command.try_clone().expect("a copy"), LINE_MAX);
        assert_eq!(next_reply(&mut replies, None).expect("a reply"), RestartReply::Held);
        if let Some(said) = said {
            command.write_all(said).expect("said");
        }
        drop((command, replies));
        waits.join().expect("no panic")
    }

    #[test]
    fn a_daemon_goes_on_with_the_settings_it_is_told_or_those_it_had() {
        let said = |config: &Config| {
            let text = serde_json::to_string(&GoOn { settings: Some(config.to_text().expect("text")) }).expect("JSON") + "\n";
            goes_on_with(Some(text.as_bytes()))
        };
        let config = Config { ssd: Some("/ssd/cache".into()), drained: true, ..Config::default() };
        assert_eq!(said(&config), Some(config));
        assert_eq!(said(&Config { name: "other".into(), ..Config::default() }), None);
        assert_eq!(said(&Config { private: true, ..Config::default() }), None);
        for said in [
            None,
            Some(&b"{\"settings\":null}\n"[..]),
            Some(b"nonsense\n"),
            Some(b"{\"settings\":\"[cache]\\nname = 3\"}\n"),
            Some(b"{\"set"),
        ] {
            assert_eq!(goes_on_with(said), None, "{said:?}");
        }
    }

    #[test]
    fn a_signal_that_comes_meanwhile_is_remembered() {
        let signals = EndingSignals::remember();
        assert!(!signals.has_come());
        signal_hook::low_level::raise(SIGHUP).expect("raised");
        assert!(signals.has_come());
    }
}
