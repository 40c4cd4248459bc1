//! Service addresses: the service proxy of this node, and settings that keep addresses off it.
//!
//! Without a service address on this node there is no finding: many clusters have a service proxy
//! and no pool.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;
use trunkline_agent::config::{ServiceProxyKind, ServicesConfig};
use trunkline_api::control::{ServiceView, WithheldReason};
use trunkline_datapath::proxy_rules::{Backend, find_backend};

use super::Finding;

const TIMEOUT: Duration = Duration::from_secs(1);
/// The most octets of an answer.
const ANSWER: u64 = 256 << 10;
/// kube-proxy's default `metricsBindAddress`.
const METRICS: ([u8; 4], u16) = ([127, 0, 0, 1], 10_249);
/// kube-proxy's default `minSyncPeriod`.
const SYNC_PERIOD: Duration = Duration::from_secs(1);
/// The port on which MetalLB's speakers find each other, and the name of their process.
const SPEAKER: (u16, &str) = (7946, "speaker");

/// All findings about service addresses.
pub(super) fn check(config: &ServicesConfig, views: &[ServiceView]) -> Vec<Finding> {
    if !config.enabled || views.is_empty() {
        return Vec::new();
    }
    let mut findings: Vec<Finding> = excluded(views).into_iter().collect();
    let own = |id: &str| {
        std::fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|name| name.trim() == SPEAKER.1)
    };
    if listens(&read("tcp"), SPEAKER.0) || listens(&read("tcp6"), SPEAKER.0) {
        findings.extend(processes().iter().any(|id| own(id)).then(other_speaker));
    }
    if config.proxy.kind == ServiceProxyKind::None {
        return findings;
    }
    let answer = get(config.proxy.health_address, "/healthz");
    let answers = answer.is_ok();
    findings.extend(health(config.proxy.health_address, answer));
    if answers {
        findings.extend(rules(find_backend()));
        let settings = get(METRICS.into(), "/configz").ok().filter(|(status, _)| *status == 200);
        findings.extend(settings.and_then(|(_, text)| slow(&text)));
    }
    findings
}

fn health(address: SocketAddr, answer: io::Result<(u16, String)>) -> Option<Finding> {
    let (status, text) = match answer {
        Ok(answer) => answer,
        Err(error) => {
            return Some(Finding::error(
                "service-proxy",
                format!(
                    "the service proxy does not answer at {address}: {error}; this node advertises no new service address, and withdraws all after services.proxy.restartSeconds"
                ),
                "start kube-proxy; if it has another healthzBindAddress, set services.proxy.healthAddress; for another service proxy set services.proxy.kind: none",
            ));
        }
    };
    if status == 200 {
        return None;
    }
    let found: Value = serde_json::from_str(&text).unwrap_or_default();
    Some(match found["nodeEligible"] == false {
        true => Finding::warning(
            "service-proxy",
            "kube-proxy reports that this node shall get no traffic (nodeEligible: false): this node withdraws its service addresses",
            "wait until the cluster autoscaler has deleted the node, or remove its taint ToBeDeletedByClusterAutoscaler",
        ),
        false => Finding::error(
            "service-proxy",
            format!(
                "the service proxy answers {status} at {address}: its rules are out of date, and this node withdraws its service addresses"
            ),
            "look in kube-proxy's log for the error with which it cannot write its rules",
        ),
    })
}

fn rules(backend: io::Result<Backend>) -> Option<Finding> {
    match backend {
        Ok(Backend::Nftables | Backend::IptablesNft) => None,
        Ok(Backend::Absent) => Some(Finding::error(
            "service-proxy-rules",
            "the service proxy answers, but nf_tables has none of its rules: this node advertises no service address",
            "look in kube-proxy's log for the reason; if another program translates Services here, set services.proxy.kind: none",
        )),
        Ok(Backend::Invisible) => Some(Finding::warning(
            "service-proxy-rules",
            "the rules of the service proxy are not in nf_tables (legacy iptables, IPVS): the agent cannot compare them, and waits services.proxy.settleMilliseconds after each change",
            "use kube-proxy in mode nftables, or in mode iptables with iptables-nft",
        )),
        Err(error) => Some(Finding::warning(
            "service-proxy-rules",
            format!("the rules of the service proxy cannot be read: {error}"),
            "run this as root, with a kernel that has nf_tables",
        )),
    }
}

/// kube-proxy collects changes for longer than by default. `settings` is its `/configz`.
fn slow(settings: &str) -> Option<Finding> {
    let period = min_sync_period(&serde_json::from_str(settings).ok()?)?;
    (period > SYNC_PERIOD).then(|| {
        Finding::warning(
            "service-proxy-pace",
            format!("kube-proxy writes its rules at most once in {} s (minSyncPeriod): a node advertises a service address that late, and sends packets to endpoints that are gone for that long", period.as_secs_f64()),
            "set minSyncPeriod in kube-proxy's configuration to 1s or less",
        )
    })
}

/// The longest `minSyncPeriod`. Its place and its case depend on kube-proxy's version.
fn min_sync_period(settings: &Value) -> Option<Duration> {
    match settings {
        Value::Object(fields) => fields
            .iter()
            .filter_map(|(name, value)| match value.as_str() {
                Some(text) if name.eq_ignore_ascii_case("minSyncPeriod") => duration(text),
                _ => min_sync_period(value),
            })
            .max(),
        Value::Array(items) => items.iter().filter_map(min_sync_period).max(),
        _ => None,
    }
}

