//! The overlay: the prefixes of the node's addresses in it.

use ipnet::IpNet;

/// Checks a list of prefixes.
pub(super) fn check_prefixes(field: &'static str, prefixes: &[IpNet]) -> Result<(), (&'static str, String)> {
    for (index, prefix) in prefixes.iter().enumerate() {
        if *prefix != prefix.trunc() {
            let message = format!("{prefix} has bits behind its length: write {}", prefix.trunc());
            return Err((field, message));
        }
        if prefixes[..index].contains(prefix) {
            return Err((field, format!("{prefix} is listed twice: remove one")));
        }
    }
    Ok(())
}
