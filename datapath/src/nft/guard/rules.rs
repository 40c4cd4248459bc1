//! The rules of the guard's tables, in the format of `nft list`.

use std::fmt::Write as _;

use super::{ARP_REASON, NAME, REASONS};
use crate::netlink::objects::GROUP;
use crate::plan::{GuardPlan, GuardedOverlay, GuardedTunnel};

/// The protocol number of TCP.
const TCP: i32 = libc::IPPROTO_TCP;
/// The protocol number of UDP.
const UDP: i32 = libc::IPPROTO_UDP;
/// The protocol numbers of ICMP and ICMPv6.
const ICMP: i32 = libc::IPPROTO_ICMP;
const ICMPV6: i32 = libc::IPPROTO_ICMPV6;
/// A priority after those of IPVS and of source translation at input (98 to 100), and more than 10
/// beyond 100: nearer ones have another name in later versions of `nft`.
const AFTER_IPVS: i32 = 120;

const ARP: &str = "\
\tset own {
\t\ttype iface_index . ipv4_addr
\t}

\tset sources {
\t\ttype iface_index . ipv4_addr
\t\tflags interval
\t}

";

const SETS_OF_INET: &str = "\
\tset own4 {
\t\ttype iface_index . ipv4_addr
\t}

\tset own6 {
\t\ttype iface_index . ipv6_addr
\t}

\tset sources4 {
\t\ttype iface_index . ipv4_addr
\t\tflags interval
\t}

\tset sources6 {
\t\ttype iface_index . ipv6_addr
\t\tflags interval
\t}

\tset vteps4 {
\t\ttype ipv4_addr
\t}

\tset vteps6 {
\t\ttype ipv6_addr
\t}

\tset nodes4 {
\t\ttype ipv4_addr
\t}

\tset nodes6 {
\t\ttype ipv6_addr
\t}

\tset peers4 {
\t\ttype ipv4_addr
\t}

\tset peers6 {
\t\ttype ipv6_addr
\t}

";

/// The table, in the order and format of `nft --numeric-protocol`.
///
/// The dropped messages are not TCP, so TCP skips their rules. Each expression costs about 0.1 % of
/// the processing time of a small packet. TCP from a pod's own address passes with one chain and
/// two rules.
pub(super) fn render_inet(plan: &GuardPlan) -> String {
    let mut text = format!("table inet {NAME} {{\n");
    for reason in REASONS {
        let _ = write!(text, "\tcounter {reason} {{\n\t}}\n\n");
    }
    text.push_str(SETS_OF_INET);
    // Before the translation of destinations: a packet that is translated to 127.0.0.1 passes.
    let loopback = if plan.closes_loopback { "\t\tip daddr 127.0.0.0/8 drop\n" } else { "" };
    let _ = write!(
        text,
        "\tchain prerouting {{\n\
         \t\ttype filter hook prerouting priority raw; policy accept;\n\
         \t\tiifgroup != {GROUP} accept\n\
         {loopback}\
         \t\tmeta l4proto {TCP} iif . ip saddr @own4 accept\n\
         \t\tmeta l4proto {TCP} iif . ip6 saddr @own6 accept\n\
         \t\tjump messages\n\
         \t\tiif . ip saddr @own4 accept\n\
         \t\tiif . ip6 saddr @own6 accept\n\
         \t\tip6 saddr {{ ::, fe80::/10 }} drop\n\
         \t\tfib saddr . iif oif missing goto foreign\n\
         \t}}\n\n\
         \tchain messages {{\n\
         \t\ticmp type redirect counter name \"icmp_redirect\" drop\n\
         \t\ticmp type router-advertisement counter name \"router_advertisement\" drop\n\
         \t\ticmpv6 type nd-router-advert counter name \"router_advertisement\" drop\n\
         \t\ticmpv6 type nd-redirect counter name \"icmp_redirect\" drop\n\
         \t\tudp sport 67 udp dport 68 counter name \"dhcp_server\" drop\n\
         \t\tudp sport 547 udp dport 546 counter name \"dhcp_server\" drop\n\
         \t}}\n\n\
         \tchain foreign {{\n\
         \t\tiif . ip saddr @sources4 return\n\
         \t\tiif . ip6 saddr @sources6 return\n\
         \t\tcounter name \"source\" drop\n\
         \t}}\n\n\
         \tchain input {{\n\
         \t\ttype filter hook input priority filter - 10; policy accept;\n\
         \t\tiifgroup {GROUP} jump node\n"
    );
    if let Some(tunnel) = &plan.tunnel {
        let _ = writeln!(text, "\t\t{} jump overlay", packets_of(tunnel.overlay));
    }
    text.push_str("\t}\n\n\tchain node {\n");
    for port in &plan.bgp_ports {
        let _ = writeln!(text, "\t\ttcp dport {port} counter name \"bgp\" drop");
    }
    let _ = writeln!(text, "\t\tudp dport {BFD} counter name \"bfd\" drop");
    for port in &plan.vxlan_ports {
        let _ = writeln!(text, "\t\tudp dport {port} counter name \"vxlan_from_pod\" drop");
    }
    text.push_str(
        "\t}\n\n\tchain overlay {\n\t\tip saddr @vteps4 return\n\t\tip6 saddr @vteps6 return\n\t\tcounter name \"vtep\" drop\n\t}\n",
    );
    render_translated(plan, &mut text);
    render_forward(plan, &mut text);
    render_output(plan, &mut text);
    if plan.keeps_own {
        render_own(plan, &mut text);
        render_translated_sources(plan, &mut text);
    }
    text.push_str("}\n");
    text
}

