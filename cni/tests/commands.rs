//! Every CNI command against a test agent with the protocol: the request, and the printed result.
#![allow(missing_docs, reason = "a test")]

mod support;

use std::os::unix::fs::MetadataExt;
use std::time::SystemTime;

use serde_json::{Value, json};
use support::{Act, Agent, NETNS, attachment, done, environment, plugin, run};
use trunkline_api::attach::Command;

#[test]
fn add_sends_the_namespace_and_prints_each_version() {
    let agent = Agent::start(Act::Answer(attachment()));
    for version in ["0.4.0", "1.0.0", "1.1.0"] {
        let arguments = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-2;K8S_POD_UID=u1";
        let result =
            run("ADD", &agent.configuration(version, json!({})), &[("CNI_ARGS", arguments)]).result();
        let ip = |address: &str, gateway: &str, family: &str| {
            let mut ip = json!({"address": address, "gateway": gateway, "interface": 1});
            if version == "0.4.0" {
                ip["version"] = family.into();
            }
            ip
        };
        let interface = |mut interface: Value| {
            if version == "1.1.0" {
                interface["mtu"] = 1500.into();
            }
            interface
        };
        let expected = json!({
            "cniVersion": version,
            "interfaces": [
                interface(json!({"name": "tl0123456789ab", "mac": "ee:ee:ee:ee:ee:ee"})),
                interface(json!({"name": "eth0", "mac": "02:12:34:00:00:07", "sandbox": NETNS})),
            ],
            "ips": [
                ip("10.14.0.7/32", "169.254.1.1", "4"),
                ip("2001:db8:14::7/128", "fe80::ecee:eeff:feee:eeee", "6"),
            ],
            "routes": [
                {"dst": "0.0.0.0/0", "gw": "169.254.1.1"},
                {"dst": "::/0", "gw": "fe80::ecee:eeff:feee:eeee"},
            ],
        });
        assert_eq!(result, expected);

        let received = agent.received();
        let Command::Attach(attach) = received.request.command else { panic!("{}", received.line) };
        assert_eq!(
            (attach.interface.container_id.as_str(), attach.interface.ifname.as_str()),
            ("c1", "eth0")
        );
        assert_eq!((attach.conf_name.as_str(), attach.netns.as_str()), ("pods", NETNS));
        let pod = attach.pod.unwrap();
        assert_eq!((pod.namespace.as_str(), pod.name.as_str(), pod.uid.as_str()), ("shop", "web-2", "u1"));
        assert!(attach.wanted.is_empty());
        assert_eq!(attach.deadline_ms, 19_000, "the deadline is a little less than timeoutSeconds");

        assert_eq!(received.descriptors.len(), 1, "the namespace arrives once");
        let received =
            std::fs::File::from(received.descriptors.into_iter().next().unwrap()).metadata().unwrap();
        let own = std::fs::metadata(NETNS).unwrap();
        assert_eq!(
            (received.dev(), received.ino()),
            (own.dev(), own.ino()),
            "the descriptor is \
            the container's namespace"
        );
    }
}

#[test]
fn request_has_start_time_and_trace() {
    let agent = Agent::start(Act::Answer(done()));
    let now = || u64::try_from(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos()).unwrap();
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let long = "0".repeat(300);
    for (variables, expected) in
        [(vec![], ""), (vec![("TRACEPARENT", parent)], parent), (vec![("TRACEPARENT", long.as_str())], "")]
    {
        let before = now();
        assert!(run("DEL", &agent.configuration("1.0.0", json!({})), &variables).success);
        let origin = agent.received().request.origin.expect("the origin of the request");
        assert!((before..=now()).contains(&origin.started_unix_nano), "{origin:?}");
        assert_eq!(origin.traceparent, expected);
    }
}

#[test]
fn reply_in_pieces_is_read_to_its_end() {
    let agent = Agent::start(Act::Pieces(attachment()));
    let result = run("ADD", &agent.configuration("1.0.0", json!({})), &[]).result();
    assert_eq!(result["ips"][0]["address"], "10.14.0.7/32");
}

