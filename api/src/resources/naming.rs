//! The name of an address's IPInstance and ServiceAddress. It is hybridnet's name, so both programs find each other's
//! objects.
//!
//! `10.14.0.7` becomes `10-14-0-7`. An IPv6 address becomes its eight groups without leading zeros:
//! `fd00:14::7` becomes `fd00-14-0-0-0-0-0-7`. The name follows from the address alone, so the API
//! server itself refuses a duplicate within a namespace.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The name of the IPInstance, or of the ServiceAddress, of an address.
pub fn instance_name(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string().replace('.', "-"),
        IpAddr::V6(address) => {
            let mut name = String::with_capacity(39);
            for (index, group) in address.segments().iter().enumerate() {
                let separator = if index == 0 { "" } else { "-" };
                let _infallible = write!(name, "{separator}{group:x}");
            }
            name
        }
    }
}

/// The address in an IPInstance's name; `None` if [`instance_name`] did not make the name.
pub fn named_address(name: &str) -> Option<IpAddr> {
    let groups: Vec<&str> = name.split('-').collect();
    let address = match groups.len() {
        4 => IpAddr::V4(groups.join(".").parse::<Ipv4Addr>().ok()?),
        8 => IpAddr::V6(groups.join(":").parse::<Ipv6Addr>().ok()?),
        _ => return None,
    };
    (instance_name(address) == name).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instance_names_match_hybridnet() {
        for (address, name) in [
            ("10.14.0.7", "10-14-0-7"),
            ("234e:0:4567::5f", "234e-0-4567-0-0-0-0-5f"),
            ("fd00::", "fd00-0-0-0-0-0-0-0"),
            ("::1", "0-0-0-0-0-0-0-1"),
        ] {
            let address = address.parse();
            assert_eq!(address.clone().map(instance_name).as_deref(), Ok(name));
            assert_eq!(named_address(name), address.ok());
        }
        for name in ["", "10-14-0", "10-14-0-007", "10.14.0.7", "fd00-0-0-0-0-0-0-00", "web-0-a-b"] {
            assert_eq!(named_address(name), None, "{name}");
        }
    }
}
