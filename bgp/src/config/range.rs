//! Neighbours that are known by the prefix they come from, and not one by one.

use ipnet::IpNet;

use super::{ConfigError, PeerConfig};
use crate::types::Asn;

/// A prefix from which peers may come without being configured. The speaker waits for them: it makes a peer when one
/// connects, and drops it once its session has ended and nothing of it is kept any more.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerRange {
    /// Where they come from. Its address has no host bits; the key of the range.
    pub prefix: IpNet,
    /// The most peers that may be there at a time, those included of which only stale paths are left; at least 1.
    pub limit: u32,
    /// What holds for each of them. Its address is replaced by the peer's, and each is passive.
    pub template: PeerConfig,
}

impl PeerRange {
    /// A range whose peers are like `template`.
    pub fn new(prefix: IpNet, limit: u32, template: PeerConfig) -> Self {
        let prefix = prefix.trunc();
        // Any address of the prefix will do for the checks that compare it with others.
        let address = prefix.hosts().next().unwrap_or(prefix.addr());
        PeerRange { prefix, limit, template: PeerConfig { address, passive: true, ..template } }
    }

    /// What the peer at `address` is configured with.
    pub(crate) fn peer(&self, address: std::net::IpAddr) -> PeerConfig {
        PeerConfig { address, passive: true, ..self.template.clone() }
    }

    /// Whether the peers make sense to a speaker of this AS; [`Self::validate`] looks at the rest.
    pub fn validate_for(&self, local_as: Asn) -> Result<(), ConfigError> {
        self.template.validate_for(local_as).map_err(|error| self.of_all(error))
    }

    /// A fault of the template is one of the range: nobody has configured the address that stands in it.
    fn of_all(&self, error: ConfigError) -> ConfigError {
        match error {
            ConfigError::Peer { field, fault, .. } => {
                ConfigError::Range { prefix: self.prefix, field, fault }
            }
            error => error,
        }
    }

    /// Whether every field has a value that the speaker has a place for.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let fault = |field, fault: &str| {
            Err(ConfigError::Range { prefix: self.prefix, field, fault: fault.to_owned() })
        };
        if self.prefix != self.prefix.trunc() {
            return fault("prefix", "has host bits: clear them");
        }
        let link_local = matches!(self.prefix, IpNet::V6(v6) if v6.addr().is_unicast_link_local());
        if link_local || self.prefix.addr().is_multicast() {
            return fault("prefix", "no peer comes from there: give a prefix of global or private addresses");
        }
        if self.limit == 0 {
            return fault("limit", "0 lets nobody in: give at least 1, or leave the prefix out");
        }
        self.template.validate().map_err(|error| self.of_all(error))
    }
}
