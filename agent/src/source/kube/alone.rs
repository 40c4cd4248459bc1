//! Kinds whose objects are checked one by one: a fault of one object affects no other.

use std::collections::{BTreeMap, BTreeSet};

use trunkline_api::resources::{
    AgentSettings, AnycastAddress, NodeInfo, ObjectMeta, ServiceAdvertisement, ServicePool,
};
use trunkline_api::validate::{self, Fault, ObjectSource};

use super::assemble::{ObjectFaults, Objects};

/// A kind whose objects are checked one by one.
pub(super) trait CheckedAlone: Clone + PartialEq {
    fn metadata(&mut self) -> &mut ObjectMeta;

    /// Removes the part that other programs write often.
    fn remove_status(&mut self);

    /// The faults of the object.
    fn faults(&self) -> Vec<Fault>;

    /// The compared fields of the metadata.
    fn compared(meta: &ObjectMeta) -> ObjectMeta {
        bare(meta)
    }
}

impl CheckedAlone for NodeInfo {
    fn metadata(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn remove_status(&mut self) {
        self.status = None;
    }

    /// One fault with the number of the others: each agent reports it.
    fn faults(&self) -> Vec<Fault> {
        let found = validate::validate_node(self).err().unwrap_or_default();
        let others = found.len().saturating_sub(1);
        let first = found.into_iter().next().map(|fault| match others {
            0 => fault,
            _ => Fault { message: format!("{}; and {others} more faults", fault.message), ..fault },
        });
        first.into_iter().collect()
    }

    /// The planner prefers the claims of older NodeInfos. No node can write the time.
    fn compared(meta: &ObjectMeta) -> ObjectMeta {
        ObjectMeta { creation_timestamp: meta.creation_timestamp.clone(), ..bare(meta) }
    }
}

impl CheckedAlone for ServicePool {
    fn metadata(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn remove_status(&mut self) {
        self.status = None;
    }

    fn faults(&self) -> Vec<Fault> {
        validate::validate_service_pool(self).err().unwrap_or_default()
    }
}

impl CheckedAlone for ServiceAdvertisement {
    fn metadata(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn remove_status(&mut self) {
        self.status = None;
    }

    fn faults(&self) -> Vec<Fault> {
        validate::validate_service_advertisement(self).err().unwrap_or_default()
    }
}

impl CheckedAlone for AnycastAddress {
    fn metadata(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn remove_status(&mut self) {}

    fn faults(&self) -> Vec<Fault> {
        validate::validate_anycast(self, ObjectSource::ApiServer).err().unwrap_or_default()
    }
}

impl CheckedAlone for AgentSettings {
    fn metadata(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn remove_status(&mut self) {}

    fn faults(&self) -> Vec<Fault> {
        validate::validate_agent_settings(self).err().unwrap_or_default()
    }
}

/// The valid objects of a kind by name. In place of an object with a fault, its version in force.
pub(super) fn each_valid<T: CheckedAlone>(
    kind: &'static str,
    objects: &Objects,
    wanted: &BTreeMap<String, T>,
    running: &[T],
    faults: &mut ObjectFaults,
) -> Vec<T> {
    let running: BTreeMap<String, T> =
        running.iter().map(|one| (one.clone().metadata().name.clone(), one.clone())).collect();
    let unreadable = objects.unreadable.keys().filter(|(of, _)| *of == kind).map(|(_, name)| name);
    let names: BTreeSet<&String> = wanted.keys().chain(unreadable).collect();
    let served = names.into_iter().filter_map(|name| {
        let before = running.get(name);
        let mut object = match wanted.get(name) {
            Some(object) if !objects.unreadable.contains_key(&(kind, name.clone())) => object.clone(),
            _ => return before.cloned(),
        };
        *object.metadata() = T::compared(object.metadata());
        object.remove_status();
        if before == Some(&object) {
            return Some(object);
        }
        let found = object.faults();
        if found.is_empty() {
            return Some(object);
        }
        faults.entry((kind, name.clone())).or_default().extend(found.iter().map(ToString::to_string));
        before.cloned()
    });
    served.collect()
}

/// The compared fields of an object: its status and other writers' labels do not count.
pub(super) fn bare(meta: &ObjectMeta) -> ObjectMeta {
    ObjectMeta { name: meta.name.clone(), ..ObjectMeta::default() }
}
