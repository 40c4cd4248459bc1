//! Faults of objects for the log and for events, at a bounded rate.
//!
//! Other nodes and clusters write some of the objects. A writer that alternates between two faults
//! would otherwise cause a line and an event with each write. `trunkline status` has all faults at
//! any time; only their reports are rare.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// Least time between two reports about one object.
pub const INTERVAL: Duration = Duration::from_secs(10);

/// The last report about each object.
#[derive(Debug)]
pub struct FaultLog<K> {
    objects: BTreeMap<K, LastReport>,
    /// The time of the next report that came too early.
    due: Option<Instant>,
}

#[derive(Debug)]
struct LastReport {
    at: Instant,
    /// Its text, while the object has this fault.
    text: Option<String>,
}

impl<K> Default for FaultLog<K> {
    fn default() -> Self {
        FaultLog { objects: BTreeMap::new(), due: None }
    }
}

impl<K: Ord + Clone> FaultLog<K> {
    /// Returns the texts that are reported now, from those of all faulty objects. A fault that lasts
    /// is reported once. A changed fault within [`INTERVAL`] is reported by a later call, if it
    /// lasts: the caller calls again at [`due`](Self::due).
    pub fn select(&mut self, now: Instant, faults: BTreeMap<K, String>) -> Vec<String> {
        let is_recent = |last: &LastReport| now.saturating_duration_since(last.at) < INTERVAL;
        self.objects.retain(|key, last| {
            let lasts = faults.contains_key(key);
            if !lasts {
                last.text = None;
            }
            lasts || is_recent(last)
        });
        let mut selected = Vec::new();
        self.due = None;
        for (key, text) in faults {
            match self.objects.get_mut(&key) {
                Some(last) if last.text.as_ref() == Some(&text) => {}
                Some(last) if is_recent(last) => {
                    last.text = None;
                    let at = last.at + INTERVAL;
                    self.due = Some(self.due.map_or(at, |due| due.min(at)));
                }
                _ => {
                    self.objects.insert(key, LastReport { at: now, text: Some(text.clone()) });
                    selected.push(text);
                }
            }
        }
        selected
    }

    /// The time of the next call of [`select`](Self::select), if a fault was not reported yet.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(texts: &[(&str, &str)]) -> BTreeMap<String, String> {
        texts.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn alternating_faults_of_many_objects_are_reported_rarely() {
        const OBJECTS: usize = 1_000;
        let (mut log, start) = (FaultLog::default(), Instant::now());
        let all = |text: &str| -> BTreeMap<usize, String> {
            (0..OBJECTS).map(|index| (index, format!("{index}: {text}"))).collect()
        };
        let mut reports = 0;
        // 100 changes in each of 5 intervals.
        for change in 0..500_u32 {
            let text = if change % 2 == 0 { "one" } else { "other" };
            reports += log.select(start + INTERVAL / 100 * change, all(text)).len();
        }
        assert_eq!(reports, 5 * OBJECTS);
        assert_eq!(log.objects.len(), OBJECTS);
        assert!(log.select(start + INTERVAL * 20, BTreeMap::new()).is_empty());
        assert_eq!(log.objects.len(), 0, "objects without a fault cost nothing");
    }

    #[test]
    fn a_lasting_fault_is_reported_once_and_a_changed_one_later() {
        let (mut log, start) = (FaultLog::default(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let one = || faults(&[("a", "x"), ("b", "y")]);
        assert_eq!(log.select(at(0), one()), ["x", "y"]);
        assert!(log.select(at(60), one()).is_empty());
        assert_eq!(log.select(at(61), faults(&[("a", "x"), ("b", "z")])), ["z"]);
        // The new fault of b comes too early, and lasts.
        let early = || faults(&[("a", "x"), ("b", "w")]);
        assert_eq!(log.due(), None);
        assert!(log.select(at(62), early()).is_empty());
        assert_eq!(log.due(), Some(at(71)));
        assert_eq!(log.select(at(71), early()), ["w"]);
        assert_eq!(log.due(), None);
        // A fault that returns is a new one.
        assert!(log.select(at(90), faults(&[("b", "w")])).is_empty());
        assert_eq!(log.select(at(120), early()), ["x"]);
    }
}
