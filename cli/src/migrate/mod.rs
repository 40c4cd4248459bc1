//! `trunkline migrate`: converts settings of another network to Trunkline's.
//!
//! The result is on standard output. Standard error has one line for each setting without a
//! counterpart, with the reason and the necessary action.

mod hybridnet;
mod output;
mod values;

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Subcommand;

/// The networks with a conversion.
#[derive(Debug, Subcommand)]
pub enum Migrate {
    /// Convert the values of hybridnet's Helm release to values of Trunkline's chart.
    ///
    /// Prints the values with the origin of each. Standard error has one line for each value of
    /// hybridnet without a counterpart.
    Hybridnet {
        /// Output of `helm get values RELEASE --all --output yaml`; `-` is standard input. A value
        /// that is missing has hybridnet's default.
        #[arg(long, value_name = "FILE")]
        values: PathBuf,
    },
}

/// The result of a conversion.
#[derive(Debug)]
pub struct Converted {
    /// Values of Trunkline's chart, as YAML with comments.
    pub values: String,
    /// One line for each value without a counterpart.
    pub notes: Vec<String>,
}

/// Reads the settings and converts them.
///
/// # Errors
/// The file cannot be read, is no YAML, or a value has the wrong type.
pub fn convert(from: &Migrate) -> anyhow::Result<Converted> {
    let Migrate::Hybridnet { values: path } = from;
    let (text, name) = if path == Path::new("-") {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).context("standard input cannot be read")?;
        (text, "standard input".to_owned())
    } else {
        let name = path.display().to_string();
        (std::fs::read_to_string(path).with_context(|| format!("{name} cannot be read"))?, name)
    };
    hybridnet::convert(&text).with_context(|| name)
}

#[cfg(test)]
mod tests;
