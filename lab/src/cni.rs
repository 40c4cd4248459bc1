//! A container runtime's side of the plugin interface, as in `cnitool`: environment, configuration
//! on standard input, result or error on standard output. A chain passes each result to the next
//! plugin as prevResult.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::fabric::Fabric;
use crate::host::Host;
use crate::netns::Namespace;
use crate::shell::{cmd, output_with_input};

/// A pod's sandbox: a namespace, and its names from the runtime.
#[derive(Debug, Clone)]
pub(crate) struct Sandbox {
    pub name: String,
    pub node: String,
    pub ns: Namespace,
    pub container_id: String,
    pub ifname: String,
    /// The pod in CNI_ARGS.
    pub identity: Identity,
    /// Further CNI_ARGS, such as `IP=10.0.0.5`.
    pub args: String,
}

/// The pod of a sandbox, as a kubelet passes it to the plugin.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

impl Sandbox {
    /// Creates the namespace.
    pub(crate) fn create(fabric: &Fabric, node: &str, pod: &str) -> Result<Self> {
        let ns = fabric.host(node)?.sandbox(&fabric.pod_namespace(node, pod))?;
        Ok(Self::of(ns, node, pod))
    }

    /// A sandbox in an existing namespace.
    pub(crate) fn of(ns: Namespace, node: &str, pod: &str) -> Self {
        let name = format!("{node}-{pod}");
        let identity =
            Identity { namespace: "lab".to_owned(), uid: format!("uid-{name}"), name: name.clone() };
        Self {
            name,
            node: node.to_owned(),
            container_id: format!("{}-{pod}", ns.name()),
            ns,
            ifname: "eth0".to_owned(),
            identity,
            args: String::new(),
        }
    }

    fn cni_args(&self) -> String {
        let Identity { namespace, name, uid } = &self.identity;
        let mut args =
            format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_UID={uid}");
        if !self.args.is_empty() {
            args.push(';');
            args.push_str(&self.args);
        }
        args
    }
}

/// Result of one run of a plugin.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The printed result, or the CNI error.
    pub outcome: std::result::Result<Value, CniError>,
    /// Time from just before the start of the process until its end, when all output is read.
    pub took: Duration,
    pub started: Instant,
}

/// An error in the form of the specification.
#[derive(Debug, Clone)]
pub(crate) struct CniError {
    pub code: u64,
    pub text: String,
}

impl std::fmt::Display for CniError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CNI error {}: {}", self.code, self.text)
    }
}

impl Answer {
    pub(crate) fn result(self) -> Result<Value> {
        self.outcome.map_err(|e| anyhow::anyhow!("{e}"))
    }

    /// The error, for a test that expects one.
    pub(crate) fn error(self) -> Result<CniError> {
        match self.outcome {
            Ok(result) => bail!("an error was expected, but it succeeded: {result}"),
            Err(e) => Ok(e),
        }
    }
}

/// A configuration of Trunkline's plugin.
pub(crate) fn trunkline(network: Option<&str>) -> Value {
    let mut conf = json!({ "cniVersion": "1.0.0", "name": "lab", "type": "trunkline-cni" });
    if let Some(network) = network {
        conf["network"] = json!(network);
    }
    conf
}

/// A node's plugin folders.
pub(crate) fn plugin_path(host: &Host) -> Vec<PathBuf> {
    vec![host.product.clone(), PathBuf::from("/usr/lib/cni"), PathBuf::from("/opt/cni/bin")]
}

