//! Services and EndpointSlices in compact form, with their indexes.
//!
//! A node receives every EndpointSlice of the cluster. So a row has the local endpoints only, and
//! the remote ones are counts: a slice with 100 endpoints needs as much memory as an empty one.
//! Names and ports that repeat are shared, and labels are one text.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;

use smallvec::SmallVec;
use trunkline_api::kept::{BoundedLabels, TooLarge};
use trunkline_api::service::{AddressKind, Protocol, TrafficPolicy};

use super::advertisements::Names;
use super::bounds::Excess;
use super::{
    EndpointCondition, LocalEndpoint, RowChange, ServiceInput, ServiceKey, ServicePort, SliceInput, SliceKey,
};

mod ports;
mod shared;

use shared::Shared;

/// Ports of an EndpointSlice by name and protocol.
type SlicePorts = [(Arc<str>, Protocol)];

/// A Service.
#[derive(Debug)]
pub(super) struct ServiceRow {
    labels: Result<Box<str>, TooLarge>,
    /// Whether another service proxy handles it.
    pub(super) other_proxy: bool,
    /// The class of its load balancer, if this is a Service of the type LoadBalancer.
    pub(super) class: Option<Option<Arc<str>>>,
    addresses: SmallVec<[(IpAddr, AddressKind); 2]>,
    /// Its ports.
    pub(super) ports: SmallVec<[ServicePort; 1]>,
    external_policy: TrafficPolicy,
    internal_policy: TrafficPolicy,
    /// The bound that it exceeds.
    excess: Option<Excess>,
    /// The advertisements that match its labels.
    pub(super) matching: Names,
    /// Whether the list that is being received has it.
    is_listed: bool,
}

impl ServiceRow {
    /// Its labels.
    ///
    /// # Errors
    /// They exceed their bound.
    pub(super) fn labels(&self) -> BoundedLabels {
        let mut texts = self.labels.as_deref().map_err(|error| *error)?.split('\0');
        let mut labels = BTreeMap::new();
        while let (Some(key), Some(value)) = (texts.next(), texts.next()) {
            labels.insert(key.to_owned(), value.to_owned());
        }
        Ok(labels)
    }

    /// Its addresses, each with its kind.
    pub(super) fn addresses(&self) -> &[(IpAddr, AddressKind)] {
        &self.addresses
    }

    /// Whether it is a Service of the type LoadBalancer of this class, or without a class.
    pub(super) fn is_ours(&self, class: &str) -> bool {
        self.class.as_ref().is_some_and(|of| of.as_deref().is_none_or(|of| of == class))
    }

    /// The traffic policy for addresses of this kind.
    pub(super) fn policy(&self, kind: AddressKind) -> TrafficPolicy {
        match kind {
            AddressKind::LoadBalancer | AddressKind::External => self.external_policy,
            AddressKind::Cluster => self.internal_policy,
        }
    }
}

/// An EndpointSlice.
#[derive(Debug, PartialEq)]
struct SliceRow {
    service: Arc<str>,
    v6: bool,
    /// Whether the list that is being received has it.
    is_listed: bool,
    ports: Arc<SlicePorts>,
    /// The bound that it exceeds.
    excess: Option<Excess>,
    ready: u32,
    terminating: u32,
    local: Box<[LocalEndpoint]>,
}

/// Endpoints of a Service in one IP family.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Endpoints {
    /// Ready endpoints on other nodes.
    pub(super) remote_ready: u32,
    /// Endpoints on other nodes that are serving and terminating.
    pub(super) remote_terminating: u32,
    /// Endpoints on this node, each once, by address.
    pub(super) local: SmallVec<[LocalEndpoint; 4]>,
}

/// The effect of a change.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Touched {
    /// Services with other endpoints or fields.
    pub(super) services: BTreeSet<ServiceKey>,
    /// Addresses that a Service has, or had before the change.
    pub(super) addresses: BTreeSet<IpAddr>,
    /// Ready endpoints on this node that are in no slice of the Service any more.
    pub(super) gone: Vec<(ServiceKey, IpAddr)>,
}

impl Touched {
    /// Adds the effect of another change.
    pub(super) fn extend(&mut self, other: Touched) {
        self.services.extend(other.services);
        self.addresses.extend(other.addresses);
        self.gone.extend(other.gone);
    }

