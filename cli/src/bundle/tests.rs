//! Whole bundles of nodes with secrets in every file: with an agent, without an agent, and with an
//! agent that hangs.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;

use serde_json::{Value, json};
use trunkline_api::attach::{Code, Command, Failure, Reply, Request, encode};
use trunkline_api::control::Query;

use super::*;
use crate::install::InstallPaths;

/// Part of every secret in these tests, and of nothing else.
const MARK: &str = "hunter2";
/// The secrets, one for each place.
const SECRETS: &[&str] = &[
    "hunter2-password",
    "hunter2 in \"quotes\" and blanks",
    "hunter2-in-a-file",
    "hunter2-of-the-cluster",
    "hunter2-kube-token",
    "hunter2-kube-key-data",
    "hunter2-misspelt",
    "hunter2-applied-last",
    "hunter2-conflist-token",
    "hunter2-header",
];

/// A node's folders.
struct Node {
    folder: tempfile::TempDir,
    bundle: SupportBundle,
}

impl Node {
    /// A node with these additional lines in its agent.yaml.
    fn new(more: &str) -> Node {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let at = |path: &str| root.join(path);
        let put = |path: &str, text: String| {
            fs::create_dir_all(at(path).parent().unwrap()).unwrap();
            fs::write(at(path), text).unwrap();
        };
        let shown = root.display();
        put(
            "agent.yaml",
            format!(
                "# once it was {MARK}-in-a-comment\nnodeName: node1\nsource: kube\nkube: {{kubeconfig: {shown}/kubeconfig, cache: {shown}/cluster.json}}\n\
                 manifests: {shown}/manifests\nsocket: {shown}/agent.sock\nstore: {shown}/store.redb\nhttpAddress: 127.0.0.1:1\n\
                 telemetry: {{otlp: {{endpoint: \"http://127.0.0.1:1\", headers: {{x-org: {{file: {shown}/header}}}}}}}}\n{more}"
            ),
        );
        put("header", "Basic hunter2-header\n".to_owned());
        put("tor.key", "hunter2-in-a-file\n".to_owned());
        put(
            "kubeconfig",
            "users: [{name: me, user: {token: hunter2-kube-token, client-key-data: hunter2-kube-key-data}}]"
                .to_owned(),
        );
        put(
            "cluster.json",
            json!({
                "node": "node1",
                "networks": [{"metadata": {"name": "rack1", "annotations": {"kubectl.kubernetes.io/last-applied-configuration":
                    "{\"spec\":{\"config\":{\"bgpPeers\":[{\"password\":\"hunter2-applied-last\"}]}}}"}}}],
                "passwords": [["rack1", 0, "hunter2-of-the-cluster"]],
            })
            .to_string(),
        );
        put(
            "manifests/rack1.yaml",
            format!(
                "# hunter2-in-a-comment\nkind: Network\nspec:\n  netID: 65101\n  config:\n    bgpPeers:\n    - {{asn: 65001, address: 10.0.0.1, password: hunter2-password}}\n    \
                 - {{asn: 65002, address: 10.0.0.2, password: 'hunter2 in \"quotes\" and blanks'}}\n    - {{asn: 65003, address: 10.0.0.3, passwordFile: {shown}/tor.key}}\n    \
                 - {{asn: 65004, address: 10.0.0.4, passwordSecretRef: {{name: keys, key: tor4}}}}\n---\nkind: Network\nspec: {{pasword_secret: hunter2-misspelt}}\n"
            ),
        );
        put("manifests/broken.yaml", "password: [hunter2-broken\n".to_owned());
        put("manifests/hunter2-password.yaml", "{}".to_owned());
        put(
            "net.d/05-trunkline.conflist",
            "{\"plugins\": [{\"type\": \"trunkline-cni\"}, {\"type\": \"other\", \"apiToken\": \"hunter2-conflist-token\"}]}".to_owned(),
        );
        let place = InstallPaths {
            bin_dir: at("bin"),
            conf_dir: at("net.d"),
            conf_name: "05-trunkline.conflist".to_owned(),
        };
        let host = HostArgs { config: at("agent.yaml"), socket: None, place };
        Node { bundle: SupportBundle { host, output: None, routes: 10, log_lines: 10 }, folder }
    }

