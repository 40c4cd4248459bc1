//! Rules for a Network: type, mode and netID must be consistent, and a node has one path into the
//! fabric.

use std::collections::BTreeMap;

use super::peer;
use super::values::{MAX_VLAN, check_asn};
use crate::fault::{Fault, Faults};
use crate::pod::extra_prefix;
use crate::resources::{AttachmentKind, Network, NetworkMode, NetworkType};

/// The largest VNI: 24 bits (RFC 7348).
const MAX_VNI: u32 = (1 << 24) - 1;

pub(super) fn check_all(networks: &[Network], found: &mut Vec<Fault>) {
    for network in networks {
        check(network, &mut Faults { kind: "Network", name: network.name(), found });
    }
    for unique in [NetworkType::Overlay, NetworkType::GlobalBGP] {
        let mut these = networks.iter().filter(|network| network.network_type() == unique);
        let Some(first) = these.next() else { continue };
        for network in these {
            Faults { kind: "Network", name: network.name(), found }.add(
                "spec.type",
                format!(
                    "{unique:?}: only one Network of this type may exist, and {} exists: add \
                     Subnets to it",
                    first.name()
                ),
            );
        }
    }
}

fn check(network: &Network, faults: &mut Faults<'_>) {
    let (network_type, mode) = (network.network_type(), network.mode());
    let spec = &network.spec;

    match network_type {
        NetworkType::Underlay if spec.node_selector.is_empty() => faults.add(
            "spec.nodeSelector",
            "missing: an Underlay network needs the labels of its nodes, such as `network: rack1`",
        ),
        NetworkType::Overlay | NetworkType::GlobalBGP if !spec.node_selector.is_empty() => faults.add(
            "spec.nodeSelector",
            format!(
                "{:?}: a network of type {network_type:?} selects every node: leave it out",
                spec.node_selector
            ),
        ),
        _ => {}
    }

    let needs = match mode {
        NetworkMode::VLAN | NetworkMode::BGP => NetworkType::Underlay,
        NetworkMode::VXLAN => NetworkType::Overlay,
        NetworkMode::GlobalBGP => NetworkType::GlobalBGP,
    };
    if needs != network_type {
        faults.add(
            "spec.mode",
            format!("{mode:?} does not match type {network_type:?}: write type: {needs:?}"),
        );
    }

    match (mode, spec.net_id) {
        (NetworkMode::BGP, None) => {
            faults.add("spec.netID", "missing: mode BGP needs the AS number of the nodes, 1 to 4294967295");
        }
        (NetworkMode::BGP, Some(asn)) => check_asn("spec.netID", asn, faults),
        (NetworkMode::VXLAN, None) => {
            faults.add("spec.netID", format!("missing: mode VXLAN needs a VNI, 0 to {MAX_VNI}"));
        }
        (NetworkMode::VXLAN, Some(vni)) if vni > MAX_VNI => {
            faults.add("spec.netID", format!("{vni} is not a VNI: write 0 to {MAX_VNI}"));
        }
        (NetworkMode::VLAN, Some(vlan)) if vlan > MAX_VLAN => faults.add(
            "spec.netID",
            format!(
                "{vlan} is not a VLAN id: write 0 (untagged) to {MAX_VLAN}; for an AS number add mode: BGP"
            ),
        ),
        (NetworkMode::GlobalBGP, Some(asn)) => faults.add(
            "spec.netID",
            format!("{asn}: in mode GlobalBGP each node has its Underlay network's AS number: leave it out"),
        ),
        _ => {}
    }

    if mode != NetworkMode::VLAN && network.attachment() == AttachmentKind::Ipvlan {
        faults.add(
            "spec.config.attachment",
            format!(
                "ipvlan attaches pods to a VLAN, but the mode is {mode:?}: leave it out, or \
                write veth"
            ),
        );
    }

    check_extra_prefixes(network, faults);

    if network.is_hairpin() {
        if !matches!(mode, NetworkMode::VLAN | NetworkMode::BGP) {
            faults.add(
                "spec.config.hairpin",
                format!("true: in mode {mode:?} no switch sends packets back: leave it out"),
            );
        }
        if network.attachment() == AttachmentKind::Ipvlan {
            faults.add(
                "spec.config.hairpin",
                "true: the host sends the packets to the switch, and packets of pods with \
                 `attachment: ipvlan` do not pass the host: leave out one of the two",
            );
        }
        if let Some(index) = network.peers().iter().position(|peer| peer.import.is_some()) {
            faults.add(
                format!("spec.config.bgpPeers[{index}].import"),
                "with `hairpin: true`, packets between pods of this node use the default route to \
                 the peers, and an import replaces this route: leave out one of the two",
            );
        }
    }

    match mode {
        NetworkMode::BGP => peer::check_all(network, faults),
        mode if !network.peers().is_empty() => faults.add(
            "spec.config.bgpPeers",
            format!("there are peers, but the mode is {mode:?}: write mode: BGP, or leave the peers out"),
        ),
        _ => {}
    }
    let shutdown = spec.config.as_ref().and_then(|config| config.graceful_shutdown.as_ref());
    if mode != NetworkMode::BGP && shutdown.is_some() {
        faults.add(
            "spec.config.gracefulShutdown",
            format!("the mode is {mode:?}, and only a network with peers can use it: leave it out, or write it into the BGP network"),
        );
    }
}

