//! Enums that are names in JSON. The names are an interface: they are added to and never renamed.
//!
//! A reader turns a name of a later version into `Unknown`, so an older `trunkline` command still
//! understands a newer agent.

use serde::{Deserialize, Serialize};

/// Defines an enum with a name in JSON for each value, and `Unknown` for every other name.
macro_rules! names {
    ($(#[$meta:meta])* pub enum $type:ident { $($(#[$doc:meta])* $value:ident = $name:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $type {
            $($(#[$doc])* #[serde(rename = $name)] $value,)+
            /// A name that this version does not know.
            #[serde(rename = "unknown", other)]
            Unknown,
        }

        impl $type {
            /// Every value but `Unknown`.
            pub const ALL: &'static [$type] = &[$($type::$value),+];

            /// The name in JSON and in tables.
            pub const fn name(self) -> &'static str {
                match self {
                    $($type::$value => $name,)+
                    $type::Unknown => "unknown",
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

pub(super) use names;

names! {
    /// State of a BGP peer (RFC 4271 §8.2.2).
    #[derive(Default)]
    pub enum PeerState {
        /// No attempt is made now.
        #[default]
        Idle = "Idle",
        /// A TCP connection is being opened.
        Connect = "Connect",
        /// The speaker waits for a connection of the peer, and for its own next attempt.
        Active = "Active",
        /// OPEN was sent.
        OpenSent = "OpenSent",
        /// Both sides sent OPEN.
        OpenConfirm = "OpenConfirm",
        /// The peers exchange UPDATEs.
        Established = "Established",
    }
}

names! {
    /// State of a BFD session (RFC 5880 §6.2).
    pub enum BfdState {
        /// Disabled by an operator.
        AdminDown = "AdminDown",
        /// No packets arrive.
        Down = "Down",
        /// Packets arrive in one direction.
        Init = "Init",
        /// Packets arrive in both directions.
        Up = "Up",
    }
}

/// The reason why a BFD session last left Up (RFC 5880 §4.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BfdDiagnostic {
    /// There is no reason.
    #[serde(rename = "No Diagnostic")]
    None,
    /// The reason in RFC 5880's words.
    #[serde(untagged)]
    Text(String),
}

names! {
    /// How a network reaches its pods.
    pub enum Mode {
        /// BGP routes, the subnet and each pod.
        Bgp = "BGP",
        /// BGP routes, the pods only.
        GlobalBgp = "GlobalBGP",
        /// A VLAN of the node's link.
        Vlan = "VLAN",
        /// A VXLAN tunnel.
        Vxlan = "VXLAN",
    }
}

names! {
    /// State of an attachment.
    pub enum PodState {
        /// ADD runs, or ended before it was done.
        Attaching = "attaching",
        /// ADD is done.
        Attached = "attached",
        /// ADD is done, and the pod's virtual machine moves to another node.
        Departing = "departing",
        /// ADD is done, and the pod of another node runs the virtual machine.
        Inactive = "inactive",
        /// The interface is gone; the addresses are still allocated.
        Broken = "broken",
        /// The interface is in the kernel and not in the store.
        Unrecorded = "unrecorded",
    }
}

names! {
    /// ORIGIN (RFC 4271 §5.1.1).
    pub enum RouteOrigin {
        /// Originated within the AS.
        Igp = "igp",
        /// Learned by EGP.
        Egp = "egp",
        /// Learned by other means.
        Incomplete = "incomplete",
    }
}

names! {
    /// Result of the decision process for a path.
    pub enum PathStanding {
        /// The best path.
        Best = "best",
        /// In use together with the best path.
        Used = "used",
        /// Not selected.
        Lost = "lost",
        /// Rejected before the decision.
        Refused = "refused",
        /// Not decided yet after a restart.
        Waiting = "waiting",
    }
}

names! {
    /// Result of the export of a path to a peer.
    pub enum ExportStanding {
        /// The peer has the path.
        Advertised = "advertised",
        /// The path will be advertised.
        Pending = "pending",
        /// The path is not advertised.
        Withheld = "withheld",
        /// The path was advertised; its withdrawal is pending.
        Withdrawing = "withdrawing",
    }
}

names! {
    /// The network namespace of a stage of a packet path.
    pub enum Place {
        /// The pod's.
        Pod = "pod",
        /// The node's.
        Node = "node",
    }
}

names! {
    /// Type of a kernel route (`RTN_*`).
    pub enum RouteKind {
        /// The route leads to next hops.
        Unicast = "unicast",
        /// The destination is an address of this namespace.
        Local = "local",
        /// The destination is a broadcast address.
        Broadcast = "broadcast",
        /// The destination is an anycast address of this namespace.
        Anycast = "anycast",
        /// The destination is a multicast group.
        Multicast = "multicast",
        /// The kernel drops the packet.
        Blackhole = "blackhole",
        /// The kernel drops the packet and sends host unreachable.
        Unreachable = "unreachable",
        /// The kernel drops the packet and sends administratively prohibited.
        Prohibit = "prohibit",
        /// The look-up goes on with the next rule.
        Throw = "throw",
    }
}

names! {
    /// Kinds of reasons for which no pod can be attached.
    pub enum NotReadyKind {
        /// The manifests were not read yet, or the API server has not sent every object.
        Source = "source",
        /// The manifests are refused.
        Manifests = "manifests",
        /// No Network selects this node.
        NoNetwork = "noNetwork",
        /// Every Network of this node is refused.
        Networks = "networks",
        /// The device of a Subnet carries nothing.
        SubnetDevice = "subnetDevice",
        /// The store cannot be used.
        Store = "store",
        /// The guard is not in force.
        Guard = "guard",
        /// The BGP speaker does not run.
        Speaker = "speaker",
        /// The node is drained.
        Drained = "drained",
        /// No BGP peer is established.
        Peers = "peers",
        /// The first route selection waits for the peers' End-of-RIB.
        Convergence = "convergence",
        /// The agent stops.
        Stopping = "stopping",
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use serde::de::DeserializeOwned;
    use serde_json::json;

    use super::*;

    /// The JSON of every value, which reads back as the value.
    fn written<T: Serialize + DeserializeOwned + PartialEq + Debug>(values: &[T]) -> Vec<String> {
        let name = |value: &T| {
            let json = serde_json::to_value(value).unwrap();
            assert_eq!(serde_json::from_value::<T>(json.clone()).unwrap(), *value);
            json.as_str().unwrap().to_owned()
        };
        values.iter().map(name).collect()
    }

    macro_rules! assert_names {
        ($type:ident, $names:expr) => {
            assert_eq!(written($type::ALL), $names);
            assert_eq!($type::ALL.iter().map(ToString::to_string).collect::<Vec<_>>(), $names);
            let later = serde_json::from_value::<$type>(json!("ofALaterVersion"));
            assert_eq!(later.unwrap(), $type::Unknown);
        };
    }

    #[test]
    fn names_in_json_stay_as_they_are() {
        assert_names!(PeerState, ["Idle", "Connect", "Active", "OpenSent", "OpenConfirm", "Established"]);
        assert_names!(BfdState, ["AdminDown", "Down", "Init", "Up"]);
        assert_names!(Mode, ["BGP", "GlobalBGP", "VLAN", "VXLAN"]);
        assert_names!(PodState, ["attaching", "attached", "departing", "inactive", "broken", "unrecorded"]);
        assert_names!(RouteOrigin, ["igp", "egp", "incomplete"]);
        assert_names!(PathStanding, ["best", "used", "lost", "refused", "waiting"]);
        assert_names!(ExportStanding, ["advertised", "pending", "withheld", "withdrawing"]);
        assert_names!(Place, ["pod", "node"]);
        let kinds = ["unicast", "local", "broadcast", "anycast", "multicast"];
        assert_names!(RouteKind, [&kinds[..], &["blackhole", "unreachable", "prohibit", "throw"]].concat());
        let kinds = ["source", "manifests", "noNetwork", "networks", "subnetDevice", "store", "guard"];
        let rest = ["speaker", "drained", "peers", "convergence", "stopping"];
        assert_names!(NotReadyKind, [&kinds[..], &rest].concat());
    }

    #[test]
    fn reserved_bfd_diagnostics_keep_their_text() {
        let text = |text: &str| BfdDiagnostic::Text(text.to_owned());
        let written =
            written(&[BfdDiagnostic::None, text("Neighbor Signaled Session Down"), text("Diagnostic 9")]);
        assert_eq!(written, ["No Diagnostic", "Neighbor Signaled Session Down", "Diagnostic 9"]);
    }
}