/// Before the destination NAT of other programs (-100).
const BEFORE_NAT: i32 = -120;
/// After the source NAT of other programs (100).
const AFTER_NAT: i32 = 120;

/// The chains that keep the destination of the node's own packets: BGP and BFD with its peers, and VXLAN
/// with the VTEPs of its overlay.
fn render_own(plan: &GuardPlan, text: &mut String) {
    for (hook, end, local) in [("prerouting", "saddr", " fib daddr type local"), ("output", "daddr", "")] {
        let _ = write!(
            text,
            "\n\tchain own_{hook} {{\n\t\ttype nat hook {hook} priority {BEFORE_NAT}; policy accept;\n"
        );
        let mut keep = |packets: &str, ends: &[(&str, String)]| {
            for (family, name) in ends {
                let _ = writeln!(
                    text,
                    "\t\t{packets} {family} {end} {name}{local} dnat {family} to {family} daddr"
                );
            }
        };
        let peers = peers(plan);
        let ports = if hook == "output" { &plan.peer_ports } else { &plan.bgp_ports };
        for port in ports {
            keep(&format!("tcp dport {port}"), &peers);
        }
        keep(&format!("udp dport {BFD}"), &peers);
        if let Some(tunnel) = &plan.tunnel {
            keep(&format!("udp dport {}", tunnel.overlay.port), &sets("vteps"));
        }
        for server in plan.own_servers.iter().filter(|server| hook == "output" && server.ip().is_loopback()) {
            let family = if server.is_ipv4() { "ip" } else { "ip6" };
            keep(&format!("tcp dport {}", server.port()), &[(family, server.ip().to_string())]);
        }
        text.push_str("\t}\n");
    }
}

/// The chain that closes the peers to translated packets. With the address of this node, a peer takes a
/// connection of a pod for this node's.
fn render_translated_sources(plan: &GuardPlan, text: &mut String) {
    let _ = write!(
        text,
        "\n\tchain postrouting {{\n\t\ttype filter hook postrouting priority {AFTER_NAT}; policy accept;\n"
    );
    for port in &plan.peer_ports {
        let _ = writeln!(text, "\t\ttcp dport {port} jump bgp_translated");
    }
    let _ = writeln!(text, "\t\tudp dport {BFD} jump bfd_translated\n\t}}");
    for counter in ["bgp", "bfd"] {
        let _ = write!(
            text,
            "\n\tchain {counter}_translated {{\n\
             \t\tct status snat goto {counter}_to_peers\n\
             \t\tct status dnat goto {counter}_to_peers\n\
             \t}}\n\n\
             \tchain {counter}_to_peers {{\n"
        );
        for (family, name) in peers(plan) {
            let _ = writeln!(text, "\t\t{family} daddr {name} counter name \"{counter}\" drop");
        }
        text.push_str("\t}\n");
    }
}

