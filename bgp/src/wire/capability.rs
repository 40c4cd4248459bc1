//! Capabilities (RFC 5492), which a speaker advertises in its OPEN.
//!
//! An unknown capability is kept unchanged, for listings. A known capability with an impossible
//! length is an error. For example, if a malformed four-octet AS capability were ignored, every
//! later AS_PATH would be decoded wrongly.

use std::fmt;

use super::OpenError;
use super::notification::changes_what_is_shown;
use crate::types::{Asn, Family, Role};

/// An address family as encoded in messages; this speaker need not carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AfiSafi {
    /// Address Family Identifier.
    pub afi: u16,
    /// Subsequent Address Family Identifier.
    pub safi: u8,
}

impl AfiSafi {
    /// The family; none if this speaker does not carry it.
    pub const fn family(self) -> Option<Family> {
        Family::from_afi_safi(self.afi, self.safi)
    }
}

impl From<Family> for AfiSafi {
    fn from(family: Family) -> Self {
        AfiSafi { afi: family.afi(), safi: family.safi() }
    }
}

impl fmt::Display for AfiSafi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.family() {
            Some(family) => family.fmt(f),
            None => write!(f, "afi {} safi {}", self.afi, self.safi),
        }
    }
}

/// A family of the graceful restart capability (RFC 4724 §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RestartFamily {
    /// The family.
    pub family: AfiSafi,
    /// The F bit: forwarding state was kept through the restart.
    pub forwarding: bool,
}

/// A family of the long-lived graceful restart capability (RFC 9494 §3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LongLivedFamily {
    /// The family.
    pub family: AfiSafi,
    /// The F bit: forwarding state was kept through the restart.
    pub forwarding: bool,
    /// Long-lived Stale Time in seconds, 24 bits.
    pub stale_time: u32,
}

/// A family of the ADD-PATH capability with its directions, at least one (RFC 7911 §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddPathFamily {
    /// The family.
    pub family: AfiSafi,
    /// The sender accepts several paths of a prefix.
    pub receive: bool,
    /// The sender may send several paths of a prefix.
    pub send: bool,
}

/// One capability.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Capability {
    /// 1: routes of a family can be exchanged (RFC 4760 §8).
    Multiprotocol(AfiSafi),
    /// 2: ROUTE-REFRESH is supported (RFC 2918).
    RouteRefresh,
    /// 5: families with routes that may have a next hop of another AFI (RFC 8950 §4). Each entry
    /// has the family and the AFI of the next hop.
    ExtendedNextHop(Vec<(AfiSafi, u16)>),
    /// 6: messages up to 65,535 octets (RFC 8654).
    ExtendedMessage,
    /// 9: the sender's role (RFC 9234).
    Role(Role),
    /// 64: graceful restart (RFC 4724, RFC 8538).
    GracefulRestart {
        /// The R bit: the speaker has restarted.
        restarting: bool,
        /// The N bit: graceful also after NOTIFICATION and hold timer expiry (RFC 8538).
        notification: bool,
        /// Restart Time in seconds, at most 4095.
        restart_time: u16,
        /// The families.
        families: Vec<RestartFamily>,
    },
    /// 65: four-octet AS numbers, with the speaker's own (RFC 6793).
    FourOctetAs(Asn),
    /// 69: several paths of a prefix (RFC 7911).
    AddPath(Vec<AddPathFamily>),
    /// 70: markers at the beginning and end of a refresh (RFC 7313).
    EnhancedRouteRefresh,
    /// 71: long-lived graceful restart (RFC 9494).
    LongLivedGracefulRestart(Vec<LongLivedFamily>),
    /// 73: the speaker's host and domain name (draft-walton-bgp-hostname-capability), for listings
    /// only.
    Hostname {
        /// Host name.
        host: String,
        /// Domain name, often empty.
        domain: String,
    },
    /// Any other capability.
    Unknown {
        /// Capability code.
        code: u8,
        /// Its value, at most 255 octets.
        value: Vec<u8>,
    },
}

