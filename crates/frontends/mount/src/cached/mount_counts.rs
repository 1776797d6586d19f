//! What `hotshelf status` shows of the reads and writes of one cached mount.
//!
//! The daemon is one process of the cache, whose counters are in the segment anyway. So when it begins it only notes in a file which ones
//! are its own and where they stand; whoever wants to know what the mount did reads the counters. An idle mount writes nothing.

use std::time::UNIX_EPOCH;

use cachedfs::{Config, CountsBaseline, Instance, Latency, ProcessReport, ReadFrom};
use serde::{Deserialize, Serialize};

use super::presence::{self, Presence};
use super::status_file;

/// What the daemon notes when it begins.
#[derive(Serialize, Deserialize)]
struct Note {
    since_s: u64,
    baseline: CountsBaseline,
}

/// The reads and writes of a mount since its daemon began, which is when it was mounted or last restarted. Reads that the kernel answered
/// from its page cache are not among them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MountCounts {
    /// When the daemon began, in seconds since the epoch.
    pub since_s: u64,
    /// Whether the daemon is the leader of the cache, which writes back for all of its processes.
    pub is_leader: bool,
    /// Whether other processes use the cache, too.
    #[serde(skip)]
    pub has_others: bool,
    /// What was read from memory, from the SSD if there is one, and from the slow side.
    pub tiers: Vec<TierReads>,
    /// Bytes that were read from the slow side.
    pub below_read_bytes: u64,
    /// Bytes that were written to the slow side by the daemon.
    pub below_written_bytes: u64,
    /// Bytes that were served without the slow side.
    pub saved_bytes: u64,
}

/// The reads of a mount from one tier.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TierReads {
    /// The name of the tier: `ram`, `ssd` or `below`.
    pub name: &'static str,
    /// Pages that were read from it.
    pub pages: u64,
    /// The share of all read pages that it served, 0 to 1.
    pub ratio: f64,
    /// How long reads from it took.
    pub read_latency: Latency,
}

/// Notes that the mount counts its reads and writes from now on.
pub fn begin(instance: &Instance, presence: Option<&Presence>) {
    let Some(path) = presence.map(Presence::counts_path) else { return };
    let since_s = UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
    let noted = match instance.counts_baseline() {
        Some(baseline) => status_file::write(&path, &Note { since_s, baseline }),
        None => Err(std::io::Error::other("the daemon has left the cache")),
    };
    if let Err(error) = noted {
        tracing::warn!(path = %path.display(), %error, "`hotshelf status` does not show the reads and writes of this mount");
        // One that is there is of another mount, which had the same device number and was killed, or of the program before this one.
        let _ = std::fs::remove_file(&path);
    }
}

/// Returns what this user's mount with this device number (`major:minor`) has read and written, while its daemon runs. None: that is not
/// known, or the mount is another user's, who may write anything.
pub fn read(cache: &Config, device: &str) -> Option<MountCounts> {
    let note: Note = status_file::read(cache, device, &presence::counts_path(cache, device)?)?;
    let report = Instance::counts_since(cache, &note.baseline).ok()??;
    Some(describe(note.since_s, &report))
}

fn describe(since_s: u64, report: &ProcessReport) -> MountCounts {
    let counts = &report.counts;
    let tier = |(from, name)| TierReads { name, pages: counts.pages(from), ratio: counts.ratio(from), read_latency: counts.latency(from) };
    let all = ReadFrom::ALL.into_iter().zip(["ram", "ssd", "below"]);
    MountCounts {
        since_s,
        is_leader: report.is_leader,
        has_others: report.processes > 1,
        tiers: all.filter(|(from, _)| *from != ReadFrom::Ssd || report.has_ssd).map(tier).collect(),
        below_read_bytes: counts.below_read_bytes(),
        below_written_bytes: counts.below_written_bytes(),
        saved_bytes: counts.saved_bytes(),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_cache_without_an_ssd_has_two_tiers() {
        let names = |has_ssd| {
            let shown = describe(7, &ProcessReport { has_ssd, ..ProcessReport::default() });
            assert_eq!((shown.since_s, shown.saved_bytes), (7, 0));
            shown.tiers.iter().map(|tier| tier.name).collect::<Vec<_>>()
        };
        assert_eq!((names(true), names(false)), (vec!["ram", "ssd", "below"], vec!["ram", "below"]));
    }

    #[test]
    fn a_note_is_used_while_its_daemon_runs_and_only_if_it_is_ours() {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
        let memory = Some("1MiB".parse().expect("a size"));
        let config = Config { runtime_dir: dir.path().to_owned(), memory, ..Config::default() };
        let instance = Instance::open(&config).expect("an instance");
        let device = crate::source::device_at(std::path::Path::new("/proc")).expect("mounted");
        // Nobody serves the mount yet.
        let (read, path) = (|| super::read(&config, &device), presence::counts_path(&config, &device).expect("a path"));
        assert_eq!(read(), None);
        let presence = Presence::new(&config, std::path::Path::new("/proc")).expect("locked");
        assert_eq!(read(), None);
        begin(&instance, Some(&presence));
        let shown = read().expect("noted");
        assert!(shown.since_s > 0 && shown.saved_bytes == 0 && shown.tiers.len() == 2);
        // What another user has put there.
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(4242), None).expect("given away");
            assert_eq!(read(), None);
        }
        for forged in ["", "{}", "{\"since_s\":1,\"baseline\":{\"slot\":255,\"generation\":1,\"counts\":{}}}"] {
            let _ = std::fs::remove_file(&path);
            std::fs::write(&path, forged).expect("written");
            assert_eq!(read(), None, "{forged}");
        }
        begin(&instance, Some(&presence));
        assert!(read().is_some());
        drop(presence);
        assert!(read().is_none() && !path.exists());
        instance.detach().expect("left");
    }
}
