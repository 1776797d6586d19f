//! Identify data of a controller and its namespaces (NVMe base specification 2.0, section 5.17; NVM command set specification 1.0,
//! section 4.1.5).
//!
//! Pages are copied out of the device's memory before they are parsed. Any bytes are safe to parse: unsupported values are refused with
//! a message.

use crate::mapping::PAGE_BYTES;

/// A page of 4 KiB, copied.
pub type Page = [u8; PAGE_BYTES];

/// The data structures of Identify, by CNS value.
pub mod what {
    #![allow(missing_docs, reason = "the names are the specification's")]
    /// CNS: a namespace, in the NVM command set's format.
    pub const NAMESPACE: u8 = 0x00;
    /// CNS: the controller, whatever its command sets.
    pub const CONTROLLER: u8 = 0x01;
    /// CNS: the list of active namespace identifiers.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// CNS: the identification descriptors of a namespace.
    pub const DESCRIPTORS: u8 = 0x03;
    /// CNS: the controller's limits in the NVM command set.
    pub const NVM_CONTROLLER: u8 = 0x06;
    /// CNS: a namespace, independent of its command set.
    pub const INDEPENDENT_NAMESPACE: u8 = 0x08;
}

/// A controller's description of itself (Identify Controller).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ControllerInfo {
    /// The PCI vendor identifier of the controller.
    pub vendor: u16,
    /// The controller's number within its subsystem.
    pub id: u16,
    /// Without the blanks around it.
    pub serial: String,
    /// Without the blanks around it.
    pub model: String,
    /// Without the blanks around it.
    pub firmware: String,
    /// The largest read or write in bytes; `None`: no limit.
    pub transfer_bytes_max: Option<u64>,
    /// The version of the specification: major, minor, tertiary. 0.0.0: a version before 1.2.
    pub version: (u16, u8, u8),
    /// The number of Abort commands at once, at least 1.
    pub aborts: u16,
    /// The number of Asynchronous Event Requests at once, at least 1.
    pub events: u16,
    /// The highest number that a namespace can have.
    pub namespaces: u32,
    /// Whether it supports Dataset Management, which deallocates blocks.
    pub deallocate: bool,
    /// Whether it supports Write Zeroes.
    pub write_zeroes: bool,
    /// Whether it has a write cache that loses its data when power fails.
    pub volatile_cache: bool,
    /// Whether it supports shadow doorbells (Doorbell Buffer Config).
    pub doorbell_buffer: bool,
    /// The seconds that a clean shutdown may take; 0: not reported.
    pub shutdown_seconds: u32,
    /// Whether it reports changes of its namespaces.
    pub tells_namespaces: bool,
}

fn u16_at(page: &Page, at: usize) -> u16 {
    u16::from_le_bytes([page[at], page[at + 1]])
}

fn u32_at(page: &Page, at: usize) -> u32 {
    u32::from_le_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]])
}

fn text(bytes: &[u8]) -> String {
    let shown = |byte: &u8| if (b' '..=b'~').contains(byte) { char::from(*byte) } else { '?' };
    bytes.iter().map(shown).collect::<String>().trim_matches([' ', '?']).to_owned()
}

impl ControllerInfo {
    /// Parses the Identify Controller data structure.
    pub fn from_page(page: &Page) -> ControllerInfo {
        let transfer = u32::from(page[77]);
        let version = u32_at(page, 80);
        ControllerInfo {
            vendor: u16_at(page, 0),
            id: u16_at(page, 78),
            serial: text(&page[4..24]),
            model: text(&page[24..64]),
            firmware: text(&page[64..72]),
            transfer_bytes_max: (transfer > 0).then(|| (PAGE_BYTES as u64).checked_shl(transfer).filter(|_| transfer < 40)).flatten(),
            version: ((version >> 16) as u16, (version >> 8) as u8, version as u8),
            aborts: u16::from(page[258]) + 1,
            events: u16::from(page[259]) + 1,
            namespaces: u32_at(page, 516),
            deallocate: u16_at(page, 520) & 1 << 2 != 0,
            write_zeroes: u16_at(page, 520) & 1 << 3 != 0,
            volatile_cache: page[525] & 1 != 0,
            doorbell_buffer: u16_at(page, 256) & 1 << 8 != 0,
            shutdown_seconds: u32_at(page, 88).div_ceil(1_000_000),
            tells_namespaces: u32_at(page, 92) & 1 << 8 != 0,
        }
    }
}

