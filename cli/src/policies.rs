//! `trunkline policies`: network policies on this node, and their decisions about one packet.

use std::fmt::Write;
use std::net::IpAddr;

use trunkline_api::control::{
    PacketPath, PoliciesView, PolicyAnswer, PolicyDecision, PolicyDirection, PolicyRuleView, PolicyState,
    PolicySummary, PolicyView,
};
use trunkline_api::service::Protocol;

use crate::packet_path;
use crate::table::Columns;

/// The state of the rules, and the pods without them. The first line is the state.
pub(crate) fn lines(summary: &PolicySummary) -> Vec<String> {
    let mut lines = vec![state(summary)];
    if summary.state != PolicyState::InForce {
        lines.push(format!("→ {}", fix(summary.state)));
    }
    lines.extend(without_rules(summary));
    lines
}

/// The faults for a live view: a state in which an operator acts, and pods without rules.
pub(crate) fn faults(summary: &PolicySummary) -> Vec<String> {
    let state = (summary.state != PolicyState::InForce).then(|| state(summary));
    state.into_iter().chain(failed_closed(summary)).chain(unenforced(summary)).collect()
}

/// The pods without rules.
fn without_rules(summary: &PolicySummary) -> Vec<String> {
    let mut lines = Vec::new();
    if summary.waiting > 0 {
        lines.push(format!("{} attachments wait for their rules", summary.waiting));
    }
    lines.extend(failed_closed(summary));
    if summary.pending > 0 {
        lines.push(format!(
            "{} policies are not in force in their last version: the API server has not sent the labels that only they name",
            summary.pending
        ));
    }
    if summary.over_label_bound > 0 {
        lines.push(format!(
            "{} pods of the cluster have too many labels that policies name: rules that deny match them, and rules that \
             accept do not. Remove labels from these pods, or keys from policies",
            summary.over_label_bound
        ));
    }
    lines.extend(unenforced(summary));
    lines
}

fn failed_closed(summary: &PolicySummary) -> Option<String> {
    (summary.failed_closed > 0).then(|| {
        format!(
            "FAILED CLOSED: {} policies are over the budget or refused by the kernel, and their pods are isolated: \
             `trunkline policies` has the reason in FAULTS",
            summary.failed_closed
        )
    })
}

fn unenforced(summary: &PolicySummary) -> Option<String> {
    (summary.unenforced > 0).then(|| {
        format!(
            "NOT ENFORCED for {} interfaces of pods that a policy selects: {UNENFORCED}",
            summary.unenforced
        )
    })
}

/// The reason why an interface is not enforced.
pub(crate) const UNENFORCED: &str =
    "packets of `attachment: ipvlan` do not pass the node's rules; `attachment: veth` is enforced";

fn state(summary: &PolicySummary) -> String {
    let reason = summary.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    match summary.state {
        PolicyState::InForce => format!(
            "in force: {} policies, {} pods selected, {} chains, {} sets",
            summary.policies, summary.pods, summary.chains, summary.sets
        ),
        PolicyState::Loading => {
            format!("LOADING, the rules of the last run are in force and new pods wait{reason}")
        }
        PolicyState::Retained => format!("RETAINED, the last known policies are in force{reason}"),
        PolicyState::Refused => {
            format!("REFUSED, the last accepted rules are in force and new pods wait{reason}")
        }
    }
}

/// The recommended action in this state.
pub(crate) fn fix(state: PolicyState) -> &'static str {
    match state {
        PolicyState::InForce => "no action is necessary",
        PolicyState::Loading => {
            "`trunkline status` names the manifest that is refused, or the watch that fails: correct the manifest, or check the API server and the rights of the agent's account"
        }
        PolicyState::Retained => {
            "check the API server: the agent continues by itself, and changes of policies arrive then"
        }
        PolicyState::Refused => {
            "look for \"network policies\" in the agent's log; the agent tries again by itself, and `nft list table inet trunkline-policy` shows the rules in force"
        }
    }
}

/// Only the policies with this name: `NAME` or `NAMESPACE/NAME`.
pub fn retain(view: &mut PoliciesView, name: &str) {
    view.policies.retain(|policy| name == policy.name || name == title(policy));
}

/// The name, with the Namespace if it has one.
pub(crate) fn title(policy: &PolicyView) -> String {
    match &policy.namespace {
        Some(namespace) => format!("{namespace}/{}", policy.name),
        None => policy.name.clone(),
    }
}

