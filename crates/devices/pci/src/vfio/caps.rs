//! Capabilities behind the kernel's structures: a chain of headers (id, version, place of the next).

/// The body of the first with this number; the chain begins at `at`, 0: there is none.
pub fn find(bytes: &[u8], at: u32, id: u32) -> Option<&[u8]> {
    let mut at = at as usize;
    // A chain cannot be longer than what it lies in, also if it bites its tail.
    for _ in 0..bytes.len() / 8 {
        let head = bytes.get(at..)?.get(..8).filter(|_| at > 0)?;
        if u32::from(u16::from_ne_bytes([head[0], head[1]])) == id {
            return bytes.get(at + 8..);
        }
        at = u32::from_ne_bytes([head[4], head[5], head[6], head[7]]) as usize;
    }
    None
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Pairs of numbers behind their count: addresses (first, last), or parts of a region (begin, bytes).
pub fn ranges(body: &[u8]) -> Vec<(u64, u64)> {
    let count = body.get(..4).map_or(0, |count| u32::from_ne_bytes(count.try_into().expect("4 bytes")));
    (0..count as usize).map_while(|at| Some((u64_at(body, 8 + 16 * at)?, u64_at(body, 16 + 16 * at)?))).collect()
}

#[cfg(test)]
mod test {
    use super::*;

    fn header(id: u16, next: u32) -> Vec<u8> {
        [&id.to_ne_bytes()[..], &1_u16.to_ne_bytes(), &next.to_ne_bytes()].concat()
    }

    #[test]
    fn a_chain_is_followed_and_ends() {
        let mut bytes = vec![0; 8];
        bytes.extend(header(7, 16));
        bytes.extend(header(1, 8));
        bytes.extend([2_u32.to_ne_bytes(), 0_u32.to_ne_bytes()].concat());
        bytes.extend([5_u64, 6, 7, 8].map(u64::to_ne_bytes).concat());
        assert_eq!(find(&bytes, 8, 1).map(ranges), Some(vec![(5, 6), (7, 8)]));
        assert_eq!(find(&bytes, 8, 3), None, "it bites its tail");
        assert_eq!(find(&bytes, 0, 1), None);
        assert_eq!(find(&bytes, u32::MAX, 1), None);
        bytes.truncate(40);
        assert_eq!(find(&bytes, 8, 1).map(ranges), Some(vec![]), "cut off");
    }
}
