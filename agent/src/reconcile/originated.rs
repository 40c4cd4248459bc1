//! Prefixes with their originations, in compact form.
//!
//! A node with 10,000 service addresses has as many prefixes, and nearly all of them have equal
//! originations. An [`Origination`] needs 120 octets, so equal ones are shared.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;
use trunkline_bgp::rib::Origination;

use super::bgp::Prefixes;

/// New originations are compared with this number of recent ones.
const RECENT: usize = 8;

/// Prefixes with their originations.
#[derive(Debug, Default)]
pub(super) struct OriginatedPrefixes {
    prefixes: BTreeMap<IpNet, Arc<Origination>>,
    /// Different originations, the latest one first.
    recent: Vec<Arc<Origination>>,
}

impl OriginatedPrefixes {
    pub(super) fn get(&self, prefix: &IpNet) -> Option<&Origination> {
        self.prefixes.get(prefix).map(|origination| &**origination)
    }

    pub(super) fn insert(&mut self, prefix: IpNet, origination: &Origination) {
        let shared = share(&mut self.recent, origination);
        self.prefixes.insert(prefix, shared);
    }

    /// Removes a prefix. Returns whether it was there.
    pub(super) fn remove(&mut self, prefix: &IpNet) -> bool {
        self.prefixes.remove(prefix).is_some()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&IpNet, &Origination)> {
        self.prefixes.iter().map(|(prefix, origination)| (prefix, &**origination))
    }
}

impl From<&Prefixes> for OriginatedPrefixes {
    fn from(prefixes: &Prefixes) -> OriginatedPrefixes {
        let mut recent = Vec::new();
        let shared = prefixes.iter().map(|(prefix, of)| (*prefix, share(&mut recent, of))).collect();
        OriginatedPrefixes { prefixes: shared, recent }
    }
}

/// The recent origination that equals this one, or a new one.
fn share(recent: &mut Vec<Arc<Origination>>, origination: &Origination) -> Arc<Origination> {
    if let Some(index) = recent.iter().position(|of| **of == *origination) {
        return Arc::clone(&recent[index]);
    }
    let new = Arc::new(origination.clone());
    recent.insert(0, Arc::clone(&new));
    recent.truncate(RECENT);
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_originations_are_shared() {
        let mut prefixes = OriginatedPrefixes::default();
        let prefix = |last: u8| IpNet::from(std::net::IpAddr::from([10, 9, 0, last]));
        let with_med = |med| Origination { med: Some(med), ..Origination::default() };
        for last in 0..4 {
            prefixes.insert(prefix(last), &with_med(u32::from(last % 2)));
        }
        assert!(Arc::ptr_eq(&prefixes.prefixes[&prefix(0)], &prefixes.prefixes[&prefix(2)]));
        assert_eq!(prefixes.get(&prefix(3)), Some(&with_med(1)));
        for med in 0..100 {
            prefixes.insert(prefix(9), &with_med(med));
        }
        assert_eq!((prefixes.recent.len(), prefixes.get(&prefix(9))), (RECENT, Some(&with_med(99))));
        assert!(prefixes.remove(&prefix(9)) && !prefixes.remove(&prefix(9)));
        assert_eq!(prefixes.iter().count(), 4);
    }
}
