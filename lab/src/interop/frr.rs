//! FRR's bgpd, with zebra and bfdd.

use std::fmt::Write as _;
use std::net::IpAddr;

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use trunkline_bgp::types::ExtendedCommunity;

use super::router::{Path, Router, SECOND, Session, THEIRS, kill, numbers, write};
use crate::daemons::{start_frr, vtysh, vtysh_json};
use crate::host::Host;
use crate::shell::{cmd, run};

pub(super) struct Frr;

/// The line `router bgp AS` of the running configuration. Some commands need this line.
fn bgp_node(host: &Host) -> Result<String> {
    let config = host.run("vtysh", ["-c", "show running-config"])?;
    let line = config.lines().find(|line| line.starts_with("router bgp"));
    line.map(str::to_owned).context("no router bgp in the running configuration")
}

fn config(session: &Session) -> String {
    let hold = session.hold_time;
    let us = if session.unnumbered { "eth1".to_owned() } else { session.way.us().to_string() };
    let how = if session.unnumbered { " interface" } else { "" };
    let mut out = format!(
        "frr defaults datacenter\n!\nbfd\n profile FAST\n  receive-interval 50\n  transmit-interval 50\n !\n!\n\
         router bgp {}\n bgp router-id 10.0.0.1\n no bgp ebgp-requires-policy\n no bgp default ipv4-unicast\n \
         no bgp network import-check\n neighbor {us}{how} remote-as {}\n neighbor {us} timers {} {hold}\n \
         neighbor {us} timers connect 1\n",
        session.router_as,
        session.our_as,
        hold / 3
    );
    let mut line = |text: String| _ = writeln!(out, " {text}");
    if let Some(restart) = session.restart {
        line("bgp graceful-restart".to_owned());
        line(format!("bgp graceful-restart restart-time {restart}"));
        line("bgp graceful-restart preserve-fw-state".to_owned());
        if !session.notification {
            line("no bgp graceful-restart notification".to_owned());
        }
    }
    if let Some(stale) = session.long_lived {
        line(format!("bgp long-lived-graceful-restart stale-time {stale}"));
    }
    if let Some(password) = session.password {
        line(format!("neighbor {us} password {password}"));
    }
    if session.ttl_security {
        line(format!("neighbor {us} ttl-security hops 1"));
    } else if session.way == super::router::Way::TwoHops {
        line(format!("neighbor {us} ebgp-multihop 3"));
    }
    if session.passive {
        line(format!("neighbor {us} passive"));
    }
    if session.bfd {
        line(format!("neighbor {us} bfd"));
        line(format!("neighbor {us} bfd profile FAST"));
    }
    if let Some(role) = session.role {
        line(format!("neighbor {us} local-role {role}"));
    }
    if session.extended_next_hop {
        line(format!("neighbor {us} capability extended-nexthop"));
    }
    if session.second {
        line(format!("neighbor {SECOND} remote-as 65003"));
        line(format!("neighbor {SECOND} timers connect 1"));
    }
    for (place, family) in ["ipv4", "ipv6"].into_iter().enumerate() {
        if !session.families().any(|it| it == place) {
            continue;
        }
        line(format!("address-family {family} unicast"));
        line(format!(" network {}", THEIRS[place]));
        line(format!(" neighbor {us} activate"));
        session.max_prefixes.iter().for_each(|most| line(format!(" neighbor {us} maximum-prefix {most}")));
        if session.add_path {
            line(format!(" neighbor {us} addpath-tx-all-paths"));
        }
        if session.second && family == "ipv4" {
            line(format!(" neighbor {SECOND} activate"));
        }
        line("exit-address-family".to_owned());
    }
    out
}

fn family(prefix: &IpNet) -> &'static str {
    if prefix.addr().is_ipv4() { "ipv4" } else { "ipv6" }
}

