//! Anycast addresses in `trunkline status`.

use trunkline_api::control::{AdvertisementState, AnycastAddressStatus, AnycastStatus};

use crate::table::duration;

/// One line for each address, and one for an object that is not in force.
pub(crate) fn lines(object: &AnycastStatus) -> Vec<String> {
    let refused = object.refused.iter().map(|fault| format!("{}: NOT IN FORCE: {fault}", object.name));
    refused.chain(object.addresses.iter().map(|address| of_address(&object.name, address))).collect()
}

/// `192.0.2.53 (dns) advertised for 5m00s, check: passed`
fn of_address(name: &str, address: &AnycastAddressStatus) -> String {
    let state = match address.state {
        AdvertisementState::Advertised | AdvertisementState::Retained => "advertised",
        AdvertisementState::ShuttingDown => "advertised with GRACEFUL_SHUTDOWN",
        AdvertisementState::Withheld | AdvertisementState::Unknown => "NOT ADVERTISED",
    };
    let text = if address.text.is_empty() { String::new() } else { format!(": {}", address.text) };
    let check = if address.check.is_empty() { String::new() } else { format!(", check: {}", address.check) };
    format!("{} ({name}) {state} for {}{text}{check}", address.address, duration(address.since_seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_a_line_with_its_reason() {
        let address = |state, text: &str, check: &str| AnycastAddressStatus {
            address: "192.0.2.53".parse().unwrap(),
            state,
            reason: None,
            healthy: None,
            text: text.to_owned(),
            check: check.to_owned(),
            since_seconds: 300,
        };
        let object = |refused: Option<&str>, addresses| AnycastStatus {
            name: "dns".to_owned(),
            refused: refused.map(str::to_owned),
            addresses,
        };
        let advertised = address(AdvertisementState::Advertised, "", "passed");
        let withheld = address(AdvertisementState::Withheld, "its check fails", "no result within 50 ms");
        assert_eq!(
            lines(&object(None, vec![advertised, withheld])),
            [
                "192.0.2.53 (dns) advertised for 5m00s, check: passed",
                "192.0.2.53 (dns) NOT ADVERTISED for 5m00s: its check fails, check: no result within 50 ms",
            ]
        );
        assert_eq!(lines(&object(Some("a fault"), Vec::new())), ["dns: NOT IN FORCE: a fault"]);
    }
}