/// The sets of both families with this name.
fn sets(name: &str) -> Vec<(&'static str, String)> {
    [("ip", 4), ("ip6", 6)].map(|(family, number)| (family, format!("@{name}{number}"))).into()
}

/// All peers: a family, and a set or prefix.
fn peers(plan: &GuardPlan) -> Vec<(&'static str, String)> {
    let prefixes = plan.neighbours.iter().map(|prefix| {
        let is_host = prefix.prefix_len() == prefix.max_prefix_len();
        let text = if is_host { prefix.addr().to_string() } else { prefix.to_string() };
        (if prefix.addr().is_ipv4() { "ip" } else { "ip6" }, text)
    });
    sets("peers").into_iter().chain(prefixes).collect()
}

/// The UDP ports of BFD (RFC 5881 §4, RFC 5883 §5).
const BFD: &str = "{ 3784, 3785, 4784 }";
pub(super) const BFD_PORTS: [u16; 3] = [3784, 3785, 4784];

/// Matches the packets of an overlay. The VNI: the 24 bits after the UDP header (RFC 768) and
/// VXLAN's flags and reserved bits (RFC 7348 §5).
fn packets_of(overlay: GuardedOverlay) -> String {
    let GuardedOverlay { vni, port } = overlay;
    format!("udp dport {port} @th,96,24 {vni:#x}")
}

/// The chain at input after IPVS, which translates at priorities 98 and 99. Port and VNI are those
/// of the program that receives the packet.
///
/// The address is not checked a second time: at priority 100 the source can be translated. A packet
/// whose port was translated is never one of a tunnel. Connection tracking knows the port before
/// the translation. Without tracking, no source is translated.
///
/// The chain refers to connection tracking, so IPv6 fragments are reassembled before all rules. IPv6
/// itself reassembles them after this hook, and the first fragment may end before the VNI.
fn render_translated(plan: &GuardPlan, text: &mut String) {
    let _ = write!(
        text,
        "\n\tchain translated {{\n\
         \t\ttype filter hook input priority {AFTER_IPVS}; policy accept;\n\
         \t\tiifgroup {GROUP} jump node\n"
    );
    let Some(GuardedTunnel { overlay, .. }) = &plan.tunnel else { return text.push_str("\t}\n") };
    let _ = write!(
        text,
        "\t\t{} jump overlay_translated\n\
         \t}}\n\n\
         \tchain overlay_translated {{\n\
         \t\tmeta l4proto {UDP} ct original proto-dst != {} counter name \"vtep\" drop\n\
         \t\tct state untracked jump overlay\n\
         \t}}\n",
        packets_of(*overlay),
        overlay.port
    );
}

/// The chain at forward, if the node has an overlay, if other nodes have VTEPs, or if the ICMP errors
/// of pods are checked. Each rule first compares protocol and port, because all forwarded packets
/// pass the chain.
fn render_forward(plan: &GuardPlan, text: &mut String) {
    let has_nodes = !plan.nodes.is_empty();
    if plan.overlay.is_none() && !has_nodes && !plan.checks_errors {
        return;
    }
    text.push_str("\n\tchain forward {\n\t\ttype filter hook forward priority -15; policy accept;\n");
    if let Some(overlay) = plan.overlay {
        let _ = writeln!(text, "\t\t{} counter name \"vxlan_forwarded\" drop", packets_of(overlay));
    }
    if has_nodes {
        jump_by_port(plan, "forwarded", text);
    }
    if plan.checks_errors {
        let _ = writeln!(text, "\t\tmeta l4proto {{ {ICMP}, {ICMPV6} }} iifgroup {GROUP} jump errors");
    }
    text.push_str("\t}\n");
    if has_nodes {
        render_nodes(text);
    }
    if plan.checks_errors {
        render_errors(text);
    }
}