impl Router for Frr {
    fn node(&self) -> &'static str {
        "frr"
    }

    fn name(&self) -> &'static str {
        "FRR"
    }

    fn version(&self) -> Result<String> {
        let text = run(&mut cmd("/usr/lib/frr/bgpd", ["--version"]))?;
        text.split_whitespace().nth(2).map(str::to_owned).context("bgpd --version prints nothing")
    }

    fn start(&self, host: &Host, session: &Session, again: bool) -> Result<()> {
        if again {
            // zebra has not ended, so the kernel still has bgpd's routes.
            host.sh("/usr/lib/frr/bgpd -d -A 127.0.0.1 --log file:/var/log/frr/bgpd.log")?;
            return host.run("vtysh", ["-b"]).map(drop);
        }
        kill(host, None)?;
        write(host, "/etc/frr/frr.conf", &config(session))?;
        host.sh("rm -f /var/log/frr/*.log")?;
        start_frr(host)
    }

    fn is_established(&self, host: &Host, peer: IpAddr) -> Result<bool> {
        let answer = vtysh_json(host, &format!("show bgp neighbors {peer} json"))?;
        Ok(answer[peer.to_string()]["bgpState"] == "Established")
    }

    fn paths(&self, host: &Host, prefix: &IpNet) -> Result<Vec<Path>> {
        let answer = vtysh_json(host, &format!("show bgp {} unicast {prefix} json", family(prefix)))?;
        let paths = answer["paths"].as_array().cloned().unwrap_or_default();
        Ok(paths
            .iter()
            .map(|path| Path {
                next_hop: path["nexthops"][0]["ip"].as_str().unwrap_or_default().to_owned(),
                as_path: numbers(path["aspath"]["string"].as_str().unwrap_or_default()),
                stale: path["stale"] == true,
                communities: path["community"]["string"].as_str().unwrap_or_default().to_owned(),
                extended_communities: path["extendedCommunity"]["string"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
                reflected: path["originatorId"].is_string() && path["clusterList"].is_object(),
                otc: path["otc"].as_u64().and_then(|asn| u32::try_from(asn).ok()),
            })
            .collect())
    }

    /// It does not show the form, and shows the bandwidth as a number and in the largest unit.
    fn link_bandwidth(&self, community: ExtendedCommunity) -> String {
        let [_, _, a, b, c, d, e, f] = community.0;
        let (asn, octets) = (u16::from_be_bytes([a, b]), f32::from_be_bytes([c, d, e, f]));
        format!("LB:{asn}:{octets} ({:.3} Gbps)", octets / 125e6)
    }

    fn received(&self, host: &Host, peer: IpAddr) -> Result<usize> {
        let answer = vtysh_json(host, &format!("show bgp neighbors {peer} json"))?;
        let family = &answer[peer.to_string()]["addressFamilyInfo"]["ipv4Unicast"];
        Ok(family["acceptedPrefixCounter"].as_u64().unwrap_or_default() as usize)
    }

    fn advertise(&self, host: &Host, number: u8) -> Result<()> {
        let network = format!("network 10.78.{number}.0/24");
        let commands = ["configure", &bgp_node(host)?, "address-family ipv4 unicast", &network];
        vtysh(host, &commands).map(drop)
    }

    fn ask_refresh(&self, host: &Host, peer: IpAddr) -> Result<()> {
        vtysh(host, &[&format!("clear bgp ipv4 unicast {peer} soft in")]).map(drop)
    }

    fn shut_down(&self, host: &Host, peer: IpAddr, reason: &str) -> Result<()> {
        let shut = format!("neighbor {peer} shutdown message {reason}");
        vtysh(host, &["configure", &bgp_node(host)?, &shut]).map(drop)
    }

    fn last_end(&self, host: &Host, peer: IpAddr) -> Result<String> {
        let answer = vtysh_json(host, &format!("show bgp neighbors {peer} json"))?;
        let of = &answer[peer.to_string()];
        Ok(format!(
            "{} {} {} {}",
            of["bgpState"], of["lastResetDueTo"], of["lastNotificationReason"], of["lastShutdownDescription"]
        ))
    }

    fn bfd_is_up(&self, host: &Host, peer: IpAddr) -> Result<bool> {
        let answer = vtysh_json(host, &format!("show bfd peer {peer} json"))?;
        Ok(answer["status"] == "up")
    }
}
