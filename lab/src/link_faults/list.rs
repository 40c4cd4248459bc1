//! The faults.

use super::Action::{Shell, StartAgent, StopAgent};
use super::{Cost, Fault, FaultSignal};

/// Faults of the link and of the session on it.
pub(crate) const LINK_FAULTS: [Fault; 6] =
    [CABLE_CUT, SILENT, PREFIX_LIMIT, WRONG_PASSWORD, WRONG_AS, PODS_REFUSED];

/// Faults of the router's daemons.
pub(crate) const ROUTER_FAULTS: [Fault; 4] = [FROZEN, BGPD_KILLED, BGPD_RESTARTED, ROUTER_RESTARTED];

/// Faults on the node itself.
pub(crate) const NODE_FAULTS: [Fault; 5] =
    [AGENT_STOPPED, ROUTES_DELETED, NET_ID_EDITED, FORWARDING_OFF, FORWARD_DROP];

pub(crate) const CABLE_CUT: Fault = Fault {
    name: "cable cut",
    begin: &[Shell("tor1b", "ip link set eth3 down")],
    end: &[Shell("tor1b", "ip link set eth3 up")],
    notice: FaultSignal::SessionOrAlternate,
    cost: Cost::UntilDetected,
};

pub(crate) const SILENT: Fault = Fault {
    name: "link up and silent",
    begin: &[Shell("tor1b", SILENCE_ROUTER), Shell("node1a", SILENCE_NODE)],
    end: &[Shell("tor1b", END_SILENCE), Shell("node1a", END_SILENCE)],
    notice: FaultSignal::SessionOrAlternate,
    cost: Cost::UntilDetected,
};

/// Drops packets that arrive on a link, and changes nothing else.
const SILENCE_ROUTER: &str = "nft 'table netdev silence { chain ingress { type filter hook ingress device eth3 priority -500; policy drop; }; }'";
const SILENCE_NODE: &str = "nft 'table netdev silence { chain ingress { type filter hook ingress device eth2 priority -500; policy drop; }; }'";
const END_SILENCE: &str = "nft delete table netdev silence";

pub(crate) const PODS_REFUSED: Fault = Fault {
    name: "ToR refuses the pods' routes",
    begin: &[Shell(
        "tor1b",
        "vtysh -c 'configure terminal' \
         -c 'ip prefix-list NO-PODS seq 5 deny 10.201.0.0/16 le 32' -c 'ip prefix-list NO-PODS seq 10 permit any' \
         -c 'ipv6 prefix-list NO-PODS6 seq 5 deny fd00:201::/112 le 128' -c 'ipv6 prefix-list NO-PODS6 seq 10 permit any' \
         -c 'router bgp 65012' \
         -c 'address-family ipv4 unicast' -c 'neighbor 10.12.0.11 prefix-list NO-PODS in' -c 'exit-address-family' \
         -c 'address-family ipv6 unicast' -c 'neighbor 10.12.0.11 prefix-list NO-PODS6 in' \
         && vtysh -c 'clear bgp 10.12.0.11 soft in'",
    )],
    end: &[Shell(
        "tor1b",
        "vtysh -c 'configure terminal' -c 'router bgp 65012' \
         -c 'address-family ipv4 unicast' -c 'no neighbor 10.12.0.11 prefix-list NO-PODS in' -c 'exit-address-family' \
         -c 'address-family ipv6 unicast' -c 'no neighbor 10.12.0.11 prefix-list NO-PODS6 in' \
         && vtysh -c 'clear bgp 10.12.0.11 soft in'",
    )],
    notice: FaultSignal::SessionOrAlternate,
    cost: Cost::UntilDetected,
};

const PREFIX_LIMIT: Fault = Fault {
    name: "prefix limit of the ToR reached",
    begin: &[Shell(
        "tor1b",
        "vtysh -c 'configure terminal' -c 'router bgp 65012' -c 'address-family ipv4 unicast' \
         -c 'neighbor 10.12.0.11 maximum-prefix 1'",
    )],
    end: &[Shell(
        "tor1b",
        "vtysh -c 'configure terminal' -c 'router bgp 65012' -c 'address-family ipv4 unicast' \
         -c 'no neighbor 10.12.0.11 maximum-prefix 1' && vtysh -c 'clear bgp 10.12.0.11'",
    )],
    notice: FaultSignal::SessionOrAlternate,
    cost: Cost::UntilDetected,
};

const WRONG_PASSWORD: Fault = Fault {
    name: "wrong password on the ToR",
    begin: &[Shell(
        "tor1b",
        "vtysh -c 'configure terminal' -c 'router bgp 65012' -c 'neighbor 10.12.0.11 password wrong'",
    )],
    end: &[Shell(
        "tor1b",
        "vtysh -c 'configure terminal' -c 'router bgp 65012' -c 'neighbor 10.12.0.11 password rack1-lab-secret'",
    )],
    notice: FaultSignal::SessionOrAlternate,
    cost: Cost::UntilDetected,
};

