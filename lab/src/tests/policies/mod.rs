//! Network policies with real agents, a real API server, real routers, and traffic of pods.
//!
//! ```text
//! world    nodes on a cluster, pods with labels, policies
//! traffic  servers of pods, and single connections with their outcome
//! table    the expected outcome of each connection
//! kube     every kind of peer, port, tier and direction
//! tap      marked packets that arrive in a namespace
//! order    packets during starts of pods, deaths of the agent and edits of policies
//! audit    who may set the audit mode, and its effect
//! faults   rules that vanish, an absent API server, policies that this version cannot read
//! limits   one tenant writes beyond every bound; the other tenant's pods start and connect
//! standalone  policies in a folder of manifests, without an API server
//! ```

mod audit;
mod faults;
mod kube;
mod limits;
mod order;
mod standalone;
mod table;
pub(super) mod tap;
mod traffic;
mod world;

use super::{Context, Test, Verdict};

pub(super) const TESTS: &[Test] = &[kube::TEST, order::TEST, faults::TEST, limits::TEST, standalone::TEST];
