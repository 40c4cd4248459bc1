//! The options of an attachment. Each value comes from the first source that has it. For addresses
//! and MAC address, the order is the same as in the reference plugins: `runtimeConfig`, `args.cni`
//! and CNI_ARGS; then the pod's annotations. For Network and Subnets, which those plugins do not
//! have, it is CNI_ARGS, the annotations and the network configuration.
//!
//! The annotations are in `runtimeConfig["io.kubernetes.cri.pod-annotations"]` if the configuration
//! declares that capability to the runtime.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Map, Value};
use trunkline_api::attach::{AttachOptions, Code, Failure, MAX_LABELS};
use trunkline_api::names::{annotation, label};
use trunkline_api::pod::{MAX_EXTRA_PREFIXES, extra_prefix, ordinal};
use trunkline_api::resources::parse_mac;

use crate::bandwidth::bandwidth;
use crate::configuration::{Configuration, invalid};
use crate::environment::Arguments;

const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

pub(crate) fn options(
    configuration: &Configuration,
    arguments: &Arguments,
) -> Result<AttachOptions, Failure> {
    let sources = OptionSources {
        runtime: configuration.object("runtimeConfig")?,
        conventions: configuration.object("args")?.and_then(|args| args.get("cni")),
        ordinal: arguments.name.as_deref().and_then(ordinal),
    };
    let text = |value: &Option<String>| value.as_deref().map(str::to_owned);
    let network = match text(&arguments.network).or(sources.annotation(annotation::SPECIFIED_NETWORK)) {
        Some(network) => Some(network),
        None => configuration.text("network")?.map(str::to_owned),
    };
    let subnets = match text(&arguments.subnet).or(sources.annotation(annotation::SPECIFIED_SUBNET)) {
        Some(subnets) => Some(subnets),
        None => configuration.text("subnet")?.map(str::to_owned),
    };
    let subnets: Vec<String> = subnets
        .iter()
        .flat_map(|subnets| subnets.split('/'))
        .map(str::trim)
        .filter(|subnet| !subnet.is_empty())
        .map(str::to_owned)
        .collect();
    if subnets.len() > 2 {
        return Err(invalid("subnet", format!("{} are more than one Subnet per family", subnets.join("/"))));
    }
    Ok(AttachOptions {
        network,
        subnets,
        addresses: addresses(&sources, arguments)?,
        mac: mac(&sources, arguments)?,
        bandwidth: bandwidth(sources.runtime, |name| sources.annotation(name))?,
        extra_prefixes: extra_prefixes(&sources)?,
        labels: labels(&sources)?,
    })
}

struct OptionSources<'a> {
    runtime: Option<&'a Map<String, Value>>,
    conventions: Option<&'a Value>,
    ordinal: Option<usize>,
}

impl OptionSources<'_> {
    /// An argument of a capability that the configuration declares.
    fn capability(&self, key: &str) -> Option<&Value> {
        self.runtime?.get(key)
    }

    /// An argument in `args.cni`, by CNI's conventions.
    fn convention(&self, key: &str) -> Option<&Value> {
        self.conventions?.get(key)
    }

    fn annotation(&self, name: &str) -> Option<String> {
        let text = self.runtime?.get(ANNOTATIONS)?.get(name)?.as_str()?;
        Some(text.to_owned()).filter(|text| !text.is_empty())
    }

    /// The pod's entry in a pool. If the pool has several entries, it is the entry of the pod's
    /// ordinal.
    fn pool_entry(&self, name: &str) -> Result<Option<String>, Failure> {
        let Some(pool) = self.annotation(name) else { return Ok(None) };
        let entries: Vec<&str> = pool.split(',').map(str::trim).collect();
        let entry = match (entries.as_slice(), self.ordinal) {
            ([only], _) => *only,
            (entries, Some(ordinal)) => entries.get(ordinal).copied().ok_or_else(|| {
                invalid(
                    name,
                    format!(
                        "`{pool}` has {} entries, and none for the pod's ordinal {ordinal}: add them",
                        entries.len()
                    ),
                )
            })?,
            (_, None) => {
                return Err(invalid(
                    name,
                    format!("`{pool}` has more than one entry, and the pod has no ordinal: write one entry"),
                ));
            }
        };
        Ok(Some(entry.to_owned()))
    }
}