/// Limits of the NVM command set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NvmLimits {
    /// The largest Write Zeroes in bytes; `None`: no limit.
    pub zeroes_bytes_max: Option<u64>,
    /// The maximum number of ranges of a deallocate, 1 to 256.
    pub ranges_max: u16,
    /// The maximum number of blocks in one range.
    pub range_blocks_max: u32,
    /// The maximum number of blocks in all ranges together.
    pub deallocate_blocks_max: u64,
}

impl Default for NvmLimits {
    fn default() -> Self {
        NvmLimits { zeroes_bytes_max: None, ranges_max: 256, range_blocks_max: u32::MAX, deallocate_blocks_max: u64::MAX }
    }
}

impl NvmLimits {
    /// Parses the Identify page of the NVM command set; zero means "no limit".
    pub fn from_page(page: &Page) -> NvmLimits {
        let zeroes = u32::from(page[1]);
        let all = u64::from(u32_at(page, 8)) | u64::from(u32_at(page, 12)) << 32;
        NvmLimits {
            zeroes_bytes_max: (zeroes > 0).then(|| (PAGE_BYTES as u64).checked_shl(zeroes).filter(|_| zeroes < 40)).flatten(),
            ranges_max: if page[3] == 0 { 256 } else { page[3].into() },
            range_blocks_max: if u32_at(page, 4) == 0 { u32::MAX } else { u32_at(page, 4) },
            deallocate_blocks_max: if all == 0 { u64::MAX } else { all },
        }
    }
}

/// The description of one namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamespaceInfo {
    /// The number by which commands name it.
    pub id: u32,
    /// The size of a block in bytes, in the format in use.
    pub block_bytes: u32,
    /// The number of blocks of that size.
    pub blocks: u64,
    /// Whether the namespace is write-protected.
    pub write_protected: bool,
    /// Whether deallocated blocks read as zeroes and Write Zeroes may deallocate blocks.
    pub zeroes_deallocate: bool,
    /// Whether it was ready. If not, commands fail with "not ready" until it is.
    pub ready: bool,
    /// Names that stay the same wherever the drive is: EUI-64, NGUID, UUID.
    pub names: Names,
}

/// The lasting names of a namespace; zeroes: it has none of the kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Names {
    /// The IEEE extended unique identifier (EUI-64).
    pub eui64: [u8; 8],
    /// The namespace globally unique identifier (NGUID).
    pub nguid: [u8; 16],
    /// The universally unique identifier (UUID) of the namespace.
    pub uuid: [u8; 16],
}

/// Why a namespace cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NamespaceError {
    /// Bytes beside each block, which nothing here fills.
    #[error("it keeps {0} bytes of metadata with each block: format it without (nvme format --lbaf)")]
    Metadata(u16),
    /// Protection information checks data that nothing here protects.
    #[error("it checks protection information (type {0}): format it without (nvme format --pi=0)")]
    Protected(u8),
    /// Of another command set: zoned, key-value.
    #[error("it is of command set {0}, not of blocks")]
    CommandSet(u8),
    /// Numbers that cannot be.
    #[error("it says it has {blocks} blocks of 2^{block_shift} bytes: nothing that can be used")]
    Size {
        /// Blocks.
        blocks: u64,
        /// Power of two.
        block_shift: u8,
    },
    /// A command for it failed.
    #[error("asking it what it is failed: {0}")]
    Asking(String),
}

