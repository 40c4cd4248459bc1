//! Links of a plan: 802.1Q devices, and the requests that all kinds share.
//!
//! A device is created with a temporary name that no other program uses. The request for its alias
//! is in the same `send`, and the kernel processes the whole `send` even if this process is killed
//! meanwhile. So no device without an alias remains. A device that another program has just created
//! with the wanted name is never treated as Trunkline's. The next request sets the wanted name
//! ([`Batch::name_link`]). If the kernel refuses it, the device is deleted.

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoData, InfoKind, InfoVlan, LinkAttribute, LinkFlags, LinkInfo as Info};

use super::message::Batch;
use super::objects::link;

/// The VLAN ID in the attributes of a VLAN device.
pub(super) fn vlan_id(settings: &[InfoVlan]) -> Option<u16> {
    settings.iter().find_map(|setting| match setting {
        InfoVlan::Id(id) => Some(*id),
        _ => None,
    })
}

impl Batch {
    /// Creates an 802.1Q device on the link with index `parent`. It is down.
    pub fn create_vlan(&mut self, name: &str, parent: u32, id: u16, mtu: u32) {
        let info = vec![Info::Kind(InfoKind::Vlan), Info::Data(InfoData::Vlan(vec![InfoVlan::Id(id)]))];
        let attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Link(parent),
            LinkAttribute::Mtu(mtu),
            LinkAttribute::LinkInfo(info),
        ];
        let message = link(0, LinkFlags::empty(), attributes);
        self.push(NLM_F_CREATE | NLM_F_EXCL, RouteNetlinkMessage::NewLink(message));
    }

    /// Sets the alias of a link that is known only by name.
    pub fn mark_link(&mut self, name: &str, alias: &str) {
        let attributes =
            vec![LinkAttribute::IfName(name.to_owned()), LinkAttribute::IfAlias(alias.to_owned())];
        self.push(0, RouteNetlinkMessage::SetLink(link(0, LinkFlags::empty(), attributes)));
    }

    /// Renames a link that is down.
    pub fn name_link(&mut self, index: u32, name: &str) {
        let attributes = vec![LinkAttribute::IfName(name.to_owned())];
        self.push(0, RouteNetlinkMessage::SetLink(link(index, LinkFlags::empty(), attributes)));
    }

    /// Sets alias and MTU of a link.
    pub fn set_link(&mut self, index: u32, alias: &str, mtu: u32) {
        let attributes = vec![LinkAttribute::IfAlias(alias.to_owned()), LinkAttribute::Mtu(mtu)];
        self.push(0, RouteNetlinkMessage::SetLink(link(index, LinkFlags::empty(), attributes)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::messages;
    use super::super::objects::read_link;
    use super::*;
    use crate::plan::LinkKind;

    #[test]
    fn vlan_device_is_parsed_as_encoded() {
        let mut batch = Batch::new();
        batch.create_vlan("eth0.10", 7, 10, 1500);
        let message = messages(&batch.buffer).next().unwrap();
        let read = read_link(message.body).unwrap();
        assert_eq!(read.planned_kind(), Some(LinkKind::Vlan { parent: 7, id: 10 }));
        assert_eq!((read.name.as_str(), read.mtu), ("eth0.10", 1500));
    }
}