/// A duration as Go writes it: `1m30s`, `1.5s`, `200ms`.
fn duration(mut text: &str) -> Option<Duration> {
    let mut sum = Duration::ZERO;
    while !text.is_empty() {
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, rest) = text.split_at(digits);
        let letters = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (unit, rest) = rest.split_at(letters);
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        sum += Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()?;
        text = rest;
    }
    Some(sum)
}

/// The node's label keeps every address off.
fn excluded(views: &[ServiceView]) -> Option<Finding> {
    let count = views.iter().filter(|view| view.reason == Some(WithheldReason::NodeExcluded)).count();
    (count > 0).then(|| {
        Finding::warning(
            "service-addresses",
            format!("this Node has the label node.kubernetes.io/exclude-from-external-load-balancers: {count} service addresses are not advertised from here"),
            "kubeadm sets it on control-plane nodes: remove the label, or set excludedNodes: Advertise in the ServiceAdvertisement",
        )
    })
}

fn other_speaker() -> Finding {
    Finding::warning(
        "service-addresses",
        format!(
            "MetalLB's speaker runs on this node (port {}): two speakers advertise service addresses, and routers accept one BGP session from a node",
            SPEAKER.0
        ),
        "follow docs/migrate-from-metallb.md, and delete MetalLB's DaemonSet",
    )
}

fn read(protocol: &str) -> String {
    std::fs::read_to_string(format!("/proc/net/{protocol}")).unwrap_or_default()
}

/// Whether a line of `/proc/net/tcp` is a listener on this port.
fn listens(table: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, state) = (fields.next(), fields.nth(1));
        let number = local.and_then(|local| u16::from_str_radix(local.rsplit(':').next()?, 16).ok());
        number == Some(port) && state == Some(LISTEN)
    })
}

fn processes() -> Vec<String> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.bytes().all(|octet| octet.is_ascii_digit())).collect()
}

/// Status and body of a GET.
fn get(address: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    // The server does not divide the body into chunks for HTTP/1.0, and closes the connection.
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes())?;
    let mut octets = Vec::new();
    stream.take(ANSWER).read_to_end(&mut octets)?;
    let text = String::from_utf8_lossy(&octets);
    let (head, body) = text.split_once("\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or(io::ErrorKind::InvalidData)?, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn each_state_of_the_service_proxy_has_a_finding() {
        let address: SocketAddr = "127.0.0.1:10256".parse().unwrap();
        let text = |answer| health(address, answer).map(|finding| finding.text).unwrap_or_default();
        assert_eq!(text(Ok((200, "{}".to_owned()))), "");
        assert!(text(Ok((503, r#"{"nodeEligible":false}"#.to_owned()))).contains("shall get no traffic"));
        assert!(text(Ok((503, r#"{"nodeEligible":true}"#.to_owned()))).contains("out of date"));
        assert!(text(Ok((404, "no JSON".to_owned()))).starts_with("the service proxy answers 404"));
        let refused = Err(io::ErrorKind::ConnectionRefused.into());
        assert!(
            text(refused)
                .starts_with("the service proxy does not answer at 127.0.0.1:10256: connection refused")
        );
        for (backend, found) in [
            (Ok(Backend::Nftables), false),
            (Ok(Backend::IptablesNft), false),
            (Ok(Backend::Absent), true),
            (Ok(Backend::Invisible), true),
            (Err(io::ErrorKind::PermissionDenied.into()), true),
        ] {
            assert_eq!(rules(backend).is_some(), found);
        }
    }

    #[test]
    fn answers_are_read_from_a_server() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            for answer in ["HTTP/1.0 503 Service Unavailable\r\nA: b\r\n\r\n{\"x\": 1}", "nonsense"] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 512];
                let length = stream.read(&mut request).unwrap();
                assert!(request[..length].starts_with(b"GET /healthz HTTP/1.0\r\n"));
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        assert_eq!(get(address, "/healthz").unwrap(), (503, "{\"x\": 1}".to_owned()));
        assert_eq!(get(address, "/healthz").unwrap_err().kind(), io::ErrorKind::InvalidData);
        server.join().unwrap();
        assert_eq!(get(address, "/healthz").unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_slow_service_proxy_is_a_finding() {
        for (text, seconds) in [
            ("1s", Some(1.0)),
            ("1m30s", Some(90.0)),
            ("1.5s", Some(1.5)),
            ("200ms", Some(0.2)),
            ("0s", Some(0.0)),
            ("10", None),
            ("x", None),
        ] {
            assert_eq!(duration(text).map(|found| found.as_secs_f64()), seconds, "{text}");
        }
        let new = |period: &str| {
            format!(
                r#"{{"kubeproxy.config.k8s.io":{{"Mode":"nftables","SyncPeriod":"30s","MinSyncPeriod":"{period}"}}}}"#
            )
        };
        assert_eq!(slow(&new("1s")), None);
        assert!(slow(&new("10s")).unwrap().text.contains("at most once in 10 s"));
        let old = r#"{"kubeproxy.config.k8s.io":{"IPTables":{"MinSyncPeriod":"1s"},"NFTables":{"MinSyncPeriod":"2s"}}}"#;
        assert!(slow(old).unwrap().text.contains("at most once in 2 s"));
        assert_eq!(slow("no JSON"), None);
    }

    #[test]
    fn listeners_are_found_by_port() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n   0: 0100007F:1F0A 00000000:0000 0A 00000000:00000000\n   1: 0100007F:0050 0100007F:1F0B 01 00000000:00000000\n";
        assert!(listens(table, 7946));
        assert!(!listens(table, 80), "a connection");
        assert!(!listens("", 7946));
    }
}
