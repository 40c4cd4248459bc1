//! AnycastAddress: addresses on the loopback interface of nodes, advertised while a health check
//! passes.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::meta::ObjectMeta;
use super::selector::LabelSelector;
use crate::value::{ValueError, parse_address};
use crate::value::{is_default, null_default};

/// Addresses of several nodes: cluster-scoped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AnycastAddress {
    /// `trunkline.io/v1alpha1`.
    pub api_version: String,
    /// `AnycastAddress`.
    pub kind: String,
    /// Name and labels.
    pub metadata: ObjectMeta,
    /// The desired state.
    pub spec: AnycastAddressSpec,
}

/// The desired state of an [`AnycastAddress`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AnycastAddressSpec {
    /// The addresses, each without a prefix length.
    pub addresses: Vec<String>,
    /// The nodes. Empty: all.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub node_selector: LabelSelector,
    /// The BGP peers, written as in `bgpPeers` of a Network. Empty: all.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<String>,
    /// Communities (RFC 1997): `65000:100`, or a name such as `no-export`.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub communities: Vec<String>,
    /// Large communities (RFC 8092): `65000:1:2`.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub large_communities: Vec<String>,
    /// LOCAL_PREF, for internal peers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_preference: Option<u32>,
    /// Additional occurrences of the node's AS number in AS_PATH.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub prepend: u8,
    /// The time between the graceful shutdown (RFC 8326) of the addresses and their withdrawal, if
    /// the check still passes or `keepLast` is set. Otherwise a failed check withdraws at once. See
    /// [`AnycastAddressSpec::graceful_shutdown`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graceful_shutdown_seconds: Option<u16>,
    /// The last node whose check fails keeps its addresses advertised, with graceful shutdown.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub keep_last: bool,
    /// The health check. Without one, the addresses are always advertised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<HealthCheck>,
}

/// The health check of an [`AnycastAddress`]: exactly one of `http`, `https`, `tcp`, `grpc` and
/// `command`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HealthCheck {
    /// A GET over HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpCheck>,
    /// A GET over HTTPS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub https: Option<HttpCheck>,
    /// A TCP connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpCheck>,
    /// gRPC's health service (`grpc.health.v1`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc: Option<GrpcCheck>,
    /// A program with its arguments; it must end with status 0. Only in files: an object of the API
    /// server with a command is refused, because the agent runs as root.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The address of the connection. Default: each address of the object.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub connect_to: String,
    /// The time between the beginnings of two checks. See [`HealthCheck::interval`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_milliseconds: Option<u32>,
    /// A check without a result by then fails. Not above the interval. Default: the interval, at
    /// most 1000. See [`HealthCheck::timeout`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_milliseconds: Option<u32>,
    /// After this many passed checks in a row the addresses are healthy. See
    /// [`HealthCheck::rise`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rise: Option<u32>,
    /// After this many failed checks in a row the addresses are unhealthy. See
    /// [`HealthCheck::fall`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fall: Option<u32>,
}

/// A check over HTTP or HTTPS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpCheck {
    /// The port.
    pub port: u16,
    /// The path. Default: `/`.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// The Host header, and for HTTPS the name in the server's certificate. Default: the address.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// The status codes of a passed check: one, or the first and the last. Default: `200-399`.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub expected_status: String,
    /// Only for HTTPS: a file on the node with the CA certificates (PEM) that may sign the server's
    /// certificate. Default: the CAs of the node.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub ca_file: String,
    /// Only for HTTPS: accept any certificate.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub insecure_skip_verify: bool,
}

/// A check that opens a TCP connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TcpCheck {
    /// The port.
    pub port: u16,
}

/// A check by gRPC's health service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GrpcCheck {
    /// The port.
    pub port: u16,
    /// The service in the request. Empty: the server as a whole.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub service: String,
}

