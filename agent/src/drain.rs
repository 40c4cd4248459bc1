//! Drains this node without loss of traffic that has another path (RFC 8326), and undrains it.
//!
//! ```text
//!  undrained ──drain──► announcing ─────────────► withdrawing ────────► drained
//!      ▲                 GRACEFUL_SHUTDOWN on all   all prefixes are     sessions are shut down, with the
//!      │                 routes; all peers have     withdrawn, and       operator's text (RFC 9003)
//!      │                 them; the settle time      all peers know
//!      └─────undrain─────────────┴──────────────────────┴───────────────────┘
//! ```
//!
//! **Observable facts**: the agent knows whether the speaker has sent every update to every peer
//! ([`SpeakerHandle::wait_all_advertised`]). A speaker receives no message about the routers behind
//! its peers. RFC 8326 gives these routers time to use other paths; [`Settings::settle`] is this
//! time. Afterwards the agent counts its prefixes with another path: a peer that prefers another
//! path to such a prefix advertises it to this node. This count is only shown and decides nothing,
//! because an address that exists only on this node never has another path.
//!
//! **Restarts**: the drain is in the store before the first peer receives an update. After a
//! restart during the drain, the agent begins again with the announcement, which harms no traffic.
//! After a restart at the end, the agent starts without sessions.
//!
//! **The cause**: an operator's command, or the Node's cordon in Kubernetes if the agent follows it
//! (`drain::cordon`). The store contains the cause.
//!
//! The agent waits up to `PATIENCE` for a peer that receives nothing, and then continues with a
//! warning.

mod cordon;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout};
use trunkline_api::attach::{Code, Failure};
use trunkline_api::control::{DrainCause, DrainPhase, DrainStatus, EventKind};
use trunkline_bgp::net::SpeakerHandle;

use crate::history::History;
use crate::ipam::Ipam;
use crate::reconcile::{DrainInput, DrainStage, Reconcile};
pub use cordon::Cordon;
use cordon::{CordonAction, decide};

/// The text for the peers' operators if a cordon drains the node.
const CORDONED: &str = "drained in Kubernetes";

/// Maximum time to wait for peers that receive nothing.
const PATIENCE: Duration = Duration::from_secs(30);

/// The stored state while a node is drained, or while its cordon is overruled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct StoredDrain {
    #[serde(default)]
    message: String,
    /// Whether the sessions are down.
    #[serde(default)]
    down: bool,
    #[serde(default)]
    cause: DrainCause,
    /// Whether an operator has undrained the node in spite of the current cordon.
    #[serde(default)]
    overruled: bool,
}

impl StoredDrain {
    /// An unreadable state is from another version: the node stays drained.
    fn read(text: &str) -> StoredDrain {
        serde_json::from_str(text).unwrap_or_default()
    }

    fn stage(&self) -> DrainStage {
        match (self.phase(), &self.message) {
            (DrainPhase::Undrained, _) => DrainStage::Active,
            (DrainPhase::Drained, message) => DrainStage::Down { message: message.clone() },
            _ => DrainStage::Announcing,
        }
    }

    /// The phase with which a started agent continues.
    fn phase(&self) -> DrainPhase {
        match (self.overruled, self.down) {
            (true, _) => DrainPhase::Undrained,
            (false, true) => DrainPhase::Drained,
            (false, false) => DrainPhase::Announcing,
        }
    }
}

/// The stage in which a node with this stored state starts.
pub fn stage(stored: Option<&str>) -> DrainStage {
    stored.map_or(DrainStage::Active, |text| StoredDrain::read(text).stage())
}

/// The inputs of the task.
pub struct Settings {
    /// The time for the fabric to use other paths.
    pub settle: Duration,
    /// The stored state at the start.
    pub stored: Option<String>,
    /// The reconcile task, which controls the speaker.
    pub reconcile: Reconcile,
    /// The owner of the store.
    pub ipam: Ipam,
    /// The event history.
    pub history: History,
}

/// The handle of the task. Cheap to clone.
#[derive(Clone)]
pub struct Drain {
    commands: mpsc::Sender<DrainCommand>,
    state: watch::Receiver<DrainState>,
    task: AbortHandle,
}

enum DrainCommand {
    Drain {
        message: String,
        answer: oneshot::Sender<Result<(), Failure>>,
    },
    Undrain {
        answer: oneshot::Sender<Result<(), Failure>>,
    },
    /// The Node's cordon; none if it is unknown.
    Cordon {
        cordon: Option<Cordon>,
        answer: oneshot::Sender<Result<(), Failure>>,
    },
}

