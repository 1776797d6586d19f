//! The checksum of a page: CRC-32C. It is most of what a hit costs the CPU.

use crate::units::{DevicePage, FileKey, Page, PageIndex};

/// Returns the checksum of a page's bytes, its file, its index, its address and the segment's sequence number. A torn page, a
/// misdirected write and an old page under a lost write all fail it.
pub(crate) fn page_checksum(bytes: &Page, key: FileKey, page: PageIndex, at: DevicePage, seq: u64) -> u32 {
    let mut names = [0; 32];
    for (to, value) in names.chunks_exact_mut(8).zip([key.0, page.0, at.0, seq]) {
        to.copy_from_slice(&value.to_le_bytes());
    }
    crc32c::crc32c_append(crc_fast::crc32_iscsi(bytes), &names)
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::units::PAGE_BYTES;

    #[test]
    fn it_covers_the_page_and_its_names() {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..500 {
            let mut page = [0; PAGE_BYTES];
            rng.fill(&mut page);
            let names = [rng.u64(..), rng.u64(..), rng.u64(..), rng.u64(..)];
            let in_a_row = names.iter().fold(crc32c::crc32c(&page), |checksum, name| crc32c::crc32c_append(checksum, &name.to_le_bytes()));
            let [key, number, at, seq] = names;
            assert_eq!(page_checksum(&page, FileKey(key), PageIndex(number), DevicePage(at), seq), in_a_row);
        }
    }
}
