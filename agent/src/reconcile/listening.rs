//! The speaker's listen addresses and their faults.
//!
//! The speaker binds and retries by itself ([`trunkline_bgp::net::ListenStatus`]). A task here
//! turns each change into one log line, one event and the text of `status`. It is a separate task,
//! because the search for the process that has the port takes time on a node with many processes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;
use trunkline_api::control::EventKind;
use trunkline_bgp::net::{ListenFault, ListenStatus};

use crate::change_notifier::ChangeNotifier;
use crate::history::History;
use crate::port_owner::port_owner;

/// A listen address of the speaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// The address.
    pub address: SocketAddr,
    /// The reason for which the speaker accepts no connections there, the remedy, and the start.
    pub fault: Option<(String, Instant)>,
}

/// The newest state of every configured address.
pub(super) type ListenAddresses = watch::Receiver<Arc<[ListenAddress]>>;

/// Follows the speaker's addresses until it stops.
pub(super) fn follow(
    mut speaker: watch::Receiver<Arc<[ListenStatus]>>,
    history: History,
    notifier: ChangeNotifier,
) -> ListenAddresses {
    // The first text does not name the process that has the port, so the start does not wait for
    // the search.
    let at_start = speaker.borrow().iter().map(|status| listening(status, None)).collect();
    let (sender, receiver) = watch::channel(at_start);
    speaker.mark_changed();
    tokio::spawn(async move {
        let mut before: Vec<ListenStatus> = Vec::new();
        while speaker.changed().await.is_ok() {
            let now: Vec<ListenStatus> = speaker.borrow_and_update().to_vec();
            let mut shown = Vec::with_capacity(now.len());
            for status in &now {
                let owner = match &status.fault {
                    Some(fault) if fault.in_use => owner_of(status.address.port()).await,
                    _ => None,
                };
                let state = listening(status, owner);
                let was = before.iter().find(|before| before.address == status.address);
                if was.map_or(status.fault.is_some(), |was| was.fault != status.fault) {
                    record_event(&state, &history);
                }
                shown.push(state);
            }
            before = now;
            sender.send_replace(shown.into());
            notifier.notify();
        }
    });
    receiver
}

fn record_event(state: &ListenAddress, history: &History) {
    let address = state.address;
    match &state.fault {
        Some((fault, _)) => {
            tracing::error!(%address, %fault, "incoming BGP connections are not accepted: the address is tried again");
            let text = format!("incoming BGP connections are not accepted at {address}: {fault}");
            history.record(EventKind::ListenFailed, None, None, text);
        }
        None => {
            tracing::info!(%address, "incoming BGP connections are accepted");
            let text = format!("incoming BGP connections are accepted at {address}");
            history.record(EventKind::Listening, None, None, text);
        }
    }
}

async fn owner_of(port: u16) -> Option<String> {
    // If the task cannot run, the text contains no process.
    tokio::task::spawn_blocking(move || port_owner(port)).await.ok().flatten()
}

fn listening(status: &ListenStatus, owner: Option<String>) -> ListenAddress {
    let fault = status.fault.as_ref().map(|fault| (words(fault, owner), fault.since));
    ListenAddress { address: status.address, fault }
}

/// The text: the failure, the process that has the port, and the remedy.
fn words(fault: &ListenFault, owner: Option<String>) -> String {
    let owner = owner.map(|owner| format!(", by {owner}")).unwrap_or_default();
    format!("{}{owner}: {}", fault.reason, fault.fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(fault: Option<&str>) -> Arc<[ListenStatus]> {
        #[expect(clippy::disallowed_methods, reason = "the event has no fixed time")]
        let since = Instant::now();
        let fault = fault.map(|reason| ListenFault {
            reason: reason.to_owned(),
            fix: "stop it".to_owned(),
            in_use: false,
            since,
        });
        [ListenStatus { address: "0.0.0.0:179".parse().unwrap(), fault }].into()
    }

    #[tokio::test]
    async fn each_change_is_one_event() {
        let (speaker, receiver) = watch::channel(status(Some("taken")));
        let history = History::default();
        let mut events = history.subscribe(0);
        let mut shown = follow(receiver, history.clone(), ChangeNotifier::default());
        assert_eq!(
            shown.borrow()[0].fault.as_ref().unwrap().0,
            "taken: stop it",
            "the fault is shown from the start"
        );
        let first = events.next().await.unwrap().events;
        assert_eq!((first.len(), first[0].kind), (1, EventKind::ListenFailed));
        assert!(first[0].text.contains("0.0.0.0:179: taken: stop it"), "{}", first[0].text);

        speaker.send_replace(status(None));
        let second = events.next().await.unwrap().events;
        assert_eq!((second.len(), second[0].kind), (1, EventKind::Listening));
        shown.wait_for(|shown| shown[0].fault.is_none()).await.unwrap();
    }

    #[tokio::test]
    async fn an_address_bound_at_start_causes_no_event() {
        let (speaker, receiver) = watch::channel(status(None));
        let history = History::default();
        let shown = follow(receiver, history.clone(), ChangeNotifier::default());
        drop(speaker);
        assert!(shown.borrow()[0].fault.is_none());
        tokio::task::yield_now().await;
        assert!(history.since(0).events.is_empty());
    }
}
