//! Delays between attempts to reach an API server that did not answer.
//!
//! A cluster has only a few replicas, so they may retry often. A pod that waits for an address
//! should not also wait for a long pause. (Agents, of which there are thousands, wait longer.)

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use kube::runtime::utils::Backoff;

/// The delay after the first failure.
const FIRST: Duration = Duration::from_millis(200);
/// The longest delay.
const LONGEST: Duration = Duration::from_secs(2);

/// An endless series of delays: each one is twice the previous one, with jitter, up to a bound.
pub struct Delays(ExponentialBackoff);

impl Default for Delays {
    fn default() -> Self {
        let builder = ExponentialBuilder::new().with_min_delay(FIRST).with_max_delay(LONGEST);
        Delays(builder.with_factor(2.0).with_jitter().without_max_times().build())
    }
}

impl Iterator for Delays {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next()
    }
}

impl Backoff for Delays {
    fn reset(&mut self) {
        *self = Delays::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_a_bound_and_reset() {
        let mut delays = Delays::default();
        // Jitter at most doubles a delay.
        assert!(delays.next().is_some_and(|first| first >= FIRST && first <= 2 * FIRST));
        assert!(delays.by_ref().take(100).all(|delay| delay <= 2 * LONGEST));
        assert!(delays.next().is_some_and(|later| later >= LONGEST));
        delays.reset();
        assert!(delays.next().is_some_and(|first| first <= 2 * FIRST));
    }
}
