//! The state of a mount as bytes, which one program writes and the next one reads.
//!
//! ```text
//!   0   8  "hs-mount"
//!   8   4  version
//!  12   4  zero
//!  16   8  length of the body
//!  24   8  checksum of the body (XXH3)
//!  32      the body: the fields of `HandedMount` in their order
//! ```
//!
//! Numbers are little-endian; a text or a list begins with its length; a descriptor is its number in the process. A program reads its own
//! version only: the one that is replaced asks before (`program.rs`).

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use directoryfs::{HandedAttributes, HandedDirectory, HandedNames, HandedNode, Version};
use fusedev::Caller;
use shm::FileHandle;
use xxhash_rust::xxh3::xxh3_64;

use super::{HandedFile, HandedListing, HandedMount};
use crate::cached::options::CachedOptions;
use crate::{MountFlags, SessionOptions, UringMode};

/// The version of the format. Any change of it needs another number.
pub const VERSION: u32 = 2;
const MAGIC: [u8; 8] = *b"hs-mount";
const HEADER: usize = 32;

/// The reason why a state is not taken over.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// Another version, or something else.
    #[error("it is not a state of version {VERSION}")]
    Version,
    /// Bytes are missing or changed.
    #[error("it is damaged")]
    Damaged,
    /// A field makes no sense.
    #[error("{0} makes no sense")]
    Field(&'static str),
    /// A descriptor was not passed on.
    #[error(transparent)]
    Descriptor(#[from] io::Error),
}

/// Returns the state as bytes.
///
/// # Errors
/// The settings of the cache cannot be written as text.
pub fn encode(mount: &HandedMount) -> Result<Vec<u8>, cachedfs::Error> {
    let mut body = Encoder(Vec::new());
    body.u64(mount.paused_at_ns);
    body.bytes(mount.version.as_bytes());
    body.path(mount.mountpoint.as_os_str());
    body.options(&mount.options)?;
    body.fd(&mount.device);
    body.optional(mount.presence.as_ref(), Encoder::fd);
    body.optional(mount.client.as_ref(), Encoder::fd);
    body.fd(&mount.directory.root);
    body.list(&mount.directory.nodes, Encoder::node);
    body.list(&mount.directory.capabilities_removed, |out, (number, process)| {
        out.u64(*number);
        out.u32(*process);
    });
    body.optional(mount.names.as_deref(), Encoder::bytes);
    body.list(&mount.files, Encoder::file);
    body.list(&mount.listings, |out, listing| {
        out.u64(listing.handle);
        out.u64(listing.number);
        out.names(&listing.names);
    });
    let body = body.0;
    let mut all = Encoder(Vec::with_capacity(HEADER + body.len()));
    all.0.extend_from_slice(&MAGIC);
    all.u32(VERSION);
    all.u32(0);
    all.u64(body.len() as u64);
    all.u64(xxh3_64(&body));
    all.0.extend_from_slice(&body);
    Ok(all.0)
}

/// Reads a state; `take` takes each descriptor that it names.
///
/// # Errors
/// It is not a whole state of this version, or a descriptor is missing.
pub fn decode(bytes: &[u8], take: &mut dyn FnMut(RawFd) -> io::Result<OwnedFd>) -> Result<HandedMount, FormatError> {
    let (header, body) = bytes.split_at_checked(HEADER).ok_or(FormatError::Damaged)?;
    let mut header = Decoder { rest: header, take: &mut |_| Err(io::ErrorKind::InvalidData.into()) };
    if header.array::<8>()? != MAGIC || header.u32()? != VERSION {
        return Err(FormatError::Version);
    }
    let is_whole = header.u32()? == 0 && header.u64()? == body.len() as u64 && header.u64()? == xxh3_64(body);
    if !is_whole {
        return Err(FormatError::Damaged);
    }
    let mut from = Decoder { rest: body, take };
    let mount = HandedMount {
        paused_at_ns: from.u64()?,
        version: from.text("the version")?,
        mountpoint: from.path()?,
        options: from.options()?,
        device: from.fd()?,
        presence: from.optional(Decoder::fd)?,
        client: from.optional(Decoder::fd)?,
        directory: HandedDirectory {
            root: from.fd()?,
            nodes: from.list(Decoder::node)?,
            capabilities_removed: from.list(|from| Ok((from.u64()?, from.u32()?)))?,
        },
        names: from.optional(Decoder::bytes)?,
        files: from.list(Decoder::file)?,
        listings: from.list(|from| Ok(HandedListing { handle: from.u64()?, number: from.u64()?, names: from.names()? }))?,
    };
    if from.rest.is_empty() { Ok(mount) } else { Err(FormatError::Damaged) }
}

struct Encoder(Vec<u8>);

impl Encoder {
    fn u32(&mut self, number: u32) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn flag(&mut self, is_set: bool) {
        self.0.push(u8::from(is_set));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.u64(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn path(&mut self, path: &OsStr) {
        self.bytes(path.as_bytes());
    }

    fn fd(&mut self, fd: &OwnedFd) {
        self.u32(fd.as_raw_fd().cast_unsigned());
    }

    fn optional<T>(&mut self, what: Option<T>, put: impl FnOnce(&mut Encoder, T)) {
        self.flag(what.is_some());
        if let Some(what) = what {
            put(self, what);
        }
    }

    fn list<T>(&mut self, all: &[T], mut put: impl FnMut(&mut Encoder, &T)) {
        self.u64(all.len() as u64);
        all.iter().for_each(|one| put(self, one));
    }

    fn time(&mut self, (seconds, nanoseconds): (i64, u32)) {
        self.u64(seconds.cast_unsigned());
        self.u32(nanoseconds);
    }

    fn version(&mut self, (size, mtime, ctime): Version) {
        self.u64(size);
        self.time(mtime);
        self.time(ctime);
    }

    fn options(&mut self, options: &CachedOptions) -> Result<(), cachedfs::Error> {
        self.path(options.directory.as_os_str());
        self.bytes(options.cache.to_text()?.as_bytes());
        self.bytes(cachedfs::mode_name(options.mode).as_bytes());
        self.optional(options.ttl, |out, ttl| out.u64(ttl.as_secs()));
        self.bytes(options.names.name().as_bytes());
        self.u64(options.deadline.as_secs());
        self.bytes(options.offline.name().as_bytes());
        let SessionOptions { mountpoint, source, allow_other, read_only, threads, uring: _, flags } = &options.session;
        self.path(mountpoint.as_os_str());
        self.bytes(source.as_bytes());
        self.u64(*threads as u64);
        for is_set in [*allow_other, *read_only, flags.suid, flags.dev, flags.noexec, flags.noatime] {
            self.flag(is_set);
        }
        Ok(())
    }

    fn node(&mut self, node: &HandedNode) {
        let (dev, mount, ino, birth) = node.identity;
        for number in [node.number, node.lookups, dev, mount, ino] {
            self.u64(number);
        }
        self.time(birth);
        self.u32(node.kind);
        for is_set in [node.is_current, node.has_link_count, node.is_removed_by_call] {
            self.flag(is_set);
        }
        self.u64(node.parent);
        self.path(&node.name);
        self.optional(node.cached, Encoder::version);
        self.optional(node.compared, Encoder::version);
        self.optional(node.remembered, |out, HandedAttributes { access: (mode, user, group), version }| {
            [mode, user, group].into_iter().for_each(|number| out.u32(number));
            out.version(version);
        });
        self.optional(node.file.as_ref(), Encoder::fd);
        self.optional(node.handle.as_ref(), |out, handle| {
            out.u32(handle.kind().cast_unsigned());
            out.bytes(handle.bytes());
        });
    }

    fn names(&mut self, names: &HandedNames) {
        match names {
            HandedNames::Read(dir) => {
                self.flag(false);
                self.fd(dir);
            }
            HandedNames::Remembered(names) => {
                self.flag(true);
                self.list(names, |out, (name, ino, mode)| {
                    out.path(name);
                    out.u64(*ino);
                    out.u32(*mode);
                });
            }
        }
    }

    fn file(&mut self, file: &HandedFile) {
        self.u64(file.handle);
        self.u64(file.number);
        self.u32(file.flags);
        for is_set in [file.is_written, file.is_synchronous, file.is_cached, file.is_written_through] {
            self.flag(is_set);
        }
        self.optional(file.late_error, |out, error| out.u32(error.raw_os_error().cast_unsigned()));
        for number in [file.opener.uid, file.opener.gid, file.opener.pid] {
            self.u32(number);
        }
        self.fd(&file.file);
    }
}

struct Decoder<'a> {
    rest: &'a [u8],
    take: &'a mut dyn FnMut(RawFd) -> io::Result<OwnedFd>,
}

type Decoded<T> = Result<T, FormatError>;

impl Decoder<'_> {
    fn array<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        let (first, rest) = self.rest.split_first_chunk().ok_or(FormatError::Damaged)?;
        self.rest = rest;
        Ok(*first)
    }

    fn u32(&mut self) -> Decoded<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Decoded<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn flag(&mut self) -> Decoded<bool> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(FormatError::Field("a flag")),
        }
    }

    /// Returns a length, each unit of which takes at least one byte of the rest.
    fn length(&mut self) -> Decoded<usize> {
        let length = usize::try_from(self.u64()?).map_err(|_| FormatError::Damaged)?;
        if length <= self.rest.len() { Ok(length) } else { Err(FormatError::Damaged) }
    }

    fn bytes(&mut self) -> Decoded<Vec<u8>> {
        let length = self.length()?;
        let (bytes, rest) = self.rest.split_at(length);
        self.rest = rest;
        Ok(bytes.to_vec())
    }

    fn text(&mut self, what: &'static str) -> Decoded<String> {
        String::from_utf8(self.bytes()?).map_err(|_| FormatError::Field(what))
    }

    fn path(&mut self) -> Decoded<PathBuf> {
        let path = PathBuf::from(OsString::from_vec(self.bytes()?));
        if path.is_absolute() && !path.as_os_str().as_bytes().contains(&0) { Ok(path) } else { Err(FormatError::Field("a path")) }
    }

    fn fd(&mut self) -> Decoded<OwnedFd> {
        let number = RawFd::try_from(self.u32()?).map_err(|_| FormatError::Field("a descriptor"))?;
        Ok((self.take)(number)?)
    }

    fn optional<T>(&mut self, get: impl FnOnce(&mut Self) -> Decoded<T>) -> Decoded<Option<T>> {
        if self.flag()? { get(self).map(Some) } else { Ok(None) }
    }

    fn list<T>(&mut self, mut get: impl FnMut(&mut Self) -> Decoded<T>) -> Decoded<Vec<T>> {
        let length = self.length()?;
        (0..length).map(|_| get(self)).collect()
    }

    fn time(&mut self) -> Decoded<(i64, u32)> {
        Ok((self.u64()?.cast_signed(), self.u32()?))
    }

    fn version(&mut self) -> Decoded<Version> {
        Ok((self.u64()?, self.time()?, self.time()?))
    }

    fn options(&mut self) -> Decoded<CachedOptions> {
        let directory = self.path()?;
        let cache = cachedfs::Config::parse(&self.text("the settings of the cache")?);
        let mode = cachedfs::mode_of(&self.text("the mode")?).map_err(|_| FormatError::Field("the mode"))?;
        let ttl = self.optional(Decoder::u64)?.map(Duration::from_secs);
        let names = self.text("where names are remembered")?.parse().map_err(|_| FormatError::Field("where names are remembered"))?;
        let deadline = Duration::from_secs(self.u64()?);
        let policy = "what is written while the slow side is away";
        let offline = self.text(policy)?.parse().map_err(|_| FormatError::Field(policy))?;
        let (mountpoint, source) = (self.path()?, self.text("the source")?);
        let threads = usize::try_from(self.u64()?).ok().filter(|threads| (1..=256).contains(threads));
        let [allow_other, read_only, suid, dev, noexec, noatime] =
            [self.flag()?, self.flag()?, self.flag()?, self.flag()?, self.flag()?, self.flag()?];
        let session = SessionOptions {
            mountpoint,
            source,
            allow_other,
            read_only,
            threads: threads.ok_or(FormatError::Field("the number of threads"))?,
            uring: UringMode::Off,
            flags: MountFlags { suid, dev, noexec, noatime },
        };
        let cache = cache.map_err(|_| FormatError::Field("the settings of the cache"))?;
        Ok(CachedOptions { directory, cache, mode, ttl, names, deadline, offline, session })
    }

    fn node(&mut self) -> Decoded<HandedNode> {
        Ok(HandedNode {
            number: self.u64()?,
            lookups: self.u64()?,
            identity: (self.u64()?, self.u64()?, self.u64()?, self.time()?),
            kind: self.u32()?,
            is_current: self.flag()?,
            has_link_count: self.flag()?,
            is_removed_by_call: self.flag()?,
            parent: self.u64()?,
            name: self.name()?,
            cached: self.optional(Decoder::version)?,
            compared: self.optional(Decoder::version)?,
            remembered: self.optional(|from| {
                let access = (from.u32()?, from.u32()?, from.u32()?);
                Ok(HandedAttributes { access, version: from.version()? })
            })?,
            file: self.optional(Decoder::fd)?,
            handle: self.optional(Decoder::file_handle)?,
        })
    }

    fn name(&mut self) -> Decoded<OsString> {
        let name = self.bytes()?;
        if name.iter().any(|byte| matches!(byte, 0 | b'/')) { Err(FormatError::Field("a name")) } else { Ok(OsString::from_vec(name)) }
    }

    fn names(&mut self) -> Decoded<HandedNames> {
        match self.flag()? {
            false => self.fd().map(HandedNames::Read),
            true => self.list(|from| Ok((from.name()?, from.u64()?, from.u32()?))).map(HandedNames::Remembered),
        }
    }

    fn file_handle(&mut self) -> Decoded<FileHandle> {
        let kind = self.u32()?.cast_signed();
        FileHandle::from_parts(kind, &self.bytes()?).ok_or(FormatError::Field("a file handle"))
    }

    fn file(&mut self) -> Decoded<HandedFile> {
        Ok(HandedFile {
            handle: self.u64()?,
            number: self.u64()?,
            flags: self.u32()?,
            is_written: self.flag()?,
            is_synchronous: self.flag()?,
            is_cached: self.flag()?,
            is_written_through: self.flag()?,
            late_error: self.optional(Decoder::errno)?,
            opener: Caller { uid: self.u32()?, gid: self.u32()?, pid: self.u32()? },
            file: self.fd()?,
        })
    }

    fn errno(&mut self) -> Decoded<rustix::io::Errno> {
        match self.u32()? {
            code @ 1..4096 => Ok(rustix::io::Errno::from_raw_os_error(code.cast_signed())),
            _ => Err(FormatError::Field("an error")),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::cached::{NamesMode, OfflinePolicy};
    use rustix::io::Errno;

    fn null() -> OwnedFd {
        std::fs::File::open("/dev/null").expect("opens").into()
    }

    fn a_node(number: u64, file: Option<OwnedFd>) -> HandedNode {
        HandedNode {
            number,
            lookups: 3,
            identity: (1, 2, number, (-5, 6)),
            is_current: true,
            kind: 0o100_000,
            has_link_count: true,
            is_removed_by_call: false,
            parent: 1,
            name: OsString::from_vec(b"na\xffme".to_vec()),
            cached: Some((9, (1, 2), (3, 4))),
            compared: None,
            remembered: Some(HandedAttributes { access: (0o644, 1, 2), version: (5, (6, 7), (8, 9)) }),
            file,
            handle: FileHandle::from_parts(129, b"handle"),
        }
    }

    fn a_mount() -> HandedMount {
        let session = SessionOptions {
            mountpoint: "/mnt".into(),
            source: "a:b".into(),
            allow_other: true,
            read_only: false,
            threads: 8,
            uring: UringMode::Auto,
            flags: MountFlags { suid: true, ..MountFlags::default() },
        };
        let (cache, ttl) = (cachedfs::Config::default(), Some(Duration::from_secs(1)));
        let opener = Caller { uid: 1, gid: 2, pid: 3 };
        HandedMount {
            paused_at_ns: 77,
            version: "1.2".into(),
            mountpoint: "/real/mnt".into(),
            options: CachedOptions {
                directory: "/slow".into(),
                cache,
                mode: cachedfs::Mode::WriteBack,
                ttl,
                names: NamesMode::Memory,
                deadline: Duration::from_secs(7),
                offline: OfflinePolicy::WriteBack,
                session,
            },
            device: null(),
            presence: None,
            client: Some(null()),
            directory: HandedDirectory {
                root: null(),
                nodes: vec![a_node(5, Some(null())), a_node(6, None)],
                capabilities_removed: vec![(5, 100)],
            },
            files: vec![HandedFile {
                handle: 9,
                number: 5,
                flags: 2,
                is_written: true,
                is_synchronous: false,
                is_cached: true,
                is_written_through: false,
                late_error: Some(Errno::NOSPC),
                opener,
                file: null(),
            }],
            names: Some(vec![1, 2, 3]),
            listings: vec![
                HandedListing { handle: 10, number: 1, names: HandedNames::Read(null()) },
                HandedListing { handle: 11, number: 1, names: HandedNames::Remembered(vec![("a".into(), 7, 0o40_000)]) },
            ],
        }
    }

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let mount = a_mount();
        let bytes = encode(&mount).expect("written");
        let mut taken = Vec::new();
        let mut take = |number| {
            taken.push(number);
            Ok(null())
        };
        let read = decode(&bytes, &mut take).expect("read");
        assert_eq!(taken.len(), 6);
        assert_eq!(taken[0], mount.device.as_raw_fd());
        // The numbers differ, all else is the same.
        let shown = |mount: &HandedMount| {
            let text = format!("{mount:?}").replace("uring: Auto", "uring: Off");
            let parts: Vec<String> =
                text.split("fd: ").map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit()).to_owned()).collect();
            parts.join("fd: ")
        };
        assert_eq!(shown(&read), shown(&mount));
    }

    #[test]
    fn nothing_that_is_damaged_is_taken() {
        let bytes = encode(&a_mount()).expect("written");
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length], &mut |_| Ok(null())).is_err(), "{length} bytes");
        }
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x41;
            assert!(decode(&bytes, &mut |_| Ok(null())).is_err(), "byte {at}");
        }
        let refused = |_| Err(io::ErrorKind::InvalidInput.into());
        assert!(matches!(decode(&bytes, &mut { refused }), Err(FormatError::Descriptor(_))));
        let mut later = bytes.clone();
        later[8] += 1;
        assert!(matches!(decode(&later, &mut |_| Ok(null())), Err(FormatError::Version)));
    }

    #[test]
    fn a_body_with_a_right_checksum_and_nonsense_is_refused() {
        let good = encode(&a_mount()).expect("written");
        let mut found = 0;
        for at in HEADER..good.len() {
            let mut bytes = good.clone();
            bytes[at] = 0xff;
            let sum = xxh3_64(&bytes[HEADER..]);
            bytes[24..HEADER].copy_from_slice(&sum.to_le_bytes());
            // Many are other values that make sense; none may panic or take memory without end.
            found += usize::from(decode(&bytes, &mut |_| Ok(null())).is_err());
        }
        assert!(found > 50, "{found}");
    }
}
