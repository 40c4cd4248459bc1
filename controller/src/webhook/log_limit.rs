//! Limit on log lines for each source: any host that reaches the webhook can send requests.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;
use trunkline_daemon::connections::Source;

/// Highest number of lines of one source in a burst.
const BURST: u32 = 200;
/// Number of lines per second of one source after a burst.
const RATE: f64 = 20.0;
/// Number of sources with their own count; all others share one count.
const SOURCES: usize = 256;

/// Counts the lines of each source.
#[derive(Debug, Default)]
pub(super) struct LogLimit(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    sources: HashMap<Source, Count>,
    others: Option<Count>,
}

/// A token bucket.
#[derive(Debug)]
struct Count {
    left: f64,
    at: Instant,
    /// Number of lines omitted since the last one.
    omitted: u64,
}

impl Count {
    fn new(now: Instant) -> Self {
        Count { left: BURST.into(), at: now, omitted: 0 }
    }

    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + passed * RATE).min(BURST.into());
        self.at = now;
    }

    fn admits(&mut self, now: Instant) -> Option<u64> {
        self.refill(now);
        if self.left < 1.0 {
            self.omitted += 1;
            return None;
        }
        self.left -= 1.0;
        Some(std::mem::take(&mut self.omitted))
    }
}

impl LogLimit {
    /// Whether to log a line of this source now; if so, the number of lines omitted before it.
    pub(super) fn admits(&self, source: Source, now: Instant) -> Option<u64> {
        let counts = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.sources.len() >= SOURCES && !counts.sources.contains_key(&source) {
            // Forget a source whose bucket is full again.
            counts.sources.retain(|_, count| {
                count.refill(now);
                count.left < BURST.into()
            });
        }
        if counts.sources.len() < SOURCES || counts.sources.contains_key(&source) {
            return counts.sources.entry(source).or_insert_with(|| Count::new(now)).admits(now);
        }
        counts.others.get_or_insert_with(|| Count::new(now)).admits(now)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use super::*;

    fn source(number: u32) -> Source {
        Source::of(IpAddr::V4(Ipv4Addr::from(number)))
    }

    #[test]
    fn log_limit_is_per_source() {
        let (limit, now) = (LogLimit::default(), Instant::now());
        let logged = (0..10_000).filter(|_| limit.admits(source(1), now).is_some()).count();
        assert_eq!(logged, BURST as usize);
        assert_eq!(limit.admits(source(2), now), Some(0));
        let later = now + Duration::from_secs(1);
        let lines: Vec<u64> = (0..100).filter_map(|_| limit.admits(source(1), later)).collect();
        assert_eq!((lines.len(), lines[0], lines[1]), (RATE as usize, 9_800, 0));
    }

    #[test]
    fn sources_beyond_the_limit_share_one_count() {
        let (limit, now) = (LogLimit::default(), Instant::now());
        let logged = (0..100_000).filter(|number| limit.admits(source(*number), now).is_some()).count();
        assert_eq!(logged, SOURCES + BURST as usize);
        assert_eq!(limit.0.lock().unwrap().sources.len(), SOURCES);
        // A minute later the first sources are forgotten, and there is room again.
        let later = now + Duration::from_secs(60);
        assert!(limit.admits(source(200_000), later).is_some());
        assert!(limit.0.lock().unwrap().sources.len() < SOURCES);
    }
}