    /// Keeps the effect of a page until the end of its list. Until everything is known, the end of
    /// a list concerns all addresses, and nothing is kept.
    pub(super) fn keep_for_list(self, list: &mut Touched, known: bool) {
        if known {
            list.extend(self);
        }
    }
}

/// All rows.
#[derive(Debug, Default)]
pub(super) struct Rows {
    services: BTreeMap<ServiceKey, ServiceRow>,
    slices: HashMap<SliceKey, SliceRow>,
    /// Names of the slices of each Service. A slice may arrive before its Service.
    of_service: HashMap<ServiceKey, SmallVec<[Arc<str>; 1]>>,
    of_address: BTreeMap<IpAddr, SmallVec<[(ServiceKey, AddressKind); 1]>>,
    /// Services with this endpoint on this node, ascending, each with the number of its entries in
    /// slices. Many Services can have the node's own address.
    of_endpoint: HashMap<IpAddr, SmallVec<[(ServiceKey, u32); 1]>>,
    shared: Shared,
    /// Whether a list of Services, or of EndpointSlices, is being received.
    lists_services: bool,
    lists_slices: bool,
}

impl Rows {
    /// This many rows of one kind need some megabytes.
    pub(super) const MANY: usize = 1000;

    /// The Service with this name.
    pub(super) fn service(&self, key: &ServiceKey) -> Option<&ServiceRow> {
        self.services.get(key)
    }

    /// All Services.
    pub(super) fn services(&self) -> impl Iterator<Item = (&ServiceKey, &ServiceRow)> {
        self.services.iter()
    }

    /// The Services of a Namespace.
    pub(super) fn namespace(&self, name: &Arc<str>) -> Vec<ServiceKey> {
        let first = ServiceKey { namespace: Arc::clone(name), name: Arc::from("") };
        let after = self.services.range((Bound::Included(first), Bound::Unbounded));
        after.map(|(key, _)| key).take_while(|key| key.namespace == *name).cloned().collect()
    }

    /// Sets the advertisements that match a Service's labels. Returns whether they are others.
    pub(super) fn set_matching(&mut self, key: &ServiceKey, matching: Names) -> bool {
        let Some(row) = self.services.get_mut(key).filter(|row| row.matching != matching) else {
            return false;
        };
        row.matching = matching;
        true
    }

    /// The Services with this address.
    pub(super) fn members(&self, address: &IpAddr) -> &[(ServiceKey, AddressKind)] {
        self.of_address.get(address).map_or(&[], |members| members)
    }

    /// All addresses of Services.
    pub(super) fn addresses(&self) -> impl Iterator<Item = &IpAddr> {
        self.of_address.keys()
    }

    /// The Services with this endpoint on this node.
    pub(super) fn with_endpoint(&self, endpoint: &IpAddr) -> Vec<ServiceKey> {
        self.of_endpoint.get(endpoint).into_iter().flatten().map(|(key, _)| key.clone()).collect()
    }

    /// Whether a slice of the Service has this endpoint on this node.
    pub(super) fn has_local(&self, key: &ServiceKey, address: IpAddr) -> bool {
        let services = self.of_endpoint.get(&address);
        services.is_some_and(|services| services.binary_search_by(|(of, _)| of.cmp(key)).is_ok())
    }

    fn slices_of(&self, key: &ServiceKey) -> impl Iterator<Item = &SliceRow> {
        let names = self.of_service.get(key).map_or(&[][..], |names| names);
        names.iter().filter_map(move |name| {
            self.slices.get(&SliceKey { namespace: Arc::clone(&key.namespace), name: Arc::clone(name) })
        })
    }

    /// Whether these are so many rows that their memory matters.
    pub(super) fn are_many(&self) -> bool {
        self.services.len().max(self.slices.len()) >= Self::MANY
    }

    // ---- changes

    /// Takes over changes of Services.
    pub(super) fn change_services(&mut self, change: RowChange<ServiceInput>, touched: &mut Touched) {
        match change {
            RowChange::Applied(input) => self.set_service(input, touched),
            RowChange::Deleted(input) => self.remove_service(&input.key, touched),
            RowChange::Page { is_first, rows } => self.list_services(rows, is_first, touched),
            RowChange::Listed(inputs) => {
                let is_first = !std::mem::take(&mut self.lists_services);
                self.list_services(inputs, is_first, touched);
                self.lists_services = false;
                let gone = self.services.iter().filter(|(_, row)| !row.is_listed);
                let gone: Vec<ServiceKey> = gone.map(|(key, _)| key.clone()).collect();
                gone.iter().for_each(|key| self.remove_service(key, touched));
                // A map that is built from a sorted list has full nodes: half of the memory of one
                // that has grown.
                self.services = std::mem::take(&mut self.services).into_iter().collect();
                self.of_address = std::mem::take(&mut self.of_address).into_iter().collect();
                self.shared.sweep();
            }
        }
    }

