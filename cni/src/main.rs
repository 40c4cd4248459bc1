//! The program; [`trunkline_cni`] describes it.

use std::process::ExitCode;

fn main() -> ExitCode {
    trunkline_cni::run()
}
