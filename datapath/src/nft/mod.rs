//! The agent's nftables tables: NAT (`nat`), marks of translated connections (`translated`),
//! limits of alternate paths (`alternate`), counters of packets to unassigned addresses
//! (`unassigned`), the guard (`guard`), and the drop of returned probes (`probes`).
//!
//! `nft` loads a table in one transaction. So every packet meets either the old rules or the new
//! rules. The agent first lists a table, and replaces it only if it differs from the wanted table.
//! Elements of sets that depend on pods or nodes are written over netlink (`elements`), without
//! an `nft` process. The table of network policies (`policy`) is written over netlink only. Its
//! rules report packets to `policy_log`.
//!
//! Many firewall services run `nft flush ruleset` when they start. This also deletes the agent's
//! tables. The kernel owner gets notifications (`kernel::events`) and compares the tables after
//! each change. The agent also gets notifications of its own changes. The comparison then finds no
//! difference.

pub mod alternate;
pub(crate) mod arp_sender;
pub(crate) mod elements;
pub mod guard;
pub(crate) mod nat;
pub mod policy;
pub mod policy_log;
pub(crate) mod probes;
mod translated;
pub mod unassigned;

use std::io::{self, Write as _};
use std::process::{Command, ExitStatus, Stdio};

use netlink_packet_core::parse_string;

use crate::netlink::message::{self, Message};

/// The reason why nftables did not change.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NftError {
    /// The program `nft` does not run.
    #[error("nft cannot be started: {0}: install nftables")]
    Start(#[source] io::Error),
    /// `nft` refused a script and printed this message.
    #[error("nft: {0}")]
    Refused(String),
    /// `nft` refused a script without a message.
    #[error("nft failed without a message ({0})")]
    Silent(ExitStatus),
    /// The elements of the guard's sets cannot be read or written over netlink.
    #[error("guard: sets of nftables cannot be written: {0}")]
    Elements(#[source] io::Error),
}

/// Tables that follow the plan, by family and name.
const TABLES: [(i32, &str); 5] = [
    (libc::NFPROTO_ARP, arp_sender::NAME),
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
    /// Whether the elements of its named sets are part of the text.
    elements: bool,
    /// The text that was loaded last, and the listing of `nft` for it.
    loaded: Option<(String, String)>,
}

impl Table {
    pub(crate) const fn new(family: &'static str, name: &'static str, elements: bool) -> Table {
        Table { family, name, elements, loaded: None }
    }

    /// Whether the kernel has the table with the content of `text`.
    pub(crate) fn is_loaded(&mut self, text: &str) -> Result<bool, NftError> {
        let Some(there) = self.list()? else { return Ok(false) };
        match &self.loaded {
            Some((loaded, listed)) if loaded == text => Ok(*listed == there),
            // The last run of the agent loaded this table. nft decides where lines break, so white
            // space is not compared.
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
        // `add` before `delete`: without it, `delete` fails if the table does not exist.
        format!("add table {family} {name}\ndelete table {family} {name}\n{text}")
    }

    /// Stores the listing of the loaded table. The format of the listing depends on the version of
    /// nft.
    pub(crate) fn record_listing(&mut self, text: &str) -> Result<(), NftError> {
        self.loaded = self.list()?.map(|listed| (text.to_owned(), listed));
        Ok(())
    }

    /// Loads the table `wanted`, or deletes the table if `wanted` is none. Returns whether the
    /// table changed.
    pub(crate) fn apply(&mut self, wanted: Option<&str>) -> Result<bool, NftError> {
        match wanted {
            Some(text) if self.is_loaded(text)? => Ok(false),
            Some(text) => {
                run(&self.replacement(text))?;
                self.record_listing(text)?;
                Ok(true)
            }
            None => self.delete(),
        }
    }

    /// Deletes the table. Returns whether it existed.
    pub(crate) fn delete(&mut self) -> Result<bool, NftError> {
        self.loaded = None;
        if self.list()?.is_none() {
            return Ok(false);
        }
        run(&format!("delete table {} {}\n", self.family, self.name))?;
        Ok(true)
    }

    /// The listing of the table without counter values; none if the table does not exist.
    fn list(&self) -> Result<Option<String>, NftError> {
        let mut nft = Command::new("nft");
        // Protocols are listed as numbers, because their names depend on `/etc/protocols`.
        nft.args(["--stateless", "--numeric-protocol"]);
        if !self.elements {
            nft.arg("--terse");
        }
        let output = nft
            .args(["list", "table", self.family, self.name])
            .stdin(Stdio::null())
            .output()
            .map_err(NftError::Start)?;
        Ok(output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned()))
    }
}

/// Runs a script as one transaction.
pub(crate) fn run(script: &str) -> Result<(), NftError> {
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(NftError::Start)?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(script.as_bytes()).map_err(NftError::Start)?;
    }
    let output = child.wait_with_output().map_err(NftError::Start)?;
    let text = String::from_utf8_lossy(&output.stderr);
    match (output.status.success(), text.trim()) {
        (true, _) => Ok(()),
        (false, "") => Err(NftError::Silent(output.status)),
        (false, text) => Err(NftError::Refused(text.to_owned())),
    }
}

