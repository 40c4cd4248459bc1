//! Recovery of addresses that a kubelet reports although no IPInstance records them (etcd was
//! restored from an old snapshot).
//!
//! A compromised node can write any `status.podIPs` for its own pods. So a report is valid only for
//! addresses that the pod could get on this node without the report. Such an address is a free
//! address of the pod's own network. [`crate::selection::place`] has checked this network against
//! the node's labels. Private Subnets and reserved addresses are excluded unless the pod requests
//! them, and Subnets for other Namespaces always. A disabled Subnet is no reason, because the pod
//! got its address before.

use std::net::IpAddr;

use trunkline_api::resources::SubnetRefusal;

use crate::cluster::PodRow;
use crate::ipam::AddressInfo;
use crate::selection::Selection;

/// The reason why a pod does not get the reported addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotRecovered {
    /// Another plugin assigned the addresses: no Subnet contains any of them.
    Foreign,
    /// The report is refused.
    Refused(RefusedReport),
}

/// A reported address that the pod does not get.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the kubelet reports {address} for this pod, but no IPInstance records this address: {why}: \
     delete the pod if it does not get an address"
)]
pub struct RefusedReport {
    /// The address.
    pub address: IpAddr,
    /// The reason.
    #[source]
    pub why: ReportFault,
}

/// The reason why a reported address is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportFault {
    /// It is outside every Subnet.
    #[error("no Subnet has it")]
    NoSubnet,
    /// The pod has not started.
    #[error("the pod's phase is not Running yet")]
    NotRunning,
    /// Its Subnet is of another Network than the pod.
    #[error("Subnet {subnet} is of Network {of}, the pod is in Network {network}")]
    OtherNetwork {
        /// The Subnet.
        subnet: String,
        /// The Subnet's Network.
        of: String,
        /// The pod's Network.
        network: String,
    },
    /// An IPInstance has it.
    #[error("an IPInstance of namespace {namespace} has it")]
    Held {
        /// The IPInstance's namespace.
        namespace: String,
    },
    /// Its Subnet is private.
    #[error("Subnet {subnet} is private, and the pod does not name it")]
    Private {
        /// The Subnet.
        subnet: String,
    },
    /// The pod names other Subnets.
    #[error("the pod names other Subnets than {subnet}")]
    OtherSubnets {
        /// The Subnet.
        subnet: String,
    },
    /// Its Subnet is for other Namespaces.
    #[error("Subnet {subnet} {refusal}")]
    Refused {
        /// The Subnet.
        subnet: String,
        /// The reason.
        refusal: SubnetRefusal,
    },
    /// The address is reserved, and only a pod that names it gets it.
    #[error("it is one of the reservedIPs of Subnet {subnet}")]
    Reserved {
        /// The Subnet.
        subnet: String,
    },
}

