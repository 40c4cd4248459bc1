//! Rules for an AnycastAddress that need no other object.

use std::collections::BTreeSet;

use super::attributes::{
    check_address, check_communities, check_graceful_shutdown, check_number, check_peers, check_prepend,
    check_routed, check_selector,
};
use crate::fault::Faults;
use crate::resources::{AddressBlock, AnycastAddressSpec, CheckMethod, HealthCheck, HttpCheck};

/// The highest number of addresses.
const MAX_ADDRESSES: usize = 16;

/// The source of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectSource {
    /// A file on the node. Only root can write it.
    File,
    /// The API server. Its users must not run programs on the node.
    ApiServer,
}

pub(super) fn check(spec: &AnycastAddressSpec, source: ObjectSource, faults: &mut Faults<'_>) {
    if spec.addresses.is_empty() {
        faults.add("spec.addresses", "missing: write at least one address");
    }
    check_number("spec.addresses", "addresses", spec.addresses.len(), MAX_ADDRESSES, faults);
    let mut seen = BTreeSet::new();
    for (index, text) in spec.addresses.iter().enumerate() {
        let field = format!("spec.addresses[{index}]");
        let Some(address) = check_address(&field, text, faults) else { continue };
        check_routed(&field, &AddressBlock::from(address), faults);
        if !seen.insert(address) {
            faults.add(field, format!("{address} occurs twice: delete one of the two"));
        }
    }
    check_selector(&spec.node_selector, "spec.nodeSelector", faults);
    check_peers(&spec.peers, faults);
    check_communities(&spec.communities, &spec.large_communities, faults);
    check_prepend(spec.prepend, faults);
    check_graceful_shutdown(spec.graceful_shutdown_seconds, faults);
    if let Some(health) = &spec.check {
        check_health(health, source, faults);
    }
}

fn check_health(check: &HealthCheck, source: ObjectSource, faults: &mut Faults<'_>) {
    let mut methods = check.methods();
    match (methods.next(), methods.next()) {
        (None, _) => {
            faults.add("spec.check.http", "missing: write one of http, https, tcp, grpc and command");
        }
        (Some(first), Some(second)) => faults.add(
            format!("spec.check.{}", name(second)),
            format!("`{}` is also set: leave out one of the two", name(first)),
        ),
        (Some(_), None) => {}
    }
    if source == ObjectSource::ApiServer && !check.command.is_empty() {
        faults.add(
            "spec.check.command",
            "the agent runs it as root, so only a file on the node may have it: write http, https, tcp or grpc",
        );
    }
    if check.command.first().is_some_and(|program| !program.starts_with('/')) {
        faults.add(
            "spec.check.command[0]",
            "not an absolute path: write the program's path, with / at the beginning",
        );
    }
    for method in check.methods() {
        match method {
            CheckMethod::Http(http) => check_http(http, "spec.check.http", false, faults),
            CheckMethod::Https(https) => check_http(https, "spec.check.https", true, faults),
            CheckMethod::Tcp(tcp) => check_port(tcp.port, "spec.check.tcp", faults),
            CheckMethod::Grpc(grpc) => check_port(grpc.port, "spec.check.grpc", faults),
            CheckMethod::Command(_) => {}
        }
    }
    if !check.connect_to.is_empty() {
        check_address("spec.check.connectTo", &check.connect_to, faults);
    }
    let interval = check.interval_milliseconds.unwrap_or(HealthCheck::DEFAULT_INTERVAL);
    for (field, value, range) in [
        ("intervalMilliseconds", check.interval_milliseconds, 50..=60000),
        ("timeoutMilliseconds", check.timeout_milliseconds, 1..=60000),
        ("rise", check.rise, 1..=100),
        ("fall", check.fall, 1..=100),
    ] {
        if let Some(value) = value.filter(|value| !range.contains(value)) {
            faults.add(
                format!("spec.check.{field}"),
                format!("{value} is out of range: write {} to {}", range.start(), range.end()),
            );
        }
    }
    if let Some(timeout) = check.timeout_milliseconds.filter(|timeout| *timeout > interval) {
        faults.add(
            "spec.check.timeoutMilliseconds",
            format!("{timeout} is above the interval of {interval}: write {interval} or less"),
        );
    }
}

fn name(method: CheckMethod<'_>) -> &'static str {
    match method {
        CheckMethod::Http(_) => "http",
        CheckMethod::Https(_) => "https",
        CheckMethod::Tcp(_) => "tcp",
        CheckMethod::Grpc(_) => "grpc",
        CheckMethod::Command(_) => "command",
    }
}

fn check_http(check: &HttpCheck, path: &str, is_https: bool, faults: &mut Faults<'_>) {
    check_port(check.port, path, faults);
    let is_visible = check.path.bytes().all(|byte| byte.is_ascii_graphic());
    let is_absolute = check.path.is_empty() || check.path.starts_with('/');
    if !is_absolute || !is_visible {
        faults.add(
            format!("{path}.path"),
            "not the path of a request: write one that begins with /, without spaces",
        );
    }
    let in_name = |byte: u8| byte.is_ascii_alphanumeric() || b".:_-".contains(&byte);
    if !check.host.bytes().all(in_name) {
        faults.add(format!("{path}.host"), "not a name: write one, such as api.example.com");
    }
    if let Err(error) = check.expected_status() {
        faults.add(format!("{path}.expectedStatus"), error.to_string());
    }
    let has_ca = !check.ca_file.is_empty();
    if !is_https {
        for (field, is_set) in [("caFile", has_ca), ("insecureSkipVerify", check.insecure_skip_verify)] {
            if is_set {
                faults
                    .add(format!("{path}.{field}"), "HTTP has no certificates: write https, or leave it out");
            }
        }
        return;
    }
    if has_ca && !check.ca_file.starts_with('/') {
        faults.add(
            format!("{path}.caFile"),
            format!("`{}` is not an absolute path: write a path that begins with /", check.ca_file),
        );
    }
    if has_ca && check.insecure_skip_verify {
        faults.add(
            format!("{path}.insecureSkipVerify"),
            "no certificate is checked against caFile: leave out one of the two",
        );
    }
}

fn check_port(port: u16, path: &str, faults: &mut Faults<'_>) {
    if port == 0 {
        faults.add(format!("{path}.port"), "0 is not a port: write 1 to 65535");
    }
}
