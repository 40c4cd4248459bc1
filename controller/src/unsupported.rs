//! Objects that request a feature without an implementation. The leader reports them, because
//! nothing else shows that they have no effect.
//!
//! | [`Feature`] | objects | watch |
//! |---|---|---|
//! | `VirtualMachine` | pods of KubeVirt's VirtualMachineInstances, without `--vm-ip-retain` | that of the pods |
//!
//! Each feature has these reports in each term. There is one log line for the first object, and one
//! more if there are more than [`EVENTS`] objects. Each of the first [`EVENTS`] objects gets an
//! event. A gauge has the number of objects. `Tracker` decides; [`Unsupported`] logs and sends the
//! events. Agents do not watch these objects: each node would load the API server with the watches
//! that the leader has once.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;

use crate::cluster::{Key, Table};
use crate::events::{Events, reason};

/// Number of objects of a feature that get an event in a term.
pub const EVENTS: usize = 20;

/// A feature without an implementation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// The addresses of virtual machines' pods are not retained.
    VirtualMachine,
}

struct Description {
    label: &'static str,
    api_version: &'static str,
    kind: &'static str,
    text: &'static str,
}

impl Feature {
    /// All features, in the order of their discriminants.
    pub const ALL: [Feature; 1] = [Feature::VirtualMachine];

    /// Value of the metric's label `kind`.
    pub fn label(self) -> &'static str {
        self.describe().label
    }

    fn describe(self) -> Description {
        match self {
            Feature::VirtualMachine => Description {
                label: "VirtualMachineInstance",
                api_version: "v1",
                kind: "Pod",
                text: "Trunkline does not retain addresses of virtual machines without --vm-ip-retain: the next pod \
                       of this one gets another address. Set vmIPRetain of the chart, or reach the virtual machine \
                       by a Service",
            },
        }
    }
}

/// Reports the objects of a term.
#[derive(Default)]
pub struct Unsupported {
    trackers: [Tracker; Feature::ALL.len()],
    events: Option<Events>,
}

impl Unsupported {
    /// Begins a term without objects.
    pub fn new(events: Events) -> Self {
        Unsupported { events: Some(events), ..Unsupported::default() }
    }

    /// Number of objects.
    pub fn count(&self, feature: Feature) -> usize {
        self.trackers[feature as usize].objects.len()
    }

    /// A list begins.
    pub fn begin(&mut self, feature: Feature) {
        self.trackers[feature as usize].objects.begin();
    }

    /// Handles an added or changed object that requests the feature.
    pub fn set(&mut self, feature: Feature, key: &Key, uid: &str) {
        if self.trackers[feature as usize].set(key, uid)
            && let Some(events) = &self.events
        {
            let Description { api_version, kind, text, .. } = feature.describe();
            let about = ObjectReference {
                api_version: Some(api_version.to_owned()),
                kind: Some(kind.to_owned()),
                namespace: Some(key.namespace.to_string()),
                name: Some(key.name.to_string()),
                uid: Some(uid.to_owned()),
                ..ObjectReference::default()
            };
            events.warning(about, reason::NOT_SUPPORTED, text.to_owned());
        }
        self.log(feature);
    }

    /// Handles an object that was deleted, or requests the feature no longer.
    pub fn remove(&mut self, feature: Feature, key: &Key) {
        self.trackers[feature as usize].objects.remove(key);
    }

    /// The list is complete.
    pub fn end(&mut self, feature: Feature) {
        let objects = &mut self.trackers[feature as usize].objects;
        for key in objects.end() {
            objects.remove(&key);
        }
        self.log(feature);
    }

    fn log(&mut self, feature: Feature) {
        let tracker = &mut self.trackers[feature as usize];
        let (Some(extent), Some(first)) = (tracker.poll_log(), &tracker.first) else { return };
        let Description { label, text, .. } = feature.describe();
        let objects = tracker.objects.len();
        match extent {
            Extent::AllWithEvents => tracing::warn!(kind = label, %first, objects, "{text}"),
            Extent::SomeWithEvents => tracing::warn!(
                kind = label, %first, objects,
                "{text} (only the first {EVENTS} objects get an event)"
            ),
        }
    }
}

/// Whether all objects have an event, or only some of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Extent {
    AllWithEvents,
    SomeWithEvents,
}

