//! Configuration, manifests, the agent's cache of the cluster, and the container runtime's
//! configuration. All are read and written as data.
//!
//! All files are read before any part is written, because a secret in one file must not appear in
//! another file or in a log.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, anyhow, ensure};
use rustix::fs::statvfs;
use serde_json::Value;
use trunkline_agent::config::Config;
use trunkline_agent::source::folder;
use trunkline_agent::source::kube::SourceKind;

use super::archive::{Content, LARGEST};
use super::redact::{self, SecretLocation, Secrets};
use super::shapes;
use super::step::{Missing, Sink};
use crate::arguments::HostArgs;

/// The token of the agent's pod.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
/// Maximum number of files of one folder that are listed or read.
const FILES: usize = 1000;

/// Total size limit in octets. All files stay in memory until the secrets are known.
const TOGETHER: u64 = 32 << 20;

/// The files that were read.
pub(super) struct Gathered {
    /// The configuration, if it is valid.
    pub(super) config: Option<Config>,
    /// Values that must not appear in the bundle.
    pub(super) secrets: Secrets,
    parts: Vec<(String, Content)>,
    missing: Vec<Missing>,
    octets: u64,
}

/// Reads all files.
pub(super) fn read_all(host: &HostArgs) -> Gathered {
    let mut all = Gathered {
        config: None,
        secrets: Secrets::default(),
        parts: Vec::new(),
        missing: Vec::new(),
        octets: 0,
    };
    all.configuration(&host.config);
    let config = all.config.clone().unwrap_or_default();
    all.manifests(&config);
    all.cluster(&config);
    let conflist = host.place.conf_dir.join(&host.place.conf_name);
    if conflist.exists() {
        all.document(&conflist, &format!("cni/{}", host.place.conf_name));
    } else {
        all.record_missing("the CNI configuration", format!("{} does not exist", conflist.display()));
    }
    all
}

impl Gathered {
    /// Passes the files to the sink.
    pub(super) fn write_to(self, sink: &Sink) -> anyhow::Result<()> {
        for (path, content) in self.parts {
            sink.put(path, content)?;
        }
        for Missing { what, why } in self.missing {
            sink.missing(what, why)?;
        }
        Ok(())
    }

    fn record_missing(&mut self, what: impl Into<String>, why: impl Display) {
        self.missing.push(Missing { what: what.into(), why: format!("{why:#}") });
    }

    /// Adds the configuration file, and the effective configuration with all defaults.
    fn configuration(&mut self, path: &Path) {
        self.document(path, "config/agent.json");
        match Config::read(path) {
            Ok(config) => {
                match serde_json::to_value(&config) {
                    Ok(effective) => {
                        self.parts.push(("config/effective.json".to_owned(), Content::Json(effective)));
                    }
                    Err(error) => self.record_missing("config/effective.json", error.to_string()),
                }
                self.config = Some(config);
            }
            Err(error) => {
                self.record_missing("config/effective.json", shapes::hide_quoted_lines(&error.to_string()));
            }
        }
    }

    fn manifests(&mut self, config: &Config) {
        let entries = match fs::read_dir(&config.manifests) {
            Ok(entries) => entries,
            Err(_) if config.source == SourceKind::Kube => return,
            Err(error) => {
                return self
                    .record_missing("the manifests", format!("{}: {error}", config.manifests.display()));
            }
        };
        let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        files.retain(|file| folder::is_manifest(file));
        files.sort();
        if files.len() > FILES {
            self.record_missing(format!("manifests beyond {FILES}"), format!("there are {}", files.len()));
            files.truncate(FILES);
        }
        for file in files {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            self.document(&file, &format!("config/manifests/{name}.json"));
        }
    }

    /// Adds the agent's cache of the cluster, with keys from Secrets, and reads the agent's
    /// credentials as secrets.
    fn cluster(&mut self, config: &Config) {
        if config.source != SourceKind::Kube {
            return;
        }
        if let Ok(token) = read(Path::new(SERVICE_ACCOUNT)) {
            self.secrets.add(&token);
        }
        if let Some(kubeconfig) = &config.kube.kubeconfig {
            match documents(kubeconfig) {
                Ok(documents) => documents.iter().for_each(|document| self.secrets.learn(document)),
                Err(why) => {
                    self.record_missing("the credentials of the kubeconfig, for the removal of secrets", why)
                }
            }
        }
        let path = &config.kube.cache;
        match documents(path) {
            Ok(mut documents) => {
                for document in &mut documents {
                    // Each entry: network, index of the peer, key.
                    let keys = document.as_object_mut().and_then(|fields| fields.remove("passwords"));
                    for key in keys.iter().flat_map(|keys| keys.as_array().into_iter().flatten()) {
                        key.as_array()
                            .and_then(|key| key.last()?.as_str())
                            .inspect(|key| self.secrets.add(key));
                    }
                }
                self.take("config/cluster.json", documents);
            }
            Err(why) => self.record_missing("config/cluster.json", why),
        }
    }

    /// Adds one file: reads its secrets and keeps it.
    fn document(&mut self, file: &Path, path: &str) {
        self.octets += fs::metadata(file).map_or(0, |file| file.len());
        if self.octets > TOGETHER {
            return self.record_missing(
                path,
                format!("this file and the files before it are larger than {TOGETHER} octets"),
            );
        }
        match documents(file) {
            Ok(documents) => self.take(path, documents),
            Err(why) => self.record_missing(path, why),
        }
    }