    /// All parts by name, and the manifest.
    fn parts(&self) -> (BTreeMap<String, String>, Value) {
        let gathered = Some(files::read_all(&self.bundle.host));
        let job = Job {
            bundle: &self.bundle,
            node: "node1",
            name: "bundle",
            now: Timestamp::from_second(1_800_000_000).unwrap(),
            timeout: Duration::from_millis(300),
            quiet: true,
        };
        let (octets, _) = job.collect(Vec::new(), gathered).unwrap();
        let parts = unpack(octets.as_slice());
        let manifest = serde_json::from_str(&parts["bundle/manifest.json"]).unwrap();
        (parts, manifest)
    }

    fn socket(&self) -> UnixListener {
        UnixListener::bind(self.folder.path().join("agent.sock")).unwrap()
    }
}

fn unpack(octets: impl io::Read) -> BTreeMap<String, String> {
    let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(octets));
    let entries = tar.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (entry.path().unwrap().display().to_string(), text)
    });
    entries.collect()
}

fn nothing_secret(parts: &BTreeMap<String, String>) {
    for (path, text) in parts {
        assert!(!path.contains(MARK), "{path}");
        let line = text.lines().find(|line| line.contains(MARK));
        assert_eq!(line, None, "{path}");
    }
}

/// Answers every request with secrets, which no agent should send.
fn talkative(listener: UnixListener) {
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            let mut line = Vec::new();
            BufReader::new(&stream).read_until(b'\n', &mut line).unwrap();
            let answer = match Request::decode(&line).unwrap().command {
                Command::Query(Query::Agent) => encode(&json!({"ok": {
                    "node": "node1", "version": "9.9", "uptimeSeconds": 1, "ready": false, "notReady": SECRETS,
                    "manifests": {"folder": "/m", "applied": true, "refused": ["bgpPeers[0].password: hunter2-unknown"]},
                    "store": {"path": "/s", "fault": null}, "bgp": null, "networks": [], "attachments": 0, "unrecorded": 0,
                    "kernel": {"routesWanted": 0, "routesInstalled": 0, "routesStale": 0, "rules": 0, "repairs": 0, "errors": 0, "lastError": null},
                }})),
                _ => encode(&Reply::<()>::Error(Failure::new(Code::Internal, SECRETS.join("\n")))),
            };
            (&stream).write_all(&answer.unwrap()).unwrap();
        }
    });
}

#[test]
fn bundle_contains_no_secret_from_any_place() {
    let node = Node::new("");
    talkative(node.socket());
    let (parts, manifest) = node.parts();
    nothing_secret(&parts);
    assert_eq!((&manifest["agentAnswered"], &manifest["agentVersion"]), (&json!(true), &json!("9.9")));
    // The data around the secrets stays.
    for (path, words) in [
        ("config/agent.json", &["\"source\": \"kube\"", "\"x-org\": {"][..]),
        ("config/effective.json", &["\"selectionDeferralSeconds\": 120", "\"vxlanPort\""]),
        ("config/cluster.json", &["last-applied-configuration", "[redacted]", "rack1"]),
        (
            "config/manifests/rack1.yaml.json",
            &[
                "10.0.0.2",
                "\"password\": \"[redacted]\"",
                "tor.key\"",
                "\"key\": \"tor4\"",
                "\"pasword_secret\": \"[redacted]\"",
            ],
        ),
        ("config/manifests/_redacted_.yaml.json", &["{}"]),
        ("cni/05-trunkline.conflist", &["trunkline-cni", "\"apiToken\": \"[redacted]\""]),
        ("agent/status.txt", &["node1", "[redacted]"]),
        ("agent/status.json", &["\"notReady\"", "[redacted]"]),
        ("doctor.json", &["\"fix\""]),
        ("doctor.txt", &["→"]),
        ("kernel/links.txt", &["lo mtu"]),
        ("kernel/routes.txt", &["routes by table"]),
        ("kernel/rules.txt", &["32766: from all lookup main"]),
        ("kernel/addresses.txt", &[]),
        ("kernel/neighbours.txt", &["# IPv4"]),
        ("kernel/sysctls.txt", &["net.ipv4.ip_forward = ", "net.ipv4.conf.all.rp_filter = "]),
        ("host/kernel.txt", &["Linux"]),
        ("host/clock.txt", &["clock"]),
        ("host/files.txt", &["store.redb: ", "kubeconfig", "rack1.yaml"]),
        ("cni/files.txt", &["05-trunkline.conflist"]),
        ("README.md", &["node1", "The agent (version 9.9) answered.", "broken.yaml"]),
    ] {
        let text =
            parts.get(&format!("bundle/{path}")).unwrap_or_else(|| panic!("{path}: {:?}", parts.keys()));
        for word in words {
            assert!(text.contains(word), "{path} without {word}: {text}");
        }
    }
    assert!(
        !parts.contains_key("bundle/config/manifests/broken.yaml.json"),
        "a file that cannot be read as data is omitted"
    );
}

