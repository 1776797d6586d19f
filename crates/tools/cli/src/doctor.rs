//! `hotshelf doctor`: what this machine supports.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use block::completion::{Mode, WakeupLatency};
use indicatif::BinaryBytes;
use rustix::fs::{AtFlags, StatxFlags, XattrFlags};
use serde::Serialize;

use crate::args::DoctorArgs;

#[derive(Debug, Serialize)]
struct Line {
    what: String,
    ok: bool,
    /// Nothing works without it.
    needed: bool,
    detail: String,
}

/// Looks around; `false` when something is missing without which nothing works.
pub fn doctor(args: &DoctorArgs) -> anyhow::Result<bool> {
    let mut lines =
        vec![kernel(), fuse_device(), fusermount(), allow_other(), passthrough(), uring(), open_files(), completion(), nocache()];
    lines.extend(shared_memory(Path::new(SHARED_MEMORY)));
    for (what, dir) in [("ssd", &args.ssd), ("hdd", &args.hdd)] {
        if let Some(dir) = dir {
            lines.extend(directory(what, dir));
        }
    }
    if args.json {
        say_lines!("{}", serde_json::to_string_pretty(&lines)?);
    } else {
        for line in &lines {
            let verdict = if line.ok { "ok     " } else { "missing" };
            say!("{verdict}  {:<28} {}", line.what, line.detail);
        }
    }
    Ok(lines.iter().all(|line| line.ok || !line.needed))
}

fn line(what: impl Into<String>, needed: bool, found: Result<String, String>) -> Line {
    let ok = found.is_ok();
    Line { what: what.into(), ok, needed, detail: found.unwrap_or_else(|missing| missing) }
}

fn kernel_version() -> (u32, u32) {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut parts = text.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

fn kernel() -> Line {
    let (major, minor) = kernel_version();
    let found = format!("Linux {major}.{minor}");
    line("kernel", true, if (major, minor) >= (5, 6) { Ok(found) } else { Err(format!("{found}: Linux 5.6 or later is needed")) })
}

fn fuse_device() -> Line {
    let opened = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    line(
        "/dev/fuse",
        true,
        opened.map(|_| "can be opened".into()).map_err(|error| format!("{error}: load the fuse module (modprobe fuse)")),
    )
}

/// Where caches have their memory.
const SHARED_MEMORY: &str = "/dev/shm";

/// What the memory that a cache's programs share needs: room, and locks that the kernel frees when a process dies.
fn shared_memory(dir: &Path) -> Vec<Line> {
    let probe = dir.join(format!(".hotshelf-doctor-{}", std::process::id()));
    let room = rustix::fs::statvfs(dir).map_err(|error| format!("{}: {error}: mount a tmpfs there", dir.display())).and_then(|stat| {
        let (all, free) = (stat.f_blocks.saturating_mul(stat.f_frsize), stat.f_bavail.saturating_mul(stat.f_frsize));
        let found = format!("{} of {} free in {}", BinaryBytes(free), BinaryBytes(all), dir.display());
        let wanted = (memory_bytes() / 4).min(1 << 30);
        if free >= wanted {
            Ok(found)
        } else {
            Err(format!("{found}: give caches less --memory, or enlarge it (mount -o remount,size=...)"))
        }
    });
    let opened = std::fs::File::options().create_new(true).read(true).write(true).open(&probe);
    let lock = opened.map_err(|error| format!("{}: {error}", dir.display())).and_then(|file| {
        let locked = rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive);
        locked
            .map(|()| "the kernel tells which processes live".into())
            .map_err(|error| format!("{}: {error}: caches need record locks", dir.display()))
    });
    let _ = std::fs::remove_file(&probe);
    vec![line("cache: shared memory", false, room), line("cache: lock files", false, lock)]
}

/// Of the machine.
fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

/// Whether inode numbers identify files for ever, as a persistent cache needs.
fn file_handles(what: &str, file: &std::fs::File) -> Line {
    let found = shm::FileHandle::of(file).map(|_| "files here can be cached".into());
    line(format!("{what}: file handles"), false, found.map_err(|error| format!("{error}: files here are not cached")))
}

fn in_path(program: &str) -> bool {
    let path = shm::environment::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).exists())
}

fn fusermount() -> Line {
    let found = if in_path("fusermount3") {
        Ok("ordinary users can mount".into())
    } else {
        Err("install fuse3 so that ordinary users can mount".into())
    };
    line("fusermount3", false, found)
}

fn allow_other() -> Line {
    let conf = std::fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    let on = conf.lines().any(|line| line.trim() == "user_allow_other");
    let found = if on || rustix::process::geteuid().is_root() {
        Ok("--allow-other is allowed".into())
    } else {
        Err("add user_allow_other to /etc/fuse.conf so that ordinary users can use --allow-other".into())
    };
    line("--allow-other", false, found)
}

