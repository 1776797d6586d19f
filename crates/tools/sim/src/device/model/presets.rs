//! Named devices: those of the five papers, and latencies for experiments with completion modes.
//!
//! A data sheet states rates and seek times, and little about the internals. Each preset says which figures are from its sheet
//! ([`DataSheet`], which the tests check) and which are derived or typical for the class of flash. **Confidence**: figures marked *seen*
//! were read in the source named beside them; those marked *recalled* are from memory and should be checked before a claim depends on
//! them.
//!
//! **What the tests prove**: that the parts together yield the sheet's figures. Rates from which tPROG and the controller interval were
//! derived come out right by construction; random reads at depth 1 are the sum of chosen parts, not a sheet's figure.

use std::time::Duration;

use block::Geometry;

use super::hdd::HddParams;
use super::ssd::SsdParams;

/// Figures of a data sheet; 10^6 bytes per second, requests of 128 KiB and 4 KiB.
#[derive(Clone, Copy, Debug)]
pub struct DataSheet {
    /// Rate of sequential reads, MB/s.
    pub read_mb_s: f64,
    /// Rate of sequential writes, MB/s.
    pub write_mb_s: f64,
    /// Random reads per second ...
    pub read_iops: f64,
    /// Queue depth of the random reads.
    pub read_depth: u32,
    /// Random reads per second at depth 1 (1 / latency). Sheets rarely state it: typical for the class.
    pub read_iops_single: f64,
    /// Random writes per second: data-centre drives written full, others clean.
    pub write_iops: f64,
}

/// A named model of a solid-state drive.
#[derive(Clone, Copy, Debug)]
pub struct SsdPreset {
    /// Product name, in lower case, for commands.
    pub name: &'static str,
    /// Capacity of the drive, in bytes.
    pub bytes: u64,
    /// Maximum queue depth of the interface (SATA: 32).
    pub depth_max: u32,
    /// Internal parameters of the drive model.
    pub params: SsdParams,
    /// Data-sheet figures that the model must reach.
    pub sheet: DataSheet,
    /// The sheet's random writes are those of a clean drive.
    pub clean: bool,
    /// A power cut empties the write buffer.
    pub volatile_cache: bool,
}

/// A named model of a hard disk.
#[derive(Clone, Copy, Debug)]
pub struct HddPreset {
    /// Product name, in lower case, for commands.
    pub name: &'static str,
    /// Capacity of the disk, in bytes.
    pub bytes: u64,
    /// Internal parameters; seek times and rates are from the sheet.
    pub params: HddParams,
}

impl SsdPreset {
    /// Returns the block geometry of the whole drive.
    pub fn geometry(&self) -> Geometry {
        Geometry { volatile_cache: self.volatile_cache, ..Geometry::plain(512, self.bytes / 512) }
    }
}

impl HddPreset {
    /// Returns the block geometry of the whole disk.
    pub fn geometry(&self) -> Geometry {
        Geometry { volatile_cache: true, discard: false, write_zeroes: false, ..Geometry::plain(512, self.bytes / 512) }
    }
}

const fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

const fn ns(ns: u64) -> Duration {
    Duration::from_nanos(ns)
}

const GB: u64 = 1_000_000_000;

