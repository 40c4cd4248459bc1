//! From what is wanted and what the host is like to what the host should have: a pure function.
//!
//! The slow path ([`types::Plan`]) is computed anew whenever the intent, the host's links or a session changes; the fast path
//! ([`types::PodPlan`]) only reads the plan that is in force, so that a pod costs the same with 10 others as with 1,000.

pub mod types;

pub use types::*;
