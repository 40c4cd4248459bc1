//! Names of the links of an attachment: host interfaces, the devices that limit bandwidth, aliases, default MAC addresses.
//!
//! They are functions of container and interface, so that whatever an earlier attempt left is found again.

use std::fmt;

use trunkline_api::resources::AttachmentKind;

/// What every own link's alias starts with.
pub const ALIAS_PREFIX: &str = "trunkline:";
/// What the alias of a pair says that stands beside an IPVLAN slave.
const IPVLAN_MARK: &str = ":ipvlan";
/// What the alias of a pair ends with that has rules in the pod.
const SECOND_MARK: &str = ":second";

/// FNV-1a, 64 bits: a name must be the same for every version of this program, so no library's hash.
fn stable_hash(container_id: &str, ifname: &str) -> u64 {
    [container_id.as_bytes(), &[0], ifname.as_bytes()]
        .into_iter()
        .flatten()
        .fold(0xcbf2_9ce4_8422_2325, |hash, octet| (hash ^ u64::from(*octet)).wrapping_mul(0x0100_0000_01b3))
}

/// Name of the host's end: `tl` and 12 hex digits.
pub fn host_ifname(container_id: &str, ifname: &str) -> String {
    // FNV's high bits are the well mixed ones; fold both halves into 48 bits.
    let hash = stable_hash(container_id, ifname);
    format!("tl{:012x}", (hash ^ (hash >> 48)) & 0xffff_ffff_ffff)
}

/// The `ifb` device of a pair; none of a name that is not a pair's.
pub fn ifb_name(host_ifname: &str) -> Option<String> {
    host_ifname.strip_prefix("tl").map(|hash| format!("tb{hash}"))
}

/// The pair of an `ifb` device; none of a name that is not such a device's.
pub fn pair_name(ifb_name: &str) -> Option<String> {
    ifb_name.strip_prefix("tb").map(|hash| format!("tl{hash}"))
}

/// What the alias of an attachment's links says: whose they are and what they are, for people, for DEL and for the next start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alias<'a> {
    /// The container, at most its first 64 characters.
    pub container_id: &'a str,
    /// The interface in it.
    pub ifname: &'a str,
    /// How it is joined.
    pub kind: AttachmentKind,
    /// It is a pod's further interface, and has left rules there.
    pub second: bool,
}

impl<'a> Alias<'a> {
    /// The alias of an attachment.
    pub fn new(container_id: &'a str, ifname: &'a str, kind: AttachmentKind, second: bool) -> Alias<'a> {
        let end = container_id.char_indices().nth(64).map_or(container_id.len(), |(at, _)| at);
        Alias { container_id: &container_id[..end], ifname, kind, second }
    }

    /// Reads one. What is not there, or not ours, is empty.
    pub fn read(alias: &'a str) -> Alias<'a> {
        let named = alias.strip_prefix(ALIAS_PREFIX).unwrap_or_default();
        let marked =
            |named: &'a str, mark| named.strip_suffix(mark).map_or((named, false), |rest| (rest, true));
        let (named, second) = marked(named, SECOND_MARK);
        let (named, ipvlan) = marked(named, IPVLAN_MARK);
        // No interface's name has a colon.
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

/// MAC of the pod's end where none was asked for: hybridnet's prefix, and 24 bits that stay the same for the attachment.
pub fn default_mac(container_id: &str, ifname: &str) -> [u8; 6] {
    let hash = stable_hash(container_id, ifname).to_be_bytes();
    [0x02, 0x12, 0x34, hash[0] ^ hash[5], hash[1] ^ hash[6], hash[2] ^ hash[7]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alias_says_what_it_was_made_of() {
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
    fn the_names_of_a_pair_and_its_ifb_lead_to_each_other() {
        assert_eq!(ifb_name("tl0123456789ab").as_deref(), Some("tb0123456789ab"));
        assert_eq!(pair_name("tb0123456789ab").as_deref(), Some("tl0123456789ab"));
        assert_eq!((ifb_name("eth0"), pair_name("tl0123456789ab")), (None, None));
    }
}
