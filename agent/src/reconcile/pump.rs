//! Transfers learned routes from the speaker to the kernel.
//!
//! The pump requests a batch of changes from the speaker and sends it to the kernel owner. It
//! requests the next batch after the kernel owner has applied this one. So a slow kernel delays
//! only the pump, and a prefix that changes meanwhile is installed once.
//!
//! The kernel owner knows no peers. The pump selects the paths of the imported peers
//! ([`Learned::route`]). If these peers change, the pump requests every route again
//! ([`PumpCommand::Relearn`]).
//!
//! A [`PumpCommand`] takes effect *after* all earlier changes are installed. To detect this, the
//! pump sends a fence after its request for changes. If the speaker answers the fence and not the
//! request, no changes were left.
//!
//! The pump also records the next hop of each peer in each family ([`PumpEvent::NextHopChanged`]).
//! A default route uses this next hop if the peer's session runs over the other family.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use trunkline_bgp::net::{RouteChanges, SpeakerHandle, Stopped};
use trunkline_bgp::rib::RouteChange;
use trunkline_bgp::types::{Family, NextHop, PeerKey};
use trunkline_datapath::kernel::{KernelError, KernelHandle};

use crate::change_notifier::ChangeNotifier;
use crate::history::History;
use crate::plan::Learned;

/// Maximum number of prefixes per batch.
const BATCH: usize = 4096;

/// A command that takes effect after all earlier changes are installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PumpCommand {
    /// Report it with [`PumpEvent::Drained`].
    Drain(Family),
    /// Send every route again, because the kernel needs them.
    Relearn,
    /// A session ended at this time. Report with [`PumpEvent::Settled`] when its consequences are
    /// installed.
    Settle(Instant),
}

/// Events of the pump, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PumpEvent {
    /// A peer advertises another next hop in a family.
    NextHopChanged {
        /// The peer.
        peer: PeerKey,
        /// The family of the prefixes.
        family: Family,
        /// The next hop.
        next_hop: NextHop,
    },
    /// Every change from before [`PumpCommand::Drain`] is installed, and every next hop in these
    /// changes was reported.
    Drained(Family),
    /// As [`PumpEvent::Drained`], for [`PumpCommand::Settle`] and with its time.
    Settled(Instant),
}

/// The kernel owner, and the imported peers.
pub struct Fib {
    /// The kernel owner.
    pub kernel: KernelHandle,
    /// The imported peers of the plan in force; none if no routes are imported.
    pub imported: watch::Receiver<Option<Arc<Learned>>>,
}

impl Fib {
    async fn install(&self, changes: &[RouteChange]) -> Result<(), KernelError> {
        let imported = self.imported.borrow().clone();
        match imported {
            Some(learned) => {
                self.kernel.learned(changes.iter().map(|change| learned.route(change)).collect()).await
            }
            None => Ok(()),
        }
    }
}

/// Transfers routes until the speaker stops.
pub async fn run(
    speaker: SpeakerHandle,
    mut changes: RouteChanges,
    fib: Fib,
    history: History,
    mut commands: mpsc::UnboundedReceiver<PumpCommand>,
    events: mpsc::UnboundedSender<PumpEvent>,
    notifier: ChangeNotifier,
) {
    let mut seen = BTreeMap::new();
    let mut due: Vec<PumpCommand> = Vec::new();
    loop {
        let batch = if due.is_empty() {
            tokio::select! {
                batch = changes.next(BATCH) => match batch {
                    Ok(batch) => batch,
                    Err(Stopped) => return,
                },
                command = commands.recv() => match command {
                    Some(command) => {
                        due.push(command);
                        continue;
                    }
                    None => return,
                },
            }
        } else {
            tokio::select! {
                biased;
                batch = changes.next(BATCH) => match batch {
                    Ok(batch) => batch,
                    Err(Stopped) => return,
                },
                answer = speaker.fence() => {
                    if answer.is_err() {
                        return;
                    }
                    let mut commands = std::mem::take(&mut due).into_iter();
                    for command in commands.by_ref() {
                        match command {
                            PumpCommand::Drain(family) => drop(events.send(PumpEvent::Drained(family))),
                            PumpCommand::Settle(since) => drop(events.send(PumpEvent::Settled(since))),
                            PumpCommand::Relearn => {
                                if speaker.resend_routes().await.is_err() {
                                    return;
                                }
                                break;
                            }
                        }
                    }
                    // Commands after `Relearn` wait until all its routes are installed.
                    due.extend(commands);
                    continue;
                }
            }
        };
        note(&batch, &mut seen, &events);
        history.learned(&batch);
        report(fib.install(&batch).await);
        notifier.notify();
    }
}

fn report(outcome: Result<(), KernelError>) {
    if let Err(error) = outcome {
        tracing::error!(%error, "learned routes were not installed in the kernel");
    }
}

fn note(
    batch: &[RouteChange],
    seen: &mut BTreeMap<(PeerKey, Family), NextHop>,
    events: &mpsc::UnboundedSender<PumpEvent>,
) {
    for change in batch {
        let family = Family::of(&change.prefix);
        for path in &change.paths {
            if seen.insert((path.peer, family), path.next_hop) != Some(path.next_hop) {
                let _ = events.send(PumpEvent::NextHopChanged {
                    peer: path.peer,
                    family,
                    next_hop: path.next_hop,
                });
            }
        }
    }
}
