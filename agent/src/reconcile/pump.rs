//! Learned routes, from the speaker to the kernel.
//!
//! The pump asks the speaker for what changed and hands it to the kernel, a batch at a time, and asks again once the
//! kernel has taken it: a kernel that is slow holds back only the pump, and a prefix that changes meanwhile is
//! installed once.
//!
//! What has to happen *after* all changes up to now are installed is a [`Turn`]. To know when that is, the pump puts a
//! fence behind its request for changes: when the fence is answered and the request is not, there were none left.
//!
//! On its way the pump notes which next hop each peer announces in each family ([`Tiding::Announced`]): that is where
//! the default route of a family leads whose session runs over the other one.

use std::collections::BTreeMap;

use tokio::sync::mpsc;
use tokio::time::Instant;
use trunkline_bgp::net::{RouteChanges, SpeakerHandle, Stopped};
use trunkline_bgp::rib::RouteChange;
use trunkline_bgp::types::{Family, NextHop, PeerKey};

use crate::change_notifier::ChangeNotifier;
use crate::history::History;
use crate::kernel::{KernelError, KernelHandle};

/// Prefixes per batch.
const BATCH: usize = 4096;

/// What is done once all changes up to now are installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Say so: [`Tiding::Drained`].
    Drain(Family),
    /// The kernel wants every route again.
    Relearn,
    /// A session ended at this time: say when what followed from it is installed, by [`Tiding::Settled`].
    Settle(Instant),
}

/// What the pump tells, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiding {
    /// A peer announces another next hop in a family.
    Announced {
        /// The peer.
        peer: PeerKey,
        /// The family of the prefixes.
        family: Family,
        /// The next hop.
        next_hop: NextHop,
    },
    /// Every change from before [`Turn::Drain`] is installed, and every next hop in it was told.
    Drained(Family),
    /// Likewise for [`Turn::Settle`], with its time.
    Settled(Instant),
}

/// Moves routes until the speaker stops.
pub async fn run(
    speaker: SpeakerHandle,
    mut changes: RouteChanges,
    kernel: KernelHandle,
    history: History,
    mut turns: mpsc::UnboundedReceiver<Turn>,
    tidings: mpsc::UnboundedSender<Tiding>,
    notifier: ChangeNotifier,
) {
    let mut seen = BTreeMap::new();
    let mut due: Vec<Turn> = Vec::new();
    loop {
        let batch = if due.is_empty() {
            tokio::select! {
                batch = changes.next(BATCH) => match batch {
                    Ok(batch) => batch,
                    Err(Stopped) => return,
                },
                turn = turns.recv() => match turn {
                    Some(turn) => {
                        due.push(turn);
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
                    let mut turns = std::mem::take(&mut due).into_iter();
                    for turn in turns.by_ref() {
                        match turn {
                            Turn::Drain(family) => drop(tidings.send(Tiding::Drained(family))),
                            Turn::Settle(since) => drop(tidings.send(Tiding::Settled(since))),
                            Turn::Relearn => {
                                if speaker.tell_routes_again().await.is_err() {
                                    return;
                                }
                                break;
                            }
                        }
                    }
                    // What was asked for after `Relearn` waits until that has gone through.
                    due.extend(turns);
                    continue;
                }
            }
        };
        note(&batch, &mut seen, &tidings);
        history.learned(&batch);
        report(kernel.learned(batch).await);
        notifier.notify();
    }
}

fn report(outcome: Result<(), KernelError>) {
    if let Err(error) = outcome {
        tracing::error!(%error, "learned routes did not get into the kernel");
    }
}

fn note(
    batch: &[RouteChange],
    seen: &mut BTreeMap<(PeerKey, Family), NextHop>,
    tidings: &mpsc::UnboundedSender<Tiding>,
) {
    for change in batch {
        let family = Family::of(&change.prefix);
        for path in &change.paths {
            if seen.insert((path.peer, family), path.next_hop) != Some(path.next_hop) {
                let _ = tidings.send(Tiding::Announced { peer: path.peer, family, next_hop: path.next_hop });
            }
        }
    }
}
