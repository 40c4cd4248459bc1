//! The network configuration on standard input.
//!
//! It is kept as a JSON object. Each accessor reads one key and names it in its error, so a command
//! cannot fail because of a key that it does not need. DEL and GC read the fewest keys, and work
//! with a configuration that ADD would refuse.

use std::time::Duration;

use serde_json::{Map, Value};
use trunkline_api::attach::{Code, DEFAULT_SOCKET, Failure, Interface};

use crate::environment::is_identifier;

/// The supported CNI versions, oldest first.
pub(crate) const VERSIONS: [&str; 3] = ["0.4.0", "1.0.0", NEWEST];
/// The newest supported version, the first with GC and STATUS.
pub(crate) const NEWEST: &str = "1.1.0";

/// Default timeout of ADD, and of every other command, in seconds; `timeoutSeconds` overrides it.
const DEFAULT_TIMEOUT: u64 = 60;

/// Trunkline's own key for the timeout, in seconds.
const TIMEOUT: &str = "timeoutSeconds";

/// Keys of the specification and Trunkline's own: any other is a typing error. (The specification
/// reserves `cni.dev/…` for future keys.)
const KEYS: [&str; 15] = [
    "cniVersion",
    "cniVersions",
    "name",
    "type",
    "capabilities",
    "args",
    "ipam",
    "ipMasq",
    "dns",
    "prevResult",
    "runtimeConfig",
    "socket",
    "network",
    "subnet",
    TIMEOUT,
];

/// A network configuration with a supported version and a valid name.
#[derive(Debug)]
pub(crate) struct Configuration {
    object: Map<String, Value>,
    version: String,
    name: String,
    socket: String,
    timeout: Duration,
}

impl Configuration {
    pub(crate) fn parse(input: &[u8]) -> Result<Self, Failure> {
        if input.iter().all(u8::is_ascii_whitespace) {
            return Err(Failure::new(
                Code::InvalidContent,
                "there is no network configuration on standard input",
            ));
        }
        let object = match serde_json::from_slice(input) {
            Ok(Value::Object(object)) => object,
            Ok(_) => {
                return Err(Failure::new(
                    Code::InvalidContent,
                    "the network configuration on standard input is not a JSON object",
                ));
            }
            Err(error) => {
                return Err(Failure::new(
                    Code::InvalidContent,
                    format!("the network configuration on standard input is not JSON: {error}"),
                ));
            }
        };
        let version = match object.get("cniVersion") {
            Some(Value::String(version)) if VERSIONS.contains(&version.as_str()) => version.clone(),
            other => {
                let shown = other.map_or("missing".to_owned(), |value| format!("{value} is not supported"));
                return Err(Failure::new(
                    Code::IncompatibleVersion,
                    format!("cniVersion: {shown}: write one of {}", VERSIONS.join(", ")),
                ));
            }
        };
        let name = text(&object, "name")?.unwrap_or_default().to_owned();
        if !is_identifier(&name) {
            return Err(invalid(
                "name",
                format!(
                    "`{name}` is not a network's name: write letters, digits, `_`, `.` and `-` after a letter or digit"
                ),
            ));
        }
        let socket = text(&object, "socket")?.unwrap_or(DEFAULT_SOCKET).to_owned();
        if !socket.starts_with('/') {
            return Err(invalid(
                "socket",
                format!("`{socket}` is not an absolute path: write a path that begins with `/`"),
            ));
        }
        let timeout = match object.get(TIMEOUT) {
            None | Some(Value::Null) => DEFAULT_TIMEOUT,
            Some(value) => {
                value.as_u64().filter(|seconds| (1..=3600).contains(seconds)).ok_or_else(|| {
                    invalid(TIMEOUT, format!("{value} is not a number of seconds: write 1 to 3600"))
                })?
            }
        };
        Ok(Configuration { object, version, name, socket, timeout: Duration::from_secs(timeout) })
    }

    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn socket(&self) -> &str {
        &self.socket
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// A text of the configuration; an empty one counts as absent.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, Failure> {
        text(&self.object, key)
    }

