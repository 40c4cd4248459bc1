//! The rows of the matrix: configuration, steps, and the expected state of both sides. A cell
//! queries both the router and Trunkline's speaker, and never relies on only one side.
//!
//! | module | rows about |
//! |---|---|
//! | `sessions` | start and end of a session, and its messages |
//! | `paths` | several paths, reflection, local AS, link bandwidth, roles |
//! | `restart` | graceful restart of each side, and long-lived |
//! | `bfd` | BFD |

mod bfd;
mod paths;
mod restart;
mod sessions;

use anyhow::Result;

use super::cell::Cell;
use super::router::Way;

/// A row.
pub(super) struct Row {
    pub name: &'static str,
    pub rfc: &'static str,
    /// Routers without the feature.
    pub lacks: &'static [Lack],
    pub run: fn(&Cell<'_>) -> Result<()>,
}

/// A missing feature of a router.
pub(super) struct Lack {
    /// The router's node.
    pub node: &'static str,
    pub why: &'static str,
    /// The text that the router's OPEN would contain with the feature. If given, the cell checks
    /// that the text is absent.
    pub capability: Option<&'static str>,
}

const fn lack(node: &'static str, why: &'static str) -> Lack {
    Lack { node, why, capability: None }
}

const fn no_capability(node: &'static str, why: &'static str, capability: &'static str) -> Lack {
    Lack { node, why, capability: Some(capability) }
}

pub(super) const ROWS: &[Row] = &[
    Row {
        name: "IPv4 routes, IPv4 session",
        rfc: "4271",
        lacks: &[],
        run: |cell| sessions::routes(cell, Way::V4, 0),
    },
    Row {
        name: "IPv6 routes, IPv4 session",
        rfc: "4760",
        lacks: &[],
        run: |cell| sessions::routes(cell, Way::V4, 1),
    },
    Row {
        name: "IPv4 routes, IPv6 session",
        rfc: "4760",
        lacks: &[],
        run: |cell| sessions::routes(cell, Way::V6, 0),
    },
    Row { name: "extended next hop", rfc: "8950", lacks: &[], run: sessions::extended_next_hop },
    Row {
        name: "unnumbered",
        rfc: "4861, 8950",
        lacks: &[lack("gobgp", "it sends no router advertisements to be found by")],
        run: sessions::unnumbered,
    },
    Row { name: "dynamic neighbours, with TCP-MD5", rfc: "4271", lacks: &[], run: sessions::dynamic },
    Row {
        name: "IPv6 routes, IPv6 session",
        rfc: "4760",
        lacks: &[],
        run: |cell| sessions::routes(cell, Way::V6, 1),
    },
    Row { name: "TCP-MD5", rfc: "2385", lacks: &[], run: sessions::password },
    Row { name: "GTSM", rfc: "5082", lacks: &[], run: sessions::ttl_security },
    Row {
        name: "eBGP multihop",
        rfc: "4271",
        lacks: &[],
        run: |cell| sessions::routes(cell, Way::TwoHops, 0),
    },
    Row { name: "AS numbers of four octets", rfc: "6793", lacks: &[], run: sessions::four_octets },
    Row {
        name: "route refresh, requested by this side",
        rfc: "2918",
        lacks: &[],
        run: |cell| sessions::refresh(cell, false),
    },
    Row {
        name: "route refresh, requested by the router",
        rfc: "2918",
        lacks: &[lack("gobgp", "it stores paths and never sends a request")],
        run: |cell| sessions::refresh(cell, true),
    },
    Row {
        name: "enhanced route refresh",
        rfc: "7313",
        lacks: &[no_capability("gobgp", "no such capability", "enhanced route refresh")],
        run: sessions::enhanced_refresh,
    },
    Row {
        name: "messages of 4,096 octets",
        rfc: "4271",
        lacks: &[],
        run: |cell| sessions::long_messages(cell, false),
    },
    Row {
        name: "extended messages",
        rfc: "8654",
        lacks: &[no_capability("gobgp", "no such capability", "extended message")],
        run: |cell| sessions::long_messages(cell, true),
    },
    Row { name: "shutdown communication", rfc: "9003", lacks: &[], run: sessions::shutdown },
    Row { name: "prefix limit of this side", rfc: "4486", lacks: &[], run: sessions::prefix_limit },
    Row { name: "prefix limit of the router", rfc: "4486", lacks: &[], run: sessions::routers_prefix_limit },
    Row {
        name: "connection collision",
        rfc: "4271 §6.8",
        lacks: &[lack("gobgp", "it has one connection at a time, and makes none while one is accepted")],
        run: sessions::collision,
    },
    Row { name: "ADD-PATH, received", rfc: "7911", lacks: &[], run: |cell| paths::add_path(cell, false) },
    Row { name: "ADD-PATH, sent", rfc: "7911", lacks: &[], run: |cell| paths::add_path(cell, true) },
    Row { name: "reflected routes", rfc: "4456", lacks: &[], run: paths::reflection },
    Row { name: "local AS of this side", rfc: "7705", lacks: &[], run: paths::local_as },
    Row { name: "graceful shutdown", rfc: "8326", lacks: &[], run: paths::graceful_shutdown },
    Row {
        name: "link bandwidth of originated prefixes",
        rfc: "10005",
        lacks: &[],
        run: paths::link_bandwidth,
    },
    Row {
        name: "roles and ONLY_TO_CUSTOMER",
        rfc: "9234",
        lacks: &[no_capability("gobgp", "no such capability", "role")],
        run: paths::roles,
    },
    Row { name: "graceful restart of this side", rfc: "4724", lacks: &[], run: restart::of_us },
    Row {
        name: "connection collision in a graceful restart",
        rfc: "4271 §6.8",
        lacks: &[lack("gobgp", "it has one connection at a time, and makes none while one is accepted")],
        run: restart::collision,
    },
    Row { name: "graceful restart of the router", rfc: "4724", lacks: &[], run: restart::of_router },
    Row {
        name: "graceful restart after a NOTIFICATION",
        rfc: "8538",
        lacks: &[no_capability("bird", "no N bit in its capability", ", notification")],
        run: restart::after_notification,
    },
    Row {
        name: "graceful restart after the Hold Timer",
        rfc: "8538",
        lacks: &[
            no_capability("bird", "no N bit in its capability", ", notification"),
            lack(
                "gobgp",
                "when its own Hold Timer expires it drops paths that it retains after a NOTIFICATION",
            ),
        ],
        run: restart::after_hold_timer,
    },
    Row {
        name: "long-lived graceful restart of this side",
        rfc: "9494",
        lacks: &[],
        run: restart::long_lived_of_us,
    },
    Row {
        name: "long-lived graceful restart of the router",
        rfc: "9494",
        lacks: &[],
        run: restart::long_lived_of_router,
    },
    Row { name: "BFD up and down", rfc: "5880", lacks: &[lack("gobgp", "no BFD")], run: bfd::up_and_down },
    Row {
        name: "BFD in a graceful restart",
        rfc: "5882 §4.3",
        lacks: &[lack("gobgp", "no BFD")],
        run: bfd::restart,
    },
];
