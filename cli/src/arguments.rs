//! Arguments that several commands have.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::install::InstallPaths;

/// How to ask the agent.
#[derive(Debug, Args)]
pub struct ClientArgs {
    /// The agent's socket.
    #[arg(long, value_name = "PATH", default_value = trunkline_api::attach::DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// How to print the answer.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// How an answer is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// For programs: field names stay.
    Json,
}

/// Where to look.
#[derive(Clone, Debug, Args)]
pub struct Where {
    /// The agent's configuration.
    #[arg(long, value_name = "FILE", default_value = "/etc/trunkline/agent.yaml")]
    pub config: PathBuf,
    /// The agent's socket; the configuration's unless said.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Where plugin and configuration of the container runtime are.
    #[command(flatten)]
    pub place: InstallPaths,
}