#[test]
fn previous_result_is_kept_and_extended() {
    let agent = Agent::start(Act::Answer(attachment()));
    let previous = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": NETNS, "pciID": "0000:00:01.0"}],
        "ips": [{"address": "127.0.0.1/8", "interface": 0}],
        "routes": [{"dst": "192.0.2.0/24", "priority": 7}],
        "dns": {"nameservers": ["192.0.2.53"]},
        "from.the.future": {"kept": true},
    });
    let configuration = agent.configuration("1.1.0", json!({"prevResult": previous}));
    let result = run("ADD", &configuration, &[]).result();
    assert_eq!(result["interfaces"].as_array().unwrap().len(), 3);
    assert_eq!(result["interfaces"][0], previous["interfaces"][0]);
    assert_eq!(result["interfaces"][2]["name"], "eth0");
    assert_eq!(result["ips"][0], previous["ips"][0]);
    assert_eq!(
        result["ips"][1],
        json!({"address": "10.14.0.7/32", "gateway": "169.254.1.1", "interface": 2})
    );
    assert_eq!(result["routes"][0], previous["routes"][0]);
    assert_eq!(result["routes"].as_array().unwrap().len(), 3);
    assert_eq!(result["dns"], previous["dns"]);
    assert_eq!(result["from.the.future"], previous["from.the.future"]);

    // The configuration's own dns replaces the previous one; Go's nulls are empty lists.
    let configuration = agent.configuration(
        "1.0.0",
        json!({"prevResult": {"interfaces": null, "ips": null}, "dns": {"nameservers": ["192.0.2.54"]}}),
    );
    let result = run("ADD", &configuration, &[]).result();
    assert_eq!(result["dns"], json!({"nameservers": ["192.0.2.54"]}));
    assert_eq!(result["interfaces"].as_array().unwrap().len(), 2);
}

#[test]
fn chain_with_an_existing_interface_is_refused() {
    let agent = Agent::start(Act::Answer(attachment()));
    let previous = json!({"interfaces": [{"name": "eth0", "sandbox": NETNS}], "ips": []});
    run("ADD", &agent.configuration("1.0.0", json!({"prevResult": previous})), &[])
        .failure(7, &["prevResult.interfaces[0].name", "eth0", "chain"]);
    run("ADD", &agent.configuration("1.0.0", json!({"prevResult": 7})), &[]).failure(7, &["prevResult"]);
    agent.was_not_contacted();
}