/// Checks the reported addresses of a pod in a namespace. `network` is the pod's network on its
/// node; `known` looks up an address.
///
/// # Errors
/// The pod does not get these addresses.
pub fn check(
    namespace: &str,
    pod: &PodRow,
    selection: &Selection,
    network: &str,
    known: impl Fn(IpAddr) -> Option<AddressInfo>,
) -> Result<(), NotRecovered> {
    let found: Vec<(IpAddr, Option<AddressInfo>)> =
        pod.addresses.iter().map(|address| (*address, known(*address))).collect();
    if found.iter().all(|(_, known)| known.is_none()) {
        return Err(NotRecovered::Foreign);
    }
    let refuse =
        |address: IpAddr, why: ReportFault| Err(NotRecovered::Refused(RefusedReport { address, why }));
    for (address, known) in found {
        let Some(known) = known else {
            return refuse(address, ReportFault::NoSubnet);
        };
        let AddressInfo { subnet, network: of, private, access, reserved, holder } = known;
        let is_named = selection.subnets.contains(&subnet);
        if !pod.started {
            return refuse(address, ReportFault::NotRunning);
        }
        if of != network {
            return refuse(address, ReportFault::OtherNetwork { subnet, of, network: network.to_owned() });
        }
        if let Some(namespace) = holder {
            return refuse(address, ReportFault::Held { namespace });
        }
        if let Err(refusal) = access.check_namespace(namespace) {
            return refuse(address, ReportFault::Refused { subnet, refusal });
        }
        if private && !is_named {
            return refuse(address, ReportFault::Private { subnet });
        }
        if !selection.subnets.is_empty() && !is_named {
            return refuse(address, ReportFault::OtherSubnets { subnet });
        }
        if reserved {
            return refuse(address, ReportFault::Reserved { subnet });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use trunkline_api::pod::{IpFamily, SubnetNames};
    use trunkline_api::resources::{NetworkType, SubnetAccess};

    use super::*;
    use crate::cluster::{NetworkingMetadata, PodLifecycle};

    fn known(network: &str) -> AddressInfo {
        AddressInfo {
            subnet: "sub".to_owned(),
            network: network.to_owned(),
            private: false,
            access: SubnetAccess::default(),
            reserved: false,
            holder: None,
        }
    }

    #[test]
    fn only_what_the_pod_could_have_got_is_recovered() {
        let (rack, private) = (known("rack"), AddressInfo { private: true, ..known("rack") });
        let access = |disabled, namespaces: &[&str]| SubnetAccess {
            disabled,
            namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
        };
        let for_others = AddressInfo { access: access(false, &["a"]), ..rack.clone() };
        let disabled = AddressInfo { access: access(true, &[]), ..rack.clone() };
        for (case, started, subnets, first, second, refused) in [
            ("free, of its network", true, &[][..], Some(rack.clone()), Some(rack.clone()), None),
            ("not started", false, &[], Some(rack.clone()), None, Some("not Running yet")),
            (
                "another rack's",
                true,
                &[],
                Some(known("other")),
                None,
                Some("of Network other, the pod is in Network rack"),
            ),
            (
                "an IPInstance has it",
                true,
                &[],
                Some(AddressInfo { holder: Some("ns".to_owned()), ..rack.clone() }),
                None,
                Some("an IPInstance of namespace ns has it"),
            ),
            ("private", true, &[], Some(private.clone()), None, Some("private")),
            (
                "of other namespaces",
                true,
                &["sub"],
                Some(for_others),
                None,
                Some("Subnet sub is only for Namespaces a, and not for b"),
            ),
            ("disabled", true, &[], Some(disabled.clone()), Some(disabled), None),
            ("private and named", true, &["sub"], Some(private.clone()), Some(private), None),
            (
                "of another subnet than named",
                true,
                &["else"],
                Some(rack.clone()),
                None,
                Some("other Subnets than sub"),
            ),
            (
                "reserved",
                true,
                &[],
                Some(AddressInfo { reserved: true, ..rack.clone() }),
                None,
                Some("reservedIPs of Subnet sub"),
            ),
            ("one of two is in no subnet", true, &[], Some(rack), None, Some("no Subnet has it")),
        ] {
            let pod = PodRow {
                uid: "uid".into(),
                node: Some("n1".into()),
                host_network: false,
                selected: true,
                interface: None,
                owner: None,
                networking: NetworkingMetadata::default(),
                life: PodLifecycle::Alive,
                running: true,
                started,
                failed: false,
                finalizer: false,
                addresses: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            };
            let selection = Selection {
                network: None,
                subnets: match subnets {
                    [] => SubnetNames::default(),
                    names => SubnetNames::read(&names.join(",")).unwrap(),
                },
                network_type: NetworkType::Underlay,
                family: IpFamily::DualStack,
                retained: false,
            };
            let look = |address: IpAddr| if address.is_ipv4() { first.clone() } else { second.clone() };
            match (check("b", &pod, &selection, "rack", look), refused) {
                (Ok(()), None) => {}
                (Err(NotRecovered::Refused(report)), Some(words)) => {
                    assert!(report.to_string().contains(words), "{case}: {report}");
                }
                (other, _) => panic!("{case}: {other:?}"),
            }
            assert_eq!(check("b", &pod, &selection, "rack", |_| None), Err(NotRecovered::Foreign), "{case}");
        }
    }
}
