//! The endpoints of a Service's ports. Ports that are in the same EndpointSlices share them: the
//! cost is the sum of ports and endpoints, and not their product.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Endpoints, Rows, ServiceRow, SlicePorts, SliceRow};
use crate::services::bounds::{Excess, MAX_ENDPOINTS};
use crate::services::{LocalEndpoint, Protocol, ServiceKey};

/// The endpoints of all ports of a Service in one IP family.
#[derive(Debug, PartialEq)]
pub(in crate::services) struct PortEndpoints {
    /// For each port of the Service, the index of its endpoints.
    pub(in crate::services) of_ports: Vec<usize>,
    /// The different endpoints of ports.
    pub(in crate::services) groups: Vec<Endpoints>,
}

/// EndpointSlices with equal ports.
struct Set<'a> {
    ports: &'a SlicePorts,
    ready: u32,
    terminating: u32,
    /// Endpoints on this node in each of the slices that have any.
    local: Vec<&'a [LocalEndpoint]>,
}

impl Endpoints {
    /// Adds up counts and endpoints. Of an endpoint in several slices, one ready slice is enough.
    fn sum<'a>(
        counts: impl Iterator<Item = (u32, u32)>,
        local: impl Iterator<Item = &'a [LocalEndpoint]>,
    ) -> Endpoints {
        let mut all = Endpoints::default();
        for (ready, terminating) in counts {
            all.remote_ready = all.remote_ready.saturating_add(ready);
            all.remote_terminating = all.remote_terminating.saturating_add(terminating);
        }
        local.for_each(|endpoints| all.local.extend_from_slice(endpoints));
        // The order of conditions: Ready is the least.
        all.local.sort_unstable();
        all.local.dedup_by_key(|endpoint| endpoint.address);
        all
    }
}

impl Rows {
    /// The endpoints of a Service in one IP family, whatever their ports are. The cost depends on the
    /// Service's slices.
    pub(in crate::services) fn endpoints(&self, key: &ServiceKey, v6: bool) -> Endpoints {
        let of_family = || self.slices_of(key).filter(|row| row.v6 == v6);
        Endpoints::sum(
            of_family().map(|row| (row.ready, row.terminating)),
            of_family().map(|row| &*row.local),
        )
    }

    /// The endpoints of each port of a Service in one IP family.
    ///
    /// # Errors
    /// The Service exceeds a bound.
    pub(in crate::services) fn port_endpoints(
        &self,
        key: &ServiceKey,
        v6: bool,
        service: &ServiceRow,
    ) -> Result<PortEndpoints, Excess> {
        if let Some(excess) = service.excess {
            return Err(excess);
        }
        let sets = sets_of(self.slices_of(key).filter(|row| row.v6 == v6))?;
        // The sets with each port of the Service.
        let mut sets_with: HashMap<(&str, Protocol), Vec<usize>> =
            service.ports.iter().map(|port| ((&*port.name, port.protocol), Vec::new())).collect();
        for (index, set) in sets.iter().enumerate() {
            for (name, protocol) in set.ports {
                if let Some(with) = sets_with.get_mut(&(&**name, *protocol))
                    && with.last() != Some(&index)
                {
                    with.push(index);
                }
            }
        }
        let (mut groups, mut index_of): (Vec<&[usize]>, HashMap<&[usize], usize>) = Default::default();
        let mut of_ports = Vec::with_capacity(service.ports.len());
        for port in &service.ports {
            let with = sets_with.get(&(&*port.name, port.protocol)).map_or(&[][..], Vec::as_slice);
            of_ports.push(*index_of.entry(with).or_insert_with(|| {
                groups.push(with);
                groups.len() - 1
            }));
        }
        let sizes: Vec<usize> = sets.iter().map(|set| set.local.iter().map(|of| of.len()).sum()).collect();
        let counted = groups.iter().flat_map(|group| group.iter()).filter_map(|index| sizes.get(*index));
        let size: usize = counted.sum();
        if size > MAX_ENDPOINTS {
            return Err(Excess::Endpoints(size));
        }
        let endpoints = |group: &&[usize]| {
            let sets: Vec<&Set<'_>> = group.iter().filter_map(|index| sets.get(*index)).collect();
            let counts = sets.iter().map(|set| (set.ready, set.terminating));
            Endpoints::sum(counts, sets.iter().flat_map(|set| set.local.iter().copied()))
        };
        Ok(PortEndpoints { of_ports, groups: groups.iter().map(endpoints).collect() })
    }
}