/// An unknown field makes the configuration invalid; the bundle still contains the rest.
#[test]
fn secret_in_an_unknown_field_is_removed() {
    let node = Node::new("bmpTlsKey: hunter2-bmp-key # hunter2-in-a-line-that-is-quoted\n");
    let (parts, manifest) = node.parts();
    nothing_secret(&parts);
    assert!(parts["bundle/config/agent.json"].contains("\"bmpTlsKey\": \"[redacted]\""));
    assert!(!parts.contains_key("bundle/config/effective.json"));
    let missing = manifest["steps"][0]["missing"].to_string();
    assert!(missing.contains("unknown field"), "{missing}");
}

/// Every resource field with a type for secrets also has the name of a secret.
#[test]
fn every_secret_field_of_the_resources_has_a_known_name() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../api/src/resources");
    let mut fields = Vec::new();
    for file in fs::read_dir(folder).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let declared = text.lines().filter_map(|line| line.trim().strip_prefix("pub ")?.split_once(": "));
        fields.extend(declared.filter(|(_, kind)| kind.contains("Secret>")).map(|(name, _)| name.to_owned()));
    }
    assert!(fields.contains(&"password".to_owned()), "{fields:?}");
    for field in fields {
        assert!(redact::is_secret(&field), "{field} would be shown");
    }
}

#[test]
fn bundle_without_an_agent_has_all_other_parts() {
    let node = Node::new("");
    let (parts, manifest) = node.parts();
    assert_eq!((&manifest["agentAnswered"], &manifest["agentVersion"]), (&json!(false), &Value::Null));
    assert!(parts["bundle/README.md"].contains("**The agent did not answer**"));
    assert!(parts["bundle/README.md"].contains("agent: peers: not requested"));
    assert!(parts["bundle/doctor.txt"].contains("no agent answers at"));
    assert!(
        parts.contains_key("bundle/kernel/rules.txt") && parts.contains_key("bundle/config/effective.json")
    );
    assert!(!parts.keys().any(|path| path.starts_with("bundle/agent/")), "{:?}", parts.keys());
}

#[test]
fn bundle_with_a_hanging_agent_lacks_only_its_answers() {
    let node = Node::new("");
    let _hangs = node.socket();
    let (parts, manifest) = node.parts();
    assert_eq!(manifest["agentAnswered"], false);
    let status =
        manifest["steps"].as_array().unwrap().iter().find(|step| step["step"] == "agent: status").unwrap();
    assert!(status["missing"][0]["why"].as_str().unwrap().contains("reading the answer"), "{status}");
    assert!(parts.contains_key("bundle/doctor.txt") && parts.contains_key("bundle/kernel/rules.txt"));
}

#[test]
fn bundle_file_is_private_and_never_overwritten() {
    let mut node = Node::new("");
    let path = node.folder.path().join("ticket.tar.gz");
    node.bundle.output = Some(path.clone());
    write(&node.bundle).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let parts = unpack(fs::File::open(&path).unwrap());
    let folder = parts.keys().next().unwrap().clone();
    assert!(folder.starts_with("trunkline-node1-2") && folder.ends_with("Z/"), "{folder}");
    let before = fs::read(&path).unwrap();
    let error = format!("{:#}", write(&node.bundle).unwrap_err());
    assert!(error.contains("name a new file"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), before);
}
