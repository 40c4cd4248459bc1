//! Inputs from the runtime: the CNI_… variables, including CNI_ARGS.

use std::env::VarError;

use trunkline_api::attach::{Code, Failure, Interface, Pod};

/// The longest interface name in the kernel, in octets.
const MAX_IFNAME: usize = 15;

/// A variable; an empty one counts as absent.
pub(crate) fn variable(name: &str) -> Result<Option<String>, Failure> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => {
            Err(Failure::new(Code::InvalidEnvironment, format!("{name}: the value is not UTF-8")))
        }
    }
}

/// A mandatory variable.
pub(crate) fn required(name: &str) -> Result<String, Failure> {
    variable(name)?.ok_or_else(|| {
        Failure::new(Code::InvalidEnvironment, format!("{name} is missing: the runtime must set it"))
    })
}

/// CNI_CONTAINERID and CNI_IFNAME.
pub(crate) fn container() -> Result<Interface, Failure> {
    let missing: Vec<&str> = ["CNI_CONTAINERID", "CNI_IFNAME"]
        .into_iter()
        .filter(|name| matches!(variable(name), Ok(None)))
        .collect();
    if !missing.is_empty() {
        return Err(Failure::new(
            Code::InvalidEnvironment,
            format!("missing: {}: the runtime must set it", missing.join(", ")),
        ));
    }
    let (container_id, ifname) = (required("CNI_CONTAINERID")?, required("CNI_IFNAME")?);
    if !is_identifier(&container_id) {
        return Err(Failure::new(
            Code::InvalidEnvironment,
            format!(
                "CNI_CONTAINERID: `{container_id}` is not letters, digits, `_`, `.` and `-` after a letter or digit"
            ),
        ));
    }
    let forbidden = |character: char| matches!(character, '/' | ':') || character.is_whitespace();
    if ifname.len() > MAX_IFNAME || ifname == "." || ifname == ".." || ifname.contains(forbidden) {
        return Err(Failure::new(
            Code::InvalidEnvironment,
            format!(
                "CNI_IFNAME: `{ifname}` is not an interface name: up to {MAX_IFNAME} bytes without `/`, `:` and spaces"
            ),
        ));
    }
    Ok(Interface { container_id, ifname })
}

/// Whether the specification allows the text as a container id and as a network name.
pub(crate) fn is_identifier(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'))
}

/// CNI_ARGS: `KEY=value;KEY=value`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Arguments {
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) uid: Option<String>,
    pub(crate) addresses: Option<String>,
    pub(crate) network: Option<String>,
    pub(crate) subnet: Option<String>,
    pub(crate) mac: Option<String>,
}

impl Arguments {
    pub(crate) fn from_environment() -> Result<Self, Failure> {
        Self::parse(&variable("CNI_ARGS")?.unwrap_or_default())
    }

    fn parse(text: &str) -> Result<Self, Failure> {
        let mut arguments = Arguments::default();
        let mut ignore_unknown = false;
        let mut unknown = Vec::new();
        for pair in text.split(';').filter(|pair| !pair.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(Failure::new(
                    Code::InvalidEnvironment,
                    format!("CNI_ARGS: `{pair}` is not KEY=value: separate pairs by `;`"),
                ));
            };
            let place = match key {
                "IgnoreUnknown" => {
                    ignore_unknown = matches!(value, "1" | "true" | "True" | "TRUE" | "t" | "T");
                    continue;
                }
                "K8S_POD_INFRA_CONTAINER_ID" => continue,
                "K8S_POD_NAMESPACE" => &mut arguments.namespace,
                "K8S_POD_NAME" => &mut arguments.name,
                "K8S_POD_UID" => &mut arguments.uid,
                "IP" => &mut arguments.addresses,
                "NETWORK" => &mut arguments.network,
                "SUBNET" => &mut arguments.subnet,
                "MAC" => &mut arguments.mac,
                other => {
                    unknown.push(other);
                    continue;
                }
            };
            *place = Some(value.to_owned()).filter(|value| !value.is_empty());
        }
        if !ignore_unknown && !unknown.is_empty() {
            return Err(Failure::new(
                Code::InvalidEnvironment,
                format!(
                    "CNI_ARGS: {} not known: write IP, MAC, NETWORK, SUBNET or K8S_POD_…, or \
                     IgnoreUnknown=1 to ignore the others",
                    unknown.join(", ")
                ),
            ));
        }
        Ok(arguments)
    }

    /// The pod, or a container with a name but without a namespace (podman).
    pub(crate) fn pod(&self) -> Option<Pod> {
        Some(Pod {
            name: self.name.clone()?,
            namespace: self.namespace.clone().unwrap_or_default(),
            uid: self.uid.clone().unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_containerd() {
        let arguments = Arguments::parse(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=u1;X=y",
        )
        .unwrap();
        let pod = arguments.pod().unwrap();
        assert_eq!((pod.namespace.as_str(), pod.name.as_str(), pod.uid.as_str()), ("default", "web-0", "u1"));
        assert_eq!(arguments.addresses, None);
    }

    #[test]
    fn unknown_arguments_are_refused_unless_ignored() {
        assert_eq!(Arguments::parse("").unwrap(), Arguments::default());
        assert_eq!(Arguments::parse("A=b;IgnoreUnknown=true").unwrap(), Arguments::default());
        let failure = Arguments::parse("IP=10.0.0.1;IPS=10.0.0.2;B=c").unwrap_err();
        assert_eq!(failure.code, Code::InvalidEnvironment);
        assert!(failure.message.contains("IPS, B") && failure.message.contains("IgnoreUnknown=1"));
        let failure = Arguments::parse("IP").unwrap_err();
        assert!(failure.message.contains("`IP` is not KEY=value"));
    }

    #[test]
    fn a_name_without_a_namespace_is_kept() {
        let pod = Arguments::parse("K8S_POD_NAME=web;K8S_POD_NAMESPACE=").unwrap().pod().unwrap();
        assert_eq!((pod.namespace.as_str(), pod.name.as_str(), pod.uid.as_str()), ("", "web", ""));
    }

    #[test]
    fn a_namespace_without_a_name_is_no_pod() {
        assert_eq!(Arguments::parse("K8S_POD_NAMESPACE=default").unwrap().pod(), None);
    }
}
