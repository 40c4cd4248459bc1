//! `trunkline`: the node's agent and the operator's commands. [`trunkline_agent::agent`] has a
//! diagram of the agent's tasks and their channels.

use std::process::ExitCode;

use clap::Parser;
use trunkline_agent::agent;
use trunkline_cli::commands::{self, Cli, Command};
use trunkline_cli::{bundle, check, hybridnet, install};

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Agent { config, check: true, .. } => check::check(&config),
        Command::Agent { config, check: false, beside_hybridnet: true } => agent::run(&config),
        Command::Agent { config, .. } => hybridnet::refuse_if_running().and_then(|()| agent::run(&config)),
        Command::InstallCni { install, beside_hybridnet: true } => install::install(&install),
        Command::InstallCni { install, .. } => {
            hybridnet::refuse_if_running().and_then(|()| install::install(&install))
        }
        Command::UninstallCni(place) => install::uninstall(&place),
        Command::Completions { shell } => commands::complete(shell),
        Command::Migrate(from) => commands::convert(&from),
        Command::SupportBundle(bundle) => bundle::write(&bundle),
        Command::Doctor(doctor) => {
            return commands::examine(&doctor).map_or_else(failure, ExitCode::from);
        }
        question => commands::run(question),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure(error),
    }
}

fn failure(error: anyhow::Error) -> ExitCode {
    eprintln!("trunkline: {error:#}");
    ExitCode::FAILURE
}
