//! The paper's small-files workload: create, delete, read and append 4 KiB with equal probability, over files of 4 to 16 KiB.
//!
//! There are twice as many names as files: a file is created under any free name. All data read is verified.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::{BLOCK, Files};

/// Names in a directory.
const DIR_NAMES: u32 = 1000;
/// Maximum number of blocks of a file.
const BLOCKS_MAX: u8 = 4;

/// When changes are made durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncPolicy {
    /// Once, at the end.
    End,
    /// All of them, after every nth operation.
    Every(u64),
    /// Each change before the next one.
    Each,
}

/// The parameters of the workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SmallFilesPlan {
    /// Number of files at the start.
    pub files: u32,
    /// Number of operations to measure.
    pub operations: u64,
    /// Number of threads, each with its own names.
    pub threads: u32,
    /// When changes are made durable.
    pub durable: SyncPolicy,
    /// Seed of the random number generator.
    pub seed: u64,
}

/// The names of one thread and their state.
struct Names {
    first: u32,
    /// Blocks of each file; 0: the file does not exist.
    blocks: Vec<u8>,
    /// Existing names first, then free ones.
    order: Vec<u32>,
    there: usize,
    rng: fastrand::Rng,
    page: Box<[u8; BLOCK]>,
}

fn dir_of(name: u32) -> String {
    format!("d{:04}", name / DIR_NAMES)
}

fn path_of(name: u32) -> String {
    format!("d{:04}/f{name:07}", name / DIR_NAMES)
}

impl Names {
    fn new(first: u32, count: u32, seed: u64) -> Names {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut order: Vec<u32> = (0..count).collect();
        rng.shuffle(&mut order);
        let mut page = Box::new([0; BLOCK]);
        rng.fill(&mut page[..]);
        Names { first, blocks: vec![0; count as usize], order, there: 0, rng, page }
    }

    fn fill(&mut self, name: u32, block: u8) {
        self.page[..4].copy_from_slice(&name.to_le_bytes());
        self.page[4] = block;
    }

    fn create(&mut self, files: &dyn Files, blocks: u8, sync: bool) -> anyhow::Result<()> {
        let pick = self.rng.usize(self.there..self.order.len());
        self.order.swap(self.there, pick);
        let name = self.order[self.there];
        self.fill(self.first + name, 0);
        files.create(&path_of(self.first + name), &self.page[..], sync).context("create")?;
        self.blocks[name as usize] = 1;
        self.there += 1;
        for _ in 1..blocks {
            self.append_to(files, name, sync)?;
        }
        Ok(())
    }

    fn append_to(&mut self, files: &dyn Files, name: u32, sync: bool) -> anyhow::Result<()> {
        self.fill(self.first + name, self.blocks[name as usize]);
        files.append(&path_of(self.first + name), &self.page[..], sync).context("append")?;
        self.blocks[name as usize] += 1;
        Ok(())
    }

    /// Appends to a file that can grow.
    fn append(&mut self, files: &dyn Files, sync: bool) -> anyhow::Result<bool> {
        for _ in 0..64 {
            let name = self.order[self.rng.usize(..self.there)];
            if self.blocks[name as usize] < BLOCKS_MAX {
                return self.append_to(files, name, sync).map(|()| true);
            }
        }
        Ok(false)
    }

    fn delete(&mut self, files: &dyn Files, sync: bool) -> anyhow::Result<()> {
        let pick = self.rng.usize(..self.there);
        self.there -= 1;
        self.order.swap(self.there, pick);
        let name = self.order[self.there];
        self.blocks[name as usize] = 0;
        let number = self.first + name;
        files.delete(&dir_of(number), &path_of(number), sync).context("delete")
    }

    fn read(&mut self, files: &dyn Files) -> anyhow::Result<()> {
        let name = self.order[self.rng.usize(..self.there)];
        let block = self.rng.u8(..self.blocks[name as usize]);
        let mut page = [0; BLOCK];
        let path = path_of(self.first + name);
        let done = files.read(&path, u64::from(block) * BLOCK as u64, &mut page).context("read")?;
        let right = done == BLOCK && page[..4] == (self.first + name).to_le_bytes() && page[4] == block && page[5..] == self.page[5..];
        ensure!(right, "{path}: block {block} is not what was written");
        Ok(())
    }

