//! The pace of work that others can request: users who write policies must not keep all nodes busy.

use std::time::Duration;

use tokio::time::Instant;

/// The shortest time between two beginnings, or from an end to a beginning. It doubles while requests
/// keep coming.
#[derive(Debug)]
pub struct Pace {
    first: Duration,
    longest: Duration,
    /// The last beginning or end, and the time from there until the next beginning.
    last: Option<(Instant, Duration)>,
}

impl Pace {
    /// A pace from `first` to `longest`.
    pub fn new(first: Duration, longest: Duration) -> Pace {
        Pace { first, longest, last: None }
    }

    /// The time until which the next work waits.
    pub fn wait(&self) -> Option<Instant> {
        let (began, pace) = self.last?;
        Some(began + pace).filter(|until| *until > Instant::now())
    }

    /// The work begins.
    pub fn begin(&mut self) {
        let now = Instant::now();
        let pace = match self.last {
            Some((began, pace)) if now < began + 2 * pace => (2 * pace).min(self.longest),
            _ => self.first,
        };
        self.last = Some((now, pace));
    }

    /// The work ends: the pause counts from now.
    pub fn end(&mut self) {
        if let Some((last, _)) = &mut self.last {
            *last = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn lists_are_rare_while_new_keys_keep_coming() {
        let mut pace = Pace::new(SECOND, 10 * SECOND);
        let mut waits = Vec::new();
        for _ in 0..7 {
            let began = Instant::now();
            if let Some(until) = pace.wait() {
                tokio::time::sleep_until(until).await;
            }
            waits.push(began.elapsed().as_secs());
            pace.begin();
        }
        assert_eq!(waits, [0, 1, 2, 4, 8, 10, 10]);
        tokio::time::sleep(20 * SECOND).await;
        assert_eq!(pace.wait(), None);
        pace.begin();
        assert_eq!(pace.wait().unwrap() - Instant::now(), SECOND, "the first request for a while");
    }

    #[tokio::test(start_paused = true)]
    async fn the_pause_after_long_work_counts_from_its_end() {
        let mut pace = Pace::new(SECOND, 10 * SECOND);
        let mut waits = Vec::new();
        for _ in 0..4 {
            pace.begin();
            tokio::time::sleep(30 * SECOND).await;
            pace.end();
            let until = pace.wait().unwrap();
            waits.push((until - Instant::now()).as_secs());
            tokio::time::sleep_until(until).await;
        }
        assert_eq!(waits, [1, 2, 4, 8]);
    }
}
