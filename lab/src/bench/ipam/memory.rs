//! Address selection alone: `controller/benches/ipam.rs` measures it and prints a line `ipam NAME
//! VALUE` for each figure.

use std::fmt;

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::super::Bound;
use crate::fabric::Place;
use crate::product::cargo_with_log as cargo;
use crate::progress::step;

#[derive(Debug, Clone, Serialize)]
pub(super) struct Figures {
    /// Rate in a /12 that is 90 % allocated.
    allocations_per_second: f64,
    /// Octets for each free address of a subnet, and for each allocated address.
    octets_per_free_address: f64,
    octets_per_given_address: f64,
    /// Octets for each of 300,000 pods in sixteen subnets.
    octets_per_pod: f64,
    /// Additional octets for each of 100,000 IPInstances, in rows and indexes.
    octets_per_row: f64,
}

pub(super) fn measure(place: &Place) -> Result<Figures> {
    let home = place.state.join("bench/criterion");
    let home = home.to_str().context("a path in UTF-8")?;
    let args = ["bench", "--package", "trunkline-controller", "--bench", "ipam", "--", "--noplot"];
    let log = step("addresses in memory, a /12 that is 90 % full", || {
        cargo(place, "bench-ipam", &args, &[("CRITERION_HOME", home)])
    })?;
    Ok(Figures {
        allocations_per_second: figure(&log, "allocations_per_second")?,
        octets_per_free_address: figure(&log, "bytes_per_address_free")?,
        octets_per_given_address: figure(&log, "bytes_per_address_given")?,
        octets_per_pod: figure(&log, "bytes_per_pod")?,
        octets_per_row: figure(&log, "bytes_per_row")?,
    })
}

impl Figures {
    pub(super) fn bounds(&self) -> Vec<Bound> {
        let nanoseconds = 1e9 / self.allocations_per_second;
        vec![Bound::at_most("one allocation in a /12 that is 90 % full, in ns", nanoseconds, 1000.0)]
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "in memory: {:.0} allocations per second in a /12 that is 90 % full; {} octets per \
             free address, {} per allocated address, {} per pod of 300,000, {} for the rest of its \
             IPInstance",
            self.allocations_per_second,
            self.octets_per_free_address,
            self.octets_per_given_address,
            self.octets_per_pod,
            self.octets_per_row
        )
    }
}

fn figure(log: &str, name: &str) -> Result<f64> {
    let start = format!("ipam {name} ");
    let value =
        log.lines().find_map(|line| line.strip_prefix(&start)?.split_whitespace().next()?.parse().ok());
    value.with_context(|| format!("the bench printed no `{start}…`"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn figures_are_found_by_their_whole_name() {
        let log = "x\nipam bytes_per_pod 31.5 of 300000\nipam bytes_per_pod_and_more 7\n";
        assert_eq!(super::figure(log, "bytes_per_pod").ok(), Some(31.5));
        assert!(super::figure(log, "bytes").is_err());
    }
}
