//! A real Prometheus that scrapes agents in their namespaces, and controllers.
//!
//! It runs in the machine's own namespace, on loopback, like the controllers. An agent's `/metrics`
//! is on the loopback of its node. So its target is a [`Window`]: a port of this machine that
//! forwards connections to the node. The rules are the released rules with shorter times
//! ([`hastened`]), because a wait of five minutes is no better test than a wait of two seconds.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::client::http_body;
use crate::host::Host;
use crate::kube::daemon::Daemon;
use crate::kube::ports::Port;
use crate::netns::Namespace;
use crate::shell::{Seen, cmd, wait_for};

/// The agent's default port.
const AGENT: u16 = 9473;
const PATIENCE: Duration = Duration::from_secs(120);
/// Files with targets, one for each job. Prometheus reads a file again when it changes.
const AGENTS: &str = "agents.json";
const CONTROLLERS: &str = "controllers.json";

/// A scrape target.
#[derive(Clone, Copy)]
pub(super) enum Target<'a> {
    /// A node's agent. The node's name is the label `instance`.
    Agent(&'a Host),
    /// A controller: the label, and the port on this machine's loopback.
    Controller(&'a str, u16),
}

impl Target<'_> {
    fn instance(self) -> String {
        match self {
            Target::Agent(host) => host.name.clone(),
            Target::Controller(name, _) => name.to_owned(),
        }
    }

    /// The target's current `/metrics`.
    pub(super) fn metrics(self) -> Result<String> {
        let mut stream = match self {
            Target::Agent(host) => host.ns.within(|| connect(AGENT))?,
            Target::Controller(_, port) => connect(port)?,
        };
        http_body(&mut stream, "/metrics")
    }
}

/// Prometheus with a scrape interval of one second.
pub(super) struct Prometheus {
    port: Port,
    daemon: Daemon,
    folder: PathBuf,
    /// The agents as targets, in the format of `file_sd_configs`.
    agents: Vec<Value>,
    /// Alerts for which a wait has seen that they fire.
    fired: RefCell<BTreeSet<String>>,
    /// Alerts for which a wait has seen that they cleared.
    cleared: RefCell<BTreeSet<String>>,
    /// Alerts with a time range. The fault is over, but the range still contains its values.
    clearing: RefCell<Vec<&'static str>>,
    began: Instant,
    _windows: Vec<Window>,
    _runtime: Runtime,
}

