//! The routing tables: Adj-RIB-In, the decision process, Adj-RIB-Out (RFC 4271 §3.2, §9).

mod facts;

pub use facts::{Counts, FibPath, Origination, RibConfig, RibPeer, RouteChange, SessionFacts, UpdateOutcome};
