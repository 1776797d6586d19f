//! A cache that its mounts leave for a moment, so that it can be given another size or another SSD: `hotshelf cache resize` and `drain`.
//!
//! ```text
//!   command --"hold"-----> daemon: readers pause, files are handed over, the cache is left
//!           <--"held"-----
//!     all other mounts have left the cache, and what is dirty is written back: a minute at most, or the daemon goes on by itself
//!           --"change"--->
//!           <--"held"-----
//!     the command has the cache for itself
//!           --"go on", and with which settings--> attaches to the cache, opens the files, serves
//!           <--"restarted"
//! ```
//!
//! A command that ends without a word has changed nothing, or all that it was about to change: the daemon goes on with the settings it had.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use cachedfs::{Config, Instance};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use super::ending_signals::EndingSignals;
use super::restart::{LINE_MAX, REPLY_MAX, RestartReply, connect_to};
use crate::control::LineReader;
use crate::socket_server::send;

/// How long a command may prepare its change, while the mount could go on.
const PREPARE_MAX: Duration = Duration::from_secs(60);
/// How long a daemon that is told to end waits for the command.
const END_MAX: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(100);

/// What the command says.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum HoldRequest {
    /// It changes the cache from now on, if the daemon still waits.
    Change,
    /// The cache may be used again.
    GoOn {
        /// The settings of the cache, as a configuration file has them. None: those that the mount had.
        settings: Option<String>,
    },
}

/// How the time ended in which the cache was the command's.
#[derive(Debug, PartialEq)]
pub enum HoldEnd {
    /// The mount goes on with these settings.
    Changed(Box<Config>),
    /// The mount goes on with the settings that it had, and the command waits for that.
    Unchanged,
    /// The same, and no command waits any more.
    Alone,
    /// The daemon was told to end.
    End,
}

/// What came from the command.
enum HoldMessage {
    Request(HoldRequest),
    /// Nothing, within the time.
    Late,
    /// It is gone, or says what nobody understands.
    Gone,
    End,
}