    fn step(&mut self, files: &dyn Files, sync: bool) -> anyhow::Result<()> {
        loop {
            match self.rng.u8(..4) {
                0 if self.there < self.order.len() => return self.create(files, 1, sync),
                1 if self.there > 1 => return self.delete(files, sync),
                2 if self.there > 0 => return self.read(files),
                3 if self.there > 0 && self.append(files, sync)? => return Ok(()),
                _ => {}
            }
        }
    }
}

/// Calls `work` for all names, one thread for each.
fn all(names: &mut [Names], work: impl Fn(&mut Names) -> anyhow::Result<()> + Sync) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = names.iter_mut().map(|names| scope.spawn(move || work(names))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}

/// One directory, used like a whole file system.
pub struct TestFiles<'f> {
    files: &'f dyn Files,
    dir: &'f str,
}

impl<'f> TestFiles<'f> {
    /// Creates the directory.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn new(files: &'f dyn Files, dir: &'f str) -> std::io::Result<TestFiles<'f>> {
        files.make_dir(dir)?;
        Ok(TestFiles { files, dir })
    }

    fn path(&self, path: &str) -> String {
        format!("{}/{path}", self.dir)
    }
}

impl Files for TestFiles<'_> {
    fn make_dir(&self, path: &str) -> std::io::Result<()> {
        self.files.make_dir(&self.path(path))
    }
    fn create(&self, path: &str, data: &[u8], sync: bool) -> std::io::Result<()> {
        self.files.create(&self.path(path), data, sync)
    }
    fn append(&self, path: &str, data: &[u8], sync: bool) -> std::io::Result<()> {
        self.files.append(&self.path(path), data, sync)
    }
    fn read(&self, path: &str, at: u64, to: &mut [u8]) -> std::io::Result<usize> {
        self.files.read(&self.path(path), at, to)
    }
    fn delete(&self, dir: &str, path: &str, sync: bool) -> std::io::Result<()> {
        self.files.delete(&self.path(dir), &self.path(path), sync)
    }
    fn sync(&self) -> std::io::Result<()> {
        self.files.sync()
    }
}

/// The measured times of the workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SmallFilesTimes {
    /// Time to create the initial files, with a sync.
    pub setup: Duration,
    /// Time of the operations, with a final sync.
    pub mix: Duration,
    /// Time of the final sync, part of `mix`.
    pub last_sync: Duration,
}

/// Creates the files, calls `begin` and does the operations.
///
/// # Errors
/// Errors of the file system; data differs from what was written.
pub fn run(files: &dyn Files, plan: &SmallFilesPlan, begin: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<SmallFilesTimes> {
    let (each, at) = (plan.files / plan.threads, Instant::now());
    let seed = |thread: u32| plan.seed.wrapping_mul(1009).wrapping_add(u64::from(thread));
    let mut names: Vec<Names> = (0..plan.threads).map(|thread| Names::new(thread * 2 * each, 2 * each, seed(thread))).collect();
    for dir in 0..(2 * each * plan.threads).div_ceil(DIR_NAMES) {
        files.make_dir(&dir_of(dir * DIR_NAMES))?;
    }
    all(&mut names, |names| {
        for _ in 0..each {
            let blocks = names.rng.u8(1..=BLOCKS_MAX);
            names.create(files, blocks, false)?;
        }
        Ok(())
    })?;
    files.sync()?;
    let setup = at.elapsed();
    begin()?;
    let at = Instant::now();
    let operations = plan.operations / u64::from(plan.threads);
    all(&mut names, |names| {
        for n in 1..=operations {
            names.step(files, plan.durable == SyncPolicy::Each)?;
            if matches!(plan.durable, SyncPolicy::Every(every) if n % every == 0) {
                files.sync()?;
            }
        }
        Ok(())
    })?;
    let ended = Instant::now();
    files.sync()?;
    Ok(SmallFilesTimes { setup, mix: at.elapsed(), last_sync: ended.elapsed() })
}
