//! `trunkline-cni`, the plugin that a container runtime runs for every container.
//!
//! It holds no state and touches no network: it reads what the runtime says (environment and standard input), asks
//! the agent over its socket, hands it the container's network namespace as a descriptor, and prints the
//! answer in the shape of the CNI version that was asked for.
//!
//! ```text
//!  CNI_… variables ── environment ─┐                  ┌─ result ── stdout
//!  standard input ─ configuration ─┴─ command ─ agent ┴─ error ─── stdout, exit status 1
//! ```
//!
//! CNI 0.4.0, 1.0.0 and 1.1.0: ADD, DEL, CHECK and VERSION, from 1.1.0 on GC and STATUS too. It may stand anywhere
//! in a chain: what plugins before it made (`prevResult`) is kept, its own interface is added behind.
//!
//! Started once per container, it is small and blocking, and has no runtime to set up.

mod agent;
mod bandwidth;
mod command;
mod configuration;
mod environment;
mod namespace;
mod result;
mod wanted;

use std::io::{Read, Write};
use std::process::ExitCode;

use serde_json::json;
use trunkline_api::attach::{Code, Failure};

use crate::command::COMMANDS;
use crate::configuration::{NEWEST, VERSIONS};

/// More than any runtime sends; a bound, so that a runtime's mistake does not fill memory.
const MAX_STDIN: u64 = 16 << 20;

/// Carries out the command that the environment names.
pub fn run() -> ExitCode {
    let _noted = agent::note_start();
    let mut input = Vec::new();
    let command = environment::variable("CNI_COMMAND");
    let outcome = match command {
        Ok(Some(command)) => read_stdin(&mut input).and_then(|()| command::run(&command, &input)),
        Ok(None) => {
            eprintln!("{}", about());
            Err(Failure::new(
                Code::InvalidEnvironment,
                "CNI_COMMAND is missing: this program is run by a container runtime, or by cnitool",
            ))
        }
        Err(failure) => Err(failure),
    };
    let (text, status) = match outcome {
        Ok(None) => return ExitCode::SUCCESS,
        Ok(Some(result)) => (result.to_string(), ExitCode::SUCCESS),
        Err(failure) => (error_text(&failure, &input), ExitCode::FAILURE),
    };
    // Nobody is left to be told when standard output is closed; the exit status still says it.
    match writeln!(std::io::stdout(), "{text}") {
        Ok(()) => status,
        Err(_) => ExitCode::FAILURE,
    }
}

/// What it says of itself to who runs it by hand.
pub fn about() -> String {
    format!(
        "trunkline-cni {}: CNI plugin of Trunkline\nCNI versions: {}\nCommands (CNI_COMMAND): {}",
        env!("CARGO_PKG_VERSION"),
        VERSIONS.join(", "),
        COMMANDS.join(", ")
    )
}

fn read_stdin(input: &mut Vec<u8>) -> Result<(), Failure> {
    let stdin = std::io::stdin();
    match stdin.lock().take(MAX_STDIN + 1).read_to_end(input) {
        Ok(_) if input.len() as u64 > MAX_STDIN => Err(Failure::new(
            Code::InvalidContent,
            format!("the network configuration on standard input is longer than {MAX_STDIN} bytes"),
        )),
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::new(
            Code::Io,
            format!("cannot read the network configuration from standard input: {error}"),
        )),
    }
}

/// The error result, in the version that was asked for where that could be read.
fn error_text(failure: &Failure, input: &[u8]) -> String {
    let mut error = json!({
        "cniVersion": configuration::version_of(input).unwrap_or_else(|| NEWEST.to_owned()),
        "code": u32::from(failure.code),
        "msg": failure.message,
    });
    if !failure.details.is_empty() {
        error["details"] = failure.details.as_str().into();
    }
    error.to_string()
}
