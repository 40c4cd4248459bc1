//! The archive: a gzipped tar. Each part is cleaned of secrets and written at once.
//!
//! A part stays in memory until it is in the archive, because tar needs its size first. So a part
//! has a maximum size ([`LARGEST`]), and larger data is split.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use tar::{Builder, EntryType, Header};

use super::redact::Secrets;

/// Maximum size of a part in octets. The rest of a program's output is omitted; answers of the
/// agent are split.
pub(super) const LARGEST: usize = 16 << 20;

/// Content of a part. Data is cleaned by field names and value by value.
#[derive(Clone, Debug)]
pub(super) enum Content {
    /// Text for people.
    Text(String),
    /// Data for programs.
    Json(Value),
}

/// A gzipped tar archive without secrets.
pub(super) struct Archive<W: Write> {
    tar: Builder<GzEncoder<W>>,
    /// The one folder that contains all parts.
    folder: String,
    /// Modification time of all parts, in seconds since 1970.
    time: u64,
    /// The secrets that are removed.
    secrets: Secrets,
}

impl<W: Write> Archive<W> {
    /// Begins an archive.
    pub(super) fn begin(out: W, folder: &str, time: u64) -> io::Result<Self> {
        let mut tar = Builder::new(GzEncoder::new(out, Compression::default()));
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Directory);
        header.set_mode(0o700);
        header.set_mtime(time);
        header.set_size(0);
        tar.append_data(&mut header, format!("{folder}/"), io::empty())?;
        Ok(Archive { tar, folder: folder.to_owned(), time, secrets: Secrets::default() })
    }

    /// Sets the secrets that are removed from all later parts.
    pub(super) fn hide(&mut self, secrets: Secrets) {
        self.secrets = secrets;
    }

    /// Removes secrets from a text that is printed elsewhere.
    pub(super) fn clean(&self, text: &str) -> String {
        self.secrets.clean_text(text)
    }

    /// Adds a part; returns its name in the archive.
    pub(super) fn put(&mut self, path: &str, content: Content) -> io::Result<String> {
        let text = match content {
            Content::Text(text) => self.secrets.clean_text(&text),
            Content::Json(value) => serde_json::to_string_pretty(&self.secrets.clean(value))? + "\n",
        };
        let path = name(&self.secrets.clean_text(path));
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o600);
        header.set_mtime(self.time);
        header.set_size(text.len() as u64);
        self.tar.append_data(&mut header, format!("{}/{path}", self.folder), text.as_bytes())?;
        Ok(path)
    }

    /// Writes the end of the archive.
    pub(super) fn end(self) -> io::Result<W> {
        self.tar.into_inner()?.finish()
    }
}

/// A path in the archive that is valid in every file system.
fn name(path: &str) -> String {
    let usual = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let component = |part: &str| {
        let plain: String = part.chars().map(|c| if usual(c) { c } else { '_' }).collect();
        if plain.starts_with('.') { format!("_{plain}") } else { plain }
    };
    path.split('/').filter(|part| !part.is_empty()).map(component).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read as _;

    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_harmless() {
        for (path, wanted) in [
            ("agent/peers/fe80::1%eth0.txt", "agent/peers/fe80__1_eth0.txt"),
            ("config/manifests/../../../etc/passwd", "config/manifests/_../_../_../etc/passwd"),
            ("/a//.hidden\u{1b}[2J", "a/_.hidden__2J"),
        ] {
            assert_eq!(name(path), wanted);
        }
    }

    #[test]
    fn archive_contains_its_parts_without_secrets() {
        let mut archive = Archive::begin(Vec::new(), "bundle", 1_800_000_000).unwrap();
        let mut secrets = Secrets::default();
        secrets.add("hunter2");
        archive.hide(secrets);
        archive.put("a/hunter2.txt", Content::Text("the key is hunter2\n".to_owned())).unwrap();
        archive.put("b.json", Content::Json(json!({"password": 1, "text": "hunter2"}))).unwrap();
        let long = format!("{}/c.txt", "x".repeat(150));
        archive.put(&long, Content::Text("long name".to_owned())).unwrap();
        let octets = archive.end().unwrap();

        let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(octets.as_slice()));
        let mut found = BTreeMap::new();
        for entry in tar.entries().unwrap() {
            let mut entry = entry.unwrap();
            let (path, mode) = (entry.path().unwrap().display().to_string(), entry.header().mode().unwrap());
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            found.insert(path, (mode, text));
        }
        let wanted = [
            ("bundle/".to_owned(), (0o700, String::new())),
            ("bundle/a/_redacted_.txt".to_owned(), (0o600, "the key is [redacted]\n".to_owned())),
            (
                "bundle/b.json".to_owned(),
                (0o600, "{\n  \"password\": \"[redacted]\",\n  \"text\": \"[redacted]\"\n}\n".to_owned()),
            ),
            (format!("bundle/{long}"), (0o600, "long name".to_owned())),
        ];
        assert_eq!(found, BTreeMap::from(wanted));
    }
}
