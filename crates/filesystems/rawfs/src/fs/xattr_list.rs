//! The stored form of a file's extended attributes.
//!
//! ```text
//!  name length (1) | value length (2) | name | value, one behind the other
//! ```

/// The names and values of a file's extended attributes.
pub type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// Reads the stored form; `None` if the bytes are no list of attributes.
pub fn parse(mut bytes: &[u8]) -> Option<Attributes> {
    let mut all = Attributes::new();
    while !bytes.is_empty() {
        let (name, value) = (usize::from(*bytes.first()?), usize::from(u16::from_le_bytes(bytes.get(1..3)?.try_into().ok()?)));
        all.push((bytes.get(3..3 + name)?.to_vec(), bytes.get(3 + name..3 + name + value)?.to_vec()));
        bytes = &bytes[3 + name + value..];
    }
    Some(all)
}

/// Returns the attributes in their stored form.
pub fn bytes(all: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in all {
        bytes.push(name.len() as u8);
        bytes.extend_from_slice(&(value.len() as u16).to_le_bytes());
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(value);
    }
    bytes
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn damaged_attributes_are_refused() {
        let all = vec![(b"user.a".to_vec(), vec![7; 300]), (b"trusted.b".to_vec(), Vec::new())];
        let stored = bytes(&all);
        assert_eq!(parse(&stored), Some(all));
        for len in 1..stored.len() {
            let cut = parse(&stored[..len]);
            assert!(cut.is_none() || len == 309, "{len}");
        }
    }
}
