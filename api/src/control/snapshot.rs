//! Everything that a live view shows, as it stands at one moment.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{AgentStatus, Peer, PodStatus};

/// How things stand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// Which run of the agent it is of.
    pub run: u64,
    /// How many changes of this run are in it: what [`super::Query::Watch`] asks for more than.
    pub number: u64,
    /// The agent at a glance.
    pub agent: AgentStatus,
    /// The BGP peers.
    pub peers: Vec<Peer>,
    /// The attached pods.
    pub pods: Vec<PodStatus>,
}

impl Snapshot {
    /// After so long an agent that is there answers although nothing has changed.
    pub const SILENCE: Duration = Duration::from_secs(15);
}
