//! Network policies: rules that are not in force, pods without rules, policies with faults, and
//! other programs that enforce policies here.
//!
//! While no policy selects a pod of this node, there is no finding about connection tracking or the
//! log: nothing depends on them.

use std::fs;

use trunkline_api::control::{PoliciesView, PolicyState, PolicySummary, PolicyView};

use super::{Finding, firewall};
use crate::policies::{self, UNENFORCED};

const CHECK: &str = "network-policies";
/// The kernel's list of listeners to logged packets. It exists while `nfnetlink_log` is loaded.
const LOG: &str = "/proc/net/netfilter/nfnetlink_log";
/// The Services of IPVS. It exists while `ip_vs` is loaded.
const IPVS: &str = "/proc/net/ip_vs";
const TRACKED: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
const MAX_TRACKED: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
/// The share of the table of connections from which there is a finding, in percent.
const FULL: u64 = 90;

/// Programs that enforce network policies, by the beginning of the names of their tables and chains.
const ENFORCERS: &[(&str, &str)] = &[
    ("cali-", "Felix (Calico)"),
    ("calico", "Felix (Calico)"),
    ("KUBE-ROUTER-", "kube-router"),
    ("KUBE-NWPLCY-", "kube-router"),
    ("CILIUM_", "Cilium"),
    ("ANTREA-", "Antrea"),
    ("WEAVE-NPC", "Weave Net"),
    ("kube-network-policies", "kube-network-policies"),
];

/// All findings about network policies. `view`: the agent's answer; none if it enforces none.
pub(super) fn check(view: Option<&PoliciesView>, firewall: &firewall::Rules) -> Vec<Finding> {
    let Some(view) = view else { return Vec::new() };
    let mut findings: Vec<Finding> = state(&view.summary).into_iter().collect();
    findings.extend(unenforced(&view.summary));
    findings.extend(view.policies.iter().filter_map(faulty));
    findings.extend(beside(&firewall.names()));
    if view.summary.pods > 0 {
        findings.extend(connections(number(TRACKED), number(MAX_TRACKED)));
        findings.extend(ipvs(&fs::read_to_string(IPVS).unwrap_or_default()));
        findings.extend((!fs::exists(LOG).unwrap_or(true)).then(no_log));
    }
    findings
}

fn state(summary: &PolicySummary) -> Option<Finding> {
    let reason = summary.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let (waiting, fix) = (summary.waiting, policies::fix(summary.state));
    match summary.state {
        PolicyState::InForce => None,
        PolicyState::Refused => Some(Finding::error(
            CHECK,
            format!(
                "the kernel refuses the rules of network policies: the last accepted rules are in force, and new pods wait ({waiting} now){reason}"
            ),
            fix,
        )),
        PolicyState::Loading if waiting > 0 => Some(Finding::error(
            CHECK,
            format!("{waiting} pods wait for the rules of network policies{reason}"),
            fix,
        )),
        PolicyState::Loading => {
            let text = format!("the network policies are not known yet, and new pods wait{reason}");
            Some(Finding::warning(CHECK, text, fix))
        }
        PolicyState::Retained => {
            let text = format!("the last known network policies are in force{reason}");
            Some(Finding::warning(CHECK, text, fix))
        }
    }
}

fn unenforced(summary: &PolicySummary) -> Option<Finding> {
    (summary.unenforced > 0).then(|| {
        Finding::error(
            CHECK,
            format!(
                "network policies select {} interfaces of running pods and are not enforced for them: {UNENFORCED}",
                summary.unenforced
            ),
            "write `attachment: veth` into the config of the pods' Network and create the pods again, or change the selectors of the policies",
        )
    })
}

fn faulty(policy: &PolicyView) -> Option<Finding> {
    let (first, others) = policy.faults.split_first()?;
    let more = if others.is_empty() { String::new() } else { format!(" (and {} more faults)", others.len()) };
    let (name, resource) = (policies::title(policy), policies::kind(policy));
    Some(Finding::warning(
        CHECK,
        format!("{resource} {name}: {first}{more}"),
        format!("correct the policy; `trunkline policies {name}` lists all its faults"),
    ))
}

