//! The reconcile task's handling of the speaker: its start, its prefixes and its events.

use std::net::SocketAddr;

use tokio::sync::mpsc;
use tokio::time::Instant;
use trunkline_api::control::EventKind;
use trunkline_bgp::config::SpeakerConfig;
use trunkline_bgp::speaker::{Event, Stop};
use trunkline_bgp::types::{Family, FamilySet};

use super::{FIRST_PAUSE, LAST_PAUSE, Restart, RunningSpeaker, SessionState, Task};
use crate::family::ip_family;
use crate::reconcile::bgp::{AppliedBgp, Prefixes};
use crate::reconcile::pump::{self, PumpCommand};
use crate::reconcile::{Advertised, DrainInput, DrainStage, StoppedBgp, StoppedPeer, listening};

impl Task {
    /// Starts, stops or replaces the speaker, and sends it the differences.
    pub(super) async fn drive_speaker(&mut self) {
        let Some(plan) = self.plan.as_ref() else { return };
        let Some(mut bgp) = plan.bgp.clone() else {
            (self.speaker_fault, self.restart) = (None, None);
            return self.stop_speaker(cease("no BGP network is on this node any more")).await;
        };
        self.stage.lay_over(&mut bgp);
        if self.running.as_ref().is_some_and(|running| !running.applied.is_for(&bgp)) {
            self.stop_speaker(cease("the AS number or BGP identifier of this node changes")).await;
        }
        if self.running.is_none() {
            // Other changes of the plan do not end the pause after a failure.
            if self.restart.as_ref().and_then(|restart| restart.at).is_some_and(|at| at > Instant::now()) {
                return;
            }
            let config =
                SpeakerConfig { local_as: bgp.local_as, router_id: bgp.router_id, ..self.speaker.clone() };
            let (handle, events, changes) = match trunkline_bgp::net::spawn(config, &self.shell) {
                Ok(spawned) => spawned,
                Err(error) => return self.speaker_failed(&format!("the BGP speaker cannot start: {error}")),
            };
            if let Some(restart) = &mut self.restart {
                restart.at = None;
            }
            // Only the first speaker of this process follows an earlier run.
            let restarting = std::mem::replace(&mut self.speaker.restarting, false);
            if restarting && !bgp.unnumbered.is_empty() {
                self.search.begin(self.speaker.selection_deferral);
            }
            tracing::info!(local_as = %bgp.local_as, router_id = %bgp.router_id, restarting, "the BGP speaker runs");
            let (pump_commands, command_queue) = mpsc::unbounded_channel();
            let (event_sender, pump_events) = mpsc::unbounded_channel();
            tokio::spawn(pump::run(
                handle.clone(),
                changes,
                pump::Fib { kernel: self.kernel.clone(), imported: self.imported.subscribe() },
                self.history.clone(),
                command_queue,
                event_sender,
                self.notifier.clone(),
            ));
            let monitor = |address: &SocketAddr| handle.monitor(*address, self.station.clone());
            let monitors = self.stations.iter().map(monitor).collect();
            let listening =
                listening::follow(handle.listeners(), self.history.clone(), self.notifier.clone());
            let applied = AppliedBgp::new(handle, &bgp, self.history.clone());
            self.running =
                Some(RunningSpeaker { applied, monitors, events, listening, pump_commands, pump_events });
        }
        let wanted = match self.stage.withdraws() {
            true => Prefixes::new(),
            false => self.prefixes(&bgp.originate),
        };
        // Set the links before the first peer is added, because a BFD session needs its links from
        // the start.
        self.set_links().await;
        let Some(running) = &mut self.running else { return };
        let all_peers = self.search.is_over(&bgp.unnumbered)
            && self.services_until.is_none()
            && self.anycast_until.is_none();
        self.speaker_fault = match running.applied.apply(&bgp, wanted, all_peers).await {
            Ok(faults) if faults.is_empty() => None,
            Ok(faults) => Some(faults.join("; ")),
            Err(stopped) => Some(stopped.to_string()),
        };
        if let Some(fault) = &self.speaker_fault {
            tracing::error!(%fault, "the BGP speaker rejects a part of the plan");
        }
    }

    /// Ends the pause before the next start: the configuration can have removed the cause.
    pub(super) fn start_now(&mut self) {
        if let Some(at) = self.restart.as_mut().and_then(|restart| restart.at.as_mut()) {
            *at = Instant::now();
        }
    }

    /// Handles a failed start of the speaker. Routes and rules stay, and the start is tried again
    /// after a pause, because no event shows that it would succeed.
    fn speaker_failed(&mut self, fault: &str) {
        if self.speaker_fault.as_deref() != Some(fault) {
            tracing::error!(
                fault,
                "no BGP speaker runs: routes and rules stay, and the start is tried again"
            );
            self.history.record(
                EventKind::SpeakerFailed,
                None,
                None,
                format!("{fault}; its start is tried again"),
            );
            self.speaker_fault = Some(fault.to_owned());
        }
        let now = Instant::now();
        let (pause, since) = match &self.restart {
            Some(restart) => {
                ((restart.pause * 2).min(LAST_PAUSE), if restart.at.is_some() { restart.since } else { now })
            }
            None => (FIRST_PAUSE, now),
        };
        self.restart = Some(Restart { at: Some(now + pause), pause, since });
    }

