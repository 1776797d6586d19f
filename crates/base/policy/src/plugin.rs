//! A user's own policy, loaded from a shared object (`include/hotshelf_policy.h`).
//!
//! The shared object is code of the user's choice and runs with our rights; so it must belong to us or root
//! and nobody else may be able to write or exchange it. Its results are not trusted: records are kept here,
//! a victim that is not known ends the search, and at most as many files are requested as there are. The only unsafe
//! code of this crate is here.
#![expect(unsafe_code, reason = "calls into a shared object")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::list::Queues;
use crate::{BUILT_IN, FileId, Policy, Record};

/// The reason why a policy could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// No built-in name and no path.
    #[error("there is no policy `{name}`: use one of {}, or the path of a shared object", BUILT_IN.join(", "))]
    Unknown {
        /// As given.
        name: String,
    },
    /// The file cannot be read.
    #[error("policy {path}: {source}")]
    File {
        /// As given.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// Others could change it.
    #[error(
        "others can change {path}: a policy and each directory above it must belong to you or root and be writable by \
         the owner only (chmod go-w)"
    )]
    Unsafe {
        /// The file, or the directory above it.
        path: PathBuf,
    },
    /// Not a loadable object, or without the entry point.
    #[error("policy {path} cannot be loaded: {detail} (see hotshelf_policy.h)")]
    Load {
        /// As given.
        path: PathBuf,
        /// What the loader said.
        detail: String,
    },
    /// Made for another version of the interface.
    #[error(
        "policy {path} is for version {found} of the interface, this hotshelf has {ours}: build it again with this \
         hotshelf_policy.h"
    )]
    Version {
        /// As given.
        path: PathBuf,
        /// What it says.
        found: u32,
        /// What we have.
        ours: u32,
    },
}

const ABI: u32 = 1;
/// Of a name, in characters: it is shown in one line.
const NAME_MAX: usize = 64;
/// How far `rank` looks.
const RANKS_MAX: usize = 1000;

#[repr(C)]
struct Table {
    abi: u32,
    table_bytes: u32,
    name: *const c_char,
    create: Option<extern "C" fn() -> *mut c_void>,
    destroy: Option<extern "C" fn(*mut c_void)>,
    insert: Option<extern "C" fn(*mut c_void, u64, u64, u32, u16)>,
    touch: Option<extern "C" fn(*mut c_void, u64, u32)>,
    resize: Option<extern "C" fn(*mut c_void, u64, u64)>,
    remove: Option<extern "C" fn(*mut c_void, u64)>,
    victim: Option<extern "C" fn(*mut c_void, u64, *mut u64) -> c_int>,
}

/// The calls of a table, all there.
struct Calls {
    destroy: extern "C" fn(*mut c_void),
    insert: extern "C" fn(*mut c_void, u64, u64, u32, u16),
    touch: extern "C" fn(*mut c_void, u64, u32),
    resize: extern "C" fn(*mut c_void, u64, u64),
    remove: extern "C" fn(*mut c_void, u64),
    victim: extern "C" fn(*mut c_void, u64, *mut u64) -> c_int,
}

/// Runs a policy from a shared object.
pub struct Plugin {
    name: String,
    policy: *mut c_void,
    calls: Calls,
    records: Queues,
    /// Last, so that the code is there until everything else is gone.
    _library: Library,
}

// SAFETY: the interface says that calls come one at a time from any thread; `&mut self` sees to the first
// half, and nothing here is tied to the thread that made it.
unsafe impl Send for Plugin {}

