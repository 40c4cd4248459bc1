//! Findings from the agent's answers.

use trunkline_api::control::{AgentStatus, DrainCause, DrainPhase, NotReadyKind, Peer, PodState, PodStatus};

use super::{Agent, Finding};
use crate::table::duration;

/// All findings from the agent's answers.
pub(super) fn agent(agent: &Agent) -> Vec<Finding> {
    let mut findings = status(&agent.status);
    findings.extend(agent.peers.iter().filter_map(|peer| session(peer, agent.status.drain.phase)));
    findings.extend(agent.pods.iter().filter_map(pod));
    findings
}

fn status(status: &AgentStatus) -> Vec<Finding> {
    let mut findings = Vec::new();
    match status.drain.phase {
        DrainPhase::Undrained => {}
        phase => {
            let is = if phase == DrainPhase::Drained { "drained" } else { "being drained" };
            let (why, back) = match status.drain.cause {
                Some(DrainCause::Cordon) => {
                    (", because it is cordoned in Kubernetes", "`kubectl uncordon` ends the drain")
                }
                _ => ("", "`trunkline undrain` ends the drain"),
            };
            let fix = format!("{back}, once the work is done");
            findings.push(Finding::warning("drain", format!("this node is {is}{why}"), fix));
        }
    }
    for fault in &status.manifests.refused {
        findings.push(Finding::error(
            "manifests",
            format!("{} is refused: {fault}", status.manifests.folder),
            "correct the named field: the agent applies the change at once. The previous state stays in force until then",
        ));
    }
    if let Some(cluster) = &status.cluster {
        if !cluster.connected {
            let why = cluster.last_error.as_deref().unwrap_or("no answer yet");
            findings.push(Finding::error(
                "api-server",
                format!("the API server {} does not answer: {why}", cluster.server),
                "check its address and certificate in `kube` of the agent's configuration, and the API server. Running pods are not affected",
            ));
        }
        for fault in &cluster.faults {
            let fix = "correct the object: kubectl edit; all other objects are served";
            findings.push(Finding::error("resources", format!("not served: {fault}"), fix));
        }
    }
    if let Some(fault) = &status.store.fault {
        let fix = "follow the text; `trunkline status` shows when the store is usable again";
        findings.push(Finding::error("store", fault.clone(), fix));
    }
    for network in &status.networks {
        if let Some(reason) = &network.refused {
            findings.push(Finding::error(
                "networks",
                format!("network {}: {reason}", network.name),
                "correct the Network, or this node's links and addresses, as the text recommends",
            ));
        }
        for subnet in &network.subnets {
            for fault in subnet.refused.iter().chain(&subnet.device_fault) {
                findings.push(Finding::error(
                    "subnets",
                    format!("subnet {}: {fault}", subnet.name),
                    "correct the named Subnet or link: the agent checks again by itself",
                ));
            }
            if subnet.total > 0 && subnet.free == 0 {
                findings.push(Finding::warning(
                    "addresses",
                    format!(
                        "subnet {} has no free address: {} of {} are in use",
                        subnet.name, subnet.used, subnet.total
                    ),
                    "add another Subnet to the network, or widen the range of this Subnet",
                ));
            }
        }
    }
    let kernel = &status.kernel;
    if kernel.routes_installed < kernel.routes_wanted {
        let why = kernel.last_error.as_deref().map(|error| format!(": {error}")).unwrap_or_default();
        findings.push(Finding::error(
            "routes",
            format!("{} of {} routes are in the kernel{why}", kernel.routes_installed, kernel.routes_wanted),
            "look for \"kernel\" in the agent's log; a restart of the agent installs all routes again",
        ));
    }
    for listener in status.bgp.iter().flat_map(|bgp| &bgp.listening) {
        if let Some(fault) = &listener.fault {
            findings.push(Finding::warning(
                "bgp",
                format!("incoming BGP connections are not accepted at {}: {fault}", listener.address),
                "free the address: the agent then binds it by itself. Sessions that this node opens are not affected",
            ));
        }
    }
    if status.unrecorded > 0 {
        findings.push(Finding::warning(
            "records",
            format!("{} pods run without a record: the store was lost", status.unrecorded),
            "no immediate action is necessary: the pods keep their addresses. Delete the pods at a \
             suitable time; their controllers create them again",
        ));
    }
    let reasons = status.reasons().into_iter().filter(|reason| !has_findings(reason.kind, status));
    findings.extend(reasons.map(|reason| {
        let fix = "no pod can be attached until this is corrected: follow the text";
        Finding::error("ready", reason.text, fix)
    }));
    findings
}

/// Whether there are other findings for a reason of this kind.
fn has_findings(kind: NotReadyKind, status: &AgentStatus) -> bool {
    match kind {
        NotReadyKind::Source => {
            status.cluster.as_ref().is_some_and(|cluster| !cluster.connected || !cluster.faults.is_empty())
        }
        NotReadyKind::Manifests
        | NotReadyKind::Networks
        | NotReadyKind::SubnetDevice
        | NotReadyKind::Store
        | NotReadyKind::Drained
        | NotReadyKind::Peers => true,
        NotReadyKind::NoNetwork
        | NotReadyKind::Guard
        | NotReadyKind::Speaker
        | NotReadyKind::Convergence
        | NotReadyKind::Stopping
        | NotReadyKind::Unknown => false,
    }
}

fn session(peer: &Peer, drain: DrainPhase) -> Option<Finding> {
    if peer.is_established() || drain == DrainPhase::Drained {
        return None;
    }
    let name = peer.name();
    if peer.shutdown {
        return Some(Finding::warning(
            "peers",
            format!("peer {name} is administratively down"),
            "remove `shutdown` from the manifest when the session may come up",
        ));
    }
    let time = peer.down_seconds.map(|seconds| format!(" for {}", duration(seconds))).unwrap_or_default();
    let text = format!("no session with peer {name}, AS {},{time}: {}", peer.remote_as, why(peer));
    let fix = match &peer.cause {
        Some(cause) => cause.advice.clone(),
        None => format!("`trunkline peers {name}` has the details, docs/faults.md the usual causes"),
    };
    Some(match peer.optional {
        true => Finding::warning("peers", text, fix),
        false => Finding::error("peers", text, fix),
    })
}

/// The cause, and the last loss of the session if its text differs.
fn why(peer: &Peer) -> String {
    let Some(cause) = &peer.cause else { return format!("{}, no attempt is complete yet", peer.state) };
    let loss = peer.last_loss.as_ref().filter(|loss| !loss.text.starts_with(&cause.text));
    let loss = loss
        .map(|loss| format!("; the last session was lost {} ago: {}", duration(loss.seconds_ago), loss.text));
    format!("{}{}", cause.text, loss.unwrap_or_default())
}

fn pod(pod: &PodStatus) -> Option<Finding> {
    (pod.state == PodState::Broken).then(|| {
        Finding::error(
            "pods",
            format!("the link {} of pod {} does not exist", pod.host_ifname, pod.title()),
            "delete the pod: its controller creates it again. Find the program that deletes links here (another CNI, a network manager)",
        )
    })
}