impl Capability {
    /// The capability's code.
    pub fn code(&self) -> u8 {
        match self {
            Capability::Multiprotocol(_) => 1,
            Capability::RouteRefresh => 2,
            Capability::ExtendedNextHop(_) => 5,
            Capability::ExtendedMessage => 6,
            Capability::Role(_) => 9,
            Capability::GracefulRestart { .. } => 64,
            Capability::FourOctetAs(_) => 65,
            Capability::AddPath(_) => 69,
            Capability::EnhancedRouteRefresh => 70,
            Capability::LongLivedGracefulRestart(_) => 71,
            Capability::Hostname { .. } => 73,
            Capability::Unknown { code, .. } => *code,
        }
    }

    /// Decodes the capability with this code and value.
    ///
    /// # Errors
    /// If the length is impossible for a known code.
    pub fn decode(code: u8, value: &[u8]) -> Result<Capability, OpenError> {
        let wrong_length = || OpenError::Capability { code, length: value.len() };
        let afi_safi = |afi: &[u8], safi| AfiSafi { afi: u16::from_be_bytes([afi[0], afi[1]]), safi };
        Ok(match (code, value) {
            (1, [afi @ .., _, safi]) if afi.len() == 2 => Capability::Multiprotocol(afi_safi(afi, *safi)),
            (2, []) => Capability::RouteRefresh,
            (5, value) if value.len() % 6 == 0 => Capability::ExtendedNextHop(
                value
                    .chunks_exact(6)
                    .map(|entry| (afi_safi(entry, entry[3]), u16::from_be_bytes([entry[4], entry[5]])))
                    .collect(),
            ),
            (6, []) => Capability::ExtendedMessage,
            // An unknown role cannot match another role, so its octets are kept unchanged.
            (9, [role]) if usize::from(*role) < Role::ALL.len() => {
                Capability::Role(Role::ALL[usize::from(*role)])
            }
            (64, [flags, seconds, families @ ..]) if families.len() % 4 == 0 => Capability::GracefulRestart {
                restarting: flags & 0x80 != 0,
                notification: flags & 0x40 != 0,
                restart_time: u16::from_be_bytes([flags & 0x0f, *seconds]),
                families: families
                    .chunks_exact(4)
                    .map(|entry| RestartFamily {
                        family: afi_safi(entry, entry[2]),
                        forwarding: entry[3] & 0x80 != 0,
                    })
                    .collect(),
            },
            (65, &[a, b, c, d]) => Capability::FourOctetAs(Asn(u32::from_be_bytes([a, b, c, d]))),
            // An invalid ADD-PATH capability counts as unknown (RFC 7911 §4), and its octets are
            // kept unchanged.
            (69, value) => {
                add_path(value).unwrap_or_else(|| Capability::Unknown { code, value: value.to_vec() })
            }
            (70, []) => Capability::EnhancedRouteRefresh,
            (71, value) if value.len() % 7 == 0 => Capability::LongLivedGracefulRestart(
                value
                    .chunks_exact(7)
                    .map(|entry| LongLivedFamily {
                        family: afi_safi(entry, entry[2]),
                        forwarding: entry[3] & 0x80 != 0,
                        stale_time: u32::from_be_bytes([0, entry[4], entry[5], entry[6]]),
                    })
                    .collect(),
            ),
            (1 | 2 | 5 | 6 | 64 | 65 | 70 | 71, _) => return Err(wrong_length()),
            // An invalid name is not a reason to end a session, so its octets are kept unchanged.
            (73, value) => {
                hostname(value).unwrap_or_else(|| Capability::Unknown { code, value: value.to_vec() })
            }
            (code, value) => Capability::Unknown { code, value: value.to_vec() },
        })
    }

