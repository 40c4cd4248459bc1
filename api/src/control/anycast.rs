//! Anycast addresses on this node.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{AdvertisementState, WithheldReason};

/// An AnycastAddress on this node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AnycastStatus {
    /// Its name.
    pub name: String,
    /// The reason why it is not in force on this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Its addresses.
    #[serde(default)]
    pub addresses: Vec<AnycastAddressStatus>,
}

/// One address of an AnycastAddress.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AnycastAddressStatus {
    /// The address.
    pub address: IpAddr,
    /// The state on this node.
    pub state: AdvertisementState,
    /// The reason why it is not advertised, or will be withdrawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<WithheldReason>,
    /// Whether its check passes; none before the first result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healthy: Option<bool>,
    /// The state as text; empty if it is advertised.
    pub text: String,
    /// The last result of its check; empty if there is none.
    pub check: String,
    /// Time since the last change of the state.
    pub since_seconds: u64,
}

impl AnycastStatus {
    /// Whether it is in force and all its checks pass; none before their first results.
    pub fn is_healthy(&self) -> Option<bool> {
        if self.refused.is_some() {
            return Some(false);
        }
        let results = || self.addresses.iter().map(|address| address.healthy);
        match (
            results().any(|healthy| healthy == Some(false)),
            results().all(|healthy| healthy == Some(true)),
        ) {
            (true, _) => Some(false),
            (false, true) => Some(true),
            (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_healthy_if_all_its_addresses_are() {
        let address = |healthy| AnycastAddressStatus {
            address: "192.0.2.53".parse().unwrap(),
            state: AdvertisementState::Advertised,
            reason: None,
            healthy,
            text: String::new(),
            check: String::new(),
            since_seconds: 0,
        };
        let object = |healths: &[Option<bool>], refused: Option<&str>| AnycastStatus {
            name: "dns".to_owned(),
            refused: refused.map(str::to_owned),
            addresses: healths.iter().map(|healthy| address(*healthy)).collect(),
        };
        for (healths, refused, healthy) in [
            (&[Some(true), Some(true)][..], None, Some(true)),
            (&[Some(true), None], None, None),
            (&[None, Some(false)], None, Some(false)),
            (&[], Some("spec.addresses[0]: …"), Some(false)),
        ] {
            assert_eq!(object(healths, refused).is_healthy(), healthy);
        }
        let json = serde_json::to_string(&object(&[None], None)).unwrap();
        assert_eq!(serde_json::from_str::<AnycastStatus>(&json).unwrap(), object(&[None], None));
    }
}
