//! A real Prometheus that scrapes agents in their namespaces.
//!
//! It runs in the machine's own namespace, on loopback. An agent's `/metrics` is on the loopback of its node, so each target is a
//! [`Window`]: a port here whose connections are made on the node. The rules are the shipped ones with shorter times ([`hastened`]): five minutes
//! of waiting are no better a test than two seconds.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::fabric::Fabric;
use crate::kube::daemon::Daemon;
use crate::kube::ports::Port;
use crate::netns::Namespace;
use crate::shell::{Seen, cmd, wait_for};

/// The agent's port, unless configured.
const AGENT: u16 = 9473;
const PATIENCE: Duration = Duration::from_secs(120);

/// Prometheus, scraping every second.
pub(super) struct Prometheus {
    port: Port,
    daemon: Daemon,
    /// Alerts that were waited for, and came.
    fired: RefCell<BTreeSet<String>>,
    _windows: Vec<Window>,
    _runtime: Runtime,
}

/// A port of this machine's loopback that leads to a port of a namespace's.
struct Window {
    port: Port,
    task: tokio::task::JoinHandle<()>,
}

impl Window {
    fn open(runtime: &Runtime, into: &Namespace, inner: u16) -> Result<Self> {
        let port = Port::claim()?;
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port.number()))?;
        listener.set_nonblocking(true)?;
        let _reactor = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener)?;
        Ok(Self { port, task: runtime.spawn(look_through(listener, into.clone(), inner)) })
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn look_through(listener: tokio::net::TcpListener, into: Namespace, inner: u16) {
    // Ends, and with it every connection, when the task is aborted.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((mut outside, _)) = listener.accept().await {
        let into = into.clone();
        connections.spawn(async move {
            // A socket belongs to the namespace that its thread was in when it was made.
            let connect = move || into.within(|| Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, inner))?));
            let Ok(Ok(stream)) = tokio::task::spawn_blocking(connect).await else { return };
            if stream.set_nonblocking(true).is_ok()
                && let Ok(mut inside) = tokio::net::TcpStream::from_std(stream)
            {
                let _broken = tokio::io::copy_bidirectional(&mut outside, &mut inside).await;
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

impl Prometheus {
    /// Scrapes the agents of these nodes.
    pub(super) fn start(fabric: &Fabric, nodes: &[&str], rules: &str) -> Result<Self> {
        let runtime = Runtime::new()?;
        let folder = fabric.folder.join("prometheus");
        std::fs::create_dir_all(&folder)?;
        let windows: Vec<Window> = nodes
            .iter()
            .map(|node| Window::open(&runtime, &fabric.host(node)?.ns, AGENT))
            .collect::<Result<_>>()?;
        let targets: Vec<Value> = nodes
            .iter()
            .zip(&windows)
            .map(|(node, window)| {
                json!({"targets": [format!("127.0.0.1:{}", window.port.number())], "labels": {"instance": node}})
            })
            .collect();
        // JSON is YAML.
        let config = json!({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [{"job_name": "trunkline-agent", "static_configs": targets}],
        });
        std::fs::write(folder.join("prometheus.yml"), config.to_string())?;
        std::fs::write(folder.join("rules.yml"), rules)?;
        let port = Port::claim()?;
        let argument = |name: &str, path: PathBuf| format!("--{name}={}", path.display());
        let command = cmd(
            "prometheus",
            [
                argument("config.file", folder.join("prometheus.yml")),
                argument("storage.tsdb.path", folder.join("data")),
                format!("--web.listen-address=127.0.0.1:{}", port.number()),
            ],
        );
        let daemon = Daemon::start(&folder, "prometheus", command)?;
        let mut prometheus =
            Self { port, daemon, fired: RefCell::default(), _windows: windows, _runtime: runtime };
        prometheus.wait_up(nodes.len())?;
        Ok(prometheus)
    }

    fn wait_up(&mut self, targets: usize) -> Result<()> {
        let (port, number) = (&self.port, targets as f64);
        self.daemon.wait_while_running("Prometheus to scrape every agent", PATIENCE, || {
            let up = values(&get(port, "/api/v1/query", &[("query", "sum(up)")])?)?;
            Ok(Seen::when(up.first() == Some(&number), || format!("{up:?} of {targets} are up")))
        })
    }

    /// The values of an expression now.
    pub(super) fn query(&self, expr: &str) -> Result<Vec<f64>> {
        values(&get(&self.port, "/api/v1/query", &[("query", expr)])?)
    }

    /// How many series an expression has had since `seconds` ago.
    pub(super) fn series_since(&self, expr: &str, seconds: u64) -> Result<usize> {
        let now = values(&get(&self.port, "/api/v1/query", &[("query", "time()")])?)?;
        let now = *now.first().context("time() has no value")?;
        let (start, end) = ((now - seconds as f64).to_string(), now.to_string());
        let asked = [("query", expr), ("start", start.as_str()), ("end", end.as_str()), ("step", "1")];
        let answer = get(&self.port, "/api/v1/query_range", &asked)?;
        Ok(answer["result"].as_array().context("no result")?.len())
    }

    /// Firing alerts of a name, by the label `instance`.
    pub(super) fn firing(&self, alert: &str) -> Result<Vec<String>> {
        let answer = get(&self.port, "/api/v1/alerts", &[])?;
        let alerts = answer["alerts"].as_array().context("no alerts")?.iter();
        let firing = alerts.filter(|one| one["labels"]["alertname"] == alert && one["state"] == "firing");
        Ok(firing.map(|one| one["labels"]["instance"].as_str().unwrap_or_default().to_owned()).collect())
    }

    /// Waits until an alert fires of a node.
    pub(super) fn wait_firing(&self, alert: &str, instance: &str) -> Result<()> {
        wait_for(&format!("{alert} to fire of {instance}"), PATIENCE, || {
            let firing = self.firing(alert)?;
            Ok(Seen::when(firing.iter().any(|of| of == instance), || format!("it fires of {firing:?}")))
        })?;
        self.fired.borrow_mut().insert(alert.to_owned());
        Ok(())
    }

    /// How many alerts were waited for, and came.
    pub(super) fn fired(&self) -> usize {
        self.fired.borrow().len()
    }

    /// Waits until an alert fires of nobody.
    pub(super) fn wait_cleared(&self, alert: &str) -> Result<()> {
        wait_for(&format!("{alert} to clear"), PATIENCE, || {
            let firing = self.firing(alert)?;
            Ok(Seen::when(firing.is_empty(), || format!("it fires of {firing:?}")))
        })
    }
}

/// The rules with each `for:` and each range in minutes as so many seconds at most: an alert that needs five minutes needs five seconds. Ranges keep a
/// minute, or a scrape a second would see too little of what happens to a router in that time.
pub(super) fn hastened(rules: &str) -> Result<String> {
    let mut changed = 0;
    let lines: Vec<String> = rules
        .lines()
        .map(|line| {
            if let Some(minutes) = line.trim().strip_prefix("for: ").and_then(|time| time.strip_suffix('m')) {
                changed += 1;
                return line.replace(&format!("for: {minutes}m"), &format!("for: {minutes}s"));
            }
            let ranges = line.matches("[15m]").count() + line.matches("[10m]").count();
            changed += ranges;
            line.replace("[15m]", "[1m]").replace("[10m]", "[1m]")
        })
        .collect();
    ensure!(changed > 10, "the rules have other times than this knows: {changed} were found");
    Ok(lines.join("\n") + "\n")
}

fn values(answer: &Value) -> Result<Vec<f64>> {
    let value = |pair: &Value| -> Result<f64> {
        pair[1].as_str().and_then(|text| text.parse().ok()).with_context(|| format!("no value: {pair}"))
    };
    match (answer["resultType"].as_str(), &answer["result"]) {
        (Some("scalar"), pair) => Ok(vec![value(pair)?]),
        (Some("vector"), series) => {
            series.as_array().context("no series")?.iter().map(|one| value(&one["value"])).collect()
        }
        other => bail!("no instant result: {other:?}"),
    }
}

/// `data` of an answer.
fn get(port: &Port, path: &str, parameters: &[(&str, &str)]) -> Result<Value> {
    let encoded = parameters.iter().map(|(name, value)| format!("{name}={}", percent(value)));
    let query = encoded.collect::<Vec<_>>().join("&");
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port.number()))?;
    // 1.0: the answer ends with the connection, and is not in chunks.
    stream.write_all(format!("GET {path}?{query} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").with_context(|| format!("no answer: {answer}"))?;
    let body: Value = serde_json::from_str(body).with_context(|| format!("{path}: {answer}"))?;
    ensure!(body["status"] == "success", "{parameters:?}: {body}");
    Ok(body["data"].clone())
}

fn percent(text: &str) -> String {
    let plain = |octet: u8| octet.is_ascii_alphanumeric() || b"-_.~".contains(&octet);
    text.bytes()
        .map(|octet| if plain(octet) { char::from(octet).to_string() } else { format!("%{octet:02X}") })
        .collect()
}

#[cfg(test)]
mod unit {
    #[test]
    fn times_become_short_and_thresholds_stay() {
        let rules = "x[15m]) > 3\n        for: 5m\ny < 600\nz[10m]\n".repeat(4);
        let hasty = super::hastened(&rules).unwrap();
        assert!(hasty.contains("x[1m]) > 3\n        for: 5s\ny < 600\nz[1m]"), "{hasty}");
        assert!(super::hastened("for: 5m").is_err());
    }
}
