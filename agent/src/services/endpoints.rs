//! Which local endpoints can be reached: those with a host route, and this host's own addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::{LocalPods, ServiceKey};

/// The time for which an endpoint counts although no slice has it any more. The EndpointSlice
/// controller may move an endpoint from one slice to another one, which are two events.
const MOVE: Duration = Duration::from_millis(50);

/// The local endpoints that can be reached.
#[derive(Debug, Default)]
pub(super) struct Reachable {
    local: LocalPods,
    /// Endpoints that may be moving between slices, with the time until which they count.
    moving: BTreeMap<(ServiceKey, IpAddr), Instant>,
}

impl Reachable {
    /// Takes over the host routes and the host's addresses. Returns the changed addresses.
    pub(super) fn set(&mut self, local: LocalPods) -> BTreeSet<IpAddr> {
        let former = std::mem::replace(&mut self.local, local);
        let pods = former.pods.symmetric_difference(&self.local.pods);
        let host = former.host.symmetric_difference(&self.local.host);
        pods.chain(host).copied().collect()
    }

    /// Whether packets for this endpoint reach it.
    pub(super) fn has(&self, endpoint: &IpAddr) -> bool {
        self.local.pods.contains(endpoint) || self.local.host.contains(endpoint)
    }

    /// Keeps an endpoint that is in no slice any more for a moment, if it can be reached. Returns
    /// the end of this time.
    pub(super) fn keep_moving(
        &mut self,
        service: &ServiceKey,
        endpoint: IpAddr,
        now: Instant,
    ) -> Option<Instant> {
        if !self.has(&endpoint) {
            return None;
        }
        let until = now + MOVE;
        self.moving.insert((service.clone(), endpoint), until);
        Some(until)
    }

    /// Endpoints of a Service that may be moving between slices.
    pub(super) fn moving<'a>(
        &'a self,
        service: &ServiceKey,
        now: Instant,
    ) -> impl Iterator<Item = (IpAddr, Instant)> + 'a {
        let service = service.clone();
        let first = (service.clone(), IpAddr::from([0, 0, 0, 0]));
        let of_service = self.moving.range(first..).take_while(move |((of, _), _)| *of == service);
        let current = of_service.filter(move |((_, address), until)| **until > now && self.has(address));
        current.map(|((_, address), until)| (*address, *until))
    }

    /// Forgets endpoints that have moved, or are gone.
    pub(super) fn sweep(&mut self, now: Instant) {
        self.moving.retain(|_, until| *until > now);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::services::rows::tests::service_key;

    fn local(pods: &[&str], host: &[&str]) -> LocalPods {
        let set = |texts: &[&str]| Arc::new(texts.iter().map(|text| text.parse().unwrap()).collect());
        LocalPods { pods: set(pods), host: set(host) }
    }

    #[tokio::test(start_paused = true)]
    async fn an_endpoint_counts_while_it_moves_and_has_a_route() {
        let (mut reachable, now, key) = (Reachable::default(), Instant::now(), service_key("web"));
        let (pod, host) = ("10.1.0.5".parse().unwrap(), "192.0.2.1".parse().unwrap());
        assert_eq!(reachable.set(local(&["10.1.0.5"], &["192.0.2.1"])), [pod, host].into());
        assert!(reachable.has(&pod) && reachable.has(&host));
        let until = reachable.keep_moving(&key, pod, now).unwrap();
        assert_eq!(reachable.moving(&key, now).collect::<Vec<_>>(), [(pod, until)]);
        assert_eq!(reachable.moving(&service_key("api"), now).count(), 0);
        assert_eq!(reachable.moving(&key, until).count(), 0);
        assert_eq!(reachable.set(local(&[], &["192.0.2.1"])), [pod].into());
        assert_eq!(reachable.moving(&key, now).count(), 0, "the pod is gone");
        assert_eq!(reachable.keep_moving(&key, pod, now), None);
        reachable.sweep(until);
        assert!(reachable.moving.is_empty());
    }
}