/// The state of the drain.
#[derive(Clone, Debug)]
struct DrainState {
    phase: DrainPhase,
    /// The cause of the drain; none for an undrained node.
    cause: Option<DrainCause>,
    /// The Node's cordon; none if it is not followed or unknown.
    cordon: Option<Cordon>,
    /// Whether the cordon is ignored.
    is_overruled: bool,
    since: Instant,
    settled_at: Option<Instant>,
    message: String,
    prefixes: u64,
    alternatives: u64,
    faults: Vec<String>,
}

impl DrainState {
    fn new(phase: DrainPhase, cause: Option<DrainCause>, message: String) -> DrainState {
        DrainState {
            phase,
            cause,
            cordon: None,
            is_overruled: false,
            since: Instant::now(),
            settled_at: None,
            message,
            prefixes: 0,
            alternatives: 0,
            faults: Vec::new(),
        }
    }

    fn status(&self) -> DrainStatus {
        let left = |until: Instant| until.saturating_duration_since(Instant::now()).as_secs();
        DrainStatus {
            phase: self.phase,
            phase_seconds: self.since.elapsed().as_secs(),
            settle_seconds: self.settled_at.filter(|_| self.phase == DrainPhase::Announcing).map(left),
            cause: self.cause,
            cordon: self.cordon.and_then(|cordon| cordon.status(self.is_overruled)),
            message: self.message.clone(),
            prefixes: self.prefixes,
            alternatives: self.alternatives,
            faults: self.faults.clone(),
        }
    }
}

impl Drain {
    /// Starts the task. It continues a drain that the agent's stop interrupted.
    pub fn spawn(settings: Settings) -> Drain {
        let stored = settings.stored.as_deref().map(StoredDrain::read);
        let phase = stored.as_ref().map_or(DrainPhase::Undrained, StoredDrain::phase);
        let StoredDrain { message, cause, overruled, .. } = stored.unwrap_or_default();
        let cause = (phase != DrainPhase::Undrained).then_some(cause);
        let begins = DrainState { is_overruled: overruled, ..DrainState::new(phase, cause, message) };
        let (state, reader) = watch::channel(begins);
        let (commands, inbox) = mpsc::channel(8);
        let Settings { settle, stored: _, reconcile, ipam, history } = settings;
        let task = Task { settle, reconcile, ipam, history, state };
        let task = tokio::spawn(task.run(inbox)).abort_handle();
        Drain { commands, state: reader, task }
    }

    /// Starts a drain by an operator. A drain that is in progress or complete continues with its
    /// text; if a cordon caused it, the operator is now the cause.
    pub async fn drain(&self, message: String) -> Result<DrainStatus, Failure> {
        self.order(|answer| DrainCommand::Drain { message, answer }).await
    }

    /// Sets the Node's cordon; `None` if it is no longer known.
    pub async fn cordon(&self, cordon: Option<Cordon>) -> Result<DrainStatus, Failure> {
        self.order(|answer| DrainCommand::Cordon { cordon, answer }).await
    }

    /// Undrains the node; the cause of the drain does not matter.
    pub async fn undrain(&self) -> Result<DrainStatus, Failure> {
        self.order(|answer| DrainCommand::Undrain { answer }).await
    }

    async fn order(
        &self,
        order: impl FnOnce(oneshot::Sender<Result<(), Failure>>) -> DrainCommand,
    ) -> Result<DrainStatus, Failure> {
        let (answer, outcome) = oneshot::channel();
        self.commands.send(order(answer)).await.map_err(|_| stopping())?;
        outcome.await.map_err(|_| stopping())??;
        Ok(self.status())
    }

    /// The state of the drain.
    pub fn status(&self) -> DrainStatus {
        self.state.borrow().status()
    }

    /// The state, after the current step is complete.
    pub async fn settled(&self) -> Result<DrainStatus, Failure> {
        let mut state = self.state.clone();
        let settled = state.wait_for(|state| state.phase.is_settled()).await;
        settled.map(|state| state.status()).map_err(|_| stopping())
    }

    /// Ends the task at once, and wakes all waiting requests. Called when the agent stops.
    pub fn close(&self) {
        self.task.abort();
    }
}

fn stopping() -> Failure {
    Failure::new(Code::TryAgainLater, "the agent is stopping")
}

struct Task {
    settle: Duration,
    reconcile: Reconcile,
    ipam: Ipam,
    history: History,
    state: watch::Sender<DrainState>,
}

impl Task {
    async fn run(mut self, mut inbox: mpsc::Receiver<DrainCommand>) {
        loop {
            let phase = self.state.borrow().phase;
            // An order interrupts a step at any point, because every step can start again.
            let order = tokio::select! {
                biased;
                order = inbox.recv() => order,
                () = self.step(phase), if !phase.is_settled() => continue,
            };
            match order {
                Some(DrainCommand::Drain { message, answer }) => {
                    drop(answer.send(self.drain(phase, message).await))
                }
                Some(DrainCommand::Undrain { answer }) => drop(answer.send(self.undrain(phase).await)),
                Some(DrainCommand::Cordon { cordon, answer }) => {
                    drop(answer.send(self.cordon(phase, cordon).await))
                }
                None => return,
            }
        }
    }

