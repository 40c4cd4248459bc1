//! The section `telemetry` of the agent's configuration.
//!
//! Headers usually are credentials. So agent.yaml contains only references to their values: a file,
//! or an environment variable. A value in agent.yaml is refused, and the error does not repeat it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::Uri;
use hyper::header::{
    CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
};
use schemars::JsonSchema;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize, Serializer};

use crate::text_kinds::FilePath;

/// Maximum length of a header in octets.
const LONGEST: u64 = 16 << 10;

/// Export of telemetry data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TelemetryConfig {
    /// A collector of OpenTelemetry, which receives events and attach traces. Default: none.
    pub otlp: Option<Otlp>,
}

/// A collector. The protocol is OTLP/HTTP with protobuf.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Otlp {
    /// Its base URL; `/v1/logs` and `/v1/traces` are appended.
    #[schemars(example = &"http://127.0.0.1:4318")]
    pub endpoint: String,
    /// Headers of every request, by name, such as `authorization`.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, Reference>", extend("default" = {}))]
    pub headers: BTreeMap<String, Header>,
    /// PEM file of the certificates that sign an `https` collector's certificate. The agent reads
    /// it again when it changes. Default: the system's.
    #[serde(default)]
    #[schemars(with = "Option<FilePath>")]
    pub ca_file: Option<PathBuf>,
    /// Time limit of a request, in seconds.
    #[serde(default = "ten")]
    #[schemars(range(min = 1, max = 60))]
    pub timeout_seconds: u16,
    /// Resource attribute `service.name`.
    #[serde(default = "trunkline")]
    pub service_name: String,
}

fn ten() -> u16 {
    10
}

fn trunkline() -> String {
    "trunkline".to_owned()
}

/// The location of a header's value.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Header {
    /// A reference to the value.
    Reference(Reference),
    /// Another value, perhaps the header's own: it is not stored.
    Other(IgnoredValue),
}

/// A value that is not read.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct IgnoredValue(IgnoredAny);

impl Serialize for IgnoredValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

/// The location of a header's value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Reference {
    /// The content of this file, without white space at its ends. The agent reads it for each
    /// request, so it may be replaced.
    File(PathBuf),
    /// A variable of the agent's environment.
    Env(String),
}

impl TelemetryConfig {
    /// Checks the section. The error contains the field, the fault and the remedy.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        self.otlp.as_ref().map_or(Ok(()), Otlp::check)
    }
}

impl Otlp {
    fn check(&self) -> Result<(), (&'static str, String)> {
        self.uri("").map_err(|fault| ("telemetry.otlp.endpoint", fault))?;
        if !(1..=60).contains(&self.timeout_seconds) {
            let fault = format!("{} is out of range: write 1 to 60", self.timeout_seconds);
            return Err(("telemetry.otlp.timeoutSeconds", fault));
        }
        if self.service_name.is_empty() {
            let fault = "is empty: write a name, or leave the field out for `trunkline`".to_owned();
            return Err(("telemetry.otlp.serviceName", fault));
        }
        if let Some(path) = &self.ca_file {
            absolute(path).map_err(|fault| ("telemetry.otlp.caFile", fault))?;
        }
        for (name, header) in &self.headers {
            header.check(name).map_err(|fault| ("telemetry.otlp.headers", fault))?;
        }
        Ok(())
    }

    /// Time limit of a request.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(u64::from(self.timeout_seconds))
    }

    /// The collector's URL with this path appended. The error never repeats the endpoint, because
    /// it may contain a password.
    pub fn uri(&self, path: &str) -> Result<Uri, String> {
        let fix = "write http:// or https://, a host and a port, such as http://127.0.0.1:4318";
        let base: Uri = self.endpoint.parse().map_err(|_| format!("is no URL: {fix}"))?;
        if !matches!(base.scheme_str(), Some("http" | "https")) || base.host().is_none_or(str::is_empty) {
            return Err(format!("is not where a collector listens: {fix}"));
        }
        if base.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(
                "has a user or password: leave them out, and write headers with `authorization`".to_owned()
            );
        }
        if base.query().is_some() {
            return Err(format!("has a query (?): {fix}"));
        }
        format!("{}{path}", self.endpoint.trim_end_matches('/'))
            .parse()
            .map_err(|_| format!("is no URL: {fix}"))
    }

    /// The headers with their current values. It reads files. The error contains the header and the
    /// reason, and no value.
    pub fn read_headers(&self) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        for (name, header) in &self.headers {
            let text = header.read().map_err(|fault| format!("header {name}: {fault}"))?;
            let mut value = HeaderValue::from_str(text.trim())
                .map_err(|_| format!("header {name}: the value has more than one line of text"))?;
            value.set_sensitive(true);
            let name = name.parse::<HeaderName>().map_err(|_| format!("header {name}: is no name"))?;
            headers.insert(name, value);
        }
        Ok(headers)
    }
}

