//! A link between a user-mode kernel and a network namespace of the machine: a tap device in the
//! namespace, and a vector device in the kernel. The link carries no routed traffic. So a service
//! of the machine needs a listening socket in that namespace.

use std::net::Ipv4Addr;

use anyhow::Result;

use crate::fabric::Place;
use crate::netns::Namespace;

/// The address of the machine's end.
pub(crate) const MACHINE: Ipv4Addr = Ipv4Addr::new(169, 254, 99, 1);

/// The address of the kernel's end, and the length of both prefixes.
pub(super) const INSIDE: Ipv4Addr = Ipv4Addr::new(169, 254, 99, 2);
pub(super) const LENGTH: u8 = 30;

/// The device in the kernel.
pub(super) const DEVICE: &str = "vec0";

const TAP: &str = "tap0";

/// The namespace with the machine's end. A drop deletes it.
pub(crate) struct Link {
    ns: Namespace,
}

impl Link {
    pub(crate) fn create(place: &Place) -> Result<Self> {
        let ns = Namespace::named(&place.namespace("uml", "link"));
        // A killed lab may have left this namespace.
        ns.delete()?;
        let link = Self { ns: Namespace::create(ns.name())? };
        link.ns.ip(["tuntap", "add", "dev", TAP, "mode", "tap"])?;
        link.ns.ip(["addr", "add", &format!("{MACHINE}/{LENGTH}"), "dev", TAP])?;
        link.ns.ip(["link", "set", TAP, "up"])?;
        Ok(link)
    }

    pub(crate) fn namespace(&self) -> &Namespace {
        &self.ns
    }

    /// Option for the kernel's command line.
    pub(super) fn option() -> String {
        format!("{DEVICE}:transport=tap,ifname={TAP},depth=128,gro=1")
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The next lab deletes leftovers.
        let _left = self.ns.delete();
    }
}
