//! Rules for values that several resources have.

use crate::fault::Faults;

/// The largest VLAN id (IEEE 802.1Q; 4095 is reserved).
pub(super) const MAX_VLAN: u32 = 4094;

/// Checks that an AS number is valid for a speaker: not 0 (RFC 7607), and not AS_TRANS (RFC 6793
/// §9).
pub(super) fn check_asn(field: impl Into<String>, asn: u32, faults: &mut Faults<'_>) {
    match asn {
        0 => faults.add(field, "0 is not an AS number (RFC 7607): write 1 to 4294967295"),
        23456 => faults.add(
            field,
            "23456 is AS_TRANS, a placeholder for other AS numbers (RFC 6793): write \
                the real AS number",
        ),
        _ => {}
    }
}