/// One finding for each program, however many chains it has.
fn beside(names: &[String]) -> Vec<Finding> {
    let mut programs: Vec<&str> = Vec::new();
    let mut findings = Vec::new();
    for (begins, program) in ENFORCERS {
        let Some(name) = names.iter().find(|name| name.starts_with(begins)) else { continue };
        if programs.contains(program) {
            continue;
        }
        programs.push(program);
        findings.push(Finding::warning(
            "policy-enforcers",
            format!(
                "{program} enforces, or enforced, network policies on this host ({name}): a packet passes only if both programs allow it"
            ),
            "keep one program. During a migration both together are safe (docs/migrate-from-hybridnet.md). Afterwards stop the other program and remove its rules, or set networkPolicies.enabled: false in agent.yaml",
        ));
    }
    findings
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn connections(tracked: Option<u64>, max: Option<u64>) -> Option<Finding> {
    let (tracked, max) = (tracked?, max.filter(|max| *max > 0)?);
    (tracked.saturating_mul(100) / max >= FULL).then(|| {
        Finding::warning(
            "conntrack",
            format!(
                "the kernel tracks {tracked} of at most {max} connections: beyond that it drops the first packets of new connections"
            ),
            "raise net.netfilter.nf_conntrack_max, or find the host that opens so many connections: `conntrack -L`",
        )
    })
}

/// IPVS translates Services here. `services`: the kernel's list.
fn ipvs(services: &str) -> Option<Finding> {
    let is_service = |line: &str| ["TCP ", "UDP ", "SCTP ", "FWM "].iter().any(|kind| line.starts_with(kind));
    services.lines().any(is_service).then(|| {
        Finding::warning(
            "policies-ipvs",
            "IPVS translates Services on this node (kube-proxy in mode ipvs): egress policies see the address of a Service, not its pods, so they deny Services that their selectors allow",
            "use kube-proxy in mode nftables or iptables, or allow the prefix of Services by an `ipBlock` in the egress rules",
        )
    })
}

fn no_log() -> Finding {
    Finding::warning(
        "policy-log",
        format!(
            "packets that network policies drop are not reported in the agent's log: {LOG} does not exist"
        ),
        "run `modprobe nfnetlink_log` on the host",
    )
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::*;

    fn summary(state: PolicyState) -> PolicySummary {
        PolicySummary { state, reason: Some("a reason".to_owned()), ..PolicySummary::default() }
    }

    #[test]
    fn each_state_has_a_finding_with_its_severity() {
        let severity = |summary: &PolicySummary| state(summary).map(|finding| finding.severity);
        assert_eq!(severity(&summary(PolicyState::InForce)), None);
        assert_eq!(severity(&summary(PolicyState::Retained)), Some(Severity::Warning));
        assert_eq!(severity(&summary(PolicyState::Loading)), Some(Severity::Warning));
        let waiting = PolicySummary { waiting: 1, ..summary(PolicyState::Loading) };
        assert_eq!(severity(&waiting), Some(Severity::Error));
        assert_eq!(severity(&summary(PolicyState::Refused)), Some(Severity::Error));
        assert!(state(&waiting).unwrap().text.ends_with(": a reason"));
    }

    #[test]
    fn interfaces_without_rules_are_an_error() {
        let some = PolicySummary { unenforced: 2, ..summary(PolicyState::InForce) };
        assert!(unenforced(&some).unwrap().text.contains("2 interfaces"));
        assert_eq!(unenforced(&summary(PolicyState::InForce)), None);
    }

    #[test]
    fn a_faulty_policy_is_named_with_its_field() {
        let mut policy = PolicyView {
            namespace: Some("default".to_owned()),
            name: "web".to_owned(),
            faults: vec!["spec.ingress[0]: a fault".to_owned(), "another".to_owned()],
            ..PolicyView::default()
        };
        let finding = faulty(&policy).unwrap();
        assert_eq!(finding.text, "NetworkPolicy default/web: spec.ingress[0]: a fault (and 1 more faults)");
        assert!(finding.fix.contains("`trunkline policies default/web`"));
        policy.faults.clear();
        assert_eq!(faulty(&policy), None);
    }

    #[test]
    fn each_other_enforcer_is_reported_once() {
        let names = ["INPUT", "cali-FORWARD", "cali-INPUT", "calico", "KUBE-SERVICES", "KUBE-NWPLCY-DEFAULT"];
        let found = beside(&names.map(str::to_owned));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].text.starts_with("Felix (Calico) enforces") && found[0].text.contains("cali-FORWARD")
        );
        assert!(found[1].text.starts_with("kube-router enforces"));
        assert_eq!(beside(&["KUBE-FORWARD", "trunkline-policy", "DOCKER"].map(str::to_owned)), []);
    }

    #[test]
    fn a_full_table_of_connections_is_a_finding() {
        assert_eq!(connections(Some(10), Some(100)), None);
        assert!(connections(Some(90), Some(100)).is_some());
        assert_eq!(connections(None, Some(100)), None);
        assert_eq!(connections(Some(1), Some(0)), None);
    }

    #[test]
    fn services_of_ipvs_are_a_finding() {
        let header = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n";
        assert!(ipvs("").is_none() && ipvs(header).is_none(), "a module alone");
        let service = format!("{header}TCP  0A600001:01BB rr\n  -> 0A010002:1F90 Masq 1 0 0\n");
        let finding = ipvs(&service).unwrap();
        assert!(finding.text.contains("mode ipvs") && finding.fix.contains("ipBlock"));
    }
}