    /// Handles an unexpected end of the speaker's task. Its connections were closed without a Cease.
    /// Peers with graceful restart keep forwarding. This node also keeps forwarding until the next
    /// speaker has converged.
    pub(super) async fn speaker_ended(&mut self) {
        self.running = None;
        for known in self.sessions.values_mut() {
            let retained = if known.up { known.families } else { known.retained };
            *known = SessionState {
                retained,
                former: true,
                local: known.local,
                next_hops: std::mem::take(&mut known.next_hops),
                ..SessionState::default()
            };
        }
        self.received_defaults.speaker_ended();
        self.speaker.restarting = true;
        self.forget_convergence().await;
        self.changed_sessions.send_modify(|number| *number += 1);
        self.speaker_failed("the BGP speaker has ended unexpectedly");
    }

    /// A new speaker receives all routes again. The old routes stay until it has converged.
    async fn forget_convergence(&mut self) {
        (self.converged, self.held, self.held_until) = (FamilySet::EMPTY, FamilySet::EMPTY, None);
        if let Err(error) = self.kernel.retain_learned().await {
            tracing::error!(%error, "the kernel thread does not answer");
        }
    }

    /// The speaker's part of the plan while no speaker runs.
    pub(super) fn stopped(&self) -> Option<StoppedBgp> {
        if self.running.is_some() {
            return None;
        }
        let (bgp, restart) = (self.plan.as_ref()?.bgp.as_ref()?, self.restart.as_ref()?);
        let numbered = bgp.peers.iter().map(|(key, peer)| StoppedPeer {
            key: Some(*key),
            interface: None,
            remote_as: peer.remote_as.0,
            optional: bgp.optional_peers.contains(key),
        });
        let unnumbered = bgp.unnumbered.iter().filter(|(_, peer)| !peer.found);
        let unnumbered = unnumbered.map(|(interface, peer)| StoppedPeer {
            key: None,
            interface: Some(*interface),
            remote_as: peer.remote_as.0,
            optional: peer.optional,
        });
        Some(StoppedBgp {
            local_as: bgp.local_as.0,
            router_id: bgp.router_id,
            fault: self.speaker_fault.clone()?,
            since: restart.since,
            peers: numbered.chain(unnumbered).collect(),
        })
    }

    /// Sends the host's links to the speaker if they changed. They are not part of the plan, so a
    /// refused plan does not delay them.
    pub(super) async fn set_links(&mut self) {
        if let Some(running) = &mut self.running
            && let Err(stopped) = running.applied.set_links(&self.links).await
        {
            self.speaker_fault = Some(stopped.to_string());
        }
    }

    /// Sets the drain stage.
    pub(super) async fn leave(&mut self, stage: DrainStage) -> DrainInput {
        self.stage = stage;
        self.service_facts.set_stage(&self.stage);
        self.drive_speaker().await;
        let bgp = self.plan.as_ref().and_then(|plan| plan.bgp.as_ref());
        DrainInput {
            speaker: self.running.as_ref().map(|running| running.applied.handle.clone()),
            prefixes: bgp.map(|bgp| self.prefixes(&bgp.originate).into_keys().collect()).unwrap_or_default(),
            local_as: self.running.as_ref().map_or(0, |running| running.applied.local_as.0),
        }
    }

    /// The pods' addresses that peers have received.
    pub(super) fn advertised(&self) -> Advertised {
        let prefixes = self.planned.values().flat_map(|pod| pod.originate.keys());
        Advertised {
            pods: match self.stage.withdraws() {
                true => Vec::new(),
                false => prefixes.map(|prefix| prefix.addr()).collect(),
            },
            speaker: self.running.as_ref().map(|running| running.applied.handle.clone()),
        }
    }

    /// All prefixes that the node originates.
    pub(super) fn prefixes(&self, own: &Prefixes) -> Prefixes {
        let mut prefixes = own.clone();
        for pod_plan in self.planned.values() {
            prefixes.extend(pod_plan.originate.iter().map(|(prefix, what)| (*prefix, what.clone())));
        }
        match &self.plan {
            Some(plan) => self.services.merge(prefixes, &plan.service_tags),
            None => prefixes,
        }
    }

    pub(super) async fn stop_speaker(&mut self, stop: Stop) {
        if let Some(running) = self.running.take() {
            running.applied.handle.stop(stop).await;
            self.sessions.clear();
            self.received_defaults.clear();
            self.forget_convergence().await;
        }
    }

