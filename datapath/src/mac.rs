//! MAC addresses as text.

/// Formats a MAC address: `02:12:34:00:00:01`.
pub fn show_mac(mac: &[u8; 6]) -> String {
    mac.map(|octet| format!("{octet:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octets_are_two_hex_digits_each() {
        assert_eq!(show_mac(&[2, 0x12, 0x34, 10, 11, 255]), "02:12:34:0a:0b:ff");
    }
}
