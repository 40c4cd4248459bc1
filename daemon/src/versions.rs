//! Versions of the API server's objects (`resourceVersion`), and the detection of a restored etcd.
//!
//! When etcd is restored from an older snapshot, the versions go back as well. A watch that
//! continues from a later version then waits silently until the server reaches that version again.
//! So a client that lost its watch requests the current version, by a list of one object, and lists
//! everything again if the API server [is behind](is_behind).

/// A version as a number; 0 if it is missing. In Kubernetes it is a number, which grows with each
/// write of an object.
pub fn number(version: Option<&str>) -> u64 {
    version.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Whether the API server's current version is older than one that it sent before. False if it
/// sends no version.
pub fn is_behind(current: Option<&str>, seen: u64) -> bool {
    current.and_then(|text| text.parse::<u64>().ok()).is_some_and(|current| current < seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_older_version_is_behind() {
        for (current, behind) in [(Some("6"), true), (Some("7"), false), (Some("8"), false), (None, false)] {
            assert_eq!(is_behind(current, 7), behind, "{current:?}");
        }
        assert!(!is_behind(Some("no number"), 7));
        assert_eq!((number(Some("12")), number(None)), (12, 0));
    }
}
