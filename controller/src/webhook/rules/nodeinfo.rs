//! The NodeInfo that an agent writes: the tunnel addresses of its node.
//!
//! Other nodes send packets for these addresses through the tunnel to the node. A node that claims
//! a foreign address would therefore receive its packets. The rule compares the claim with the
//! Node, whose addresses and annotations an agent cannot write.

use std::net::IpAddr;

use trunkline_api::names::annotation;
use trunkline_api::resources::{NodeInfo, parse_address};
use trunkline_api::validate::Fault;

use super::{Facts, RuleResult, verdict};

/// Facts: the addresses of the NodeInfo's Node.
///
/// # Errors
/// The fields that claim an address which the Node does not have.
pub fn claim(info: &NodeInfo, facts: &Facts) -> RuleResult {
    let Some(vtep) = &info.spec.vtep_info else { return Ok(()) };
    let local = vtep.local_ips.iter().enumerate();
    let local = local.map(|(index, text)| (format!("spec.vtepInfo.localIPs[{index}]"), text));
    let claims = std::iter::once(("spec.vtepInfo.ip".to_owned(), &vtep.ip)).chain(local);
    let fault = |field, message| Fault { kind: "NodeInfo", name: info.name().to_owned(), field, message };
    let found =
        claims.filter(|(_, text)| !text.is_empty()).filter_map(|(field, text)| match parse_address(text) {
            Err(error) => Some(fault(field, error.to_string())),
            Ok(address) => unknown(info.name(), address, facts).map(|message| fault(field, message)),
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::expect;
    use super::*;

    fn info(ip: &str, local: &[&str]) -> NodeInfo {
        serde_json::from_value(json!({
            "apiVersion": "networking.alibaba.com/v1", "kind": "NodeInfo", "metadata": {"name": "a"},
            "spec": {"vtepInfo": {"ip": ip, "localIPs": local}},
        }))
        .unwrap()
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
