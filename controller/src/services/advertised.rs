//! NodeServices: the nodes that advertise each address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use trunkline_api::control::AdvertisementState;
use trunkline_api::kube::NodeServicesObject;
use trunkline_api::resources::NodeServicesStatus;

use crate::cluster::Table;

/// Row of a NodeServices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeServicesRow {
    /// Its UID.
    pub uid: Arc<str>,
    /// The advertised addresses, sorted.
    addresses: Box<[IpAddr]>,
    /// Whether the node advertises more addresses, all of them after the last one.
    truncated: bool,
}

impl NodeServicesRow {
    /// Row of a NodeServices, with its first [`NodeServicesStatus::MAX_SERVICES`] addresses. An agent
    /// lists that many before it truncates. So `truncated` counts only with that many advertised
    /// addresses: it makes the addresses of all Services uncertain.
    pub fn of(object: &NodeServicesObject) -> NodeServicesRow {
        let status = object.status.as_ref();
        let services = status.iter().flat_map(|status| &status.services);
        let services = services.take(NodeServicesStatus::MAX_SERVICES);
        let advertised = services.filter(|service| service.state != AdvertisementState::Withheld);
        let mut addresses: Vec<IpAddr> =
            advertised.filter_map(|service| service.address.parse().ok()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        NodeServicesRow {
            uid: object.metadata.uid.as_deref().unwrap_or_default().into(),
            truncated: addresses.len() == NodeServicesStatus::MAX_SERVICES
                && status.is_some_and(|status| status.truncated),
            addresses: addresses.into(),
        }
    }

    fn limit(&self) -> Option<IpAddr> {
        self.addresses.last().copied().filter(|_| self.truncated)
    }
}

/// NodeServices by node, and the number of nodes of each address.
#[derive(Default)]
pub struct AdvertisedRows {
    /// The rows.
    pub nodes: Table<Arc<str>, NodeServicesRow>,
    counts: HashMap<IpAddr, u32>,
    /// The lowest of the last addresses of truncated rows: it is not known for later addresses
    /// whether a node advertises them.
    limit: Option<IpAddr>,
}

/// The addresses for which something has changed.
#[derive(Debug, PartialEq, Eq)]
pub enum Changed {
    /// These.
    Addresses(Vec<IpAddr>),
    /// Any.
    All,
}

impl AdvertisedRows {
    /// The number of nodes that advertise an address, as far as it is known.
    pub fn count(&self, address: IpAddr) -> u32 {
        self.counts.get(&address).copied().unwrap_or_default()
    }

    /// Whether each node that advertises an address lists it.
    pub fn is_complete(&self, address: IpAddr) -> bool {
        self.limit.is_none_or(|limit| address <= limit)
    }