    fn take(&mut self, path: &str, mut documents: Vec<Value>) {
        for document in &documents {
            self.secrets.learn(document);
            self.keys_in_files(document);
        }
        let whole = if documents.len() == 1 { documents.remove(0) } else { Value::Array(documents) };
        self.parts.push((path.to_owned(), Content::Json(whole)));
    }

    /// Adds the keys in separate files to the secrets. The files are not in the bundle.
    fn keys_in_files(&mut self, value: &Value) {
        match value {
            Value::Object(fields) => {
                for (name, inner) in fields {
                    match inner {
                        Value::String(file) if name == "passwordFile" && file.starts_with('/') => {
                            match read(Path::new(file)) {
                                Ok(key) => self.secrets.add(&key),
                                Err(why) => {
                                    self.record_missing("the key in a file, for the removal of secrets", why)
                                }
                            }
                        }
                        Value::Object(headers) if name == "headers" => {
                            for header in headers.values() {
                                match redact::place(header).map(at) {
                                    Some(Ok(value)) => {
                                        self.secrets.add(&value);
                                        // The secret is the value without the word `Bearer`.
                                        value
                                            .split_whitespace()
                                            .last()
                                            .inspect(|word| self.secrets.add(word));
                                    }
                                    Some(Err(why)) => self
                                        .record_missing("a header's value, for the removal of secrets", why),
                                    None => {}
                                }
                            }
                        }
                        inner => self.keys_in_files(inner),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.keys_in_files(item)),
            _ => {}
        }
    }
}

/// The documents of a YAML or JSON file. An error contains no line of the file, because a line of
/// invalid data may contain a secret.
fn documents(path: &Path) -> anyhow::Result<Vec<Value>> {
    let text = read(path)?;
    let json = serde_json::from_str(&text).map(|document| vec![document]);
    json.or_else(|_| serde_saphyr::from_multiple(&text)).map_err(|error| {
        let place = error.location().map(|at| format!(", line {}, column {}", at.line(), at.column()));
        anyhow!(
            "{}{} is not valid YAML: its secrets cannot be identified, so the file is omitted",
            path.display(),
            place.unwrap_or_default()
        )
    })
}

/// A header's value. A variable is read from this process's environment; in a container this is the
/// agent's environment too.
fn at(place: SecretLocation<'_>) -> anyhow::Result<String> {
    match place {
        SecretLocation::File(path) => read(Path::new(path)),
        SecretLocation::Variable(name) => std::env::var(name).with_context(|| format!("variable {name}")),
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    let name = || path.display().to_string();
    let mut octets = Vec::new();
    let file = File::open(path).with_context(name)?;
    file.take(LARGEST as u64 + 1).read_to_end(&mut octets).with_context(name)?;
    ensure!(octets.len() <= LARGEST, "{} is larger than {LARGEST} octets", name());
    // The error has a part of the content.
    String::from_utf8(octets).map_err(|_| anyhow!("{} is not text", name()))
}

/// Lists sizes, modes and times of the agent's files, without their contents.
pub(super) fn listing(host: &HostArgs, config: &Config, sink: &Sink) -> anyhow::Result<()> {
    let mut text = String::new();
    let files = [&host.config, &config.store, &config.socket, &config.kube.cache].map(|path| path.as_path());
    for path in files.into_iter().chain(config.kube.kubeconfig.as_deref()) {
        text.push_str(&line(path));
    }
    text.push_str(&inside(&config.manifests));
    if let Some(folder) = config.store.parent()
        && let Ok(disk) = statvfs(folder)
    {
        let mebibytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize) / (1 << 20);
        let (free, size) = (mebibytes(disk.f_bavail), mebibytes(disk.f_blocks));
        text.push_str(&format!("\n{}: {free} of {size} MiB free\n", folder.display()));
    }
    sink.text("host/files.txt", text)?;
    let place = &host.place;
    sink.text("cni/files.txt", inside(&place.conf_dir) + &inside(&place.bin_dir))
}

fn inside(folder: &Path) -> String {
    let mut files: Vec<_> = match fs::read_dir(folder) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(error) => return format!("\n{}: {error}\n", folder.display()),
    };
    files.sort();
    let more = files.len().saturating_sub(FILES);
    let mut text = format!("\n{}:\n", folder.display());
    files.iter().take(FILES).for_each(|file| text.push_str(&line(file)));
    if more > 0 {
        text.push_str(&format!("… and {more} more\n"));
    }
    text
}

fn line(path: &Path) -> String {
    let shown = path.display();
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) => return format!("{shown}: {error}\n"),
    };
    let changed = found.modified().ok().and_then(|time| k8s_openapi::jiff::Timestamp::try_from(time).ok());
    let changed = changed.map(|time| format!("{time:.0}")).unwrap_or_default();
    let target = fs::read_link(path).map(|target| format!(" -> {}", target.display())).unwrap_or_default();
    format!("{:06o} {:>12} {changed} {shown}{target}\n", found.permissions().mode(), found.len())
}
