//! `probes`: packets through each router that find faults which no session shows.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::probe::Settings;

/// Probes of the routers: docs/probes.md.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ProbeConfig {
    /// Whether the agent sends probes through each established router on a connected network.
    pub enabled: bool,
    /// Time between two rounds of probes, in seconds.
    #[schemars(range(min = 1, max = 300))]
    pub interval_seconds: u16,
    /// Octets of a large probe, from the IP header on. Default: the pods' MTU.
    #[schemars(range(min = 576, max = 65_535))]
    pub size: Option<u16>,
    /// Addresses of other nodes that answer an echo request: the agent probes them through the
    /// fabric. Empty: the VTEP addresses of two other nodes, if NodeInfos contain any.
    pub targets: BTreeSet<IpAddr>,
    /// Whether a router with a fault is excluded from the pods' next hops, as long as there is a
    /// router without a fault.
    pub failover: bool,
}

impl Default for ProbeConfig {
    fn default() -> Self {
        ProbeConfig {
            enabled: true,
            interval_seconds: 5,
            size: None,
            targets: BTreeSet::new(),
            failover: false,
        }
    }
}

impl ProbeConfig {
    /// Checks the section. The error contains the field and the remedy.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        if !(1..=300).contains(&self.interval_seconds) {
            let message = format!("{} is out of range: write 1 to 300", self.interval_seconds);
            return Err(("probes.intervalSeconds", message));
        }
        if let Some(size) = self.size.filter(|size| *size < 576) {
            return Err(("probes.size", format!("{size} is out of range: write 576 to 65535")));
        }
        let is_host = |address: &IpAddr| match address {
            IpAddr::V4(v4) => !v4.is_link_local() && !v4.is_broadcast(),
            IpAddr::V6(v6) => !v6.is_unicast_link_local(),
        };
        for target in &self.targets {
            if target.is_unspecified() || target.is_loopback() || target.is_multicast() || !is_host(target) {
                let message = format!(
                    "{target} cannot be the address of another node: write an address that routers \
                     reach, such as 10.0.0.12"
                );
                return Err(("probes.targets", message));
            }
        }
        if !self.enabled && self.failover {
            let message = "failover needs probes: write `enabled: true`, or leave the field out";
            return Err(("probes.failover", message.to_owned()));
        }
        Ok(())
    }

    pub(super) fn settings(&self) -> Settings {
        Settings {
            enabled: self.enabled,
            interval: Duration::from_secs(self.interval_seconds.into()),
            size: self.size,
            failover: self.failover,
        }
    }
}
