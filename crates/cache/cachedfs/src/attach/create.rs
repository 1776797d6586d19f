//! A new instance: its sizes, its SSD and its segment.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use datapath::engine::{CacheEngine, Layout, Limits, Sizes};
use pagecache::Shape as Frames;
use rustix::fs::{MemfdFlags, memfd_create, statvfs, unlink};
use rustix::io::Errno;
use shm::{ProcessSlots, Region};

use super::{FRAMES_MIN, Found, MEMORY_DEFAULT_MAX, processes, refused};
use crate::Size;
use crate::config::Config;
use crate::error::{Error, Kind};
use crate::note::{Note, NoteContent};
use crate::place::InstancePaths;
use crate::ssd::{Ssd, Take};

/// The parts of a new instance.
struct Plan {
    sizes: Sizes,
    limits: Limits,
    ssd: Option<Ssd>,
    /// The reason why it uses no SSD, though one is configured.
    without: Option<Error>,
    settings: String,
    running: Config,
}

impl Plan {
    fn format(&self, region: &Region) {
        CacheEngine::format(region, self.sizes, &self.limits, self.running.mode, seed(), &self.settings);
        if let Some(error) = &self.without {
            CacheEngine::without_ssd(region, error.errno());
        }
    }
}

fn plan(config: &Config) -> Result<Plan, Error> {
    let mut running = config.clone();
    let (ssd, without) = first_ssd(config)?;
    running.ssd = config.ssd.as_deref().map(crate::user_space_nvme::absolute);
    running.drained = is_drained(config);
    let frames = u32::try_from((memory(config)? / 4096).max(FRAMES_MIN)).map_err(|_| Error::invalid("[cache] memory: at most 16 TiB"))?;
    running.memory = Some(Size::Bytes(u64::from(frames) * 4096));
    let sizes = Sizes { frames: Frames::new(frames), ssd: ssd.as_ref().map(|ssd| ssd.shape), files: config.files };
    let settings = toml::to_string(&std::collections::BTreeMap::from([("cache", &running)]))
        .map_err(|error| Error::invalid(format!("the configuration cannot be stored: {error}")))?;
    if settings.len() > datapath::engine::SETTINGS_BYTES - 8 {
        return Err(Error::invalid("[cache] rules: too many: the whole table has 12 KiB at most"));
    }
    Ok(Plan { limits: limits(config, &sizes, u64::from(frames) * 4096), sizes, ssd, without, settings, running })
}

/// Returns whether the SSD is drained. One that may have what no file has is used: a command that drains may have been killed before the
/// cache ceased to use it.
fn is_drained(config: &Config) -> bool {
    let said = || note_of(config).as_ref().and_then(Note::read);
    config.drained && !matches!(said(), Some(NoteContent::Dirty | NoteContent::Lost))
}

/// Opens the SSD of a new instance. An unusable one is left out if nothing on it can be missed.
fn first_ssd(config: &Config) -> Result<(Option<Ssd>, Option<Error>), Error> {
    let Some(path) = config.ssd.as_deref().filter(|_| !is_drained(config)) else { return Ok((None, None)) };
    let note = note_of(config);
    let said = note.as_ref().and_then(Note::read);
    match open_first(path, config, said) {
        Ok(ssd) => {
            if let Some(note) = note.filter(|_| config.mode.keeps_dirty()) {
                note.write_dirty().map_err(|error| {
                    let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                    let what = format!("{}: the note that it may hold what no file has cannot be written: {error}", path.display());
                    Error::new(Kind::System, errno, what)
                })?;
            }
            Ok((Some(ssd), None))
        }
        Err(error) if !config.mode.keeps_dirty() && matches!(said, Some(NoteContent::Clean | NoteContent::Void)) => Ok((None, Some(error))),
        Err(error) if said == Some(NoteContent::Clean) => Err(error),
        Err(error) => {
            let what = format!(
                "{error}. The cache does not begin without its SSD, which may hold what no file has yet: bring it back, \
                or see `hotshelf cache destroy --help` on giving that up"
            );
            Err(Error::new(error.kind(), Errno::from_raw_os_error(error.errno()), what))
        }
    }
}

fn open_first(path: &Path, config: &Config, said: Option<NoteContent>) -> Result<Ssd, Error> {
    let failed = |what: &str| Err(Error::new(Kind::Device, Errno::IO, format!("{}: {what}", path.display())));
    match said {
        Some(NoteContent::Void) => failed(
            "this SSD failed while it was in use, and files were written without it, so what it holds is old: \
             `hotshelf cache create --force` makes it anew",
        ),
        Some(NoteContent::Lost) => failed("this SSD failed while it was in use, with pages that no file has"),
        Some(NoteContent::Dirty) => Ssd::open(path, Take::First(None), config),
        Some(NoteContent::Clean) | None => Ssd::open(path, Take::First(config.ssd_size), config),
    }
}

