//! Service addresses in the fabric: pools, advertisements, the service proxy, and anycast addresses.
//! A real API server, real routers, and the test as the rest of the cluster.

mod admission;
mod advertise;
mod anycast;
mod faults;
mod l2;
mod life;
mod local_service;
pub(in crate::tests) mod metallb;
mod node_death;
mod own_crds;
mod pools;
mod proxy;
mod rolling;
pub(in crate::tests) mod storm;
mod truth;
mod world;

use super::{Context, Test, Verdict};

pub(super) const TESTS: &[&[Test]] = &[
    pools::TESTS,
    &[
        advertise::TEST,
        proxy::TEST,
        truth::TEST,
        rolling::TEST,
        node_death::TEST,
        anycast::TEST,
        l2::TEST,
        metallb::TEST,
        own_crds::TEST,
    ],
];