    /// Appends code, length and value. Entries beyond 255 octets are left out.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.code(), 0]);
        let start = out.len();
        match self {
            Capability::Multiprotocol(family) => {
                out.extend_from_slice(&family.afi.to_be_bytes());
                out.extend_from_slice(&[0, family.safi]);
            }
            Capability::RouteRefresh | Capability::ExtendedMessage | Capability::EnhancedRouteRefresh => {}
            Capability::ExtendedNextHop(entries) => {
                for (family, next_hop_afi) in entries.iter().take(255 / 6) {
                    out.extend_from_slice(&family.afi.to_be_bytes());
                    out.extend_from_slice(&[0, family.safi]);
                    out.extend_from_slice(&next_hop_afi.to_be_bytes());
                }
            }
            Capability::GracefulRestart { restarting, notification, restart_time, families } => {
                let flags = u16::from(*restarting) << 15 | u16::from(*notification) << 14;
                out.extend_from_slice(&(flags | (*restart_time).min(4095)).to_be_bytes());
                for entry in families.iter().take(253 / 4) {
                    out.extend_from_slice(&entry.family.afi.to_be_bytes());
                    out.extend_from_slice(&[entry.family.safi, u8::from(entry.forwarding) << 7]);
                }
            }
            Capability::AddPath(families) => {
                for entry in families.iter().take(255 / 4) {
                    out.extend_from_slice(&entry.family.afi.to_be_bytes());
                    out.extend_from_slice(&[
                        entry.family.safi,
                        u8::from(entry.receive) | u8::from(entry.send) << 1,
                    ]);
                }
            }
            Capability::LongLivedGracefulRestart(families) => {
                for entry in families.iter().take(255 / 7) {
                    out.extend_from_slice(&entry.family.afi.to_be_bytes());
                    out.extend_from_slice(&[entry.family.safi, u8::from(entry.forwarding) << 7]);
                    out.extend_from_slice(&entry.stale_time.min(0x00ff_ffff).to_be_bytes()[1..]);
                }
            }
            Capability::Role(role) => out.push(*role as u8),
            Capability::FourOctetAs(asn) => out.extend_from_slice(&asn.0.to_be_bytes()),
            Capability::Hostname { host, domain } => {
                for name in [host, domain] {
                    let name = super::notification::cut(name, 64);
                    out.push(name.len() as u8);
                    out.extend_from_slice(name.as_bytes());
                }
            }
            Capability::Unknown { value, .. } => out.extend_from_slice(&value[..value.len().min(255)]),
        }
        out[start - 1] = (out.len() - start) as u8;
    }
}

fn add_path(value: &[u8]) -> Option<Capability> {
    let (entries, []) = value.as_chunks::<4>() else { return None };
    let families = entries.iter().map(|&[afi0, afi1, safi, mode]| {
        let family = AfiSafi { afi: u16::from_be_bytes([afi0, afi1]), safi };
        (1..=3).contains(&mode).then_some(AddPathFamily {
            family,
            receive: mode & 1 != 0,
            send: mode & 2 != 0,
        })
    });
    Some(Capability::AddPath(families.collect::<Option<_>>()?))
}