/// Returns the note about the SSD. There is none if several users share it, since no one user can keep it.
pub(super) fn note_of(config: &Config) -> Option<Note> {
    config.ssd.as_deref().filter(|_| config.group.is_none()).and_then(Note::of)
}

/// Returns the limits of the leader.
pub(super) fn limits(config: &Config, sizes: &Sizes, memory_bytes: u64) -> Limits {
    let slots = sizes.ssd.map_or(0, |shape| shape.slots());
    let mut limits = Limits::new(slots);
    limits.dirty_age_ms = u32::try_from(config.dirty_age.0.as_millis()).unwrap_or(u32::MAX);
    limits.dirty_percent = (config.dirty_limit.of(memory_bytes).saturating_mul(100) / memory_bytes.max(1)).clamp(1, 90) as u32;
    limits.read_ahead = u32::try_from(config.read_ahead.of(memory_bytes)).unwrap_or(u32::MAX);
    limits.read_around = u32::try_from(config.read_around.of(memory_bytes)).unwrap_or(u32::MAX);
    limits.admission.stream_bytes = config.stream_cutoff.of(memory_bytes);
    if !config.second_touch {
        limits.admission.ghosts = 0;
    }
    if let Some(size) = config.bytes_per_day {
        limits.admission.bytes_per_day = size.of(u64::from(slots) * 4096);
    }
    limits
}

/// Returns the memory for pages, in bytes.
pub(super) fn memory(config: &Config) -> Result<u64, Error> {
    let ram = machine_memory_bytes();
    let Some(size) = config.memory else {
        // Where shared memory is small (containers), half of its free space.
        let free =
            if config.private { u64::MAX } else { statvfs(&config.runtime_dir).map_or(u64::MAX, |stat| stat.f_bavail * stat.f_frsize) };
        return Ok((ram / 4).min(MEMORY_DEFAULT_MAX).min(free / 2));
    };
    let bytes = size.of(ram);
    if bytes > ram { Err(Error::invalid(format!("[cache] memory: {bytes} bytes are more than there is ({ram})"))) } else { Ok(bytes) }
}

/// Returns the bytes of RAM that this process may use: the machine's, or fewer where its control group has a limit.
pub fn machine_memory_bytes() -> u64 {
    let system = rustix::system::sysinfo();
    (system.totalram as u64).saturating_mul(u64::from(system.mem_unit)).min(cgroup_limit().unwrap_or(u64::MAX))
}

/// Returns the memory limit of the control group of this process.
fn cgroup_limit() -> Option<u64> {
    let group = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = group.lines().find_map(|line| line.strip_prefix("0::"))?;
    fs::read_to_string(Path::new("/sys/fs/cgroup").join(path.trim_start_matches('/')).join("memory.max")).ok()?.trim().parse().ok()
}

fn seed() -> u64 {
    let uuid = crate::ssd::uuid();
    uuid[..8].iter().fold(0, |seed, byte| seed << 8 | u64::from(*byte))
}

pub(super) fn make(config: &Config, place: InstancePaths) -> Result<Found, Error> {
    // A leftover lock file belongs to a removed segment.
    let _ = unlink(&place.locks);
    let plan = plan(config)?;
    let bytes = Layout::of(plan.sizes).bytes;
    let failed = |error: std::io::Error| {
        let what =
            format!("{}: making {bytes} bytes of shared memory: {error}; say less memory, or another runtime_dir", place.segment.display());
        Error::new(Kind::System, Errno::from_io_error(&error).unwrap_or(Errno::NOMEM), what)
    };
    let region = Region::create_file_with(&place.segment, bytes, place.sharing, |region| {
        plan.format(region);
        Ok(())
    });
    let region = Arc::new(region.map_err(failed)?);
    let locks = ProcessSlots::open_lock_file(&place.locks, place.sharing).map_err(|why| refused(&place.locks, &why))?;
    let processes = processes(&region, &Layout::of(plan.sizes), locks)?;
    Ok(Found { region, processes, ssd: plan.ssd, without: plan.without, running: plan.running, place: Some(place) })
}

/// Memory that this process shares with its children.
pub(super) fn private(config: &Config) -> Result<Found, Error> {
    let plan = plan(config)?;
    let layout = Layout::of(plan.sizes);
    let failed = |error: std::io::Error| {
        let what = format!("{} bytes of memory for the cache: {error}; say less memory", layout.bytes);
        Error::new(Kind::System, Errno::from_io_error(&error).unwrap_or(Errno::NOMEM), what)
    };
    let region = Arc::new(Region::shared("hotshelf", layout.bytes).map_err(failed)?);
    plan.format(&region);
    let locks = memfd_create("hotshelf-locks", MemfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
    let processes = processes(&region, &layout, locks)?;
    Ok(Found { region, processes, ssd: plan.ssd, without: plan.without, running: plan.running, place: None })
}