/// All policies. The state precedes the table if an operator must act.
pub fn table(view: &PoliciesView) -> String {
    let is_audited = view.policies.iter().flat_map(|policy| &policy.rules).any(|rule| rule.audit);
    let mut names = vec!["TIER", "PRIORITY", "NAMESPACE", "NAME", "PODS", "ALLOWED", "DENIED"];
    if is_audited {
        names.push("AUDITED");
    }
    names.push("FAULTS");
    let mut columns = Columns::new(&names);
    for policy in &view.policies {
        let sum = |effect| {
            let rules = policy.rules.iter().filter(|rule| Effect::from(*rule) == effect);
            rules.map(|rule| rule.packets).sum::<u64>().to_string()
        };
        let mut cells = vec![
            policy.tier.clone(),
            policy.priority.map(|priority| priority.to_string()).unwrap_or_default(),
            policy.namespace.clone().unwrap_or_default(),
            policy.name.clone(),
            policy.pods.len().to_string(),
            sum(Effect::Allowed),
            sum(Effect::Denied),
        ];
        if is_audited {
            cells.push(sum(Effect::Audited));
        }
        cells.push(if policy.faults.is_empty() { String::new() } else { policy.faults.len().to_string() });
        columns.row(cells);
    }
    format!("{}{}", head(&view.summary), columns.render())
}

/// The state and its fix, unless everything is in force.
fn head(summary: &PolicySummary) -> String {
    let lines = match summary.state {
        PolicyState::InForce => without_rules(summary),
        _ => lines(summary),
    };
    if lines.is_empty() { String::new() } else { format!("{}\n\n", lines.join("\n")) }
}

/// Policies in detail: pods, faults, and each rule with its packets.
pub fn details(view: &PoliciesView) -> String {
    let blocks: Vec<String> = view.policies.iter().map(detail).collect();
    format!("{}{}", head(&view.summary), blocks.join("\n"))
}

/// The kind of the object.
pub(crate) fn kind(policy: &PolicyView) -> &'static str {
    if policy.namespace.is_some() { "NetworkPolicy" } else { "ClusterNetworkPolicy" }
}

fn detail(policy: &PolicyView) -> String {
    let mut text = format!("{} {}\n", kind(policy), title(policy));
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "  {name:<6} {value}");
    };
    let priority = policy.priority.map(|priority| format!(", priority {priority}")).unwrap_or_default();
    line("tier", &format!("{}{priority}", policy.tier));
    let pods = if policy.pods.is_empty() { "none on this node".to_owned() } else { policy.pods.join(", ") };
    line("pods", &pods);
    policy.faults.iter().for_each(|fault| line("fault", fault));
    if policy.rules.is_empty() {
        return text;
    }
    let mut columns = Columns::new(&["  RULE", "EFFECT", "PACKETS", "OCTETS"]);
    for rule in &policy.rules {
        columns.row([
            format!("  {}", position(rule)),
            Effect::from(rule).name().to_owned(),
            rule.packets.to_string(),
            rule.octets.to_string(),
        ]);
    }
    text.push_str(&columns.render());
    text
}

/// The field of a rule, or the isolation.
fn position(rule: &PolicyRuleView) -> String {
    let direction = rule.direction.name();
    match rule.rule {
        Some(index) => format!("spec.{direction}[{index}]"),
        None => format!("{direction}, no rule allows"),
    }
}

/// What a rule did with packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Allowed,
    Denied,
    /// Reported, and not dropped.
    Audited,
}

impl From<&PolicyRuleView> for Effect {
    fn from(rule: &PolicyRuleView) -> Effect {
        match (rule.audit, rule.denied) {
            (true, _) => Effect::Audited,
            (false, true) => Effect::Denied,
            (false, false) => Effect::Allowed,
        }
    }
}

impl Effect {
    fn name(self) -> &'static str {
        match self {
            Effect::Allowed => "allowed",
            Effect::Denied => "denied",
            Effect::Audited => "audited",
        }
    }
}

/// Protocol and port of a packet: `tcp/8080`.
pub(crate) fn port(text: &str) -> Result<(Protocol, u16), String> {
    let known = || {
        let (protocol, port) = text.split_once('/')?;
        let protocol = match protocol.to_ascii_lowercase().as_str() {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            "sctp" => Protocol::Sctp,
            _ => return None,
        };
        Some((protocol, port.parse().ok().filter(|port| *port > 0)?))
    };
    known().ok_or_else(|| "write a protocol and a port such as tcp/8080, udp/53 or sctp/3868".to_owned())
}

/// The path of a packet with the decisions of network policies.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DecidedPath {
    /// The path.
    #[serde(flatten)]
    pub path: PacketPath,
    /// The decisions; none if the packet has no source, or this node enforces no policies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policies: Option<PolicyAnswer>,
}