/// Maximum number of entries in `extraPrefixes`.
const MAX_EXTRA_PREFIXES: usize = 64;

fn check_extra_prefixes(network: &Network, faults: &mut Faults<'_>) {
    const FIELD: &str = "spec.config.extraPrefixes";
    let Some(config) = network.spec.config.as_ref().filter(|config| !config.extra_prefixes.is_empty()) else {
        return;
    };
    if network.attachment() == AttachmentKind::Ipvlan {
        faults.add(
            FIELD,
            "with `attachment: ipvlan`, pods' packets do not pass the host, so it cannot check \
             their sources: leave out one of the two",
        );
    }
    if config.extra_prefixes.len() > MAX_EXTRA_PREFIXES {
        faults.add(FIELD, format!("there are more than {MAX_EXTRA_PREFIXES}: write fewer and shorter ones"));
    }
    for (index, text) in config.extra_prefixes.iter().enumerate() {
        if let Err(error) = extra_prefix(text) {
            faults.add(format!("{FIELD}[{index}]"), error.to_string());
        }
    }
}

/// Checks that a node is in at most one Underlay network, and so has one local AS. `node` is the
/// name in messages.
pub(super) fn check_node(
    networks: &[Network],
    node: &str,
    labels: &BTreeMap<String, String>,
    found: &mut Vec<Fault>,
) {
    let mut these = networks
        .iter()
        .filter(|network| network.network_type() == NetworkType::Underlay && network.selects(labels));
    let Some(first) = these.next() else { return };
    for network in these {
        let mut faults = Faults { kind: "Network", name: network.name(), found };
        let both_bgp = first.mode() == NetworkMode::BGP && network.mode() == NetworkMode::BGP;
        match (first.spec.net_id, network.spec.net_id) {
            (Some(one), Some(other)) if both_bgp && one != other => faults.add(
                "spec.netID",
                format!(
                    "{other} would be a second local AS on {node}, which is in Network {} with AS {one}: \
                     exclude {node} by the nodeSelector of one of them",
                    first.name()
                ),
            ),
            _ => faults.add(
                "spec.nodeSelector",
                format!(
                    "{:?} selects {node}, which is already in Underlay network {}: exclude the \
                     node from one of the two",
                    network.spec.node_selector,
                    first.name()
                ),
            ),
        }
    }
}

pub(super) fn check_change(old: &Network, new: &Network, found: &mut Vec<Fault>) {
    let mut faults = Faults { kind: "Network", name: new.name(), found };
    let mut immutable = |field: &str, old: String, new: String| {
        if old != new {
            faults.add(
                field,
                format!("{new}: it was {old} and cannot change: put it back, or make a new Network"),
            );
        }
    };
    immutable("spec.type", format!("{:?}", old.network_type()), format!("{:?}", new.network_type()));
    immutable("spec.mode", format!("{:?}", old.mode()), format!("{:?}", new.mode()));
    let shown = |net_id: Option<u32>| net_id.map_or("nothing".to_owned(), |net_id| net_id.to_string());
    immutable("spec.netID", shown(old.spec.net_id), shown(new.spec.net_id));
}
