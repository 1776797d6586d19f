//! Information of the kernel about PCI devices, read from /sys.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::address::Address;

/// The class of NVMe controllers: mass storage, non-volatile memory, NVMe.
pub const NVME_CLASS: u32 = 0x01_08_02;

/// The root of /sys and /dev: `/`, or a directory in tests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tree {
    root: PathBuf,
}

impl Default for Tree {
    fn default() -> Self {
        Tree::new("/")
    }
}

impl Tree {
    /// Creates a tree below the given directory.
    pub fn new(root: impl Into<PathBuf>) -> Tree {
        Tree { root: root.into() }
    }

    /// A path such as "sys/bus/pci", where it is in this tree.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    /// The first line of a file, without blanks around it; none: it cannot be read.
    pub fn word(&self, path: impl AsRef<Path>) -> Option<String> {
        word(&self.path(path))
    }

    /// Returns the directory of a function, whether or not it exists.
    pub fn function(&self, address: Address) -> FunctionPath {
        FunctionPath { address, path: self.path("sys/bus/pci/devices").join(address.to_string()) }
    }

    /// Returns all functions of a class, sorted by address.
    ///
    /// # Errors
    /// The machine has no PCI bus.
    pub fn of_class(&self, class: u32) -> io::Result<Vec<FunctionPath>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.path("sys/bus/pci/devices"))? {
            let Ok(address) = entry?.file_name().to_string_lossy().parse() else { continue };
            let place = self.function(address);
            if place.class() == Some(class) {
                found.push(place);
            }
        }
        found.sort_by_key(|place| place.address);
        Ok(found)
    }
}

fn word(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.lines().next().unwrap_or("").trim().to_owned())
}

/// The directory of one PCI function in /sys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FunctionPath {
    /// The address of the function.
    pub address: Address,
    /// The path of the directory.
    pub path: PathBuf,
}

impl FunctionPath {
    /// Whether there is such a function.
    pub fn exists(&self) -> bool {
        self.path.exists()
    }

    /// Returns class, subclass and interface in three bytes.
    pub fn class(&self) -> Option<u32> {
        let text = word(&self.path.join("class"))?;
        u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
    }

    /// A file of it, its first line.
    pub fn word(&self, name: &str) -> Option<String> {
        word(&self.path.join(name))
    }

    /// The driver that has it.
    pub fn driver(&self) -> Option<String> {
        last_name(&self.path.join("driver"))
    }

    /// The number of its IOMMU group; none: it is behind no IOMMU.
    pub fn group(&self) -> Option<String> {
        last_name(&self.path.join("iommu_group"))
    }

    /// Returns all functions of its IOMMU group, including itself.
    pub fn group_members(&self) -> Vec<String> {
        self.names("iommu_group/devices", "")
    }

    /// Names in a directory of it that begin so, sorted.
    pub fn names(&self, dir: &str, begin: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path.join(dir)) else { return Vec::new() };
        let mut names: Vec<String> = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.retain(|name| name.starts_with(begin));
        names.sort();
        names
    }
}

/// What a link points at.
fn last_name(link: &Path) -> Option<String> {
    Some(fs::canonicalize(link).ok()?.file_name()?.to_string_lossy().into_owned())
}
