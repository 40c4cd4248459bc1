//! Watches of RemoteSubnets and RemoteVteps. The controller writes them; a cluster without remote
//! clusters has none, and may lack their kinds.
//!
//! Each object becomes a row as soon as it arrives, because the lists can be long.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::{Api, Resource, ResourceExt};
use trunkline_api::kube::{Kind, Lenient};
use trunkline_api::resources::{RemoteSubnetSpec, RemoteVtepSpec};

use super::watch::{Change, Rows, Versioned};
use crate::plan::remote::{RemoteObjects, RemoteSubnetRow, RemoteVtepRow};
use crate::source::remote::{RemoteError, subnet_row, vtep_row};

/// The watch of RemoteSubnets.
pub(super) const SUBNETS: &str = "remotesubnets";
/// The watch of RemoteVteps. It exists only with an overlay, because their pods' addresses change often.
pub(super) const VTEPS: &str = "remotevteps";
/// Objects in a page of a list: each can have the addresses of a whole node.
const PAGE: u32 = 100;

/// An object by name: its cluster and its row, or its fault.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Named<R> {
    name: Box<str>,
    row: Result<(String, R), String>,
}

pub(super) type SubnetChange = Change<Versioned<Named<RemoteSubnetRow>>>;
pub(super) type VtepChange = Change<Versioned<Named<RemoteVtepRow>>>;

type Convert<S, R> = fn(Lenient<S>) -> Named<R>;

pub(super) fn subnets(
    client: kube::Client,
) -> Rows<Lenient<RemoteSubnetSpec>, Convert<RemoteSubnetSpec, RemoteSubnetRow>> {
    Rows { api: Api::all(client), page: PAGE, by_page: false, convert: |object| named(object, subnet_row) }
}

pub(super) fn vteps(
    client: kube::Client,
) -> Rows<Lenient<RemoteVtepSpec>, Convert<RemoteVtepSpec, RemoteVtepRow>> {
    Rows { api: Api::all(client), page: PAGE, by_page: false, convert: |object| named(object, vtep_row) }
}

/// Reads the time of creation and the spec.
type Read<S, R> = fn(&str, &S) -> Result<(String, R), RemoteError>;

fn named<S: Kind, R>(object: Lenient<S>, read: Read<S, R>) -> Named<R> {
    let name = object.name_any().into_boxed_str();
    let created = object.meta().creation_timestamp.as_ref().map(|time| time.0.to_string());
    let row = match &object.0 {
        Ok(object) => read(&created.unwrap_or_default(), &object.spec).map_err(|error| error.to_string()),
        Err(bad) => Err(format!("{}: {}", bad.fault.field, bad.fault.message)),
    };
    Named { name, row }
}

