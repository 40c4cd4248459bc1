//! Own nftables tables: NAT, the marks of translated connections, the limits of alternate paths and the counts of what is for no pod here
//! ([`nat`], [`translated`], [`alternate`], [`unassigned`]), the guard ([`guard`]), and what comes back of probes ([`probes`]).
//!
//! `nft` loads a table as one transaction: between the old rules and the new ones no packet sees none. A table is listed before it is
//! replaced, and nothing is done where it is as wanted. Elements of sets that follow pods or nodes are written over netlink
//! ([`elements`]), without a process.
//!
//! Firewalls like to start with `nft flush ruleset`, which takes own tables along. The owner listens
//! (`kernel::events`) and compares again after a change. The agent's own changes are notified too, and found right.

pub mod alternate;
pub(crate) mod elements;
pub mod guard;
pub(crate) mod nat;
pub(crate) mod probes;
mod translated;
pub mod unassigned;

use std::io::Write as _;
use std::process::{Command, Stdio};

use netlink_packet_core::parse_string;

use crate::netlink::message::{self, Message};

/// Tables of this agent, by family and name.
const TABLES: [(i32, &str); 4] = [
    (libc::NFPROTO_INET, nat::NAME),
    (libc::NFPROTO_NETDEV, probes::NAME),
    (libc::NFPROTO_INET, guard::NAME),
    (libc::NFPROTO_ARP, guard::NAME),
];

/// A table that is replaced as a whole.
#[derive(Debug)]
pub(crate) struct Table {
    family: &'static str,
    name: &'static str,
    /// Elements of its named sets are part of the text.
    elements: bool,
    /// The text that was loaded last, and how `nft` lists it.
    loaded: Option<(String, String)>,
}

impl Table {
    pub(crate) const fn new(family: &'static str, name: &'static str, elements: bool) -> Table {
        Table { family, name, elements, loaded: None }
    }

    /// Whether the table is there as `text` has it.
    pub(crate) fn is_loaded(&mut self, text: &str) -> Result<bool, String> {
        let Some(there) = self.list()? else { return Ok(false) };
        match &self.loaded {
            Some((loaded, listed)) if loaded == text => Ok(*listed == there),
            // Of the last run. Where lines break is nft's matter.
            _ if there.split_whitespace().eq(text.split_whitespace()) => {
                self.loaded = Some((text.to_owned(), there));
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// The commands that replace the table by `text`.
    pub(crate) fn replacement(&self, text: &str) -> String {
        let Table { family, name, .. } = self;
        // `add` before `delete`, so that it is no error where the table is not there.
        format!("add table {family} {name}\ndelete table {family} {name}\n{text}")
    }

    /// Remembers how `nft` lists what was loaded, which differs from version to version.
    pub(crate) fn note(&mut self, text: &str) -> Result<(), String> {
        self.loaded = self.list()?.map(|listed| (text.to_owned(), listed));
        Ok(())
    }

    /// Brings the table to `wanted`; without it the table is deleted. Whether something changed.
    pub(crate) fn apply(&mut self, wanted: Option<&str>) -> Result<bool, String> {
        match wanted {
            Some(text) if self.is_loaded(text)? => Ok(false),
            Some(text) => {
                run(&self.replacement(text))?;
                self.note(text)?;
                Ok(true)
            }
            None => self.delete(),
        }
    }

    /// Deletes the table. Whether it was there.
    pub(crate) fn delete(&mut self) -> Result<bool, String> {
        self.loaded = None;
        if self.list()?.is_none() {
            return Ok(false);
        }
        run(&format!("delete table {} {}\n", self.family, self.name))?;
        Ok(true)
    }

    /// The table as it is, without the values of its counters; none if it is not there.
    fn list(&self) -> Result<Option<String>, String> {
        let mut nft = Command::new("nft");
        // Protocols by number: the names depend on `/etc/protocols`.
        nft.args(["--stateless", "--numeric-protocol"]);
        if !self.elements {
            nft.arg("--terse");
        }
        let output = nft
            .args(["list", "table", self.family, self.name])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("nft cannot be started: {error}: install nftables"))?;
        Ok(output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned()))
    }
}

/// Runs commands as one transaction.
pub(crate) fn run(script: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("nft cannot be started: {error}: install nftables");
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(script.as_bytes()).map_err(failed)?;
    }
    let output = child.wait_with_output().map_err(failed)?;
    let text = String::from_utf8_lossy(&output.stderr);
    match (output.status.success(), text.trim()) {
        (true, _) => Ok(()),
        (false, "") => Err(format!("nft failed without a message ({})", output.status)),
        (false, text) => Err(format!("nft: {text}")),
    }
}

/// `NFNL_SUBSYS_NFTABLES` and `NFT_MSG_NEWCHAIN`.
const NEW_CHAIN: u16 = 10 << 8 | 3;
/// `NFTA_CHAIN_TYPE`.
const CHAIN_TYPE: u16 = 7;

/// Whether a notification of nftables says that somebody else has made a NAT chain. iptables over nftables makes such chains, too.
pub(crate) fn is_others_nat(message: &Message<'_>) -> bool {
    let attributes = message.body.get(4..).unwrap_or_default();
    let mut kinds = message::attributes(attributes, &[CHAIN_TYPE], |nla| parse_string(nla.value()));
    message.kind == NEW_CHAIN && kinds.any(|kind| kind == "nat") && !concerns(message)
}

/// Whether the namespace of the calling thread has a NAT chain already. The chains of iptables' own tables are in no list of nftables.
pub(crate) fn has_nat() -> bool {
    let legacy = |family: &str| {
        let names = std::fs::read_to_string(format!("/proc/thread-self/net/{family}_tables_names"));
        names.is_ok_and(|names| names.lines().any(|name| name == "nat"))
    };
    let chains = || Command::new("nft").args(["--terse", "list", "chains"]).stdin(Stdio::null()).output();
    legacy("ip")
        || legacy("ip6")
        || chains().is_ok_and(|listed| String::from_utf8_lossy(&listed.stdout).contains("type nat hook"))
}

/// Whether a notification of nftables is about an own table: `nfgenmsg`, whose first octet is the family, and attribute 1 is always the
/// table's name.
pub(crate) fn concerns(message: &Message<'_>) -> bool {
    let family = message.body.first().copied().map(i32::from);
    let attributes = message.body.get(4..).unwrap_or_default();
    let name = message::attributes(attributes, &[1], |nla| parse_string(nla.value())).next();
    TABLES.iter().any(|(own, table)| family == Some(*own) && name.as_deref() == Some(*table))
}