#[test]
fn named_values_come_from_the_first_source() {
    let agent = Agent::start(Act::Answer(attachment()));
    let wanted = |more: Value, arguments: &str| {
        run("ADD", &agent.configuration("1.0.0", more), &[("CNI_ARGS", arguments)]).result();
        match agent.received().request.command {
            Command::Attach(attach) => serde_json::to_value(attach.wanted).unwrap(),
            other => panic!("{other:?}"),
        }
    };
    let annotations = json!({
        "networking.alibaba.com/specified-network": "annotated",
        "networking.alibaba.com/specified-subnet": "v4/v6",
        "networking.alibaba.com/ip-pool": "10.0.0.1/2001:db8::1, 10.0.0.2/2001:db8::2",
        "networking.alibaba.com/mac-pool": "02:12:34:00:00:01,02:12:34:00:00:0B",
    });
    let configured = json!({"network": "configured", "subnet": "s1"});
    assert_eq!(wanted(configured.clone(), ""), json!({"network": "configured", "subnets": ["s1"]}));

    let mut annotated = configured.clone();
    annotated["runtimeConfig"] = json!({"io.kubernetes.cri.pod-annotations": annotations});
    assert_eq!(
        wanted(annotated.clone(), "K8S_POD_NAME=db-1"),
        json!({"network": "annotated", "subnets": ["v4", "v6"], "addresses": ["10.0.0.2", "2001:db8::2"], "mac": "02:12:34:00:00:0b"})
    );

    let mut requested = annotated.clone();
    requested["network"] = json!("configured");
    let arguments = "K8S_POD_NAME=db-1;IP=10.0.0.9,2001:db8::9;NETWORK=n;SUBNET=s;MAC=02:00:00:00:00:09";
    assert_eq!(
        wanted(requested.clone(), arguments),
        json!({"network": "n", "subnets": ["s"], "addresses": ["10.0.0.9", "2001:db8::9"], "mac": "02:00:00:00:00:09"})
    );

    let mut conventional = requested.clone();
    conventional["args"] = json!({"cni": {"ips": ["10.0.0.6"], "mac": "02:12:34:00:00:06"}});
    let got = wanted(conventional.clone(), arguments);
    assert_eq!((&got["addresses"], &got["mac"]), (&json!(["10.0.0.6"]), &json!("02:12:34:00:00:06")));

    assert_eq!(got["extra_prefixes"], Value::Null);
    conventional["args"]["cni"]["extraPrefixes"] = json!(["fd00:9::/64", "10.9.0.0/16"]);
    let got = wanted(conventional.clone(), arguments);
    assert_eq!(got["extra_prefixes"], json!(["10.9.0.0/16", "fd00:9::/64"]));

    assert_eq!(got["labels"], Value::Null);
    conventional["args"]["cni"]["labels"] =
        json!([{"key": "app", "value": "web"}, {"key": "empty", "value": ""}]);
    let got = wanted(conventional.clone(), arguments);
    assert_eq!(got["labels"], json!({"app": "web", "empty": ""}));

    let mut capable = conventional.clone();
    capable["runtimeConfig"]["ips"] = json!(["10.0.0.5/24", "2001:db8::5"]);
    capable["runtimeConfig"]["mac"] = json!("02:12:34:00:00:05");
    let got = wanted(capable, arguments);
    assert_eq!(
        (&got["addresses"], &got["mac"]),
        (&json!(["10.0.0.5", "2001:db8::5"]), &json!("02:12:34:00:00:05"))
    );
}

#[test]
fn bandwidth_comes_from_capability_or_annotations() {
    let agent = Agent::start(Act::Answer(attachment()));
    let wanted = |runtime: Value| {
        let configuration = agent.configuration("1.0.0", json!({"runtimeConfig": runtime}));
        run("ADD", &configuration, &[]).result();
        match agent.received().request.command {
            Command::Attach(attach) => serde_json::to_value(attach.wanted).unwrap()["bandwidth"].clone(),
            other => panic!("{other:?}"),
        }
    };
    let annotations =
        json!({"kubernetes.io/ingress-bandwidth": "10M", "kubernetes.io/egress-bandwidth": "1Gi"});
    let annotated = json!({"io.kubernetes.cri.pod-annotations": annotations});
    assert_eq!(
        wanted(annotated.clone()),
        json!({"ingress": {"rate": 10_000_000}, "egress": {"rate": 1 << 30}})
    );
    let mut both = annotated;
    both["bandwidth"] = json!({"ingressRate": 5_000_000, "ingressBurst": 80_000, "egressRate": 0});
    assert_eq!(wanted(both.clone()), json!({"ingress": {"rate": 5_000_000, "burst": 80_000}}));
    both["bandwidth"] = json!({});
    assert_eq!(wanted(both)["ingress"], json!({"rate": 10_000_000}));
    // Runtimes write this value if no burst was chosen.
    for burst in [i32::MAX as u64, u64::from(u32::MAX)] {
        let capable =
            json!({"bandwidth": {"egressRate": 2_000_000, "egressBurst": burst, "shapedSubnets": []}});
        assert_eq!(wanted(capable), json!({"egress": {"rate": 2_000_000}}));
    }
}

