//! The NodeInfo that an agent writes: the tunnel addresses of its node.
//!
//! Other nodes send packets for these addresses through the tunnel to the node. A node that claims
//! a foreign address would therefore receive its packets. The rule compares the claim with the
//! Node, whose addresses and annotations an agent cannot write, but the kubelet of a compromised
//! node can. So the rule refuses addresses with another owner too, and each agent checks what other
//! nodes claim (`nodeAddressCIDRs` of agent.yaml).

use std::net::IpAddr;

use trunkline_api::names::annotation;
use trunkline_api::resources::{BgpPeer, Endpoint, NodeInfo, ServicePool, parse_address};
use trunkline_api::validate::Fault;

use super::{Facts, RuleResult, verdict};

/// Facts: the addresses of the NodeInfo's Node, Networks, Subnets and ServicePools.
///
/// # Errors
/// The fields that claim an address which the Node does not have, or which belongs to another
/// owner.
pub fn claim(info: &NodeInfo, facts: &Facts) -> RuleResult {
    let Some(vtep) = &info.spec.vtep_info else { return Ok(()) };
    let local = vtep.local_ips.iter().enumerate();
    let local = local.map(|(index, text)| (format!("spec.vtepInfo.localIPs[{index}]"), text));
    let claims = std::iter::once(("spec.vtepInfo.ip".to_owned(), &vtep.ip)).chain(local);
    let fault = |field, message| Fault { kind: "NodeInfo", name: info.name().to_owned(), field, message };
    let found =
        claims.filter(|(_, text)| !text.is_empty()).filter_map(|(field, text)| match parse_address(text) {
            Err(error) => Some(fault(field, error.to_string())),
            Ok(address) => {
                let is_local = field != "spec.vtepInfo.ip" && *text != vtep.ip;
                let refused =
                    unknown(info.name(), address, facts).or_else(|| owned(address, is_local, facts));
                refused.map(|message| fault(field, message))
            }
        });
    verdict(found.collect())
}

/// The reason for which a node may not claim this address.
fn unknown(node: &str, address: IpAddr, facts: &Facts) -> Option<String> {
    let Some(known) = &facts.node_addresses else {
        return Some(format!("there is no Node {node}: register the node before its agent starts"));
    };
    (!known.contains(&address)).then(|| {
        format!(
            "{address} is not an address of Node {node}: start its kubelet with --node-ip and \
             this address, or list it in the Node's annotation {}",
            annotation::EXTRA_LOCAL_IPS
        )
    })
}

/// The reason for which no node may claim this address. A VTEP can be a BGP peer: packets to it
/// still go to this address.
fn owned(address: IpAddr, is_local: bool, facts: &Facts) -> Option<String> {
    let is_special = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if is_special || address.is_loopback() || address.is_multicast() || address.is_unspecified() {
        return Some(format!("{address} is no address of one node in the fabric: remove it from the Node"));
    }
    let owner = of_subnet(address, facts).or_else(|| of_pool(address, facts));
    let owner = owner.or_else(|| of_peer(address, facts).filter(|_| is_local))?;
    Some(format!("{address} is {owner}: packets for it must not go to one node. Remove it from the Node"))
}

fn of_subnet(address: IpAddr, facts: &Facts) -> Option<String> {
    let mut ranges = facts.subnets.iter().filter_map(|one| Some((one.name(), one.spec.range.parse().ok()?)));
    ranges.find_map(|(name, range)| {
        if range.gateway == Some(address) {
            return Some(format!("the gateway of Subnet {name}"));
        }
        let is_pods = address.is_ipv4() == range.first.is_ipv4()
            && (range.first..=range.last).contains(&address)
            && !range.excluded.contains(&address);
        is_pods.then(|| format!("an address of Subnet {name}"))
    })
}

fn of_pool(address: IpAddr, facts: &Facts) -> Option<String> {
    let has = |pool: &ServicePool| {
        pool.spec.blocks().unwrap_or_default().iter().any(|block| block.contains(address))
    };
    let pool = facts.service_pools.iter().find(|pool| has(pool))?;
    Some(format!("an address of ServicePool {}", pool.name()))
}