    /// Takes over a part of a list.
    fn list_services(&mut self, inputs: Vec<ServiceInput>, is_first: bool, touched: &mut Touched) {
        if is_first {
            self.services.values_mut().for_each(|row| row.is_listed = false);
        }
        self.lists_services = true;
        inputs.into_iter().for_each(|input| self.set_service(input, touched));
    }

    fn set_service(&mut self, input: ServiceInput, touched: &mut Touched) {
        let key = self.shared.service(&input.key.namespace, &input.key.name);
        let mut addresses: SmallVec<[(IpAddr, AddressKind); 2]> = SmallVec::new();
        let of = |list: &[IpAddr], kind| list.iter().map(move |address| (*address, kind)).collect::<Vec<_>>();
        addresses.extend(of(&input.load_balancer_addresses, AddressKind::LoadBalancer));
        addresses.extend(of(&input.external_addresses, AddressKind::External));
        addresses.extend(of(&input.cluster_addresses, AddressKind::Cluster));
        addresses.sort_unstable();
        addresses.dedup();
        let ports = input.ports.iter();
        let as_text = |labels: &BTreeMap<String, String>| {
            let texts: Vec<&str> = labels.iter().flat_map(|(key, value)| [key.as_str(), value]).collect();
            texts.join("\0").into()
        };
        let row = ServiceRow {
            labels: input.labels.as_ref().map(as_text).map_err(|error| *error),
            other_proxy: input.other_proxy,
            class: input.load_balancer.then(|| input.class.map(|class| self.shared.text(&class))),
            addresses,
            ports: ports
                .map(|port| ServicePort { name: self.shared.text(&port.name), ..port.clone() })
                .collect(),
            external_policy: input.external_policy,
            internal_policy: input.internal_policy,
            excess: input.excess,
            matching: Names::new(),
            is_listed: true,
        };
        self.unlink_service(&key, touched);
        for (address, kind) in &row.addresses {
            touched.addresses.insert(*address);
            // Sorted: of several reasons the first one is shown, whatever the history is.
            let members = self.of_address.entry(*address).or_default();
            let member = (key.clone(), *kind);
            if let Err(index) = members.binary_search(&member) {
                members.insert(index, member);
            }
        }
        touched.services.insert(key.clone());
        self.services.insert(key, row);
    }

    fn remove_service(&mut self, key: &ServiceKey, touched: &mut Touched) {
        self.unlink_service(key, touched);
        if self.services.remove(key).is_some() {
            touched.services.insert(key.clone());
        }
    }

    fn unlink_service(&mut self, key: &ServiceKey, touched: &mut Touched) {
        let Some(row) = self.services.get(key) else { return };
        for (address, _) in &row.addresses {
            touched.addresses.insert(*address);
            if let Some(members) = self.of_address.get_mut(address) {
                members.retain(|(member, _)| member != key);
                if members.is_empty() {
                    self.of_address.remove(address);
                }
            }
        }
    }

    /// Takes over changes of EndpointSlices.
    pub(super) fn change_slices(&mut self, change: RowChange<SliceInput>, touched: &mut Touched) {
        let mut removed = Vec::new();
        match change {
            RowChange::Applied(input) => self.set_slice(input, touched, &mut removed),
            RowChange::Deleted(input) => self.remove_slice(&input.key, touched, &mut removed),
            RowChange::Page { is_first, rows } => self.list_slices(rows, is_first, touched, &mut removed),
            RowChange::Listed(inputs) => {
                let is_first = !std::mem::take(&mut self.lists_slices);
                self.list_slices(inputs, is_first, touched, &mut removed);
                self.lists_slices = false;
                let gone = self.slices.iter().filter(|(_, row)| !row.is_listed);
                let gone: Vec<SliceKey> = gone.map(|(key, _)| key.clone()).collect();
                gone.iter().for_each(|key| self.remove_slice(key, touched, &mut removed));
                self.slices.shrink_to_fit();
                self.of_service.shrink_to_fit();
                self.shared.sweep();
            }
        }
        // An endpoint that another slice has was only moved.
        removed.retain(|(key, address)| !self.has_local(key, *address));
        touched.gone.extend(removed);
    }

