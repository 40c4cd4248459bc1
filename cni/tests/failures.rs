//! Failures around the plugin: each has a code, and a message with the cause and the fix.
#![allow(missing_docs, reason = "a test")]

mod support;

use std::time::Instant;

use serde_json::{Value, json};
use support::{Act, Agent, NETNS, attachment, configuration, done, environment, plugin, run};

const COMMANDS: [&str; 4] = ["ADD", "DEL", "CHECK", "GC"];

/// Keys that suffice for any command.
fn complete() -> Value {
    json!({
        "cni.dev/valid-attachments": [],
        "prevResult": {"interfaces": [{"name": "eth0", "sandbox": NETNS}], "ips": [{"address": "10.0.0.1/32", "interface": 0}]},
    })
}

/// The keys for a command; ADD would refuse a result that already has its interface.
fn keys(command: &str) -> Value {
    if command == "ADD" { json!({}) } else { complete() }
}

#[test]
fn missing_agent_error_names_socket_and_fix() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let socket = path.to_str().unwrap();
    let try_it = || {
        for command in COMMANDS {
            run(command, &configuration(socket, "1.1.0", keys(command)), &[])
                .failure(11, &["cannot reach the agent at", socket, "is it running?", "trunkline agent"]);
        }
        run("STATUS", &configuration(socket, "1.1.0", json!({})), &[])
            .failure(50, &["cannot reach the agent at", socket]);
    };
    try_it();
    // A dead agent left this socket.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    try_it();
}

#[test]
fn the_default_socket_is_named_when_none_is_configured() {
    // The plugin does not contact the agent of this machine: it refuses the name of the network
    // first.
    let configuration = configuration("/x", "1.0.0", json!({"socket": null, "name": "a b"}));
    run("ADD", &configuration, &[]).failure(7, &["name", "`a b`"]);
    assert_eq!(trunkline_api::attach::DEFAULT_SOCKET, "/run/trunkline/agent.sock");
}

#[test]
fn agent_death_during_a_request_is_retryable() {
    for act in [Act::Die, Act::DieUnread, Act::Bytes(b"{\"ok\":".to_vec())] {
        let agent = Agent::start(act);
        let socket = agent.socket.to_str().unwrap();
        for command in COMMANDS {
            run(command, &agent.configuration("1.1.0", keys(command)), &[])
                .failure(11, &[socket, "may have stopped or be restarting"]);
        }
        run("STATUS", &agent.configuration("1.1.0", json!({})), &[]).failure(50, &[socket]);
    }
}

#[test]
fn silent_agent_times_out_at_the_deadline() {
    let agent = Agent::start(Act::Hang);
    for (command, code) in [("ADD", 11), ("DEL", 11), ("STATUS", 50)] {
        #[expect(clippy::disallowed_methods, reason = "a test measures time")]
        let started = Instant::now();
        let mut configuration = agent.configuration("1.1.0", json!({}));
        configuration["timeoutSeconds"] = 1.into();
        run(command, &configuration, &[]).failure(code, &["did not answer within 1 s", "timeoutSeconds"]);
        let waited = started.elapsed().as_secs_f64();
        assert!((1.0..5.0).contains(&waited), "{waited} s");
        agent.received();
    }
}

#[test]
fn invalid_reply_is_reported() {
    for bytes in ["hello\n", "{\"ok\":{}}\n", "{}\n", "\n"] {
        let agent = Agent::start(Act::Bytes(bytes.as_bytes().to_vec()));
        run("ADD", &agent.configuration("1.0.0", json!({})), &[])
            .failure(6, &["not a message of the attach protocol"]);
    }
}

#[test]
fn early_refusal_wins_over_a_broken_connection() {
    let answer = json!({"error": {"code": 6, "message": "too long"}});
    let agent = Agent::start(Act::AnswerUnread(answer));
    let valid: Vec<Value> =
        (0..20_000).map(|number| json!({"containerID": format!("{number:064}"), "ifname": "eth0"})).collect();
    run("GC", &agent.configuration("1.1.0", json!({"cni.dev/valid-attachments": valid})), &[])
        .failure(6, &["too long"]);
}

