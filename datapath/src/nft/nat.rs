//! The table for masquerading, marks of translated connections and limits of alternate paths. It is
//! replaced as a whole. The kernel applies NAT rules only to the first packet of a connection, so a
//! replacement does not affect established connections.

use std::fmt::Write as _;

use ipnet::IpNet;

use super::{Table, alternate, translated, unassigned};
use crate::netlink::objects::GROUP;
use crate::plan::KernelPlan;

pub(super) const NAME: &str = "trunkline";

/// The table in the state before it is loaded.
pub(crate) const TABLE: Table = Table::new("inet", NAME, true);

const MASQUERADE: &str = "\
\tchain postrouting {
\t\ttype nat hook postrouting priority srcnat; policy accept;
\t\tip saddr @sources4 ip daddr != @inside4 masquerade
\t\tip6 saddr @sources6 ip6 daddr != @inside6 masquerade
\t\tip saddr @slaves4 ct status dnat masquerade
\t\tip6 saddr @slaves6 ct status dnat masquerade
\t}
";

/// The table in the format of `nft list`, apart from line breaks; none if no rule is needed.
/// `translates`: another program has a NAT chain.
pub(crate) fn render(plan: &KernelPlan, translates: bool) -> Option<String> {
    let KernelPlan { nat: rules, translated: marks, alternate: paths, unassigned: lost, .. } = plan;
    let marked = !marks.is_empty() && (marks.always || translates);
    if rules.is_empty() && !marked && paths.is_empty() && lost.is_empty() {
        return None;
    }
    let mut text = format!("table inet {NAME} {{\n");
    // Write the parts in the order of `nft list`: counters, sets, chains.
    if !paths.is_empty() {
        alternate::render_counters(&mut text);
    }
    unassigned::render_counters(lost, &mut text);
    if !paths.is_empty() {
        alternate::render_uplinks(paths, &mut text);
        sets(&mut text, "attracted", &paths.attracted);
    }
    if !rules.is_empty() {
        sets(&mut text, "inside", &rules.inside);
        sets(&mut text, "sources", &rules.sources);
        sets(&mut text, "slaves", &rules.slaves);
    }
    if marked {
        sets(&mut text, "pods", &marks.pods);
        translated::render(marks, &mut text);
    }
    if !paths.is_empty() || !lost.is_empty() {
        // One chain contains both kinds of rules, because each chain at a hook costs about 1 % of
        // the processing time of a small packet.
        let _ = write!(
            text,
            "\tchain forward {{\n\
             \t\ttype filter hook forward priority filter - 10; policy accept;\n\
             \t\toifgroup {GROUP} accept\n"
        );
        if !lost.is_empty() {
            unassigned::render_rule(&mut text);
        }
        if !paths.is_empty() {
            alternate::render_rules(&mut text);
        }
        text.push_str("\t}\n\n");
    }
    if !paths.is_empty() {
        alternate::render_chains(&mut text);
    }
    if !lost.is_empty() {
        unassigned::render_chain(lost, &mut text);
    }
    if !rules.is_empty() {
        text.push_str(MASQUERADE);
    }
    text.push_str("}\n");
    Some(text)
}

/// Writes two sets, `<name>4` and `<name>6`.
fn sets<'a>(text: &mut String, name: &str, prefixes: impl IntoIterator<Item = &'a IpNet>) {
    let mut prefixes: Vec<IpNet> = IpNet::aggregate(&prefixes.into_iter().copied().collect());
    prefixes.sort_unstable();
    for (family, kind) in [(4, "ipv4_addr"), (6, "ipv6_addr")] {
        let _ = write!(text, "\tset {name}{family} {{\n\t\ttype {kind}\n\t\tflags interval\n");
        let of_family = prefixes.iter().filter(|prefix| prefix.addr().is_ipv4() == (family == 4));
        let words: Vec<String> = of_family.map(word).collect();
        if !words.is_empty() {
            let _ = writeln!(text, "\t\telements = {{ {} }}", words.join(", "));
        }
        text.push_str("\t}\n\n");
    }
}

/// A prefix in the format of `nft`.
pub(super) fn word(prefix: &IpNet) -> String {
    let is_host = prefix.prefix_len() == prefix.max_prefix_len();
    if is_host { prefix.addr().to_string() } else { prefix.to_string() }
}
