//! The program; what it does is said in [`trunkline_cni`].

use std::process::ExitCode;

fn main() -> ExitCode {
    trunkline_cni::run()
}
