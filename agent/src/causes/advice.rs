//! The advice for a peer without a session, by cause. `peers`, `doctor`, `watch` and the page print
//! these texts, and `docs/alerts.md` lists them.

use trunkline_bgp::speaker::{Cause, PeerStatus, Side};

/// The advice while no speaker runs.
pub(super) const SPEAKER: &str = "follow the text: `trunkline status` shows when the speaker runs again";

/// The data of a peer in an advice.
#[derive(Clone, Debug)]
pub struct AdviceSubject {
    /// The peer as an argument of `trunkline peers`.
    pub name: String,
    /// Its address.
    pub address: String,
    /// The AS number of this node in this session.
    pub local_as: u32,
    /// The configured AS of the peer.
    pub remote_as: u32,
}

impl AdviceSubject {
    /// The data of this peer.
    pub fn of(status: &PeerStatus) -> AdviceSubject {
        AdviceSubject {
            name: status.key().to_string(),
            address: status.address.to_string(),
            local_as: status.local_as.0,
            remote_as: status.remote_as.0,
        }
    }
}

/// The advice for this cause.
pub fn advice(cause: &Cause, about: &AdviceSubject) -> String {
    let AdviceSubject { name, address, local_as, remote_as } = about;
    match cause {
        Cause::Carrier { interface } => {
            format!("check the cable of {interface} and the router's port: `ip link show {interface}`")
        }
        Cause::Bfd { .. } => format!(
            "run `ping {address}`. No answer: the link or the router is dead: check cable, optics, the router's port and its power. \
             An answer: the router's BGP process ended, its BFD daemon hangs, BFD differs between the two sides, or a filter drops \
             UDP 3784 (4784 over several hops)"
        ),
        Cause::HoldTimer { by: Side::Local } => format!(
            "run `ping {address}`. No answer: the link or the router is dead: check cable, optics, the router's port and its power. \
             An answer: the router's BGP process hangs or its processor is overloaded, or a filter drops TCP 179"
        ),
        Cause::HoldTimer { by: Side::Peer } => format!(
            "the router received nothing from this node: run `ping {address}`, look at `ip -s link` for errors, then at the load of \
             this node"
        ),
        Cause::PrefixLimit { by: Side::Local, limit } => format!(
            "the router sends more prefixes than {}: filter on the router, or raise maxPrefixes of this peer",
            match limit {
                Some(limit) => format!("this node's limit of {limit}"),
                None => "this node's limit".to_owned(),
            }
        ),
        Cause::PrefixLimit { by: Side::Peer, limit } => format!(
            "this node advertises more prefixes than {}: raise the limit for this node on the router (FRR: maximum-prefix), then clear the \
             session there",
            match limit {
                Some(limit) => format!("the router's limit of {limit}"),
                None => "the router's limit".to_owned(),
            }
        ),
        Cause::WrongAs { expected: Some(expected), got: Some(got), .. } => format!(
            "the router is in AS {got} and the Network has {expected}: correct asn of this peer in \
             the Network, or the AS of the router"
        ),
        Cause::WrongAs { .. } => format!(
            "this node is in AS {local_as} and the router expects another AS: correct remote-as of this node on the router, or netID of \
             the Network"
        ),
        Cause::Passwords { .. } => format!(
            "compare the password of {address} with the router's. The kernel counts wrong \
             signatures for the whole host, without addresses: if several peers have no session, \
             compare the password of each"
        ),
        Cause::Shutdown { by: Side::Local } => {
            "remove shutdown from this peer in the Network when the session may come up".to_owned()
        }
        Cause::Shutdown { by: Side::Peer } => {
            "an operator shut the session down on the router: it comes back when it is enabled there"
                .to_owned()
        }
        Cause::Reset { .. } => {
            "the session comes back by itself; if it does not, look at the last attempt".to_owned()
        }
        Cause::Deconfigured { .. } => {
            format!("configure this node as a neighbour on the router again, with remote-as {local_as}")
        }
        Cause::Configuration { .. } => {
            "the configuration of this session was changed: compare password, AS numbers and address families on \
             both sides. If they agree, the session comes back by itself"
                .to_owned()
        }
        Cause::Closed => {
            "the router's BGP process ended, by a restart, a stop or a crash: look at its log, and start it if it does not run"
                .to_owned()
        }
        Cause::Refused => format!(
            "no BGP process listens at {address}: start it, configure this node as a neighbour there, or look for a firewall that \
             rejects TCP 179"
        ),
        Cause::Rejected => format!(
            "BGP runs at {address} and does not accept this node: configure it there as a \
             neighbour with remote-as {local_as}, or remove its shutdown there, or raise its \
             prefix limit"
        ),
        Cause::NoAnswer => format!(
            "`ping {address}`. If it answers, look for filters of TCP 179, and compare address and password on both sides"
        ),
        Cause::Unreachable => format!(
            "nothing answers at {address}: look at the router and its address, and at `ip neigh show {address}` here"
        ),
        Cause::NoRoute => format!(
            "give the link towards {address} an address of its subnet, or add a route: `ip route get {address}`"
        ),
        Cause::SourceAddress => {
            "add the source address to an interface of this host, or correct it in the Network".to_owned()
        }
        Cause::Firewall => format!("allow TCP 179 to {address} in this host's firewall: `nft list ruleset`"),
        Cause::Protocol { .. } => {
            format!("compare both sides' BGP configuration: `trunkline peers {name}` has the NOTIFICATION")
        }
        Cause::Other => format!(
            "compare address and AS {remote_as} on both sides: `trunkline peers {name}` has the details, docs/faults.md the usual causes"
        ),
    }
}

