//! The address of a PCI function: domain, bus, device, function.

use std::fmt;
use std::str::FromStr;

/// A function of a PCI device, as `lspci -D` shows it: "0000:03:00.0".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Address {
    /// The PCI domain (segment) of the function.
    pub domain: u32,
    /// The bus within the domain.
    pub bus: u8,
    /// The device on the bus, 0 to 31.
    pub device: u8,
    /// The function of the device, 0 to 7.
    pub function: u8,
}

/// The error for text that is not a PCI address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is no PCI address: use one such as 0000:03:00.0 (`hotshelf nvme list` shows them)")]
pub struct BadAddress(String);

impl FromStr for Address {
    type Err = BadAddress;

    /// With or without the domain, which is 0 then.
    fn from_str(text: &str) -> Result<Address, BadAddress> {
        parse(text).ok_or_else(|| BadAddress(text.to_owned()))
    }
}

fn hex(text: &str, digits: std::ops::RangeInclusive<usize>) -> Option<u32> {
    let plain = digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if plain { u32::from_str_radix(text, 16).ok() } else { None }
}

fn parse(text: &str) -> Option<Address> {
    let (rest, function) = text.rsplit_once('.')?;
    let (rest, device) = rest.rsplit_once(':')?;
    let (domain, bus) = rest.split_once(':').unwrap_or(("0000", rest));
    let small = |value: Option<u32>, bound: u32| value.filter(|value| *value < bound).and_then(|value| u8::try_from(value).ok());
    Some(Address {
        domain: hex(domain, 4..=8)?,
        bus: small(hex(bus, 2..=2), 256)?,
        device: small(hex(device, 2..=2), 32)?,
        function: small(hex(function, 1..=1), 8)?,
    })
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown_alike() {
        for (text, shown) in [("0000:03:00.0", "0000:03:00.0"), ("03:1f.7", "0000:03:1f.7"), ("10000:E1:00.2", "10000:e1:00.2")] {
            assert_eq!(text.parse::<Address>().expect("an address").to_string(), shown);
        }
        for text in ["", "3:0.0", "0000:03:00", "0000:03:20.0", "0000:03:00.8", "/etc:00:00.0", "0000:+3:00.0", "nvme0", "0000:03:00.0/1"] {
            assert_eq!(text.parse::<Address>(), Err(BadAddress(text.to_owned())));
        }
    }
}
