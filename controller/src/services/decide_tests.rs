//! The decision for each state of a Service and its claims.

use serde_json::{Value, json};
use trunkline_api::service::{PortKey, Protocol};

use super::super::object::Service;
use super::*;
use crate::cluster::Interner;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| ip(text)).collect()
}

/// A Service of Trunkline's class, with these changes.
pub(super) fn row(annotations: Value, spec: Value, ingress: &[&str]) -> ServiceRow {
    let mut all = json!({
        "type": "LoadBalancer", "loadBalancerClass": "trunkline.io/load-balancer", "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack", "ports": [{"port": 80}],
    });
    for (field, value) in spec.as_object().unwrap() {
        all[field] = value.clone();
    }
    let ingress: Vec<Value> = ingress.iter().map(|ip| json!({"ip": ip, "ipMode": "VIP"})).collect();
    let service: Service = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u", "resourceVersion": "7", "annotations": annotations},
        "spec": all, "status": {"loadBalancer": {"ingress": ingress}},
    }))
    .unwrap();
    ServiceRow::of(&service, &mut Interner::default()).unwrap()
}

fn claim(address: &str) -> HeldClaim<'static> {
    HeldClaim {
        address: ip(address),
        own: true,
        pool: Some("p"),
        sharing_key: "",
        sole: true,
        sharing: None,
        yields: false,
    }
}

fn key() -> Key {
    Key::new("default", "web")
}

