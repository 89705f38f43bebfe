//! Ranges of addresses: `10.0.0.0/8`, or one address.

use std::{net::IpAddr, str::FromStr};

use schemars::{Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::json;

/// The addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct AddressRange {
    first: IpAddr,
    bits: u32,
}

impl AddressRange {
    /// Returns whether an address is in the range. An IPv4 address in its IPv6 form counts as the IPv4
    /// address.
    pub fn contains(&self, address: IpAddr) -> bool {
        begins(self.first, self.bits) == begins(address.to_canonical(), self.bits)
    }
}

/// Returns the first bits of an address, and of which kind it is.
fn begins(address: IpAddr, bits: u32) -> (bool, u128) {
    match address {
        IpAddr::V4(v4) => (true, u128::from(v4.to_bits().checked_shr(32 - bits.min(32)).unwrap_or_default())),
        IpAddr::V6(v6) => (false, v6.to_bits().checked_shr(128 - bits.min(128)).unwrap_or_default()),
    }
}

impl FromStr for AddressRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "is not an address, or a range such as `10.0.0.0/8`".to_string();
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u32>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let first: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if first.is_ipv4() { 32 } else { 128 };
        match bits.unwrap_or(most) {
            bits if bits <= most => Ok(Self { first, bits }),
            bits => Err(format!("has {bits} bits, but such an address has only {most}")),
        }
    }
}

impl TryFrom<String> for AddressRange {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

pub(super) fn schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": { "type": "string", "format": "address-range", "examples": ["10.0.0.0/8"] },
        "examples": [json!(["10.0.0.0/8"])],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_contains_what_begins_alike() {
        let check = |range: &str, address: &str, expected: bool| {
            let range: AddressRange = range.parse().expect("a range");
            assert_eq!(range.contains(address.parse().expect("an address")), expected, "{range:?} {address}");
        };
        check("10.0.0.0/8", "10.255.0.1", true);
        check("10.0.0.0/8", "::ffff:10.1.2.3", true);
        check("10.0.0.0/8", "11.0.0.1", false);
        check("10.0.0.7", "10.0.0.7", true);
        check("10.0.0.7", "10.0.0.6", false);
        check("0.0.0.0/0", "192.0.2.1", true);
        check("0.0.0.0/0", "2001:db8::1", false);
        check("2001:db8::/32", "2001:db8:1::1", true);
        check("2001:db8::/32", "2001:db9::1", false);
        check("::/0", "2001:db9::1", true);
        for bad in ["", "10.0.0.0/33", "::1/129", "10.0.0/8", "10.0.0.0/", "host", "10.0.0.0/-1"] {
            assert!(bad.parse::<AddressRange>().is_err(), "{bad}");
        }
    }
}
