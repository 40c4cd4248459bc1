//! Segments that the kernel drops because of TCP-MD5 during an attempt to connect.
//!
//! The kernel drops a segment with a wrong signature silently, so a wrong password looks like an
//! absent peer. It counts the drops in `/proc/net/netstat`, for the whole network namespace and
//! without addresses. The counters are read only at the beginning and at the end of an attempt.

use std::fs;

use crate::speaker::RefusedSegments;

/// The thread's network namespace may differ from the process's.
const NETSTAT: &str = "/proc/thread-self/net/netstat";

/// The counters at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Md5Counters {
    failure: u64,
    not_found: u64,
    unexpected: u64,
}

impl Md5Counters {
    /// The counters now; none if the kernel has none or they cannot be read.
    pub(super) fn read() -> Option<Md5Counters> {
        parse(&fs::read_to_string(NETSTAT).ok()?)
    }

    /// The segments dropped since `earlier`. Zero if either reading failed: a missing counter is no
    /// evidence.
    pub(super) fn since(earlier: Option<Md5Counters>, now: Option<Md5Counters>) -> RefusedSegments {
        let (Some(earlier), Some(now)) = (earlier, now) else { return RefusedSegments::default() };
        RefusedSegments {
            wrong: now.failure.saturating_sub(earlier.failure),
            unsigned: now.not_found.saturating_sub(earlier.not_found),
            unexpected: now.unexpected.saturating_sub(earlier.unexpected),
        }
    }
}

/// `TcpExt:` occurs twice: a line of names, and a line of values in the same order.
fn parse(text: &str) -> Option<Md5Counters> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let values: Vec<&str> = values.split_whitespace().collect();
    let value = |wanted: &str| -> Option<u64> {
        let place = names.split_whitespace().position(|name| name == wanted)?;
        values.get(place)?.parse().ok()
    };
    Some(Md5Counters {
        failure: value("TCPMD5Failure")?,
        not_found: value("TCPMD5NotFound")?,
        unexpected: value("TCPMD5Unexpected")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn netstat(failure: &str) -> String {
        format!(
            "TcpExt: SyncookiesSent TCPMD5NotFound TCPMD5Unexpected TCPMD5Failure TCPSackShifted\n\
             TcpExt: 7 2 3 {failure} 9\n\
             IpExt: InNoRoutes TCPMD5Failure\n\
             IpExt: 1 1000\n"
        )
    }

    #[test]
    fn counters_are_found_by_name() {
        let counters = parse(&netstat("74")).unwrap();
        assert_eq!(counters, Md5Counters { failure: 74, not_found: 2, unexpected: 3 });
    }

    #[test]
    fn only_a_rise_counts() {
        let (before, after) = (parse(&netstat("74")), parse(&netstat("88")));
        let wrong = |wrong| RefusedSegments { wrong, ..RefusedSegments::default() };
        assert_eq!(Md5Counters::since(before, after), wrong(14));
        assert_eq!(Md5Counters::since(before, before), wrong(0));
        assert_eq!(Md5Counters::since(None, after), wrong(0));
        assert_eq!(Md5Counters::since(after, None), wrong(0));
    }

    #[test]
    fn a_text_without_the_counters_has_none() {
        for text in ["", "TcpExt: A B\n", "TcpExt: A B\nTcpExt: 1 2\n", &netstat("x"), "IpExt: A\nIpExt: 1\n"]
        {
            assert_eq!(parse(text), None, "{text:?}");
        }
        assert_eq!(parse("TcpExt: A TCPMD5NotFound TCPMD5Unexpected TCPMD5Failure\nTcpExt: 1 2 3\n"), None);
    }

    #[test]
    fn this_kernel_is_read() {
        if fs::exists(NETSTAT).is_ok_and(|there| there) {
            let text = fs::read_to_string(NETSTAT).unwrap();
            assert_eq!(Md5Counters::read().is_some(), text.contains("TCPMD5Failure"));
        }
    }
}