fn decided(service: Option<&ServiceRow>, claims: &[HeldClaim<'_>]) -> ServiceDecision {
    let classes = ClassConfig { class: "trunkline.io/load-balancer".to_owned(), default: false };
    decide(&key(), service, claims, &classes)
}

#[track_caller]
fn served(service: &ServiceRow, claims: &[HeldClaim<'_>]) -> Serve {
    match decided(Some(service), claims) {
        ServiceDecision::Serve(serve) => *serve,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_class_is_ours_or_not() {
    for (class, default, ours) in [
        (Some("trunkline.io/load-balancer"), false, true),
        (Some("metallb"), true, false),
        (Some(""), true, true),
        (None, true, true),
        (None, false, false),
    ] {
        let classes = ClassConfig { class: "trunkline.io/load-balancer".to_owned(), default };
        assert_eq!(classes.is_ours(class), ours, "{class:?} {default}");
    }
}

#[test]
fn services_that_get_no_address_leave_their_claims() {
    let foreign = json!({"loadBalancerClass": "other"});
    let both = ["10.0.0.1", "10.9.9.9"];
    let leave = ips(&["10.0.0.1"]);
    let release = |publish: Option<&[&str]>| ServiceDecision::Release {
        publish: publish.map(ips),
        leave: leave.clone(),
    };
    let none = json!({});
    assert_eq!(decided(None, &[claim("10.0.0.1")]), release(None));
    assert_eq!(decided(None, &[]), ServiceDecision::Nothing);
    // A foreign class without a claim: nothing at all.
    let service = row(none.clone(), foreign.clone(), &both);
    assert_eq!(decided(Some(&service), &[]), ServiceDecision::Nothing);
    assert_eq!(decided(Some(&service), &[claim("10.0.0.1")]), release(Some(&["10.9.9.9"])));
    let service = row(none.clone(), foreign, &["10.9.9.9"]);
    assert_eq!(decided(Some(&service), &[claim("10.0.0.1")]), release(None), "not published yet");
    let mut service = row(none.clone(), json!({}), &both);
    service.load_balancer = false;
    assert_eq!(decided(Some(&service), &[claim("10.0.0.1")]), release(Some(&["10.9.9.9"])));
    let mut service = row(none, json!({}), &both);
    service.deleting = true;
    assert_eq!(decided(Some(&service), &[claim("10.0.0.1")]), ServiceDecision::Nothing);
    let earlier = HeldClaim { own: false, ..claim("10.0.0.2") };
    let decision = decided(Some(&service), &[claim("10.0.0.1"), earlier]);
    assert_eq!(decision, ServiceDecision::LeaveEarlier(ips(&["10.0.0.2"])));
}

#[test]
fn claims_that_satisfy_the_request_are_kept() {
    let dual = json!({"ipFamilies": ["IPv6", "IPv4"], "ipFamilyPolicy": "PreferDualStack"});
    let other_pool = HeldClaim { pool: Some("q"), ..claim("10.0.0.1") };
    let keyed = HeldClaim { sharing_key: "k", ..claim("10.0.0.1") };
    let shared = HeldClaim { sole: false, ..keyed.clone() };
    let yielding = HeldClaim { yields: true, ..shared.clone() };
    let address = |text: &str| json!({"trunkline.io/addresses": text});
    let (none, one) = (json!({}), json!({}));
    // Case, annotations, spec, status, claims, kept, missing, requested, preferred, fallback
    type Case<'a> = (
        &'a str,
        Value,
        Value,
        &'a [&'a str],
        Vec<HeldClaim<'a>>,
        &'a [&'a str],
        &'a [IpVersion],
        &'a [&'a str],
        &'a [&'a str],
        &'a [&'a str],
    );
    use IpVersion::{V4, V6};
    let cases: Vec<Case<'_>> = vec![
        ("new", none.clone(), one.clone(), &[], vec![], &[], &[V4], &[], &[], &[]),
        (
            "has it",
            none.clone(),
            one.clone(),
            &["10.0.0.1"],
            vec![claim("10.0.0.1")],
            &["10.0.0.1"],
            &[],
            &[],
            &[],
            &[],
        ),
        ("requested", address("10.0.0.5"), one.clone(), &[], vec![], &[], &[V4], &["10.0.0.5"], &[], &[]),
        (
            "another is requested",
            address("10.0.0.5"),
            one.clone(),
            &["10.0.0.1"],
            vec![claim("10.0.0.1")],
            &[],
            &[V4],
            &["10.0.0.5"],
            &[],
            &["10.0.0.1"],
        ),
        (
            "the request was given, the status not written",
            address("10.0.0.5"),
            one.clone(),
            &["10.0.0.1"],
            vec![claim("10.0.0.1"), claim("10.0.0.5")],
            &["10.0.0.5"],
            &[],
            &[],
            &[],
            &[],
        ),
        (
            "two claims: the published one",
            none.clone(),
            one.clone(),
            &["10.0.0.2"],
            vec![claim("10.0.0.1"), claim("10.0.0.2")],
            &["10.0.0.2"],
            &[],
            &[],
            &[],
            &[],
        ),
        (
            "another pool",
            json!({"metallb.io/address-pool": "p"}),
            one.clone(),
            &["10.0.0.1"],
            vec![other_pool],
            &[],
            &[V4],
            &[],
            &[],
            &["10.0.0.1"],
        ),
        (
            "status without a claim",
            none.clone(),
            one.clone(),
            &["10.0.0.3"],
            vec![],
            &[],
            &[V4],
            &[],
            &["10.0.0.3"],
            &[],
        ),
        (
            "dual stack, one is missing",
            none.clone(),
            dual.clone(),
            &["10.0.0.1"],
            vec![claim("10.0.0.1")],
            &["10.0.0.1"],
            &[V6],
            &[],
            &[],
            &[],
        ),
        (
            "a family less",
            none.clone(),
            one.clone(),
            &["10.0.0.1", "fd00::1"],
            vec![claim("10.0.0.1"), claim("fd00::1")],
            &["10.0.0.1"],
            &[],
            &[],
            &[],
            &[],
        ),
        (
            "shares under another key",
            none.clone(),
            one.clone(),
            &["10.0.0.1"],
            vec![shared.clone()],
            &[],
            &[V4],
            &[],
            &[],
            &["10.0.0.1"],
        ),
        (
            "yields",
            json!({"trunkline.io/sharing-key": "k"}),
            one.clone(),
            &["10.0.0.1"],
            vec![yielding],
            &[],
            &[V4],
            &[],
            &[],
            &[],
        ),
        (
            "shares",
            json!({"trunkline.io/sharing-key": "k"}),
            one.clone(),
            &["10.0.0.1"],
            vec![shared],
            &["10.0.0.1"],
            &[],
            &[],
            &[],
            &[],
        ),
    ];
    for (case, annotations, spec, ingress, claims, kept, missing, requested, preferred, fallback) in cases {
        let serve = served(&row(annotations, spec, ingress), &claims);
        assert_eq!(
            (serve.kept, serve.missing, serve.requested, serve.preferred, serve.fallback),
            (ips(kept), missing.to_vec(), ips(requested), ips(preferred), ips(fallback)),
            "{case}"
        );
        assert_eq!((serve.rekey, serve.fault, serve.faulty), (vec![], None, false), "{case}");
    }
    // A Service that has its address alone changes the key of the claim.
    let serve = served(&row(none, one, &["10.0.0.1"]), &[keyed]);
    assert_eq!((serve.kept, serve.rekey), (ips(&["10.0.0.1"]), ips(&["10.0.0.1"])));
}