fn of_peer(address: IpAddr, facts: &Facts) -> Option<String> {
    let is_it =
        |peer: &BgpPeer| matches!(peer.endpoint(), Ok(Endpoint::Address(known, _)) if known == address);
    let network = facts.networks.iter().find(|network| network.peers().iter().any(is_it))?;
    Some(format!("a BGP peer of Network {}", network.name()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{expect, network, subnet};
    use super::*;

    fn info(ip: &str, local: &[&str]) -> NodeInfo {
        serde_json::from_value(json!({
            "apiVersion": "networking.alibaba.com/v1", "kind": "NodeInfo", "metadata": {"name": "a"},
            "spec": {"vtepInfo": {"ip": ip, "localIPs": local}},
        }))
        .unwrap()
    }

    #[test]
    fn addresses_of_routers_pods_and_services_are_refused() {
        let pool = json!({"apiVersion": "trunkline.io/v1alpha1", "kind": "ServicePool", "metadata": {"name": "vips"}, "spec": {"addresses": ["10.0.0.80-10.0.0.89"]}});
        let peers = json!({"type": "Underlay", "mode": "BGP", "netID": 65_001, "config": {"bgpPeers": [{"asn": 65_000, "address": "10.0.0.5"}]}});
        let range = json!({"version": "4", "cidr": "10.0.0.128/25", "gateway": "10.0.0.129", "excludeIPs": ["10.0.0.140"]});
        let texts = [
            "10.0.0.1",
            "10.0.0.5",
            "10.0.0.85",
            "10.0.0.129",
            "10.0.0.130",
            "10.0.0.140",
            "127.0.0.1",
            "fe80::1",
        ];
        // The kubelet of a compromised node writes each of them into the status of its Node.
        let facts = Facts {
            node_addresses: Some(texts.iter().map(|text| text.parse().unwrap()).collect()),
            networks: vec![network("rack", peers)],
            subnets: vec![subnet("pods", json!({"network": "rack", "range": range}))],
            service_pools: vec![serde_json::from_value(pool).unwrap()],
            ..Facts::default()
        };
        for (address, refusal) in [
            ("10.0.0.1", ""),
            ("10.0.0.140", ""),
            ("10.0.0.5", "10.0.0.5 is a BGP peer of Network rack"),
            ("10.0.0.85", "10.0.0.85 is an address of ServicePool vips"),
            ("10.0.0.129", "10.0.0.129 is the gateway of Subnet pods"),
            ("10.0.0.130", "10.0.0.130 is an address of Subnet pods"),
            ("127.0.0.1", "is no address of one node"),
            ("fe80::1", "is no address of one node"),
        ] {
            expect(address, claim(&info("10.0.0.1", &[address]), &facts), refusal);
        }
        expect("a route reflector", claim(&info("10.0.0.5", &["10.0.0.5"]), &facts), "");
        expect("VTEP", claim(&info("10.0.0.85", &[]), &facts), "spec.vtepInfo.ip: 10.0.0.85 is an address");
    }

    #[test]
    fn claims_must_be_addresses_of_the_node() {
        let addresses = Some(vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()]);
        let facts = Facts { node_addresses: addresses, ..Facts::default() };
        for (claim_of, refusal) in [
            (info("10.0.0.1", &[]), ""),
            (info("10.0.0.1", &["10.0.0.1", "fd00:0::1"]), ""),
            (info("10.0.0.2", &[]), "spec.vtepInfo.ip: 10.0.0.2 is not an address of Node a"),
            (
                info("10.0.0.1", &["10.0.0.1", "8.8.8.8"]),
                "spec.vtepInfo.localIPs[1]: 8.8.8.8 is not an address of Node a",
            ),
            (info("10.0.0.1", &["::ffff:10.0.0.1"]), "is not an address of Node a"),
            (info("10.0.0.1", &["nonsense"]), "localIPs[0]"),
        ] {
            expect(&format!("{:?}", claim_of.spec), claim(&claim_of, &facts), refusal);
        }
        expect("no Node", claim(&info("10.0.0.1", &[]), &Facts::default()), "there is no Node a");
        let nothing = NodeInfo { spec: Default::default(), ..info("", &[]) };
        expect("no claim", claim(&nothing, &Facts::default()), "");
    }
}