/// The objects of one feature, and the reports about them.
#[derive(Default)]
struct Tracker {
    objects: Table<Key, ()>,
    /// The first object of the term.
    first: Option<Key>,
    /// UIDs of the objects with an event, [`EVENTS`] at most.
    reported: HashSet<Arc<str>>,
    /// The extent of the objects so far.
    extent: Option<Extent>,
    /// The extent in the last log line.
    logged: Option<Extent>,
}

impl Tracker {
    /// Adds an object. Returns whether it gets an event: once for each object, until the bound.
    fn set(&mut self, key: &Key, uid: &str) -> bool {
        self.objects.set(key.clone(), ());
        self.first.get_or_insert_with(|| key.clone());
        if self.reported.contains(uid) {
            return false;
        }
        let has_room = self.reported.len() < EVENTS;
        if has_room {
            self.reported.insert(uid.into());
        }
        let extent = if has_room { Extent::AllWithEvents } else { Extent::SomeWithEvents };
        self.extent = self.extent.max(Some(extent));
        has_room
    }

    /// The extent, if a log line is due. Each extent has one line. No line is due before the first
    /// list is complete, because the line contains the number of objects.
    fn poll_log(&mut self) -> Option<Extent> {
        if !self.objects.is_listed() || self.logged >= self.extent {
            return None;
        }
        self.logged = self.extent;
        self.extent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        Key::new("default", format!("object-{number}"))
    }

    /// Objects with these numbers as a list; returns the numbers of those with an event.
    fn list(tracker: &mut Tracker, numbers: impl IntoIterator<Item = usize>) -> Vec<usize> {
        tracker.objects.begin();
        let with_event = add(tracker, numbers);
        for gone in tracker.objects.end() {
            tracker.objects.remove(&gone);
        }
        with_event
    }

    fn add(tracker: &mut Tracker, numbers: impl IntoIterator<Item = usize>) -> Vec<usize> {
        numbers.into_iter().filter(|number| tracker.set(&key(*number), &format!("uid-{number}"))).collect()
    }

    #[test]
    fn features_are_in_the_order_of_their_discriminants() {
        for (index, feature) in Feature::ALL.into_iter().enumerate() {
            assert_eq!(feature as usize, index);
        }
    }

    #[test]
    fn each_object_gets_one_event_in_a_term() {
        let mut tracker = Tracker::default();
        assert_eq!(list(&mut tracker, [1, 2]), [1, 2]);
        assert_eq!(add(&mut tracker, [1, 2, 3]), [3], "a change repeats no event");
        assert!(list(&mut tracker, [1, 3]).is_empty(), "a new list repeats no event");
        assert_eq!(tracker.objects.len(), 2);
        tracker.objects.remove(&key(1));
        assert!(
            add(&mut tracker, [1]).is_empty(),
            "an annotation that is removed and set again repeats no event"
        );
        assert!(tracker.set(&key(1), "another uid"), "a new object of the same name gets its own event");
    }

    #[test]
    fn events_are_bounded_and_objects_are_counted() {
        let mut tracker = Tracker::default();
        assert_eq!(list(&mut tracker, 0..10_000).len(), EVENTS);
        assert!(list(&mut tracker, 0..10_000).is_empty());
        assert_eq!((tracker.objects.len(), tracker.reported.len()), (10_000, EVENTS));
    }

    #[test]
    fn log_lines_are_one_for_the_first_object_and_one_beyond_the_bound() {
        let mut tracker = Tracker::default();
        add(&mut tracker, [7]);
        assert_eq!(tracker.poll_log(), None, "the first list is incomplete");
        list(&mut tracker, [7, 8]);
        assert_eq!((tracker.poll_log(), tracker.first.clone()), (Some(Extent::AllWithEvents), Some(key(7))));
        add(&mut tracker, 0..EVENTS);
        assert_eq!(tracker.poll_log(), None);
        add(&mut tracker, EVENTS..EVENTS + 2);
        assert_eq!(tracker.poll_log(), Some(Extent::SomeWithEvents));
        add(&mut tracker, [100]);
        assert_eq!(tracker.poll_log(), None);

        let mut empty = Tracker::default();
        list(&mut empty, []);
        assert_eq!(empty.poll_log(), None);
        let mut many = Tracker::default();
        list(&mut many, 0..100);
        assert_eq!((many.poll_log(), many.poll_log()), (Some(Extent::SomeWithEvents), None));
    }
}