/// `NFNL_SUBSYS_NFTABLES` and `NFT_MSG_NEWCHAIN`.
pub(crate) const NEW_CHAIN: u16 = 10 << 8 | 3;
/// `NFTA_CHAIN_TYPE`.
const CHAIN_TYPE: u16 = 7;

/// Whether an nftables notification reports a new NAT chain of another program. iptables over
/// nftables creates such chains, too.
pub(crate) fn is_foreign_nat(message: &Message<'_>) -> bool {
    let attributes = message.body.get(4..).unwrap_or_default();
    let mut kinds = message::attributes(attributes, &[CHAIN_TYPE], |nla| parse_string(nla.value()));
    message.kind == NEW_CHAIN && kinds.any(|kind| kind == "nat") && own_table(message).is_none()
}

/// Whether the network namespace of the calling thread has a NAT chain. nftables does not list the
/// chains of legacy iptables.
pub(crate) fn has_nat() -> bool {
    let legacy = |family: &str| {
        let names = std::fs::read_to_string(format!("/proc/thread-self/net/{family}_tables_names"));
        names.is_ok_and(|names| names.lines().any(|name| name == "nat"))
    };
    let chains = || Command::new("nft").args(["--terse", "list", "chains"]).stdin(Stdio::null()).output();
    legacy("ip")
        || legacy("ip6")
        || chains().is_ok_and(|listed| lists_foreign_nat(&String::from_utf8_lossy(&listed.stdout)))
}

/// Whether a listing of chains has a NAT chain in a table of another program.
fn lists_foreign_nat(listing: &str) -> bool {
    let mut is_own = false;
    listing.lines().any(|line| {
        if let Some(table) = line.strip_prefix("table ") {
            is_own = table.split_whitespace().nth(1).is_some_and(|name| name.starts_with("trunkline"));
        }
        !is_own && line.contains("type nat hook")
    })
}

/// A table of the agent in a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnTable {
    /// The table of network policies.
    Policies,
    /// A table that follows the plan: NAT, probes, guard, senders of ARP requests.
    Planned,
}

/// The agent's table that an nftables notification names. The message starts with `nfgenmsg`, whose
/// first octet is the family. Attribute 1 is always the table's name.
pub(crate) fn own_table(message: &Message<'_>) -> Option<OwnTable> {
    let family = message.body.first().copied().map(i32::from)?;
    let attributes = message.body.get(4..).unwrap_or_default();
    let name = message::attributes(attributes, &[1], |nla| parse_string(nla.value())).next()?;
    if (family, name.as_str()) == (libc::NFPROTO_INET, policy::NAME) {
        return Some(OwnTable::Policies);
    }
    TABLES.contains(&(family, name.as_str())).then_some(OwnTable::Planned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nat_chain_of_this_program_is_not_foreign() {
        let own = "table inet trunkline-guard {\n\tchain own_prerouting {\n\t\ttype nat hook prerouting priority -120; policy accept;\n\t}\n}\n";
        let foreign = "table ip nat {\n\tchain PREROUTING {\n\t\ttype nat hook prerouting priority dstnat; policy accept;\n\t}\n}\n";
        let filter = "table inet filter {\n\tchain input {\n\t\ttype filter hook input priority filter; policy accept;\n\t}\n}\n";
        assert!(!lists_foreign_nat(&format!("{own}{filter}")));
        assert!(lists_foreign_nat(&format!("{own}{foreign}")));
        assert!(lists_foreign_nat(&format!("{foreign}{own}")));
        assert!(!lists_foreign_nat(""));
    }
}
