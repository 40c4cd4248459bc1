//! `cargo lab bench`: Trunkline's figures next to the figures of existing software, measured in the
//! same run on the same machine. On an unknown machine only the ratio has a meaning.

pub(crate) mod attach;
pub(crate) mod clusters;
pub(crate) mod codec;
pub(crate) mod fib;
pub(crate) mod guard;
pub(crate) mod interfaces;
pub(crate) mod ipam;
pub(crate) mod l2;
pub(crate) mod memory;
pub(crate) mod policy;
pub(crate) mod scrape;
pub(crate) mod services;
pub(crate) mod speakers;
mod traffic;

use anyhow::Result;
use serde::Serialize;

use crate::progress::say;

/// A promised bound on a figure.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Bound {
    pub name: &'static str,
    pub value: f64,
    pub at_most: f64,
    pub met: bool,
}

impl Bound {
    pub(crate) fn at_most(name: &'static str, value: f64, at_most: f64) -> Self {
        // A value of 0 means that there was no measurement, so the promise is not kept.
        Self { name, value: crate::stats::round(value), at_most, met: value > 0.0 && value <= at_most }
    }
}

/// Warns if the machine has other load. Such load affects most the programs that often wait for a
/// processor, and no ratio corrects this.
pub(crate) fn warn_if_busy() {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = load.split_whitespace().next().and_then(|l| l.parse().ok()).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if load > cores as f64 * 0.5 {
        say(&format!(
            "  note: this machine is busy (load {load} on {cores} cores); figures of a quiet one will differ"
        ));
    }
}

/// Prints a benchmark's result as JSON or as text. Returns whether its bounds were met.
pub(crate) fn report<T: Serialize>(json: bool, result: &T, words: &str, bounds: &[Bound]) -> Result<bool> {
    if json {
        println!("{}", serde_json::to_string(result)?);
    } else {
        println!("\n{words}");
    }
    for bound in bounds {
        let word = if bound.met { "met" } else { "NOT met" };
        say(&format!("  {word:<8} {}: {} (at most {})", bound.name, bound.value, bound.at_most));
    }
    Ok(bounds.iter().all(|b| b.met))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_measured_value_up_to_the_bound_meets_it() {
        assert!(Bound::at_most("b", 0.4, 0.4).met);
        assert!(!Bound::at_most("b", 0.41, 0.4).met);
        assert!(!Bound::at_most("b", 0.0, 0.4).met);
    }
}
