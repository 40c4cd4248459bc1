//! Every known attribute × {flags wrong, too short, too long, twice, malformed value}. RFC 7606 §7,
//! or the attribute's own RFC, requires the outcome. Impossible cases have no row: ATOMIC_AGGREGATE
//! too short, or a wrong value of four arbitrary octets.
//!
//! | attribute | flags | short | long | twice | value | where |
//! |---|---|---|---|---|---|---|
//! | ORIGIN | withdraw | withdraw | withdraw | first counts | withdraw | §7.1 |
//! | AS_PATH | withdraw | withdraw | withdraw | first counts | withdraw | §7.2, RFC 7607 |
//! | NEXT_HOP | withdraw | withdraw | withdraw | first counts | withdraw | §7.3, RFC 4271 §6.3 |
//! | MULTI_EXIT_DISC | withdraw | withdraw | withdraw | first counts | | §7.4 |
//! | LOCAL_PREF, internal | withdraw | withdraw | withdraw | first counts | | §7.5 |
//! | LOCAL_PREF, external | discard | discard | discard | discard | | §7.5 |
//! | ATOMIC_AGGREGATE | withdraw | | discard | first counts | | §7.6 |
//! | AGGREGATOR | withdraw | discard | discard | first counts | discard | §7.7, RFC 7607 |
//! | COMMUNITIES | withdraw | withdraw | withdraw | first counts | | §7.8 |
//! | ORIGINATOR_ID, internal | withdraw | withdraw | withdraw | first counts | | §7.9 |
//! | ORIGINATOR_ID, external | discard | discard | discard | discard | | §7.9 |
//! | CLUSTER_LIST, internal | withdraw | withdraw | withdraw | first counts | | §7.10 |
//! | CLUSTER_LIST, external | discard | discard | discard | discard | | §7.10 |
//! | MP_REACH_NLRI | withdraw | reset 9 | reset 9 | reset 1 | reset 9 or 10, withdraw | §5.3, §7.11, §3 g |
//! | MP_UNREACH_NLRI | withdraw | reset 9 | reset 9 | reset 1 | reset 10 | §5.3, §7.12, §3 g |
//! | EXTENDED COMMUNITIES | withdraw | withdraw | withdraw | first counts | | §7.14 |
//! | AS4_PATH | withdraw | discard | discard | first counts | discard | RFC 6793 §6 |
//! | AS4_AGGREGATOR | withdraw | discard | discard | first counts | discard | RFC 6793 §6 |
//! | LARGE_COMMUNITIES | withdraw | withdraw | withdraw | first counts | | RFC 8092 §6 |
//! | ONLY_TO_CUSTOMER | withdraw | withdraw | withdraw | first counts | | RFC 9234 §5 |
//!
//! Flags are §3 c, twice is §3 g. *First counts* means that all but the first are discarded; *reset
//! N* is NOTIFICATION 3, N.

/// The type of the session.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Session {
    External,
    Internal,
    /// External, with two-octet AS numbers.
    TwoOctet,
}

/// The expected outcome of the UPDATE.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ExpectedHandling {
    /// The route is accepted, the attribute of this name is ignored.
    Discard(&'static str),
    /// The session stays, the route is withdrawn.
    Withdraw(&'static str),
    /// NOTIFICATION 3 with this subcode.
    Reset(u8),
}
use ExpectedHandling::{Discard, Reset, Withdraw};
use Session::{External, Internal, TwoOctet};

/// One UPDATE.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) session: Session,
    /// The attributes, in hex.
    pub(crate) attributes: String,
    /// The route is 2001:db8:9::/48 in MP_REACH_NLRI, not 10.9.0.0/16.
    pub(crate) v6: bool,
    pub(crate) outcome: ExpectedHandling,
}

pub(crate) const ORIGIN: &str = "40010100";
pub(crate) const NEXT_HOP: &str = "400304c0000209";
/// The prefix 2001:db8:9::/48 and its next hop.
const V6: &str = "20010db8000000000000000000000009 00 30 20010db80009";

/// The attribute AS_PATH `65002 last`: `last` is 1 in the earlier route, and 2 in the row's route.
/// An internal peer sends the same AS_PATH as an external one.
pub(crate) fn as_path(session: Session, last: u8) -> String {
    match session {
        TwoOctet => format!("400206 0202 fdea 00{last:02x}"),
        External | Internal => format!("40020a 0202 0000fdea 000000{last:02x}"),
    }
}

/// The UPDATEs of one attribute, together with valid ORIGIN, AS_PATH and NEXT_HOP. `good` is the
/// value, `flags` its flags.
struct AttributeCases {
    name: &'static str,
    code: u8,
    flags: u8,
    good: &'static str,
    short: Option<&'static str>,
    long: &'static str,
    malformed: Option<&'static str>,
    /// Outcomes of wrong flags, wrong length, a wrong value.
    outcomes: [ExpectedHandling; 3],
    session: Session,
}

