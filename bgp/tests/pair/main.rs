//! Whole speakers against each other, and against a scripted peer, on a virtual clock. The tests
//! cover every transition of the state machine, collisions, restarts and edits, without a socket
//! and without waiting.

#![expect(clippy::unwrap_used, reason = "a test may end where it expected something else")]

mod add_path;
mod bfd;
mod bmp;
mod causes;
mod chaos;
mod collision;
mod default_route;
mod dump;
mod edits;
mod faults;
mod fsm;
mod keys;
mod listing;
mod local_as;
mod long_lived;
mod net;
mod notified;
mod operator;
mod ranges;
mod refresh;
mod restart;
mod roles;
mod search;
mod sessions;