/// The advice for an unnumbered peer before its discovery.
pub(super) fn discovery(interface: &str) -> String {
    format!(
        "let the router send router advertisements on this link (FRR: `no ipv6 nd suppress-ra`), and look at `ip link show {interface}`"
    )
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use trunkline_bgp::speaker::RefusedSegments;
    use trunkline_bgp::types::Asn;

    use super::*;
    use crate::causes::kind_of;

    /// All advice in the form of `docs/alerts.md`.
    fn table() -> String {
        let about = AdviceSubject {
            name: "10.1.0.1".to_owned(),
            address: "10.1.0.1".to_owned(),
            local_as: 65101,
            remote_as: 65001,
        };
        let [here, there] = [Side::Local, Side::Peer];
        let causes = [
            Cause::Carrier { interface: "eth1".parse().unwrap() },
            Cause::Bfd { by: here },
            Cause::HoldTimer { by: here },
            Cause::HoldTimer { by: there },
            Cause::PrefixLimit { by: here, limit: Some(100) },
            Cause::PrefixLimit { by: there, limit: Some(100) },
            Cause::PrefixLimit { by: there, limit: None },
            Cause::WrongAs { by: here, expected: Some(Asn(65001)), got: Some(Asn(65009)) },
            Cause::WrongAs { by: there, expected: None, got: None },
            Cause::Passwords { refused: RefusedSegments::default() },
            Cause::Shutdown { by: here },
            Cause::Shutdown { by: there },
            Cause::Reset { by: there },
            Cause::Deconfigured { by: there },
            Cause::Configuration { by: there },
            Cause::Closed,
            Cause::Refused,
            Cause::Rejected,
            Cause::NoAnswer,
            Cause::Unreachable,
            Cause::NoRoute,
            Cause::SourceAddress,
            Cause::Firewall,
            Cause::Protocol { by: here },
            Cause::Other,
        ];
        let mut table = "| `reason` | what to do |\n|---|---|\n".to_owned();
        for cause in causes {
            let _ = writeln!(table, "| `{}` | {} |", kind_of(cause.kind()).label(), advice(&cause, &about));
        }
        let _ = writeln!(table, "| `discovery` | {} |\n| `speaker` | {SPEAKER} |", discovery("eth1"));
        table
    }

    #[test]
    fn the_docs_have_every_advice() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/alerts.md");
        let page = std::fs::read_to_string(path).unwrap();
        assert!(page.contains(&table()), "docs/alerts.md lacks:\n{}", table());
    }
}
