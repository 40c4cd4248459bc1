//! `trunkline-controller`: cluster-wide addresses, node labels and quotas, and the admission
//! webhooks. The tasks and their connections are drawn in [`trunkline_controller`].

use std::process::ExitCode;

use clap::Parser;
use trunkline_controller::config::Config;
use trunkline_controller::controller;

fn main() -> ExitCode {
    match controller::run(Config::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("trunkline-controller: {error:#}");
            ExitCode::FAILURE
        }
    }
}
