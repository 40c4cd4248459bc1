//! Masquerading, and the mark of what was translated here, by nftables: one table of our own, replaced as a whole.
//!
//! `nft` does it atomically: between the old rules and the new ones no packet sees none. NAT looks only at a connection's first packet, so
//! replacing the table leaves connections alone. The table's listing is compared first, and nothing is done where it is as it should be.
//!
//! Firewalls like to start with `nft flush ruleset`, which takes this table along. So while there are rules the owner listens
//! ([`super::events::Events::open_nftables`]), and when somebody touched the table it is compared again. The agent's own
//! replacement is heard too, and found right.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use ipnet::IpNet;
use netlink_packet_core::parse_string;

use super::netlink::message::{self, Message};
use crate::plan::{NatRules, TRANSLATED};

const TABLE: &str = "inet trunkline";
const NAME: &str = "trunkline";

/// Brings the table to the rules. Whether it had to be changed.
pub(super) fn apply(rules: &NatRules) -> Result<bool, String> {
    let there = list()?;
    let wanted = (!rules.is_empty()).then(|| render(rules));
    let script = match (&there, &wanted) {
        (None, None) => return Ok(false),
        // Where lines break is nft's matter.
        (Some(there), Some(wanted)) if there.split_whitespace().eq(wanted.split_whitespace()) => {
            return Ok(false);
        }
        // `add` before `delete`, so that it is no error where the table is not there.
        (_, Some(wanted)) => format!("add table {TABLE}\ndelete table {TABLE}\n{wanted}"),
        (Some(_), None) => format!("delete table {TABLE}\n"),
    };
    run(&script)?;
    Ok(true)
}

/// Whether a notification of nftables is about the table: `nfgenmsg`, whose first octet is the family, and attribute 1 is always the table's name.
pub(super) fn concerns(message: &Message<'_>) -> bool {
    let family = message.body.first().copied().map(i32::from);
    let attributes = message.body.get(4..).unwrap_or_default();
    let name = message::attributes(attributes, &[1], |nla| parse_string(nla.value())).next();
    family == Some(libc::NFPROTO_INET) && name.is_some_and(|name| name == NAME)
}

/// The table as `nft list` writes it (but for line breaks), so that it can be compared with that. A version of nft that writes it
/// otherwise costs a replacement at each start, and nothing else.
fn render(rules: &NatRules) -> String {
    let mut text = format!("table {TABLE} {{\n");
    for (name, kind, v4) in [("inside4", "ipv4_addr", true), ("inside6", "ipv6_addr", false)] {
        set(&mut text, name, kind, rules.inside.iter().filter(|prefix| prefix.addr().is_ipv4() == v4));
    }
    for (name, kind, v4) in [("sources4", "ipv4_addr", true), ("sources6", "ipv6_addr", false)] {
        set(&mut text, name, kind, rules.sources.iter().filter(|prefix| prefix.addr().is_ipv4() == v4));
    }
    for (name, kind, v4) in [("slaves4", "ipv4_addr", true), ("slaves6", "ipv6_addr", false)] {
        set(&mut text, name, kind, rules.slaves.iter().filter(|prefix| prefix.addr().is_ipv4() == v4));
    }
    if rules.mark_translated {
        let _ = write!(
            text,
            "\tchain prerouting {{\n\t\ttype filter hook prerouting priority dstnat + 10; policy accept;\n\
             \t\tct status dnat meta mark set meta mark | {TRANSLATED:#010x}\n\t}}\n\n"
        );
    }
    text.push_str(
        "\tchain postrouting {\n\t\ttype nat hook postrouting priority srcnat; policy accept;\n\
         \t\tip saddr @sources4 ip daddr != @inside4 masquerade\n\
         \t\tip6 saddr @sources6 ip6 daddr != @inside6 masquerade\n\
         \t\tip saddr @slaves4 ct status dnat masquerade\n\
         \t\tip6 saddr @slaves6 ct status dnat masquerade\n\t}\n}\n",
    );
    text
}

fn set<'a>(text: &mut String, name: &str, kind: &str, prefixes: impl Iterator<Item = &'a IpNet>) {
    let mut prefixes: Vec<IpNet> = IpNet::aggregate(&prefixes.copied().collect());
    prefixes.sort_unstable();
    let _ = write!(text, "\tset {name} {{\n\t\ttype {kind}\n\t\tflags interval\n");
    if !prefixes.is_empty() {
        let host = |prefix: &IpNet| prefix.prefix_len() == prefix.max_prefix_len();
        let words: Vec<String> = prefixes
            .iter()
            .map(|prefix| if host(prefix) { prefix.addr().to_string() } else { prefix.to_string() })
            .collect();
        let _ = writeln!(text, "\t\telements = {{ {} }}", words.join(", "));
    }
    text.push_str("\t}\n\n");
}

/// The table as it is; none if it is not there.
fn list() -> Result<Option<String>, String> {
    let output = Command::new("nft")
        .args(["list", "table", "inet", "trunkline"])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| {
            format!("nft: {error}: install nftables, which autoNatOutgoing, hairpin and serviceCIDRs need")
        })?;
    Ok(output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned()))
}

fn run(script: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("nft: {error}");
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(script.as_bytes()).map_err(failed)?;
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("nft: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}