    pub(super) async fn handle_speaker_event(&mut self, event: Event) {
        self.history.record_speaker_event(&event);
        if matches!(
            event,
            Event::PeerUp { .. } | Event::PeerDown { .. } | Event::PeerError { .. } | Event::PeerGone { .. }
        ) {
            self.changed_sessions.send_modify(|number| *number += 1);
        }
        match event {
            Event::PeerUp { address, remote_as, local, families, .. } => {
                let names: Vec<String> = families.iter().map(|family| family.to_string()).collect();
                tracing::info!(peer = %address, %remote_as, families = names.join(","), "session established");
                let known = self.sessions.entry(address).or_default();
                *known = SessionState {
                    up: true,
                    was_up: true,
                    local: Some(local.ip()),
                    families,
                    next_hops: std::mem::take(&mut known.next_hops),
                    ..SessionState::default()
                };
                self.received_defaults.session_up(address);
                self.stale = true;
            }
            Event::PeerDown { address, reason, retained, .. } => {
                tracing::warn!(peer = %address, %reason, "session down");
                let known = self.sessions.entry(address).or_default();
                (known.up, known.retained, known.former) = (false, retained, false);
                self.stale = true;
                // A retained path changes no route now.
                if let Some(running) = self.running.as_ref().filter(|_| retained.is_empty()) {
                    let _ = running.pump_commands.send(PumpCommand::Settle(Instant::now()));
                }
                self.drain();
            }
            Event::LongLivedStale { address, family, paths, removed, time, .. } => {
                let seconds = time.as_secs();
                tracing::warn!(peer = %address, %family, paths, removed, seconds, "paths are long-lived stale");
            }
            Event::StaleSwept { address, family, paths, .. } => {
                tracing::info!(peer = %address, %family, paths, "stale paths removed");
                let known = self.sessions.entry(address).or_default();
                known.retained.remove(family);
                self.stale = true;
            }
            Event::PeerError { address, error, .. } => {
                tracing::warn!(peer = %address, %error, "no session");
            }
            Event::Bfd { address, state, down, .. } => match down {
                Some(down) => {
                    let independent = down.control_plane_independent;
                    tracing::warn!(peer = %address, cause = ?down.cause, independent, "BFD session down");
                }
                None => tracing::info!(peer = %address, %state, "BFD session"),
            },
            Event::MalformedUpdate { address, fault, .. } => {
                tracing::warn!(peer = %address, %fault, "malformed UPDATE");
            }
            Event::EndOfRib { address, family, .. } => {
                tracing::debug!(peer = %address, %family, "End-of-RIB");
                self.sessions.entry(address).or_default().complete.insert(family);
                self.received_defaults.end_of_rib(&address, family);
                self.stale = true;
                self.drain();
            }
            Event::DefaultRoute { address, family, offered, .. } => {
                tracing::info!(peer = %address, %family, offered, "default route");
                let established = self.sessions.get(&address).is_some_and(|known| known.up);
                self.received_defaults.set(address, family, offered, established);
                self.stale = true;
            }
            // The entry stays, because its next hop is reported only once, and the neighbour may
            // return.
            Event::PeerGone { address, .. } => {
                tracing::info!(peer = %address, "dynamic neighbour gone");
                self.received_defaults.forget(&address);
            }
            Event::RangeFull { prefix, limit, refused } => {
                tracing::warn!(%prefix, limit, %refused, "no more dynamic neighbours: the limit is reached");
            }
            Event::Advertised { .. } => {}
            Event::Converged { family } => {
                tracing::info!(%family, "converged");
                self.restart = None;
                self.converged.insert(family);
                self.held.insert(family);
                self.held_until = Some(Instant::now() + self.speaker.selection_deferral);
                self.drain();
            }
        }
    }

    /// Removes the last run's routes from the kernel, in families in which every established peer
    /// sent all its routes. The speaker may converge earlier, because it does not wait for peers
    /// that restart themselves (RFC 4724 §4.1). But the next hop of a default route comes from a
    /// peer's first path.
    pub(super) fn drain(&mut self) {
        let Some(running) = &self.running else { return };
        let overdue = self.held_until.is_some_and(|until| until <= Instant::now());
        for family in self.held.iter() {
            let waits = |known: &SessionState| {
                known.up && known.families.contains(family) && !known.complete.contains(family)
            };
            if overdue || !self.sessions.values().any(waits) {
                let _ = running.pump_commands.send(PumpCommand::Drain(family));
            }
        }
    }

    pub(super) async fn release(&mut self, family: Family) {
        if self.held.contains(family) {
            self.held.remove(family);
            if self.held.is_empty() {
                self.held_until = None;
            }
            if let Err(error) = self.kernel.release(ip_family(family)).await {
                tracing::error!(%family, %error, "the last run's routes could not be removed from the kernel");
            }
            for known in self.sessions.values_mut().filter(|known| known.former) {
                known.retained.remove(family);
            }
            self.received_defaults.converged(family);
            self.stale = true;
        }
    }
}

fn cease(communication: &str) -> Stop {
    Stop::Cease { communication: communication.to_owned() }
}
