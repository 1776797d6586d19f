//! Going into the background, and where the log goes.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;

use anyhow::Context;
use mount::Options;
use rustix::fs::{AtFlags, Mode, OFlags};
use tracing_subscriber::EnvFilter;

use crate::mount_args::MountArgs;

const READY: &str = "hotshelf is ready\n";
const LOG_MAX: u64 = 8 << 20;

/// Starts the same command again in the background and waits until the mount answers.
pub fn in_background(args: &MountArgs, options: &Options) -> anyhow::Result<bool> {
    if let Some(path) = &args.log_file {
        open_log(path)?;
    }
    let given: Vec<_> = std::env::args_os().collect();
    let words = match crate::mount_helper::as_own_command(&given) {
        Some(rewritten) => rewritten?,
        None => given,
    };
    let fresh = options.hybrid.ssd.join(".hotshelf").symlink_metadata().is_err();
    let log = log_file(args, options).map_or_else(|_| Stdio::null(), Stdio::from);
    let Some((status, message)) = start_again(&words[1..], log)? else { return Ok(true) };
    if message.is_empty() {
        anyhow::bail!("the daemon ended ({status}) without a word: its log is {}", log_path(args, options).display());
    }
    if fresh {
        leave_no_trace(options);
    }
    anyhow::bail!("{message}");
}

/// This program with these words, in the background. `None`: it says that it is ready; else how it ended, and what it wrote.
pub fn start_again(words: &[std::ffi::OsString], log: Stdio) -> anyhow::Result<Option<(ExitStatus, String)>> {
    let me = std::env::current_exe().context("finding this program's own file")?;
    let mut command = Command::new(me);
    command.args(words).arg("--ready-pipe").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).process_group(0);
    let mut child = command.spawn().context("starting the daemon")?;
    let mut message = String::new();
    let mut pipe = child.stdout.take().context("the daemon's pipe")?;
    let mut byte = [0u8; 1];
    // One byte at a time: what comes after the first line is not ours.
    while message.len() < 4096 && pipe.read(&mut byte)? == 1 {
        message.push(char::from(byte[0]));
        if byte[0] == b'\n' {
            break;
        }
    }
    if message == READY {
        return Ok(None);
    }
    let status = child.wait().context("waiting for the daemon")?;
    Ok(Some((status, message.trim().to_owned())))
}

/// A refused mount made nothing but the log and the key: they go too, the directory may not be the one that was meant.
fn leave_no_trace(options: &Options) {
    let Ok(Some(hidden)) = hybridfs::open_hidden(&options.hybrid.ssd) else { return };
    // Removed by the descriptor: the name may lead elsewhere by now. Only an empty directory can be removed.
    const MADE: [&str; 2] = ["log", "key"];
    let only_these = std::fs::read_dir(format!("/proc/self/fd/{}", hidden.as_raw_fd()))
        .is_ok_and(|names| names.flatten().all(|entry| MADE.iter().any(|made| entry.file_name() == *made)));
    if only_these {
        for name in MADE {
            let _ = rustix::fs::unlinkat(&hidden, name, AtFlags::empty());
        }
        let _ = std::fs::remove_dir(options.hybrid.ssd.join(".hotshelf"));
    }
}

/// Called by the daemon when the mount answers.
pub fn announce_ready() {
    let mut out = std::io::stdout();
    let _ = out.write_all(READY.as_bytes()).and_then(|()| out.flush());
    // Nobody reads the pipe any more; what is written there later must not end us.
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null);
    }
}

fn log_path(args: &MountArgs, options: &Options) -> PathBuf {
    args.log_file.clone().unwrap_or_else(|| options.hybrid.ssd.join(".hotshelf/log"))
}

