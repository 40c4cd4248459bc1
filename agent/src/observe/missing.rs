//! The conditions that block the attachment of pods, and the subset that fails the readiness probe
//! of the agent's own pod.
//!
//! `trunkline status` and `/readyz` show all of them: if no router answers, the node is not ready
//! for pods. The readiness probe has another purpose. If it fails, Kubernetes stops the roll-out of
//! this version of the agent. A missing router is no evidence against a running agent, but it is
//! evidence against a new agent that has found none. So conditions of the node, its routers and its
//! manifests fail the probe until the first moment without any condition. Afterwards only the
//! agent's own conditions fail it. A condition that every agent on this node would have never fails
//! it.

use std::sync::atomic::{AtomicBool, Ordering};

use trunkline_api::control::{ClusterStatus, NotReadyKind, NotReadyReason};
use trunkline_bgp::speaker::{PeerStatus, State};
use trunkline_datapath::kernel::GuardStatus;

use crate::causes;
use crate::ipam::Summary;
use crate::reconcile::{DRAINED, ReconcileStatus, SpeakerStatus};
use crate::source::kube::Cluster;

/// A condition that blocks the attachment of pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Missing {
    /// The condition, and where to look.
    pub(super) reason: NotReadyReason,
    counts: ProbeEffect,
}

/// When a condition fails the readiness probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeEffect {
    /// The agent causes it.
    Always,
    /// The node, its routers or its manifests cause it.
    UntilReady,
    /// Every agent on this node would have it.
    Never,
}

/// Whether there was a moment without any condition in this run.
#[derive(Debug, Default)]
pub struct StartupState(AtomicBool);

impl StartupState {
    /// The conditions that fail the readiness probe.
    pub(super) fn not_serving(&self, missing: &[Missing]) -> Vec<String> {
        let is_missing = |counts| missing.iter().any(|missing| missing.counts == counts);
        if missing.is_empty() {
            self.0.store(true, Ordering::Relaxed);
        }
        let only_own = self.0.load(Ordering::Relaxed) || is_missing(ProbeEffect::Never);
        let counting = missing.iter().filter(|missing| match missing.counts {
            ProbeEffect::Always => true,
            ProbeEffect::UntilReady => !only_own,
            ProbeEffect::Never => false,
        });
        counting.map(|missing| missing.reason.text.clone()).collect()
    }
}

/// The conditions that block the attachment of pods, each with a hint where to look.
pub(super) fn missing(
    view: &ReconcileStatus,
    peers: &[PeerStatus],
    summary: &Summary,
    guard: &GuardStatus,
    cluster: Option<&Cluster>,
) -> Vec<Missing> {
    let mut missing = Vec::new();
    let mut lacks = |counts, kind, text: String| {
        missing.push(Missing { reason: NotReadyReason { kind, text }, counts });
    };
    if !view.applied {
        let unheard = cluster.map(|cluster| match cluster.status() {
            ClusterStatus { faults, .. } if !faults.is_empty() => faults.join("; "),
            ClusterStatus { last_error: Some(error), .. } => {
                format!("the API server does not answer: {error}")
            }
            _ => "the API server has not answered yet".to_owned(),
        });
        let (kind, text) = match view.refused.as_slice() {
            [] => {
                let text = unheard.unwrap_or_else(|| "the manifests have not been read yet".to_owned());
                (NotReadyKind::Source, text)
            }
            faults => (NotReadyKind::Manifests, format!("the manifests are refused: {}", faults.join("; "))),
        };
        lacks(ProbeEffect::Always, kind, text);
    } else if !view.networks.values().any(|network| network.refused.is_none()) {
        let reasons: Vec<String> = view
            .networks
            .iter()
            .filter_map(|(name, network)| Some(format!("network {name}: {}", network.refused.as_ref()?)))
            .collect();
        match reasons.as_slice() {
            [] => {
                let with = if cluster.is_some() { "the Node's labels" } else { "nodeLabels" };
                let text = format!("no Network selects this node: compare its nodeSelector with {with}");
                lacks(ProbeEffect::Never, NotReadyKind::NoNetwork, text);
            }
            reasons => lacks(ProbeEffect::UntilReady, NotReadyKind::Networks, reasons.join("; ")),
        }
    }
    for network in view.networks.values() {
        for (name, subnet) in &network.subnets {
            let fault = subnet.device.as_ref().and_then(|device| device.fault.as_ref());
            fault.into_iter().for_each(|fault| {
                let text = format!("Subnet {name}: {fault}");
                lacks(ProbeEffect::UntilReady, NotReadyKind::SubnetDevice, text);
            });
        }
    }
    let store = summary.fault.iter();
    store.for_each(|fault| lacks(ProbeEffect::Always, NotReadyKind::Store, fault.to_string()));
    if view.applied && guard.enabled && !guard.in_force {
        let reason = guard.fault.as_deref().unwrap_or("its rules are being loaded");
        let text = format!("the guard against spoofed packets is not in force: {reason}");
        lacks(ProbeEffect::Always, NotReadyKind::Guard, text);
    }
    let speaker = view.speaker_fault.iter();
    speaker.for_each(|fault| lacks(ProbeEffect::Always, NotReadyKind::Speaker, fault.clone()));
    if view.stage.withdraws() {
        // Peers and their state do not matter on a drained node.
        lacks(ProbeEffect::Never, NotReadyKind::Drained, DRAINED.to_owned());
    } else if let Some(bgp) = &view.bgp {
        let routes = routes(bgp, peers).into_iter();
        routes.for_each(|(kind, text)| lacks(ProbeEffect::UntilReady, kind, text));
    }
    missing
}

