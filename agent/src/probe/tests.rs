//! Rounds with a simulated fabric: a function decides which probes return.

use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;
use trunkline_api::control::{ProbeFaultKind, ProbeStatus};
use trunkline_bgp::types::Family;

use super::packet::Kind;
use super::schedule::{CheckName, Probe, ProbeSchedule, Settings};
use crate::plan::{ProbePlan, ProbedRouter};

const FIRST: &str = "192.0.2.1";
const SECOND: &str = "198.51.100.1";

struct Fabric {
    schedule: ProbeSchedule,
    plan: ProbePlan,
    pods: Vec<IpAddr>,
    now: Instant,
    random: u64,
}

impl Fabric {
    fn new(failover: bool, targets: &[&str]) -> Fabric {
        let settings = Settings { enabled: true, interval: Duration::from_secs(5), size: None, failover };
        let router = |ifindex, gateway: &str, own: &str| ProbedRouter {
            peer: gateway.parse().unwrap(),
            family: Family::Ipv4Unicast,
            gateway: gateway.parse().unwrap(),
            ifindex,
            link: format!("eth{ifindex}"),
            own: Some(own.parse().unwrap()),
        };
        Fabric {
            schedule: ProbeSchedule::new(settings),
            plan: ProbePlan {
                routers: [router(1, FIRST, "192.0.2.2"), router(2, SECOND, "198.51.100.2")].into(),
                targets: targets.iter().map(|target| target.parse().unwrap()).collect(),
                mtu: 1500,
            },
            pods: vec!["10.1.0.5".parse().unwrap(), "10.1.0.6".parse().unwrap()],
            now: Instant::now(),
            random: 1,
        }
    }

    /// Runs rounds in which a probe returns if `passes` accepts it. Returns the events and the
    /// packets sent.
    fn run(&mut self, schedule: usize, passes: impl Fn(&Probe) -> bool) -> (Vec<String>, Vec<Probe>) {
        let (mut texts, mut sent) = (Vec::new(), Vec::new());
        for _ in 0..schedule {
            let random = &mut self.random;
            let probes = self.schedule.plan(&self.plan, &self.pods, self.now, || {
                *random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *random
            });
            let results: Vec<(Probe, bool)> = probes.iter().map(|probe| (*probe, passes(probe))).collect();
            texts.extend(self.schedule.handle(&results, self.now).into_iter().map(|change| change.text));
            sent.extend(probes);
            self.now += self.schedule.pause();
        }
        (texts, sent)
    }

    fn status(&self) -> ProbeStatus {
        self.schedule.status(self.now)
    }

    fn faults(&self, peer: &str) -> Vec<ProbeFaultKind> {
        let of_peer = self.status().routers.into_iter().filter(|router| router.peer == peer);
        of_peer.flat_map(|router| router.faults.into_iter().map(|fault| fault.kind)).collect()
    }

    fn left_out(&self) -> Vec<String> {
        self.schedule.left_out().iter().map(ToString::to_string).collect()
    }
}

fn by(probe: &Probe, peer: &str) -> bool {
    probe.router.0.to_string() == peer
}

#[test]
fn an_mtu_hole_is_reported_within_three_rounds_and_cleared() {
    let mut fabric = Fabric::new(false, &[]);
    assert!(fabric.run(5, |_| true).0.is_empty());
    let hole = |probe: &Probe| !by(probe, SECOND) || probe.length <= 1400;
    assert!(fabric.run(2, hole).0.is_empty(), "two losses in a row are no fault");
    let (texts, _) = fabric.run(1, hole);
    assert_eq!(fabric.faults(SECOND), [ProbeFaultKind::Size]);
    assert!(texts.len() == 1 && texts[0].contains("loses packets of 1500 octets"), "{texts:?}");
    assert!(fabric.faults(FIRST).is_empty() && fabric.left_out().is_empty());
    let (texts, _) = fabric.run(3, |_| true);
    assert!(texts.len() == 1 && texts[0].contains("the check `size` passes again"), "{texts:?}");
}