impl Plugin {
    /// Loads a shared object and makes its policy.
    pub fn load(path: &Path) -> Result<Plugin, PolicyError> {
        let path_buf = || path.to_owned();
        let file = |source| PolicyError::File { path: path_buf(), source };
        let load = |detail: String| PolicyError::Load { path: path_buf(), detail };
        // Without links, so that what is looked at is what is loaded.
        let real = std::fs::canonicalize(path).map_err(file)?;
        for part in real.ancestors() {
            if !only_ours(&std::fs::symlink_metadata(part).map_err(file)?) {
                return Err(PolicyError::Unsafe { path: part.to_owned() });
            }
        }
        // The loader would wait for ever for what comes out of a pipe.
        if !real.is_file() {
            return Err(load("it is not a regular file".into()));
        }
        // Now, not lazily: a function that is nowhere is an error here, and the end of the mount at its first call.
        // SAFETY: loading runs the object's initialisers; the user asked for exactly this object, and nobody
        // but the user or root can have written it.
        let library = unsafe { Library::open(Some(real), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| load(one_line(&error)))?;
        // SAFETY: the header gives the symbol this type.
        let entry = unsafe { library.get::<extern "C" fn() -> *const Table>(b"hotshelf_policy_v1\0") };
        let table = entry.map_err(|error| load(one_line(&error)))?();
        if table.is_null() || !table.is_aligned() {
            return Err(load("hotshelf_policy_v1 gave no table".into()));
        }
        // SAFETY: not null and aligned; every version of the table begins with these two numbers.
        let (abi, bytes) = unsafe { ((*table).abi, (*table).table_bytes) };
        if abi != ABI {
            return Err(PolicyError::Version { path: path_buf(), found: abi, ours: ABI });
        }
        if (bytes as usize) < size_of::<Table>() {
            return Err(load(format!("its table has {bytes} bytes, not {}", size_of::<Table>())));
        }
        // SAFETY: of our version and not smaller than ours; valid for the life of the process by the header.
        let table = unsafe { &*table };
        let name = if table.name.is_null() {
            path.display().to_string()
        } else {
            // SAFETY: the header requires a string that ends with a zero byte.
            let name = unsafe { CStr::from_ptr(table.name) }.to_string_lossy();
            name.chars().filter(|c| !c.is_control()).take(NAME_MAX).collect()
        };
        let missing = || load("its table has empty places".into());
        let calls = Calls {
            destroy: table.destroy.ok_or_else(missing)?,
            insert: table.insert.ok_or_else(missing)?,
            touch: table.touch.ok_or_else(missing)?,
            resize: table.resize.ok_or_else(missing)?,
            remove: table.remove.ok_or_else(missing)?,
            victim: table.victim.ok_or_else(missing)?,
        };
        let policy = table.create.ok_or_else(missing)?();
        if policy.is_null() {
            return Err(load("it could not make a policy".into()));
        }
        Ok(Plugin { name, policy, calls, records: Queues::default(), _library: library })
    }

    /// The first of its order, until it names a file that is not here. An honest order has each file once.
    fn order(&self, limit: usize) -> impl Iterator<Item = FileId> + '_ {
        (0..limit.min(self.records.len()) as u64).map_while(|nth| {
            let mut file = 0;
            let there = (self.calls.victim)(self.policy, nth, &raw mut file) == 1;
            there.then_some(FileId(file)).filter(|file| self.records.get(*file).is_some())
        })
    }
}

/// Whether nobody but us and root can change a file, or exchange what is in a directory.
fn only_ours(meta: &Metadata) -> bool {
    let owner = meta.uid() == 0 || meta.uid() == rustix::process::geteuid().as_raw();
    // In a sticky directory (/tmp) others can add, but not exchange.
    let sticky = meta.is_dir() && meta.mode() & 0o1000 != 0;
    owner && (sticky || meta.mode() & 0o022 == 0)
}

/// What the loader said; the error itself only tells which call failed.
fn one_line(error: &libloading::Error) -> String {
    let message = std::error::Error::source(error).map_or_else(|| error.to_string(), |source| source.to_string());
    message.lines().next().unwrap_or("unknown").to_owned()
}

impl Drop for Plugin {
    fn drop(&mut self) {
        (self.calls.destroy)(self.policy);
    }
}

impl Policy for Plugin {
    fn name(&self) -> &str {
        &self.name
    }

    fn insert(&mut self, record: Record) {
        if self.records.get(record.file).is_some() {
            return self.resize(record.file, record.size);
        }
        self.records.push(0, record);
        (self.calls.insert)(self.policy, record.file.0, record.size, record.last_open_s, record.opens);
    }

    fn touch(&mut self, file: FileId, now_s: u32) {
        if self.records.record_open(file, now_s).is_some() {
            // For `export`.
            self.records.send_to_tail(file, 0);
            (self.calls.touch)(self.policy, file.0, now_s);
        }
    }

    fn resize(&mut self, file: FileId, size: u64) {
        if self.records.resize(file, size) {
            (self.calls.resize)(self.policy, file.0, size);
        }
    }

    fn remove(&mut self, file: FileId) {
        if self.records.remove(file).is_some() {
            (self.calls.remove)(self.policy, file.0);
        }
    }

    fn victim(&mut self, limit: usize, usable: &mut dyn FnMut(FileId) -> bool) -> Option<FileId> {
        self.order(limit).find(|file| usable(*file))
    }

    fn record(&self, file: FileId) -> Option<Record> {
        self.records.get(file).copied()
    }

    /// Known only for the first thousand of the order; the rest is said to leave last.
    fn rank(&self, file: FileId) -> Option<f64> {
        self.records.get(file)?;
        let place = self.order(RANKS_MAX).position(|other| other == file);
        Some(place.map_or(1.0, |place| place as f64 / self.records.len() as f64))
    }

    fn len(&self) -> usize {
        self.records.len()
    }

    /// By last open or insertion: the plug-in's own order cannot be asked for as a whole in bounded time.
    fn export(&self, each: &mut dyn FnMut(Record)) {
        self.records.iter(0).for_each(each);
    }
}