/// The missing sessions and routes.
fn routes(bgp: &SpeakerStatus, peers: &[PeerStatus]) -> Option<(NotReadyKind, String)> {
    let required = || peers.iter().filter(|peer| peer.range.is_none() && !bgp.optional.contains(&peer.key()));
    let waiting = || bgp.waiting.iter().filter(|peer| !peer.optional);
    let any_required =
        required().next().is_some() || waiting().next().is_some() || !bgp.required_ranges.is_empty();
    if any_required && !peers.iter().any(|peer| peer.state == State::Established) {
        let states = required().map(|peer| match causes::why(peer) {
            Some(cause) => format!("{} is {} ({cause})", peer.key(), peer.state),
            None => format!("{} is {}", peer.key(), peer.state),
        });
        let absent =
            bgp.required_ranges.iter().map(|prefix| format!("no neighbour from {prefix} has connected"));
        let states: Vec<String> =
            states.chain(waiting().map(|peer| peer.reason.clone())).chain(absent).collect();
        let text = format!("no BGP peer is established: {}", states.join(", "));
        Some((NotReadyKind::Peers, text))
    } else {
        let waits = "the first route selection waits for the peers' End-of-RIB";
        bgp.converged.is_empty().then(|| (NotReadyKind::Convergence, waits.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readiness_probe_waits_for_the_node_only_once() {
        let lack = |counts, kind, text: &str| {
            let text = text.to_owned();
            Missing { reason: NotReadyReason { kind, text }, counts }
        };
        let store = || lack(ProbeEffect::Always, NotReadyKind::Store, "store");
        let peers = || lack(ProbeEffect::UntilReady, NotReadyKind::Peers, "no peer");
        let drained = || lack(ProbeEffect::Never, NotReadyKind::Drained, "drained");
        let started = StartupState::default();
        assert_eq!(started.not_serving(&[store(), peers()]), ["store", "no peer"]);
        assert_eq!(
            started.not_serving(&[peers()]),
            ["no peer"],
            "a new agent without any peer fails the probe"
        );
        assert_eq!(
            started.not_serving(&[drained()]),
            [""; 0],
            "every agent on this node would have this condition"
        );
        assert_eq!(
            started.not_serving(&[peers()]),
            ["no peer"],
            "the drained state is no proof of readiness"
        );
        assert_eq!(started.not_serving(&[]), [""; 0]);
        assert_eq!(
            started.not_serving(&[peers()]),
            [""; 0],
            "lost routers do not fail the probe of a running agent"
        );
        assert_eq!(started.not_serving(&[store(), peers()]), ["store"]);
    }
}
