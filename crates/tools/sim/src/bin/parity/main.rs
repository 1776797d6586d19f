//! Compares system calls on a hotshelf mount (of two directories, an image, or a cached directory) and on a plain directory.
//!
//! A seeded sequence of calls runs on both, as root and as ordinary users. Results, attributes, and at intervals the whole trees must be
//! equal. Meanwhile files of the mount move between its sides, so that everything is tested on both sides and on files that move while
//! open (nothing moves in an image or in a cached directory). `accepted` lists the known differences.
#![forbid(unsafe_code)]

mod accepted;
mod compare;
mod mover;

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Parser;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::compare::Compare;
use crate::mover::Mover;
use sim::posix::as_user;
use sim::posix::call::Call;
use sim::posix::generate::{Generator, USERS};
use sim::posix::tree::{CallResult, FileTree, word};

/// Make the same calls on a hotshelf mount and on a plain directory, and compare.
#[derive(Debug, Parser)]
struct Args {
    /// The hotshelf program.
    #[arg(long)]
    hotshelf: PathBuf,
    /// An image, instead of two directories.
    #[arg(long, conflicts_with_all = ["ssd", "hdd", "cache"], required_unless_present_any = ["ssd", "cache"])]
    image: Option<PathBuf>,
    /// A cache, for a directory.
    #[arg(long, requires = "directory", conflicts_with = "ssd")]
    cache: Option<PathBuf>,
    /// What becomes of writes: write-through or write-back.
    #[arg(long, requires = "cache")]
    cache_mode: Option<String>,
    /// The directory whose file data goes through the cache.
    #[arg(long, requires = "cache")]
    directory: Option<PathBuf>,
    /// Directory of the SSD.
    #[arg(long, requires = "hdd")]
    ssd: Option<PathBuf>,
    /// Directory of the HDD.
    #[arg(long, requires = "ssd")]
    hdd: Option<PathBuf>,
    /// Mount point.
    #[arg(long)]
    mnt: PathBuf,
    /// The plain directory: empty, on a file system like those of the sides, mounted nosuid and nodev.
    #[arg(long)]
    plain: PathBuf,
    /// Random seed; printed if none is given.
    #[arg(long)]
    seed: Option<u64>,
    /// Number of calls.
    #[arg(long, default_value_t = 2000)]
    steps: usize,
    /// Calls between two comparisons of the whole trees.
    #[arg(long, default_value_t = 200)]
    each: usize,
    /// Calls between two remounts.
    #[arg(long, default_value_t = 3000)]
    remount: usize,
    /// Do not move files.
    #[arg(long)]
    still: bool,
    /// Flags for `hotshelf mount` or `hotshelf fs mount`.
    #[arg(last = true)]
    flags: Vec<String>,
}

impl Args {
    /// Returns the directories or the image below the mount.
    fn below(&self) -> impl Iterator<Item = &PathBuf> {
        self.image.iter().chain(&self.ssd).chain(&self.hdd)
    }
}

/// Number of calls kept for the report of a difference.
const STORY: usize = 4000;
const STORY_SHOWN: usize = 20;

struct Parity<'a> {
    args: &'a Args,
    seed: u64,
    generator: Generator,
    plain: FileTree,
    mount: FileTree,
    compare: Compare,
    story: VecDeque<String>,
    paths: Arc<Mutex<Vec<String>>>,
}

