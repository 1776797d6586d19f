//! A seeded workload of the operations that matter for durability, with concurrent moves.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use sim::disk_log::{DiskEvent, DiskLog};
use sim::durability::DurabilityOracle;
use sim::durability_mark::{DurabilityMark, FileId};
use sim::power_cut::SECTOR;
use sim::stamped;

/// Above this number of files the next operation removes one.
const FILES_MAX: usize = 24;
/// Settled files of this size bypass the daemon (see docs/decisions/02).
const BYPASSING_SECTORS: u64 = (4 << 20) / SECTOR as u64 + 8;

struct Workload<'a> {
    root: &'a Path,
    log: &'a DiskLog,
    rng: &'a mut fastrand::Rng,
    promises: DurabilityOracle,
    /// Paths available to the mover.
    paths: Arc<Mutex<Vec<String>>>,
    dirs: BTreeSet<String>,
    next: u64,
    version: u32,
}

/// Runs the workload on the mount; returns its start in the log.
pub fn run(hotshelf: &Path, root: &Path, log: &DiskLog, operations: usize, rng: &mut fastrand::Rng) -> Result<usize> {
    let paths = Arc::new(Mutex::new(Vec::new()));
    let dirs = ["a", "b", "c"].map(str::to_owned).into();
    let seed = rng.u64(..);
    let mut work = Workload { root, log, rng, promises: DurabilityOracle::default(), paths: paths.clone(), dirs, next: 1, version: 1 };
    for dir in &work.dirs {
        std::fs::create_dir(root.join(dir))?;
        sync(&root.join(dir))?;
    }
    sync(root)?;
    work.create(BYPASSING_SECTORS, true)?;
    let begin = log.len();
    std::thread::scope(|scope| {
        let (begun, turn) = sync_channel(0);
        let mover = scope.spawn(move || move_about(hotshelf, root, &paths, &begun, seed));
        let worked = work.steps(operations, turn);
        let moved = mover.join().map_err(|_| anyhow::anyhow!("the moving thread panicked"))?;
        worked.map(|()| println!("{operations} operations beside {moved} moves"))
    })?;
    Ok(begin)
}

/// Moves files back and forth and reports the start of each move, until the receiver is dropped.
fn move_about(hotshelf: &Path, root: &Path, paths: &Mutex<Vec<String>>, begun: &SyncSender<()>, seed: u64) -> usize {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut moved = 0;
    while begun.send(()).is_ok() {
        let Some(path) = rng.choice(&*paths.lock()).cloned() else { continue };
        let to = rng.choice(["ssd", "hdd"]).unwrap_or("hdd");
        let mut command = Command::new(hotshelf);
        command.arg("migrate").arg(root.join(path)).args(["--to", to]).stdout(Stdio::null()).stderr(Stdio::null());
        // A removed or busy file is not an error here.
        moved += usize::from(command.status().is_ok_and(|status| status.success()));
    }
    moved
}

fn sync(path: &Path) -> Result<()> {
    File::open(path).and_then(|file| file.sync_all()).with_context(|| format!("fsync of {}", path.display()))
}

