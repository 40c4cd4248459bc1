//! Leaving the fabric so that nothing is lost that has another way (RFC 8326), and coming back.
//!
//! ```text
//!  undrained ──drain──► announcing ─────────────► withdrawing ────────► drained
//!      ▲                 GRACEFUL_SHUTDOWN on all   nothing is told      sessions are shut down, with the
//!      │                 that is told; all peers    any more, and every  operator's text (RFC 9003)
//!      │                 have it; the settle time   peer knows
//!      └─────undrain─────────────┴──────────────────────┴───────────────────┘
//! ```
//!
//! **What can be known**: that every peer was written everything ([`SpeakerHandle::wait_all_advertised`]). That the routers behind them have
//! moved, nobody tells a speaker: RFC 8326 gives them time, and so does this, [`Settings::settle`]. What *is* heard is counted
//! afterwards: a peer that prefers another way to one of this node's prefixes tells it in turn. That count is shown and nothing
//! hangs on it, since an address that is here alone never has another way.
//!
//! **Restarts**: that the node is drained is in the store before the first peer hears of it. A restart on the way begins again at
//! the announcement, which does nobody harm; one after the end brings the agent up without sessions.
//!
//! **Who drains**: an operator by command, or the Node's cordon in Kubernetes where that is followed (`drain::cordon`). The cause is in the store with it.
//!
//! A peer that takes nothing is waited for `PATIENCE` long, and then left behind with a word about it.

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

/// What the peers' operators read of a node that its cordon has drained.
const CORDONED: &str = "drained in Kubernetes";

/// Peers that take nothing are waited for so long.
const PATIENCE: Duration = Duration::from_secs(30);

/// What stands in the store while a node is drained, or its cordon is overruled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct StoredDrain {
    #[serde(default)]
    message: String,
    /// The sessions are down.
    #[serde(default)]
    down: bool,
    #[serde(default)]
    cause: DrainCause,
    /// It is not drained: an operator has brought it back, and the cordon that there was then does not count.
    #[serde(default)]
    overruled: bool,
}

impl StoredDrain {
    /// What cannot be read was written by another version: the node is drained all the same.
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

    /// Where a start takes it up.
    fn phase(&self) -> DrainPhase {
        match (self.overruled, self.down) {
            (true, _) => DrainPhase::Undrained,
            (false, true) => DrainPhase::Drained,
            (false, false) => DrainPhase::Announcing,
        }
    }
}

/// The stage that a node starts in whose store says this.
pub fn stage(stored: Option<&str>) -> DrainStage {
    stored.map_or(DrainStage::Active, |text| StoredDrain::read(text).stage())
}

/// What it works with.
pub struct Settings {
    /// How long the fabric is given to move away.
    pub settle: Duration,
    /// What the store said at the start.
    pub stored: Option<String>,
    /// Who tells the speaker.
    pub reconcile: Reconcile,
    /// Who keeps it over a restart.
    pub ipam: Ipam,
    /// Where it is kept that it happened.
    pub history: History,
}

/// The way to the task. Cheap to clone.
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
    /// The Node stands so now, as far as that is known.
    Cordon {
        cordon: Option<Cordon>,
        answer: oneshot::Sender<Result<(), Failure>>,
    },
}

/// The state of the drain.
#[derive(Clone, Debug)]
struct DrainState {
    phase: DrainPhase,
    /// Of a node that is not undrained.
    cause: Option<DrainCause>,
    /// How the Node stands, where that is followed and known.
    cordon: Option<Cordon>,
    /// The cordon does not count.
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
    /// Starts the task. What was under way when the agent stopped goes on.
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

    /// Begins to leave the fabric. What is under way or done already stays so, and its text too; what a cordon has begun is the operator's from now on.
    pub async fn drain(&self, message: String) -> Result<DrainStatus, Failure> {
        self.order(|answer| DrainCommand::Drain { message, answer }).await
    }

    /// Says how the Node stands in Kubernetes; `None` if that is not known any more.
    pub async fn cordon(&self, cordon: Option<Cordon>) -> Result<DrainStatus, Failure> {
        self.order(|answer| DrainCommand::Cordon { cordon, answer }).await
    }

    /// Comes back, whoever drained it.
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

    /// How far this node has left the fabric.
    pub fn status(&self) -> DrainStatus {
        self.state.borrow().status()
    }

    /// The same, once nothing is under way.
    pub async fn settled(&self) -> Result<DrainStatus, Failure> {
        let mut state = self.state.clone();
        let settled = state.wait_for(|state| state.phase.is_settled()).await;
        settled.map(|state| state.status()).map_err(|_| stopping())
    }