    /// Takes over a part of a list.
    fn list_slices(
        &mut self,
        inputs: Vec<SliceInput>,
        is_first: bool,
        touched: &mut Touched,
        removed: &mut Vec<(ServiceKey, IpAddr)>,
    ) {
        if is_first {
            self.slices.values_mut().for_each(|row| row.is_listed = false);
        }
        self.lists_slices = true;
        inputs.into_iter().for_each(|input| self.set_slice(input, touched, removed));
    }

    fn set_slice(
        &mut self,
        input: SliceInput,
        touched: &mut Touched,
        removed: &mut Vec<(ServiceKey, IpAddr)>,
    ) {
        let service = self.shared.service(&input.key.namespace, &input.service);
        let row = SliceRow {
            service: Arc::clone(&service.name),
            v6: input.v6,
            is_listed: true,
            ports: self.shared.ports(&input.ports),
            excess: input.excess,
            ready: input.remote_ready,
            terminating: input.remote_terminating,
            local: input.local,
        };
        if let Some(known) = self.slices.get_mut(&input.key) {
            known.is_listed = true;
            if *known == row {
                return;
            }
        }
        self.remove_slice(&input.key, touched, removed);
        for endpoint in &row.local {
            let services = self.of_endpoint.entry(endpoint.address).or_default();
            match services.binary_search_by(|(of, _)| of.cmp(&service)) {
                Ok(index) => services.get_mut(index).into_iter().for_each(|(_, entries)| *entries += 1),
                Err(index) => services.insert(index, (service.clone(), 1)),
            }
        }
        let key = SliceKey { namespace: Arc::clone(&service.namespace), name: input.key.name };
        self.of_service.entry(service.clone()).or_default().push(Arc::clone(&key.name));
        self.slices.insert(key, row);
        touched.services.insert(service);
    }

    fn remove_slice(
        &mut self,
        key: &SliceKey,
        touched: &mut Touched,
        removed: &mut Vec<(ServiceKey, IpAddr)>,
    ) {
        let Some(row) = self.slices.remove(key) else { return };
        let service = ServiceKey { namespace: Arc::clone(&key.namespace), name: row.service };
        if let Some(names) = self.of_service.get_mut(&service) {
            names.retain(|name| *name != key.name);
            if names.is_empty() {
                self.of_service.remove(&service);
            }
        }
        for endpoint in &row.local {
            self.unlink_endpoint(&service, endpoint.address);
            if endpoint.condition == EndpointCondition::Ready {
                removed.push((service.clone(), endpoint.address));
            }
        }
        touched.services.insert(service);
    }

