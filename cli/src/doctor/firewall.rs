//! Firewalls that drop packets of pods.
//!
//! The check reads every base chain of nftables at the hooks of pods' packets, of all programs
//! (`iptables-nft` included), and the policy of legacy iptables. It does not evaluate rules that
//! accept packets. So a chain with the policy drop is only a warning. It drops packets that no rule
//! accepts, without a message.

use std::io;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::Finding;

const OWN_TABLES: [&str; 5] =
    ["trunkline", "trunkline-guard", "trunkline-policy", "trunkline-probes", "trunkline-sender"];
/// The tables that legacy iptables has used, and the program that lists them.
const LEGACY: [(&str, &str); 2] =
    [("/proc/net/ip_tables_names", "iptables-legacy"), ("/proc/net/ip6_tables_names", "ip6tables-legacy")];

/// The rules of all programs.
pub(super) struct Rules {
    /// The chains of nftables, `iptables-nft` included.
    nftables: anyhow::Result<Value>,
    /// Legacy iptables: the program and its list of the chain FORWARD. If its tables were never
    /// used, it has no entry.
    legacy: Vec<(&'static str, io::Result<Output>)>,
}

impl Rules {
    /// Reads the rules of this host.
    pub(super) fn read() -> Rules {
        let is_used = |names: &str| {
            std::fs::read_to_string(names).unwrap_or_default().lines().any(|table| table == "filter")
        };
        let list = |program| Command::new(program).args(["-S", "FORWARD"]).stdin(Stdio::null()).output();
        let legacy = LEGACY.iter().filter(|(names, _)| is_used(names));
        Rules { nftables: nftables(), legacy: legacy.map(|(_, program)| (*program, list(program))).collect() }
    }

    /// The names of nftables' tables and chains, and of the chains to which the chain FORWARD of
    /// legacy iptables jumps.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.nftables.iter().flat_map(names).collect();
        for output in self.legacy.iter().filter_map(|(_, output)| output.as_ref().ok()) {
            let text = String::from_utf8_lossy(&output.stdout);
            let jumps = text.lines().filter_map(|rule| rule.split_once(" -j ")?.1.split(' ').next());
            names.extend(jumps.map(str::to_owned));
        }
        names
    }
}

/// The names of the tables and chains in the output of `nft`.
fn names(ruleset: &Value) -> Vec<String> {
    let chains = ruleset["nftables"].as_array().into_iter().flatten().filter_map(|item| item.get("chain"));
    let names = chains.flat_map(|chain| [chain["table"].as_str(), chain["name"].as_str()]).flatten();
    names.map(str::to_owned).collect()
}

/// Checks nftables and legacy iptables.
pub(super) fn check(rules: &Rules) -> Vec<Finding> {
    let mut findings = match &rules.nftables {
        Ok(ruleset) => dropping(ruleset),
        Err(error) => vec![Finding::warning(
            "nftables",
            format!("the rules of nftables cannot be listed: {error:#}"),
            "install nftables (the guard and NAT need it), and run this as root",
        )],
    };
    findings.extend(legacy(&rules.legacy));
    findings
}

fn nftables() -> anyhow::Result<Value> {
    let output =
        Command::new("nft").args(["-j", "list", "chains"]).stdin(Stdio::null()).output().context("nft")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("nft")
}

/// The base chains with the policy drop for forwarded packets or for packets to this node.
fn dropping(ruleset: &Value) -> Vec<Finding> {
    let chains = ruleset["nftables"].as_array().into_iter().flatten().filter_map(|item| item.get("chain"));
    let word = |chain: &Value, key: &str| chain[key].as_str().unwrap_or_default().to_owned();
    chains
        .filter(|chain| chain["policy"] == "drop" && !OWN_TABLES.iter().any(|own| chain["table"] == **own))
        .filter_map(|chain| {
            let name = format!("{} {} {}", word(chain, "family"), word(chain, "table"), word(chain, "name"));
            match chain["hook"].as_str()? {
                "forward" => Some(forward(&format!("nftables' chain {name}"))),
                "input" => Some(Finding::warning(
                    "firewall",
                    format!("nftables' chain {name} drops packets to this node that no rule accepts"),
                    "add rules that accept TCP port 179 (BGP) and UDP ports 3784 and 4784 (BFD) from the peers, and for an overlay the tunnels' UDP port from the other nodes",
                )),
                "prerouting" | "output" | "postrouting" => Some(Finding::warning(
                    "firewall",
                    format!("nftables' chain {name} drops packets that no rule accepts"),
                    "add a rule that accepts pods' packets, or remove the chain",
                )),
                _ => None,
            }
        })
        .collect()
}

fn forward(what: &str) -> Finding {
    Finding::warning(
        "firewall",
        format!("{what} drops forwarded packets that no rule accepts, such as pods' packets"),
        "add a rule that accepts packets from and to the pods' subnets (`trunkline status` lists them), or set the chain's policy to accept",
    )
}

/// `nft` does not list legacy iptables.
fn legacy(lists: &[(&str, io::Result<Output>)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (program, output) in lists {
        match output {
            Ok(output)
                if String::from_utf8_lossy(&output.stdout).lines().any(|line| line == "-P FORWARD DROP") =>
            {
                findings.push(forward(&format!("{program}'s chain FORWARD")));
            }
            Ok(output) if output.status.success() => {}
            Ok(_) | Err(_) => findings.push(Finding::warning(
                "firewall",
                format!("legacy iptables has a filter table here, and {program} cannot list it"),
                format!("read it with {program} -S FORWARD: pods lose the packets that it drops"),
            )),
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn dropping_chains_of_all_programs_are_findings() {
        let chain = |table: &str, hook: &str, policy: &str| json!({"chain": {"family": "inet", "table": table, "name": hook, "hook": hook, "policy": policy}});
        let ruleset = json!({"nftables": [
            {"metainfo": {"version": "1.0"}},
            chain("filter", "forward", "drop"),
            chain("filter", "input", "accept"),
            chain("other", "input", "drop"),
            chain("trunkline", "forward", "drop"),
            {"chain": {"family": "ip", "table": "filter", "name": "DOCKER"}},
        ]});
        let found = dropping(&ruleset);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].text.contains("inet filter forward"), "{found:?}");
        assert!(found[1].text.contains("inet other input") && found[1].fix.contains("179"), "{found:?}");
        assert_eq!(dropping(&json!({"nftables": []})), []);
        let found = names(&ruleset);
        assert!(found.contains(&"DOCKER".to_owned()) && found.contains(&"other".to_owned()), "{found:?}");
    }
}