fn log_file(args: &MountArgs, options: &Options) -> std::io::Result<File> {
    let Some(path) = &args.log_file else { return own_log(&options.hybrid.ssd) };
    if path.metadata().is_ok_and(|meta| meta.len() > LOG_MAX) {
        let mut old = path.clone().into_os_string();
        old.push(".old");
        let _ = std::fs::rename(path, old);
    }
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// The log in the hidden directory. The owner of the SSD directory may be another user, and hostile: nothing there is reached by path.
fn own_log(ssd: &Path) -> std::io::Result<File> {
    // The first mount of a directory: the log is there before the daemon makes the rest.
    let hidden = hybridfs::make_hidden(ssd).map_err(|error| std::io::Error::other(format!("{error:?}")))?;
    let too_long = |stat: rustix::fs::Stat| u64::try_from(stat.st_size).is_ok_and(|len| len > LOG_MAX);
    if rustix::fs::statat(&hidden, "log", AtFlags::SYMLINK_NOFOLLOW).is_ok_and(too_long) {
        let _ = rustix::fs::renameat(&hidden, "log", &hidden, "log.old");
    }
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let log = rustix::fs::openat(&hidden, "log", flags, Mode::RUSR | Mode::WUSR)?;
    hybridfs::persist::must_be_ours(hidden.as_fd(), &log, "log").map_err(std::io::Error::other)?;
    Ok(log.into())
}

/// A log that cannot be written (its disk is full or broken) must not end the daemon: the line is lost. An event is one write and
/// becomes one line, whatever is in the names of users' files.
struct LossyLogWriter<W>(W);

/// Escapes what would begin a line or reach the terminal; the last line feed is ours.
fn one_line(event: &[u8]) -> Cow<'_, [u8]> {
    let (text, end) = event.strip_suffix(b"\n").map_or((event, &b""[..]), |text| (text, b"\n"));
    let control = |bytes: &[u8]| bytes.iter().any(u8::is_ascii_control) || bytes.windows(2).any(|two| two[0] == 0xc2 && two[1] < 0xa0);
    if !control(text) {
        return Cow::Borrowed(event);
    }
    let mut out = Vec::with_capacity(event.len() + 16);
    for chunk in text.utf8_chunks() {
        for letter in chunk.valid().chars() {
            if letter.is_control() {
                out.extend(letter.escape_default().map(|letter| letter as u8));
            } else {
                out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        out.extend_from_slice(chunk.invalid());
    }
    out.extend_from_slice(end);
    Cow::Owned(out)
}

impl<W: Write> Write for LossyLogWriter<W> {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let _ = self.0.write_all(&one_line(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let _ = self.0.flush();
        Ok(())
    }
}

/// The filter of a log: as given, or `$HOTSHELF_LOG`, or `info`. A word that is no level is refused: as a filter it would mean a
/// module of that name, and nothing would be logged.
pub fn log_filter(given: Option<&str>, command: &str) -> anyhow::Result<EnvFilter> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let level = given
        .map(str::to_owned)
        .or_else(|| shm::environment::var("HOTSHELF_LOG"))
        .unwrap_or_else(|| (if crate::verbosity::is_verbose() { "debug" } else { "info" }).into());
    let is_level = |word: &str| LEVELS.iter().any(|known| word.eq_ignore_ascii_case(known));
    let known = level.split(',').all(|word| is_level(word.rsplit('=').next().unwrap_or(word)));
    let filter = EnvFilter::try_new(&level).ok().filter(|_| known);
    let wanted = "use error, warn, info, debug or trace, or a filter such as info,hybridfs=debug";
    filter.ok_or_else(|| crate::Usage(format!("`{level}` is no log level: {wanted}; see `hotshelf {command} --help`")).into())
}

/// Opens the log file that the user named, before the daemon detaches, so that the user sees an error.
pub fn open_log(path: &std::path::Path) -> anyhow::Result<File> {
    let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    opened.with_context(|| format!("{}: the log cannot be written", path.display()))
}

/// Sends the log where it belongs.
pub fn start_log(args: &MountArgs, options: &Options) -> anyhow::Result<()> {
    let filter = log_filter(args.log_level.as_deref(), "mount")?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_target(false);
    let file = if args.foreground { None } else { log_file(args, options).ok() };
    let file = file.map(|file| Mutex::new(LossyLogWriter(file)));
    let stderr = || LossyLogWriter(std::io::stderr());
    let started = match (args.log_json, file) {
        (true, Some(file)) => builder.json().with_writer(file).try_init(),
        (false, Some(file)) => builder.with_writer(file).try_init(),
        (true, None) => builder.json().with_writer(stderr).try_init(),
        (false, None) => builder.with_writer(stderr).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("starting the log: {error}"))
}

/// The log of a daemon whose standard error goes where it shall.
pub fn log_to_stderr() -> anyhow::Result<()> {
    let filter = log_filter(None, "fs mount")?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_target(false);
    let started = builder.with_writer(|| LossyLogWriter(std::io::stderr())).try_init();
    started.map_err(|error| anyhow::anyhow!("starting the log: {error}"))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn words_that_are_no_level_are_refused() {
        for good in ["error", "INFO", "off", "info,hybridfs=debug", "hybridfs=trace,mount=warn"] {
            assert!(log_filter(Some(good), "mount").is_ok(), "{good}");
        }
        for bad in ["loud", "info,hybridfs", "hybridfs=much", "", "5,6"] {
            let error = log_filter(Some(bad), "mount").expect_err(bad);
            assert!(error.downcast_ref::<crate::Usage>().is_some(), "{error}");
        }
    }

    #[test]
    fn an_event_is_one_line_whatever_is_in_a_name() {
        assert_eq!(&*one_line(b"plain \xc3\xbc\n"), b"plain \xc3\xbc\n");
        assert_eq!(&*one_line(b"a\nb\x1b[2J\r\x7f\n"), b"a\\nb\\u{1b}[2J\\r\\u{7f}\n");
        assert_eq!(&*one_line("\u{9b}x".as_bytes()), b"\\u{9b}x");
        assert_eq!(&*one_line(b"\xff\n\n"), b"\xff\\n\n");
        assert_eq!(&*one_line(b"\n"), b"\n");
    }
}
