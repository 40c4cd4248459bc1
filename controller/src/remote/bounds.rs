//! Bounds of a single object of a remote cluster. Its API server may answer with any text, and the
//! controller writes a part of it into this cluster. An object above a bound is left out, alone.

use trunkline_api::kept::MAX_NAME;
use trunkline_api::resources::{AddressRange, VtepInfo};

use super::slices::Slice;

/// Most entries of `spec.vtepInfo.localIPs` of a NodeInfo: a Node has no more addresses.
pub const MAX_LOCAL_IPS: usize = 64;
/// Most endpoints of an EndpointSlice, as in Kubernetes.
pub const MAX_ENDPOINTS: usize = 1_000;
/// Most addresses of an endpoint of an EndpointSlice, as in Kubernetes.
pub const MAX_ENDPOINT_ADDRESSES: usize = 100;
/// Most addresses of pods on a node.
pub const MAX_NODE_ENDPOINTS: usize = 4_096;
/// Most octets of an object, with 32 octets for each entry of a list.
pub const MAX_OBJECT: usize = 512 << 10;
/// Most octets of all objects of a remote cluster that the controller keeps.
pub const MAX_VIEW: usize = 384 << 20;
/// Most octets of an address, and of a MAC: the CRD of RemoteVteps has the same bounds.
const MAX_ADDRESS: usize = 45;
const MAX_MAC: usize = 17;
/// The octets of an entry of a list besides its texts.
const ENTRY: usize = 32;
/// The octets of a row besides its texts.
const ROW: usize = 128;

/// A part of an object exceeds its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} has {figure} {unit}, and at most {bound} are allowed: write fewer or shorter values")]
pub struct AboveBound {
    field: &'static str,
    figure: usize,
    unit: &'static str,
    bound: usize,
}

fn most(field: &'static str, figure: usize, unit: &'static str, bound: usize) -> Result<(), AboveBound> {
    if figure > bound { Err(AboveBound { field, figure, unit, bound }) } else { Ok(()) }
}

/// A text of at most [`MAX_NAME`] octets.
fn short(field: &'static str, text: &str) -> Result<usize, AboveBound> {
    most(field, text.len(), "octets", MAX_NAME)?;
    Ok(text.len())
}

fn all_short<'a>(
    field: &'static str,
    texts: impl IntoIterator<Item = &'a String>,
) -> Result<usize, AboveBound> {
    texts.into_iter().try_fold(0, |sum, text| Ok(sum + short(field, text)?))
}

fn list(field: &'static str, texts: &[String]) -> Result<usize, AboveBound> {
    Ok(all_short(field, texts)? + texts.len() * ENTRY)
}

/// The octets of a row with these names.
///
/// # Errors
/// A name is too long.
pub fn names<'a>(
    field: &'static str,
    names: impl IntoIterator<Item = &'a String>,
) -> Result<usize, AboveBound> {
    Ok(ROW + all_short(field, names)?)
}

/// The octets of the addresses of a Subnet.
///
/// # Errors
/// They exceed a bound.
pub fn range(range: &AddressRange) -> Result<usize, AboveBound> {
    let octets = all_short("spec.range", [&range.cidr, &range.start, &range.end, &range.gateway])?
        + list("spec.range.reservedIPs", &range.reserved_ips)?
        + list("spec.range.excludeIPs", &range.exclude_ips)?;
    most("spec.range", octets, "octets", MAX_OBJECT)?;
    Ok(octets)
}

/// The octets of the tunnel endpoint of a node.
///
/// # Errors
/// It exceeds a bound.
pub fn vtep(vtep: &VtepInfo) -> Result<usize, AboveBound> {
    most("spec.vtepInfo.localIPs", vtep.local_ips.len(), "entries", MAX_LOCAL_IPS)?;
    most("spec.vtepInfo.ip", vtep.ip.len(), "octets", MAX_ADDRESS)?;
    most("spec.vtepInfo.mac", vtep.mac.len(), "octets", MAX_MAC)?;
    for address in &vtep.local_ips {
        most("an entry of spec.vtepInfo.localIPs", address.len(), "octets", MAX_ADDRESS)?;
    }
    Ok(vtep.ip.len() + vtep.mac.len() + list("spec.vtepInfo.localIPs", &vtep.local_ips)?)
}

/// The octets of an EndpointSlice.
///
/// # Errors
/// It exceeds a bound.
pub fn slice(slice: &Slice) -> Result<usize, AboveBound> {
    most("endpoints", slice.endpoints.len(), "entries", MAX_ENDPOINTS)?;
    let mut octets = short("the label with its Service", &slice.service)?;
    octets += short("addressType", &slice.address_type)?;
    for endpoint in &slice.endpoints {
        most("endpoints[].addresses", endpoint.addresses.len(), "entries", MAX_ENDPOINT_ADDRESSES)?;
        octets += ENTRY + list("endpoints[].addresses", &endpoint.addresses)?;
        octets += all_short("endpoints", endpoint.hostname.iter().chain(&endpoint.zone))?;
    }
    for port in &slice.ports {
        let texts = port.name.iter().chain(&port.protocol).chain(&port.app_protocol);
        octets += ENTRY + all_short("ports", texts)?;
    }
    most("the EndpointSlice", octets, "octets", MAX_OBJECT)?;
    Ok(octets)
}
