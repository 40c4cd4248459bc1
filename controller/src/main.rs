//! `trunkline-controller`: addresses for a whole cluster, the books of nodes and quotas, the admission webhooks. The tasks and what is
//! between them are drawn in [`trunkline_controller`].

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
