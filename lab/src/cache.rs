//! Programs from source that do not change with the project are built once per machine, into the
//! user's cache folder. Folders and files there have a hash of their source in their names.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::fabric::Place;

/// The user's cache folder; for a user without a home, the target folder.
pub(crate) fn folder(place: &Place) -> Result<PathBuf> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
    let named = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    match named {
        Some(folder) => Ok(folder),
        None => place.state.parent().map(PathBuf::from).context("the target folder"),
    }
}

/// FNV-1a: the hash is the same on every machine and with every compiler.
pub(crate) fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, octet| (hash ^ u64::from(octet)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::hash;

    #[test]
    fn hash_is_fnv_1a() {
        assert_eq!(hash(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash("a"), 0xaf63_dc4c_8601_ec8c);
    }
}
