//! The section `telemetry` of the agent's configuration.
//!
//! Headers usually are credentials. So agent.yaml contains only references to their values: a file,
//! or an environment variable. A value in agent.yaml is refused, and the error does not repeat it.

use std::collections::BTreeMap;
use std::env::VarError;
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
    /// PEM file of the CA certificates for an `https` collector. The agent reads
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

const URL: &str = "write http:// or https://, a host and a port, such as http://127.0.0.1:4318";

/// An invalid value in `telemetry.otlp`. The text never repeats the endpoint or a header's value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OtlpError {
    /// The endpoint is no URL.
    #[error("is no URL: {URL}")]
    NoUrl,
    /// The endpoint has no host, or another scheme.
    #[error("is no address of a collector: {URL}")]
    NoCollector,
    /// The endpoint has a user or password.
    #[error("has a user or password: leave them out, and write headers with `authorization`")]
    UserInfo,
    /// The endpoint has a query.
    #[error("has a query (?): {URL}")]
    Query,
    /// The time limit is out of range.
    #[error("{0} is out of range: write 1 to 60")]
    Timeout(u16),
    /// The service name is empty.
    #[error("is empty: write a name, or leave the field out for `trunkline`")]
    NoServiceName,
    /// A path is relative.
    #[error("{} is relative: write an absolute path", .0.display())]
    Relative(PathBuf),
    /// A text is no name of a header.
    #[error("{0:?} is no header's name")]
    HeaderName(String),
    /// The exporter sets the header itself.
    #[error("the exporter sets {0} itself: leave it out")]
    HeaderReserved(String),
    /// A header has neither a file nor a variable.
    #[error(
        "{0}: write a reference to the value, and not the value itself: {{file: \
             /etc/trunkline/…}} or {{env: NAME}}"
    )]
    HeaderValue(String),
    /// The file of a header is relative.
    #[error("{header}: file {} is relative: write an absolute path", path.display())]
    HeaderFile {
        /// The header.
        header: String,
        /// Its file.
        path: PathBuf,
    },
    /// The variable of a header has no name.
    #[error("{0}: env is empty: write the name of a variable")]
    HeaderVariable(String),
}

/// A header without a valid value. The text never repeats a value.
#[derive(Debug, thiserror::Error)]
#[error("header {header}: {source}")]
pub struct HeaderError {
    header: String,
    source: ValueFault,
}

/// The reason for which a header has no valid value.
#[derive(Debug, thiserror::Error)]
enum ValueFault {
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("the environment variable {variable} is not set, or is no text")]
    Variable { variable: String, source: VarError },
    #[error("has no file and no variable")]
    NoReference,
    #[error("the value has more than one line of text")]
    Lines,
    #[error("is no name")]
    NoName,
}

impl TelemetryConfig {
    /// Checks the section. The error contains the field, the fault and the remedy.
    ///
    /// # Errors
    /// A field has an invalid value.
    pub fn check(&self) -> Result<(), (&'static str, OtlpError)> {
        self.otlp.as_ref().map_or(Ok(()), Otlp::check)
    }
}

impl Otlp {
    fn check(&self) -> Result<(), (&'static str, OtlpError)> {
        self.uri("").map_err(|fault| ("telemetry.otlp.endpoint", fault))?;
        if !(1..=60).contains(&self.timeout_seconds) {
            return Err(("telemetry.otlp.timeoutSeconds", OtlpError::Timeout(self.timeout_seconds)));
        }
        if self.service_name.is_empty() {
            return Err(("telemetry.otlp.serviceName", OtlpError::NoServiceName));
        }
        if let Some(path) = self.ca_file.as_ref().filter(|path| !path.is_absolute()) {
            return Err(("telemetry.otlp.caFile", OtlpError::Relative(path.clone())));
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
    pub fn uri(&self, path: &str) -> Result<Uri, OtlpError> {
        let base: Uri = self.endpoint.parse().map_err(|_| OtlpError::NoUrl)?;
        if !matches!(base.scheme_str(), Some("http" | "https")) || base.host().is_none_or(str::is_empty) {
            return Err(OtlpError::NoCollector);
        }
        if base.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(OtlpError::UserInfo);
        }
        if base.query().is_some() {
            return Err(OtlpError::Query);
        }
        let uri = format!("{}{path}", self.endpoint.trim_end_matches('/'));
        uri.parse().map_err(|_| OtlpError::NoUrl)
    }

    /// The headers with their current values. It reads files.
    ///
    /// # Errors
    /// A header has no valid value. The error contains the header and the reason, and no value.
    pub fn read_headers(&self) -> Result<HeaderMap, HeaderError> {
        let mut headers = HeaderMap::new();
        for (name, header) in &self.headers {
            let failed = |source| HeaderError { header: name.clone(), source };
            let text = header.read().map_err(failed)?;
            let value = HeaderValue::from_str(text.trim());
            let mut value = value.map_err(|_| failed(ValueFault::Lines))?;
            value.set_sensitive(true);
            let name = name.parse::<HeaderName>().map_err(|_| failed(ValueFault::NoName))?;
            headers.insert(name, value);
        }
        Ok(headers)
    }
}

impl Header {
    fn check(&self, name: &str) -> Result<(), OtlpError> {
        let reserved = [CONTENT_TYPE, CONTENT_LENGTH, HOST, TRANSFER_ENCODING];
        let header = || name.to_owned();
        let known = name.parse::<HeaderName>().map_err(|_| OtlpError::HeaderName(header()))?;
        if reserved.contains(&known) {
            return Err(OtlpError::HeaderReserved(header()));
        }
        match self {
            Header::Other(_) => Err(OtlpError::HeaderValue(header())),
            Header::Reference(Reference::File(path)) if !path.is_absolute() => {
                Err(OtlpError::HeaderFile { header: header(), path: path.clone() })
            }
            Header::Reference(Reference::Env(variable)) if variable.is_empty() => {
                Err(OtlpError::HeaderVariable(header()))
            }
            Header::Reference(_) => Ok(()),
        }
    }

    fn read(&self) -> Result<String, ValueFault> {
        match self {
            Header::Reference(Reference::File(path)) => {
                read(path).map_err(|source| ValueFault::File { path: path.clone(), source })
            }
            Header::Reference(Reference::Env(variable)) => std::env::var(variable)
                .map_err(|source| ValueFault::Variable { variable: variable.clone(), source }),
            Header::Other(_) => Err(ValueFault::NoReference),
        }
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
        let missing = otlp.read_headers().unwrap_err().to_string();
        assert!(missing.contains("header authorization") && missing.contains("token"), "{missing}");
        for value in ["Bearer one", "Bearer two"] {
            std::fs::write(&file, format!("{value}\n")).unwrap();
            let headers = otlp.read_headers().unwrap();
            assert_eq!(headers["authorization"], value);
            assert!(!format!("{headers:?} {otlp:?}").contains("Bearer"));
        }
        std::fs::write(&file, "s3cret\nother: s3cret\n").unwrap();
        let refused = otlp.read_headers().unwrap_err().to_string();
        assert!(refused.contains("one line") && !refused.contains("s3cret"), "{refused}");
        otlp.headers.insert(
            "x-tenant".to_owned(),
            Header::Reference(Reference::Env("TRUNKLINE_TEST_NOT_SET".to_owned())),
        );
        std::fs::write(&file, "a").unwrap();
        assert!(otlp.read_headers().unwrap_err().to_string().contains("TRUNKLINE_TEST_NOT_SET is not set"));
    }
}
