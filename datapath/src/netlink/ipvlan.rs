//! IPVLAN slaves in pods. The requests create, find and delete them from the host's namespace,
//! without entering the pod's namespace.

use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    AfSpecInet, AfSpecUnspec, InetDevConf, InfoData, InfoIpVlan, InfoKind, IpVlanMode, LinkAttribute,
    LinkFlags, LinkInfo as Info,
};

use super::message::Batch;
use super::objects::{link, no_statistics};

impl Batch {
    /// Creates a slave of the link `parent` of this namespace, in L2 mode, in the namespace `pod`.
    /// It is down. MTU: the parent's if none.
    pub fn create_ipvlan(&mut self, name: &str, parent: u32, mtu: Option<u32>, pod: BorrowedFd<'_>) {
        let data = InfoData::IpVlan(vec![InfoIpVlan::Mode(IpVlanMode::L2)]);
        let mut attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Link(parent),
            LinkAttribute::NetNsFd(pod.as_raw_fd()),
            LinkAttribute::LinkInfo(vec![Info::Kind(InfoKind::IpVlan), Info::Data(data)]),
        ];
        attributes.extend(mtu.map(LinkAttribute::Mtu));
        let message = link(0, LinkFlags::empty(), attributes);
        self.push(NLM_F_CREATE | NLM_F_EXCL, RouteNetlinkMessage::NewLink(message));
    }

    /// Renames a link that is down.
    pub fn rename(&mut self, index: u32, name: &str) {
        let message = link(index, LinkFlags::empty(), vec![LinkAttribute::IfName(name.to_owned())]);
        self.push(0, RouteNetlinkMessage::SetLink(message));
    }

    /// Configures a link of a pod that has a slave: its alias, and a loose check of sources. The
    /// check is loose because the reply to a packet may leave by the other link.
    pub fn set_pod_link(&mut self, index: u32, alias: &str) {
        let mut settings = InetDevConf::default();
        settings.rp_filter = 2;
        let attributes = vec![
            LinkAttribute::IfAlias(alias.to_owned()),
            LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet(vec![AfSpecInet::DevConfRequest(settings)])]),
        ];
        self.push(0, RouteNetlinkMessage::SetLink(link(index, LinkFlags::empty(), attributes)));
    }

    /// Requests a link in the namespace with this ID (IFLA_LINK_NETNSID).
    pub fn get_link_in(&mut self, netns_id: i32, name: &str) {
        let attributes =
            vec![LinkAttribute::IfNetnsId(netns_id), LinkAttribute::IfName(name.to_owned()), no_statistics()];
        self.push(0, RouteNetlinkMessage::GetLink(link(0, LinkFlags::empty(), attributes)));
    }

    /// Deletes a link in the namespace with this ID.
    pub fn delete_link_in(&mut self, netns_id: i32, index: u32) {
        let message = link(index, LinkFlags::empty(), vec![LinkAttribute::IfNetnsId(netns_id)]);
        self.push(0, RouteNetlinkMessage::DelLink(message));
    }
}
