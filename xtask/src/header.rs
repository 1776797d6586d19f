//! `include/hotshelf.h` and `hotshelf(3)`, both from the comments of the C interface's functions.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::manual;

/// The interface, and what is made of it.
const CRATE: &str = "crates/frontends/capi";
const HEADER: &str = "include/hotshelf.h";
const MANUAL: &str = "crates/frontends/capi/man/hotshelf.3";

/// What stands before and after the declarations.
const BEGIN: &str = "\
/* libhotshelf: files through a cache, raw devices with their queues and block cache, and a file system on them, for C and C++ programs.
 *
 * Calls follow POSIX conventions: -1 or NULL and errno, which only failures change; hs_error() says the same as a sentence. Offsets and
 * lengths are in bytes. Every call is thread-safe; where that has a limit, the call says so. A pointer that was closed, is NULL or of
 * another kind is EBADF, not a crash. No call starts a thread that calls back, touches signals, or prints.
 *
 * Memory: a request over a buffer of nvmed_get_buffer needs no copy; over any other memory it costs one.
 *
 * A child of fork() goes on with its parent's files (uopen), and opens others: only positions are its own from then on. Devices, queues,
 * file systems (nvmedfs_), directories and asynchronous requests are the parent's alone (EPERM): exec, or use them after the fork.
 * Nothing here is for signal handlers.
 *
 * Link with: cc program.c $(pkg-config --cflags --libs hotshelf)
 */";
const NEEDS: &str = "\
#ifndef __LP64__
#error \"hotshelf needs a 64-bit system\"
#endif

struct dirent;
struct iovec;
struct stat;
struct statvfs;
struct statx;
struct timespec;";

/// Writes both; `check`: only says whether they are as they should be.
pub fn run(root: &Path, check: bool) -> Result<()> {
    let header = header(root)?;
    let manual = manual::page(&header);
    for (path, text) in [(HEADER, &header), (MANUAL, &manual)] {
        let full = root.join(path);
        let is = std::fs::read_to_string(&full).unwrap_or_default();
        if is == *text {
            continue;
        }
        if check {
            bail!("{path} is not what the functions' comments say: run `cargo xtask header`");
        }
        std::fs::create_dir_all(full.parent().context("a file in a directory")?)?;
        std::fs::write(&full, text).with_context(|| format!("writing {path}"))?;
        println!("{path}");
    }
    Ok(())
}

fn header(root: &Path) -> Result<String> {
    let dir = root.join(CRATE);
    let mut config = cbindgen::Config::from_file(dir.join("cbindgen.toml")).map_err(anyhow::Error::msg)?;
    config.header = Some(BEGIN.to_owned());
    config.after_includes = Some(NEEDS.to_owned());
    let mut builder = cbindgen::Builder::new().with_config(config);
    for entry in sources(&dir.join("src"))? {
        builder = builder.with_src(entry);
    }
    let mut text = Vec::new();
    builder.generate().context("cbindgen")?.write(&mut text);
    Ok(tidy(&String::from_utf8(text)?))
}

/// The types first: declarations come in the order of the files.
fn sources(dir: &Path) -> Result<Vec<std::path::PathBuf>> {
    let order = [
        "types", "ntypes", "library", "uopen", "ufile", "ustate", "upin", "umap", "udir", "uqueue", "device", "queue", "handle", "options",
        "transfer", "aio", "params", "quota", "nmkfs", "nmount", "nfd", "nfile", "nname", "nattr", "nxattr", "ndir", "nlock", "ntx",
        "ntxname", "naio",
    ];
    let files: Vec<_> = order.iter().map(|name| dir.join(name).with_extension("rs")).collect();
    match files.iter().find(|file| !file.is_file()) {
        Some(missing) => bail!("{} is missing", missing.display()),
        None => Ok(files),
    }
}

/// Without what Rust alone has to know (`# Safety`), and without spaces at the ends of lines; and arguments that may be left out as C
/// has them.
fn tidy(text: &str) -> String {
    let mut out: Vec<&str> = Vec::new();
    let mut in_safety = false;
    for line in text.lines().map(str::trim_end) {
        let said = line.trim_start().trim_start_matches("* ").trim();
        if said == "# Safety" {
            in_safety = true;
            while out.last().is_some_and(|last| last.trim() == "*") {
                out.pop();
            }
            continue;
        }
        if in_safety && !line.trim_start().starts_with("*/") {
            continue;
        }
        in_safety = false;
        out.push(line);
    }
    let mut text = out.join("\n").replace("mode_t variadic)", "...)").replace("size_t variadic)", "...)");
    text.push('\n');
    text
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_is_for_rust_alone_is_left_out() {
        let text = "/*\n * Reads.\n *\n * # Safety\n * `buf` has n bytes.\n */\nint f(void);  \n";
        assert_eq!(tidy(text), "/*\n * Reads.\n */\nint f(void);\n");
        assert_eq!(tidy("int g(int a, mode_t variadic);\n"), "int g(int a, ...);\n");
    }
}
