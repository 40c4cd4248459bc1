//! The EndpointSlices of global Services that must be compared again, because an object on which they
//! depend has changed. A write of one Service costs the comparison of its own EndpointSlices.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use trunkline_api::resources::RemoteEndpointSliceSpec;

use super::Mirrored;
use crate::cluster::Key;

/// EndpointSlices to compare, and the index that finds them.
#[derive(Debug, Default)]
pub struct DueSlices {
    all: bool,
    keys: HashSet<Key>,
    /// The names of the RemoteEndpointSlices of each Service. An EndpointSlice has the same name.
    of_service: HashMap<Key, BTreeSet<Arc<str>>>,
}

/// The EndpointSlices of one comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due {
    /// All.
    All,
    /// These, in order.
    Keys(BTreeSet<Key>),
}

impl DueSlices {
    /// All EndpointSlices are due, for example after a list.
    pub fn add_all(&mut self) {
        self.all = true;
    }

    /// An EndpointSlice is due.
    pub fn add(&mut self, key: Key) {
        self.keys.insert(key);
    }

    /// The EndpointSlices of a Service are due.
    pub fn add_service(&mut self, service: &Key) {
        for name in self.of_service.get(service).into_iter().flatten() {
            self.keys.insert(Key { namespace: Arc::clone(&service.namespace), name: Arc::clone(name) });
        }
    }

    /// Handles an added, changed or removed RemoteEndpointSlice.
    pub(super) fn slice_changed(
        &mut self,
        name: &Arc<str>,
        old: Option<&Mirrored<RemoteEndpointSliceSpec>>,
        new: Option<&Mirrored<RemoteEndpointSliceSpec>>,
    ) {
        if let Some(service) = old.and_then(service_of) {
            self.add(Key { namespace: Arc::clone(&service.namespace), name: Arc::clone(name) });
            if let Some(names) = self.of_service.get_mut(&service) {
                names.remove(name);
                if names.is_empty() {
                    self.of_service.remove(&service);
                }
            }
        }
        if let Some(service) = new.and_then(service_of) {
            self.add(Key { namespace: Arc::clone(&service.namespace), name: Arc::clone(name) });
            self.of_service.entry(service).or_default().insert(Arc::clone(name));
        }
    }

    /// Takes the due EndpointSlices.
    pub fn take(&mut self) -> Due {
        let keys = std::mem::take(&mut self.keys);
        if std::mem::take(&mut self.all) { Due::All } else { Due::Keys(keys.into_iter().collect()) }
    }
}

fn service_of(row: &Mirrored<RemoteEndpointSliceSpec>) -> Option<Key> {
    let service = &row.spec.as_ref()?.remote_service;
    Some(Key::new(service.namespace.as_str(), service.name.as_str()))
}
