//! The last hour of each peer, minute by minute: whether its session was up, and its number of
//! prefixes.
//!
//! An hour is written on changes and read on requests. A minute without a change equals the
//! previous minute. So an hour costs nothing while nothing happens. Minutes before the agent's
//! start are unknown, and stay empty.
//!
//! A peer needs [`MINUTES`] × 8 octets and its name, about 600 in all. With at most [`PEERS`] peers
//! this is well below 1 MB.

use std::collections::BTreeMap;

use serde::Serialize;
use tokio::time::Instant;

/// Number of stored minutes.
pub(super) const MINUTES: usize = 60;
/// Maximum number of peers with an hour. There may be more dynamic neighbours.
pub(super) const PEERS: usize = 1024;

/// The state of a peer at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    /// Whether its session is Established.
    pub(super) up: bool,
    /// Number of times that its session has left Established.
    pub(super) flaps: u64,
    /// Number of its prefixes that are not rejected.
    pub(super) prefixes: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Minute {
    was_up: bool,
    was_down: bool,
    prefixes: u32,
}

/// One peer's hour.
#[derive(Debug)]
struct Hour {
    /// The index of a minute is its number modulo [`MINUTES`].
    minutes: [Minute; MINUTES],
    /// The number of the first minute, and of the last minute that was written.
    first: u64,
    last: u64,
    now: Sample,
}

/// The hour in the page's form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Trend {
    /// One letter for each minute, the oldest first: `u`p, `d`own, `m`ixed (both within the
    /// minute), or `-` for an unknown minute.
    pub(super) state: String,
    /// Prefixes at the end of each minute.
    pub(super) prefixes: Vec<u32>,
}

/// The hours of all peers.
#[derive(Debug)]
pub(super) struct Trends {
    began: Instant,
    hours: BTreeMap<String, Hour>,
}

impl Trends {
    /// Trends without any known minute.
    pub(super) fn new(began: Instant) -> Self {
        Trends { began, hours: BTreeMap::new() }
    }

    fn minute(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_secs() / 60
    }

    /// Records the state of the peers. Peers that are not in the list are forgotten.
    pub(super) fn note<'a>(&mut self, now: Instant, peers: impl Iterator<Item = (String, Sample)> + 'a) {
        let minute = self.minute(now);
        let mut before = std::mem::take(&mut self.hours);
        for (name, sample) in peers.take(PEERS) {
            let mut hour = before.remove(&name).unwrap_or_else(|| Hour::new(minute, sample));
            hour.note(minute, sample);
            self.hours.insert(name, hour);
        }
    }

    /// A peer's hour until now.
    pub(super) fn trend(&self, name: &str, now: Instant) -> Trend {
        let minute = self.minute(now);
        self.hours.get(name).map_or_else(
            || Trend { state: "-".repeat(MINUTES), prefixes: vec![0; MINUTES] },
            |hour| hour.trend(minute),
        )
    }
}

impl Hour {
    fn new(minute: u64, sample: Sample) -> Self {
        let mut minutes = [Minute::default(); MINUTES];
        minutes[place(minute)] = Minute::of(sample);
        Hour { minutes, first: minute, last: minute, now: sample }
    }

    fn note(&mut self, minute: u64, sample: Sample) {
        // At most one whole ring is written, even after a long time without changes.
        let missing = minute.saturating_sub(self.last).min(MINUTES as u64);
        for back in (0..missing).rev() {
            self.minutes[place(minute - back)] = Minute::of(self.now);
        }
        self.last = self.last.max(minute);
        let flapped = sample.flaps > self.now.flaps;
        let entry = &mut self.minutes[place(minute)];
        entry.was_up |= sample.up;
        entry.was_down |= !sample.up || flapped;
        entry.prefixes = sample.prefixes;
        self.now = sample;
    }

