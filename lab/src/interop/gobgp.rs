//! GoBGP.

use std::fmt::Write as _;
use std::net::IpAddr;

use anyhow::{Context as _, Result, bail};
use ipnet::IpNet;
use serde_json::Value;
use trunkline_bgp::types::ExtendedCommunity;

use super::router::{Path, Router, SECOND, Session, THEIRS, Way, kill, log_of, write};
use super::us::PATIENCE;
use crate::host::Host;
use crate::shell::{Seen, cmd, run, wait_for};

pub(super) struct GoBgp;

const FILE: &str = "/etc/gobgp/gobgpd.toml";

fn neighbour(session: &Session, address: &str, asn: u32, ours: bool) -> String {
    let mut out =
        format!("[[neighbors]]\n[neighbors.config]\nneighbor-address = \"{address}\"\npeer-as = {asn}\n");
    let mut line = |text: String| _ = writeln!(out, "{text}");
    if let Some(password) = session.password.filter(|_| ours) {
        line(format!("auth-password = \"{password}\""));
    }
    let hold = session.hold_time;
    line("[neighbors.timers.config]\nconnect-retry = 1\nidle-hold-time-after-reset = 1".to_owned());
    line(format!("hold-time = {hold}\nkeepalive-interval = {}", hold / 3));
    if ours && session.passive {
        line("[neighbors.transport.config]\npassive-mode = true".to_owned());
    }
    if ours && session.way == Way::TwoHops {
        line("[neighbors.ebgp-multihop.config]\nenabled = true\nmultihop-ttl = 3".to_owned());
    }
    if ours && session.ttl_security {
        line("[neighbors.ttl-security.config]\nenabled = true\nttl-min = 255".to_owned());
    }
    if let Some(time) = session.restart.filter(|_| ours) {
        line(format!(
            "[neighbors.graceful-restart.config]\nenabled = true\nrestart-time = {time}\nnotification-enabled = {}\n\
             long-lived-enabled = {}\ndeferral-time = 2",
            session.notification,
            session.long_lived.is_some()
        ));
    }
    for place in session.families() {
        let family = ["ipv4-unicast", "ipv6-unicast"][place];
        line(format!("[[neighbors.afi-safis]]\n[neighbors.afi-safis.config]\nafi-safi-name = \"{family}\""));
        if ours && session.restart.is_some() {
            line("[neighbors.afi-safis.mp-graceful-restart.config]\nenabled = true".to_owned());
        }
        if let Some(time) = session.long_lived.filter(|_| ours) {
            line(format!(
                "[neighbors.afi-safis.long-lived-graceful-restart.config]\nenabled = true\nrestart-time = {time}"
            ));
        }
        if let Some(most) = session.max_prefixes.filter(|_| ours) {
            line(format!("[neighbors.afi-safis.prefix-limit.config]\nmax-prefixes = {most}"));
        }
        if ours && session.add_path {
            line("[neighbors.afi-safis.add-paths.config]\nreceive = true\nsend-max = 8".to_owned());
        }
    }
    out
}

fn config(session: &Session) -> String {
    let us = session.way.us().to_string();
    let mut out = format!("[global.config]\nas = {}\nrouter-id = \"10.0.0.1\"\n", session.router_as);
    out += &neighbour(session, &us, session.our_as, true);
    if session.second {
        out += &neighbour(session, SECOND, 65003, false);
    }
    out
}

fn json(host: &Host, args: &[&str]) -> Result<Value> {
    let text = host.run("gobgp", [&["-j"], args].concat())?;
    serde_json::from_str(&text).with_context(|| text.clone())
}

fn family(prefix: &IpNet) -> &'static str {
    if prefix.addr().is_ipv4() { "ipv4" } else { "ipv6" }
}

/// The link bandwidths of a list of extended communities.
fn bandwidths(communities: &[Value]) -> String {
    let shown = communities.iter().filter_map(|it| {
        let (asn, octets) = (it["asn"].as_u64()?, it["bandwidth"].as_f64()?);
        Some(format!("{asn}:{octets}"))
    });
    shown.collect::<Vec<_>>().join(" ")
}

