//! The writes for a Service, and their order.

use std::sync::Mutex;

use serde_json::{Value, json};

use super::super::fake::{FakeLeader, Store, key};
use super::*;

/// A leader with one pool; each Service is a name, annotations, spec and the addresses of its
/// status; each claim an address, a sharing key, and the Services.
fn leader(services: &[(&str, Value, Value, &[&str])], claims: &[(&str, &str, &[&str])]) -> FakeLeader {
    let store = Arc::new(Mutex::new(Store::default()));
    {
        let mut store = store.lock().unwrap();
        for (number, (name, annotations, spec, ingress)) in services.iter().enumerate() {
            let mut all = json!({
                "type": "LoadBalancer", "loadBalancerClass": "trunkline.io/load-balancer",
                "ipFamilies": ["IPv4"], "ports": [{"port": 80 + number}],
            });
            for (field, value) in spec.as_object().unwrap() {
                all[field] = value.clone();
            }
            let points: Vec<Value> = ingress.iter().map(|ip| json!({"ip": ip, "ipMode": "VIP"})).collect();
            let status = json!({"loadBalancer": {"ingress": points}});
            store.put_service(name, number as u32, &json!({"annotations": annotations}), &all, status);
        }
        for (address, sharing_key, names) in claims {
            let name = crate::ipam::instance_name(address.parse().unwrap());
            let services: Vec<Value> = names
                .iter()
                .map(|uid| json!({"namespace": "default", "name": uid.split('-').next(), "uid": uid}))
                .collect();
            let claim = json!({
                "metadata": {"name": name, "uid": name, "resourceVersion": "1"},
                "spec": {"address": address, "pool": "p", "sharingKey": sharing_key, "services": services},
            });
            store.claims.insert(name.clone(), claim);
        }
    }
    let leader = FakeLeader::new(&store);
    leader.begin(&[("p", json!({"addresses": ["10.0.0.1-10.0.0.3", "fd00::1-fd00::3"]}))]);
    leader
}

/// The plan of a Service, each write as a few words.
fn planned(leader: &FakeLeader, name: &str) -> Vec<String> {
    let mut state = leader.context.shared.lock();
    let state = &mut *state;
    let plan = state.services.plan(&state.cluster, &key(name), Instant::now());
    let mut texts: Vec<String> = plan.writes.iter().map(text).collect();
    texts.extend(plan.fault.map(|fault| format!("fault {}", fault.reason())));
    texts.extend(plan.warnings.into_iter().map(|(warning, _)| format!("{warning:?}")));
    if plan.again {
        texts.push("again".to_owned());
    }
    texts.extend(plan.paused.map(|address| format!("paused {address}")));
    texts
}

fn text(write: &ServiceWrite) -> String {
    match write {
        ServiceWrite::Settle { address, .. } => format!("settle {address}"),
        ServiceWrite::CreateClaim { address, pool, sharing_key } => {
            format!("create {address} {pool} {sharing_key}")
        }
        ServiceWrite::JoinClaim { address } => format!("join {address}"),
        ServiceWrite::ChangeKey { address, sharing_key } => format!("key {address} {sharing_key}"),
        ServiceWrite::WriteStatus(status) => {
            let condition = match &status.condition {
                ConditionWrite::Keep => "",
                ConditionWrite::Remove => " remove",
                ConditionWrite::Set(condition) => &format!(" {}", condition.reason),
            };
            match &status.addresses {
                Some(addresses) => format!("status {addresses:?}{condition}"),
                None => format!("status{condition}"),
            }
        }
        ServiceWrite::LeaveClaim { address, .. } => format!("leave {address}"),
    }
}