impl NamespaceInfo {
    /// Parses the Identify Namespace data structure.
    ///
    /// # Errors
    /// The namespace has a format that this driver does not support.
    pub fn from_page(id: u32, page: &Page) -> Result<NamespaceInfo, NamespaceError> {
        let blocks = u64::from(u32_at(page, 0)) | u64::from(u32_at(page, 4)) << 32;
        let flbas = page[26];
        // Formats above the sixteenth are numbered by bits 5 and 6 too.
        let format = 128 + 4 * usize::from(flbas & 0xf | (flbas & 0x60) >> 1);
        let (metadata, block_shift) = (u16_at(page, format), page[format + 2]);
        if metadata > 0 {
            return Err(NamespaceError::Metadata(metadata));
        }
        if page[29] & 7 != 0 {
            return Err(NamespaceError::Protected(page[29] & 7));
        }
        // 512 bytes to 64 KiB; and its bytes are countable.
        if blocks == 0 || !(9..=16).contains(&block_shift) || blocks > u64::MAX >> (block_shift + 1) {
            return Err(NamespaceError::Size { blocks, block_shift });
        }
        let eui64 = page[120..128].try_into().expect("8 bytes");
        let nguid = page[104..120].try_into().expect("16 bytes");
        let names = Names { eui64, nguid, uuid: [0; 16] };
        // DLFEAT: what is read (1: zeroes), and bit 3.
        let zeroes_deallocate = page[33] & 0b1111 == 0b1001;
        let write_protected = page[99] & 1 != 0;
        Ok(NamespaceInfo { id, block_bytes: 1 << block_shift, blocks, write_protected, zeroes_deallocate, ready: true, names })
    }

    /// Takes over what the page that is the same for all command sets says (base specification 2.0, section 5.17.2.8).
    #[must_use]
    pub fn with_independent(self, page: &Page) -> NamespaceInfo {
        NamespaceInfo { write_protected: self.write_protected || page[8] & 1 != 0, ready: page[14] & 1 != 0, ..self }
    }

    /// Takes over what the list of descriptors says; it ends at the first that cannot be.
    ///
    /// # Errors
    /// Of another command set.
    pub fn with_descriptors(mut self, page: &Page) -> Result<NamespaceInfo, NamespaceError> {
        let mut at = 0;
        while at + 4 <= page.len() {
            let (kind, len) = (page[at], usize::from(page[at + 1]));
            let Some(value) = page.get(at + 4..at + 4 + len).filter(|value| !value.is_empty()) else { break };
            match (kind, len) {
                (1, 8) => self.names.eui64 = value.try_into().expect("8 bytes"),
                (2, 16) => self.names.nguid = value.try_into().expect("16 bytes"),
                (3, 16) => self.names.uuid = value.try_into().expect("16 bytes"),
                (4, 1) if value[0] != 0 => return Err(NamespaceError::CommandSet(value[0])),
                _ => {}
            }
            at += 4 + len;
        }
        Ok(self)
    }
}

/// Numbers of namespaces, ascending, as the list has them; it ends at the first that does not ascend.
pub fn namespace_list(page: &Page) -> Vec<u32> {
    let mut list = Vec::new();
    for id in page.chunks_exact(4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("4 bytes"))) {
        if id <= list.last().copied().unwrap_or(0) || id > 0xffff_fffd {
            break;
        }
        list.push(id);
    }
    list
}

/// The health of a drive (log page 02h).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Smart {
    /// The critical warnings as bits: spare low, temperature, reliability, read-only, cache backup failed.
    pub critical: u8,
    /// The composite temperature in kelvins.
    pub temperature: u16,
    /// The percentage of spare blocks that are left.
    pub spare: u8,
    /// The percentage of its life that is used; may exceed 100.
    pub used: u8,
    /// Errors of the medium that could not be corrected.
    pub media_errors: u64,
}

