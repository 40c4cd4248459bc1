//! Numbers of Services for the metrics, from one pass over the Services.

use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::ServiceState;
use super::claim::Advertisement;
use super::rows::ServiceRow;
use crate::cluster::Key;

/// The shortest time between two passes.
const APART: Duration = Duration::from_secs(1);

/// Numbers of Services of Trunkline's class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Services with an address.
    pub allocated: u64,
    /// Services with an address in their status that a ServiceAddress gives to others.
    pub conflicts: u64,
    /// The state of the advertisement; none while it is not known.
    pub advertised: Option<Unadvertised>,
}

/// Numbers of Services with an address that no client can use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unadvertised {
    /// An endpoint serves, and no node advertises the address.
    pub unadvertised: u64,
    /// No endpoint serves in the family of the address.
    pub without_endpoint: u64,
}

impl ServiceState {
    /// The numbers, at most a second old. None without a term.
    pub fn tally(&mut self, now: Instant) -> Option<Tally> {
        self.term.as_ref()?;
        let fresh = self.tallied.filter(|(at, _)| now.duration_since(*at) < APART);
        let tallied = fresh.unwrap_or_else(|| (now, self.count()));
        self.tallied = Some(tallied);
        Some(tallied.1)
    }

    fn count(&self) -> Tally {
        let mut tally = Tally::default();
        let mut sums = Unadvertised::default();
        let is_ours = |row: &ServiceRow| row.load_balancer && self.classes.is_ours(row.class.as_deref());
        for (key, row) in self.rows.services.iter().filter(|(_, row)| is_ours(row)) {
            tally.allocated += u64::from(!row.ingress.is_empty());
            tally.conflicts += u64::from(row.ingress.iter().any(|address| self.is_foreign(row, address)));
            let states = || row.ingress.iter().map(|address| self.state_of(key, *address));
            sums.unadvertised += u64::from(states().any(|state| state == Some(Advertisement::NoNode)));
            sums.without_endpoint +=
                u64::from(states().any(|state| state == Some(Advertisement::NoEndpoint)));
        }
        tally.advertised = self.has_reports().then_some(sums);
        tally
    }

    fn is_foreign(&self, row: &ServiceRow, address: &IpAddr) -> bool {
        let claim = self.rows.claims.get(address);
        claim.is_some_and(|claim| claim.services.iter().all(|service| service.uid != row.uid))
    }

    /// The state of an address for one of its Services: without an endpoint of its own, it does not
    /// matter that nodes advertise the address for another Service.
    fn state_of(&self, key: &Key, address: IpAddr) -> Option<Advertisement> {
        let state = self.advertisement(address, self.rows.claims.get(&address)?)?;
        let serves = self.endpoints.has(key, address.is_ipv6());
        Some(if serves { state } else { Advertisement::NoEndpoint })
    }
}