    async fn drain(&mut self, phase: DrainPhase, message: String) -> Result<(), Failure> {
        let cause = self.state.borrow().cause;
        match cause {
            None => self.begin(DrainCause::Operator, message, "this node is drained by an operator").await,
            Some(DrainCause::Operator) => Ok(()),
            Some(DrainCause::Cordon) => {
                let (down, cause) = (phase == DrainPhase::Drained, DrainCause::Operator);
                let message = self.state.borrow().message.clone();
                self.store(Some(&StoredDrain { message, down, cause, overruled: false })).await?;
                self.record_event(
                    "an operator requests the drain too: this node stays drained after its cordon in Kubernetes"
                        .to_owned(),
                );
                self.state.send_modify(|state| state.cause = Some(cause));
                Ok(())
            }
        }
    }

    async fn undrain(&mut self, phase: DrainPhase) -> Result<(), Failure> {
        let DrainState { cause, cordon, is_overruled, .. } = *self.state.borrow();
        // Store that the operator overrules the cordon. Otherwise the current cordon would drain
        // the node again at once.
        let overrules = cause == Some(DrainCause::Cordon) || matches!(cordon, Some(Cordon::Yes { .. }));
        if phase != DrainPhase::Undrained {
            return self.undo(overrules, "this node is undrained by an operator").await;
        }
        if overrules && !is_overruled {
            self.store(Some(&StoredDrain { overruled: true, ..StoredDrain::default() })).await?;
            self.record_event(
                "an operator keeps this node undrained although it is cordoned in Kubernetes".to_owned(),
            );
            self.state.send_modify(|state| state.is_overruled = true);
        }
        Ok(())
    }

    async fn cordon(&mut self, phase: DrainPhase, cordon: Option<Cordon>) -> Result<(), Failure> {
        self.state.send_modify(|state| state.cordon = cordon);
        let Some(cordon) = cordon else { return Ok(()) };
        let DrainState { cause, is_overruled, .. } = *self.state.borrow();
        match decide(cordon, phase, cause, is_overruled) {
            CordonAction::Nothing => Ok(()),
            CordonAction::Drain => {
                let why = "this node is drained: it is cordoned in Kubernetes, and its pods are gone";
                self.begin(DrainCause::Cordon, CORDONED.to_owned(), why).await
            }
            CordonAction::Undrain => {
                self.undo(false, "this node is undrained: it is no longer cordoned in Kubernetes").await
            }
            CordonAction::Forget => {
                self.store(None).await?;
                self.state.send_modify(|state| state.is_overruled = false);
                Ok(())
            }
        }
    }

    async fn begin(&mut self, cause: DrainCause, message: String, why: &str) -> Result<(), Failure> {
        self.store(Some(&StoredDrain { message: message.clone(), cause, ..StoredDrain::default() })).await?;
        self.record_event(why.to_owned());
        self.set_state(DrainState::new(DrainPhase::Announcing, Some(cause), message));
        Ok(())
    }

    async fn undo(&mut self, overrules: bool, why: &str) -> Result<(), Failure> {
        let overruled = StoredDrain { overruled: true, ..StoredDrain::default() };
        self.store(overrules.then_some(&overruled)).await?;
        self.reconcile.leave(DrainStage::Active).await.ok_or_else(stopping)?;
        self.record_event(why.to_owned());
        let undrained = DrainState::new(DrainPhase::Undrained, None, String::new());
        self.set_state(DrainState { is_overruled: overrules, ..undrained });
        Ok(())
    }

    /// Sets the state, with the current cordon.
    fn set_state(&self, state: DrainState) {
        let cordon = self.state.borrow().cordon;
        self.state.send_replace(DrainState { cordon, ..state });
    }

    /// Runs the step of a phase, and then sets the next phase.
    async fn step(&mut self, phase: DrainPhase) {
        let left = match phase {
            DrainPhase::Announcing => self.announce().await,
            DrainPhase::Withdrawing => self.withdraw().await,
            DrainPhase::Undrained | DrainPhase::Drained => None,
        };
        if left.is_none() {
            // The agent stops. No further step runs, and no result is reported.
            std::future::pending::<()>().await;
        }
    }