#[test]
fn losses_speed_the_rounds_up_and_the_rate_has_a_limit() {
    let mut fabric = Fabric::new(false, &["203.0.113.9"]);
    fabric.run(5, |_| true);
    assert_eq!(fabric.schedule.pause(), Duration::from_secs(5));
    fabric.run(1, |_| false);
    assert_eq!(fabric.schedule.pause(), Duration::from_secs(1));
    // Even with many peers on one link, the agent sends at most ten packets per second.
    let router = fabric.plan.routers.first().unwrap().clone();
    for number in 0..50 {
        let peer = IpAddr::from([192, 0, 2, 100 + number]);
        fabric
            .plan
            .routers
            .insert(ProbedRouter { peer: peer.to_string().parse().unwrap(), ..router.clone() });
    }
    let (_, sent) = fabric.run(1, |_| true);
    let on_first = sent.iter().filter(|probe| probe.ifindex == 1).count() as u32;
    assert!(on_first > 300 && fabric.schedule.pause() >= Duration::from_secs(1) * on_first / 10);
}

#[test]
fn a_router_without_the_pods_routes_is_named() {
    let mut fabric = Fabric::new(true, &["203.0.113.9"]);
    fabric.run(5, |_| true);
    let denies = |probe: &Probe| {
        let to_pod =
            probe.destination.to_string().starts_with("10.1.") && matches!(probe.kind, Kind::Loop { .. });
        !by(probe, FIRST) || !to_pod
    };
    fabric.run(3, denies);
    assert_eq!(
        (fabric.faults(FIRST), fabric.left_out()),
        (vec![ProbeFaultKind::ToPods], vec![FIRST.to_owned()])
    );
    fabric.run(3, |probe| denies(probe) && by(probe, FIRST));
    assert_eq!(fabric.faults(SECOND), [ProbeFaultKind::Silent]);
    assert!(fabric.left_out().is_empty(), "no router is excluded, because each has a fault");
}

#[test]
fn a_fault_from_the_start_is_detected_through_another_router() {
    let mut fabric = Fabric::new(false, &[]);
    let one_way = |probe: &Probe| by(probe, FIRST);
    fabric.run(10, one_way);
    assert_eq!(fabric.faults(SECOND), [ProbeFaultKind::Silent]);
    // A network that returns no probes at all has no fault.
    let mut fabric = Fabric::new(true, &[]);
    let (texts, _) = fabric.run(20, |probe| matches!(probe.kind, Kind::Echo));
    assert!(texts.is_empty() && fabric.left_out().is_empty(), "{texts:?}");
}

#[test]
fn losses_do_not_count_before_routes_are_installed() {
    let mut fabric = Fabric::new(false, &[]);
    let (_, sent) = fabric.run(2, |_| true);
    assert!(sent.iter().all(|probe| matches!(probe.kind, Kind::Echo)), "pods are new: {sent:?}");
    let (_, sent) = fabric.run(2, |_| true);
    assert!(sent.iter().any(|probe| probe.check == CheckName::ToPods));
    // The first rounds send no probes to a new pod either.
    let late: IpAddr = "10.1.0.99".parse().unwrap();
    fabric.pods = vec![late];
    let (_, sent) = fabric.run(2, |_| true);
    assert!(sent.iter().all(|probe| probe.destination != late));
}

#[test]
fn the_pod_and_the_port_stay_while_a_check_is_in_doubt() {
    let mut fabric = Fabric::new(false, &[]);
    fabric.run(5, |_| true);
    let subjects = |sent: &[Probe]| -> Vec<(IpAddr, Kind)> {
        let to_pods = sent.iter().filter(|probe| probe.check == CheckName::ToPods && by(probe, FIRST));
        to_pods.map(|probe| (probe.destination, probe.kind)).collect()
    };
    let (_, good) = fabric.run(10, |_| true);
    let mut different = subjects(&good);
    different.dedup();
    assert!(different.len() > 5, "{different:?}");
    let (_, bad) = fabric.run(5, |probe| probe.check != CheckName::ToPods);
    let mut same = subjects(&bad);
    same.dedup();
    assert_eq!(same.len(), 1, "{same:?}");
}

#[test]
fn a_target_that_no_router_reaches_is_no_routers_fault() {
    let mut fabric = Fabric::new(false, &["203.0.113.9", "203.0.113.10"]);
    fabric.run(5, |_| true);
    let down = |probe: &Probe| !matches!(probe.check, CheckName::Target | CheckName::TargetSize);
    let (texts, _) = fabric.run(10, down);
    assert!(texts.is_empty(), "{texts:?}");
    fabric.run(5, |_| true);
    fabric.run(5, |probe| down(probe) || by(probe, FIRST));
    assert_eq!(fabric.faults(SECOND), [ProbeFaultKind::Target]);
    // One of the two targets answers, which is enough.
    fabric.run(5, |probe| probe.destination.to_string() != "203.0.113.9");
    assert!(fabric.faults(SECOND).is_empty());
}
