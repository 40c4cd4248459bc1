//! The whole state for a live view at one moment.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{AgentStatus, Peer, PodStatus, ServiceView};

/// State of the agent at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// Identifies the run of the agent.
    pub run: u64,
    /// Number of changes in this run so far: [`super::Query::Watch`] waits for a higher one.
    pub number: u64,
    /// Summary of the agent.
    pub agent: AgentStatus,
    /// The BGP peers.
    pub peers: Vec<Peer>,
    /// The attached pods.
    pub pods: Vec<PodStatus>,
    /// The first service addresses; see [`Snapshot::SERVICES`].
    #[serde(default)]
    pub services: Vec<ServiceView>,
    /// The number of all service addresses.
    #[serde(default)]
    pub service_count: usize,
}

impl Snapshot {
    /// Time after which the agent answers although nothing has changed.
    pub const SILENCE: Duration = Duration::from_secs(15);
    /// Maximum number of service addresses in a snapshot.
    pub const SERVICES: usize = 2000;
}
