//! The kernel's side: a directory of any file system.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::Files;

/// A directory of a kernel file system.
pub struct Kernel {
    root: PathBuf,
    dir: File,
}

impl Kernel {
    /// Uses this directory as the root of all paths.
    ///
    /// # Errors
    /// The directory does not exist.
    pub fn new(root: PathBuf) -> io::Result<Kernel> {
        let dir = File::open(&root)?;
        Ok(Kernel { root, dir })
    }
}

impl Files for Kernel {
    fn make_dir(&self, path: &str) -> io::Result<()> {
        std::fs::create_dir(self.root.join(path))
    }

    fn create(&self, path: &str, data: &[u8], sync: bool) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create_new(true).open(self.root.join(path))?;
        file.write_all_at(data, 0)?;
        if sync { file.sync_all() } else { Ok(()) }
    }

    fn append(&self, path: &str, data: &[u8], sync: bool) -> io::Result<()> {
        use std::io::Write;
        let mut file = OpenOptions::new().append(true).open(self.root.join(path))?;
        file.write_all(data)?;
        if sync { file.sync_all() } else { Ok(()) }
    }

    fn read(&self, path: &str, at: u64, to: &mut [u8]) -> io::Result<usize> {
        File::open(self.root.join(path))?.read_at(to, at)
    }

    fn delete(&self, dir: &str, path: &str, sync: bool) -> io::Result<()> {
        std::fs::remove_file(self.root.join(path))?;
        if sync { File::open(self.root.join(dir))?.sync_all() } else { Ok(()) }
    }

    fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.dir)?)
    }
}
