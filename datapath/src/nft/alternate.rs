//! Limits of alternate paths. `agent/src/plan/alternate.rs` has the rules and routes.
//!
//! A packet takes an alternate path if it arrives on one uplink, leaves by another, and its
//! destination is in a Subnet that this node advertises. It does so only once: it leaves with a TTL
//! of [`ALTERNATE_TTL`], and a packet with a lower TTL is dropped. The kernel decrements the TTL
//! before these rules see the packet. A packet of a connection that was translated on this node is
//! no such packet, and has the mark [`TRANSIT`].
//!
//! The reply takes another path. So connection tracking sees only one direction, and classifies the
//! second packet of a TCP connection as invalid, which kube-proxy drops. `notrack` removes this
//! classification. It changes nothing for a packet that has a connection.

use std::fmt::Write as _;
use std::io;

use super::nat::NAME;
use crate::netlink::netfilter::Connection;
use crate::plan::{ALTERNATE_TTL, AlternateRules, TRANSIT};

/// Counter of the packets that took an alternate path.
pub const FORWARDED: &str = "alternate_forwarded";
/// Counter of the packets that were dropped before a second alternate path.
pub const DROPPED: &str = "alternate_dropped";

pub(super) fn render_counters(text: &mut String) {
    for counter in [FORWARDED, DROPPED] {
        let _ = write!(text, "\tcounter {counter} {{\n\t}}\n\n");
    }
}

pub(super) fn render_uplinks(rules: &AlternateRules, text: &mut String) {
    let names: Vec<String> = rules.uplinks.iter().map(|name| format!("\"{name}\"")).collect();
    let _ = write!(
        text,
        "\tset uplinks {{\n\t\ttype ifname\n\t\telements = {{ {} }}\n\t}}\n\n",
        names.join(", ")
    );
}

/// Rules of the chain at the forward hook, for packets to other destinations than pods of this
/// node.
pub(super) fn render_rules(text: &mut String) {
    let _ = write!(
        text,
        "\t\tiifname != @uplinks accept\n\
         \t\toifname != @uplinks accept\n\
         \t\tmeta mark & {TRANSIT:#010x} != 0x00000000 accept\n\
         \t\tip daddr @attracted4 goto alternate4\n\
         \t\tip6 daddr @attracted6 goto alternate6\n"
    );
}

pub(super) fn render_chains(text: &mut String) {
    for (chain, field) in [("alternate4", "ip ttl"), ("alternate6", "ip6 hoplimit")] {
        let _ = write!(
            text,
            "\tchain {chain} {{\n\
             \t\t{field} < {ALTERNATE_TTL} counter name \"{DROPPED}\" drop\n\
             \t\t{field} set {ALTERNATE_TTL} counter name \"{FORWARDED}\" notrack\n\
             \t}}\n\n"
        );
    }
}

/// The counters since the table was loaded; empty without alternate paths.
pub fn counters() -> io::Result<Vec<(String, u64)>> {
    let found = Connection::open()?.counters(libc::NFPROTO_INET, NAME)?;
    let own = found.into_iter().filter(|counter| [FORWARDED, DROPPED].contains(&counter.name.as_str()));
    Ok(own.map(|counter| (counter.name, counter.packets)).collect())
}
