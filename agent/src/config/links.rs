//! Links of VLANs and tunnels: `vlanInterfaces`, `vxlanInterfaces`.

use crate::plan::{LinkChoice, LinkChoiceError};

/// Checks a list of links.
pub(super) fn check(field: &'static str, entries: &[String]) -> Result<(), (&'static str, String)> {
    for (index, entry) in entries.iter().enumerate() {
        let parsed: Result<LinkChoice, LinkChoiceError> = entry.parse();
        parsed.map_err(|error| (field, error.to_string()))?;
        if entries[..index].contains(entry) {
            return Err((field, format!("{entry} is listed twice: remove one")));
        }
    }
    Ok(())
}

/// The links of a checked list.
pub(super) fn choices(entries: &[String]) -> Vec<LinkChoice> {
    entries.iter().filter_map(|entry| entry.parse().ok()).collect()
}
