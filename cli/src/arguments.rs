//! Arguments that several commands share.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::install::InstallPaths;

/// Arguments of a request to the agent.
#[derive(Debug, Args)]
pub struct ClientArgs {
    /// Socket of the agent.
    #[arg(long, value_name = "PATH", default_value = trunkline_api::attach::DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// The format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A table for people.
    Table,
    /// JSON for programs; field names do not change.
    Json,
}

/// The files of this host.
#[derive(Clone, Debug, Args)]
pub struct HostArgs {
    /// Configuration file of the agent.
    #[arg(long, value_name = "FILE", default_value = "/etc/trunkline/agent.yaml")]
    pub config: PathBuf,
    /// Socket of the agent; by default from the configuration.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Folders of the container runtime's plugins and configurations.
    #[command(flatten)]
    pub place: InstallPaths,
}