/// Waits for what the command says.
fn listen(client: &mut UnixStream, deadline: Option<Instant>, signals: &EndingSignals) -> HoldMessage {
    let (mut line, mut told_to_end) = (Vec::new(), None);
    loop {
        let timeout = Timespec { tv_sec: 0, tv_nsec: POLL.as_nanos() as i64 };
        let is_ready = poll(&mut [PollFd::new(client, PollFlags::IN)], Some(&timeout)).is_ok_and(|ready| ready > 0);
        if is_ready {
            let mut bytes = [0; 4096];
            match client.read(&mut bytes) {
                Ok(0) => return HoldMessage::Gone,
                Ok(len) => line.extend_from_slice(&bytes[..len]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return HoldMessage::Gone,
            }
            if line.ends_with(b"\n") {
                return serde_json::from_slice(&line).map_or(HoldMessage::Gone, HoldMessage::Request);
            }
            if line.len() > LINE_MAX {
                return HoldMessage::Gone;
            }
        }
        let since = *told_to_end.get_or_insert_with(Instant::now);
        if !signals.has_come() {
            told_to_end = None;
        } else if since.elapsed() > END_MAX {
            return HoldMessage::End;
        }
        if deadline.is_some_and(|deadline| Instant::now() > deadline) {
            return HoldMessage::Late;
        }
    }
}

/// Tells the command that the cache is left, and waits until it may be used again.
pub fn wait_to_go_on(client: &mut UnixStream, before: &Config, signals: &EndingSignals) -> HoldEnd {
    let mut deadline = Some(Instant::now() + PREPARE_MAX);
    loop {
        if let Err(error) = send(client, &RestartReply::Held) {
            tracing::warn!(%error, "the command that wanted the cache for itself is gone");
            return HoldEnd::Alone;
        }
        match listen(client, deadline, signals) {
            HoldMessage::Request(HoldRequest::Change) => deadline = None,
            HoldMessage::Request(HoldRequest::GoOn { settings: None }) => return HoldEnd::Unchanged,
            HoldMessage::Request(HoldRequest::GoOn { settings: Some(settings) }) => {
                return same_cache(&settings, before).map_or(HoldEnd::Unchanged, |now| HoldEnd::Changed(Box::new(now)));
            }
            HoldMessage::Late => {
                tracing::warn!("the command that wants the cache for itself takes too long: the mount goes on");
                return HoldEnd::Alone;
            }
            HoldMessage::Gone => return HoldEnd::Alone,
            HoldMessage::End => return HoldEnd::End,
        }
    }
}

/// Returns the settings of the same cache as before.
fn same_cache(settings: &str, before: &Config) -> Option<Config> {
    let now = Config::parse(settings).inspect_err(|error| tracing::error!(%error, "settings of the cache that cannot be used")).ok()?;
    if Instance::segment_path(&now) != Instance::segment_path(before) || now.private {
        tracing::error!(name = now.name, "settings of another cache");
        return None;
    }
    Some(now)
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
    /// Tells the daemon that the cache is changed from now on, and checks that it still waits.
    ///
    /// # Errors
    /// The daemon has gone on, or ended.
    pub fn begin_change(&mut self) -> std::io::Result<()> {
        send(&mut self.daemon, &HoldRequest::Change)?;
        match next_reply(&mut self.replies, Some(Instant::now() + REPLY_MAX))? {
            RestartReply::Held => Ok(()),
            _ => Err(std::io::Error::other("its daemon did not wait")),
        }
    }

    /// Lets the daemon use the cache again, with these settings or those that it had. Returns how long no request was answered.
    ///
    /// # Errors
    /// The daemon ended, or has lost the mount.
    pub fn go_on(mut self, cache: Option<&Config>) -> std::io::Result<Duration> {
        let settings = cache.map(Config::to_text).transpose().map_err(std::io::Error::other)?;
        send(&mut self.daemon, &HoldRequest::GoOn { settings })?;
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

    /// How a hold ends when a command says this, or ends.
    fn end_after(said: &[u8]) -> HoldEnd {
        let (mut daemon, mut command) = UnixStream::pair().expect("a pair");
        let waits = std::thread::spawn(move || wait_to_go_on(&mut daemon, &Config::default(), &EndingSignals::remember()));
        let mut replies = LineReader::new(command.try_clone().expect("a copy"), LINE_MAX);
        assert_eq!(next_reply(&mut replies, None).expect("a reply"), RestartReply::Held);
        for line in said.split_inclusive(|byte| *byte == b'\n') {
            command.write_all(line).expect("said");
            if line.starts_with(b"\"change") {
                assert_eq!(next_reply(&mut replies, None).expect("a reply"), RestartReply::Held);
            }
        }
        drop((command, replies));
        waits.join().expect("no panic")
    }

    #[test]
    fn a_daemon_goes_on_with_the_settings_it_is_told_or_those_it_had() {
        let said = |config: &Config| {
            let request = HoldRequest::GoOn { settings: Some(config.to_text().expect("text")) };
            end_after(format!("\"change\"\n{}\n", serde_json::to_string(&request).expect("JSON")).as_bytes())
        };
        let config = Config { ssd: Some("/ssd/cache".into()), drained: true, ..Config::default() };
        assert_eq!(said(&config), HoldEnd::Changed(Box::new(config)));
        assert_eq!(said(&Config { name: "other".into(), ..Config::default() }), HoldEnd::Unchanged);
        assert_eq!(said(&Config { private: true, ..Config::default() }), HoldEnd::Unchanged);
        assert_eq!(end_after(b"{\"go_on\":{\"settings\":null}}\n"), HoldEnd::Unchanged);
        assert_eq!(end_after(b"{\"go_on\":{\"settings\":\"[cache]\\nname = 3\"}}\n"), HoldEnd::Unchanged);
        for said in [&b""[..], b"\"change\"\n", b"nonsense\n", b"{\"go_"] {
            assert_eq!(end_after(said), HoldEnd::Alone, "{said:?}");
        }
    }
}
