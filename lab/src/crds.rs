//! `cargo lab crds`: the files of `deploy/crds`, written from the types of `api/`.

use anyhow::{Context as _, Result};

use crate::fabric::Place;
use crate::progress::say;

/// Writes the files; with `check` only reports outdated ones. Returns whether all are current.
pub(crate) fn run(place: &Place, check: bool) -> Result<bool> {
    let folder = place.repository.join("deploy/crds");
    let mut current = true;
    for (name, text) in trunkline_api::kube::manifests() {
        let path = folder.join(&name);
        if std::fs::read_to_string(&path).is_ok_and(|there| there == text) {
            continue;
        }
        if check {
            say(&format!("deploy/crds/{name} is not current: run `cargo lab crds`"));
            current = false;
        } else {
            std::fs::create_dir_all(&folder)?;
            std::fs::write(&path, text).with_context(|| path.display().to_string())?;
            say(&format!("wrote deploy/crds/{name}"));
        }
    }
    Ok(current)
}