#[test]
fn a_faulty_request_never_costs_the_address() {
    for (annotations, words) in [
        (
            json!({"trunkline.io/addresses": "web"}),
            "metadata.annotations[trunkline.io/addresses]: `web` is not an IP address",
        ),
        (
            json!({"trunkline.io/addresses": "fd00::5"}),
            "fd00::5 cannot be given to default/web: the Service has only IPv4 (spec.ipFamilies): set ipFamilyPolicy: \
             PreferDualStack, or leave the address out",
        ),
    ] {
        let service = row(annotations.clone(), json!({}), &["10.0.0.1"]);
        let serve = served(&service, &[claim("10.0.0.1")]);
        assert_eq!(serve.kept, ips(&["10.0.0.1"]));
        let outcome = serve.resolve(&service, &[], None, None);
        assert_eq!((outcome.addresses, outcome.leave), (ips(&["10.0.0.1"]), vec![]));
        let text = outcome.fault.unwrap().to_string();
        assert!(text.contains(words), "{text}");
        let serve = served(&row(annotations, json!({}), &[]), &[]);
        assert!(serve.faulty && serve.requested.is_empty(), "no address is allocated: {serve:?}");
    }
}

#[test]
fn the_outcome_keeps_what_was_published() {
    let dual = |policy: &str, ingress: &[&str]| {
        row(json!({}), json!({"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": policy}), ingress)
    };
    let refused = || {
        let (service, version) = (key(), IpVersion::V6);
        Some(AllocateError::Exhausted { service, version, usage: String::new() })
    };
    let v4 = claim("10.0.0.1");
    // Case, Service, claims, chosen, refused; addresses, claims to leave
    for (case, service, claims, chosen, refused, addresses, leave) in [
        (
            "both",
            dual("RequireDualStack", &[]),
            vec![],
            &["10.0.0.1", "fd00::1"][..],
            None,
            &["10.0.0.1", "fd00::1"][..],
            &[][..],
        ),
        (
            "a part is not enough",
            dual("RequireDualStack", &[]),
            vec![v4.clone()],
            &[],
            refused(),
            &[],
            &["10.0.0.1"],
        ),
        (
            "a part was published",
            dual("RequireDualStack", &["10.0.0.1"]),
            vec![v4.clone()],
            &[],
            refused(),
            &["10.0.0.1"],
            &[],
        ),
        (
            "a part is enough",
            dual("PreferDualStack", &[]),
            vec![v4.clone()],
            &[],
            refused(),
            &["10.0.0.1"],
            &[],
        ),
        (
            "impossible request",
            row(json!({"trunkline.io/addresses": "10.0.0.9"}), json!({}), &["10.0.0.1"]),
            vec![v4.clone()],
            &[],
            refused(),
            &["10.0.0.1"],
            &[],
        ),
        (
            "granted request",
            row(json!({"trunkline.io/addresses": "10.0.0.9"}), json!({}), &["10.0.0.1"]),
            vec![v4.clone()],
            &["10.0.0.9"],
            None,
            &["10.0.0.9"],
            &["10.0.0.1"],
        ),
    ] {
        let outcome = served(&service, &claims).resolve(&service, &ips(chosen), refused, None);
        assert_eq!((outcome.addresses, outcome.leave), (ips(addresses), ips(leave)), "{case}");
    }
}

#[test]
fn a_changed_port_or_policy_is_reported() {
    let service = row(json!({"trunkline.io/sharing-key": "k"}), json!({}), &["10.0.0.1"]);
    let port = PortKey { protocol: Protocol::Tcp, port: 80 };
    let fault = SharingFault::Port { by: Key::new("shop", "api"), port };
    let shared = HeldClaim { sharing_key: "k", sole: false, sharing: Some(fault), ..claim("10.0.0.1") };
    let outcome = served(&service, std::slice::from_ref(&shared)).resolve(&service, &[], None, None);
    assert_eq!(outcome.addresses, ips(&["10.0.0.1"]), "the older Service keeps it");
    let fault = outcome.fault.unwrap();
    let text = "10.0.0.1 of default/web: TCP port 80 is used by shop/api, which shares it: use another port";
    assert_eq!((fault.to_string().as_str(), fault.reason()), (text, "PortTaken"));
    let yields = HeldClaim { yields: true, ..shared };
    let serve = served(&service, &[yields]);
    let outcome = serve.resolve(&service, &ips(&["10.0.0.2"]), None, None);
    assert_eq!((outcome.addresses, outcome.leave), (ips(&["10.0.0.2"]), ips(&["10.0.0.1"])));
}