fn passthrough() -> Line {
    let (major, minor) = kernel_version();
    let admin = std::fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        let caps = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or("0");
        u64::from_str_radix(caps.trim(), 16).is_ok_and(|caps| caps >> 21 & 1 == 1)
    });
    let found = if (major, minor) < (6, 9) {
        Err(format!("Linux {major}.{minor} has none, 6.9 or later has; data goes through the daemon"))
    } else if !admin {
        Err("needs CAP_SYS_ADMIN (mount as root); data goes through the daemon".into())
    } else {
        Ok("data of files on the SSD goes straight to its file system".into())
    };
    line("passthrough", false, found)
}

fn uring() -> Line {
    let found = match mount::uring_offered() {
        Ok(()) => Ok("a mount's requests come over io_uring".into()),
        Err(why_not) => Err(format!("{why_not}; a mount's requests come by /dev/fuse, which takes longer")),
    };
    line("FUSE over io_uring", false, found)
}

fn open_files() -> Line {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = limit.maximum.map_or("unlimited".to_owned(), |most| most.to_string());
    let enough = limit.maximum.is_none_or(|most| most >= 65_536);
    let found = if enough {
        Ok(format!("up to {most}"))
    } else {
        Err(format!("only {most}: raise LimitNOFILE or ulimit -n; it works, but fewer files can be open"))
    };
    line("open files", false, found)
}

/// What `hotshelf nocache` has here, and what it cannot see.
fn nocache() -> Line {
    let unseen = "unseen: static, set-uid and Go programs, io_uring, system calls of a program's own assembly";
    let found = crate::nocache::library().map(|path| format!("{}; {unseen}", path.display()));
    line("nocache", false, found.map_err(|error| format!("{error:#}")))
}

/// How queues wait for devices when nobody says otherwise.
fn completion() -> Line {
    let (cores, floor) = (block::completion::mode::cores(), WakeupLatency::of_machine());
    let (mode, why) = (Mode::default_for(cores), Mode::reason_for(cores));
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let (timer, late, event) = (us(floor.timer), us(floor.timer_late), us(floor.event));
    let costs = format!("a thread wakes {timer:.1} us after its timer, {late:.1} one time in ten; {event:.1} us after an event");
    line("completion mode", false, Ok(format!("{} on {cores} processors: {why}; {costs}", mode.name())))
}

fn directory(what: &str, dir: &Path) -> Vec<Line> {
    let probe = dir.join(format!(".hotshelf-doctor-{}", std::process::id()));
    let opened = std::fs::File::options().create_new(true).read(true).write(true).open(&probe);
    let file = match opened {
        Ok(file) => file,
        Err(error) => return vec![line(format!("{what}: write"), true, Err(format!("{}: {error}", dir.display())))],
    };
    let xattr = rustix::fs::fsetxattr(&file, "user.hotshelf.probe", b"x", XattrFlags::empty());
    let statx = rustix::fs::statx(file.as_fd(), c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME);
    let born = statx.is_ok_and(|st| st.stx_mask & StatxFlags::BTIME.bits() != 0);
    let handles = file_handles(what, &file);
    let _ = std::fs::remove_file(&probe);
    let mut lines = vec![
        handles,
        line(format!("{what}: write"), true, Ok(dir.display().to_string())),
        line(
            format!("{what}: attributes"),
            false,
            xattr
                .map(|()| "inode numbers survive moves".into())
                .map_err(|error| format!("{error}: inode numbers change when files move here")),
        ),
        line(
            format!("{what}: birth times"),
            false,
            if born {
                Ok("reused inode numbers can be detected".into())
            } else {
                Err("the file system keeps none; a reused inode may get a known number".into())
            },
        ),
        rotational(what, dir),
    ];
    lines.extend(abilities(what, dir));
    lines
}

/// What a mount would find out about the file system.
fn abilities(what: &str, dir: &Path) -> Vec<Line> {
    let probed = std::fs::File::open(dir).ok().and_then(|dir| hybridfs::abilities::Abilities::probe(dir.as_fd()));
    let Some(found) = probed else { return Vec::new() };
    let limits = found.limits();
    let verdict = if limits.is_empty() { Ok("does all that moves use".to_owned()) } else { Err(format!("{} limits", limits.len())) };
    let mut lines = vec![line(format!("{what}: {}", found.file_system), false, verdict)];
    lines.extend(limits.into_iter().map(|limit| line(format!("{what}: limit"), false, Err(limit))));
    lines
}

fn rotational(what: &str, dir: &Path) -> Line {
    let disk = rustix::fs::stat(dir).ok().map(|stat| (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev)));
    let read = disk.and_then(|(major, minor)| {
        let device = format!("/sys/dev/block/{major}:{minor}");
        let own = std::fs::read_to_string(format!("{device}/queue/rotational"));
        own.or_else(|_| std::fs::read_to_string(format!("{device}/../queue/rotational"))).ok()
    });
    let found = match read.as_deref().map(str::trim) {
        Some("1") if what == "ssd" => Err("is on a rotating disk: the fast directory should not be".into()),
        Some("1") => Ok("a rotating disk".into()),
        Some(_) => Ok("not a rotating disk".into()),
        None => Ok("unknown (no block device)".into()),
    };
    line(format!("{what}: kind of disk"), false, found)
}