fn hostname(value: &[u8]) -> Option<Capability> {
    let name = |octets: &[u8]| -> Option<String> {
        let text = std::str::from_utf8(octets).ok()?;
        (!text.chars().any(changes_what_is_shown)).then(|| text.to_owned())
    };
    let (host_length, rest) = value.split_first()?;
    let (host, rest) = rest.split_at_checked(usize::from(*host_length))?;
    let (domain_length, rest) = rest.split_first()?;
    let domain = (rest.len() == usize::from(*domain_length)).then_some(rest)?;
    // The octets of longer names are kept unchanged, so a decoded value can be encoded again.
    // Speakers do not send such names.
    (host.len() <= 64 && domain.len() <= 64)
        .then(|| Some(Capability::Hostname { host: name(host)?, domain: name(domain)? }))?
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Capability::Multiprotocol(family) => write!(f, "multiprotocol {family}"),
            Capability::RouteRefresh => f.write_str("route refresh"),
            Capability::ExtendedNextHop(entries) => {
                f.write_str("extended next hop")?;
                entries.iter().try_for_each(|(family, afi)| write!(f, " {family} over AFI {afi}"))
            }
            Capability::AddPath(families) => {
                f.write_str("add path")?;
                families.iter().enumerate().try_for_each(|(place, entry)| {
                    let comma = if place == 0 { "" } else { "," };
                    let receive = if entry.receive { " receive" } else { "" };
                    let send = if entry.send { " send" } else { "" };
                    write!(f, "{comma} {}{receive}{send}", entry.family)
                })
            }
            Capability::EnhancedRouteRefresh => f.write_str("enhanced route refresh"),
            Capability::ExtendedMessage => f.write_str("extended message"),
            Capability::GracefulRestart { restarting, notification, restart_time, families } => {
                write!(f, "graceful restart {restart_time} s")?;
                if *restarting {
                    f.write_str(", restarting")?;
                }
                if *notification {
                    f.write_str(", notification")?;
                }
                families.iter().try_for_each(|entry| {
                    write!(f, ", {}{}", entry.family, if entry.forwarding { " forwarding" } else { "" })
                })
            }
            Capability::LongLivedGracefulRestart(families) => {
                f.write_str("long-lived graceful restart")?;
                families.iter().enumerate().try_for_each(|(place, entry)| {
                    let comma = if place == 0 { "" } else { "," };
                    let forwarding = if entry.forwarding { " forwarding" } else { "" };
                    write!(f, "{comma} {} {} s{forwarding}", entry.family, entry.stale_time)
                })
            }
            Capability::Role(role) => write!(f, "role {role}"),
            Capability::FourOctetAs(asn) => write!(f, "four-octet AS {asn}"),
            Capability::Hostname { host, domain } if domain.is_empty() => write!(f, "host name {host}"),
            Capability::Hostname { host, domain } => write!(f, "host name {host}.{domain}"),
            Capability::Unknown { code, value } => {
                write!(f, "capability {code}")?;
                if !value.is_empty() {
                    f.write_str(" 0x")?;
                }
                value.iter().try_for_each(|octet| write!(f, "{octet:02x}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_round_trips() {
        let ipv4 = AfiSafi::from(Family::Ipv4Unicast);
        for capability in [
            Capability::Multiprotocol(AfiSafi { afi: 25, safi: 70 }),
            Capability::RouteRefresh,
            Capability::ExtendedNextHop(vec![(ipv4, 2), (AfiSafi { afi: 1, safi: 128 }, 2)]),
            Capability::ExtendedMessage,
            Capability::LongLivedGracefulRestart(vec![
                LongLivedFamily { family: ipv4, forwarding: true, stale_time: 86400 },
                LongLivedFamily {
                    family: AfiSafi { afi: 2, safi: 128 },
                    forwarding: false,
                    stale_time: 0x00ff_ffff,
                },
            ]),
            Capability::GracefulRestart {
                restarting: true,
                notification: false,
                restart_time: 4095,
                families: vec![
                    RestartFamily { family: ipv4, forwarding: true },
                    RestartFamily { family: Family::Ipv6Unicast.into(), forwarding: false },
                ],
            },
            Capability::FourOctetAs(Asn(4_200_000_000)),
            Capability::Hostname { host: "tor1".into(), domain: "rack.example".into() },
            Capability::AddPath(vec![
                AddPathFamily { family: ipv4, receive: true, send: false },
                AddPathFamily { family: AfiSafi { afi: 25, safi: 70 }, receive: true, send: true },
            ]),
            Capability::Unknown { code: 69, value: vec![0, 1, 1, 4] },
            Capability::Unknown { code: 69, value: vec![0, 1, 1, 0] },
            Capability::Unknown { code: 69, value: vec![0, 1, 1, 3, 0] },
            Capability::EnhancedRouteRefresh,
            Capability::Role(Role::Provider),
            Capability::Role(Role::Peer),
            Capability::Unknown { code: 9, value: vec![5] },
            Capability::Unknown { code: 9, value: vec![] },
            Capability::Unknown { code: 128, value: vec![] },
            Capability::Unknown { code: 73, value: vec![9, 1] },
        ] {
            let mut out = Vec::new();
            capability.encode(&mut out);
            assert_eq!(usize::from(out[1]), out.len() - 2);
            assert_eq!(Capability::decode(out[0], &out[2..]).as_ref(), Ok(&capability), "{capability}");
        }
    }

    #[test]
    fn a_known_capability_of_an_impossible_length_is_an_error() {
        for (code, length) in
            [(1, 3), (1, 5), (2, 1), (5, 5), (6, 1), (64, 1), (64, 5), (65, 2), (65, 5), (70, 1)]
        {
            assert_eq!(
                Capability::decode(code, &vec![0; length]),
                Err(OpenError::Capability { code, length })
            );
        }
    }

    #[test]
    fn a_capability_is_shown_in_words() {
        let shown = Capability::decode(64, &[0x80, 120, 0, 1, 1, 0x80]).unwrap().to_string();
        assert_eq!(shown, "graceful restart 120 s, restarting, ipv4-unicast forwarding");
        let shown = Capability::decode(69, &[0, 1, 1, 3, 0, 2, 1, 2]).unwrap().to_string();
        assert_eq!(shown, "add path ipv4-unicast receive send, ipv6-unicast send");
        assert_eq!(Capability::decode(69, &[0, 1, 1, 4]).unwrap().to_string(), "capability 69 0x00010104");
    }
}