/// The path and the decisions. `fault`: the reason why there are no decisions.
pub fn path(decided: &DecidedPath, port: Option<(Protocol, u16)>, fault: Option<&str>) -> String {
    let DecidedPath { path, policies } = decided;
    let mut text = packet_path::show(path);
    let packets = match port {
        Some((protocol, port)) => format!("{protocol} port {port}"),
        None => "packets without ports, such as ICMP".to_owned(),
    };
    match (policies, path.source, fault) {
        (Some(answer), Some(source), _) => {
            let _ = writeln!(text, "\nnetwork policies, {packets}");
            text.push_str(&decisions(answer, source, path.destination));
        }
        (_, _, Some(fault)) => {
            let _ = writeln!(text, "\nnetwork policies: {fault}");
        }
        _ => {}
    }
    text
}

/// One line for each decision, for connections of the pod and for connections to the pod.
fn decisions(answer: &PolicyAnswer, pod: IpAddr, peer: IpAddr) -> String {
    let mut columns = Columns::new(&["  CONNECTION", "POLICIES OF", "DIRECTION", "RESULT", "REASON"]);
    for (source, destination, decisions) in [(pod, peer, &answer.from_pod), (peer, pod, &answer.to_pod)] {
        for decision in decisions {
            columns.row([
                format!("  {source} → {destination}"),
                decision.pod.clone(),
                decision.direction.name().to_owned(),
                if decision.allowed { "allowed" } else { "DENIED" }.to_owned(),
                decision.reason.clone(),
            ]);
        }
    }
    let mut text = columns.render();
    let is_local = |decision: &PolicyDecision| decision.direction == PolicyDirection::Ingress;
    if !answer.from_pod.iter().any(is_local) {
        let _ = writeln!(
            text,
            "  {peer} is no pod of this node. If it is a pod of another node, the policies of that pod decide there: run `trunkline pods POD --path {pod}` on its node"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(direction: PolicyDirection, rule: Option<usize>, denied: bool, packets: u64) -> PolicyRuleView {
        PolicyRuleView { direction, rule, denied, audit: false, packets, octets: packets * 60 }
    }

    fn view(summary: PolicySummary) -> PoliciesView {
        let cluster = PolicyView {
            name: "no-metadata".to_owned(),
            tier: "admin".to_owned(),
            priority: Some(10),
            pods: vec!["default/web-0".to_owned()],
            rules: vec![rule(PolicyDirection::Egress, Some(0), true, 3)],
            ..PolicyView::default()
        };
        let network = PolicyView {
            namespace: Some("default".to_owned()),
            name: "web".to_owned(),
            tier: "network".to_owned(),
            pods: vec!["default/web-0".to_owned(), "default/web-1".to_owned()],
            rules: vec![
                rule(PolicyDirection::Ingress, Some(0), false, 12),
                rule(PolicyDirection::Ingress, None, true, 4),
            ],
            faults: vec!["spec.ingress[1].ports[0].port: 70000 is no port: write 1 to 65535".to_owned()],
            ..PolicyView::default()
        };
        PoliciesView { summary, policies: vec![cluster, network] }
    }

    fn in_force() -> PolicySummary {
        PolicySummary { state: PolicyState::InForce, policies: 2, pods: 2, ..PolicySummary::default() }
    }

    #[test]
    fn the_table_has_sums_of_allowed_and_denied() {
        assert_eq!(
            table(&view(in_force())),
            "TIER     PRIORITY  NAMESPACE  NAME         PODS  ALLOWED  DENIED  FAULTS\n\
             admin    10        -          no-metadata  1     0        3       -\n\
             network  -         default    web          2     12       4       1\n"
        );
    }

    #[test]
    fn audited_packets_are_not_denied_packets() {
        let mut view = view(in_force());
        view.policies.remove(0);
        view.policies[0].rules[1].audit = true;
        assert_eq!(
            table(&view),
            "TIER     PRIORITY  NAMESPACE  NAME  PODS  ALLOWED  DENIED  AUDITED  FAULTS\n\
             network  -         default    web   2     12       0       4        1\n"
        );
        assert!(details(&view).contains("ingress, no rule allows  audited  4        240\n"));
    }

    #[test]
    fn a_state_that_needs_action_comes_first() {
        let refused = PolicySummary {
            state: PolicyState::Refused,
            reason: Some("out of memory".to_owned()),
            waiting: 2,
            unenforced: 1,
            ..in_force()
        };
        let text = table(&view(refused));
        let head: Vec<&str> = text.lines().take(5).collect();
        assert_eq!(head[0], "REFUSED, the last accepted rules are in force and new pods wait: out of memory");
        assert!(head[1].starts_with("→ look for"), "{head:?}");
        assert_eq!(head[2], "2 attachments wait for their rules");
        assert!(head[3].starts_with("NOT ENFORCED for 1 interfaces of pods that a policy selects: "));
        assert_eq!(head[4], "");
        assert_eq!(faults(&in_force()), [""; 0]);
        assert_eq!(lines(&in_force()), ["in force: 2 policies, 2 pods selected, 0 chains, 0 sets"]);
    }

    #[test]
    fn details_have_pods_faults_and_rules() {
        let mut view = view(in_force());
        retain(&mut view, "default/web");
        assert_eq!(
            details(&view),
            "NetworkPolicy default/web\n\
             \x20 tier   network\n\
             \x20 pods   default/web-0, default/web-1\n\
             \x20 fault  spec.ingress[1].ports[0].port: 70000 is no port: write 1 to 65535\n\
             \x20 RULE                     EFFECT   PACKETS  OCTETS\n\
             \x20 spec.ingress[0]          allowed  12       720\n\
             \x20 ingress, no rule allows  denied   4        240\n"
        );
    }

    #[test]
    fn names_select_policies_of_both_kinds() {
        let left = |name: &str| {
            let mut view = view(in_force());
            retain(&mut view, name);
            view.policies.iter().map(title).collect::<Vec<_>>()
        };
        assert_eq!(left("web"), ["default/web"]);
        assert_eq!(left("default/web"), ["default/web"]);
        assert_eq!(left("no-metadata"), ["no-metadata"]);
        assert_eq!(left("other/web"), [""; 0]);
    }

    #[test]
    fn ports_are_read() {
        assert_eq!(port("tcp/8080"), Ok((Protocol::Tcp, 8080)));
        assert_eq!(port("UDP/53"), Ok((Protocol::Udp, 53)));
        assert_eq!(port("sctp/3868"), Ok((Protocol::Sctp, 3868)));
        for text in ["8080", "tcp/0", "tcp/65536", "icmp/8", "tcp/", "tcp/http"] {
            assert!(port(text).is_err(), "{text}");
        }
    }

    #[test]
    fn decisions_follow_the_path() {
        let decision = |pod: &str, direction, allowed, reason: &str| PolicyDecision {
            pod: pod.to_owned(),
            direction,
            allowed,
            reason: reason.to_owned(),
        };
        let unselected = "no policy selects the pod for egress";
        let mut decided = DecidedPath {
            path: PacketPath {
                source: Some("10.0.0.2".parse().unwrap()),
                destination: "10.0.0.3".parse().unwrap(),
                forth: Vec::new(),
                end: "to pod default/db-0".to_owned(),
                masqueraded: false,
                back: Vec::new(),
                advertised_to: Vec::new(),
            },
            policies: Some(PolicyAnswer {
                from_pod: vec![
                    decision("default/web-0", PolicyDirection::Egress, true, unselected),
                    decision("default/db-0", PolicyDirection::Ingress, false, "no ingress rule of A"),
                ],
                to_pod: vec![decision("default/db-0", PolicyDirection::Egress, true, unselected)],
            }),
        };
        let text = path(&decided, Some((Protocol::Tcp, 5432)), None);
        assert!(
            text.ends_with(
                "\n\
                 network policies, TCP port 5432\n\
                 \x20 CONNECTION           POLICIES OF    DIRECTION  RESULT   REASON\n\
                 \x20 10.0.0.2 → 10.0.0.3  default/web-0  egress     allowed  no policy selects the pod for egress\n\
                 \x20 10.0.0.2 → 10.0.0.3  default/db-0   ingress    DENIED   no ingress rule of A\n\
                 \x20 10.0.0.3 → 10.0.0.2  default/db-0   egress     allowed  no policy selects the pod for egress\n"
            ),
            "{text}"
        );
        let json = serde_json::to_value(&decided).unwrap();
        assert_eq!(json["destination"], "10.0.0.3");
        assert_eq!(json["policies"]["fromPod"][1]["allowed"], false);

        if let Some(policies) = &mut decided.policies {
            policies.from_pod.truncate(1);
        }
        let text = path(&decided, None, None);
        assert!(text.contains("\nnetwork policies, packets without ports, such as ICMP\n"), "{text}");
        assert!(text.contains("  10.0.0.3 is no pod of this node. If it is a pod of another node"), "{text}");

        decided.policies = None;
        let text = path(&decided, None, Some("this node enforces none"));
        assert!(text.ends_with("\nnetwork policies: this node enforces none\n"), "{text}");
        assert_eq!(serde_json::to_value(&decided).unwrap().get("policies"), None);
    }
}