    fn trend(&self, minute: u64) -> Trend {
        let mut trend =
            Trend { state: String::with_capacity(MINUTES), prefixes: Vec::with_capacity(MINUTES) };
        for back in (0..MINUTES as u64).rev() {
            let shown = minute.checked_sub(back).filter(|shown| *shown >= self.first);
            let entry = shown.map(|shown| match shown > self.last {
                true => Minute::of(self.now),
                false => self.minutes[place(shown)],
            });
            trend.state.push(match entry {
                None => '-',
                Some(Minute { was_up: true, was_down: true, .. }) => 'm',
                Some(Minute { was_up: true, .. }) => 'u',
                Some(_) => 'd',
            });
            trend.prefixes.push(entry.map_or(0, |entry| entry.prefixes));
        }
        trend
    }
}

impl Minute {
    fn of(sample: Sample) -> Self {
        Minute { was_up: sample.up, was_down: !sample.up, prefixes: sample.prefixes }
    }
}

fn place(minute: u64) -> usize {
    (minute % MINUTES as u64) as usize
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const UP: Sample = Sample { up: true, flaps: 0, prefixes: 5 };
    const DOWN: Sample = Sample { up: false, flaps: 1, prefixes: 0 };

    struct Case {
        began: Instant,
        trends: Trends,
    }

    impl Case {
        fn new() -> Self {
            let began = Instant::now();
            Case { began, trends: Trends::new(began) }
        }

        fn at(&self, seconds: u64) -> Instant {
            self.began + Duration::from_secs(seconds)
        }

        fn note(&mut self, seconds: u64, sample: Sample) {
            self.trends.note(self.at(seconds), [("a".to_owned(), sample)].into_iter());
        }

        /// The letters and prefixes of the last minutes.
        fn last(&self, seconds: u64, minutes: usize) -> (String, Vec<u32>) {
            let trend = self.trends.trend("a", self.at(seconds));
            assert_eq!((trend.state.len(), trend.prefixes.len()), (MINUTES, MINUTES));
            let from = MINUTES - minutes;
            (trend.state[from..].to_owned(), trend.prefixes[from..].to_vec())
        }
    }

    #[tokio::test]
    async fn minutes_without_changes_repeat_and_unknown_ones_are_empty() {
        let mut case = Case::new();
        case.note(10, UP);
        assert_eq!(case.last(10, 3), ("--u".to_owned(), vec![0, 0, 5]));
        assert_eq!(case.last(190, 5), ("-uuuu".to_owned(), vec![0, 5, 5, 5, 5]));
        case.note(250, Sample { prefixes: 7, ..UP });
        assert_eq!(case.last(250, 6), ("-uuuuu".to_owned(), vec![0, 5, 5, 5, 5, 7]));
        assert_eq!(case.last(100_000, 60), ("u".repeat(60), vec![7; 60]));
        case.note(100_000, DOWN);
        assert_eq!(case.last(100_000, 60).0, "u".repeat(59) + "m");
        assert_eq!(case.last(100_060, 3).0, "umd");
    }

    #[tokio::test]
    async fn a_flap_between_two_samples_is_recorded() {
        let mut case = Case::new();
        case.note(0, UP);
        case.note(60, Sample { flaps: 1, ..UP });
        case.note(130, Sample { flaps: 1, ..UP });
        assert_eq!(case.last(130, 3).0, "umu");
    }

    #[tokio::test]
    async fn removed_peers_are_forgotten_and_the_number_is_limited() {
        let mut case = Case::new();
        let now = case.at(1);
        case.trends.note(now, (0..5000).map(|number| (format!("peer {number}"), UP)));
        assert_eq!(case.trends.hours.len(), PEERS);
        assert!(size_of::<Hour>() <= 600, "{}", size_of::<Hour>());
        case.note(2, UP);
        assert_eq!(case.trends.hours.len(), 1);
        assert_eq!(case.trends.trend("peer 1", now).state, "-".repeat(60));
    }
}