impl Header {
    fn check(&self, name: &str) -> Result<(), String> {
        let reserved = [CONTENT_TYPE, CONTENT_LENGTH, HOST, TRANSFER_ENCODING];
        let known = name.parse::<HeaderName>().map_err(|_| format!("{name:?} is no header's name"))?;
        if reserved.contains(&known) {
            return Err(format!("{name} is the exporter's own: leave it out"));
        }
        match self {
            Header::Other(_) => Err(format!(
                "{name}: write where its value is and not the value: {{file: /etc/trunkline/…}} or {{env: NAME}}"
            )),
            Header::Reference(Reference::File(path)) => {
                absolute(path).map_err(|fault| format!("{name}: file {fault}"))
            }
            Header::Reference(Reference::Env(variable)) if variable.is_empty() => {
                Err(format!("{name}: env is empty: write the name of a variable"))
            }
            Header::Reference(Reference::Env(_)) => Ok(()),
        }
    }

    fn read(&self) -> Result<String, String> {
        match self {
            Header::Reference(Reference::File(path)) => {
                read(path).map_err(|error| format!("{}: {error}", path.display()))
            }
            Header::Reference(Reference::Env(variable)) => std::env::var(variable)
                .map_err(|_| format!("the environment variable {variable} is not set, or is no text")),
            Header::Other(_) => Err("has no file and no variable".to_owned()),
        }
    }
}

fn absolute(path: &Path) -> Result<(), String> {
    match path.is_absolute() {
        true => Ok(()),
        false => Err(format!("{} is relative: write the whole path, from /", path.display())),
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(path)?.take(LONGEST).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn otlp(endpoint: &str) -> Otlp {
        Otlp {
            endpoint: endpoint.to_owned(),
            headers: BTreeMap::new(),
            ca_file: None,
            timeout_seconds: 10,
            service_name: "trunkline".to_owned(),
        }
    }

    #[test]
    fn paths_are_appended_to_the_endpoint() {
        for endpoint in ["http://127.0.0.1:4318", "http://127.0.0.1:4318/"] {
            assert_eq!(otlp(endpoint).uri("/v1/logs").unwrap(), "http://127.0.0.1:4318/v1/logs");
        }
        let behind = otlp("https://otel.example/tenant-1/");
        assert_eq!(behind.uri("/v1/traces").unwrap(), "https://otel.example/tenant-1/v1/traces");
    }

    #[test]
    fn a_header_is_read_when_it_is_needed_and_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let mut otlp = otlp("http://127.0.0.1:4318");
        otlp.headers.insert("authorization".to_owned(), Header::Reference(Reference::File(file.clone())));
        let missing = otlp.read_headers().unwrap_err();
        assert!(missing.contains("header authorization") && missing.contains("token"), "{missing}");
        for value in ["Bearer one", "Bearer two"] {
            std::fs::write(&file, format!("{value}\n")).unwrap();
            let headers = otlp.read_headers().unwrap();
            assert_eq!(headers["authorization"], value);
            assert!(!format!("{headers:?} {otlp:?}").contains("Bearer"));
        }
        std::fs::write(&file, "s3cret\nother: s3cret\n").unwrap();
        let refused = otlp.read_headers().unwrap_err();
        assert!(refused.contains("one line") && !refused.contains("s3cret"), "{refused}");
        otlp.headers.insert(
            "x-tenant".to_owned(),
            Header::Reference(Reference::Env("TRUNKLINE_TEST_NOT_SET".to_owned())),
        );
        std::fs::write(&file, "a").unwrap();
        assert!(otlp.read_headers().unwrap_err().contains("TRUNKLINE_TEST_NOT_SET is not set"));
    }
}
