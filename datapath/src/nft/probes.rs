//! What the kernel drops of probes that come back: the packet socket has it by then (`agent/src/probe`), and it is for a pod's address.
//!
//! The chain is at the ingress hook of the uplinks, behind packet sockets and before routing, so packets between pods of this node do not
//! pass it. The text depends on the uplinks alone. It has no secret: who sends such a packet has it dropped.

use super::Table;
use crate::plan::{KernelPlan, PROBE_ECHO, PROBE_MAGIC, PROBE_PORT};

pub(super) const NAME: &str = "trunkline-probes";

/// The table, not loaded yet.
pub(crate) const TABLE: Table = Table::new("netdev", NAME, true);

/// The table as `nft list` writes it; none where no probes are sent.
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