    /// An object of the configuration.
    pub(crate) fn object(&self, key: &str) -> Result<Option<&Map<String, Value>>, Failure> {
        match self.object.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(object)) => Ok(Some(object)),
            Some(_) => Err(invalid(key, "it is not a JSON object")),
        }
    }

    /// Result of the previous plugins, or of ADD.
    pub(crate) fn previous_result(&self) -> Result<Option<&Map<String, Value>>, Failure> {
        self.object("prevResult")
    }

    /// Refuses keys that Trunkline would not apply, instead of ignoring them.
    pub(crate) fn refuse_unsupported(&self) -> Result<(), Failure> {
        let refuse =
            |field: &str, why: &str| Err(Failure::new(Code::UnsupportedField, format!("{field}: {why}")));
        let is_set = |value: &Value| match value {
            Value::Null | Value::Bool(false) => false,
            Value::Object(object) => !object.is_empty(),
            Value::Array(array) => !array.is_empty(),
            _ => true,
        };
        for (key, value) in &self.object {
            if !KEYS.contains(&key.as_str()) && !key.starts_with("cni.dev/") {
                let known = "socket, network, subnet and timeoutSeconds are Trunkline's own keys";
                return refuse(key, &format!("not known: {known}; take it out"));
            }
            match key.as_str() {
                "ipam" if is_set(value) => {
                    return refuse("ipam", "the agent allocates addresses from its Subnets: take it out");
                }
                "ipMasq" if is_set(value) => {
                    return refuse("ipMasq", "write config.autoNatOutgoing: true into the Subnet instead");
                }
                _ => {}
            }
        }
        let runtime = self.object("runtimeConfig")?;
        if runtime.and_then(|runtime| runtime.get("portMappings")).is_some_and(is_set) {
            return refuse(
                "runtimeConfig.portMappings",
                "put the `portmap` plugin with the capability `portMappings` after this one in the chain",
            );
        }
        Ok(())
    }

    /// The attachments that GC must keep. Without this key they are unknown, which differs from an
    /// empty list.
    pub(crate) fn valid_attachments(&self) -> Result<Vec<Interface>, Failure> {
        const KEY: &str = "cni.dev/valid-attachments";
        // Early versions of libcni wrote the second name; later ones write both.
        let value = self.object.get(KEY).or_else(|| self.object.get("cni.dev/attachments"));
        let Some(value) = value else {
            return Err(invalid(KEY, "missing: GC would delete every container's interface"));
        };
        let entries = match value {
            Value::Null => return Ok(Vec::new()), // Go's empty list
            Value::Array(entries) => entries,
            _ => return Err(invalid(KEY, "it is not a list")),
        };
        let attachment = |(index, entry): (usize, &Value)| {
            let part = |key: &str| match entry.get(key) {
                Some(Value::String(text)) if !text.is_empty() => Ok(text.clone()),
                _ => Err(invalid(&format!("{KEY}[{index}].{key}"), "it is not a text")),
            };
            Ok(Interface { container_id: part("containerID")?, ifname: part("ifname")? })
        };
        entries.iter().enumerate().map(attachment).collect()
    }
}

/// `cniVersion` of an input that may be wrong in every other way.
pub(crate) fn version_of(input: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(input).ok()?;
    Some(value.get("cniVersion")?.as_str()?.to_owned())
}

/// The error for a wrong field of the network configuration.
pub(crate) fn invalid(field: &str, message: impl AsRef<str>) -> Failure {
    Failure::new(Code::InvalidConfiguration, format!("{field}: {}", message.as_ref()))
}

fn text<'a>(object: &'a Map<String, Value>, key: &str) -> Result<Option<&'a str>, Failure> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
        Some(other) => Err(invalid(key, format!("{other} is not a text"))),
    }
}
