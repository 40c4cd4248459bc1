//! `trunkline-cni`, the plugin that a container runtime runs for every container.
//!
//! It holds no state and changes no network. It reads the runtime's inputs (environment and
//! standard input) and sends a request to the agent over its socket, with the container's network
//! namespace as a descriptor. Then it prints the answer in the requested CNI version.
//!
//! ```text
//!  CNI_… variables ── environment ─┐                  ┌─ result ── stdout
//!  standard input ─ configuration ─┴─ command ─ agent ┴─ error ─── stdout, exit status 1
//! ```
//!
//! The plugin supports CNI 0.4.0, 1.0.0 and 1.1.0 with ADD, DEL, CHECK and VERSION, and from 1.1.0
//! on with GC and STATUS. It may be at any position in a chain: the result of previous plugins
//! (`prevResult`) is kept, and its own interface is added after it.
//!
//! The runtime starts it once per container, so it is small and blocking, without an async runtime.

mod agent;
mod bandwidth;
mod command;
mod configuration;
mod environment;
mod namespace;
mod options;
mod result;

use std::io::{Read, Write};
use std::process::ExitCode;

use serde_json::json;
use trunkline_api::attach::{Code, Failure};

use crate::command::COMMANDS;
use crate::configuration::{NEWEST, VERSIONS};

/// More than any runtime sends. The bound limits the memory that a faulty runtime can use.
const MAX_STDIN: u64 = 16 << 20;

/// Runs the command that the environment names.
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
    // With standard output closed, only the exit status reports the result.
    match writeln!(std::io::stdout(), "{text}") {
        Ok(()) => status,
        Err(_) => ExitCode::FAILURE,
    }
}

/// The text for a user who runs the plugin by hand.
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

/// The error result, in the requested version if it could be read.
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
