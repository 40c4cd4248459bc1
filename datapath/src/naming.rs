//! Names of the links of an attachment: host interfaces, the devices that limit bandwidth, aliases,
//! default MAC addresses.
//!
//! All names are functions of container ID and interface name, so a later attempt finds the links
//! of an earlier one.

use std::fmt;

use trunkline_api::resources::AttachmentKind;

/// Prefix of the alias of every Trunkline link.
pub const ALIAS_PREFIX: &str = "trunkline:";
/// Suffix in the alias of a veth pair whose pod also has an IPVLAN slave.
const IPVLAN_MARK: &str = ":ipvlan";
/// Suffix in the alias of a veth pair with policy rules in the pod.
const SECOND_MARK: &str = ":second";

/// FNV-1a, 64 bits. All versions of this program must compute the same names, so this is not a
/// library's hash.
fn stable_hash(container_id: &str, ifname: &str) -> u64 {
    [container_id.as_bytes(), &[0], ifname.as_bytes()]
        .into_iter()
        .flatten()
        .fold(0xcbf2_9ce4_8422_2325, |hash, octet| (hash ^ u64::from(*octet)).wrapping_mul(0x0100_0000_01b3))
}

/// Name of the host interface: `tl` and 12 hex digits.
pub fn host_ifname(container_id: &str, ifname: &str) -> String {
    // FNV mixes the high bits well, so the hash is folded into 48 bits.
    let hash = stable_hash(container_id, ifname);
    format!("tl{:012x}", (hash ^ (hash >> 48)) & 0xffff_ffff_ffff)
}

/// The `ifb` device of a host interface; none if the name is not a host interface's.
pub fn ifb_name(host_ifname: &str) -> Option<String> {
    host_ifname.strip_prefix("tl").map(|hash| format!("tb{hash}"))
}

/// The host interface of an `ifb` device; none if the name is not such a device's.
pub fn pair_name(ifb_name: &str) -> Option<String> {
    ifb_name.strip_prefix("tb").map(|hash| format!("tl{hash}"))
}

/// The alias of an attachment's links: owner and kind, for operators, for DEL and for the next
/// start of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alias<'a> {
    /// The container ID, at most its first 64 characters.
    pub container_id: &'a str,
    /// The interface name in the container.
    pub ifname: &'a str,
    /// The kind of attachment.
    pub kind: AttachmentKind,
    /// The interface is an additional one of the pod, and has policy rules in the pod.
    pub second: bool,
}

impl<'a> Alias<'a> {
    /// The alias of an attachment.
    pub fn new(container_id: &'a str, ifname: &'a str, kind: AttachmentKind, second: bool) -> Alias<'a> {
        let end = container_id.char_indices().nth(64).map_or(container_id.len(), |(at, _)| at);
        Alias { container_id: &container_id[..end], ifname, kind, second }
    }

    /// Parses an alias. Missing parts are empty; all are empty if the alias is not Trunkline's.
    pub fn read(alias: &'a str) -> Alias<'a> {
        let named = alias.strip_prefix(ALIAS_PREFIX).unwrap_or_default();
        let marked =
            |named: &'a str, mark| named.strip_suffix(mark).map_or((named, false), |rest| (rest, true));
        let (named, second) = marked(named, SECOND_MARK);
        let (named, ipvlan) = marked(named, IPVLAN_MARK);
        // An interface name contains no colon.
        let (container_id, ifname) = named.rsplit_once(':').unwrap_or((named, ""));
        let kind = if ipvlan { AttachmentKind::Ipvlan } else { AttachmentKind::Veth };
        Alias { container_id, ifname, kind, second }
    }
}

impl fmt::Display for Alias<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Alias { container_id, ifname, kind, second } = self;
        let ipvlan = if *kind == AttachmentKind::Ipvlan { IPVLAN_MARK } else { "" };
        let second = if *second { SECOND_MARK } else { "" };
        write!(f, "{ALIAS_PREFIX}{container_id}:{ifname}{ipvlan}{second}")
    }
}

/// Default MAC address of the pod interface: hybridnet's prefix, and 24 bits that stay the same for
/// the attachment.
pub fn default_mac(container_id: &str, ifname: &str) -> [u8; 6] {
    let hash = stable_hash(container_id, ifname).to_be_bytes();
    [0x02, 0x12, 0x34, hash[0] ^ hash[5], hash[1] ^ hash[6], hash[2] ^ hash[7]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alias_is_parsed_into_its_parts() {
        for (kind, second, text) in [
            (AttachmentKind::Veth, false, "trunkline:c-1:eth0"),
            (AttachmentKind::Ipvlan, false, "trunkline:c-1:eth0:ipvlan"),
            (AttachmentKind::Veth, true, "trunkline:c-1:eth0:second"),
            (AttachmentKind::Ipvlan, true, "trunkline:c-1:eth0:ipvlan:second"),
        ] {
            let alias = Alias::new("c-1", "eth0", kind, second);
            assert_eq!((alias.to_string().as_str(), Alias::read(text)), (text, alias));
        }
        let long = "c".repeat(70);
        assert_eq!(Alias::new(&long, "eth0", AttachmentKind::Veth, false).container_id, &long[..64]);
        let none = Alias::read("somebody's");
        assert_eq!((none.container_id, none.ifname, none.second), ("", "", false));
    }

    #[test]
    fn names_of_pair_and_ifb_map_to_each_other() {
        assert_eq!(ifb_name("tl0123456789ab").as_deref(), Some("tb0123456789ab"));
        assert_eq!(pair_name("tb0123456789ab").as_deref(), Some("tl0123456789ab"));
        assert_eq!((ifb_name("eth0"), pair_name("tl0123456789ab")), (None, None));
    }
}