fn main() -> ExitCode {
    match parity(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn parity(args: &Args) -> Result<()> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("seed {seed}");
    let _ = std::fs::remove_dir(args.plain.join("lost+found"));
    mount(args)?;
    let outcome = run(args, seed);
    let unmounted = unmount(args);
    outcome?;
    unmounted?;
    // The mounting user may have created directories that it cannot read.
    if rustix::process::geteuid().is_root() && args.cache.is_none() {
        ran(Command::new(&args.hotshelf).args(args.image.as_ref().map(|_| "fs")).arg("check").args(args.below())).context("check")?;
    }
    println!("{} calls, no difference", args.steps);
    Ok(())
}

fn run(args: &Args, seed: u64) -> Result<()> {
    let root = rustix::process::geteuid().is_root();
    // Every other seed works in a subdirectory, where `..` stays in the compared tree.
    let below = if seed.is_multiple_of(2) { "top/below" } else { "" };
    for side in [&args.mnt, &args.plain] {
        std::fs::create_dir_all(side.join(below))?;
        // All users may write here.
        std::fs::set_permissions(side.join(below), std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
    }
    let paths = Arc::new(Mutex::new(Vec::new()));
    let still = args.still || args.ssd.is_none();
    let mover = (!still).then(|| Mover::start(&args.hotshelf, &args.mnt.join(below), paths.clone(), seed)).transpose()?;
    let mut parity = Parity {
        args,
        seed,
        generator: Generator { rng: fastrand::Rng::with_seed(seed), known: Vec::new(), dotdot: !below.is_empty(), root },
        plain: FileTree::new(args.plain.join(below)).context("opening the plain directory")?,
        mount: FileTree::new(args.mnt.join(below)).context("opening the mount")?,
        compare: Compare::new(args.flags.iter().any(|flag| flag == "--write-back"), args.cache_mode.as_deref() == Some("write-back")),
        story: VecDeque::new(),
        paths,
    };
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let outcome = parity.steps(mover.as_ref());
    let moved = mover.map_or(0, Mover::stop);
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    println!("{moved} moves");
    outcome
}

impl Parity<'_> {
    fn steps(&mut self, mover: Option<&Mover>) -> Result<()> {
        for step in 0..self.args.steps {
            if step % 8 == 0 {
                self.look_around();
                // Keeps both at the same pace.
                mover.inspect(|mover| mover.wait_for_a_turn());
            }
            let call = self.generator.call();
            let user = (self.generator.root && self.generator.rng.u8(0..3) == 0).then(|| self.generator.rng.usize(..USERS.len()));
            if let Err(error) = self.step(&call, user) {
                bail!("{}", self.tell(step, &call, user, &format!("{error:#}")));
            }
            if (step + 1) % self.args.each == 0 || step + 1 == self.args.steps {
                self.compare_trees(step)?;
            }
            if (step + 1) % self.args.remount == 0 {
                self.remount(mover).context("mounting anew")?;
                self.compare_trees(step)?;
            }
        }
        Ok(())
    }

    fn compare_trees(&mut self, step: usize) -> Result<()> {
        if let Err(error) = self.compare.trees(&self.plain, &self.mount) {
            bail!("seed {}, after step {step}, comparing all: {error:#}\n{}", self.seed, self.last_calls(&[], &[]));
        }
        Ok(())
    }

    fn look_around(&mut self) {
        let mut known = Vec::new();
        compare::walk(&self.plain, "", &mut |path, stat| known.push((path.to_owned(), stat.is_dir(), stat.is_file())));
        *self.paths.lock() = known.iter().filter(|known| known.2).map(|known| known.0.clone()).collect();
        self.generator.known = known.into_iter().map(|known| (known.0, known.1)).collect();
    }

    fn step(&mut self, call: &Call, user: Option<usize>) -> Result<()> {
        if accepted::of_removed(call, &self.plain, self.args.image.is_some()) {
            return Ok(());
        }
        let before = self.compare.look(call, &self.plain, &self.mount)?;
        let mount = as_user(user, || call.run(&mut self.mount));
        let out_of_reach = || call.slots().into_iter().any(|slot| accepted::out_of_reach(slot, &self.plain));
        if accepted::refused(call, &mount, self.args.image.is_some()) || mount == Err(Errno::ACCESS) && out_of_reach() {
            return Ok(());
        }
        let plain = as_user(user, || call.run(&mut self.plain));
        let who = user.map_or_else(String::new, |user| format!("as {}: ", USERS[user].uid));
        if self.story.len() == STORY {
            self.story.pop_front();
        }
        if plain != Err(Errno::BADF) {
            self.story.push_back(format!("{who}{} = {}", short(call), show(&plain)));
        }
        if plain != mount && accepted::holes(call, &plain, &mount) {
            let to = rustix::fs::SeekFrom::Start(0);
            for tree in [&self.plain, &self.mount] {
                call.slots().into_iter().try_for_each(|slot| rustix::fs::seek(tree.slot(slot)?, to).map(drop))?;
            }
        } else if plain != mount && !accepted::given_to_nobody(call, &plain, &mount) {
            bail!("plain {}, mount {}", show(&plain), show(&mount));
        }
        self.compare.changed(call, &before, plain.is_ok(), &self.plain, &self.mount)
    }

    fn tell(&self, step: usize, call: &Call, user: Option<usize>, what: &str) -> String {
        let who = user.map_or("root", |_| "a user");
        let last = self.last_calls(&call.paths(), &call.slots());
        format!("seed {}, step {step}, by {who}, {}: {what}\n{last}", self.seed, short(call))
    }

    /// Returns the last calls on some paths or open files; any if both are empty.
    fn last_calls(&self, paths: &[&str], slots: &[usize]) -> String {
        let names: Vec<String> = paths.iter().filter(|path| !path.is_empty()).map(|path| format!("{path:?}")).collect();
        let numbers: Vec<String> = slots.iter().flat_map(|slot| ["slot", "from", "to"].map(|word| format!("{word}: {slot},"))).collect();
        let about = |line: &&String| {
            names.is_empty() && numbers.is_empty()
                || names.iter().any(|name| line.contains(name))
                || numbers.iter().any(|number| line.contains(number) || line.contains(&number.replace(',', " ")))
        };
        let mut last: Vec<&str> = self.story.iter().rev().filter(about).take(STORY_SHOWN).map(String::as_str).collect();
        last.reverse();
        last.join("\n")
    }

    fn remount(&mut self, mover: Option<&Mover>) -> Result<()> {
        let _quiet = mover.map(Mover::pause);
        self.plain.close();
        self.mount.close();
        unmount(self.args)?;
        self.open_roots()?;
        mount(self.args)?;
        self.plain.open()?;
        self.mount.open()?;
        Ok(())
    }
}

impl Parity<'_> {
    /// Opens the topmost directories: once they are closed, an ordinary user cannot mount directories in them.
    fn open_roots(&self) -> Result<()> {
        if rustix::process::geteuid().is_root() {
            return Ok(());
        }
        for root in self.args.ssd.iter().chain(&self.args.hdd).chain(&self.args.directory).chain([&self.args.plain]) {
            let mode = rustix::fs::stat(root)?.st_mode;
            rustix::fs::chmod(root, rustix::fs::Mode::from_raw_mode(mode) | rustix::fs::Mode::RWXU)?;
        }
        Ok(())
    }
}

