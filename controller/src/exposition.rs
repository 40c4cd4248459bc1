//! Source of `/metrics`: the counters ([`crate::metrics`]), and gauges that are read from the shared
//! state at each scrape, so that a deleted network has no series left.

use tokio::time::Instant;
use trunkline_api::metrics::of_controller as m;
use trunkline_daemon::metrics::Exposition;

use crate::policy_faults::PolicyKind;
use crate::services::ServiceState;
use crate::services::tally::Unadvertised;
use crate::state::{ControllerState, Queues, SharedState};
use crate::unsupported::Feature;

/// All metrics in Prometheus' text format.
pub fn text(shared: &SharedState) -> String {
    let mut page = Exposition::default();
    let mut state = shared.lock();
    write_state(&mut page, &state);
    write_tally(&mut page, &mut state.services);
    drop(state);
    match trunkline_daemon::metrics::text(shared.metrics().registry(), page) {
        Ok(text) => text,
        Err(error) => {
            tracing::error!(%error, "the metrics cannot be written");
            String::new()
        }
    }
}

fn write_state(page: &mut Exposition, state: &ControllerState) {
    let term = state.term.as_ref();
    write_services(page, state);
    page.put_bool(m::LEADER, &[], term.is_some());
    page.put_bool(m::BUILD_INFO, &[env!("CARGO_PKG_VERSION")], true);
    let cluster = &state.cluster;
    page.put_count(m::IPINSTANCES, &[], cluster.instances.len() as u64);
    let Some(term) = term else { return };
    page.put_count(m::PODS, &[], cluster.pods.len() as u64);
    page.put_count(m::PODS_WAITING, &[], term.waiting.len() as u64);
    page.put_count(m::ADDRESSES_HELD, &[], term.held.len() as u64);
    page.put_count(m::CONFLICTS, &[], term.ipam.conflicts().count() as u64);
    for feature in Feature::ALL {
        let objects = state.unsupported.count(feature);
        page.put_count(m::UNSUPPORTED_OBJECTS, &[feature.label()], objects as u64);
    }
    for kind in PolicyKind::ALL {
        page.put_count(m::POLICY_FAULTS, &[kind.name()], state.policy_faults.count(kind) as u64);
    }
    for (name, health) in &state.remote.health {
        let away = health.away_since.map_or(0.0, |since| since.elapsed().as_secs_f64());
        page.put_bool(m::REMOTE_CONNECTED, &[name], health.away_since.is_none() && !health.is_refused);
        page.put(m::REMOTE_AWAY, &[name], away);
        for (kind, count) in [
            ("subnets", health.subnets),
            ("vteps", health.vteps),
            ("endpoints", health.endpoints),
            ("endpoint_slices", health.slices),
            ("refused", health.refused),
            ("refused_endpoints", health.refused_endpoints),
            ("left_out", health.left_out),
            ("delayed", health.delayed),
        ] {
            page.put_count(m::REMOTE_MIRRORED, &[name, kind], count as u64);
        }
    }
    for (name, waiting, failed) in queues(&term.queues) {
        page.put_count(m::QUEUE_DEPTH, &[name], waiting as u64);
        page.put_count(m::QUEUE_FAILING, &[name], failed as u64);
    }
    for network in cluster.networks() {
        let usage = term.ipam.network_usage(network.name());
        for (family, usage) in [("ipv4", usage.v4), ("ipv6", usage.v6)] {
            for (state, count) in
                [("total", usage.total), ("used", usage.used), ("available", usage.available)]
            {
                page.put(m::NETWORK_ADDRESSES, &[network.name(), family, state], f64::from(count));
            }
        }
        let pairs = usage.dual_stack.available;
        page.put(m::NETWORK_ADDRESSES, &[network.name(), "dualstack", "available"], f64::from(pairs));
    }
}