    /// A slice of the Service has the endpoint no more.
    fn unlink_endpoint(&mut self, service: &ServiceKey, endpoint: IpAddr) {
        let Some(services) = self.of_endpoint.get_mut(&endpoint) else { return };
        let Ok(index) = services.binary_search_by(|(of, _)| of.cmp(service)) else { return };
        match services.get_mut(index) {
            Some((_, entries)) if *entries > 1 => *entries -= 1,
            _ => drop(services.remove(index)),
        }
        if services.is_empty() {
            self.of_endpoint.remove(&endpoint);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::services::EndpointInput;

    pub(in crate::services) fn service_key(name: &str) -> ServiceKey {
        ServiceKey { namespace: Arc::from("default"), name: Arc::from(name) }
    }

    /// A Service of the type LoadBalancer with TCP port 80.
    pub(in crate::services) fn service(
        name: &str,
        addresses: &[&str],
        policy: TrafficPolicy,
    ) -> ServiceInput {
        ServiceInput {
            key: service_key(name),
            labels: Ok(BTreeMap::new()),
            load_balancer: true,
            class: Some(Arc::from("trunkline.io/load-balancer")),
            other_proxy: false,
            load_balancer_addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            external_addresses: Vec::new(),
            cluster_addresses: Vec::new(),
            ports: vec![ServicePort { protocol: Protocol::Tcp, port: 80, name: Arc::from("") }],
            external_policy: policy,
            internal_policy: TrafficPolicy::Cluster,
            excess: None,
        }
    }

    /// A slice with the port of [`service`]: ready endpoints elsewhere, and these here.
    pub(in crate::services) fn slice(
        name: &str,
        service: &str,
        remote: u32,
        local: &[(&str, EndpointCondition)],
    ) -> SliceInput {
        let endpoint = |(text, condition): &(&str, EndpointCondition)| LocalEndpoint {
            address: text.parse().unwrap(),
            condition: *condition,
        };
        SliceInput {
            key: SliceKey { namespace: Arc::from("default"), name: Arc::from(name) },
            service: Arc::from(service),
            v6: false,
            ports: Box::new([(Arc::from(""), Protocol::Tcp)]),
            excess: None,
            remote_ready: remote,
            remote_terminating: 0,
            local: local.iter().map(endpoint).collect(),
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn conditions_follow_kube_proxy() {
        let endpoint = |local, ready, serving, terminating| EndpointInput {
            address: ip("10.1.0.5"),
            local,
            ready,
            serving,
            terminating,
        };
        let conditions = [
            (endpoint(true, true, true, false), EndpointCondition::Ready),
            (endpoint(true, false, true, true), EndpointCondition::Terminating),
            (endpoint(true, false, false, true), EndpointCondition::NotReady),
            (endpoint(true, false, false, false), EndpointCondition::NotReady),
            // A Service with publishNotReadyAddresses.
            (endpoint(true, true, true, true), EndpointCondition::Ready),
        ];
        for (input, condition) in conditions {
            assert_eq!(input.condition(), condition, "{input:?}");
        }
        let remote = [
            endpoint(false, true, true, false),
            endpoint(false, false, true, true),
            endpoint(false, false, false, false),
        ];
        let (ready, terminating, local) = SliceInput::count(remote.into_iter().chain([conditions[3].0]));
        assert_eq!((ready, terminating, local.len()), (1, 1, 1));
    }

    #[test]
    fn slices_of_a_service_are_added_up() {
        let (mut rows, mut touched) = (Rows::default(), Touched::default());
        let here = [("10.1.0.5", EndpointCondition::Ready)];
        rows.change_slices(RowChange::Applied(slice("a", "web", 3, &here)), &mut touched);
        let terminating =
            [("10.1.0.5", EndpointCondition::Terminating), ("10.1.0.6", EndpointCondition::NotReady)];
        rows.change_slices(RowChange::Applied(slice("b", "web", 2, &terminating)), &mut touched);
        let other_port =
            SliceInput { ports: Box::new([(Arc::from("x"), Protocol::Tcp)]), ..slice("c", "web", 9, &[]) };
        rows.change_slices(RowChange::Applied(other_port), &mut touched);
        assert_eq!(touched.services, [service_key("web")].into());
        let web = service("web", &[], TrafficPolicy::Local);
        rows.change_services(RowChange::Applied(web), &mut touched);
        let key = service_key("web");
        let ports = rows.port_endpoints(&key, false, rows.service(&key).unwrap()).unwrap();
        assert_eq!((&*ports.of_ports, ports.groups.len()), (&[0][..], 1));
        let found = &ports.groups[0];
        assert_eq!((found.remote_ready, found.local.len()), (5, 2));
        assert_eq!(found.local[0].condition, EndpointCondition::Ready, "one ready slice is enough");
        assert_eq!(rows.endpoints(&service_key("web"), false).remote_ready, 14);
        assert_eq!(rows.endpoints(&service_key("web"), true), Endpoints::default());
        assert_eq!(rows.with_endpoint(&ip("10.1.0.5")), [service_key("web")]);

        let mut touched = Touched::default();
        rows.change_slices(RowChange::Applied(slice("b", "web", 2, &terminating)), &mut touched);
        assert_eq!(touched, Touched::default(), "nothing changed");
        rows.change_slices(RowChange::Listed(vec![slice("b", "web", 2, &terminating)]), &mut touched);
        assert_eq!(touched.gone, [], "slice b has the endpoint of slice a");
        rows.change_slices(RowChange::Applied(slice("b", "web", 2, &here)), &mut touched);
        rows.change_slices(RowChange::Deleted(slice("b", "web", 2, &here)), &mut touched);
        assert_eq!(touched.gone, [(service_key("web"), ip("10.1.0.5"))]);
        assert!(rows.with_endpoint(&ip("10.1.0.5")).is_empty() && rows.of_service.is_empty());
    }

    #[test]
    fn the_end_of_a_list_removes_what_no_page_has() {
        let (mut rows, mut touched) = (Rows::default(), Touched::default());
        let web = |name: &str| service(name, &["10.9.0.1"], TrafficPolicy::Local);
        let here = [("10.1.0.5", EndpointCondition::Ready)];
        rows.change_services(RowChange::Listed(vec![web("web"), web("old")]), &mut touched);
        rows.change_slices(
            RowChange::Listed(vec![slice("a", "web", 1, &here), slice("b", "old", 1, &here)]),
            &mut touched,
        );
        let page = |is_first, name: &str| RowChange::Page { is_first, rows: vec![web(name)] };
        // The first attempt to list fails after its first page.
        rows.change_services(page(true, "old"), &mut touched);
        rows.change_services(page(true, "new"), &mut touched);
        rows.change_services(page(false, "web"), &mut touched);
        assert_eq!(rows.services().count(), 3, "the list is not complete");
        rows.change_services(RowChange::Listed(Vec::new()), &mut touched);
        let names: Vec<&str> = rows.services().map(|(key, _)| &*key.name).collect();
        assert_eq!(names, ["new", "web"]);

        let mut touched = Touched::default();
        let rows_of_page = vec![slice("a", "web", 1, &here)];
        rows.change_slices(RowChange::Page { is_first: true, rows: rows_of_page }, &mut touched);
        assert_eq!(touched, Touched::default(), "nothing changed");
        rows.change_slices(RowChange::Listed(Vec::new()), &mut touched);
        assert_eq!(touched.services, [service_key("old")].into());
        assert_eq!(touched.gone, [(service_key("old"), ip("10.1.0.5"))]);
        assert_eq!(rows.with_endpoint(&ip("10.1.0.5")), [service_key("web")]);
    }

    #[test]
    fn a_slice_that_moves_to_another_service_leaves_the_first() {
        let (mut rows, mut touched) = (Rows::default(), Touched::default());
        let here = [("10.1.0.5", EndpointCondition::Ready)];
        rows.change_slices(RowChange::Applied(slice("a", "web", 1, &here)), &mut touched);
        rows.change_slices(RowChange::Applied(slice("a", "api", 1, &here)), &mut touched);
        assert_eq!(rows.endpoints(&service_key("web"), false), Endpoints::default());
        assert_eq!(rows.with_endpoint(&ip("10.1.0.5")), [service_key("api")]);
        assert_eq!(touched.services, [service_key("api"), service_key("web")].into());
    }

    #[test]
    fn addresses_know_their_services() {
        let (mut rows, mut touched) = (Rows::default(), Touched::default());
        let web = service("web", &["10.9.0.1", "fd09::1"], TrafficPolicy::Local);
        let labels: BTreeMap<String, String> =
            [("app".to_owned(), "web".to_owned()), ("empty".to_owned(), String::new())].into();
        let web = ServiceInput { labels: Ok(labels.clone()), ..web };
        rows.change_services(
            RowChange::Listed(vec![web, service("api", &["10.9.0.1"], TrafficPolicy::Local)]),
            &mut touched,
        );
        assert_eq!(rows.members(&ip("10.9.0.1")).len(), 2);
        assert_eq!(rows.service(&service_key("web")).unwrap().labels(), Ok(labels));
        assert_eq!(rows.service(&service_key("api")).unwrap().labels(), Ok(BTreeMap::new()));
        assert_eq!(rows.namespace(&Arc::from("default")), [service_key("api"), service_key("web")]);
        assert_eq!(rows.namespace(&Arc::from("defaul")), []);

        touched = Touched::default();
        rows.change_services(
            RowChange::Applied(service("web", &["10.9.0.2"], TrafficPolicy::Local)),
            &mut touched,
        );
        let expected: BTreeSet<IpAddr> = ["10.9.0.1", "10.9.0.2", "fd09::1"].map(ip).into();
        assert_eq!(touched.addresses, expected, "former and new addresses");
        rows.change_services(RowChange::Listed(Vec::new()), &mut touched);
        assert_eq!((rows.addresses().count(), rows.services().count()), (0, 0));
        drop(touched);
        rows.shared.sweep();
        assert_eq!(rows.shared.entries(), 0);
    }
}
