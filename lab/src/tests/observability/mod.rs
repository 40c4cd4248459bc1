//! What a node shows to Prometheus and what is made of it: metrics, alert rules, dashboards.

mod dashboards;
mod prometheus;
mod rules;
mod two_racks;

use super::Test;

#[cfg(test)]
pub(crate) use rules::{is_exported, named};

pub(super) const TESTS: &[Test] = &[rules::TEST, dashboards::TEST, two_racks::TEST];

/// Debian packages of these tests.
pub(super) const PACKAGES: [&str; 1] = ["prometheus"];