    async fn announce(&mut self) -> Option<()> {
        let left = self.reconcile.leave(DrainStage::Announcing).await?;
        self.wait_advertised(&left, "the graceful shutdown of this node's routes").await;
        // If the drain began during a restart, there are no sessions yet and no router can use
        // another path. An order without a change restarts this step, but the settle time still
        // ends at the same moment.
        let until = self.state.borrow().settled_at.unwrap_or_else(|| Instant::now() + self.settle);
        self.state.send_modify(|state| state.settled_at = Some(until));
        sleep_until(until).await;
        let alternatives = match &left.speaker {
            Some(speaker) => alternatives(speaker, &left).await,
            None => 0,
        };
        self.next(DrainPhase::Withdrawing, |state| {
            state.prefixes = left.prefixes.len() as u64;
            state.alternatives = alternatives;
        });
        self.record_event(format!(
            "the fabric had {} s to use other paths; of {} prefixes of this node, {alternatives} \
             have another path through a peer",
            self.settle.as_secs(),
            left.prefixes.len()
        ));
        Some(())
    }

    async fn withdraw(&mut self) -> Option<()> {
        let left = self.reconcile.leave(DrainStage::Withdrawn).await?;
        self.wait_advertised(&left, "the withdrawals").await;
        let (message, cause) = {
            let state = self.state.borrow();
            (state.message.clone(), state.cause.unwrap_or_default())
        };
        self.reconcile.leave(DrainStage::Down { message: message.clone() }).await?;
        if let Err(failure) =
            self.store(Some(&StoredDrain { message, down: true, cause, overruled: false })).await
        {
            // After a restart, all phases run again.
            self.fault(failure.to_string());
        }
        self.next(DrainPhase::Drained, |_| {});
        self.record_event("this node is drained: no session is left".to_owned());
        Some(())
    }

    async fn wait_advertised(&mut self, left: &DrainInput, what: &str) {
        let Some(speaker) = &left.speaker else { return };
        if timeout(PATIENCE, speaker.wait_all_advertised()).await.is_err() {
            self.fault(format!("not every peer received {what} within {} s", PATIENCE.as_secs()));
        }
    }

    fn next(&self, phase: DrainPhase, edit: impl FnOnce(&mut DrainState)) {
        self.state.send_modify(|state| {
            (state.phase, state.since) = (phase, Instant::now());
            edit(state);
        });
    }

    fn fault(&self, fault: String) {
        tracing::warn!(fault, "drain");
        self.state.send_modify(|state| state.faults.push(fault));
    }

    fn record_event(&self, text: String) {
        tracing::info!("{text}");
        self.history.record(EventKind::Operator, None, None, text);
    }

    async fn store(&self, stored: Option<&StoredDrain>) -> Result<(), Failure> {
        let text = stored.map(serde_json::to_string).transpose();
        let text = text.map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
        self.ipam.set_drain(text).await.map_err(|error| Failure::new(Code::Io, error.to_string()))
    }
}

/// Number of this node's prefixes to which some peer has another path, even if this node would not
/// accept it. A path through this node's own AS could lead back to this node, and does not count.
async fn alternatives(speaker: &SpeakerHandle, left: &DrainInput) -> u64 {
    let mut known = 0;
    for prefix in &left.prefixes {
        let Ok(explained) = speaker.explain(*prefix).await else { break };
        let others = explained.paths.iter().map(|path| &path.route).filter(|route| route.peer.is_some());
        known += u64::from(others.into_iter().any(|route| !as_path_contains(&route.as_path, left.local_as)));
    }
    known
}

/// Whether a printed AS_PATH contains an AS.
fn as_path_contains(as_path: &str, asn: u32) -> bool {
    as_path.split(|c: char| !c.is_ascii_digit()).any(|word| word.parse() == Ok(asn))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_own_as_is_found_in_sequences_and_sets() {
        for (path, through) in [
            ("65001 65012 65101", true),
            ("65001 {65101,65102}", true),
            ("65001 651010 65002", false),
            ("", false),
        ] {
            assert_eq!(as_path_contains(path, 65101), through, "{path}");
        }
    }

    #[test]
    fn the_stored_state_decides_the_first_stage() {
        let text = |stored: &StoredDrain| serde_json::to_string(stored).unwrap();
        let mut stored = StoredDrain { message: "new disk".to_owned(), ..StoredDrain::default() };
        assert_eq!(stage(None), DrainStage::Active);
        assert_eq!(stage(Some(&text(&stored))), DrainStage::Announcing);
        stored.down = true;
        assert_eq!(stage(Some(&text(&stored))), DrainStage::Down { message: "new disk".to_owned() });
        assert_eq!(
            stage(Some("{\"later\": 1}")),
            DrainStage::Announcing,
            "an unreadable state means drained"
        );
        let overruled = StoredDrain { overruled: true, ..StoredDrain::default() };
        assert_eq!(stage(Some(&text(&overruled))), DrainStage::Active, "undrained");
    }
}
