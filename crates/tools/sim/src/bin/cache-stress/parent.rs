//! Starts and kills processes, and detects hanging calls.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cachedfs::{Config, Instance};

use crate::drive::Drive;
use crate::stalls::{KillTarget, Stalls};
use crate::version_table::{CellWord, HeaderWord, SLOTS, VersionTable, WriterWord, all, now, writer};
use crate::work_dir::WorkDir;

/// A call that takes longer is a hang, ns.
const HANGS: u64 = 30_000_000_000;
/// Delay between a kill and the check of the others, ms.
const AFTER_MS: std::ops::Range<u64> = 5..80;

/// The parent of the working processes.
pub struct Parent<'a> {
    /// The working directory of the run.
    pub work_dir: &'a WorkDir,
    /// The versions that the processes record.
    pub table: &'a VersionTable,
    /// The configuration of the cache.
    pub config: Config,
    /// The generator of random numbers.
    pub rng: fastrand::Rng,
    /// Statistics of stalls around kills.
    pub stalls: Stalls,
    /// Number of leaders that were killed.
    pub leaders_killed: u32,
    /// How often all memory was lost.
    pub wipes: u32,
    children: Vec<Option<Child>>,
    /// The drive, if the SSD is one.
    pub drive: Option<Drive>,
}

impl<'a> Parent<'a> {
    /// Creates a parent without children.
    pub fn new(work_dir: &'a WorkDir, table: &'a VersionTable, seed: u64, drive: Option<Drive>) -> Result<Parent<'a>> {
        let rng = fastrand::Rng::with_seed(seed);
        let children = (0..SLOTS).map(|_| None).collect();
        let config = work_dir.config()?;
        Ok(Parent { work_dir, table, config, rng, stalls: Stalls::default(), leaders_killed: 0, wipes: 0, children, drive })
    }

    /// Starts the child of a slot.
    pub fn start(&mut self, slot: u32) -> Result<()> {
        self.table.slot(slot, WriterWord::Pid).store(0, SeqCst);
        let child = Command::new(std::env::current_exe()?)
            .arg("--dir")
            .arg(&self.work_dir.dir)
            .args(["--child", &slot.to_string(), "--seed", &self.rng.u64(..).to_string()])
            .spawn()
            .context("starting a process")?;
        self.children[slot as usize] = Some(child);
        Ok(())
    }

    /// Starts the children of all slots.
    pub fn start_all(&mut self) -> Result<()> {
        (0..SLOTS)
            .filter(|slot| self.children[*slot as usize].is_none())
            .collect::<Vec<_>>()
            .into_iter()
            .try_for_each(|slot| self.start(slot))
    }

    /// Verifies that no process ended by itself or hangs in a call.
    fn watch(&mut self) -> Result<()> {
        for slot in 0..SLOTS {
            let Some(child) = &mut self.children[slot as usize] else { continue };
            if let Some(status) = child.try_wait()? {
                bail!("writer {slot}, process {}, ended: {status}", child.id());
            }
            let (since, call) =
                (self.table.slot(slot, WriterWord::Since).load(SeqCst), self.table.slot(slot, WriterWord::Call).load(SeqCst));
            if since != 0 && now().saturating_sub(since) > HANGS {
                let pid = child.id();
                let stacks = stacks(pid);
                bail!("writer {slot}, process {pid}, has been in a call `{}` for 30 s:\n{stacks}", char::from(call as u8));
            }
        }
        Ok(())
    }

    fn wait(&mut self, ms: std::ops::Range<u64>) -> Result<()> {
        let end = Instant::now() + Duration::from_millis(self.rng.u64(ms));
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
            self.watch()?;
        }
        Ok(())
    }

    /// Waits until the current calls of these processes end: a call counts where it started.
    fn all_ended(&mut self, slots: &[u32]) -> Result<()> {
        let (table, begun) = (self.table, now());
        let is_in_call = |slot: &u32| (1..=begun).contains(&table.slot(*slot, WriterWord::Since).load(SeqCst));
        while slots.iter().any(is_in_call) {
            std::thread::sleep(Duration::from_millis(1));
            self.watch()?;
        }
        Ok(())
    }

    /// Kills a process with SIGKILL; its current writes may be torn.
    fn kill(&mut self, slot: u32) -> Result<()> {
        let Some(mut child) = self.children[slot as usize].take() else { return Ok(()) };
        child.kill()?;
        let status = child.wait()?;
        ensure!(std::os::unix::process::ExitStatusExt::signal(&status) == Some(9), "writer {slot} had ended: {status}");
        self.table.slot(slot, WriterWord::Since).store(0, SeqCst);
        for (file, cell) in all().filter(|(file, cell)| writer(*file, *cell) == slot) {
            let begun = self.table.get(file, cell, CellWord::Started);
            if begun > self.table.get(file, cell, CellWord::Acked) {
                self.table.cell(file, cell, CellWord::Torn).store(begun, SeqCst);
            }
        }
        Ok(())
    }

    fn leader(&self) -> Option<u32> {
        let pid = u64::from(Instance::look(&self.config).ok()??.leader_pid?);
        (0..SLOTS).find(|slot| self.table.slot(*slot, WriterWord::Pid).load(SeqCst) == pid)
    }

    /// Kills some processes; returns how many.
    pub fn some_kills(&mut self) -> Result<u32> {
        let all: Vec<u32> = (0..SLOTS).collect();
        self.stalls.begin(self.table, &all);
        self.wait(AFTER_MS)?;
        self.all_ended(&all)?;
        self.stalls.end(self.table, &all, KillTarget::None);
        let leader = if self.rng.u8(0..10) < 4 { self.leader() } else { None };
        let first = leader.unwrap_or_else(|| self.rng.u32(0..SLOTS));
        let is_leader = leader.is_some() || self.leader() == Some(first);
        self.leaders_killed += u32::from(is_leader);
        let mut killed = vec![first];
        // A drive loses power then, which deserves more attempts.
        let all = if self.drive.is_some() { 15 } else { 3 };
        match self.rng.u8(0..100) {
            percent if percent < all => killed = (0..SLOTS).collect(),
            percent if percent < all + 9 => killed.push((first + 1) % SLOTS),
            _ => {}
        }
        let others: Vec<u32> = (0..SLOTS).filter(|slot| !killed.contains(slot)).collect();
        self.stalls.begin(self.table, &others);
        killed.iter().try_for_each(|slot| self.kill(*slot))?;
        let is_wiped = killed.len() == SLOTS as usize && self.rng.bool();
        if is_wiped {
            self.wipe()?;
        }
        if self.rng.u8(0..4) == 0 {
            self.wait(AFTER_MS)?;
        }
        self.start_all()?;
        self.wait(AFTER_MS)?;
        self.all_ended(&others)?;
        self.stalls.end(self.table, &others, if is_leader { KillTarget::Leader } else { KillTarget::Another });
        Ok(killed.len() as u32)
    }

    /// Simulates a crash of the machine: shared memory is lost. Only durable data must survive.
    fn wipe(&mut self) -> Result<()> {
        self.wipes += 1;
        std::fs::remove_file(Instance::segment_path(&self.config)).context("removing the segment")?;
        if let Some(drive) = &mut self.drive {
            drive.cut().context("a loss of the drive's power")?;
        }
        crate::audit::after_wipe(self.work_dir, self.table)?;
        self.table.head(HeaderWord::Log).fetch_add(1, SeqCst);
        Ok(())
    }

    /// Returns the calls of all processes so far.
    pub fn calls(&self) -> u64 {
        (0..SLOTS).map(|slot| self.table.slot(slot, WriterWord::Calls).load(SeqCst)).sum()
    }

    /// Stops all processes and waits for a clean end.
    pub fn end(&mut self) -> Result<()> {
        self.table.head(HeaderWord::Stop).store(1, SeqCst);
        let begun = Instant::now();
        for (slot, child) in self.children.iter_mut().enumerate() {
            let Some(child) = child else { continue };
            loop {
                match child.try_wait()? {
                    Some(status) => {
                        ensure!(status.success(), "writer {slot} ended: {status}");
                        break;
                    }
                    None if begun.elapsed() > Duration::from_secs(60) => {
                        bail!("writer {slot} does not end:\n{}", stacks(child.id()))
                    }
                    None => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        }
        self.children.iter_mut().for_each(|child| *child = None);
        self.table.head(HeaderWord::Stop).store(0, SeqCst);
        Ok(())
    }
}

impl Drop for Parent<'_> {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the stacks of a process's threads.
fn stacks(pid: u32) -> String {
    let tasks = PathBuf::from(format!("/proc/{pid}/task"));
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    let mut stacks = String::new();
    for task in std::fs::read_dir(tasks).into_iter().flatten().flatten() {
        let at = task.path();
        stacks += &format!("{} {} {}\n", read(&at.join("comm")).trim(), read(&at.join("wchan")), read(&at.join("syscall")).trim());
    }
    if let Ok(out) = Command::new("gdb").args(["-p", &pid.to_string(), "-batch", "-ex", "thread apply all bt 18"]).output() {
        stacks += &String::from_utf8_lossy(&out.stdout);
    }
    stacks
}
