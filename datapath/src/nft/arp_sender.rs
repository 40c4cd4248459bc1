//! Replaces the sender of the node's ARP requests on VLAN devices, for gateways that answer only
//! senders of their own subnet.
//!
//! A VLAN device has no address, so the kernel takes another address of the node as sender. The rule
//! in the output hook writes the address of a local pod of the Subnet. The kernel accepts the answer,
//! because it looks for the address of the gateway in it. The address is on no link: it stays the
//! pod's, and needs no routes.
//!
//! A request teaches its receivers that the sender's address is at the MAC address of the device.
//! That is right for a local pod, because the node answers requests for it with the same MAC address.
//! So a pod's address is replaced in the rule before the pod's DEL is answered.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::Ipv4Addr;

use super::Table;
use crate::plan::ArpSubnet;

pub(super) const NAME: &str = "trunkline-sender";

/// The table in the state before it is loaded.
pub(crate) const TABLE: Table = Table::new("arp", NAME, true);

/// The table in the format of `nft list`; none without a sender.
pub(crate) fn render(senders: &BTreeMap<ArpSubnet, Ipv4Addr>) -> Option<String> {
    if senders.is_empty() {
        return None;
    }
    let mut text = format!(
        "table arp {NAME} {{\n\tchain output {{\n\t\ttype filter hook output priority filter; policy accept;\n"
    );
    for (ArpSubnet { device, prefix, .. }, sender) in senders {
        let _ = writeln!(
            text,
            "\t\toifname \"{device}\" arp operation request arp daddr ip {prefix} arp saddr ip set {sender}"
        );
    }
    text.push_str("\t}\n}\n");
    Some(text)
}