fn attribute(flags: u8, code: u8, value: &str) -> String {
    let value: String = value.split_whitespace().collect();
    format!("{flags:02x}{code:02x}{:02x}{value}", value.len() / 2)
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut row = |what: String, session, attributes: String, v6, outcome| {
        rows.push(Row { what, session, attributes, v6, outcome });
    };

    // The three attributes of every route.
    let path = as_path(External, 2);
    let (o, a, n) = (Withdraw("ORIGIN"), Withdraw("AS_PATH"), Withdraw("NEXT_HOP"));
    for (what, attributes, outcome) in [
        ("ORIGIN flags", format!("c0010100{path}{NEXT_HOP}"), o),
        ("ORIGIN short", format!("400100{path}{NEXT_HOP}"), o),
        ("ORIGIN long", format!("4001020000{path}{NEXT_HOP}"), o),
        ("ORIGIN twice", format!("{ORIGIN}{path}{NEXT_HOP}40010101"), Discard("ORIGIN")),
        ("ORIGIN value", format!("40010103{path}{NEXT_HOP}"), o),
        ("AS_PATH flags", format!("{ORIGIN}c0{}{NEXT_HOP}", &path[2..]), a),
        ("AS_PATH short", format!("{ORIGIN}400205 0202 0000fd{NEXT_HOP}"), a),
        ("AS_PATH long", format!("{ORIGIN}400207 0201 0000fdea 02{NEXT_HOP}"), a),
        ("AS_PATH twice", format!("{ORIGIN}{path}{NEXT_HOP}400200"), Discard("AS_PATH")),
        ("AS_PATH segment type", format!("{ORIGIN}400206 0501 0000fdea{NEXT_HOP}"), a),
        ("AS_PATH confederation", format!("{ORIGIN}400206 0301 0000fdea{NEXT_HOP}"), a),
        ("AS_PATH empty segment", format!("{ORIGIN}400208 0201 0000fdea 0200{NEXT_HOP}"), a),
        ("AS_PATH AS 0", format!("{ORIGIN}400206 0201 00000000{NEXT_HOP}"), a),
        ("NEXT_HOP flags", format!("{ORIGIN}{path}c0{}", &NEXT_HOP[2..]), n),
        ("NEXT_HOP short", format!("{ORIGIN}{path}400303c00002"), n),
        ("NEXT_HOP long", format!("{ORIGIN}{path}400305c000020900"), n),
        ("NEXT_HOP twice", format!("{ORIGIN}{path}{NEXT_HOP}400304c000020a"), Discard("NEXT_HOP")),
        ("NEXT_HOP value", format!("{ORIGIN}{path}400304e0000001"), n),
        ("ORIGIN missing", format!("{path}{NEXT_HOP}"), o),
        ("AS_PATH missing", format!("{ORIGIN}{NEXT_HOP}"), a),
        ("NEXT_HOP missing", format!("{ORIGIN}{path}"), n),
    ] {
        row(what.to_owned(), External, attributes, false, outcome);
    }

    let all = |outcome| [outcome; 3];
    let withdraw = |name| all(Withdraw(name));
    let cases = |name, code, flags, good, short, long, session, outcomes| AttributeCases {
        name,
        code,
        flags,
        good,
        short: Some(short),
        long,
        malformed: None,
        outcomes,
        session,
    };
    let local_pref = |session, outcomes| {
        cases("LOCAL_PREF", 5, 0x40, "00000064", "000064", "0000006400", session, outcomes)
    };
    let originator = |session, outcomes| {
        cases("ORIGINATOR_ID", 9, 0x80, "0a000009", "0a0000", "0a00000900", session, outcomes)
    };
    let cluster =
        |session, outcomes| cases("CLUSTER_LIST", 10, 0x80, "0a000009", "", "0a00000900", session, outcomes);
    let table = [
        cases(
            "MULTI_EXIT_DISC",
            4,
            0x80,
            "00000005",
            "000005",
            "0000000500",
            External,
            withdraw("MULTI_EXIT_DISC"),
        ),
        local_pref(Internal, withdraw("LOCAL_PREF")),
        local_pref(External, all(Discard("LOCAL_PREF"))),
        AttributeCases {
            short: None,
            ..cases(
                "ATOMIC_AGGREGATE",
                6,
                0x40,
                "",
                "",
                "00",
                External,
                [Withdraw("ATOMIC_AGGREGATE"), Discard("ATOMIC_AGGREGATE"), Discard("ATOMIC_AGGREGATE")],
            )
        },
        AttributeCases {
            malformed: Some("00000000 0a000009"),
            ..cases(
                "AGGREGATOR",
                7,
                0xc0,
                "0000fdea 0a000009",
                "fdea 0a000009",
                "0000fdea 0a00000900",
                External,
                [Withdraw("AGGREGATOR"), Discard("AGGREGATOR"), Discard("AGGREGATOR")],
            )
        },
        cases("COMMUNITIES", 8, 0xc0, "fdea0001", "fdea00", "fdea000100", External, withdraw("COMMUNITIES")),
        originator(Internal, withdraw("ORIGINATOR_ID")),
        originator(External, all(Discard("ORIGINATOR_ID"))),
        cluster(Internal, withdraw("CLUSTER_LIST")),
        cluster(External, all(Discard("CLUSTER_LIST"))),
        cases(
            "EXTENDED_COMMUNITIES",
            16,
            0xc0,
            "0002fdea00000001",
            "0002fdea000000",
            "0002fdea0000000100",
            External,
            withdraw("EXTENDED_COMMUNITIES"),
        ),
        AttributeCases {
            malformed: Some("0501 00010000"),
            ..cases(
                "AS4_PATH",
                17,
                0xc0,
                "0202 0000fdea 00000002",
                "0201 0000",
                "0202 0000fdea 00000002 02",
                TwoOctet,
                [Withdraw("AS4_PATH"), Discard("AS4_PATH"), Discard("AS4_PATH")],
            )
        },
        AttributeCases {
            malformed: Some("00000000 0a000009"),
            ..cases(
                "AS4_AGGREGATOR",
                18,
                0xc0,
                "00010000 0a000009",
                "0001 0a000009",
                "00010000 0a00000900",
                TwoOctet,
                [Withdraw("AS4_AGGREGATOR"), Discard("AS4_AGGREGATOR"), Discard("AS4_AGGREGATOR")],
            )
        },
        cases(
            "LARGE_COMMUNITIES",
            32,
            0xc0,
            "000000010000000200000003",
            "0000000100000002000000",
            "00000001000000020000000300",
            External,
            withdraw("LARGE_COMMUNITIES"),
        ),
        cases(
            "ONLY_TO_CUSTOMER",
            35,
            0xc0,
            "0000fdea",
            "0000fd",
            "0000fdea00",
            External,
            withdraw("ONLY_TO_CUSTOMER"),
        ),
    ];
    for AttributeCases { name, code, flags, good, short, long, malformed, outcomes, session } in table {
        let mandatory = format!("{ORIGIN}{}{NEXT_HOP}", as_path(session, 2));
        let mut row = |fault: &str, octets: String, outcome| {
            row(
                format!("{name} {fault}, {session:?}"),
                session,
                format!("{mandatory}{octets}"),
                false,
                outcome,
            );
        };
        row("flags", attribute(flags ^ 0x40, code, good), outcomes[0]);
        if let Some(short) = short {
            row("short", attribute(flags, code, short), outcomes[1]);
        }
        row("long", attribute(flags, code, long), outcomes[1]);
        row("twice", [attribute(flags, code, good), attribute(flags, code, good)].concat(), Discard(name));
        if let Some(malformed) = malformed {
            row("value", attribute(flags, code, malformed), outcomes[2]);
        }
    }

    // These two attributes contain routes. If the routes cannot be located, the session ends.
    let good = format!("{ORIGIN}{}", as_path(External, 2));
    let reach = attribute(0x80, 14, &format!("000201 10 {V6}"));
    let unreach = attribute(0x80, 15, "000201 30 20010db80009");
    for (what, attributes, outcome) in [
        ("MP_REACH_NLRI flags", format!("c0{}{good}", &reach[2..]), Withdraw("MP_REACH_NLRI")),
        ("MP_REACH_NLRI short", format!("800e03000201{good}"), Reset(9)),
        ("MP_REACH_NLRI longer than the attributes", format!("{good}800e40{}", &reach[6..]), Reset(9)),
        ("MP_REACH_NLRI twice", format!("{reach}{reach}{good}"), Reset(1)),
        ("MP_REACH_NLRI next hop length", format!("800e0900020104c000020900{good}"), Reset(9)),
        (
            "MP_REACH_NLRI next hop",
            format!("{}{good}", attribute(0x80, 14, &format!("000201 10 ff{}", &V6[2..]))),
            Withdraw("MP_REACH_NLRI"),
        ),
        (
            "MP_REACH_NLRI prefix",
            format!("{}{good}", attribute(0x80, 14, &format!("000201 10 {}", V6.replace(" 30 ", " 81 ")))),
            Reset(10),
        ),
        ("MP_UNREACH_NLRI flags", format!("c0{}", &unreach[2..]), Withdraw("MP_UNREACH_NLRI")),
        ("MP_UNREACH_NLRI short", "800f020002".to_owned(), Reset(9)),
        ("MP_UNREACH_NLRI longer than the attributes", format!("800f40{}", &unreach[6..]), Reset(9)),
        ("MP_UNREACH_NLRI twice", format!("{unreach}{unreach}"), Reset(1)),
        ("MP_UNREACH_NLRI prefix", attribute(0x80, 15, "000201 81 20010db80009"), Reset(10)),
    ] {
        row(what.to_owned(), External, attributes, true, outcome);
    }
    rows
}
