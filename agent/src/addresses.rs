//! The origin of a pod's addresses: this node's own pools, or the cluster's controller.
//!
//! The attach flow gets the content of a record here. All later steps are the same for both
//! origins.

use std::collections::BTreeSet;

use ipnet::IpNet;
use tokio::time::Instant;
use trunkline_api::attach::{Attach, Code, Failure};
use trunkline_api::interfaces::InterfaceSettings;
use trunkline_api::pod::SubnetNames;
use trunkline_api::resources;
use trunkline_datapath::naming::default_mac;

use crate::ipam::{AddressRequest, AddressSource, AttachmentKey, MigrationState, PodName, Record};
use crate::source::kube::Cluster;
use crate::source::kube::instances::PodAddresses;

/// The origin of addresses. Cheap to clone.
#[derive(Clone)]
pub enum Addresses {
    /// This node's own pools.
    Local,
    /// The controller, through IPInstances.
    Cluster(Cluster),
}

/// The addresses of a new attachment.
#[derive(Clone, Debug)]
pub struct AddressChoice {
    /// The requested addresses.
    pub wanted: AddressSource,
    /// Its MAC.
    pub mac: [u8; 6],
    /// Prefixes that the pod may use as source besides its addresses, if its Network allows them.
    pub extra_prefixes: BTreeSet<IpNet>,
    /// Settings of another interface than the pod's first.
    pub interface: InterfaceSettings,
    /// The names of the interfaces that are attached with this one.
    pub others: Vec<String>,
    /// Whether the pod has further interfaces.
    pub several: bool,
    /// Its part in a live migration.
    pub migration: MigrationState,
}

impl Addresses {
    /// The addresses of a new attachment. With a cluster this may wait, at most until the deadline.
    pub async fn wanted(
        &self,
        request: &Attach,
        key: &AttachmentKey,
        pod: &PodName,
        deadline: Instant,
        abandoned: impl Future<Output = ()>,
    ) -> Result<AddressChoice, Failure> {
        let named_mac = request.wanted.mac.as_deref().map(parse_mac).transpose()?;
        match self {
            Addresses::Local => {
                let address_request = AddressRequest {
                    network: request.wanted.network.clone(),
                    subnets: subnets(&request.wanted.subnets)?,
                    addresses: request.wanted.addresses.clone(),
                    namespace: pod.namespace.clone(),
                };
                let mac = named_mac.unwrap_or_else(|| default_mac(&key.container_id, &key.ifname));
                let extra_prefixes = request.wanted.extra_prefixes.clone();
                Ok(AddressChoice {
                    wanted: AddressSource::Local(address_request),
                    mac,
                    extra_prefixes,
                    interface: InterfaceSettings::default(),
                    others: Vec::new(),
                    several: false,
                    migration: MigrationState::Active,
                })
            }
            Addresses::Cluster(cluster) => {
                let given = cluster.addresses_of(pod, &key.ifname, deadline, abandoned).await?;
                agree(request, named_mac, &given)?;
                let PodAddresses {
                    network,
                    addresses,
                    mac,
                    extra_prefixes,
                    interface,
                    others,
                    several,
                    migration,
                } = given;
                Ok(AddressChoice {
                    wanted: AddressSource::Assigned { network, addresses },
                    mac,
                    extra_prefixes,
                    interface: interface.unwrap_or_default(),
                    others,
                    several,
                    migration,
                })
            }
        }
    }

    /// Reports an attached and advertised pod to the cluster.
    pub fn attached(&self, record: &Record) {
        if let Addresses::Cluster(cluster) = self {
            cluster.attached(record);
        }
    }

    /// Reports the end of an attachment of this sandbox to the cluster.
    pub fn detached(&self, sandbox: &str, record: Option<&Record>) {
        if let Addresses::Cluster(cluster) = self {
            cluster.detached(sandbox, record);
        }
    }

    /// Reports a failed attachment. A failure of the whole node is also reported as a Kubernetes
    /// event.
    pub fn failed(&self, record: &Record, failure: &Failure) {
        if let Addresses::Cluster(cluster) = self
            && failure.code == Code::AddressNotAvailable
        {
            let PodName { namespace, name, .. } = &record.pod;
            cluster.warn("AddressConflict", format!("pod {namespace}/{name}: {failure}"));
        }
    }
}

/// Checks that the request of the CNI configuration equals the controller's allocation. With a
/// controller, the configuration cannot select addresses.
fn agree(request: &Attach, mac: Option<[u8; 6]>, given: &PodAddresses) -> Result<(), Failure> {
    if given.interface.is_some() {
        // The values of the request are those of the pod's first interface.
        return Ok(());
    }
    let wanted = &request.wanted;
    let has =
        |address: &std::net::IpAddr| given.addresses.iter().any(|assigned| assigned.address == *address);
    // Of several subnets in order of preference, the controller has used one.
    let from = |subnets: &String| {
        let mut named = subnets.split(',').map(str::trim);
        named.any(|subnet| given.addresses.iter().any(|assigned| assigned.subnet == subnet))
    };
    let what = if wanted.network.as_ref().is_some_and(|network| *network != given.network) {
        "network"
    } else if !wanted.subnets.iter().all(from) {
        "subnets"
    } else if !wanted.addresses.iter().all(has) {
        "addresses"
    } else if mac.is_some_and(|mac| mac != given.mac) {
        "a MAC"
    } else if !wanted.extra_prefixes.is_subset(&given.extra_prefixes) {
        "extraPrefixes"
    } else {
        return Ok(());
    };
    Err(Failure::new(
        Code::InvalidConfiguration,
        format!(
            "the request names {what} that differs from the pod's IPInstances: with `source: kube` \
             the controller decides. Remove it from the CNI configuration, and annotate the pod"
        ),
    ))
}

/// The subnets of the request: one list, or an IPv4 list and an IPv6 list.
fn subnets(lists: &[String]) -> Result<SubnetNames, Failure> {
    if lists.is_empty() {
        return Ok(SubnetNames::default());
    }
    SubnetNames::read(&lists.join("/"))
        .map_err(|error| Failure::new(Code::InvalidConfiguration, format!("subnet: {error}")))
}

/// The MAC address from the CNI configuration.
fn parse_mac(text: &str) -> Result<[u8; 6], Failure> {
    resources::parse_mac(text)
        .map_err(|error| Failure::new(Code::InvalidConfiguration, format!("mac {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_addresses() {
        assert_eq!(parse_mac("02:12:34:0a:0B:ff").unwrap(), [2, 0x12, 0x34, 10, 11, 255]);
        assert!(parse_mac("02:12").unwrap_err().message.contains("mac `02:12` is not the MAC address"));
    }
}
