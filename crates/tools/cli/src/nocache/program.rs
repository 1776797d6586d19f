//! The program: where it is, and whether a preloaded library will see what it does.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};

/// A name with a slash is used unchanged; others are searched in PATH.
pub fn find(name: &OsStr) -> anyhow::Result<PathBuf> {
    if name.as_encoded_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        let status = fs::metadata(&path).map_err(|error| anyhow!("{} cannot be run: {error}", path.display()))?;
        return if runs(&status) { Ok(path) } else { Err(anyhow!("{} cannot be run: it is no executable file", path.display())) };
    }
    let path = shm::environment::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let places = std::env::split_paths(&path).map(|dir| dir.join(name));
    let found = places.into_iter().find(|place| fs::metadata(place).is_ok_and(|status| runs(&status)));
    found.ok_or_else(|| anyhow!("there is no program `{}` in PATH", name.display()))
}

fn runs(status: &fs::Metadata) -> bool {
    status.is_file() && status.permissions().mode() & 0o111 != 0
}

/// Why nothing, or not all, of the program would be seen. Scripts are their interpreter.
pub fn unseen(path: &Path, depth: u32) -> anyhow::Result<Option<String>> {
    let file = match File::open(path) {
        Ok(file) => file,
        // Who may run but not read it: the kernel then gives it no preloaded library either.
        Err(error) => return Ok(Some(format!("{} cannot be looked at: {error}", path.display()))),
    };
    if let Some(why) = privileged(path)? {
        return Ok(Some(format!("{} {why}, so the dynamic linker does not preload the library", path.display())));
    }
    let start = read_at(&file, 0, 4096);
    if let Some(line) = start.strip_prefix(b"#!") {
        return match interpreter(line) {
            Some((found, _)) if depth > 4 => Ok(Some(format!("{} has too many interpreters ({})", path.display(), found.display()))),
            Some((found, word)) => behind(path, &found, word, depth),
            None => Ok(None),
        };
    }
    Ok(elf(&|at, size| read_at(&file, at, size)).map(|why| format!("{} {why}", path.display())))
}

/// The interpreter of a script; with `env` the program that it will find.
fn behind(script: &Path, found: &Path, word: Option<OsString>, depth: u32) -> anyhow::Result<Option<String>> {
    let by_name = found.file_name() == Some(OsStr::new("env"));
    let next = match word.filter(|_| by_name) {
        Some(word) => find(&word)?,
        None => found.to_owned(),
    };
    Ok(unseen(&next, depth + 1)?.map(|why| format!("{} is a script, and its interpreter {why}", script.display())))
}

/// A script's first line: the interpreter, and the first word after it that is no option.
fn interpreter(line: &[u8]) -> Option<(PathBuf, Option<OsString>)> {
    let line = line.split(|byte| *byte == b'\n').next()?;
    let mut words =
        line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty()).map(|word| OsString::from_vec(word.to_vec()));
    let first = words.next()?;
    let plain = |word: &OsString| !word.as_encoded_bytes().starts_with(b"-") && !word.as_encoded_bytes().contains(&b'=');
    Some((first.into(), words.find(plain)))
}

fn privileged(path: &Path) -> anyhow::Result<Option<&'static str>> {
    let status = fs::metadata(path).with_context(|| path.display().to_string())?;
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if status.mode() & 0o4000 != 0 && status.uid() != user {
        return Ok(Some("is set-uid"));
    }
    if status.mode() & 0o2010 == 0o2010 && status.gid() != group {
        return Ok(Some("is set-gid"));
    }
    let mut room = [0_u8; 64];
    let gains = user != 0 && rustix::fs::getxattr(path, c"security.capability", &mut room).is_ok();
    Ok(gains.then_some("has file capabilities"))
}

/// A file's bytes from a place on; fewer at its end.
type ReadAt<'a> = &'a dyn Fn(u64, usize) -> Vec<u8>;

/// Most of a header table, of notes or of names that is read: what has more is no program that anybody runs.
const PART_MAX: u64 = 1 << 20;