impl Workload<'_> {
    fn mark(&mut self, mark: DurabilityMark) {
        self.promises.apply(&mark);
        self.log.push(DiskEvent::DurabilityMark(mark));
    }

    /// Runs a few operations for each move, so that both progress.
    fn steps(&mut self, operations: usize, turn: Receiver<()>) -> Result<()> {
        for _ in 0..operations {
            if self.rng.u8(0..3) == 0 {
                turn.recv().context("the moving thread ended")?;
            }
            self.step()?;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        let present = self.promises.present();
        *self.paths.lock() = present.iter().map(|(_, path, _)| path.clone()).collect();
        if present.len() >= FILES_MAX {
            let (id, path, _) = self.pick(&present);
            return self.remove(id, &path);
        }
        if present.len() < 4 {
            return self.create_some();
        }
        let (id, path, sectors) = self.pick(&present);
        match self.rng.u8(0..100) {
            0..25 => self.create_some(),
            25..40 => self.overwrite(id, &path, sectors),
            40..52 => self.append(id, &path, sectors),
            52..70 => self.replace(&path),
            70..80 => self.rename(id, &path),
            80..86 => self.remove(id, &path),
            86..92 => self.truncate(id, &path, sectors),
            _ => self.rename_dir(),
        }
    }

    fn pick(&mut self, present: &[(FileId, String, u64)]) -> (FileId, String, u64) {
        present[self.rng.usize(..present.len())].clone()
    }

    fn new_path(&mut self) -> String {
        let dirs: Vec<&String> = self.dirs.iter().collect();
        let dir = dirs[self.rng.usize(..dirs.len())];
        format!("{dir}/f{}", self.next)
    }

    fn some_sectors(&mut self) -> u64 {
        if self.rng.u8(0..10) == 0 { self.rng.u64(200..700) } else { self.rng.u64(1..64) }
    }

    fn create_some(&mut self) -> Result<()> {
        let (sectors, synced) = (self.some_sectors(), self.rng.u8(0..10) < 7);
        self.create(sectors, synced).map(drop)
    }

    fn create(&mut self, sectors: u64, synced: bool) -> Result<(FileId, String)> {
        let path = self.new_path();
        let id = self.next;
        self.next += 1;
        self.mark(DurabilityMark::CreateStarted { id, path: path.clone() });
        let file = File::create_new(self.root.join(&path)).with_context(|| format!("creating {path}"))?;
        self.write(&file, id, 0, sectors)?;
        if synced {
            self.sync(&file, id)?;
        }
        Ok((id, path))
    }

    fn write(&mut self, file: &File, id: FileId, first: u64, sectors: u64) -> Result<()> {
        let version = self.version;
        self.version += 1;
        self.mark(DurabilityMark::WriteStarted { id, sectors: first..first + sectors, version });
        file.write_all_at(&stamped::sectors(id, first, sectors, version), first * SECTOR as u64).context("writing")
    }

    fn sync(&mut self, file: &File, id: FileId) -> Result<()> {
        if self.rng.bool() { file.sync_all() } else { file.sync_data() }.context("fsync")?;
        self.mark(DurabilityMark::Synced { id });
        Ok(())
    }

    fn open(&self, path: &str) -> Result<File> {
        OpenOptions::new().read(true).write(true).open(self.root.join(path)).with_context(|| format!("opening {path}"))
    }

    fn overwrite(&mut self, id: FileId, path: &str, sectors: u64) -> Result<()> {
        let file = self.open(path)?;
        for _ in 0..self.rng.u8(1..4) {
            let first = self.rng.u64(0..sectors.max(1));
            let count = self.rng.u64(1..=(sectors.max(1) - first).min(40));
            self.write(&file, id, first, count)?;
            if self.rng.bool() {
                self.sync(&file, id)?;
            }
        }
        Ok(())
    }

    fn append(&mut self, id: FileId, path: &str, sectors: u64) -> Result<()> {
        let file = self.open(path)?;
        let mut end = sectors;
        for _ in 0..self.rng.u8(1..5) {
            let count = self.rng.u64(1..30);
            self.write(&file, id, end, count)?;
            end += count;
            if self.rng.bool() {
                self.sync(&file, id)?;
            }
        }
        Ok(())
    }

    fn truncate(&mut self, id: FileId, path: &str, sectors: u64) -> Result<()> {
        let file = self.open(path)?;
        let left = self.rng.u64(1..=sectors.max(1)).min(sectors);
        self.mark(DurabilityMark::TruncateStarted { id, sectors: left });
        file.set_len(left * SECTOR as u64).context("truncating")?;
        self.sync(&file, id)
    }

    /// Replaces a file as editors do: a new file, synced, is renamed over the old one.
    fn replace(&mut self, path: &str) -> Result<()> {
        let sectors = self.some_sectors();
        let (id, new) = self.create(sectors, true)?;
        self.rename_to(id, &new, path)
    }

    fn rename(&mut self, id: FileId, path: &str) -> Result<()> {
        let to = self.new_path();
        self.next += 1;
        self.rename_to(id, path, &to)
    }

    fn rename_to(&mut self, id: FileId, from: &str, to: &str) -> Result<()> {
        self.mark(DurabilityMark::RenameStarted { id, to: to.to_owned() });
        std::fs::rename(self.root.join(from), self.root.join(to)).with_context(|| format!("renaming {from} to {to}"))?;
        if self.rng.bool() {
            for path in [from, to] {
                sync(self.root.join(path).parent().unwrap_or(self.root))?;
            }
            self.mark(DurabilityMark::RenameSynced { id });
        }
        Ok(())
    }

    fn remove(&mut self, id: FileId, path: &str) -> Result<()> {
        self.mark(DurabilityMark::RemoveStarted { id });
        std::fs::remove_file(self.root.join(path)).with_context(|| format!("removing {path}"))?;
        if self.rng.bool() {
            sync(self.root.join(path).parent().unwrap_or(self.root))?;
            self.mark(DurabilityMark::RemoveKept { id });
        }
        Ok(())
    }

    fn rename_dir(&mut self) -> Result<()> {
        let dirs: Vec<String> = self.dirs.iter().cloned().collect();
        let from = dirs[self.rng.usize(..dirs.len())].clone();
        let to = format!("d{}", self.next);
        self.next += 1;
        self.mark(DurabilityMark::DirRenameStarted { from: from.clone(), to: to.clone() });
        std::fs::rename(self.root.join(&from), self.root.join(&to)).with_context(|| format!("renaming {from} to {to}"))?;
        self.dirs.remove(&from);
        self.dirs.insert(to);
        sync(self.root)?;
        self.mark(DurabilityMark::DirRenameSynced);
        Ok(())
    }
}
