//! Marks of connections with DNAT on this node. `agent/src/plan/translated.rs` has the policy rules
//! for these marks.
//!
//! After DNAT by any program (kube-proxy in any mode, the portmap plugin, an administrator's rule):
//!
//! - The first packet from outside (not from a pod's device) that these rules see saves the number of
//!   its link in the connection mark. The connection can be older: a plugin translates it before the
//!   agent has loaded the rules. If a proxy (IPVS) translates later, the destination of the first
//!   packet is still an address of the node.
//! - A reply gets that number as packet mark. This rule covers every incoming device, because the
//!   backend may be a pod of another node.
//! - A packet from outside to a pod gets the mark [`TRANSIT`]. This rule covers both directions,
//!   because the client may be a pod, too.
//!
//! Other programs' bits in both marks stay unchanged.

use std::fmt::Write as _;

use crate::netlink::objects::GROUP;
use crate::plan::{LINK_BITS, OTHER_LINKS, TRANSIT, TRANSLATED, TranslatedRules, mark_of};

/// Writes the chains.
pub(super) fn render(rules: &TranslatedRules, text: &mut String) {
    let _ = write!(
        text,
        "\tchain prerouting {{\n\
         \t\ttype filter hook prerouting priority dstnat + 10; policy accept;\n\
         \t\tct direction reply ct mark & {LINK_BITS:#010x} != 0x00000000 jump replies\n\
         \t\tct status dnat ct direction original ct mark & {LINK_BITS:#010x} == 0x00000000 iifgroup != {GROUP} jump links\n\
         \t\tct state new iifgroup != {GROUP} fib daddr type local ct direction original ct mark & {LINK_BITS:#010x} == 0x00000000 jump links\n\
         \t\tct status dnat iifgroup != {GROUP} ip daddr @pods4 meta mark set meta mark | {TRANSIT:#010x}\n\
         \t\tct status dnat iifgroup != {GROUP} ip6 daddr @pods6 meta mark set meta mark | {TRANSIT:#010x}\n"
    );
    if rules.hairpin {
        let _ = writeln!(text, "\t\tct status dnat meta mark set meta mark | {TRANSLATED:#010x}");
    }
    text.push_str("\t}\n\n\tchain links {\n");
    for (name, number) in &rules.links {
        let value = mark_of(*number).value;
        let mask = !LINK_BITS | value;
        let _ = writeln!(
            text,
            "\t\tiifname \"{name}\" ct mark set ct mark & {mask:#010x} | {value:#010x} return"
        );
    }
    let other = mark_of(OTHER_LINKS).value;
    let _ = write!(
        text,
        "\t\tiifname != \"lo\" ct mark set ct mark | {other:#010x}\n\t}}\n\n\tchain replies {{\n"
    );
    for number in rules.links.values().copied().chain([OTHER_LINKS]) {
        let value = mark_of(number).value;
        let _ = writeln!(
            text,
            "\t\tct mark & {LINK_BITS:#010x} == {value:#010x} meta mark set meta mark | {value:#010x}"
        );
    }
    text.push_str("\t}\n\n");
}