impl Smart {
    /// Parses the SMART and health log page.
    pub fn from_page(page: &Page) -> Smart {
        Smart {
            critical: page[0],
            temperature: u16_at(page, 1),
            spare: page[3],
            used: page[5],
            media_errors: u64::from_le_bytes(page[160..168].try_into().expect("8 bytes")),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn namespace(shift: u8, metadata: u16) -> Page {
        let mut page = [0; PAGE_BYTES];
        page[..8].copy_from_slice(&1000_u64.to_le_bytes());
        page[26] = 0x22;
        page[128 + 72..128 + 74].copy_from_slice(&metadata.to_le_bytes());
        page[128 + 74] = shift;
        page
    }

    #[test]
    fn the_format_in_use_decides() {
        let found = NamespaceInfo::from_page(3, &namespace(12, 0)).expect("usable");
        assert_eq!((found.id, found.blocks, found.block_bytes), (3, 1000, 4096));
        assert_eq!(NamespaceInfo::from_page(3, &namespace(12, 8)), Err(NamespaceError::Metadata(8)));
        for shift in [0, 8, 17, 63, 64, 255] {
            assert!(matches!(NamespaceInfo::from_page(1, &namespace(shift, 0)), Err(NamespaceError::Size { .. })));
        }
        let mut page = namespace(9, 0);
        page[29] = 1;
        assert_eq!(NamespaceInfo::from_page(1, &page), Err(NamespaceError::Protected(1)));
        page[29] = 0;
        page[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(matches!(NamespaceInfo::from_page(1, &page), Err(NamespaceError::Size { .. })));
    }

    #[test]
    fn zeroes_give_blocks_back_where_that_reads_as_zeroes() {
        let mut page = namespace(9, 0);
        for (dlfeat, gives) in [(0, false), (1, false), (8, false), (9, true), (0x19, true), (10, false)] {
            page[33] = dlfeat;
            assert_eq!(NamespaceInfo::from_page(1, &page).expect("usable").zeroes_deallocate, gives, "{dlfeat}");
        }
        let found = NamespaceInfo::from_page(1, &page).expect("usable");
        let mut independent = [0; PAGE_BYTES];
        assert!(found.ready && !found.clone().with_independent(&independent).ready);
        (independent[8], independent[14]) = (1, 1);
        let found = found.with_independent(&independent);
        assert!(found.ready && found.write_protected);
    }

    #[test]
    fn descriptors_and_lists_end_where_they_make_no_sense() {
        let mut page = [0; PAGE_BYTES];
        page[..2].copy_from_slice(&[3, 16]);
        page[4..20].copy_from_slice(&[7; 16]);
        page[20..22].copy_from_slice(&[4, 1]);
        let found = NamespaceInfo::from_page(1, &namespace(9, 0)).expect("usable");
        assert_eq!(found.clone().with_descriptors(&page).expect("blocks").names.uuid, [7; 16]);
        page[24] = 2;
        assert_eq!(found.clone().with_descriptors(&page), Err(NamespaceError::CommandSet(2)));
        let mut hostile = [0xff; PAGE_BYTES];
        assert!(found.with_descriptors(&hostile).is_ok());
        assert!(namespace_list(&hostile).is_empty());
        for (at, id) in [1_u32, 5, 3].iter().enumerate() {
            hostile[4 * at..4 * at + 4].copy_from_slice(&id.to_le_bytes());
        }
        assert_eq!(namespace_list(&hostile), [1, 5]);
    }

    #[test]
    fn any_bytes_are_taken() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..if cfg!(miri) { 5 } else { 500 } {
            let mut page = [0; PAGE_BYTES];
            random.fill(&mut page);
            let info = ControllerInfo::from_page(&page);
            assert!(info.aborts >= 1 && info.transfer_bytes_max.is_none_or(|bytes| bytes >= 8192));
            NvmLimits::from_page(&page);
            let _ = NamespaceInfo::from_page(1, &page).map(|found| found.with_independent(&page).with_descriptors(&page));
            Smart::from_page(&page);
        }
    }
}
