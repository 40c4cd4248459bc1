//! The search of routes: parses an operator's words and collects the result.
//!
//! Possible words: an address (finds covering prefixes), a prefix (finds covering and contained
//! prefixes), the beginning of an address (`10.24`, `2001:db8:`), `AS65001`, a community. Several
//! words must all match.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ipnet::IpNet;
use trunkline_api::policy::parse_extended_community;
use trunkline_bgp::speaker::{PathStatus, RouteFilter, Source};
use trunkline_bgp::types::{Asn, Community, ExtendedCommunity, LargeCommunity, PeerKeyError};

/// Maximum number of prefixes in an answer.
pub(super) const SHOWN: usize = 100;
/// Maximum number of paths in an answer: a prefix may have many.
pub(super) const PATHS: usize = 500;
/// Time limit of a search.
pub(super) const WITHIN: Duration = Duration::from_secs(3);
/// Maximum length of a search in octets.
const LONGEST: usize = 200;

/// The reason for which a search cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SearchError {
    #[error("the search is longer than {LONGEST} octets: write less")]
    TooLong,
    #[error(transparent)]
    Peer(#[from] PeerKeyError),
    #[error("{0}: write used, unused, refused or stale")]
    Status(String),
    #[error(
        "{0}: write an address, a prefix, the beginning of an address such as 10.24 or 2001:db8:, an AS such as AS65001, \
         or a community such as 65000:1"
    )]
    Word(String),
    #[error("{0}: another word of this kind exists: remove one")]
    Repeated(String),
}

/// Parses a search: the words, the origin of the paths (`own` or a peer), and their state (`used`,
/// `unused`, `refused`, `stale`). An empty part matches everything.
pub(super) fn read(words: &str, from: &str, fate: &str) -> Result<RouteFilter, SearchError> {
    if words.len() > LONGEST {
        return Err(SearchError::TooLong);
    }
    let mut filter = RouteFilter {
        from: match from {
            "" => None,
            "own" => Some(Source::Own),
            peer => Some(Source::Peer(peer.parse()?)),
        },
        status: match fate {
            "" => None,
            "used" => Some(PathStatus::Used),
            "unused" => Some(PathStatus::Unused),
            "refused" => Some(PathStatus::Refused),
            "stale" => Some(PathStatus::Stale),
            other => return Err(SearchError::Status(other.to_owned())),
        },
        ..RouteFilter::default()
    };
    for word in words.split_whitespace() {
        let known = match meaning(word) {
            Some(Word::Prefix(prefix)) => filter.prefix.replace(prefix).is_some(),
            Some(Word::Asn(asn)) => filter.asn.replace(asn).is_some(),
            Some(Word::Community(community)) => filter.community.replace(community).is_some(),
            None => return Err(SearchError::Word(word.to_owned())),
        };
        if known {
            return Err(SearchError::Repeated(word.to_owned()));
        }
    }
    Ok(filter)
}

#[derive(Debug, PartialEq, Eq)]
enum Word {
    Prefix(IpNet),
    Asn(Asn),
    Community(String),
}

fn meaning(word: &str) -> Option<Word> {
    if let Ok(prefix) = word.parse::<IpNet>() {
        return Some(Word::Prefix(prefix));
    }
    if let Ok(address) = word.parse::<IpAddr>() {
        return Some(Word::Prefix(address.into()));
    }
    if let Some(number) = word.get(..2).filter(|it| it.eq_ignore_ascii_case("as")).and(word.get(2..)) {
        return number.parse().ok().map(|number| Word::Asn(Asn(number)));
    }
    if let Some(prefix) = beginning(word) {
        return Some(Word::Prefix(prefix));
    }
    let written = word.parse::<Community>().map(|it| it.to_string()).ok();
    let written = written.or_else(|| word.parse::<LargeCommunity>().map(|it| it.to_string()).ok());
    let written =
        written.or_else(|| parse_extended_community(word).map(|it| ExtendedCommunity(it).to_string()).ok());
    written.map(Word::Community)
}

/// The prefix for the beginning of an address: complete octets or groups.
fn beginning(word: &str) -> Option<IpNet> {
    if let Some(groups) = word.strip_suffix(':') {
        let groups: Vec<u16> =
            groups.split(':').map(|group| u16::from_str_radix(group, 16)).collect::<Result<_, _>>().ok()?;
        let mut whole = [0; 8];
        whole.get_mut(..groups.len())?.copy_from_slice(&groups);
        let length = u8::try_from(groups.len() * 16).ok()?;
        return IpNet::new(Ipv6Addr::from(whole).into(), length).ok();
    }
    let digits = word.strip_suffix('.').unwrap_or(word);
    // A number alone is ambiguous.
    if !word.contains('.') {
        return None;
    }
    let octets: Vec<u8> = digits.split('.').map(str::parse).collect::<Result<_, _>>().ok()?;
    let mut whole = [0; 4];
    whole.get_mut(..octets.len())?.copy_from_slice(&octets);
    let length = u8::try_from(octets.len() * 8).ok()?;
    IpNet::new(Ipv4Addr::from(whole).into(), length).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_search_word_gets_its_usual_meaning() {
        let prefix = |text: &str| Some(Word::Prefix(text.parse().unwrap()));
        let community = |text: &str| Some(Word::Community(text.to_owned()));
        for (word, meant) in [
            ("10.1.2.3", prefix("10.1.2.3/32")),
            ("10.1.0.0/16", prefix("10.1.0.0/16")),
            ("10.", prefix("10.0.0.0/8")),
            ("10.24", prefix("10.24.0.0/16")),
            ("10.24.1.", prefix("10.24.1.0/24")),
            ("2001:db8::1", prefix("2001:db8::1/128")),
            ("2001:db8::/32", prefix("2001:db8::/32")),
            ("2001:db8:", prefix("2001:db8::/32")),
            ("AS65001", Some(Word::Asn(Asn(65001)))),
            ("as4200000001", Some(Word::Asn(Asn(4_200_000_001)))),
            ("65000:1", community("65000:1")),
            ("65000:1:2", community("65000:1:2")),
            ("rt:65000:1", community("rt:65000:1")),
            ("10.300", None),
            ("10.1.2.3.4.", None),
            ("10", None),
            ("ASx", None),
            ("é", None),
            ("<script>", None),
            ("1:2:3:4:5:6:7:8:9:", None),
        ] {
            assert_eq!(meaning(word), meant, "{word}");
        }
    }

    #[test]
    fn words_must_all_match_and_invalid_words_are_refused() {
        let filter = read("10.1.0.0/16  AS65001", "10.0.0.1", "refused").unwrap();
        assert_eq!(filter.prefix, Some("10.1.0.0/16".parse().unwrap()));
        assert_eq!(filter.asn, Some(Asn(65001)));
        assert_eq!(filter.from, Some(Source::Peer("10.0.0.1".parse().unwrap())));
        assert_eq!(filter.status, Some(PathStatus::Refused));
        assert_eq!(read("", "", "").unwrap(), RouteFilter::default());
        assert_eq!(read("", "own", "").unwrap().from, Some(Source::Own));
        for (words, from, fate, fix) in [
            ("tor1", "", "", "write an address"),
            ("AS1 AS2", "", "", "remove one"),
            ("", "tor1", "", "tor1"),
            ("", "", "best", "used, unused, refused or stale"),
            (&"1".repeat(201), "", "", "write less"),
        ] {
            let error = read(words, from, fate).unwrap_err();
            assert!(error.to_string().contains(fix), "{error}");
        }
    }
}