/// The router has another AS than the manifest. The setting belongs to the peer group, so node1b loses
/// this router too.
const WRONG_AS: Fault = Fault {
    name: "wrong AS from the ToR",
    begin: &[Shell(
        "tor1b",
        "vtysh -c 'configure terminal' -c 'router bgp 65012' -c 'neighbor NODES local-as 65099'",
    )],
    end: &[Shell(
        "tor1b",
        "vtysh -c 'configure terminal' -c 'router bgp 65012' -c 'no neighbor NODES local-as 65099'",
    )],
    notice: FaultSignal::SessionOrAlternate,
    cost: Cost::UntilDetected,
};

const FROZEN: Fault = Fault {
    name: "ToR's daemons are suspended",
    begin: &[Shell("tor1b", "kill -STOP $(cat /run/frr/bgpd.pid /run/frr/bfdd.pid)")],
    end: &[Shell("tor1b", "kill -CONT $(cat /run/frr/bgpd.pid /run/frr/bfdd.pid)")],
    notice: FaultSignal::SessionOrAlternate,
    cost: Cost::UntilDetected,
};

/// Starts bgpd as a supervisor does. `vtysh -b` reads the configuration again.
const START_BGPD: &str =
    "/usr/lib/frr/bgpd -d -A 127.0.0.1 --log file:/var/log/frr/bgpd.log && vtysh -b >/dev/null 2>&1";

const BGPD_KILLED: Fault = Fault {
    name: "ToR's bgpd killed (SIGKILL), then started",
    begin: &[Shell("tor1b", "kill -KILL $(cat /run/frr/bgpd.pid)")],
    end: &[Shell("tor1b", START_BGPD)],
    notice: FaultSignal::SessionOrAlternate,
    cost: Cost::UntilDetected,
};

const BGPD_RESTARTED: Fault = Fault {
    name: "ToR's bgpd stopped, then started",
    begin: &[Shell("tor1b", "kill -TERM $(cat /run/frr/bgpd.pid)")],
    end: &[Shell("tor1b", START_BGPD)],
    notice: FaultSignal::SessionOrAlternate,
    cost: Cost::UntilDetected,
};

const ROUTER_RESTARTED: Fault = Fault {
    name: "ToR's routing stopped as a whole, then started",
    begin: &[Shell(
        "tor1b",
        "for d in bgpd bfdd staticd zebra; do kill -TERM $(cat /run/frr/$d.pid) || :; done",
    )],
    end: &[Shell("tor1b", include_str!("../../images/frr"))],
    notice: FaultSignal::SessionOrAlternate,
    cost: Cost::UntilDetected,
};

const AGENT_STOPPED: Fault = Fault {
    name: "agent stopped, then started",
    begin: &[StopAgent("node1a")],
    end: &[StartAgent("node1a")],
    notice: FaultSignal::Nothing,
    cost: Cost::Nothing,
};

const ROUTES_DELETED: Fault = Fault {
    name: "routes and rules deleted, a pod's link set down",
    begin: &[Shell(
        "node1a",
        "ip route flush table 39999; ip -6 route flush table 39999; ip route flush table 10000; ip -6 route flush table 10000; \
         ip rule del pref 1000; ip -6 rule del pref 1000; \
         ip link set $(ip -o link show type veth | grep -oE 'tl[0-9a-f]{12}' | head -1) down",
    )],
    end: &[],
    notice: FaultSignal::Nothing,
    cost: Cost::UntilDetected,
};

const NET_ID_EDITED: Fault = Fault {
    name: "netID edited on the node",
    begin: &[Shell("node1a", "sed -i 's/netID: 65101/netID: 65109/' /etc/trunkline/manifests/networks.yaml")],
    end: &[Shell("node1a", "sed -i 's/netID: 65109/netID: 65101/' /etc/trunkline/manifests/networks.yaml")],
    notice: FaultSignal::Nothing,
    cost: Cost::UntilDetected,
};

const FORWARDING_OFF: Fault = Fault {
    name: "ip_forward=0 on the node",
    begin: &[Shell(
        "node1a",
        "echo 0 >/proc/sys/net/ipv4/ip_forward; echo 0 >/proc/sys/net/ipv6/conf/all/forwarding",
    )],
    end: &[Shell(
        "node1a",
        "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding",
    )],
    notice: FaultSignal::Nothing,
    cost: Cost::WhileItStands,
};

const FORWARD_DROP: Fault = Fault {
    name: "a firewall on the node drops forwarded packets",
    begin: &[Shell(
        "node1a",
        "nft 'table inet firewall { chain forward { type filter hook forward priority 0; policy drop; }; }'",
    )],
    end: &[Shell("node1a", "nft delete table inet firewall")],
    notice: FaultSignal::Nothing,
    cost: Cost::WhileItStands,
};

/// Both nodes of the rack, each without one ToR.
pub(crate) const CROSSED: Fault = Fault {
    name: "node1a without tor1b, node1b without tor1a",
    begin: &[Shell("tor1b", "ip link set eth3 down"), Shell("tor1a", "ip link set eth4 down")],
    end: &[Shell("tor1b", "ip link set eth3 up"), Shell("tor1a", "ip link set eth4 up")],
    notice: FaultSignal::SessionOrAlternate,
    cost: Cost::UntilDetected,
};