/// A port of this machine's loopback that forwards to a port in a namespace.
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
    // If the task is aborted, this and every connection end.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((mut outside, _)) = listener.accept().await {
        let into = into.clone();
        connections.spawn(async move {
            // A socket belongs to the namespace in which its thread created it.
            let connect = move || into.within(|| connect(inner));
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
    /// Starts Prometheus with its files in `folder`, and waits until it has scraped all targets.
    pub(super) fn start(folder: &Path, targets: &[Target<'_>], rules: &str) -> Result<Self> {
        let runtime = Runtime::new()?;
        std::fs::create_dir_all(folder)?;
        let (mut windows, mut agents, mut controllers) = (Vec::new(), Vec::new(), Vec::new());
        for target in targets {
            let port = match target {
                Target::Agent(host) => {
                    let window = Window::open(&runtime, &host.ns, AGENT)?;
                    let port = window.port.number();
                    windows.push(window);
                    port
                }
                Target::Controller(_, port) => *port,
            };
            let scraped =
                json!({"targets": [format!("127.0.0.1:{port}")], "labels": {"instance": target.instance()}});
            match target {
                Target::Agent(_) => agents.push(scraped),
                Target::Controller(..) => controllers.push(scraped),
            }
        }
        let jobs = [("trunkline", AGENTS), ("trunkline-controller", CONTROLLERS)].map(|(job, file)| {
            let found = json!([{"files": [folder.join(file)], "refresh_interval": "1s"}]);
            json!({"job_name": job, "file_sd_configs": found})
        });
        // JSON is valid YAML.
        let config = json!({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": jobs,
        });
        std::fs::write(folder.join(AGENTS), json!(agents).to_string())?;
        std::fs::write(folder.join(CONTROLLERS), json!(controllers).to_string())?;
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
        let daemon = Daemon::start(folder, "prometheus", command)?;
        let mut prometheus = Self {
            port,
            daemon,
            folder: folder.to_owned(),
            agents,
            fired: RefCell::default(),
            cleared: RefCell::default(),
            clearing: RefCell::default(),
            began: Instant::now(),
            _windows: windows,
            _runtime: runtime,
        };
        prometheus.wait_up(targets.len())?;
        Ok(prometheus)
    }

    fn wait_up(&mut self, targets: usize) -> Result<()> {
        let (port, number) = (&self.port, targets as f64);
        self.daemon.wait_while_running("Prometheus to scrape every target", PATIENCE, || {
            let up = values(&get(port, "/api/v1/query", &[("query", "sum(up)")])?)?;
            Ok(Seen::when(up.first() == Some(&number), || format!("{up:?} of {targets} are up")))
        })
    }

    /// Restricts the targets to the chosen agents.
    pub(super) fn scrape_agents(&self, chosen: impl Fn(&str) -> bool) -> Result<()> {
        let is_chosen = |target: &&Value| target["labels"]["instance"].as_str().is_some_and(&chosen);
        let targets: Vec<&Value> = self.agents.iter().filter(is_chosen).collect();
        // The file is replaced atomically, so Prometheus never reads half of it. Prometheus does
        // not read a file with the temporary name.
        let next = self.folder.join("targets.new");
        std::fs::write(&next, json!(targets).to_string())?;
        std::fs::rename(&next, self.folder.join(AGENTS)).context(AGENTS)
    }

    /// The values of an expression now.
    pub(super) fn query(&self, expr: &str) -> Result<Vec<f64>> {
        values(&get(&self.port, "/api/v1/query", &[("query", expr)])?)
    }

    /// The number of series with a number in them that an expression has had since the start. A
    /// division by zero also gives a series, with only `NaN`, and its panel is empty.
    pub(super) fn series(&self, expr: &str) -> Result<usize> {
        let now = self.now()?;
        let start = (now - self.began.elapsed().as_secs_f64() - 1.0).to_string();
        let end = now.to_string();
        let asked = [("query", expr), ("start", start.as_str()), ("end", end.as_str()), ("step", "1")];
        let answer = get(&self.port, "/api/v1/query_range", &asked)?;
        let all = answer["result"].as_array().context("no result")?;
        Ok(all.iter().filter(|one| has_number(&one["values"])).count())
    }

    /// Waits until every target that is up was scraped once more. `rate` uses only changes between
    /// two scrapes, and no change before the first scrape.
    pub(super) fn wait_scrape(&self) -> Result<()> {
        let asked = self.now()?;
        // For anything but a plain series, the timestamp is the time of the query.
        wait_for("a scrape", PATIENCE, || {
            let oldest = self.query("min(timestamp(up) and up == 1)")?;
            Ok(Seen::when(oldest.first().is_some_and(|at| *at > asked), || {
                format!("the last was at {oldest:?}")
            }))
        })
    }

    fn now(&self) -> Result<f64> {
        self.query("time()")?.first().copied().context("time() has no value")
    }

    /// Firing alerts of a name, by the label `instance`.
    pub(super) fn firing(&self, alert: &str) -> Result<Vec<String>> {
        let answer = get(&self.port, "/api/v1/alerts", &[])?;
        let alerts = answer["alerts"].as_array().context("no alerts")?.iter();
        let firing = alerts.filter(|one| one["labels"]["alertname"] == alert && one["state"] == "firing");
        Ok(firing.map(|one| one["labels"]["instance"].as_str().unwrap_or_default().to_owned()).collect())
    }

    /// Waits until an alert fires for a node. If `instance` is empty, the alert has no such label.
    pub(super) fn wait_firing(&self, alert: &str, instance: &str) -> Result<()> {
        wait_for(&format!("{alert} to fire for {instance}"), PATIENCE, || {
            let firing = self.firing(alert)?;
            Ok(Seen::when(firing.iter().any(|of| of == instance), || format!("it fires for {firing:?}")))
        })?;
        self.fired.borrow_mut().insert(alert.to_owned());
        Ok(())
    }

    /// Alerts that were seen to fire and then to clear.
    pub(super) fn fired_and_cleared(&self) -> BTreeSet<String> {
        self.fired.borrow().intersection(&self.cleared.borrow()).cloned().collect()
    }

    /// Waits until an alert fires for no instance.
    pub(super) fn wait_cleared(&self, alert: &str) -> Result<()> {
        wait_for(&format!("{alert} to clear"), PATIENCE, || {
            let firing = self.firing(alert)?;
            Ok(Seen::when(firing.is_empty(), || format!("it fires for {firing:?}")))
        })?;
        // Only an alert that has fired can clear.
        if self.fired.borrow().contains(alert) {
            self.cleared.borrow_mut().insert(alert.to_owned());
        }
        Ok(())
    }

    /// The fault of these alerts is over. They clear after their range of a minute. Later faults
    /// begin before that moment. [`Prometheus::wait_all_cleared`] waits for all of these alerts
    /// together.
    pub(super) fn clear_later(&self, alerts: &[&'static str]) {
        self.clearing.borrow_mut().extend(alerts);
    }

    pub(super) fn wait_all_cleared(&self) -> Result<()> {
        self.clearing.take().into_iter().try_for_each(|alert| self.wait_cleared(alert))
    }
}

const WEEK: &str = "< 604800";
/// Remaining lifetime at which a certificate should have been replaced, in seconds.
pub(super) const LAST_SECONDS: u32 = 15;

/// Replaces minutes by seconds in each `for:` and each range. So an alert that needs five minutes
/// needs five seconds. Ranges keep at least a minute. Otherwise they would contain too few changes
/// of a router, with one scrape per second. The week before a certificate's expiry becomes
/// [`LAST_SECONDS`].
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
            let week = line.matches(WEEK).count();
            changed += week;
            line.replace("[15m]", "[1m]").replace("[10m]", "[1m]").replace(WEEK, &format!("< {LAST_SECONDS}"))
        })
        .collect();
    ensure!(changed > 10, "the rules have times that this function does not expect: {changed} were found");
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

/// Returns the field `data` of an answer.
fn get(port: &Port, path: &str, parameters: &[(&str, &str)]) -> Result<Value> {
    let encoded = parameters.iter().map(|(name, value)| format!("{name}={}", percent(value)));
    let query = encoded.collect::<Vec<_>>().join("&");
    let text = http_body(&mut connect(port.number())?, &format!("{path}?{query}"))?;
    let body: Value = serde_json::from_str(&text).with_context(|| format!("{path}: {text}"))?;
    ensure!(body["status"] == "success", "{parameters:?}: {body}");
    Ok(body["data"].clone())
}

/// Connects to the loopback of the thread's namespace, which may be the machine's own namespace.
fn connect(port: u16) -> Result<TcpStream> {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).with_context(|| format!("127.0.0.1:{port}"))
}

/// Whether one of these samples, of time and value each, is a number.
fn has_number(samples: &Value) -> bool {
    samples
        .as_array()
        .into_iter()
        .flatten()
        .any(|sample| sample[1].as_str().is_some_and(|value| value != "NaN"))
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
    fn times_are_shortened_and_thresholds_are_not() {
        let rules = "x[15m]) > 3\n        for: 5m\ny < 600\nz[10m]\n".repeat(4) + "w < 604800\n";
        let hasty = super::hastened(&rules).unwrap();
        assert!(hasty.contains("x[1m]) > 3\n        for: 5s\ny < 600\nz[1m]"), "{hasty}");
        assert!(hasty.ends_with("w < 15\n"), "{hasty}");
        assert!(super::hastened("for: 5m").is_err());
    }

    #[test]
    fn a_series_of_nothing_but_nan_is_no_data() {
        use serde_json::json;
        assert!(super::has_number(&json!([[1, "NaN"], [2, "0"]])));
        assert!(!super::has_number(&json!([[1, "NaN"], [2, "NaN"]])));
        assert!(!super::has_number(&json!([])));
    }
}