/// The faults by kind and name.
type Unreadable = BTreeMap<(&'static str, String), String>;

/// Applies a change of RemoteSubnets. Returns whether something changed.
pub(super) fn take_subnets(
    change: SubnetChange,
    known: &mut Arc<RemoteObjects>,
    unreadable: &mut Unreadable,
) -> bool {
    take(
        change,
        known,
        unreadable,
        RemoteSubnetSpec::KIND,
        RemoteTable {
            set: RemoteObjects::set_subnet,
            remove: RemoteObjects::remove_subnet,
            retain: |objects, names| objects.retain_subnets(|name| names.contains(name)),
        },
    )
}

/// Applies a change of RemoteVteps. Returns whether something changed.
pub(super) fn take_vteps(
    change: VtepChange,
    known: &mut Arc<RemoteObjects>,
    unreadable: &mut Unreadable,
) -> bool {
    take(
        change,
        known,
        unreadable,
        RemoteVtepSpec::KIND,
        RemoteTable {
            set: RemoteObjects::set_vtep,
            remove: RemoteObjects::remove_vtep,
            retain: |objects, names| objects.retain_vteps(|name| names.contains(name)),
        },
    )
}

/// Forgets all RemoteVteps, when their watch ends.
pub(super) fn forget_vteps(known: &mut Arc<RemoteObjects>, unreadable: &mut Unreadable) {
    Arc::make_mut(known).retain_vteps(|_| false);
    unreadable.retain(|(kind, _), _| *kind != RemoteVtepSpec::KIND);
}

/// The rows of one kind.
struct RemoteTable<R> {
    set: fn(&mut RemoteObjects, &str, &str, R) -> bool,
    remove: fn(&mut RemoteObjects, &str) -> bool,
    retain: fn(&mut RemoteObjects, &BTreeSet<Box<str>>),
}

fn take<R>(
    change: Change<Versioned<Named<R>>>,
    known: &mut Arc<RemoteObjects>,
    unreadable: &mut Unreadable,
    kind: &'static str,
    table: RemoteTable<R>,
) -> bool {
    let mut apply = |known: &mut RemoteObjects, Named { name, row }: Named<R>| {
        let which = (kind, name.to_string());
        match row {
            Ok((cluster, row)) => {
                let readable_again = unreadable.remove(&which).is_some();
                (table.set)(known, &name, &cluster, row) | readable_again
            }
            // The known row stays.
            Err(fault) => unreadable.insert(which, fault.clone()) != Some(fault),
        }
    };
    match change {
        Change::Applied(object) => apply(Arc::make_mut(known), object.row),
        Change::Listed(objects) => {
            let names: BTreeSet<Box<str>> = objects.iter().map(|object| object.row.name.clone()).collect();
            let rows = Arc::make_mut(known);
            for object in objects {
                apply(rows, object.row);
            }
            (table.retain)(rows, &names);
            unreadable.retain(|(of, name), _| *of != kind || names.contains(name.as_str()));
            // A list counts even without a change, because the snapshot may be waiting for it.
            true
        }
        Change::Deleted(object) => {
            let name = object.row.name;
            unreadable.remove(&(kind, name.to_string())).is_some()
                | (table.remove)(Arc::make_mut(known), &name)
        }
        Change::Page { .. } | Change::Failing(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vtep(name: &str, ip: &str) -> Named<RemoteVtepRow> {
        let object: Lenient<RemoteVtepSpec> = serde_json::from_value(serde_json::json!({
            "apiVersion": "multicluster.alibaba.com/v1", "kind": "RemoteVtep",
            "metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"clusterName": "west", "nodeName": "n", "ip": ip, "endpointIPList": ["10.210.0.5"]},
        }))
        .unwrap();
        named(object, vtep_row)
    }

    fn clusters(known: &RemoteObjects) -> Vec<(&str, usize)> {
        known.clusters.iter().map(|(name, of)| (&**name, of.vteps.len())).collect()
    }

    #[test]
    fn changes_of_vteps_reach_the_rows() {
        let (mut known, mut unreadable) = (Arc::default(), Unreadable::new());
        let versioned = |row| Versioned::of("1", row);
        let mut change = |change, known: &mut Arc<RemoteObjects>| take_vteps(change, known, &mut unreadable);
        let listed =
            Change::Listed(vec![versioned(vtep("a", "10.20.0.1")), versioned(vtep("b", "10.20.0.2"))]);
        assert!(change(listed, &mut known));
        assert_eq!(clusters(&known), [("west", 2)]);
        let row = known.clusters["west"].vteps["a"].clone();
        assert_eq!(&*row.created, "2026-01-01T00:00:00Z");
        assert!(!change(Change::Applied(versioned(vtep("a", "10.20.0.1"))), &mut known), "no change");
        // A faulty version leaves the known one in force.
        assert!(change(Change::Applied(versioned(vtep("a", "10.20"))), &mut known));
        assert_eq!(known.clusters["west"].vteps["a"], row);
        assert!(!change(Change::Failing("away".to_owned()), &mut known));
        assert!(change(Change::Listed(vec![versioned(vtep("b", "10.20.0.2"))]), &mut known));
        assert_eq!(clusters(&known), [("west", 1)]);
        assert!(change(Change::Deleted(versioned(vtep("b", "10.20.0.2"))), &mut known));
        assert!(known.is_empty() && unreadable.is_empty());
    }
}
