//! Ten thousand connections of one source at the controller's ports, while the API server,
//! Prometheus and the kubelet use them from another source. The webhook only serves clients with a
//! certificate of the API server's CA.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;

use super::webhook::{create, network, pod, start};
use super::{Test, Verdict, cluster};
use crate::kube::Cluster;
use crate::shell::{cmd, run};
use crate::tests::hostile::flood;
use crate::tests::{Context as Lab, passed};

pub(super) const TESTS: &[Test] = &[Test {
    name: "kube/hostile",
    about: "10,000 silent or slow connections of one source stop no admission, no scrape and no probe of another source",
    run: hostile,
}];

const CONNECTIONS: usize = 10_000;
/// Time limit that ends a hang.
const PATIENCE: Duration = Duration::from_secs(60);

fn hostile(context: &Lab) -> Result<Verdict> {
    let program = context.controller()?;
    cluster(context, "hostile", |cluster| {
        let client_ca = format!("--webhook-client-ca={}", cluster.webhook_client_ca().display());
        let mut replicas = start(cluster, &program, &[&client_ca])?;
        let [validating, mutating] = replicas.webhooks()[..] else { bail!("two replicas") };
        let ports: Vec<(u16, u16)> =
            replicas.metrics().map(|(_, port)| port).zip(replicas.probes()).collect();
        let mut looks = 0;
        for (attacked, port, octets) in [
            ("the validating webhook", validating, &b""[..]),
            // A partial record of a TLS handshake.
            ("the mutating webhook", mutating, &[22, 3, 1, 2, 0, 1]),
            ("the metrics", ports[0].0, b"GET /metrics HTTP/1.1\r\nHost:"),
        ] {
            flood(here(port), CONNECTIONS, octets, |number| {
                looks += 1;
                admission(cluster)
                    .and_then(|()| ports.iter().try_for_each(|(metrics, probes)| served(*metrics, *probes)))
                    .with_context(|| format!("with {number} connections at {attacked}"))
            })?;
        }
        strangers_are_refused(cluster, validating)?;
        replicas.still_running()?;
        let dropped = ports.iter().map(|(metrics, _)| dropped(*metrics)).sum::<Result<f64>>()?;
        ensure!(dropped > CONNECTIONS as f64, "only {dropped} connections were dropped");
        passed(format!(
            "{looks} rounds of admissions, scrapes and probes among {} connections",
            3 * CONNECTIONS
        ))
    })
}

/// Checks that the webhook answers no client without a certificate, and no client with a
/// certificate of another CA.
fn strangers_are_refused(cluster: &Cluster, port: u16) -> Result<()> {
    let pki = cluster.folder().join("pki");
    let identity = |name: &str| {
        let file = |end: &str| pki.join(format!("{name}.{end}")).display().to_string();
        ["--cert".to_owned(), file("crt"), "--key".to_owned(), file("key")]
    };
    let url = format!("https://127.0.0.1:{port}/healthz");
    for (client, flags, is_served) in [
        ("without a certificate", Vec::new(), false),
        ("with the administrator's certificate", identity("admin").to_vec(), false),
        ("with the API server's certificate", identity("webhook-client").to_vec(), true),
    ] {
        let outcome = run(cmd("curl", ["--silent", "--show-error", "--insecure", &url]).args(flags));
        let ok = outcome.as_ref().is_ok_and(|answer| answer.trim() == "ok");
        ensure!(ok == is_served, "a client {client}: {outcome:?}");
    }
    Ok(())
}

/// Checks the admission of a Network, for which the webhook fails closed, and of a pod, which the
/// webhook mutates.
fn admission(cluster: &Cluster) -> Result<()> {
    create(cluster, &network("asked", "asked"), true).context("a Network")?;
    let stamped = create(cluster, &pod("asked", json!({})), true).context("a pod")?;
    let annotations = stamped.metadata.annotations.unwrap_or_default();
    ensure!(annotations.contains_key("networking.alibaba.com/handled-by-webhook"), "a pod is not stamped");
    Ok(())
}

fn served(metrics: u16, probes: u16) -> Result<()> {
    let text = get(metrics, "/metrics")?;
    ensure!(text.contains("trunkline_controller_connections{listener=\"webhook\"}"), "{text}");
    for (port, path, status) in [
        (probes, "/healthz", "200"),
        (probes, "/readyz", "200"),
        (metrics, "/healthz", "404"),
        (probes, "/metrics", "404"),
    ] {
        let answer = get(port, path)?;
        ensure!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
    }
    Ok(())
}

/// Connections that a replica's listeners dropped.
fn dropped(metrics: u16) -> Result<f64> {
    let text = get(metrics, "/metrics")?;
    let lines =
        text.lines().filter(|line| line.starts_with("trunkline_controller_connections_dropped_total{"));
    lines.map(|line| Ok(line.rsplit(' ').next().unwrap_or_default().parse::<f64>()?)).sum()
}

fn here(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn get(port: u16, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(here(port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).with_context(|| format!("{path} at port {port}"))?;
    Ok(answer)
}