/// testFS with SPDK, section 5.1: "Seagate PLC Nytro 5000", 400 GB: by the capacity the high-endurance M.2 model XP400HE30002
/// (product manual 100810195).
///
/// Recalled: 2500 / 900 MB/s sequential, 200 000 random reads, 40 000 sustained random writes per second, buffer protected by
/// capacitors. Flash: MLC of 128 Gbit, 512 GiB of it for 400 GB, so 32 dies; pages of 16 KiB (*seen*: OpenZFS documentation,
/// "Hardware", flash pages) on two planes; tR 65 us and a bus of 400 MB/s are that generation's. Derived: tPROG 1150 us from
/// 32 dies x 32 KiB / 900 MB/s, within the 1 to 1.4 ms of such flash; 81 % in use when collected from 900 MB/s against 40 000
/// x 4 KiB/s; the controller's interval from the reads per second. Chosen: 10 us of link and controller for a read, so that
/// one read at a time takes 87 us as such drives do; 16 us for a write into the buffer, the 15 to 25 us of the class.
pub const NYTRO_5000_400GB: SsdPreset = SsdPreset {
    name: "nytro-5000-400gb",
    bytes: 400 * GB,
    depth_max: 1024,
    params: SsdParams {
        channels: 8,
        dies: 32,
        page_bytes: 16 << 10,
        planes: 2,
        programs_per_block: 256,
        read_page: us(65),
        program_page: us(1150),
        erase: us(5000),
        channel_mb_s: 400,
        read_mb_s: 2500,
        write_mb_s: 2500,
        half_duplex: false,
        read_latency: us(10),
        write_latency: us(16),
        read_interval: us(5),
        write_interval: us(5),
        buffer_bytes: 16 << 20,
        protected_buffer: true,
        collected_percent: 81,
    },
    sheet: DataSheet {
        read_mb_s: 2500.0,
        write_mb_s: 900.0,
        read_iops: 200_000.0,
        read_depth: 128,
        read_iops_single: 11_500.0,
        write_iops: 40_000.0,
    },
    clean: false,
    volatile_cache: false,
};

/// SPDK-based user-level SSD cache, Table I: "WDS250G3X0E-00B3N0", which is the WD_BLACK SN770 of 250 GB (the table says 500 GB).
///
/// *Seen*: 4000 / 2000 MB/s (a dealer's copy of the product sheet), 112-layer TLC of Kioxia, no DRAM. Recalled: 240 000 random
/// reads, 470 000 random writes per second. The rates are those of the SLC mode; what comes after it is not modelled. Four
/// dies of four planes that read independently count as 16; tPROG from 16 x 16 KiB / 2000 MB/s. Chosen: 35 us tR, 12 us of link
/// and controller.
pub const SN770_250GB: SsdPreset = SsdPreset {
    name: "sn770-250gb",
    bytes: 250 * GB,
    depth_max: 1024,
    params: SsdParams {
        channels: 4,
        dies: 16,
        page_bytes: 16 << 10,
        planes: 1,
        programs_per_block: 448,
        read_page: us(35),
        program_page: us(131),
        erase: us(3500),
        channel_mb_s: 1200,
        read_mb_s: 4000,
        write_mb_s: 4000,
        half_duplex: false,
        read_latency: us(12),
        write_latency: us(12),
        read_interval: ns(4167),
        write_interval: ns(2128),
        buffer_bytes: 4 << 20,
        protected_buffer: false,
        collected_percent: 75,
    },
    sheet: DataSheet {
        read_mb_s: 4000.0,
        write_mb_s: 2000.0,
        read_iops: 240_000.0,
        read_depth: 128,
        read_iops_single: 19_500.0,
        write_iops: 470_000.0,
    },
    clean: true,
    volatile_cache: true,
};

/// The NVMeDirect paper names its device only "a commercial NVMe SSD"; the paper on the same library before it (its reference 21,
/// HotStorage 2016) used the Intel 750 of 400 GB.
///
/// Recalled: 2200 / 900 MB/s, 430 000 random reads, 230 000 random writes per second, protected buffer. 18 channels as in
/// the data-centre drive it is made from; 36 dies; tPROG from 36 x 32 KiB / 900 MB/s. The sheet's random writes are over 8 GB
/// of the drive: a clean one.
pub const INTEL_750_400GB: SsdPreset = SsdPreset {
    name: "intel-750-400gb",
    bytes: 400 * GB,
    depth_max: 1024,
    params: SsdParams {
        channels: 18,
        dies: 36,
        page_bytes: 16 << 10,
        planes: 2,
        programs_per_block: 256,
        read_page: us(55),
        program_page: us(1290),
        erase: us(5000),
        channel_mb_s: 400,
        read_mb_s: 2200,
        write_mb_s: 2200,
        half_duplex: false,
        read_latency: us(10),
        write_latency: us(12),
        read_interval: ns(2300),
        write_interval: ns(4200),
        buffer_bytes: 32 << 20,
        protected_buffer: true,
        collected_percent: 75,
    },
    sheet: DataSheet {
        read_mb_s: 2200.0,
        write_mb_s: 900.0,
        read_iops: 430_000.0,
        read_depth: 256,
        read_iops_single: 13_000.0,
        write_iops: 230_000.0,
    },
    clean: true,
    volatile_cache: false,
};

