//! Behaviour that agent and controller share as daemons; nothing about networks.
//!
//! - [`apiserver`]: the client of the API server, which notices a dead connection.
//! - [`connections`]: limits on the clients of a listener.
//! - [`errors`]: an error with its sources as text.
//! - [`list_limit`]: lists of the API server in parts of bounded size.
//! - [`logging`]: one line per event on standard error.
//! - [`http`]: `/metrics`, `/healthz` and `/readyz`.
//! - [`metrics`]: from the catalogue's declarations to Prometheus' text format.
//! - [`outbound`]: requests to servers other than the API server, with the same detection of a dead
//!   connection.
//! - [`panics`]: the reaction to a panic.
//! - [`versions`]: versions of the API server's objects, and the detection of a restored etcd.

pub mod apiserver;
pub mod connections;
pub mod errors;
pub mod http;
pub mod list_limit;
pub mod logging;
pub mod metrics;
pub mod outbound;
pub mod panics;
pub mod versions;