/// The chains for the ICMP errors of pods. Connection tracking has found the connection of the
/// packet that the error contains, and the pod must be an end of it. A packet without a connection
/// matches no rule but the last one.
fn render_errors(text: &mut String) {
    text.push_str(
        "\n\tchain errors {\n\
         \t\ticmp type { destination-unreachable, source-quench, time-exceeded, parameter-problem } goto errors4\n\
         \t\ticmpv6 type { destination-unreachable, packet-too-big, time-exceeded, parameter-problem } goto errors6\n\
         \t}\n",
    );
    for (family, number) in [("ip", 4), ("ip6", 6)] {
        let _ = writeln!(text, "\n\tchain errors{number} {{");
        for set in ["own", "sources"] {
            for direction in ["original", "reply"] {
                let _ = writeln!(text, "\t\tiif . ct {direction} {family} saddr @{set}{number} return");
            }
        }
        text.push_str("\t\tcounter name \"icmp_error\" drop\n\t}\n");
    }
}

/// The rules that send BGP and BFD to the chains `bgp_<suffix>` and `bfd_<suffix>`.
fn jump_by_port(plan: &GuardPlan, suffix: &str, text: &mut String) {
    for port in &plan.bgp_ports {
        let _ = writeln!(text, "\t\ttcp dport {port} jump bgp_{suffix}");
    }
    let _ = writeln!(text, "\t\tudp dport {BFD} jump bfd_{suffix}");
}

/// The chains for BGP and BFD to other nodes: of pods and of translated connections at forward, of
/// IPVS at output.
fn render_nodes(text: &mut String) {
    for counter in ["bgp", "bfd"] {
        let _ = write!(
            text,
            "\n\tchain {counter}_forwarded {{\n\
             \t\tiifgroup {GROUP} goto {counter}_to_nodes\n\
             \t\tct status dnat goto {counter}_to_nodes\n\
             \t}}\n\n\
             \tchain {counter}_to_nodes {{\n\
             \t\tip daddr @nodes4 counter name \"{counter}\" drop\n\
             \t\tip6 daddr @nodes6 counter name \"{counter}\" drop\n\
             \t}}\n\n\
             \tchain {counter}_from_node {{\n\
             \t\tfib saddr type != local goto {counter}_to_nodes\n\
             \t}}\n"
        );
    }
}

/// The chain at output, if the node has tunnels or other nodes have VTEPs. Packets of this node's
/// processes have an address of the node as their source, also to a peer behind a Service. Packets
/// that IPVS translated have the address of a pod or of a host in the fabric: this hook precedes
/// the translation of sources.
fn render_output(plan: &GuardPlan, text: &mut String) {
    let has_nodes = !plan.nodes.is_empty();
    if plan.tunnel.is_none() && !has_nodes {
        return;
    }
    text.push_str("\n\tchain output {\n\t\ttype filter hook output priority filter - 10; policy accept;\n");
    if let Some(tunnel) = &plan.tunnel {
        let _ = writeln!(text, "\t\t{} jump from_node", packets_of(tunnel.overlay));
    }
    if has_nodes {
        jump_by_port(plan, "from_node", text);
    }
    text.push_str("\t}\n");
    if let Some(GuardedTunnel { local, .. }) = &plan.tunnel {
        let family = if local.is_ipv4() { "ip" } else { "ip6" };
        let _ = write!(
            text,
            "\n\tchain from_node {{\n\
             \t\t{family} saddr {local} return\n\
             \t\tfib saddr type local return\n\
             \t\tcounter name \"vxlan_forwarded\" drop\n\
             \t}}\n"
        );
    }
}

pub(super) fn render_arp() -> String {
    format!(
        "table arp {NAME} {{\n\tcounter {ARP_REASON} {{\n\t}}\n\n{ARP}\
         \tchain input {{\n\
         \t\ttype filter hook input priority filter; policy accept;\n\
         \t\tiifgroup != {GROUP} accept\n\
         \t\tarp saddr ip 0.0.0.0 accept\n\
         \t\tiif . arp saddr ip @own accept\n\
         \t\tiif . arp saddr ip @sources accept\n\
         \t\tcounter name \"{ARP_REASON}\" drop\n\
         \t}}\n}}\n"
    )
}
