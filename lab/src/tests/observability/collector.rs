//! A real OpenTelemetry Collector, which writes received data into a file: the program of
//! `lab/otel-collector`, built once by Go into `target/otel`. A newer module file or source
//! triggers a rebuild.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::fabric::{Fabric, Place};
use crate::host::Host;
use crate::kube::daemon::Daemon;
use crate::kube::golang::find_go;
use crate::progress::{say, step};
use crate::shell::{Seen, giving_way, run};

/// The collector's address, on its node.
pub(super) const ENDPOINT: &str = "127.0.0.1:4318";
const PATIENCE: Duration = Duration::from_secs(60);

/// Finds or builds the program. The inner error names the missing part on this machine. With this
/// error, a test is skipped.
pub(in crate::tests) fn program(place: &Place) -> Result<Result<PathBuf, String>> {
    let folder = place.state.parent().context("the target folder")?.join("otel");
    let module = place.repository.join("lab/otel-collector");
    std::fs::create_dir_all(&folder)?;
    // One process builds the program, the others use the result.
    let lock = File::create(folder.join("lock"))?;
    lock.lock()?;
    let wanted: String = ["go.sum", "main.go"]
        .map(|file| std::fs::read_to_string(module.join(file)))
        .into_iter()
        .collect::<std::io::Result<_>>()?;
    let (program, built_from) = (folder.join("otel-collector"), folder.join("built-from"));
    if std::fs::read_to_string(&built_from).is_ok_and(|built| built == wanted) {
        return Ok(Ok(program));
    }
    let Some(go) = find_go() else {
        return Ok(Err(
            "no OpenTelemetry Collector: install Go (https://go.dev/dl), which builds it once".to_owned()
        ));
    };
    say("  the OpenTelemetry Collector is built from source, once: two minutes on two cores");
    let mut command = giving_way(go);
    command
        .args(["build", "-trimpath", "-ldflags", "-s -w", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(&module)
        .env("CGO_ENABLED", "0");
    step("go build otel-collector", || run(&mut command))?;
    std::fs::write(built_from, wanted)?;
    Ok(Ok(program))
}

/// A collector on a node, which receives logs and traces by OTLP/HTTP.
pub(super) struct Collector {
    daemon: Daemon,
    output: PathBuf,
}

impl Collector {
    /// Starts the collector, and waits until it listens. The file keeps the data of an earlier
    /// collector on this node.
    pub(super) fn start(fabric: &Fabric, host: &Host, program: &Path) -> Result<Self> {
        let folder = fabric.folder.join("otel");
        std::fs::create_dir_all(&folder)?;
        let output = folder.join("requests.json");
        let pipeline = json!({"receivers": ["otlp"], "exporters": ["file"]});
        // JSON is valid YAML.
        let config = json!({
            "receivers": {"otlp": {"protocols": {"http": {"endpoint": ENDPOINT}}}},
            "exporters": {"file": {"path": output, "append": true, "flush_interval": "100ms"}},
            "service": {
                "telemetry": {"metrics": {"level": "none"}},
                "pipelines": {"logs": pipeline, "traces": pipeline},
            },
        });
        let file = folder.join("collector.yaml");
        std::fs::write(&file, config.to_string())?;
        let argument = format!("--config={}", file.display());
        let command = host.command(&program.display().to_string(), [argument]);
        let mut daemon = Daemon::start(&folder, "collector", command)?;
        daemon.wait_while_running("the collector to listen", PATIENCE, || {
            let connected = host.ns.within(|| Ok(std::net::TcpStream::connect(ENDPOINT).map(drop)?));
            Ok(Seen::when(connected.is_ok(), || format!("{connected:?}")))
        })?;
        Ok(Self { daemon, output })
    }

    /// Kills the collector without a shutdown.
    pub(super) fn kill(mut self) -> Result<()> {
        self.daemon.still_running()?;
        self.daemon.kill()
    }

    /// All data so far, in the file exporter's format: OTLP's JSON, one request per line.
    pub(super) fn requests(&self) -> Result<Vec<Value>> {
        let text = std::fs::read_to_string(&self.output)?;
        // The last line may be incomplete.
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// Every log record, with its resource's attributes.
    pub(super) fn logs(&self) -> Result<Vec<(Value, Value)>> {
        self.records("resourceLogs", "scopeLogs", "logRecords")
    }

    /// Every span, with its resource's attributes.
    pub(super) fn spans(&self) -> Result<Vec<(Value, Value)>> {
        self.records("resourceSpans", "scopeSpans", "spans")
    }

    fn records(&self, of: &str, scope: &str, records: &str) -> Result<Vec<(Value, Value)>> {
        let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
        let mut all = Vec::new();
        for request in self.requests()? {
            for group in list(&request, of) {
                for scope in list(&group, scope) {
                    all.extend(list(&scope, records).into_iter().map(|r| (group["resource"].clone(), r)));
                }
            }
        }
        Ok(all)
    }
}

/// The text of an attribute; empty if absent.
pub(super) fn attribute(of: &Value, key: &str) -> String {
    let attributes = of["attributes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let found = attributes.iter().find(|attribute| attribute["key"] == key);
    let value = found.map(|found| &found["value"]);
    // In OTLP's JSON, 64-bit numbers are texts.
    let text = value.and_then(|value| value["stringValue"].as_str().or(value["intValue"].as_str()));
    text.unwrap_or_default().to_owned()
}
