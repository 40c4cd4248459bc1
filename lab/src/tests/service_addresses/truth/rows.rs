//! The rows: facts of an address on a node, each with the state that they lead to. The names are
//! those of `agent/src/services/truth_tests.rs`, which has every combination.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use trunkline_api::control::AdvertisementState;
use trunkline_api::control::WithheldReason::{self, *};

use super::NODES;

/// The state of an address on a node: in the node's router, and in the node's agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Advertised,
    /// Advertised with GRACEFUL_SHUTDOWN.
    Leaving(WithheldReason),
    Withheld(WithheldReason),
    /// Advertised since before the restart of the agent.
    Retained,
}

use State::{Advertised, Leaving, Retained, Withheld};

impl State {
    /// The state that the agent reports.
    pub(super) fn reported(self) -> AdvertisementState {
        match self {
            Advertised => AdvertisementState::Advertised,
            Leaving(_) => AdvertisementState::ShuttingDown,
            Withheld(_) => AdvertisementState::Withheld,
            Retained => AdvertisementState::Retained,
        }
    }

    /// The state in the node's router.
    pub(super) fn routed(self) -> AdvertisementState {
        match self {
            Retained => AdvertisementState::Advertised,
            other => other.reported(),
        }
    }

    /// The reason that the agent reports.
    pub(super) fn reason(self) -> Option<WithheldReason> {
        match self {
            Advertised | Retained => None,
            Leaving(reason) | Withheld(reason) => Some(reason),
        }
    }
}

/// A row of the truth table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub name: &'static str,
    pub state: State,
}

const fn row(name: &'static str, state: State) -> Row {
    Row { name, state }
}

// Endpoints, policy Cluster.
pub(super) const HERE: Row = row("Cluster, ready here", Advertised);
pub(super) const ELSEWHERE: Row = row("Cluster, ready elsewhere only", Advertised);
pub(super) const NONE_READY: Row = row("Cluster, no ready endpoint", Withheld(NoEndpoint));
pub(super) const ALL_TERMINATE: Row = row("Cluster, every endpoint terminates", Advertised);

// Endpoints, policy Local.
pub(super) const LOCAL: Row = row("Local, ready here", Advertised);
pub(super) const LOCAL_ELSEWHERE: Row = row("Local, ready elsewhere only", Withheld(NoLocalEndpoint));
pub(super) const LOCAL_LAST: Row = row("Local, the last one here terminates", Leaving(Terminating));
pub(super) const LOCAL_LEFT: Row = row("… after gracefulShutdownSeconds", Withheld(Terminating));
pub(super) const LOCAL_NODE: Row = row("Local, an endpoint with the node's address", Advertised);
pub(super) const LOCAL_NO_ROUTE: Row = row("Local, the pod's host route is gone", Withheld(NoHostRoute));

// The policy changes.
pub(super) const NOW_LOCAL: Row = row("Local since a moment ago", Leaving(NoLocalEndpoint));
pub(super) const NOW_LOCAL_LEFT: Row =
    row("Local since gracefulShutdownSeconds ago", Withheld(NoLocalEndpoint));

// The node.
pub(super) const EXCLUDED: Row = row("excluded", Leaving(NodeExcluded));
pub(super) const EXCLUDED_LEFT: Row = row("excluded, after gracefulShutdownSeconds", Withheld(NodeExcluded));
pub(super) const EXCLUDED_ADVERTISES: Row = row("excluded, excludedNodes: Advertise", Advertised);
pub(super) const CORDONED: Row = row("cordoned, cordonedNodes: Withdraw", Leaving(NodeCordoned));
pub(super) const CORDONED_LEFT: Row = row("cordoned, after gracefulShutdownSeconds", Withheld(NodeCordoned));
pub(super) const CORDONED_ADVERTISES: Row = row("cordoned, cordonedNodes: Advertise", Advertised);
pub(super) const NOT_SELECTED_NODE: Row =
    row("nodeSelector does not select the node", Leaving(NodeNotSelected));
pub(super) const NOT_SELECTED_NODE_LEFT: Row =
    row("nodeSelector, after gracefulShutdownSeconds", Withheld(NodeNotSelected));
pub(super) const DRAINED: Row = row("drained", Withheld(NodeDrained));

// The reason ends before the withdrawal.
pub(super) const RETURNED: Row = row("the reason ends during the graceful shutdown", Advertised);

// Selection.
pub(super) const NOT_SELECTED: Row = row("no advertisement selects the Service", Withheld(NotSelected));
pub(super) const NOT_IN_POOL: Row = row("no ServicePool has the address", Withheld(NotInPool));
pub(super) const ALLOWED: Row = row("External, inside of externalCIDRs", Advertised);
pub(super) const NOT_ALLOWED: Row = row("External, outside of externalCIDRs", Withheld(NotAllowed));

// The restart of the agent.
pub(super) const KEPT: Row = row("the agent restarts while the API server is away", Retained);

/// The routers: FRR for node1 and node2, BIRD for node3.
const ROUTERS: [&str; 3] = ["FRR", "FRR", "BIRD"];

/// The least number of rows that the test must see.
const AT_LEAST: usize = 20;

/// The rows that were seen, and the routers that showed each.
#[derive(Debug, Default)]
pub(super) struct SeenRows(RefCell<BTreeMap<&'static str, BTreeSet<&'static str>>>);

impl SeenRows {
    /// Records the row of each node.
    pub(super) fn add(&self, rows: [&Row; NODES.len()]) {
        let mut seen = self.0.borrow_mut();
        for (row, router) in rows.into_iter().zip(ROUTERS) {
            seen.entry(row.name).or_default().insert(router);
        }
    }

    /// The number of rows that both routers showed.
    pub(super) fn count(&self) -> Result<usize> {
        let seen = self.0.borrow();
        let missing: Vec<_> = seen.iter().filter(|(_, routers)| routers.len() < 2).collect();
        ensure!(missing.is_empty(), "rows that only one of FRR and BIRD showed: {missing:?}");
        ensure!(seen.len() >= AT_LEAST, "only {} rows: {:?}", seen.len(), seen.keys());
        Ok(seen.len())
    }
}