#[test]
fn agent_errors_keep_code_and_details() {
    for code in [3, 11, 100, 101, 999, 4711] {
        let answer = json!({"error": {"code": code, "message": "Subnet rack1-v4 is full", "details": "254 of 254 used"}});
        let agent = Agent::start(Act::Answer(answer));
        for (command, version) in [("ADD", "0.4.0"), ("DEL", "1.0.0"), ("CHECK", "1.1.0")] {
            let error = run(command, &agent.configuration(version, keys(command)), &[])
                .failure(code, &["Subnet rack1-v4 is full"]);
            assert_eq!(
                error,
                json!({"cniVersion": version, "code": code, "msg": "Subnet rack1-v4 is full", "details": "254 of 254 used"})
            );
        }
    }
}

#[test]
fn invalid_standard_input_is_refused() {
    let table: [(&[u8], u32, &[&str]); 9] = [
        (b"", 6, &["no network configuration on standard input"]),
        (b" \n", 6, &["no network configuration on standard input"]),
        (b"{", 6, &["not JSON"]),
        (b"[]", 6, &["not a JSON object"]),
        (b"{}", 1, &["cniVersion", "missing", "0.4.0, 1.0.0, 1.1.0"]),
        (b"{\"cniVersion\":\"0.3.1\",\"name\":\"pods\"}", 1, &["\"0.3.1\" is not supported", "0.4.0"]),
        (b"{\"cniVersion\":1,\"name\":\"pods\"}", 1, &["1 is not supported"]),
        (b"{\"cniVersion\":\"1.0.0\"}", 7, &["name", "``"]),
        (b"{\"cniVersion\":\"1.0.0\",\"name\":[]}", 7, &["name", "[] is not a text"]),
    ];
    for (stdin, code, parts) in table {
        for command in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
            plugin(&environment(command), stdin).failure(code, parts);
        }
    }
    let error = plugin(&environment("ADD"), b"{\"cniVersion\":\"0.3.1\"}").failure(1, &[]);
    assert_eq!(error["cniVersion"], "0.3.1", "the error has the requested version");
    let mut long = vec![b' '; (16 << 20) + 1];
    long[0] = b'{';
    plugin(&environment("ADD"), &long).failure(6, &["longer than"]);
}

#[test]
fn unsupported_configuration_is_refused() {
    let agent = Agent::start(Act::Answer(attachment()));
    let table: [(Value, u32, &[&str]); 11] = [
        (json!({"subnets": "a"}), 2, &["subnets: not known", "subnet"]),
        (json!({"ipam": {"type": "host-local"}}), 2, &["ipam", "take it out"]),
        (json!({"ipMasq": true}), 2, &["ipMasq", "autoNatOutgoing"]),
        (
            json!({"runtimeConfig": {"portMappings": [{"hostPort": 80}]}}),
            2,
            &["runtimeConfig.portMappings", "portmap"],
        ),
        (json!({"runtimeConfig": []}), 7, &["runtimeConfig", "not a JSON object"]),
        (json!({"socket": "agent.sock"}), 7, &["socket", "`agent.sock`", "absolute"]),
        (json!({"socket": format!("/{}", "a".repeat(200))}), 7, &["socket", "107"]),
        (json!({"socket": 7}), 7, &["socket", "7 is not a text"]),
        (json!({"timeoutSeconds": 0}), 7, &["timeoutSeconds", "0", "1 to 3600"]),
        (json!({"timeoutSeconds": "1m"}), 7, &["timeoutSeconds", "1m"]),
        (json!({"name": "-pods"}), 7, &["name", "`-pods`"]),
    ];
    for (more, code, parts) in table {
        run("ADD", &agent.configuration("1.0.0", more), &[]).failure(code, parts);
    }
    agent.was_not_contacted();
    // Keys without effect are no reason to refuse.
    let nothing = json!({"ipam": {}, "ipMasq": false, "capabilities": {"ips": true}, "dns": {}, "args": {},
                         "runtimeConfig": {"portMappings": []}, "cni.dev/x": 1, "subnet": ""});
    run("ADD", &agent.configuration("1.0.0", nothing), &[]).result();
}

