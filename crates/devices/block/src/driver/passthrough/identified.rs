//! The properties that a drive reports (NVMe base specification 2.0, figure 275: Identify Controller; NVM command set specification 1.0,
//! figure 97: Identify Namespace).

use crate::driver::sysfs::QueueAttributes;

/// The properties of a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Namespace {
    /// The number of blocks of the namespace.
    pub blocks: u64,
    /// The block size in bytes, 0 if invalid.
    pub block_bytes: u32,
    /// The metadata of each block, in bytes.
    pub metadata_bytes: u16,
    /// Whether the namespace is write protected.
    pub write_protected: bool,
}

/// The capabilities of a controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Controller {
    /// Whether it has a volatile write cache.
    pub volatile_cache: bool,
    /// Whether it supports Dataset Management, to deallocate blocks.
    pub deallocate: bool,
    /// Whether it supports the Write Zeroes command.
    pub write_zeroes: bool,
}

impl Namespace {
    /// Decodes an Identify Namespace page. Bits 5 and 6 extend the format number beyond 16. An invalid block size becomes 0.
    pub(super) fn from_page(page: &[u8; 4096]) -> Namespace {
        let flbas = page[26];
        let format = usize::from(flbas & 0xf | (flbas & 0x60) >> 1);
        let at = 128 + 4 * format;
        Namespace {
            blocks: u64::from_le_bytes(page[..8].try_into().expect("8 bytes")),
            metadata_bytes: u16::from_le_bytes([page[at], page[at + 1]]),
            block_bytes: 1_u32.checked_shl(u32::from(page[at + 2])).unwrap_or(0),
            write_protected: page[99] & 1 != 0,
        }
    }
}

impl Controller {
    pub(super) fn from_page(page: &[u8; 4096]) -> Controller {
        let optional = u16::from_le_bytes([page[520], page[521]]);
        Controller { volatile_cache: page[525] & 1 != 0, deallocate: optional & 1 << 2 != 0, write_zeroes: optional & 1 << 3 != 0 }
    }
}

/// Returns the same properties from the kernel's sysfs attributes, or `None` if they are missing.
pub(super) fn from_kernel(queue: &QueueAttributes, disk: Option<&str>) -> Option<(Namespace, Controller)> {
    let of_disk = |name: &str| std::fs::read_to_string(format!("/sys/block/{}/{name}", disk?)).ok()?.trim().parse::<u64>().ok();
    let block_bytes = u32::try_from(queue.number("logical_block_size")?).ok()?;
    let namespace = Namespace {
        blocks: of_disk("size")? * 512 / u64::from(block_bytes.max(512)),
        block_bytes,
        metadata_bytes: of_disk("metadata_bytes").and_then(|bytes| u16::try_from(bytes).ok()).unwrap_or(0),
        write_protected: of_disk("ro") == Some(1),
    };
    let able = |name: &str| queue.number(name).is_some_and(|bytes| bytes > 0);
    let controller = Controller {
        volatile_cache: queue.volatile_cache(),
        deallocate: able("discard_max_bytes"),
        write_zeroes: able("write_zeroes_max_bytes"),
    };
    Some((namespace, controller))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_format_in_use_is_found() {
        let mut page = [0; 4096];
        page[..8].copy_from_slice(&1000_u64.to_le_bytes());
        page[26] = 0x02;
        page[128 + 8..128 + 11].copy_from_slice(&[8, 0, 12]);
        let namespace = Namespace { blocks: 1000, block_bytes: 4096, metadata_bytes: 8, write_protected: false };
        assert_eq!(Namespace::from_page(&page), namespace);
        page[26] = 0x22; // format 18
        page[128 + 72..128 + 75].copy_from_slice(&[0, 0, 9]);
        page[99] = 1;
        assert_eq!(Namespace::from_page(&page), Namespace { block_bytes: 512, metadata_bytes: 0, write_protected: true, ..namespace });
        page[128 + 74] = 255;
        assert_eq!(Namespace::from_page(&page).block_bytes, 0, "no size that could be");
    }

    #[test]
    fn what_a_controller_can_do_is_in_its_bits() {
        let mut page = [0; 4096];
        assert_eq!(Controller::from_page(&page), Controller { volatile_cache: false, deallocate: false, write_zeroes: false });
        (page[520], page[525]) = (0x0c, 0x07);
        assert_eq!(Controller::from_page(&page), Controller { volatile_cache: true, deallocate: true, write_zeroes: true });
    }
}