/// The method of a [`HealthCheck`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckMethod<'a> {
    /// A GET over HTTP.
    Http(&'a HttpCheck),
    /// A GET over HTTPS.
    Https(&'a HttpCheck),
    /// A TCP connection.
    Tcp(&'a TcpCheck),
    /// gRPC's health service.
    Grpc(&'a GrpcCheck),
    /// A program and its arguments.
    Command(&'a [String]),
}

impl AnycastAddress {
    /// `metadata.name`.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }
}

impl AnycastAddressSpec {
    /// The default of `gracefulShutdownSeconds`.
    pub const DEFAULT_GRACEFUL_SHUTDOWN: u16 = 5;

    /// The addresses.
    ///
    /// # Errors
    /// The first text that is not an address.
    pub fn addresses(&self) -> Result<Vec<IpAddr>, ValueError> {
        self.addresses.iter().map(|text| parse_address(text)).collect()
    }

    /// The time between graceful shutdown and withdrawal.
    pub fn graceful_shutdown(&self) -> Duration {
        let seconds = self.graceful_shutdown_seconds.unwrap_or(Self::DEFAULT_GRACEFUL_SHUTDOWN);
        Duration::from_secs(seconds.into())
    }
}

impl HealthCheck {
    /// The default of `intervalMilliseconds`, and the highest default of `timeoutMilliseconds`.
    pub const DEFAULT_INTERVAL: u32 = 1000;
    /// The default of `rise`.
    pub const DEFAULT_RISE: u32 = 2;
    /// The default of `fall`.
    pub const DEFAULT_FALL: u32 = 3;

    /// Every method of the check; a valid check has one.
    pub fn methods(&self) -> impl Iterator<Item = CheckMethod<'_>> {
        let command = (!self.command.is_empty()).then_some(CheckMethod::Command(&self.command));
        [
            self.http.as_ref().map(CheckMethod::Http),
            self.https.as_ref().map(CheckMethod::Https),
            self.tcp.as_ref().map(CheckMethod::Tcp),
            self.grpc.as_ref().map(CheckMethod::Grpc),
            command,
        ]
        .into_iter()
        .flatten()
    }

    /// The address of the connection, if it is not each address of the object.
    ///
    /// # Errors
    /// The text is not an address.
    pub fn connect_to(&self) -> Result<Option<IpAddr>, ValueError> {
        if self.connect_to.is_empty() { Ok(None) } else { parse_address(&self.connect_to).map(Some) }
    }

    /// The time between the beginnings of two checks.
    pub fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_milliseconds.unwrap_or(Self::DEFAULT_INTERVAL).into())
    }

    /// The time after which a check without a result fails.
    pub fn timeout(&self) -> Duration {
        let default = || self.interval().min(Duration::from_millis(Self::DEFAULT_INTERVAL.into()));
        self.timeout_milliseconds.map_or_else(default, |timeout| Duration::from_millis(timeout.into()))
    }

    /// Passed checks in a row after which the addresses are healthy.
    pub fn rise(&self) -> u32 {
        self.rise.unwrap_or(Self::DEFAULT_RISE)
    }

    /// Failed checks in a row after which the addresses are unhealthy.
    pub fn fall(&self) -> u32 {
        self.fall.unwrap_or(Self::DEFAULT_FALL)
    }
}

impl HttpCheck {
    /// The path of the request.
    pub fn path(&self) -> &str {
        if self.path.is_empty() { "/" } else { &self.path }
    }

    /// The status codes of a passed check.
    ///
    /// # Errors
    /// The text is not a status code or a range of them.
    pub fn expected_status(&self) -> Result<RangeInclusive<u16>, ValueError> {
        if self.expected_status.is_empty() {
            return Ok(200..=399);
        }
        let code = |text: &str| {
            let is_number = text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u16>().ok().filter(|code| is_number && (100..=599).contains(code))
        };
        let (first, last) =
            self.expected_status.split_once('-').unwrap_or((&self.expected_status, &self.expected_status));
        match (code(first), code(last)) {
            (Some(first), Some(last)) if first <= last => Ok(first..=last),
            _ => Err(ValueError {
                value: self.expected_status.clone(),
                expected: "a status code or a range from 100 to 599, such as 200 or 200-399",
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_of_a_check() {
        let check: HealthCheck = serde_json::from_str(r#"{"http": {"port": 80}}"#).unwrap();
        assert_eq!(check.methods().count(), 1);
        assert_eq!((check.interval(), check.timeout()), (Duration::from_secs(1), Duration::from_secs(1)));
        assert_eq!((check.rise(), check.fall(), check.connect_to()), (2, 3, Ok(None)));
        let http = check.http.unwrap();
        assert_eq!((http.path(), http.expected_status()), ("/", Ok(200..=399)));
        let short = HealthCheck { interval_milliseconds: Some(50), ..HealthCheck::default() };
        assert_eq!(short.timeout(), Duration::from_millis(50));
        let long = HealthCheck { interval_milliseconds: Some(5000), ..HealthCheck::default() };
        assert_eq!(long.timeout(), Duration::from_secs(1));
    }

    #[test]
    fn expected_status_is_a_code_or_a_range() {
        let range = |text: &str| {
            HttpCheck { expected_status: text.to_owned(), ..HttpCheck::default() }.expected_status()
        };
        assert_eq!(range("204"), Ok(204..=204));
        assert_eq!(range("200-299"), Ok(200..=299));
        for wrong in ["2xx", "200-", "-299", "299-200", "099", "600", "+20", "200-299-300", "1000"] {
            assert_eq!(range(wrong).unwrap_err().value, wrong);
        }
    }
}