/// nofscache (MBWU), section "Experiment Results": "a Toshiba NVMe drive" in a CloudLab m510, which is one of 256 GB of the XG3 line.
///
/// Recalled, for the line and not for this size: 2400 / 1150 MB/s; the random figures are the class's. 16 dies of 128 Gbit MLC.
pub const TOSHIBA_XG3_256GB: SsdPreset = SsdPreset {
    name: "toshiba-xg3-256gb",
    bytes: 256 * GB,
    depth_max: 1024,
    params: SsdParams {
        channels: 8,
        dies: 16,
        page_bytes: 16 << 10,
        planes: 2,
        programs_per_block: 256,
        read_page: us(60),
        program_page: us(455),
        erase: us(5000),
        channel_mb_s: 400,
        read_mb_s: 2400,
        write_mb_s: 2400,
        half_duplex: false,
        read_latency: us(15),
        write_latency: us(15),
        read_interval: ns(6667),
        write_interval: ns(6667),
        buffer_bytes: 8 << 20,
        protected_buffer: false,
        collected_percent: 75,
    },
    sheet: DataSheet {
        read_mb_s: 2400.0,
        write_mb_s: 1150.0,
        read_iops: 150_000.0,
        read_depth: 128,
        read_iops_single: 11_400.0,
        write_iops: 150_000.0,
    },
    clean: true,
    volatile_cache: true,
};

/// HyCache, section V: OCZ RevoDrive X2, 100 GB: four SATA drives behind a bridge on a card.
///
/// *Seen*: four SF-1222 controllers and 32 packages of 4 GB, 34 nm MLC (bigbruin.com); at most 740 MB/s reads (techradar.com,
/// of the 240 GB). Recalled: 690 MB/s writes, 100 000 random writes per second. The controllers compress: tPROG is what gives
/// the sheet's rate, not that of the flash.
pub const REVODRIVE_X2_100GB: SsdPreset = SsdPreset {
    name: "revodrive-x2-100gb",
    bytes: 100 * GB,
    depth_max: 128,
    params: SsdParams {
        channels: 16,
        dies: 32,
        page_bytes: 4 << 10,
        planes: 2,
        programs_per_block: 128,
        read_page: us(50),
        program_page: us(380),
        erase: us(2000),
        channel_mb_s: 80,
        read_mb_s: 740,
        write_mb_s: 740,
        half_duplex: true,
        read_latency: us(60),
        write_latency: us(60),
        read_interval: us(12),
        write_interval: us(10),
        buffer_bytes: 1 << 20,
        protected_buffer: false,
        collected_percent: 75,
    },
    sheet: DataSheet {
        read_mb_s: 740.0,
        write_mb_s: 690.0,
        read_iops: 83_000.0,
        read_depth: 64,
        read_iops_single: 5_800.0,
        write_iops: 100_000.0,
    },
    clean: true,
    volatile_cache: true,
};

/// HyCache, Table I: OCZ Octane 512 GB, the SATA SSD.
///
/// *Seen* there: 480 / 330 MB/s and 26 000 requests per second, taken for reads and writes alike. SATA: 32 requests, one link
/// for both directions, 550 MB/s after encoding and framing. 64 dies of 64 Gbit MLC; tPROG from the rate of writes.
pub const OCTANE_512GB: SsdPreset = SsdPreset {
    name: "octane-512gb",
    bytes: 512 * GB,
    depth_max: 32,
    params: SsdParams {
        channels: 8,
        dies: 64,
        page_bytes: 8 << 10,
        planes: 1,
        programs_per_block: 256,
        read_page: us(60),
        program_page: us(1580),
        erase: us(3000),
        channel_mb_s: 160,
        read_mb_s: 480,
        write_mb_s: 550,
        half_duplex: true,
        read_latency: us(30),
        write_latency: us(50),
        read_interval: us(38),
        write_interval: us(38),
        buffer_bytes: 8 << 20,
        protected_buffer: false,
        collected_percent: 75,
    },
    sheet: DataSheet {
        read_mb_s: 480.0,
        write_mb_s: 330.0,
        read_iops: 26_000.0,
        read_depth: 32,
        read_iops_single: 8_000.0,
        write_iops: 26_000.0,
    },
    clean: true,
    volatile_cache: true,
};

