//! Whole speakers against each other, and against a scripted peer, on a virtual clock: every transition of the state
//! machine, collisions, restarts and edits, without a socket and without waiting.

mod net;
mod sessions;