/// What an ELF file's headers say against it. Anything else is for the kernel to refuse.
fn elf(read: ReadAt<'_>) -> Option<&'static str> {
    const LOADER: u32 = 3;
    const NOTES: u32 = 4;
    let head = read(0, 64);
    if !head.starts_with(b"\x7fELF") {
        return None;
    }
    let (class, machine) = (*head.get(4)?, u16::from_le_bytes(*head.get(18..)?.first_chunk()?));
    let ours = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    if class != 2 || machine != ours {
        return Some("is for another CPU architecture than the preloaded library");
    }
    let part = |at: u64, size: u64| read(at, usize::try_from(size.min(PART_MAX)).unwrap_or(0));
    let (size, count) = (u64::from(half(&head, 54)?), u64::from(half(&head, 56)?));
    let table = part(word(&head, 32)?, size * count);
    let headers = table.chunks_exact(usize::try_from(size.max(56)).ok()?);
    let segments: Vec<(u32, u64, u64, u64)> = headers
        .filter_map(|header| {
            let kind = u32::from_le_bytes(*header.first_chunk()?);
            Some((kind, word(header, 8)?, word(header, 32)?, word(header, 48)?))
        })
        .collect();
    let Some((_, at, size, _)) = segments.iter().find(|(kind, ..)| *kind == LOADER) else {
        return Some("is statically linked: it loads no library, so nothing it does can be seen");
    };
    if part(*at, (*size).min(4096)).windows(4).any(|some| some == b"musl") {
        return Some("uses musl, which cannot load our library");
    }
    let noted = segments.iter().filter(|(kind, ..)| *kind == NOTES).any(|(_, at, size, align)| has_go_note(&part(*at, *size), *align));
    // A build without an ID has no note, and one that was stripped has these sections still.
    (noted || has_go_section(&head, &part).unwrap_or(false))
        .then_some("is a Go program: it makes its system calls itself, so they cannot be seen")
}

/// Notes come one after the other, those of the C compiler's linker before Go's.
fn has_go_note(mut notes: &[u8], align: u64) -> bool {
    let align = if align == 8 { 8 } else { 4 };
    loop {
        let Some(lengths) = notes.first_chunk::<12>() else { return false };
        let number = |at: usize| u32::from_le_bytes([lengths[at], lengths[at + 1], lengths[at + 2], lengths[at + 3]]) as usize;
        let (name, content) = (number(0), number(4));
        if notes.get(12..12 + name.min(notes.len())).is_some_and(|name| name.starts_with(b"Go\0")) {
            return true;
        }
        let next = (12 + name).next_multiple_of(align).saturating_add(content).checked_next_multiple_of(align);
        let Some(rest) = next.and_then(|next| notes.get(next..)) else { return false };
        notes = rest;
    }
}

fn has_go_section(head: &[u8], part: &dyn Fn(u64, u64) -> Vec<u8>) -> Option<bool> {
    let (at, size) = (word(head, 40)?, u64::from(half(head, 58)?));
    let (count, names) = (u64::from(half(head, 60)?), usize::from(half(head, 62)?));
    if size < 64 || count == 0 {
        return Some(false);
    }
    let table = part(at, size * count);
    let header = table.chunks_exact(usize::try_from(size).ok()?).nth(names)?;
    let names = part(word(header, 24)?, word(header, 32)?);
    let is_go = |name: &[u8]| [&b".go.buildinfo"[..], b".gopclntab", b".note.go.buildid"].contains(&name);
    Some(names.split(|byte| *byte == 0).any(is_go))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Of an open file; what cannot be read is not there.
fn read_at(file: &File, at: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    let mut got = 0;
    while got < size {
        match file.read_at(&mut bytes[got..], at.saturating_add(got as u64)) {
            Ok(0) | Err(_) => break,
            Ok(more) => got += more,
        }
    }
    bytes.truncate(got);
    bytes
}

#[cfg(test)]
mod test {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::{find, interpreter, unseen};

    fn elf(bytes: &[u8]) -> Option<&'static str> {
        super::elf(&|at, size| {
            let from = usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
            bytes[from..from.saturating_add(size).min(bytes.len())].to_vec()
        })
    }

    /// An ELF file with parts of these kinds.
    fn made(parts: &[(u32, &[u8])]) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(64, 0);
        bytes[18] = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = u8::try_from(parts.len()).expect("few");
        let mut from = 64 + 56 * parts.len();
        for (kind, data) in parts {
            let mut header = vec![0; 56];
            header[..4].copy_from_slice(&kind.to_le_bytes());
            header[8..16].copy_from_slice(&(from as u64).to_le_bytes());
            header[32..40].copy_from_slice(&(data.len() as u64).to_le_bytes());
            from += data.len();
            header[48] = 4;
            bytes.extend(header);
        }
        parts.iter().for_each(|(_, data)| bytes.extend(*data));
        bytes
    }

    const GNU: (u32, &[u8]) = (3, b"/lib64/ld-linux-x86-64.so.2\0");

    #[test]
    fn headers_tell_what_cannot_be_seen() {
        assert_eq!(elf(&made(&[GNU])), None);
        assert!(elf(&made(&[])).expect("static").contains("statically"));
        assert!(elf(&made(&[(3, b"/lib/ld-musl-x86_64.so.1\0")])).expect("musl").contains("musl"));
        assert!(elf(&made(&[GNU, (4, b"\x04\0\0\0\x53\0\0\0\x04\0\0\0Go\0\0id")])).expect("Go").contains("Go"));
        // As the C compiler's linker writes it for a program with cgo: Go's note is neither alone nor the first.
        let property = b"\x04\0\0\0\x10\0\0\0\x05\0\0\0GNU\0\x02\0\0\xc0\x04\0\0\0\x03\0\0\0\0\0\0\0";
        let (build, go) = (b"\x04\0\0\0\x02\0\0\0\x03\0\0\0GNU\0id\0\0", b"\x04\0\0\0\x53\0\0\0\x04\0\0\0Go\0\0id");
        assert!(elf(&made(&[GNU, (4, property), (4, &[&build[..], go].concat())])).expect("Go").contains("Go"));
        assert_eq!(elf(&made(&[GNU, (4, property), (4, build)])), None);
        // Without an ID there is no note; the linker's table of sections names Go's.
        let mut sections = made(&[GNU]);
        let table = sections.len();
        sections.extend([0; 64]);
        sections[table + 24] = u8::try_from(table + 64).expect("small");
        sections.extend(b"\0.text\0.gopclntab\0");
        sections[table + 32] = 18;
        sections[40] = u8::try_from(table).expect("small");
        (sections[58], sections[60]) = (64, 1);
        assert!(elf(&sections).expect("Go").contains("Go"));
        let mut small = made(&[GNU]);
        small[4] = 1;
        assert!(elf(&small).expect("32 bits").contains("another CPU architecture"));
        assert_eq!(elf(b"text"), None);
    }

    #[test]
    fn cut_and_wild_files_are_looked_at_without_harm() {
        let whole = made(&[GNU, (4, b"notes")]);
        for length in 0..whole.len() {
            let _ = elf(&whole[..length]);
        }
        let mut random = fastrand::Rng::with_seed(39);
        for _ in 0..2000 {
            let mut wild = whole.clone();
            for _ in 0..4 {
                let at = random.usize(4..wild.len());
                wild[at] = random.u8(..);
            }
            let _ = elf(&wild);
        }
    }

    #[test]
    fn first_lines_of_scripts_are_read() {
        let of = |line: &str| interpreter(line.as_bytes()).map(|(path, word)| (path, word.map(|word| word.into_string().expect("text"))));
        assert_eq!(of(" /bin/sh -e\nmore"), Some(("/bin/sh".into(), None)));
        assert_eq!(of("/usr/bin/env -S A=b python3 -u\n"), Some(("/usr/bin/env".into(), Some("python3".into()))));
        assert_eq!(of("\n"), None);
    }

    #[test]
    fn a_script_is_its_interpreter() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            fs::write(&path, bytes).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
            path
        };
        let still = write("static", &made(&[]));
        let script = write("script", format!("#!{}\n", still.display()).as_bytes());
        assert!(unseen(&script, 0).expect("looked at").expect("unseen").contains("its interpreter"));
        assert_eq!(unseen(&write("shell", b"#!/bin/sh\n"), 0).expect("looked at"), None);
        let ring = dir.path().join("ring");
        write("ring", format!("#!{}\n", ring.display()).as_bytes());
        assert!(unseen(&ring, 0).expect("looked at").expect("unseen").contains("too many"));
    }

    #[test]
    fn programs_are_found_or_named() {
        assert_eq!(find("/bin/sh".as_ref()).expect("there"), Path::new("/bin/sh"));
        assert!(find("sh".as_ref()).expect("there").ends_with("sh"));
        assert!(find("no such program".as_ref()).expect_err("not there").to_string().contains("no program `no such program`"));
        assert!(find("/etc/passwd".as_ref()).expect_err("no program").to_string().contains("no executable"));
    }
}