#[test]
fn bandwidth_that_cannot_be_is_refused_with_its_place() {
    let agent = Agent::start(Act::Answer(attachment()));
    let annotated = |name: &str, text: &str| json!({"io.kubernetes.cri.pod-annotations": {name: text}});
    let table: [(Value, u32, &[&str]); 9] = [
        (json!({"bandwidth": 7}), 7, &["runtimeConfig.bandwidth", "not a JSON object"]),
        (json!({"bandwidth": {"ingressRate": "1M"}}), 7, &["runtimeConfig.bandwidth.ingressRate", "1M"]),
        (json!({"bandwidth": {"egressRate": -1}}), 7, &["runtimeConfig.bandwidth.egressRate", "-1"]),
        (
            json!({"bandwidth": {"ingressBurst": 9}}),
            7,
            &["bandwidth.ingressRate", "if ingressBurst is set, ingressRate must also be set"],
        ),
        (json!({"bandwidth": {"egressRate": 999}}), 7, &["bandwidth.egressRate", "999 is less than 1000"]),
        (
            json!({"bandwidth": {"egressRate": 1_000_000, "egressBurst": 1_u64 << 35}}),
            7,
            &["bandwidth.egressBurst", "more than 4 GB"],
        ),
        (
            json!({"bandwidth": {"egressRate": 1_000_000, "unshapedSubnets": ["10.0.0.0/8"]}}),
            2,
            &["bandwidth.unshapedSubnets", "not known", "egressBurst"],
        ),
        (
            annotated("kubernetes.io/ingress-bandwidth", "fast"),
            7,
            &["kubernetes.io/ingress-bandwidth", "`fast`"],
        ),
        (
            annotated("kubernetes.io/egress-bandwidth", "10"),
            7,
            &["kubernetes.io/egress-bandwidth", "less than 1k"],
        ),
    ];
    for (runtime, code, parts) in table {
        let keys = json!({"runtimeConfig": runtime});
        run("ADD", &agent.configuration("1.0.0", keys), &[]).failure(code, parts);
    }
    agent.was_not_contacted();
}

#[test]
fn missing_or_wrong_variables_are_named() {
    /// Command, variables changed, code, parts of the message.
    type Row<'a> = (&'a str, &'a [(&'a str, &'a str)], u32, &'a [&'a str]);
    let agent = Agent::start(Act::Answer(done()));
    let table: [Row<'_>; 13] = [
        ("ADD", &[("CNI_CONTAINERID", "")], 4, &["CNI_CONTAINERID"]),
        ("ADD", &[("CNI_IFNAME", ""), ("CNI_CONTAINERID", "")], 4, &["CNI_CONTAINERID, CNI_IFNAME"]),
        ("DEL", &[("CNI_CONTAINERID", "")], 4, &["CNI_CONTAINERID"]),
        ("CHECK", &[("CNI_IFNAME", "")], 4, &["CNI_IFNAME"]),
        ("ADD", &[("CNI_NETNS", "")], 4, &["CNI_NETNS"]),
        ("ADD", &[("CNI_CONTAINERID", "../c1")], 4, &["CNI_CONTAINERID", "`../c1`"]),
        ("ADD", &[("CNI_IFNAME", "a-name-too-long-")], 4, &["CNI_IFNAME", "`a-name-too-long-`", "15"]),
        ("DEL", &[("CNI_IFNAME", "a/b")], 4, &["CNI_IFNAME", "`a/b`"]),
        ("ADD", &[("CNI_IFNAME", "..")], 4, &["CNI_IFNAME"]),
        ("ADD", &[("CNI_NETNS", "/run/netns/is-not-there")], 3, &["/run/netns/is-not-there", "gone"]),
        ("ADD", &[("CNI_NETNS", "/proc/self/exe")], 8, &["/proc/self/exe", "not a namespace"]),
        ("ADD", &[("CNI_NETNS_OVERRIDE", "")], 8, &["host's own network namespace"]),
        ("UPDATE", &[], 4, &["CNI_COMMAND", "`UPDATE`", "ADD or DEL"]),
    ];
    for (command, changes, code, parts) in table {
        run(command, &agent.configuration("1.0.0", keys(command)), changes).failure(code, parts);
    }
    agent.was_not_contacted();
}

#[test]
fn a_closed_standard_output_is_a_failure() {
    use std::process::{Command, Stdio};
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = Command::new(env!("CARGO_BIN_EXE_trunkline-cni"))
        .env_clear()
        .env("CNI_COMMAND", "VERSION")
        .stdin(Stdio::null())
        .stdout(writer)
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(1));
}
