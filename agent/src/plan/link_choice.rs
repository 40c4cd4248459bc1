//! The choice of a link from a list in the configuration: by name, by a regular expression, or by
//! the kernel's route to an address.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use regex::bytes::{Regex, RegexBuilder};
use trunkline_bgp::types::InterfaceName;
use trunkline_datapath::plan::Link;

use super::Host;

/// The beginning of an entry with an address.
const REACHES: &str = "can-reach=";

/// One entry of the list.
#[derive(Clone, Debug)]
pub enum LinkChoice {
    /// The link with this name.
    Name(String),
    /// The first link, by interface index, with a matching name.
    Pattern(Regex),
    /// The link of the kernel's route to this address.
    Reaches(IpAddr),
}

/// The reason why an entry is refused.
#[derive(Debug, thiserror::Error)]
pub enum LinkChoiceError {
    /// No name of an interface.
    #[error("{0}; for a regular expression write /EXPRESSION/, for the link of a route can-reach=ADDRESS")]
    Name(String),
    /// No regular expression.
    #[error("{text} is no regular expression: {reason}: write one such as /^eth[0-9]+$/")]
    Pattern {
        /// The entry.
        text: String,
        /// The fault, without the expression.
        reason: String,
    },
    /// No address.
    #[error("{0} has no address behind can-reach=: write an address such as can-reach=10.0.0.1")]
    Address(String),
}

impl FromStr for LinkChoice {
    type Err = LinkChoiceError;

    fn from_str(text: &str) -> Result<LinkChoice, LinkChoiceError> {
        if let Some(address) = text.strip_prefix(REACHES) {
            let address = address.parse().ok().filter(|address: &IpAddr| !address.is_unspecified());
            return address.map(LinkChoice::Reaches).ok_or_else(|| LinkChoiceError::Address(text.to_owned()));
        }
        // No interface has a slash in its name.
        if let Some(pattern) = text.strip_prefix('/') {
            let failed = |reason: String| LinkChoiceError::Pattern { text: text.to_owned(), reason };
            let pattern = pattern
                .strip_suffix('/')
                .filter(|pattern| !pattern.is_empty())
                .ok_or_else(|| failed("it has no expression between two slashes".to_owned()))?;
            let error = |error: regex::Error| {
                let text = error.to_string();
                failed(text.lines().last().unwrap_or_default().trim().to_owned())
            };
            // Classes such as \d are ASCII: names of interfaces are.
            let pattern = RegexBuilder::new(pattern).unicode(false).build();
            return pattern.map(LinkChoice::Pattern).map_err(error);
        }
        text.parse::<InterfaceName>().map_err(|error| LinkChoiceError::Name(error.to_string()))?;
        Ok(LinkChoice::Name(text.to_owned()))
    }
}

impl fmt::Display for LinkChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkChoice::Name(name) => f.write_str(name),
            LinkChoice::Pattern(pattern) => write!(f, "/{pattern}/"),
            LinkChoice::Reaches(address) => write!(f, "{REACHES}{address}"),
        }
    }
}

impl PartialEq for LinkChoice {
    fn eq(&self, other: &LinkChoice) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for LinkChoice {}

/// The link of the first entry with an existing one. A regular expression and a route never select
/// a link of the agent itself, such as a VLAN device, whose name begins with the name of its parent.
pub(super) fn first<'a>(choices: &[LinkChoice], host: &'a Host) -> Option<&'a Link> {
    let links = || host.kernel.links.iter();
    choices.iter().find_map(|choice| match choice {
        LinkChoice::Name(name) => links().find(|link| link.name == *name),
        LinkChoice::Pattern(pattern) => links()
            .filter(|link| !link.own && link.name != "lo" && pattern.is_match(link.name.as_bytes()))
            .min_by_key(|link| link.index),
        LinkChoice::Reaches(address) => {
            let index = host.kernel.reached.get(address)?;
            links().find(|link| link.index == *index && !link.own)
        }
    })
}

/// The entries in one text, for an error.
pub(super) fn joined(choices: &[LinkChoice]) -> String {
    choices.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use trunkline_datapath::plan::KernelHost;

    use super::*;

    #[test]
    fn the_first_entry_with_a_link_counts() {
        let link = |index, name: &str, own| Link {
            index,
            name: name.to_owned(),
            mac: None,
            addresses: Vec::new(),
            up: true,
            running: true,
            mtu: 1500,
            kind: None,
            own,
        };
        let kernel = KernelHost {
            links: vec![
                link(1, "lo", false),
                link(9, "eth1", false),
                link(4, "eth2", false),
                link(3, "eth1.10", true),
                link(5, "bond0", false),
            ],
            reached: [("10.0.0.1", 5), ("10.0.0.2", 3), ("10.0.0.3", 77)]
                .map(|(address, link)| (address.parse().unwrap(), link))
                .into(),
            ..KernelHost::default()
        };
        let host = Host { kernel, ..Host::default() };
        for (entries, expected) in [
            (&["eth1"][..], "eth1"),
            (&["none", "eth1"], "eth1"),
            (&["/^eth/", "bond0"], "eth2"),
            (&["/1$/"], "eth1"),
            (&[r"/^\w+\D\d$/"], "eth2"),
            (&["/(?i)^BOND/"], "bond0"),
            (&["/^eth1[.]/"], "none"),
            (&["/./"], "eth2"),
            (&["can-reach=10.0.0.1"], "bond0"),
            (&["can-reach=10.0.0.2"], "none"),
            (&["can-reach=10.0.0.3"], "none"),
            (&["can-reach=2001:db8::1", "/^bond/"], "bond0"),
        ] {
            let choices: Vec<LinkChoice> = entries.iter().map(|entry| entry.parse().unwrap()).collect();
            assert_eq!(joined(&choices), entries.join(", "));
            let found = first(&choices, &host).map_or("none", |link| link.name.as_str());
            assert_eq!(found, expected, "{entries:?}");
        }
    }
}
