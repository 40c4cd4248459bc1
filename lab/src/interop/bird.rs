//! BIRD 2.

use std::fmt::Write as _;
use std::net::IpAddr;

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use trunkline_bgp::types::ExtendedCommunity;

use super::router::{Path, Router, SECOND, Session, THEIRS, Way, kill, log_of, numbers, write};
use crate::host::Host;

pub(super) struct Bird;

const FILE: &str = "/etc/bird/bird.conf";

fn config(session: &Session) -> String {
    let (us, here, hold) = (session.way.us(), session.way.router(), session.hold_time);
    let internal = session.router_as == session.our_as;
    let (router_as, our_as) = (session.router_as, session.our_as);
    // With this configuration BIRD accepts any peer on the link, and sends router advertisements on
    // the link.
    let unnumbered = "protocol radv { interface \"eth1\" { min ra interval 3; max ra interval 4; default lifetime 0; }; }\n";
    let ends = match session.unnumbered {
        false => format!("local {here} as {router_as};\n neighbor {us} as {our_as}"),
        true => format!("local as {router_as};\n neighbor range fe80::/64 as {our_as};\n interface \"eth1\""),
    };
    let on = |is: bool| if is { "on" } else { "off" };
    let mut out = format!(
        "log \"/var/log/bird.log\" all;\ndebug protocols {{ states, events }};\nrouter id 10.0.0.1;\n\
         protocol device {{ }}\n\
         protocol bfd {{ interface \"*\" {{ interval 50 ms; multiplier 3; }}; multihop {{ interval 50 ms; multiplier 3; }}; }}\n\
         protocol static told4 {{ ipv4; route {} blackhole;{}\ninclude \"/etc/bird/more.conf\";\n}}\n\
         protocol static told6 {{ ipv6; route {} blackhole; }}\n\
         protocol bgp trunkline {{\n {ends};\n hold time {hold};\n keepalive time {};\n \
         connect delay time 1;\n connect retry time 1;\n error wait time 1, 2;\n enable extended messages {};\n",
        THEIRS[0],
        // An internal peer's routes have their next hop behind the router in the middle.
        if internal { " route 10.2.0.0/24 via 10.3.0.254;" } else { "" },
        THEIRS[1],
        (hold / 3).max(1),
        on(session.extended_messages),
    );
    let mut line = |text: String| _ = writeln!(out, " {text};");
    if let Some(password) = session.password {
        line(format!("password \"{password}\""));
    }
    if session.way == Way::TwoHops {
        line("multihop 3".to_owned());
    } else {
        line("direct".to_owned());
        line(format!("ttl security {}", on(session.ttl_security)));
    }
    session.role.iter().for_each(|role| line(format!("local role {}", role.replace('-', "_"))));
    line(format!("passive {}", on(session.passive)));
    line(format!("graceful restart {}", on(session.restart.is_some())));
    session.restart.iter().for_each(|time| line(format!("graceful restart time {time}")));
    line(format!("long lived graceful restart {}", on(session.long_lived.is_some())));
    session.long_lived.iter().for_each(|time| line(format!("long lived stale time {time}")));
    if session.bfd {
        line("bfd graceful".to_owned());
    }
    // If the family of the session and the family of the routes differ, the next hop is BIRD's own
    // address in the routes' family.
    let next_hops = [("10.1.0.1", Way::V6), ("fd00:1::1", Way::V4)];
    for (place, family) in ["ipv4", "ipv6"].into_iter().enumerate() {
        if !session.families().any(|it| it == place) {
            continue;
        }
        let mut channel = format!("{family} {{ import all; export all; add paths {};", on(session.add_path));
        if internal {
            channel += " gateway recursive;";
        }
        session
            .max_prefixes
            .iter()
            .for_each(|most| channel += &format!(" receive limit {most} action disable;"));
        if session.extended_next_hop {
            channel += " extended next hop on;";
        } else if session.way == next_hops[place].1 {
            channel += &format!(" next hop address {};", next_hops[place].0);
        }
        line(channel + " }");
    }
    out.push_str("}\n");
    if session.unnumbered {
        out.push_str(unnumbered);
    }
    if session.second {
        let second = format!(
            "protocol bgp second {{ local 10.3.0.1 as {}; neighbor {SECOND} as 65003; connect delay time 1; \
             connect retry time 1; ipv4 {{ import all; export none; }}; }}\n",
            session.router_as
        );
        out.push_str(&second);
    }
    out
}

fn birdc(host: &Host, line: &str) -> Result<String> {
    host.sh(&format!("birdc {line} || :"))
}

