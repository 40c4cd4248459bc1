//! The operator's commands, and the command line of the binary `trunkline`. `trunkline agent` runs
//! the daemon of [`trunkline_agent`].

mod anycast;
pub mod arguments;
pub mod bundle;
pub mod check;
pub mod client;
mod clock;
pub mod commands;
pub mod completions;
pub mod doctor;
mod events;
pub mod hybridnet;
pub mod install;
mod list;
pub mod migrate;
pub mod packet_path;
pub mod policies;
mod probes;
mod remote;
pub mod services;
mod settings;
pub mod show;
pub mod table;
pub mod watch;
mod ways_out;