fn addresses(sources: &OptionSources<'_>, arguments: &Arguments) -> Result<Vec<IpAddr>, Failure> {
    let list = |value: Option<&Value>| -> Option<Vec<String>> {
        let texts: Vec<String> = value?.as_array()?.iter().map(plain).collect();
        (!texts.is_empty()).then_some(texts)
    };
    let split = |text: &str, separator| text.split(separator).map(|part| part.trim().to_owned()).collect();
    let (field, code, texts): (_, _, Vec<String>) = if let Some(texts) = list(sources.capability("ips")) {
        ("runtimeConfig.ips", Code::InvalidConfiguration, texts)
    } else if let Some(texts) = list(sources.convention("ips")) {
        ("args.cni.ips", Code::InvalidConfiguration, texts)
    } else if let Some(text) = &arguments.addresses {
        ("CNI_ARGS: IP", Code::InvalidEnvironment, split(text, ','))
    } else if let Some(entry) = sources.pool_entry(annotation::IP_POOL)? {
        (annotation::IP_POOL, Code::InvalidConfiguration, split(&entry, '/'))
    } else {
        return Ok(Vec::new());
    };
    let mut addresses: Vec<IpAddr> = Vec::new();
    for text in &texts {
        let address =
            text.parse().or_else(|_| text.parse::<IpNet>().map(|net| net.addr())).map_err(|_| {
                Failure::new(
                    code,
                    format!("{field}: `{text}` is not an IP address: write one such as 10.14.0.7"),
                )
            })?;
        if addresses.iter().any(|other| other.is_ipv4() == address.is_ipv4()) {
            let shown = texts.join(", ");
            return Err(Failure::new(
                code,
                format!("{field}: {shown}: write at most one address per family"),
            ));
        }
        addresses.push(address);
    }
    Ok(addresses)
}

/// Prefixes from which the container may send in addition to its addresses. The plugin reads them
/// only from `args.cni`. In a cluster the controller reads the pod's annotation when it allocates
/// the addresses.
fn extra_prefixes(sources: &OptionSources<'_>) -> Result<BTreeSet<IpNet>, Failure> {
    const FIELD: &str = "args.cni.extraPrefixes";
    let Some(value) = sources.convention("extraPrefixes").filter(|value| !value.is_null()) else {
        return Ok(BTreeSet::new());
    };
    let entries = value.as_array().ok_or_else(|| {
        invalid(FIELD, format!("{value} is not a list: write one such as [\"10.9.0.0/16\"]"))
    })?;
    if entries.len() > MAX_EXTRA_PREFIXES {
        return Err(invalid(
            FIELD,
            format!("there are more than {MAX_EXTRA_PREFIXES}: write fewer and shorter ones"),
        ));
    }
    let prefix = |(index, entry): (usize, &Value)| {
        extra_prefix(&plain(entry)).map_err(|error| invalid(&format!("{FIELD}[{index}]"), error.to_string()))
    };
    entries.iter().enumerate().map(prefix).collect()
}

/// The container's labels, as CNI's conventions write them: `[{"key": "app", "value": "web"}]`.
fn labels(sources: &OptionSources<'_>) -> Result<BTreeMap<String, String>, Failure> {
    const FIELD: &str = "args.cni.labels";
    const SHAPE: &str = "write one such as {\"key\": \"app\", \"value\": \"web\"}";
    let Some(value) = sources.convention("labels").filter(|value| !value.is_null()) else {
        return Ok(BTreeMap::new());
    };
    let entries = value
        .as_array()
        .ok_or_else(|| invalid(FIELD, format!("{value} is not a list of labels: {SHAPE} in [ ]")))?;
    if entries.len() > MAX_LABELS {
        return Err(invalid(FIELD, format!("there are more than {MAX_LABELS}: write fewer")));
    }
    let mut labels = BTreeMap::new();
    for (index, entry) in entries.iter().enumerate() {
        let refuse = |words: String| invalid(&format!("{FIELD}[{index}]"), words);
        let text = |key: &str| entry.get(key).and_then(Value::as_str);
        let (Some(key), Some(value)) = (text("key").filter(|key| !key.is_empty()), text("value")) else {
            return Err(refuse(format!("{entry} is not a label: {SHAPE}")));
        };
        if key == label::POD {
            return Err(refuse(format!("the agent sets {key} to the pod's name: remove it")));
        }
        if labels.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(refuse(format!("{key} is there twice: remove one")));
        }
    }
    Ok(labels)
}

fn mac(sources: &OptionSources<'_>, arguments: &Arguments) -> Result<Option<String>, Failure> {
    let text_of = |value: Option<&Value>| {
        value.filter(|value| !value.is_null()).map(plain).filter(|text| !text.is_empty())
    };
    let (field, code, text) = if let Some(text) = text_of(sources.capability("mac")) {
        ("runtimeConfig.mac", Code::InvalidConfiguration, text)
    } else if let Some(text) = text_of(sources.convention("mac")) {
        ("args.cni.mac", Code::InvalidConfiguration, text)
    } else if let Some(text) = &arguments.mac {
        ("CNI_ARGS: MAC", Code::InvalidEnvironment, text.clone())
    } else if let Some(text) = sources.pool_entry(annotation::MAC_POOL)? {
        (annotation::MAC_POOL, Code::InvalidConfiguration, text)
    } else {
        return Ok(None);
    };
    match parse_mac(&text) {
        Ok(_) => Ok(Some(text.to_ascii_lowercase())),
        Err(error) => Err(Failure::new(code, format!("{field}: {error}"))),
    }
}

/// A text without its quotes; any other value as JSON, for an error message.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