#[tokio::test]
async fn claims_precede_the_status_and_outlive_it() {
    let none = || json!({});
    let foreign = || json!({"loadBalancerClass": "other"});
    let named = |text: &str| json!({"trunkline.io/addresses": text});
    let keyed = |key: &str| json!({"trunkline.io/sharing-key": key});
    let dual = || json!({"ipFamilies": ["IPv6", "IPv4"], "ipFamilyPolicy": "RequireDualStack"});
    type Services<'a> = Vec<(&'a str, Value, Value, &'a [&'a str])>;
    type Claims<'a> = Vec<(&'a str, &'a str, &'a [&'a str])>;
    let cases: Vec<(&str, Services<'_>, Claims<'_>, &[&str])> = vec![
        (
            "new",
            vec![("a", none(), none(), &[])],
            vec![],
            &["create 10.0.0.1 p ", "status [10.0.0.1] Allocated"],
        ),
        (
            "dual stack",
            vec![("a", none(), dual(), &[])],
            vec![],
            &["create fd00::1 p ", "create 10.0.0.1 p ", "status [fd00::1, 10.0.0.1] Allocated"],
        ),
        (
            "the leader ended after the claim",
            vec![("a", none(), none(), &[])],
            vec![("10.0.0.2", "", &["a-0"])],
            &["status [10.0.0.2] Allocated"],
        ),
        (
            "another address",
            vec![("a", named("10.0.0.3"), none(), &["10.0.0.2"])],
            vec![("10.0.0.2", "", &["a-0"])],
            &["create 10.0.0.3 p ", "status [10.0.0.3] Allocated", "leave 10.0.0.2"],
        ),
        (
            "impossible request",
            vec![("a", named("10.9.9.9"), none(), &["10.0.0.2"])],
            vec![("10.0.0.2", "", &["a-0"])],
            &["status NotInPool", "fault NotInPool"],
        ),
        (
            "impossible request, no address yet",
            vec![("a", named("10.9.9.9"), none(), &[])],
            vec![],
            &["status NotInPool", "fault NotInPool"],
        ),
        (
            "another program's address stays until there is one",
            vec![("a", named("10.9.9.9"), none(), &["192.0.2.1"])],
            vec![],
            &["status NotInPool", "fault NotInPool"],
        ),
        (
            "another program's address is replaced",
            vec![("a", none(), none(), &["192.0.2.1"])],
            vec![],
            &["create 10.0.0.1 p ", "status [10.0.0.1] Allocated", "AddressLost"],
        ),
        (
            "etcd was restored: the status has an address without a claim",
            vec![("a", none(), none(), &["10.0.0.3"])],
            vec![],
            &["create 10.0.0.3 p ", "status Allocated"],
        ),
        (
            "it joins",
            vec![("a", keyed("k"), none(), &[]), ("b", keyed("k"), none(), &[])],
            vec![("10.0.0.2", "k", &["b-1"])],
            &["join 10.0.0.2", "status [10.0.0.2] Allocated"],
        ),
        (
            "a new key",
            vec![("a", keyed("k"), none(), &["10.0.0.2"])],
            vec![("10.0.0.2", "", &["a-0"])],
            &["key 10.0.0.2 k", "status Allocated"],
        ),
        (
            "another class now",
            vec![("a", none(), foreign(), &["10.0.0.2"])],
            vec![("10.0.0.2", "", &["a-0"])],
            &["status []", "leave 10.0.0.2"],
        ),
        ("another class", vec![("a", none(), foreign(), &["10.0.0.2"])], vec![], &[]),
        ("gone", vec![], vec![("10.0.0.2", "", &["a-7"])], &["leave 10.0.0.2"]),
        (
            "created again",
            vec![("a", named("10.0.0.2"), none(), &[])],
            vec![("10.0.0.2", "", &["a-7"])],
            &["leave 10.0.0.2", "again"],
        ),
        (
            "different annotations of one meaning",
            vec![("a", json!({"trunkline.io/pool": "p", "metallb.io/address-pool": "q"}), none(), &[])],
            vec![],
            &["create 10.0.0.1 p ", "status [10.0.0.1] Allocated", "Annotations"],
        ),
        (
            "a part is enough",
            vec![(
                "a",
                none(),
                json!({"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "PreferDualStack"}),
                &[],
            )],
            vec![("fd00::1", "", &["x-1"]), ("fd00::2", "", &["x-1"]), ("fd00::3", "", &["x-1"])],
            &["create 10.0.0.1 p ", "status [10.0.0.1] Exhausted"],
        ),
        (
            "the younger one yields a port",
            vec![
                ("b", keyed("k"), none(), &["10.0.0.2"]),
                ("a", keyed("k"), json!({"ports": [{"port": 80}]}), &["10.0.0.2"]),
            ],
            vec![("10.0.0.2", "k", &["a-1", "b-0"])],
            &["create 10.0.0.3 p k", "status [10.0.0.3] Allocated", "leave 10.0.0.2"],
        ),
    ];
    for (case, services, claims, writes) in cases {
        assert_eq!(planned(&leader(&services, &claims), "a"), writes, "{case}");
    }
}

#[tokio::test]
async fn of_two_services_with_one_address_the_older_keeps_it() {
    let none = || json!({});
    let both: &[&str] = &["10.0.0.3"];
    let leader = leader(&[("old", none(), none(), both), ("a", none(), none(), both)], &[]);
    assert_eq!(planned(&leader, "a"), ["create 10.0.0.1 p ", "status [10.0.0.1] Allocated", "AddressLost"]);
    assert_eq!(planned(&leader, "old"), ["create 10.0.0.3 p ", "status Allocated"]);
}

#[tokio::test(start_paused = true)]
async fn a_requested_address_rests_after_its_release() {
    let named = || json!({"trunkline.io/addresses": "10.0.0.2"});
    let leader = leader(&[("a", named(), json!({}), &[])], &[("10.0.0.2", "", &["x-9"])]);
    assert_eq!(planned(&leader, "a"), ["status Taken", "fault Taken"]);
    leader.work("x").await;
    assert_eq!(planned(&leader, "a"), ["paused 10.0.0.2"]);
    tokio::time::advance(RELEASE_PAUSE).await;
    assert_eq!(planned(&leader, "a")[0], "create 10.0.0.2 p ");
}