/// Collects slices with equal ports.
fn sets_of<'a>(slices: impl Iterator<Item = &'a SliceRow>) -> Result<Vec<Set<'a>>, Excess> {
    let mut sets: Vec<Set<'a>> = Vec::new();
    // Slices with equal ports share one list of ports.
    let mut index_of: HashMap<*const (), usize> = HashMap::new();
    for row in slices {
        if let Some(excess) = row.excess {
            return Err(excess);
        }
        let index = *index_of.entry(Arc::as_ptr(&row.ports).cast()).or_insert(sets.len());
        if index == sets.len() {
            sets.push(Set { ports: &row.ports, ready: 0, terminating: 0, local: Vec::new() });
        }
        let Some(set) = sets.get_mut(index) else { continue };
        set.ready = set.ready.saturating_add(row.ready);
        set.terminating = set.terminating.saturating_add(row.terminating);
        if !row.local.is_empty() {
            set.local.push(&row.local);
        }
    }
    Ok(sets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::rows::Touched;
    use crate::services::rows::tests::{service, service_key, slice};
    use crate::services::{
        EndpointCondition, RowChange, ServiceInput, ServicePort, SliceInput, TrafficPolicy,
    };

    fn named(port: usize) -> Arc<str> {
        Arc::from(format!("p{port}"))
    }

    fn web(ports: usize) -> ServiceInput {
        let port = |port| ServicePort { protocol: Protocol::Tcp, port: 1 + port as u16, name: named(port) };
        ServiceInput { ports: (0..ports).map(port).collect(), ..service("web", &[], TrafficPolicy::Local) }
    }

    /// A slice with these ports of [`web`] and this many endpoints on this node.
    fn slice_with(name: usize, ports: impl Iterator<Item = usize>, endpoints: usize) -> SliceInput {
        let texts: Vec<String> =
            (0..endpoints).map(|of| format!("10.{name}.{}.{}", of / 250, of % 250)).collect();
        let local: Vec<_> = texts.iter().map(|text| (text.as_str(), EndpointCondition::Ready)).collect();
        let ports = ports.map(|port| (named(port), Protocol::Tcp)).collect();
        SliceInput { ports, ..slice(&format!("slice-{name}"), "web", 1, &local) }
    }

    fn rows(service: ServiceInput, slices: impl IntoIterator<Item = SliceInput>) -> Rows {
        let (mut rows, mut touched) = (Rows::default(), Touched::default());
        rows.change_services(RowChange::Applied(service), &mut touched);
        rows.change_slices(RowChange::Listed(slices.into_iter().collect()), &mut touched);
        rows
    }

    fn found(rows: &Rows) -> Result<PortEndpoints, Excess> {
        let key = service_key("web");
        rows.port_endpoints(&key, false, rows.service(&key).unwrap())
    }

    #[test]
    fn ports_in_the_same_slices_share_their_endpoints() {
        let all = (0..4).map(|name| slice_with(name, 0..4000, 1000));
        let found = found(&rows(web(4000), all)).unwrap();
        assert_eq!((found.of_ports.len(), found.groups.len()), (4000, 1));
        assert_eq!((found.groups[0].local.len(), found.groups[0].remote_ready), (4000, 4));
    }

    #[test]
    fn each_port_has_the_endpoints_of_its_slices() {
        let slices = [slice_with(0, 0..3, 1), slice_with(1, 1..3, 2), slice_with(2, 2..3, 4)];
        let found = found(&rows(web(4), slices)).unwrap();
        let counts = found.of_ports.iter().map(|group| {
            let of = &found.groups[*group];
            (of.remote_ready, of.local.len())
        });
        assert_eq!(counts.collect::<Vec<_>>(), [(1, 1), (2, 3), (3, 7), (0, 0)]);
    }

    #[test]
    fn endpoints_above_the_bound_are_refused_with_the_figure() {
        let slices = |count: usize| (0..count).map(|name| slice_with(name, 0..2, 1000));
        assert!(found(&rows(web(2), slices(4))).is_ok());
        assert_eq!(found(&rows(web(2), slices(8))), Err(Excess::Endpoints(8000)));
        // Each port has another combination of slices.
        let mixed =
            (0..12).map(|name| slice_with(name, (0..4000).filter(move |port| port >> name & 1 == 1), 10));
        let Err(Excess::Endpoints(size)) = found(&rows(web(4000), mixed)) else { panic!("not refused") };
        assert!(size > 200_000, "{size}");
        let text = Excess::Endpoints(8000).to_string();
        assert!(text.contains("have 8000 endpoints on this node") && text.contains("at most 4096"), "{text}");
    }

    #[test]
    fn a_bound_of_the_service_or_of_a_slice_counts() {
        let large = ServiceInput { excess: Some(Excess::Ports(5000)), ..web(1) };
        assert_eq!(found(&rows(large, [])), Err(Excess::Ports(5000)));
        let large = SliceInput { excess: Some(Excess::SlicePorts(5000)), ..slice_with(0, 0..0, 1) };
        assert_eq!(found(&rows(web(1), [large])), Err(Excess::SlicePorts(5000)));
    }
}