    /// Ends the task where it is, and lets go whoever waits for it: the agent stops.
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
            // An order ends a step wherever it is: every step may be begun again.
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
                    "this node, drained as it is cordoned in Kubernetes, stays so for an operator".to_owned(),
                );
                self.state.send_modify(|state| state.cause = Some(cause));
                Ok(())
            }
        }
    }

    async fn undrain(&mut self, phase: DrainPhase) -> Result<(), Failure> {
        let DrainState { cause, cordon, is_overruled, .. } = *self.state.borrow();
        // The cordon that drained it, or is about to, would do so again at once.
        let overrules = cause == Some(DrainCause::Cordon) || matches!(cordon, Some(Cordon::Yes { .. }));
        if phase != DrainPhase::Undrained {
            return self.undo(overrules, "this node is brought back by an operator").await;
        }
        if overrules && !is_overruled {
            self.store(Some(&StoredDrain { overruled: true, ..StoredDrain::default() })).await?;
            self.record_event(
                "this node stays, for an operator, although it is cordoned in Kubernetes".to_owned(),
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
                let why = "this node is drained: it is cordoned in Kubernetes, and its pods have gone";
                self.begin(DrainCause::Cordon, CORDONED.to_owned(), why).await
            }
            CordonAction::Undrain => {
                self.undo(false, "this node is brought back: it is not cordoned in Kubernetes any more").await
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

    /// Stands otherwise from now on, with the Node as it is.
    fn set_state(&self, state: DrainState) {
        let cordon = self.state.borrow().cordon;
        self.state.send_replace(DrainState { cordon, ..state });
    }

    /// What a phase consists of, and then the next.
    async fn step(&mut self, phase: DrainPhase) {
        let left = match phase {
            DrainPhase::Announcing => self.announce().await,
            DrainPhase::Withdrawing => self.withdraw().await,
            DrainPhase::Undrained | DrainPhase::Drained => None,
        };
        if left.is_none() {
            // The agent stops. Nothing more is to be done, and nobody is to be told that it is.
            std::future::pending::<()>().await;
        }
    }

    async fn announce(&mut self) -> Option<()> {
        let left = self.reconcile.leave(DrainStage::Announcing).await?;
        self.wait_advertised(&left, "that this node leaves").await;
        // Who began in the middle of a restart has no session yet, and nobody who could move away.
        // An order that changes nothing begins this step again, and the time does not.
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
            "the fabric had {} s to move away; of {} prefixes of this node peers know another way to {alternatives}",
            self.settle.as_secs(),
            left.prefixes.len()
        ));
        Some(())
    }

    async fn withdraw(&mut self) -> Option<()> {
        let left = self.reconcile.leave(DrainStage::Withdrawn).await?;
        self.wait_advertised(&left, "that nothing leads here any more").await;
        let (message, cause) = {
            let state = self.state.borrow();
            (state.message.clone(), state.cause.unwrap_or_default())
        };
        self.reconcile.leave(DrainStage::Down { message: message.clone() }).await?;
        if let Err(failure) =
            self.store(Some(&StoredDrain { message, down: true, cause, overruled: false })).await
        {
            // A restart then goes the whole way again.
            self.fault(failure.to_string());
        }
        self.next(DrainPhase::Drained, |_| {});
        self.record_event("this node is drained: no session is left".to_owned());
        Some(())
    }

    async fn wait_advertised(&mut self, left: &DrainInput, what: &str) {
        let Some(speaker) = &left.speaker else { return };
        if timeout(PATIENCE, speaker.wait_all_advertised()).await.is_err() {
            self.fault(format!("not every peer had taken {what} after {} s", PATIENCE.as_secs()));
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

/// How many of this node's prefixes some peer has another way to, whether this node would take it or not. A path through this
/// node's own AS may lead straight back here, and does not count.
async fn alternatives(speaker: &SpeakerHandle, left: &DrainInput) -> u64 {
    let mut known = 0;
    for prefix in &left.prefixes {
        let Ok(explained) = speaker.explain(*prefix).await else { break };
        let others = explained.paths.iter().map(|path| &path.route).filter(|route| route.peer.is_some());
        known += u64::from(others.into_iter().any(|route| !as_path_contains(&route.as_path, left.local_as)));
    }
    known
}

/// Whether an AS_PATH as it is printed has an AS in it.
fn as_path_contains(as_path: &str, asn: u32) -> bool {
    as_path.split(|c: char| !c.is_ascii_digit()).any(|word| word.parse() == Ok(asn))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_own_as_is_found_in_sequences_and_sets_and_not_in_longer_numbers() {
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
    fn what_is_stored_says_where_a_restart_begins() {
        let text = |stored: &StoredDrain| serde_json::to_string(stored).unwrap();
        let mut stored = StoredDrain { message: "new disk".to_owned(), ..StoredDrain::default() };
        assert_eq!(stage(None), DrainStage::Active);
        assert_eq!(stage(Some(&text(&stored))), DrainStage::Announcing);
        stored.down = true;
        assert_eq!(stage(Some(&text(&stored))), DrainStage::Down { message: "new disk".to_owned() });
        assert_eq!(stage(Some("{\"later\": 1}")), DrainStage::Announcing, "drained all the same");
        let overruled = StoredDrain { overruled: true, ..StoredDrain::default() };
        assert_eq!(stage(Some(&text(&overruled))), DrainStage::Active, "brought back");
    }
}
