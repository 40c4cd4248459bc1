//! A BGP-4 speaker as a library: an engine without I/O, and (feature `net`, on by default) the tokio shell that gives it
//! sockets and a clock.
//!
//! # The shell
//! [`net::spawn`] starts a speaker and gives three things: a [`net::SpeakerHandle`] to tell it what to do and to ask
//! how it stands, [`net::Events`] for what happens, and [`net::RouteChanges`], from which a FIB pulls what
//! changed. `examples/speaker.rs` is all of it in 65 lines: it peers with FRR, tells it prefixes, and prints what it hears.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use trunkline_bgp::{config::*, net::*, rib::Origination, types::Asn};
//!
//! let config = SpeakerConfig::new(Asn(65001), "10.0.0.1".parse()?);
//! let (speaker, mut events, _routes) = spawn(config, &ShellConfig::default())?;
//! speaker.add_peer(PeerConfig::new("10.0.0.254".parse()?, Asn(65000))).await?;
//! speaker.originate("192.0.2.0/24".parse()?, Origination::default()).await?;
//! speaker.originations_complete().await?; // nothing is told before this
//! while let Some(event) = events.next().await {
//!     println!("{event:?}");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # The engine
//! [`speaker::Speaker`] takes octets, transport events, commands and the time, and gives octets, actions, events and its next deadline.
//! It opens no socket, reads no clock and draws no randomness but from the seed that it is given, so a test runs a network of
//! speakers through hours of restarts in milliseconds, and gets the same hours again from the same seed. Inside it:
//!
//! ```text
//!  octets ─► wire ─► session (one a peer) ─► rib: Adj-RIB-In ─► decision ─► Loc-RIB ─┬─► route_changes (FIB)
//!                                             ▲ import policy                        └─► Adj-RIB-Out ─► wire ─► octets
//!                                                                                        export policy
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`wire`] | the codec: five message types, path attributes, RFC 7606's outcomes |
//! | [`session`] | one peer: RFC 4271's state machine, capabilities, graceful restart, refresh |
//! | [`rib`] | the tables, best path with ECMP, what each peer is told |
//! | [`policy`] | import and export as data: prefixes, communities of all three kinds, AS_PATH, ORIGIN, next hop |
//! | [`speaker`] | sessions and tables joined |
//! | [`bfd`] | a BFD endpoint, an engine of its own |
//! | [`bmp`], [`mrt`] | what monitoring stations hear, and the tables as a file |
//! | [`config`], [`types`] | plain values |
//! | `net` | the shell |
//!
//! Routes are pulled on every side: nothing is computed or encoded for a peer, a FIB or a station before it can take it, so a
//! slow one costs a bit a prefix and holds up nobody.
//!
//! # RFCs
//! | RFC | | |
//! |---|---|---|
//! | 4271 BGP-4 | done | but for aggregation, DelayOpen, and an IGP's costs (next hops are taken as reachable) |
//! | 1997, 8092 communities | done | NO_EXPORT, NO_ADVERTISE and NO_EXPORT_SUBCONFED are obeyed |
//! | 2385 TCP-MD5, 5082 GTSM | done | keys for an address, or for the prefix of dynamic neighbours ([`config::PeerRange`]) |
//! | 2918 route refresh, 7313 enhanced route refresh | done | |
//! | 3765 NO_PEER | done | it is advice, obeyed towards peers with role peer (RFC 9234), which say that they are bilateral |
//! | 4360, 5668 extended communities | done | in policies and listings; what is not transitive does not leave the AS |
//! | 4456 route reflection | done | |
//! | 4486, 9003 Cease subcodes, shutdown communication | done | |
//! | 4724 graceful restart | done | both roles |
//! | 4760 multiprotocol | partly | IPv4 and IPv6 unicast |
//! | 4861 neighbor discovery | partly | router advertisements both ways, to find the peer of a link ([`net::discovery`]) |
//! | 5492, 9072 capabilities, extended optional parameters | done | |
//! | 5880, 5881, 5882, 5883 BFD, 9384 Cease BFD Down | partly | asynchronous mode; no authentication and no echo, see [`bfd`] |
//! | 6286, 7607 identifiers, AS 0 | done | |
//! | 6396, 8050 MRT | partly | TABLE_DUMP_V2, writing |
//! | 6608, 9687 FSM error subcodes, SendHoldTimer | done | |
//! | 6793 four-octet AS numbers | done | |
//! | 7606 error handling | done | a table of every attribute and fault is a test |
//! | 7705 AS migration | partly | §3, towards external peers ([`config::LocalAs`]); not §4, internal peers in two ASes |
//! | 7854 BMP | partly | Adj-RIB-In before policy; see [`bmp`] |
//! | 7911 ADD-PATH | done | both ways, the best N; off unless configured |
//! | 8212 default reject | left out | policy accepts unless it says otherwise |
//! | 8326 GRACEFUL_SHUTDOWN | done | from external peers LOCAL_PREF becomes 0 after import policy; set for a peer by [`config::PathRules`], and so for a node by all its peers' |
//! | 8538 graceful restart after a NOTIFICATION | done | off unless [`restart_notification`](config::PeerConfig::restart_notification) |
//! | 9494 long-lived graceful restart | partly | helper and restarting side, by family; not §4.6, telling peers without it |
//! | 8654 extended messages | done | |
//! | 8950 IPv6 next hops for IPv4 | done | |
//! | 9234 roles, ONLY_TO_CUSTOMER | done | |
//! | 3107, 4364, 7432, 8955 and other families | left out | they are ignored where a peer offers them |
//! | 5065 confederations | left out | segments are read and not counted |
//! | 5925 TCP-AO | left out | |
#![cfg_attr(not(feature = "net"), forbid(unsafe_code))]

pub mod bfd;
pub mod bmp;
pub mod config;
pub mod mrt;
#[cfg(feature = "net")]
pub mod net;
pub mod policy;
pub mod rib;
pub mod session;
pub mod speaker;
pub mod types;
pub mod wire;
