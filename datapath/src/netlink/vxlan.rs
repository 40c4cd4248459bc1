//! VXLAN devices (RFC 7348) and their forwarding entries.
//!
//! A device is created without a multicast group and without learning. It sends only to the VTEPs
//! in its forwarding database. It drops frames for other MAC addresses, broadcast and multicast
//! included.
//!
//! The device is not tied to a link (IFLA_VXLAN_LINK). Its local address is the source of its
//! packets, and the host's routes select the link. So a node with two uplinks uses both.
//!
//! The kernel stores no protocol number for forwarding entries. All entries of a Trunkline device
//! count as Trunkline's.

use std::net::IpAddr;

use netlink_packet_core::{
    Emitable, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, ParseableParametrized,
};
use netlink_packet_route::link::{InfoData, InfoKind, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo as Info};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourHeader, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::message::{Batch, attributes};
use super::objects::link;
use crate::plan::FdbEntry;

/// Settings of a VXLAN device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VxlanInfo {
    /// The VNI.
    pub vni: u32,
    /// The source address of tunnel packets.
    pub local: IpAddr,
    /// Its UDP port.
    pub port: u16,
}

impl VxlanInfo {
    /// None for a device without a local address. Trunkline creates no such device.
    pub(super) fn of(settings: &[InfoVxlan]) -> Option<VxlanInfo> {
        let (mut vni, mut local, mut port) = (None, None, None);
        for setting in settings {
            match setting {
                InfoVxlan::Id(id) => vni = Some(*id),
                InfoVxlan::Local(address) => local = Some(IpAddr::V4(*address)),
                InfoVxlan::Local6(address) => local = Some(IpAddr::V6(*address)),
                InfoVxlan::Port(number) => port = Some(*number),
                _ => {}
            }
        }
        Some(VxlanInfo { vni: vni?, local: local?, port: port? })
    }
}

impl Batch {
    /// Creates a VXLAN device. It is down.
    pub fn create_vxlan(&mut self, name: &str, device: &VxlanInfo, mac: [u8; 6], mtu: u32) {
        let settings = vec![
            InfoVxlan::Id(device.vni),
            match device.local {
                IpAddr::V4(address) => InfoVxlan::Local(address),
                IpAddr::V6(address) => InfoVxlan::Local6(address),
            },
            InfoVxlan::Port(device.port),
            InfoVxlan::Learning(false),
        ];
        let attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Address(mac.to_vec()),
            LinkAttribute::Mtu(mtu),
            LinkAttribute::LinkInfo(vec![Info::Kind(InfoKind::Vxlan), Info::Data(InfoData::Vxlan(settings))]),
        ];
        let message = link(0, LinkFlags::empty(), attributes);
        self.push(NLM_F_CREATE | NLM_F_EXCL, RouteNetlinkMessage::NewLink(message));
    }

    /// Adds or replaces a forwarding entry.
    pub fn put_fdb(&mut self, entry: &FdbEntry) {
        let mut message = fdb(entry);
        message.header.state = NeighbourState::Permanent;
        self.push(NLM_F_CREATE | NLM_F_REPLACE, RouteNetlinkMessage::NewNeighbour(message));
    }

    /// Deletes a forwarding entry.
    pub fn delete_fdb(&mut self, entry: &FdbEntry) {
        self.push(0, RouteNetlinkMessage::DelNeighbour(fdb(entry)));
    }

    /// Lists the forwarding entries of one device.
    pub fn dump_fdb(&mut self, ifindex: u32) {
        let mut message = NeighbourMessage::default();
        message.header =
            NeighbourHeader { family: AddressFamily::Bridge, ifindex, ..NeighbourHeader::default() };
        self.push(NLM_F_DUMP, RouteNetlinkMessage::GetNeighbour(message));
    }
}

fn fdb(entry: &FdbEntry) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header = NeighbourHeader {
        family: AddressFamily::Bridge,
        ifindex: entry.ifindex,
        flags: NeighbourFlags::Own,
        ..NeighbourHeader::default()
    };
    message.attributes = vec![
        NeighbourAttribute::LinkLayerAddress(entry.mac.to_vec()),
        NeighbourAttribute::Destination(entry.vtep.into()),
    ];
    message
}

/// Reads a forwarding entry of a VXLAN device, of any program. None for other kinds of devices:
/// their entries have no destination address.
pub fn read_fdb(body: &[u8]) -> Option<FdbEntry> {
    let header = NeighbourHeader::parse(body).ok()?;
    if header.family != AddressFamily::Bridge {
        return None;
    }
    let (mut mac, mut vtep) = (None, None);
    let read = |nla: &_| NeighbourAttribute::parse_with_param(nla, header.family);
    const WANTED: &[u16] = &[libc::NDA_DST, libc::NDA_LLADDR];
    for attribute in attributes(&body[header.buffer_len()..], WANTED, read) {
        match attribute {
            NeighbourAttribute::LinkLayerAddress(address) => mac = address.try_into().ok(),
            // The header's family can differ from the family of the address. The length of the
            // address shows its family.
            NeighbourAttribute::Destination(NeighbourAddress::Other(octets)) => {
                let v4 = <[u8; 4]>::try_from(octets.as_slice()).map(IpAddr::from);
                vtep = v4.or_else(|_| <[u8; 16]>::try_from(octets.as_slice()).map(IpAddr::from)).ok();
            }
            _ => {}
        }
    }
    Some(FdbEntry { ifindex: header.ifindex, mac: mac?, vtep: vtep? })
}

#[cfg(test)]
mod tests {
    use super::super::message::messages;
    use super::super::objects::read_link;
    use super::*;
    use crate::plan::LinkKind;

    #[test]
    fn vxlan_device_is_parsed_as_encoded() {
        for local in ["192.0.2.1", "2001:db8::1"] {
            let device = VxlanInfo { vni: 0x00ab_cdef, local: local.parse().unwrap(), port: 8472 };
            let mut batch = Batch::new();
            batch.create_vxlan("eth0.vxlan9", &device, [2, 1, 2, 3, 4, 5], 1450);
            let read = read_link(messages(&batch.buffer).next().unwrap().body).unwrap();
            let VxlanInfo { vni, local, port } = device;
            let kind = LinkKind::Vxlan { vni, local, port, mac: [2, 1, 2, 3, 4, 5] };
            assert_eq!(read.planned_kind(), Some(kind));
            assert_eq!((read.name.as_str(), read.mtu), ("eth0.vxlan9", 1450));
        }
    }

    #[test]
    fn fdb_entry_is_parsed_as_encoded() {
        for vtep in ["192.0.2.9", "2001:db8::9"] {
            let entry = FdbEntry { ifindex: 7, mac: [2, 0, 0, 0, 0, 9], vtep: vtep.parse().unwrap() };
            let mut batch = Batch::new();
            batch.put_fdb(&entry);
            assert_eq!(read_fdb(messages(&batch.buffer).next().unwrap().body), Some(entry));
        }
        assert_eq!(read_fdb(&[2; 8]), None);
    }
}