impl Router for Bird {
    fn node(&self) -> &'static str {
        "bird"
    }

    fn name(&self) -> &'static str {
        "BIRD"
    }

    fn version(&self) -> Result<String> {
        // BIRD prints its version on standard error.
        let out = std::process::Command::new("/usr/sbin/bird").arg("--version").output()?;
        let text = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
        text.split_whitespace().last().map(str::to_owned).context("bird --version prints nothing")
    }

    fn start(&self, host: &Host, session: &Session, again: bool) -> Result<()> {
        if !again {
            kill(host, None)?;
            write(host, "/etc/bird/more.conf", "# Written by the test.\n")?;
            write(host, FILE, &config(session))?;
            host.sh("rm -f /var/log/bird.log")?;
        }
        let recover = if again { "-R" } else { "" };
        host.sh(&format!("bird -c {FILE} {recover}")).map(drop)
    }

    fn is_established(&self, host: &Host, peer: IpAddr) -> Result<bool> {
        let all = birdc(host, "show protocols all")?;
        let mut of = all.split("\n\n").filter(|text| text.contains(&format!("Neighbor address: {peer}\n")));
        Ok(of.any(|text| text.contains("BGP state:          Established")))
    }

    fn paths(&self, host: &Host, prefix: &IpNet) -> Result<Vec<Path>> {
        let table = birdc(host, &format!("show route {prefix} all"))?;
        let mut paths: Vec<Path> = Vec::new();
        for line in table.lines() {
            if line.contains(" [") && line.contains('(') {
                let stale = line.contains("s) [") || line.contains("s)");
                let (reflected, otc) = (false, None);
                paths.push(Path {
                    next_hop: String::new(),
                    as_path: Vec::new(),
                    stale,
                    communities: String::new(),
                    extended_communities: String::new(),
                    reflected,
                    otc,
                });
            }
            let Some(path) = paths.last_mut() else { continue };
            if let Some(rest) = line.trim().strip_prefix("BGP.as_path: ") {
                path.as_path = numbers(rest);
            } else if let Some(rest) = line.trim().strip_prefix("BGP.next_hop: ") {
                path.next_hop = rest.trim().to_owned();
            } else if let Some(rest) = line.trim().strip_prefix("BGP.community: ") {
                path.communities = rest.trim().to_owned();
            } else if let Some(rest) = line.trim().strip_prefix("BGP.ext_community: ") {
                path.extended_communities = rest.trim().to_owned();
            } else if line.trim().starts_with("BGP.cluster_list: ") {
                path.reflected = table.contains("BGP.originator_id: ");
            } else if let Some(rest) = line.trim().strip_prefix("BGP.otc: ") {
                path.otc = numbers(rest).first().copied();
            }
        }
        Ok(paths)
    }

    /// It knows no such type: it shows the octets of the type, the AS and the octets of the number.
    fn link_bandwidth(&self, community: ExtendedCommunity) -> String {
        let [kind, subtype, a, b, c, d, e, f] = community.0;
        let (kind, asn) = (u16::from_be_bytes([kind, subtype]), u16::from_be_bytes([a, b]));
        format!("(unknown 0x{kind:x}, {asn}, {})", u32::from_be_bytes([c, d, e, f]))
    }

    fn received(&self, host: &Host, _peer: IpAddr) -> Result<usize> {
        let text = birdc(host, "show route protocol trunkline table master4 count")?;
        Ok(text.lines().rev().find_map(|line| numbers(line).first().copied()).unwrap_or(0) as usize)
    }

    fn advertise(&self, host: &Host, number: u8) -> Result<()> {
        let all: String =
            (0..=number).map(|number| format!("route 10.78.{number}.0/24 blackhole;\n")).collect();
        write(host, "/etc/bird/more.conf", &all)?;
        host.run("birdc", ["configure"]).map(drop)
    }

    fn ask_refresh(&self, host: &Host, _peer: IpAddr) -> Result<()> {
        host.run("birdc", ["reload", "in", "trunkline"]).map(drop)
    }

    fn shut_down(&self, host: &Host, _peer: IpAddr, reason: &str) -> Result<()> {
        host.run("birdc", ["disable", "trunkline", &format!("\"{reason}\"")]).map(drop)
    }

    fn last_end(&self, host: &Host, _peer: IpAddr) -> Result<String> {
        let text = birdc(host, "show protocols all trunkline")?;
        let lines = text.lines().filter(|line| {
            ["BGP state", "Last error", "Received:", "Message:"].iter().any(|word| line.contains(word))
        });
        let log = log_of(host, "bird.log")?;
        let log: Vec<&str> = log.lines().filter(|line| line.contains("trunkline: ")).collect();
        let end = log[log.len().saturating_sub(12)..].join("; ");
        Ok(lines.map(str::trim).collect::<Vec<_>>().join("; ") + "; log: " + &end)
    }

    /// BIRD marks only long-lived stale paths.
    fn marks_stale(&self) -> bool {
        false
    }

    fn bfd_is_up(&self, host: &Host, peer: IpAddr) -> Result<bool> {
        let text = birdc(host, "show bfd sessions")?;
        Ok(text.lines().any(|line| line.starts_with(&peer.to_string()) && line.contains(" Up ")))
    }
}
