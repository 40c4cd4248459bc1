//! Dynamic neighbours, which are configured by prefix instead of one by one.

use ipnet::IpNet;

use super::{ConfigError, PeerConfig};
use crate::types::Asn;

/// A prefix from which peers may connect without a configuration of their own. The speaker creates
/// a peer when one connects. It removes the peer when its session has ended and none of its paths
/// are retained.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerRange {
    /// The prefix, without host bits; it is the key of the range.
    pub prefix: IpNet,
    /// The maximum number of peers at a time, including those that only have stale paths; at least
    /// 1.
    pub limit: u32,
    /// The configuration of each peer. Its address is replaced by the peer's, and each peer is
    /// passive.
    pub template: PeerConfig,
}

impl PeerRange {
    /// A range; its peers use `template`.
    pub fn new(prefix: IpNet, limit: u32, template: PeerConfig) -> Self {
        let prefix = prefix.trunc();
        // For the checks that compare addresses, any address of the prefix is sufficient.
        let address = prefix.hosts().next().unwrap_or(prefix.addr());
        PeerRange { prefix, limit, template: PeerConfig { address, passive: true, ..template } }
    }

    /// The configuration of the peer at `address`.
    pub(crate) fn peer(&self, address: std::net::IpAddr) -> PeerConfig {
        PeerConfig { address, passive: true, ..self.template.clone() }
    }

    /// Checks the template for a speaker of this AS; [`Self::validate`] checks the other rules.
    ///
    /// # Errors
    /// If the peer's rules do not fit the two AS numbers.
    pub fn validate_for(&self, local_as: Asn) -> Result<(), ConfigError> {
        self.template.validate_for(local_as).map_err(|error| self.of_all(error))
    }

    /// Turns a fault of the template into a fault of the range: the template's address is a
    /// placeholder.
    fn of_all(&self, error: ConfigError) -> ConfigError {
        match error {
            ConfigError::Peer { field, fault, .. } => {
                ConfigError::Range { prefix: self.prefix, field, fault }
            }
            error => error,
        }
    }

    /// Checks the range and every field of the template.
    ///
    /// # Errors
    /// For the first field with an invalid value.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let fault = |field, fault: &str| {
            Err(ConfigError::Range { prefix: self.prefix, field, fault: fault.to_owned() })
        };
        if self.prefix != self.prefix.trunc() {
            return fault("prefix", "has host bits: clear them");
        }
        let link_local = matches!(self.prefix, IpNet::V6(v6) if v6.addr().is_unicast_link_local());
        if link_local || self.prefix.addr().is_multicast() {
            return fault(
                "prefix",
                "no peer can have such an address: give a prefix of global or private addresses",
            );
        }
        if self.limit == 0 {
            return fault("limit", "0 admits no peer: give at least 1, or leave the prefix out");
        }
        self.template.validate().map_err(|error| self.of_all(error))
    }
}