fn show(said: &CallResult) -> String {
    match said {
        Ok(value) => value.clone(),
        Err(error) => format!("error {}", word(*error)),
    }
}

fn short(call: &Call) -> String {
    let text = format!("{call:?}");
    if text.len() <= 400 { text } else { format!("{}... ({} bytes)", text.chars().take(300).collect::<String>(), text.len()) }
}

fn mount(args: &Args) -> Result<()> {
    let mut command = Command::new(&args.hotshelf);
    if args.image.is_some() {
        command.args(["fs", "mount"]);
    } else {
        command.arg("mount");
    }
    for (flag, dir) in [("--ssd", &args.ssd), ("--hdd", &args.hdd)] {
        command.args(dir.iter().flat_map(|dir| [OsStr::new(flag), dir.as_os_str()]));
    }
    command.args(args.cache.iter().flat_map(|cache| [OsStr::new("--cache"), cache.as_os_str()]));
    command.args(args.cache_mode.iter().flat_map(|mode| ["--cache-mode", mode]));
    command.args(&args.flags).args(&args.image).args(&args.directory).arg(&args.mnt);
    if rustix::process::geteuid().is_root() {
        command.arg("--allow-other");
    }
    ran(&mut command)
}

fn unmount(args: &Args) -> Result<()> {
    ran(Command::new(&args.hotshelf).arg("unmount").arg(&args.mnt))
}

fn ran(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        let text = [output.stdout, output.stderr].concat();
        bail!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&text).trim());
    }
    Ok(())
}
