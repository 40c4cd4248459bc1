//! Drops probes that return to this node. The packet socket (`agent/src/probe`) already has the
//! packet, and its destination is a pod's address.
//!
//! The chain is at the ingress hook of the uplinks, after packet sockets and before routing. So
//! packets between pods of this node do not pass it. The text depends only on the uplinks. It
//! contains no secret, because this node drops the packets of anyone who sends such packets.

use super::Table;
use crate::plan::{KernelPlan, PROBE_ECHO, PROBE_MAGIC, PROBE_PORT};

pub(super) const NAME: &str = "trunkline-probes";

/// The table in the state before it is loaded.
pub(crate) const TABLE: Table = Table::new("netdev", NAME, true);

/// The table in the format of `nft list`; none if no probes are sent.
pub(crate) fn render(plan: &KernelPlan) -> Option<String> {
    let names: Vec<String> = plan.probed.iter().map(|name| format!("\"{name}\"")).collect();
    let devices = match names.as_slice() {
        [] => return None,
        [one] => format!("device {one}"),
        several => format!("devices = {{ {} }}", several.join(", ")),
    };
    let content = format!("@th,64,32 {PROBE_MAGIC:#x} drop");
    Some(format!(
        "table netdev {NAME} {{\n\
         \tchain ingress {{\n\
         \t\ttype filter hook ingress {devices} priority filter; policy accept;\n\
         \t\tudp dport {PROBE_PORT} {content}\n\
         \t\ticmp type echo-reply icmp id {PROBE_ECHO} {content}\n\
         \t\ticmpv6 type echo-reply icmpv6 id {PROBE_ECHO} {content}\n\
         \t}}\n}}\n"
    ))
}
