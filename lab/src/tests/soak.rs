//! `cargo lab soak`: the long rounds of tests that have rounds. The suite runs short rounds,
//! because each capability has only a few minutes in the suite (docs/design.md has the budget).

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::{Context, Test, all, lanes, need_packages, report, time};
use crate::fabric::Place;
use crate::packages;
use crate::progress::say;

/// Tests with [`Context::rounds`] or another use of [`Context::long`].
const LONG: [&str; 6] =
    ["check/fuzz", "e2e/smoke", "kube/leader-kill", "kube/outage", "policies/limits", "policies/order"];

/// The end of a soak in which no test fails.
#[derive(Clone, Copy)]
pub(crate) enum Until {
    Rounds(u32),
    /// No round begins after this time.
    Elapsed(Duration),
}

/// Repeats the tests whose name contains one of the filters (all, if there are none) until the end
/// or the first failure. Returns whether none failed.
pub(crate) fn run(place: &Place, filters: &[String], until: Until) -> Result<bool> {
    packages::need_root("cargo lab soak")?;
    let chosen: Vec<&'static Test> = all()
        .into_iter()
        .filter(|test| LONG.contains(&test.name))
        .filter(|test| filters.is_empty() || filters.iter().any(|part| test.name.contains(part.as_str())))
        .collect();
    if chosen.is_empty() {
        bail!("no test with long rounds contains {}; there are {}", filters.join(" or "), LONG.join(", "));
    }
    need_packages(&chosen)?;
    let context = Context { long: true, ..Context::new(place, false) };
    let began = Instant::now();
    for round in 1_u32.. {
        let more = match until {
            Until::Rounds(rounds) => round <= rounds,
            Until::Elapsed(limit) => began.elapsed() < limit,
        };
        if !more {
            break;
        }
        say(&format!("round {round}, after {}", time(began.elapsed())));
        if !report(&lanes::run(&context, &chosen)?) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod unit {
    #[test]
    fn long_tests_exist() {
        for name in super::LONG {
            assert!(super::all().iter().any(|test| test.name == name), "{name}");
        }
    }
}