/// All presets of solid-state drives.
pub const SSDS: &[SsdPreset] = &[NYTRO_5000_400GB, SN770_250GB, INTEL_750_400GB, TOSHIBA_XG3_256GB, REVODRIVE_X2_100GB, OCTANE_512GB];

/// What 3.5-inch disks of 7200 turns have in common. Chosen: 0.1 ms for each request, 1 MiB read ahead.
const DESKTOP: HddParams = HddParams {
    rpm: 7200,
    seek_track: us(1000),
    seek_average: us(8500),
    seek_full: us(17_000),
    settle_write: us(1000),
    outer_mb_s: 125,
    inner_mb_s: 60,
    zones: 16,
    interface_mb_s: 550,
    overhead: us(100),
    read_ahead_bytes: 1 << 20,
    write_cache_bytes: 16 << 20,
};

/// SPDK-based user-level SSD cache, Table I: Seagate ST500DM002, 500 GB. Recalled (product manual 100686584): 7200 turns, average seek
/// 8.5 ms for reads and 9.5 ms for writes, 1.0 ms from track to track, 125 MB/s off the outer tracks, 16 MB of cache. Chosen: half the
/// rate at the inner tracks and twice the average for the whole stroke, as 3.5-inch disks have.
pub const ST500DM002: HddPreset = HddPreset { name: "st500dm002", bytes: 500 * GB, params: DESKTOP };

/// HyCache, section V: "Seagate Barracuda 1 TB" of 2012 or before: the 7200.12. Recalled: as above with 32 MB of cache.
pub const BARRACUDA_1TB: HddPreset =
    HddPreset { name: "barracuda-1tb", bytes: 1000 * GB, params: HddParams { write_cache_bytes: 32 << 20, ..DESKTOP } };

/// HyCache, Table I: Seagate Momentus XT 500 GB, 2.5-inch. *Seen* there: 131 MB/s reads, taken for the outer tracks. Recalled:
/// 7200 turns, 11 ms average seek for reads, 13 ms for writes, 32 MB. Its 4 GB of flash, a cache for reads alone, are left out.
pub const MOMENTUS_XT_500GB: HddPreset = HddPreset {
    name: "momentus-xt-500gb",
    bytes: 500 * GB,
    params: HddParams {
        seek_track: us(1500),
        seek_average: us(11_000),
        seek_full: us(22_000),
        settle_write: us(2000),
        outer_mb_s: 131,
        inner_mb_s: 65,
        interface_mb_s: 275,
        write_cache_bytes: 32 << 20,
        ..DESKTOP
    },
};

/// HyCache, Table I: Hitachi Deskstar 7K4000, 4 TB. *Seen* there: 144 MB/s. *Seen*: 8.2 ms average seek, in the specification of the
/// Ultrastar 7K4000, the same mechanics (HGST, section 4.4.1.1). Recalled: 64 MB.
pub const DESKSTAR_7K4000: HddPreset = HddPreset {
    name: "deskstar-7k4000",
    bytes: 4000 * GB,
    params: HddParams { seek_average: us(8200), outer_mb_s: 144, inner_mb_s: 70, write_cache_bytes: 64 << 20, ..DESKTOP },
};

/// All presets of hard disks.
pub const HDDS: &[HddPreset] = &[ST500DM002, BARRACUDA_1TB, MOMENTUS_XT_500GB, DESKSTAR_7K4000];

/// For experiments with completion modes: an Optane-like drive, a fast NVMe drive, a common one, a SATA drive.
pub const LATENCIES: [Duration; 4] = [us(8), us(20), us(80), us(400)];