/// Runs one plugin on a node. The calling thread must already be on that node: see [`Host::enter`].
pub(crate) fn run_here(
    path: &[PathBuf],
    verb: &str,
    conf: &Value,
    pod: &Sandbox,
    netns: &str,
) -> Result<Answer> {
    let kind = conf["type"].as_str().context("a plugin configuration has a type")?;
    let program = path.iter().map(|p| p.join(kind)).find(|p| p.exists());
    let program = program.with_context(|| format!("plugin {kind} is in none of {path:?}"))?;
    let input = conf.to_string();
    let paths: Vec<String> = path.iter().map(|p| p.display().to_string()).collect();
    let mut command = cmd::<&str>(&program.display().to_string(), []);
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("CNI_COMMAND", verb)
        .env("CNI_CONTAINERID", &pod.container_id)
        .env("CNI_NETNS", netns)
        .env("CNI_IFNAME", &pod.ifname)
        .env("CNI_PATH", paths.join(":"))
        .env("CNI_ARGS", pod.cni_args());
    let started = Instant::now();
    let output = output_with_input(&mut command, &input)?;
    let took = started.elapsed();
    let text = String::from_utf8_lossy(&output.stdout);
    let outcome = if output.status.success() {
        let text = if text.trim().is_empty() { "null" } else { text.trim() };
        Ok(serde_json::from_str(text).with_context(|| format!("{kind} {verb} printed: {text}"))?)
    } else {
        let error: Value = serde_json::from_str(&text).with_context(|| {
            format!(
                "{kind} {verb} failed without a CNI error: {text} {}",
                String::from_utf8_lossy(&output.stderr)
            )
        })?;
        let words = [&error["msg"], &error["details"]].map(|v| v.as_str().unwrap_or_default()).join(": ");
        Err(CniError {
            code: error["code"].as_u64().unwrap_or_default(),
            text: words.trim_end_matches(": ").to_owned(),
        })
    };
    Ok(Answer { outcome, took, started })
}

/// Runs one plugin on the pod's node.
pub(crate) fn run(fabric: &Fabric, verb: &str, conf: &Value, pod: &Sandbox) -> Result<Answer> {
    let netns = pod.ns.path().display().to_string();
    run_with_netns(fabric, verb, conf, pod, &netns)
}

/// Like [`run`], with another CNI_NETNS, for example none.
pub(crate) fn run_with_netns(
    fabric: &Fabric,
    verb: &str,
    conf: &Value,
    pod: &Sandbox,
    netns: &str,
) -> Result<Answer> {
    let host = fabric.host(&pod.node)?;
    host.within(|| run_here(&plugin_path(host), verb, conf, pod, netns))
        .with_context(|| format!("{verb} for {}", pod.name))
}

/// ADD that must succeed.
pub(crate) fn add(fabric: &Fabric, conf: &Value, pod: &Sandbox) -> Result<Attached> {
    let answer = run(fabric, "ADD", conf, pod)?;
    let (started, took) = (answer.started, answer.took);
    let result = answer.result().with_context(|| format!("ADD for {}", pod.name))?;
    Ok(Attached { addresses: addresses(&result)?, result, started, took })
}

/// DEL that must succeed.
pub(crate) fn del(fabric: &Fabric, conf: &Value, pod: &Sandbox) -> Result<Duration> {
    let answer = run(fabric, "DEL", conf, pod)?;
    let took = answer.took;
    answer.result().with_context(|| format!("DEL for {}", pod.name))?;
    Ok(took)
}

/// A successful ADD.
#[derive(Debug)]
pub(crate) struct Attached {
    pub addresses: Vec<IpAddr>,
    pub result: Value,
    pub started: Instant,
    pub took: Duration,
}

/// The addresses of a result.
pub(crate) fn addresses(result: &Value) -> Result<Vec<IpAddr>> {
    let ips = result["ips"].as_array().with_context(|| format!("a result without ips: {result}"))?;
    ips.iter()
        .map(|ip| {
            let text = ip["address"].as_str().unwrap_or_default();
            let address = text.split('/').next().unwrap_or_default();
            address.parse().with_context(|| format!("{text:?} in {result}"))
        })
        .collect()
}

/// Runs a chain like a runtime: ADD forwards, with each result as the next plugin's prevResult, and
/// DEL backwards.
pub(crate) fn run_chain(fabric: &Fabric, verb: &str, chain: &[Value], pod: &Sandbox) -> Result<Value> {
    let mut previous = Value::Null;
    let order: Vec<&Value> =
        if verb == "DEL" { chain.iter().rev().collect() } else { chain.iter().collect() };
    for conf in order {
        let mut conf = conf.clone();
        if !previous.is_null() {
            conf["prevResult"] = previous.clone();
        }
        let result = run(fabric, verb, &conf, pod)?
            .result()
            .with_context(|| format!("{} in a chain", conf["type"]))?;
        if verb == "ADD" {
            previous = result;
        }
    }
    Ok(previous)
}
