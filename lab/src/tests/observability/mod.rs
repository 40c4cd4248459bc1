//! What a node shows to Prometheus and what is made of it: metrics, alert rules.

mod rules;

use super::Test;

pub(super) const TESTS: &[Test] = &[rules::TEST];

/// Debian packages of these tests.
pub(super) const PACKAGES: [&str; 1] = ["prometheus"];
