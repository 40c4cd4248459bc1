//! Events about unknown affinities of global Services. A tenant can write a new value with each
//! request, so a Service has one event in [`PAUSE`], about its last value.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::global::{Affinity, GlobalRow};
use crate::cluster::{Key, Table};

/// The shortest time between two events about one Service.
pub(super) const PAUSE: Duration = Duration::from_secs(60);

/// The last reported value of each Service, by UID.
#[derive(Default)]
pub(super) struct ReportedAffinities(HashMap<Arc<str>, (Box<str>, Instant)>);

impl ReportedAffinities {
    /// The unknown affinities to report now, and the time of the next ones. Services that are gone are
    /// forgotten after [`PAUSE`].
    pub(super) fn unreported(
        &mut self,
        rows: &Table<Key, GlobalRow>,
        now: Instant,
    ) -> (Vec<(Key, GlobalRow)>, Option<Instant>) {
        let (mut due, mut next) = (Vec::new(), None::<Instant>);
        let mut known = HashSet::new();
        for (key, row) in rows.iter() {
            known.insert(&row.uid);
            let Affinity::Unknown(value) = &row.affinity else { continue };
            match self.0.get(&row.uid) {
                Some((reported, _)) if reported == value => continue,
                Some((_, at)) if now.duration_since(*at) < PAUSE => {
                    let end = *at + PAUSE;
                    next = Some(next.map_or(end, |next| next.min(end)));
                    continue;
                }
                _ => {}
            }
            self.0.insert(Arc::clone(&row.uid), (value.clone(), now));
            due.push((key.clone(), row.clone()));
        }
        self.0.retain(|uid, (_, at)| known.contains(uid) || now.duration_since(*at) < PAUSE);
        (due, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(uid: &str, value: &str) -> GlobalRow {
        GlobalRow { uid: uid.into(), affinity: Affinity::Unknown(value.into()) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_has_one_event_in_a_pause() {
        let (key, mut rows) = (Key::new("shop", "web"), Table::default());
        let mut reported = ReportedAffinities::default();
        let began = Instant::now();
        let mut events = Vec::new();
        for number in 0..1000_u64 {
            rows.set(key.clone(), row("uid", &format!("near{number}")));
            let now = began + Duration::from_millis(100 * number);
            let (due, next) = reported.unreported(&rows, now);
            events.extend(due.into_iter().map(|(_, row)| row.affinity));
            assert_eq!(reported.0.len(), 1);
            let end = if number < 600 { began } else { began + PAUSE };
            assert_eq!(next.unwrap_or(end + PAUSE), end + PAUSE);
        }
        assert_eq!(events, [0, 600].map(|number| row("uid", &format!("near{number}")).affinity));
        // The last value has its event, and no more.
        let (due, next) = reported.unreported(&rows, began + 2 * PAUSE);
        assert_eq!((due[0].1.clone(), next), (row("uid", "near999"), None));
        assert!(reported.unreported(&rows, began + 4 * PAUSE).0.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn services_that_are_gone_are_forgotten() {
        let (key, mut rows) = (Key::new("shop", "web"), Table::default());
        let mut reported = ReportedAffinities::default();
        let began = Instant::now();
        for number in 0..1000_u32 {
            rows.set(key.clone(), row(&format!("uid{number}"), "near"));
            let (due, _) = reported.unreported(&rows, began + PAUSE * number);
            assert_eq!((due.len(), reported.0.len()), (1, 1));
        }
    }
}
