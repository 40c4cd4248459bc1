//! A BGP-4 speaker as a library: an engine without I/O, and the tokio shell with its sockets and
//! clock (feature `net`, on by default).
//!
//! # The shell
//! [`net::spawn`] starts a speaker and returns three handles. A [`net::SpeakerHandle`] accepts
//! commands and queries, [`net::Events`] reports events, and a FIB pulls its changes from
//! [`net::RouteChanges`]. `examples/speaker.rs` shows all of it in 65 lines: it peers with FRR,
//! originates prefixes, and prints every change of the peer's routes.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use trunkline_bgp::{config::*, net::*, rib::Origination, types::Asn};
//!
//! let config = SpeakerConfig::new(Asn(65001), "10.0.0.1".parse()?);
//! let (speaker, mut events, _routes) = spawn(config, &ShellConfig::default())?;
//! speaker.add_peer(PeerConfig::new("10.0.0.254".parse()?, Asn(65000))).await?;
//! speaker.originate("192.0.2.0/24".parse()?, Origination::default()).await?;
//! speaker.originations_complete().await?; // nothing is advertised before this
//! while let Some(event) = events.next().await {
//!     println!("{event:?}");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Originated prefixes
//! A [`rib::Origination`] has ORIGIN, LOCAL_PREF, communities, a MULTI_EXIT_DISC, a link bandwidth (RFC 10005) and tags.
//! Tags stay in the speaker: rules of export policy match them ([`policy::Conditions::tags`]). So a
//! program can define rules for groups of prefixes once, and then add a prefix to a group without a
//! change of any policy, which would export the whole table again. A rule cannot match "some tag".
//! If prefixes without a rule for a peer must not reach it, give one more tag to all of them:
//!
//! ```
//! # fn example() -> Result<(), trunkline_bgp::types::TooManyTags> {
//! use trunkline_bgp::{policy::*, rib::Origination, types::*};
//!
//! const SERVICE: Tag = Tag(0); // every prefix of a service
//! const FAST: Tag = Tag(1); // those that this peer receives
//! let communities = Edit::add([Community(65000 << 16 | 7)]);
//! let marks_fast = Rule {
//!     when: Conditions { tags: vec![FAST].into(), ..Conditions::default() },
//!     set: Actions { communities, ..Actions::default() },
//!     ..Rule::default()
//! };
//! let others = Members { any_of: vec![SERVICE], none_of: vec![FAST], ..Members::default() };
//! let rejects_others = Rule::reject(Conditions { tags: others, ..Conditions::default() });
//! let export = Policy { rules: vec![marks_fast, rejects_others], default: PolicyResult::Accept };
//! # _ = export;
//!
//! let origination = Origination {
//!     link_bandwidth: Some(LinkBandwidth(125_000_000)), // 1 Gbit/s
//!     tags: Tags::new([SERVICE, FAST])?,
//!     ..Origination::default()
//! };
//! # _ = origination;
//! # Ok(())
//! # }
//! # example().unwrap();
//! ```
//!
//! # The engine
//! [`speaker::Speaker`] accepts octets, transport events, commands and the time. It returns octets,
//! actions, events and its next deadline. It opens no socket, reads no clock, and takes all
//! randomness from its seed. So a test runs a network of speakers through hours of restarts in
//! milliseconds, and the same seed gives the same result. Its parts:
//!
//! ```text
//! octets ─► wire ─► session ─► Adj-RIB-In ─► decision ─► Loc-RIB ─┬─► route_changes (FIB)
//!                   (per peer) ▲ import policy                    └─► Adj-RIB-Out ─► wire ─► peer
//!                                                                     export policy
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`wire`] | the codec: five message types, path attributes, RFC 7606's outcomes |
//! | [`session`] | one peer: RFC 4271's state machine, capabilities, graceful restart, refresh |
//! | [`rib`] | the tables, best path with ECMP, the routes advertised to each peer |
//! | [`policy`] | import and export as data: prefixes, communities, AS_PATH, ORIGIN, next hop, tags |
//! | [`speaker`] | joins sessions and tables |
//! | [`bfd`] | a BFD endpoint, a separate engine |
//! | [`bmp`], [`mrt`] | routes for monitoring stations, and the tables as a file |
//! | [`config`], [`types`] | plain values |
//! | `net` | the shell |
//!
//! All output is pulled: nothing is computed or encoded for a peer, a FIB or a station before this
//! receiver can accept it. So a slow receiver costs one bit per prefix and delays no other
//! receiver.
//!
//! # RFCs
//! | RFC | | |
//! |---|---|---|
//! | 4271 BGP-4 | done | except aggregation, DelayOpen outside of collisions, IGP costs (next hops count as reachable) |
//! | 1997, 8092 communities | done | NO_EXPORT, NO_ADVERTISE and NO_EXPORT_SUBCONFED are obeyed |
//! | 2385 TCP-MD5, 5082 GTSM | done | keys by address, or by prefix for dynamic neighbours |
//! | 2918 route refresh, 7313 enhanced route refresh | done | |
//! | 3765 NO_PEER | done | applied to peers with role peer (RFC 9234), which are bilateral |
//! | 4360, 5668 extended communities | done | non-transitive ones do not leave the AS |
//! | 4456 route reflection | done | |
//! | 4486, 9003 Cease subcodes, shutdown communication | done | |
//! | 4724 graceful restart | done | both roles |
//! | 4760 multiprotocol | partly | IPv4 and IPv6 unicast |
//! | 4861 neighbor discovery | partly | router advertisements both ways ([`net::discovery`]) |
//! | 5492, 9072 capabilities, extended optional parameters | done | |
//! | 5880 to 5883 BFD, 9384 Cease BFD Down | partly | asynchronous mode only, see [`bfd`] |
//! | 6286, 7607 identifiers, AS 0 | done | |
//! | 6396, 8050 MRT | partly | writes TABLE_DUMP_V2 |
//! | 6608, 9687 FSM error subcodes, SendHoldTimer | done | |
//! | 6793 four-octet AS numbers | done | |
//! | 7606 error handling | done | a test has a table of every attribute and fault |
//! | 7705 AS migration | partly | §3, external peers ([`config::LocalAs`]); not §4, internal ones |
//! | 7854 BMP | partly | Adj-RIB-In before policy; see [`bmp`] |
//! | 7911 ADD-PATH | done | both directions, the best N; off unless configured |
//! | 8212 default reject | left out | the default policy accepts |
//! | 8326 GRACEFUL_SHUTDOWN | done | by peer, see [`config::PathRules`]; LOCAL_PREF 0 on receipt |
//! | 8538 graceful restart after a NOTIFICATION | done | off unless configured |
//! | 9494 long-lived graceful restart | partly | both roles; not §4.6, peers without it |
//! | 8654 extended messages | done | |
//! | 8950 IPv6 next hops for IPv4 | done | |
//! | 9234 roles, ONLY_TO_CUSTOMER | done | |
//! | 10005 link bandwidth | partly | originated; of received paths passed on, not used as a weight |
//! | 3107, 4364, 7432, 8955 and other families | left out | ignored if a peer offers them |
//! | 5065 confederations | left out | segments are decoded and not counted |
//! | 5925 TCP-AO | left out | |
#![cfg_attr(not(feature = "net"), forbid(unsafe_code))]

pub mod bfd;
pub mod bmp;
pub mod config;
pub mod io;
pub mod mrt;
#[cfg(feature = "net")]
pub mod net;
pub mod policy;
pub mod rib;
pub mod session;
pub mod speaker;
pub mod types;
pub mod wire;