#[test]
fn invalid_names_are_refused_with_their_field() {
    let agent = Agent::start(Act::Answer(attachment()));
    let with = |more: Value, arguments: &str| {
        run("ADD", &agent.configuration("1.0.0", more), &[("CNI_ARGS", arguments)])
    };
    let pool = |pool: &str| json!({"runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"networking.alibaba.com/ip-pool": pool}}});
    with(json!({}), "IP=ten").failure(4, &["CNI_ARGS: IP", "`ten`"]);
    with(json!({}), "IP=10.0.0.1,10.0.0.2")
        .failure(4, &["CNI_ARGS: IP", "10.0.0.1, 10.0.0.2", "one address per family"]);
    with(json!({}), "MAC=01:00:5e:00:00:01")
        .failure(4, &["CNI_ARGS: MAC", "the MAC address of one interface"]);
    with(json!({}), "MAC=02:12:34:0:0:1").failure(4, &["02:12:34:00:00:01"]);
    with(json!({}), "IPP=10.0.0.1").failure(4, &["CNI_ARGS", "IPP"]);
    with(json!({}), "IP").failure(4, &["CNI_ARGS", "`IP`"]);
    with(json!({"runtimeConfig": {"ips": ["x"]}}), "").failure(7, &["runtimeConfig.ips", "`x`"]);
    with(json!({"runtimeConfig": {"mac": 7}}), "").failure(7, &["runtimeConfig.mac", "`7`"]);
    with(json!({"args": {"cni": {"ips": ["x"]}}}), "").failure(7, &["args.cni.ips", "`x`"]);
    let prefixes = |prefixes: Value| with(json!({"args": {"cni": {"extraPrefixes": prefixes}}}), "");
    prefixes(json!("10.9.0.0/16")).failure(7, &["args.cni.extraPrefixes", "is not a list"]);
    prefixes(json!(["10.9.0.0/16", "x"])).failure(7, &["args.cni.extraPrefixes[1]", "`x` is not a prefix"]);
    prefixes(json!(["10.9.0.1/16"])).failure(7, &["args.cni.extraPrefixes[0]", "write 10.9.0.0/16"]);
    let labels = |labels: Value| with(json!({"args": {"cni": {"labels": labels}}}), "");
    labels(json!({"app": "web"})).failure(7, &["args.cni.labels", "is not a list of labels"]);
    labels(json!([{"key": "app"}])).failure(7, &["args.cni.labels[0]", "is not a label"]);
    let app = json!({"key": "app", "value": "web"});
    labels(json!([app, app])).failure(7, &["args.cni.labels[1]", "app is there twice"]);
    labels(json!([{"key": "networking.alibaba.com/pod", "value": "x"}]))
        .failure(7, &["args.cni.labels[0]", "the pod's name"]);
    labels(json!(vec![app; 65])).failure(7, &["args.cni.labels", "more than 64"]);
    with(json!({"network": 7}), "").failure(7, &["network", "7 is not a text"]);
    with(json!({"subnet": "a/b/c"}), "").failure(7, &["subnet", "a/b/c"]);
    with(pool("10.0.0.1,10.0.0.2"), "K8S_POD_NAME=web").failure(7, &["ip-pool", "no ordinal"]);
    with(pool("10.0.0.1,10.0.0.2"), "K8S_POD_NAME=db-2").failure(7, &["ip-pool", "2 entries", "ordinal 2"]);
    agent.was_not_contacted();
}

#[test]
fn del_passes_on_the_namespace_if_there_is_one() {
    let agent = Agent::start(Act::Answer(done()));
    let file = tempfile::NamedTempFile::new().unwrap();
    let leftover = file.path().to_str().unwrap();
    for (netns, descriptors) in [(NETNS, 1), ("", 0), ("/run/netns/is-not-there", 0), (leftover, 0)] {
        run("DEL", &agent.configuration("1.0.0", json!({})), &[("CNI_NETNS", netns)]).silence();
        let received = agent.received();
        assert_eq!(received.descriptors.len(), descriptors, "{netns}");
        let Command::Detach(detach) = received.request.command else { panic!("{}", received.line) };
        assert_eq!(
            (detach.interface.container_id.as_str(), detach.interface.ifname.as_str()),
            ("c1", "eth0")
        );
        assert_eq!(detach.conf_name, "pods");
    }
    // The plugin's own namespace is never used, and DEL works without it.
    run("DEL", &agent.configuration("1.0.0", json!({})), &[("CNI_NETNS_OVERRIDE", "")]).silence();
    assert_eq!(agent.received().descriptors.len(), 0);
}

#[test]
fn del_and_gc_work_with_a_configuration_that_add_refuses() {
    let agent = Agent::start(Act::Answer(done()));
    let more = json!({"netwrk": "x", "ipam": {"type": "host-local"}, "prevResult": 7, "runtimeConfig": 7, "cni.dev/valid-attachments": []});
    let configuration = agent.configuration("1.1.0", more);
    run("DEL", &configuration, &[("CNI_ARGS", "unreadable")]).silence();
    run("GC", &configuration, &[("CNI_ARGS", "unreadable")]).silence();
}

#[test]
fn check_sends_the_addresses_of_add() {
    let agent = Agent::start(Act::Answer(attachment()));
    for version in ["0.4.0", "1.0.0", "1.1.0"] {
        let before = json!({"interfaces": [{"name": "lo", "sandbox": NETNS}], "ips": [{"address": "127.0.0.1/8", "interface": 0}]});
        let result = run("ADD", &agent.configuration(version, json!({"prevResult": before})), &[]).result();

        let checking = Agent::start(Act::Answer(done()));
        run("CHECK", &checking.configuration(version, json!({"prevResult": result})), &[]).silence();
        let received = checking.received();
        assert_eq!(received.descriptors.len(), 1);
        let Command::Check(check) = received.request.command else { panic!("{}", received.line) };
        let addresses: Vec<String> = check.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(
            addresses,
            ["10.14.0.7/32", "2001:db8:14::7/128"],
            "not the attachments of \
            other networks"
        );
    }
}

#[test]
fn check_without_the_result_of_add_is_refused() {
    let agent = Agent::start(Act::Answer(done()));
    let with = |more: Value| run("CHECK", &agent.configuration("1.0.0", more), &[]);
    with(json!({})).failure(7, &["prevResult", "missing"]);
    with(json!({"prevResult": {}})).failure(7, &["prevResult.interfaces", "no eth0"]);
    let interfaces = json!([{"name": "eth0", "sandbox": NETNS}]);
    with(json!({"prevResult": {"interfaces": interfaces}})).failure(7, &["prevResult.ips", "eth0"]);
    let ips = json!([{"address": "10.0.0.1", "interface": 0}]);
    with(json!({"prevResult": {"interfaces": interfaces, "ips": ips}}))
        .failure(7, &["prevResult.ips[0].address", "`10.0.0.1`"]);
    run("CHECK", &agent.configuration("1.0.0", json!({})), &[("CNI_NETNS", "")]).failure(4, &["CNI_NETNS"]);
    agent.was_not_contacted();
}

#[test]
fn gc_sends_the_attachments_to_keep() {
    let agent = Agent::start(Act::Answer(done()));
    let valid = json!([{"containerID": "c1", "ifname": "eth0"}, {"containerID": "c2", "ifname": "eth1"}]);
    for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
        let variables = [("CNI_COMMAND".to_owned(), "GC".to_owned())].into();
        plugin(&variables, agent.configuration("1.1.0", json!({key: valid})).to_string().as_bytes())
            .silence();
        let received = agent.received();
        let Command::Gc(gc) = received.request.command else { panic!("{}", received.line) };
        assert_eq!(gc.conf_name, "pods");
        let names: Vec<String> =
            gc.valid.iter().map(|one| format!("{} {}", one.container_id, one.ifname)).collect();
        assert_eq!(names, ["c1 eth0", "c2 eth1"]);
    }
    // Go's empty list is null: no attachment is valid.
    let mut configuration = agent.configuration("1.1.0", json!({}));
    configuration["cni.dev/valid-attachments"] = Value::Null;
    run("GC", &configuration, &[]).silence();
    let Command::Gc(gc) = agent.received().request.command else { panic!("gc") };
    assert_eq!(gc.valid, []);
}

#[test]
fn gc_without_valid_attachments_deletes_nothing() {
    let agent = Agent::start(Act::Answer(done()));
    let with = |more: Value| run("GC", &agent.configuration("1.1.0", more), &[]);
    with(json!({})).failure(7, &["cni.dev/valid-attachments", "missing"]);
    with(json!({"cni.dev/valid-attachments": {}})).failure(7, &["cni.dev/valid-attachments", "list"]);
    with(json!({"cni.dev/valid-attachments": [{"containerID": "c1"}]}))
        .failure(7, &["cni.dev/valid-attachments[0].ifname"]);
    agent.was_not_contacted();
}

#[test]
fn large_gc_is_sent_completely() {
    let agent = Agent::start(Act::Answer(done()));
    let valid: Vec<Value> =
        (0..20_000).map(|number| json!({"containerID": format!("{number:064}"), "ifname": "eth0"})).collect();
    run("GC", &agent.configuration("1.1.0", json!({"cni.dev/valid-attachments": valid})), &[]).silence();
    let Command::Gc(gc) = agent.received().request.command else { panic!("gc") };
    assert_eq!(gc.valid.len(), 20_000);
    assert_eq!(gc.valid[19_999].container_id, format!("{:064}", 19_999));
}

#[test]
fn status_passes_on_the_agents_answer() {
    let agent = Agent::start(Act::Answer(done()));
    let variables = [("CNI_COMMAND".to_owned(), "STATUS".to_owned())].into();
    let configuration = agent.configuration("1.1.0", json!({}));
    plugin(&variables, configuration.to_string().as_bytes()).silence();
    assert_eq!(agent.received().request.command, Command::Status);

    for code in [50, 51] {
        let answer = json!({"error": {"code": code, "message": "no session is established", "details": "10.0.0.1: Active"}});
        let agent = Agent::start(Act::Answer(answer));
        let error = run("STATUS", &agent.configuration("1.1.0", json!({})), &[])
            .failure(code, &["no session is established"]);
        assert_eq!(error["details"], "10.0.0.1: Active");
    }
}

#[test]
fn gc_and_status_need_1_1_0() {
    let agent = Agent::start(Act::Answer(done()));
    for command in ["GC", "STATUS"] {
        for version in ["0.4.0", "1.0.0"] {
            let error = run(command, &agent.configuration(version, json!({})), &[])
                .failure(1, &[command, version, "1.1.0"]);
            assert_eq!(error["cniVersion"], version);
        }
    }
    agent.was_not_contacted();
}

#[test]
fn version_needs_nothing_but_its_name() {
    let versions = json!(["0.4.0", "1.0.0", "1.1.0"]);
    let variables = [("CNI_COMMAND".to_owned(), "VERSION".to_owned())].into();
    for (stdin, version) in [("{\"cniVersion\":\"1.0.0\"}", "1.0.0"), ("", "1.1.0"), ("no json", "1.1.0")] {
        let result = plugin(&variables, stdin.as_bytes()).result();
        assert_eq!(result, json!({"cniVersion": version, "supportedVersions": versions}));
    }
}

#[test]
fn run_by_hand_prints_name_and_versions() {
    let mut variables = environment("");
    variables.remove("CNI_COMMAND");
    let output = plugin(&variables, b"");
    output.failure(4, &["CNI_COMMAND is missing"]);
    assert!(output.stderr.contains("trunkline-cni 0.") && output.stderr.contains("0.4.0, 1.0.0, 1.1.0"));
}