fn write_services(page: &mut Exposition, state: &ControllerState) {
    let ServiceState { rows, term: Some(term), .. } = &state.services else { return };
    for (name, _) in rows.pools.iter() {
        let Some(usage) = term.ipam.usage(name) else { continue };
        for (family, usage) in [("ipv4", usage.v4), ("ipv6", usage.v6)] {
            for (state, count) in
                [("total", usage.total), ("allocated", usage.allocated), ("available", usage.available)]
            {
                page.put(m::SERVICE_ADDRESSES, &[&**name, family, state], f64::from(count));
            }
        }
    }
    let queues = &term.queues;
    for (name, waiting, failed) in [
        ("services", queues.services.depth(), queues.services.failing()),
        ("servicepools", queues.pools.depth(), queues.pools.failing()),
        ("serviceaddresses", queues.claims.depth(), queues.claims.failing()),
        ("nodeservices", queues.nodes.depth(), queues.nodes.failing()),
    ] {
        page.put_count(m::QUEUE_DEPTH, &[name], waiting as u64);
        page.put_count(m::QUEUE_FAILING, &[name], failed as u64);
    }
}

fn write_tally(page: &mut Exposition, services: &mut ServiceState) {
    let Some(tally) = services.tally(Instant::now()) else { return };
    let waiting = services.term.as_ref().map_or(0, |term| term.waiting.len());
    page.put_count(m::SERVICES, &["allocated"], tally.allocated);
    page.put_count(m::SERVICES, &["waiting"], waiting as u64);
    if let Some(Unadvertised { unadvertised, without_endpoint }) = tally.advertised {
        page.put_count(m::SERVICES, &["unadvertised"], unadvertised);
        page.put_count(m::SERVICES, &["without_endpoint"], without_endpoint);
    }
    page.put_count(m::SERVICE_CONFLICTS, &[], tally.conflicts);
}

fn queues(queues: &Queues) -> [(&'static str, usize, usize); 6] {
    [
        ("pods", queues.pods.depth(), queues.pods.failing()),
        ("ipinstances", queues.instances.depth(), queues.instances.failing()),
        ("conflicts", queues.conflicts.depth(), queues.conflicts.failing()),
        ("networks", queues.networks.depth(), queues.networks.failing()),
        ("subnets", queues.subnets.depth(), queues.subnets.failing()),
        ("nodes", queues.nodes.depth(), queues.nodes.failing()),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::metrics::Metrics;
    use crate::services::ServiceQueues;
    use crate::services::rows::PoolRow;

    #[test]
    fn every_metric_of_the_catalogue_is_exported() {
        let shared = SharedState::new(Arc::new(Metrics::new().unwrap()));
        crate::webhook::Metrics::register(shared.metrics().registry()).unwrap().touch();
        let network = serde_json::from_value(serde_json::json!({
            "apiVersion": "networking.alibaba.com/v1", "kind": "Network", "metadata": {"name": "n"}, "spec": {},
        }));
        shared.lock().set_network(&"n".into(), network.unwrap());
        {
            let mut state = shared.lock();
            state.begin_term(Queues::new(Duration::ZERO));
            let pool = serde_json::from_value(serde_json::json!({
                "metadata": {"name": "p"}, "spec": {"addresses": ["10.0.0.0/28"]},
            }));
            state.services.set_pool(&"p".into(), PoolRow::of(&pool.unwrap(), None));
            let state = &mut *state;
            state.remote.health.entry("east".into()).or_default();
            state.services.begin_term(&state.cluster, ServiceQueues::new(Duration::ZERO));
        }
        shared.metrics().service_failed("Exhausted");
        shared.metrics().failed("api");
        shared.metrics().reconcile_failed("pods", "api");
        shared.metrics().reserved(1);
        shared.metrics().watch_failed("Pod");
        shared.metrics().connections().listener("webhook");
        let text = text(&shared);
        let exported: BTreeSet<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE "))
            .filter_map(|line| line.split(' ').next())
            .collect();
        let declared: BTreeSet<&str> =
            m::SECTIONS.iter().flat_map(|section| section.metrics).map(|metric| metric.name).collect();
        assert_eq!(exported, declared);
    }
}