impl Router for GoBgp {
    fn node(&self) -> &'static str {
        "gobgp"
    }

    fn name(&self) -> &'static str {
        "GoBGP"
    }

    fn version(&self) -> Result<String> {
        let text = run(&mut cmd("gobgpd", ["--version"]))?;
        text.split_whitespace().last().map(str::to_owned).context("gobgpd --version prints nothing")
    }

    fn start(&self, host: &Host, session: &Session, again: bool) -> Result<()> {
        kill(host, None)?;
        write(host, FILE, &config(session))?;
        let mut args = vec!["-f", FILE, "--log-plain"];
        if again {
            args.push("-r");
        } else {
            host.sh("rm -f /var/log/gobgpd.log")?;
        }
        let _child = host.daemon("gobgpd.log", "gobgpd", &args, &[])?;
        wait_for("gobgpd to answer", PATIENCE, || {
            let asked = host.run("gobgp", ["global"]);
            Ok(Seen::when(asked.is_ok(), || {
                asked.err().map(|error| format!("{error:#}")).unwrap_or_default()
            }))
        })?;
        for place in session.families() {
            host.run("gobgp", ["global", "rib", "add", "-a", ["ipv4", "ipv6"][place], THEIRS[place]])?;
        }
        Ok(())
    }

    fn is_established(&self, host: &Host, peer: IpAddr) -> Result<bool> {
        let text = host.run("gobgp", ["neighbor", &peer.to_string()])?;
        Ok(text.contains("BGP state = ESTABLISHED") || text.contains("BGP state = BGP_FSM_ESTABLISHED"))
    }

    fn paths(&self, host: &Host, prefix: &IpNet) -> Result<Vec<Path>> {
        let table = json(host, &["global", "rib", "-a", family(prefix), &prefix.to_string()]);
        // Without such a route, the command fails with "Network not in table".
        let Ok(table) = table else { return Ok(Vec::new()) };
        let entries = table.as_object().and_then(|table| table.values().next()).or(Some(&table));
        let entries = entries.and_then(Value::as_array).cloned().unwrap_or_default();
        Ok(entries
            .iter()
            .map(|path| {
                let attributes = path["attrs"].as_array().cloned().unwrap_or_default();
                let of =
                    |code: u64| attributes.iter().find(|it| it["type"] == code).cloned().unwrap_or_default();
                let hop =
                    [of(3), of(14)].into_iter().find_map(|it| it["nexthop"].as_str().map(str::to_owned));
                let segments = of(2)["as_paths"].as_array().cloned().unwrap_or_default();
                let asns = segments.iter().filter_map(|it| it["asns"].as_array()).flatten();
                let communities = of(8)["communities"].as_array().cloned().unwrap_or_default();
                let communities = communities.iter().filter_map(Value::as_u64);
                Path {
                    next_hop: hop.unwrap_or_default(),
                    as_path: asns.filter_map(|asn| u32::try_from(asn.as_u64()?).ok()).collect(),
                    stale: path["stale"] == true,
                    reflected: !of(9).is_null() && !of(10).is_null(),
                    otc: None,
                    extended_communities: of(16)["value"]
                        .as_array()
                        .map(|it| bandwidths(it))
                        .unwrap_or_default(),
                    communities: communities
                        .map(|it| format!("{}:{}", it >> 16, it & 0xffff))
                        .collect::<Vec<_>>()
                        .join(" "),
                }
            })
            .collect())
    }

    /// It shows both forms as the non-transitive one: only the AS and the number are compared.
    fn link_bandwidth(&self, community: ExtendedCommunity) -> String {
        let [_, _, a, b, c, d, e, f] = community.0;
        format!("{}:{}", u16::from_be_bytes([a, b]), f32::from_be_bytes([c, d, e, f]))
    }

    fn received(&self, host: &Host, peer: IpAddr) -> Result<usize> {
        let table = json(host, &["neighbor", &peer.to_string(), "adj-in", "-a", "ipv4"])?;
        Ok(table.as_object().map(|table| table.len()).unwrap_or_default())
    }

    fn advertise(&self, host: &Host, number: u8) -> Result<()> {
        host.run("gobgp", ["global", "rib", "add", "-a", "ipv4", &format!("10.78.{number}.0/24")]).map(drop)
    }

    fn ask_refresh(&self, _host: &Host, _peer: IpAddr) -> Result<()> {
        bail!("it uses its stored paths instead of a ROUTE-REFRESH")
    }

    fn shut_down(&self, host: &Host, peer: IpAddr, reason: &str) -> Result<()> {
        host.run("gobgp", ["neighbor", &peer.to_string(), "shutdown", "--reason", reason]).map(drop)
    }

    fn last_end(&self, host: &Host, _peer: IpAddr) -> Result<String> {
        let log = log_of(host, "gobgpd.log")?;
        let log: Vec<&str> = log.lines().collect();
        Ok(log[log.len().saturating_sub(8)..].join("; "))
    }
}
