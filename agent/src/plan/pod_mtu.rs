//! The configured MTU of pods. It only lowers the MTU that follows from the links: a pod with a
//! larger one would send packets that its node drops.

use super::Plan;

/// The MTU of a device without a known link below it, in octets.
const DEFAULT: u32 = 1500;

pub(super) fn plan(mtu: Option<u16>, plan: &mut Plan) {
    let Some(mtu) = mtu.map(u32::from) else { return };
    for network in plan.networks.values_mut() {
        network.mtu = Some(network.mtu.unwrap_or(DEFAULT).min(mtu));
    }
    plan.probes.mtu = plan.probes.mtu.min(mtu);
}