    /// Sets or removes the row of a node.
    #[must_use]
    pub fn set(&mut self, node: &Arc<str>, row: Option<NodeServicesRow>) -> Changed {
        let was_empty = self.nodes.is_empty();
        let new = row.as_ref().map(|row| row.addresses.clone()).unwrap_or_default();
        let limit = row.as_ref().and_then(NodeServicesRow::limit);
        let old = match row {
            Some(row) => self.nodes.set(Arc::clone(node), row),
            None => self.nodes.remove(node),
        };
        let old_limit = old.as_ref().and_then(NodeServicesRow::limit);
        let old = old.map(|row| row.addresses).unwrap_or_default();
        let mut changed = Vec::new();
        for address in old.iter().filter(|address| new.binary_search(address).is_err()) {
            if let Some(count) = self.counts.get_mut(address) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(address);
                }
            }
            changed.push(*address);
        }
        for address in new.iter().filter(|address| old.binary_search(address).is_err()) {
            *self.counts.entry(*address).or_default() += 1;
            changed.push(*address);
        }
        let limit_before = self.limit;
        if limit != old_limit {
            self.limit = self.nodes.iter().filter_map(|(_, row)| row.limit()).min();
        }
        match was_empty != self.nodes.is_empty() || self.limit != limit_before {
            true => Changed::All,
            false => Changed::Addresses(changed),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use trunkline_api::kube::NodeServicesObject;

    use super::*;

    fn row(addresses: &[&str], truncated: bool) -> Option<NodeServicesRow> {
        let service = |address: &&str| json!({"address": address, "state": "advertised"});
        let mut services: Vec<_> = addresses.iter().map(service).collect();
        services.push(json!({"address": "10.0.0.99", "state": "withheld"}));
        services.push(json!({"address": "no address", "state": "advertised"}));
        let object: NodeServicesObject = serde_json::from_value(json!({
            "metadata": {"name": "n", "uid": "u"}, "status": {"services": services, "truncated": truncated},
        }))
        .unwrap();
        Some(NodeServicesRow::of(&object))
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn nodes_are_counted_by_address() {
        let (one, two): (Arc<str>, Arc<str>) = ("n1".into(), "n2".into());
        let mut rows = AdvertisedRows::default();
        assert_eq!(rows.set(&one, row(&["10.0.0.1", "10.0.0.2"], false)), Changed::All, "the first node");
        let changed = |texts: &[&str]| Changed::Addresses(texts.iter().map(|text| address(text)).collect());
        assert_eq!(rows.set(&two, row(&["10.0.0.2", "fd00::1"], false)), changed(&["10.0.0.2", "fd00::1"]));
        let counts = |rows: &AdvertisedRows| {
            ["10.0.0.1", "10.0.0.2", "fd00::1", "10.0.0.99"].map(|text| rows.count(address(text)))
        };
        assert_eq!(counts(&rows), [1, 2, 1, 0]);
        assert_eq!(rows.set(&two, row(&["10.0.0.1", "10.0.0.2"], false)), changed(&["fd00::1", "10.0.0.1"]));
        assert_eq!(rows.set(&two, row(&["10.0.0.2", "10.0.0.1"], false)), changed(&[]), "the order is free");
        assert_eq!(rows.set(&one, None), changed(&["10.0.0.1", "10.0.0.2"]));
        assert_eq!(rows.set(&one, None), changed(&[]));
        assert_eq!((counts(&rows), rows.set(&two, None)), ([1, 1, 0, 0], Changed::All));
        assert_eq!((counts(&rows), rows.counts.len()), ([0; 4], 0));
    }

    /// The addresses from 10.0.0.0 on, as many as an agent lists, and then `last`.
    fn full(last: &str, truncated: bool) -> Option<NodeServicesRow> {
        let address = |number: usize| std::net::Ipv4Addr::from(0x0a00_0000 + u32::try_from(number).unwrap());
        let all = (1..NodeServicesStatus::MAX_SERVICES).map(|number| address(number).to_string());
        let mut all: Vec<String> = all.collect();
        all.push(last.to_owned());
        row(&all.iter().map(String::as_str).collect::<Vec<_>>(), truncated)
    }

    #[test]
    fn addresses_after_a_truncated_list_are_not_known() {
        let (one, two): (Arc<str>, Arc<str>) = ("n1".into(), "n2".into());
        let mut rows = AdvertisedRows::default();
        let _ = rows.set(&one, full("10.1.0.7", true));
        let complete = |rows: &AdvertisedRows, text: &str| rows.is_complete(address(text));
        assert!(complete(&rows, "10.1.0.7") && !complete(&rows, "10.1.0.8") && !complete(&rows, "fd00::1"));
        assert_eq!(rows.set(&two, full("10.1.0.3", true)), Changed::All);
        assert!(complete(&rows, "10.1.0.3") && !complete(&rows, "10.1.0.4"));
        assert_eq!(rows.set(&two, full("10.1.0.3", false)), Changed::All);
        assert_eq!(rows.set(&one, None), Changed::All);
        assert!(complete(&rows, "fd00::1"));
    }

    #[test]
    fn a_short_truncated_list_is_complete() {
        let (honest, hostile): (Arc<str>, Arc<str>) = ("n1".into(), "n2".into());
        let mut rows = AdvertisedRows::default();
        let _ = rows.set(&honest, row(&["10.0.0.1"], false));
        let none = Changed::Addresses(Vec::new());
        for truncated in [true, false, true, false] {
            assert_eq!(rows.set(&hostile, row(&[], truncated)), none);
            assert!(rows.is_complete(address("fd00::1")));
        }
        // One address, listed as often as an agent lists addresses.
        let often = vec!["10.0.0.9"; NodeServicesStatus::MAX_SERVICES];
        let only = Changed::Addresses(vec![address("10.0.0.9")]);
        assert_eq!(rows.set(&hostile, row(&often, true)), only);
        assert!(rows.is_complete(address("fd00::1")));
    }

    #[test]
    fn addresses_beyond_the_bound_are_not_read() {
        let all: Vec<String> =
            (0..50_000_u32).map(|number| std::net::Ipv4Addr::from(number).to_string()).collect();
        let row = row(&all.iter().map(String::as_str).collect::<Vec<_>>(), true).unwrap();
        assert_eq!((row.addresses.len(), row.truncated), (NodeServicesStatus::MAX_SERVICES, true));
    }
}
