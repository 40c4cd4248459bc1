//! Drops packets from the fabric to addresses that no pod of this node has, and counts them by
//! Subnet. `agent/src/plan/unassigned.rs` routes these packets to the device that the rules match.
//!
//! The chain at the forward hook is before the chains of firewalls, and before connection tracking
//! confirms a connection. So such a packet creates no connection, and no firewall answers it. A
//! packet to a pod of this node does not reach these rules.

use std::fmt::Write as _;
use std::io;

use ipnet::IpNet;

use super::nat::{NAME, word};
use crate::netlink::netfilter::Connection;
use crate::plan::{SINK_NAME, UnassignedRules};

const PREFIX: &str = "unassigned_";

/// The name of a Subnet's counter: only letters, digits and underscores.
fn counter(subnet: &IpNet) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    PREFIX.chars().chain(subnet.to_string().chars().map(plain)).collect()
}

pub(super) fn render_counters(rules: &UnassignedRules, text: &mut String) {
    for subnet in &rules.subnets {
        let _ = write!(text, "\tcounter {} {{\n\t}}\n\n", counter(subnet));
    }
}

/// The rule of the chain at the forward hook.
pub(super) fn render_rule(text: &mut String) {
    let _ = writeln!(text, "\t\toifname \"{SINK_NAME}\" goto unassigned");
}

pub(super) fn render_chain(rules: &UnassignedRules, text: &mut String) {
    text.push_str("\tchain unassigned {\n");
    for subnet in &rules.subnets {
        let field = if subnet.addr().is_ipv4() { "ip" } else { "ip6" };
        let _ =
            writeln!(text, "\t\t{field} daddr {} counter name \"{}\" drop", word(subnet), counter(subnet));
    }
    text.push_str("\t\tdrop\n\t}\n\n");
}

/// Dropped packets of each Subnet since the table was loaded.
pub struct Counters(Vec<(String, u64)>);

impl Counters {
    /// Reads the current values from the kernel.
    pub fn read() -> io::Result<Counters> {
        let found = Connection::open()?.counters(libc::NFPROTO_INET, NAME)?;
        let of_subnets = found.into_iter().filter(|counter| counter.name.starts_with(PREFIX));
        Ok(Counters(of_subnets.map(|counter| (counter.name, counter.packets)).collect()))
    }

    /// The value of one Subnet; none if the Subnet has no counter.
    pub fn of(&self, subnet: &IpNet) -> Option<u64> {
        let name = counter(subnet);
        self.0.iter().find(|(found, _)| *found == name).map(|(_, packets)| *packets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_subnet_has_its_own_counter() {
        let of = |subnet: &str| counter(&subnet.parse().unwrap());
        assert_eq!(of("10.201.0.0/16"), "unassigned_10_201_0_0_16");
        assert_eq!(of("fd00:201::/112"), "unassigned_fd00_201___112");
    }
}
