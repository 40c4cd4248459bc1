//! Edits of the manifests while everything runs. The agent refuses a bad manifest with file, field
//! and fix, and changes nothing. It applies a good manifest without unnecessary session resets.

use anyhow::{Context as _, Result, ensure};
use ipnet::IpNet;

use super::bed::{Bed, Manifest, PATIENCE, lab, lost_nothing};
use super::{Context, Test, Verdict, passed};
use crate::shell::{Seen, wait_for};
use crate::{client, routers};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "manifests/refused",
        about: "bad manifests are refused with file and field, and the previous state stays",
        run: refused,
    },
    Test {
        name: "manifests/peer-edit",
        about: "peers are edited, added and removed without resetting a session",
        run: peer_edit,
    },
    Test {
        name: "manifests/policy",
        about: "import and export policies are edited live; FRR shows the effect, and --explain shows the reason",
        run: policy,
    },
    Test {
        name: "manifests/dynamic",
        about: "FRR routers connect from a configured prefix with TCP-MD5, up to the limit, and pods are reached through them",
        run: dynamic,
    },
    Test {
        name: "manifests/subnet-edit",
        about: "a subnet is added and removed while pods run",
        run: subnet_edit,
    },
    Test {
        name: "manifests/unsupported",
        about: "unsupported features are refused by name",
        run: unsupported,
    },
];

struct Bad {
    what: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
    /// Parts of the refusal in addition to the file's name.
    says: &'static [&'static str],
}

const BAD: &[Bad] = &[
    Bad {
        what: "an unknown field",
        file: "networks.yaml",
        from: "  type: Underlay",
        to: "  colour: blue\n  type: Underlay",
        says: &["colour"],
    },
    Bad {
        what: "a CIDR with an impossible length",
        file: "subnets.yaml",
        from: "10.201.0.0/16",
        to: "10.201.0.0/33",
        says: &["cidr", "10.201.0.0/33"],
    },
    Bad {
        what: "a CIDR with host bits",
        file: "subnets.yaml",
        from: "10.201.0.0/16",
        to: "10.201.0.1/16",
        says: &["cidr", "10.201.0.0/16"],
    },
    Bad {
        what: "overlapping subnets",
        file: "subnets.yaml",
        from: "10.200.0.0/16",
        to: "10.201.128.0/17",
        says: &["overlap", "global-v4", "rack1-v4"],
    },
    Bad {
        what: "start after end",
        file: "subnets.yaml",
        from: "    cidr: 10.201.0.0/16",
        to: "    cidr: 10.201.0.0/16\n    start: 10.201.0.20\n    end: 10.201.0.10",
        says: &["start", "10.201.0.20"],
    },
    Bad {
        what: "a gateway outside the CIDR",
        file: "subnets.yaml",
        from: "    cidr: 10.201.0.0/16",
        to: "    cidr: 10.201.0.0/16\n    gateway: 10.9.0.1",
        says: &["gateway", "10.9.0.1"],
    },
    Bad { what: "ASN 0", file: "networks.yaml", from: "asn: 65001", to: "asn: 0", says: &["asn"] },
    Bad {
        what: "two networks with different local ASNs",
        file: "networks.yaml",
        from: "---\n",
        to: "---\napiVersion: networking.alibaba.com/v1\nkind: Network\nmetadata:\n  name: other\nspec:\n  type: Underlay\n  \
             mode: BGP\n  netID: 65102\n  nodeSelector:\n    rack: \"1\"\n  config:\n    bgpPeers:\n      - asn: 65003\n        \
             address: 10.3.0.1\n---\n",
        says: &["other", "rack1"],
    },
    Bad {
        what: "a password over 80 octets",
        file: "networks.yaml",
        from: "password: one-rack-lab-secret",
        to: "password: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        says: &["password", "80"],
    },
    Bad {
        what: "a peer that is not an address",
        file: "networks.yaml",
        from: "address: 10.1.0.1",
        to: "address: tor1.example",
        says: &["address", "tor1.example"],
    },
    Bad {
        what: "dynamic neighbours from a prefix that holds pods",
        file: "networks.yaml",
        from: "address: 10.1.0.1",
        to: "prefix: 10.0.0.0/8",
        says: &["spec.config.bgpPeers[0].prefix", "10.0.0.0/8 overlaps", "of Subnet rack1-v4"],
    },
    Bad {
        what: "text that is no YAML",
        file: "subnets.yaml",
        from: "kind: Subnet",
        to: "kind: [Subnet",
        says: &[],
    },
];

fn refusals(bed: &Bed<'_>) -> Result<Vec<String>> {
    Ok(client::status(bed.node()?)?.manifests.refused)
}

/// State that bad manifests must not change: (flaps, number of OPENs sent) of every peer.
fn sessions(bed: &Bed<'_>) -> Result<Vec<(String, u64, u64)>> {
    let peers = client::peers(bed.node()?)?;
    Ok(peers.into_iter().map(|p| (p.address.to_string(), p.flaps, p.sent.open)).collect())
}

/// No peer is configured by its address: the ToRs connect from prefixes, with a key. An edit of
/// such a prefix keeps its sessions.
fn dynamic(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let manifest = bed.manifest("networks.yaml");
        manifest.edit("address: 10.1.0.1", "prefix: 10.1.0.0/24")?;
        manifest.edit("address: 10.2.0.1", "prefix: 10.2.0.0/24\n        limit: 1")?;
        let dynamic = |number: usize| {
            wait_for("the ToRs to connect from the configured prefixes", PATIENCE, || {
                let peers = client::peers(bed.node()?)?;
                let up = |peer: &&trunkline_api::control::Peer| peer.is_established() && peer.range.is_some();
                let count = peers.iter().filter(up).count();
                Ok(Seen::when(count == number && peers.len() == number, || format!("{peers:?}")))
            })
        };
        dynamic(2)?;
        let (_pod, attached) = bed.attached("witness", "rack1")?;
        lost_nothing(bed.pings("outside", &attached.addresses)?)?;
        let text = bed.node()?.run("trunkline", ["peers"])?;
        ensure!(text.contains("10.1.0.1 (dynamic)"), "{text}");

        // The new prefix also contains the ToR, so the ToR's session continues.
        let before = sessions(bed)?;
        manifest.edit("prefix: 10.1.0.0/24", "prefix: 10.1.0.0/16\n        limit: 1")?;
        wait_for("the wider prefix to be in force", PATIENCE, || {
            let ranges = client::status(bed.node()?)?.bgp.context("a speaker")?.ranges;
            Ok(Seen::when(ranges.iter().any(|range| range.prefix.prefix_len() == 16), || {
                format!("{ranges:?}")
            }))
        })?;
        dynamic(2)?;
        ensure!(sessions(bed)? == before, "a session was reset: {:?}, before {before:?}", sessions(bed)?);
        let ranges = client::status(bed.node()?)?.bgp.context("a speaker")?.ranges;
        ensure!(
            ranges.len() == 2 && ranges.iter().all(|range| (range.peers, range.limit) == (1, 1)),
            "{ranges:?}"
        );
        passed("two FRR routers, TCP-MD5 by prefix".to_owned())
    })
}

fn refused(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let (_pod, attached) = bed.attached("witness", "rack1")?;
        let pings = bed.pings("outside", &attached.addresses)?;
        let before = sessions(bed)?;
        for bad in BAD {
            let manifest = bed.manifest(bad.file);
            let good = manifest.read()?;
            manifest.edit(bad.from, bad.to)?;
            let refusal = wait_for(&format!("{} to be refused", bad.what), PATIENCE, || {
                let refused = refusals(bed)?.join("\n");
                Ok(if refused.is_empty() {
                    Seen::NotYet("nothing is refused".into())
                } else {
                    Seen::Yes(refused)
                })
            })?;
            for word in [bad.file].iter().chain(bad.says) {
                ensure!(refusal.contains(word), "{}: the refusal lacks {word:?}: {refusal}", bad.what);
            }
            let secret = "aaaaaaaaaa";
            ensure!(!refusal.contains(secret), "a password is in the refusal: {refusal}");
            let status = client::status(bed.node()?)?;
            ensure!(status.manifests.applied && status.networks.len() == 2, "{}: {status:?}", bad.what);
            manifest.write(&good)?;
            wait_for("the good manifests to be in force again", PATIENCE, || {
                let refused = refusals(bed)?;
                Ok(Seen::when(refused.is_empty(), || refused.join("\n")))
            })?;
        }
        let after = sessions(bed)?;
        ensure!(after == before, "sessions changed: {before:?} became {after:?}");
        let pings = lost_nothing(pings)?;
        passed(format!("{} bad manifests, {pings} pings, none lost", BAD.len()))
    })
}

fn peer_edit(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let (_pod, attached) = bed.attached("witness", "rack1")?;
        let pings = bed.pings("outside", &attached.addresses)?;
        let before = sessions(bed)?;
        let manifest = bed.manifest("networks.yaml");
        let original = manifest.read()?;
        let edits = [
            "connectRetrySeconds: 7",
            "allowNotEstablished: true",
            "maxPrefixes: 500",
            "import: {default: reject}",
            "import: {rules: [{prefixes: [{prefix: 0.0.0.0/0}], set: {localPreference: 200}, action: accept}]}",
        ];
        for (number, edit) in edits.iter().enumerate() {
            let edited =
                original.replacen("address: 10.1.0.1", &format!("address: 10.1.0.1\n        {edit}"), 1);
            write_and_settle(bed, &manifest, &edited, number)?;
            ensure!(
                sessions(bed)? == before,
                "{edit} reset a session: {before:?} became {:?}",
                sessions(bed)?
            );
        }
        write_and_settle(bed, &manifest, &original, edits.len())?;
        // A peer is added and removed next to running ones.
        let added = original.replacen(
            "      - asn: 65002",
            "      - {asn: 65077, address: 10.1.0.77, allowNotEstablished: true}\n      - asn: 65002",
            1,
        );
        manifest.write(&added)?;
        wait_for("the new peer", PATIENCE, || {
            Ok(Seen::when(sessions(bed)?.len() == 3, || "the peer is not there".into()))
        })?;
        manifest.write(&original)?;
        wait_for("the removal of the new peer", PATIENCE, || {
            Ok(Seen::when(sessions(bed)?.len() == 2, || "the peer is still there".into()))
        })?;
        ensure!(sessions(bed)? == before, "sessions changed: {before:?} became {:?}", sessions(bed)?);
        let tor = bed.host("tor1")?;
        let dropped = routers::neighbour(tor, "10.1.0.11")?["connectionsDropped"].as_u64();
        ensure!(dropped == Some(0), "the ToR saw {dropped:?} connections dropped");
        let pings = lost_nothing(pings)?;
        passed(format!("{} edits, a peer added and removed, {pings} pings, none lost", edits.len()))
    })
}

fn policy(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let (_pod, attached) = bed.attached("witness", "rack1")?;
        let address =
            attached.addresses.iter().find(|address| address.is_ipv4()).context("no IPv4 address")?;
        let (pod, default) = (IpNet::from(*address), "0.0.0.0/0".parse()?);
        let before = sessions(bed)?;
        let manifest = bed.manifest("networks.yaml");
        let original = manifest.read()?;
        let edit = |number: usize, policies: &str| {
            let edited =
                original.replacen("address: 10.1.0.1", &format!("address: 10.1.0.1\n        {policies}"), 1);
            write_and_settle(bed, &manifest, &edited, number)
        };

        edit(
            0,
            "import: {rules: [{name: no-default, prefixes: [{prefix: 0.0.0.0/0}], action: reject}]}\n        \
             export: {rules: [{name: tag, originated: true, prefixes: [{prefix: 10.201.0.0/16, le: 32}], \
             set: {med: 33, addCommunities: [\"65101:7\"]}, action: accept}]}",
        )?;
        wait_path(bed, &default, "10.1.0.1", &["refused", "import policy, rule 1 (no-default)"])?;
        wait_peer(bed, &pod, "10.1.0.1", &["advertised", "rule 1 (tag)"])?;
        wait_for("the ToR to have the pod with MED and community", PATIENCE, || {
            let path =
                crate::daemons::vtysh_json(bed.host("tor1")?, &format!("show bgp ipv4 unicast {pod} json"))?;
            let path = &path["paths"][0];
            let tagged = path["community"]["string"].as_str().is_some_and(|text| text.contains("65101:7"));
            Ok(Seen::when(tagged && path["metric"] == 33, || path.to_string()))
        })?;

        // Without `import`, the path of 10.2.0.1 has LOCAL_PREF 0. It ranks below the path of
        // 10.1.0.1.
        edit(
            1,
            "import: {rules: [{asPath: {neighbourAs: [65001]}, set: {localPreference: 50}, action: accept}]}",
        )?;
        wait_path(bed, &default, "10.2.0.1", &["lost", "highest LOCAL_PREF: 0 here, 50 from 10.1.0.1"])?;

        edit(2, "export: {rules: [{name: quiet, originated: true, action: reject}]}")?;
        wait_peer(bed, &pod, "10.1.0.1", &["withheld", "rejected by export policy, rule 1 (quiet)"])?;
        wait_peer(bed, &pod, "10.2.0.1", &["advertised"])?;
        wait_for("the ToR to have lost the pod", PATIENCE, || {
            let has = routers::has_path(bed.fabric, "tor1", &pod)?;
            Ok(Seen::when(!has, || "the route is still there".into()))
        })?;
        write_and_settle(bed, &manifest, &original, 3)?;
        wait_peer(bed, &pod, "10.1.0.1", &["advertised"])?;
        ensure!(sessions(bed)? == before, "sessions changed: {before:?} became {:?}", sessions(bed)?);
        passed("three policies in both directions, no session was reset")
    })
}

/// Waits until `--explain` shows all these words for a peer's path.
fn wait_path(bed: &Bed<'_>, prefix: &IpNet, peer: &str, says: &[&str]) -> Result<()> {
    wait_for(&format!("{peer}'s path of {prefix} to be {says:?}"), PATIENCE, || {
        let paths = client::explain(bed.node()?, prefix)?.paths;
        let path = paths.iter().find(|path| path.route.peer.as_deref() == Some(peer));
        let text = path.map(|path| format!("{} {}", path.standing, path.reason)).unwrap_or_default();
        Ok(Seen::when(says.iter().all(|part| text.contains(part)), || text.clone()))
    })
}

/// Waits until `--explain` shows all these words for the advertisement to a peer.
fn wait_peer(bed: &Bed<'_>, prefix: &IpNet, peer: &str, says: &[&str]) -> Result<()> {
    wait_for(&format!("the advertisement of {prefix} to {peer} to be {says:?}"), PATIENCE, || {
        let peers = client::explain(bed.node()?, prefix)?.peers;
        let peer = peers.iter().find(|other| other.peer == peer);
        let text = peer.map(|peer| format!("{} {}", peer.standing, peer.reason)).unwrap_or_default();
        Ok(Seen::when(says.iter().all(|part| text.contains(part)), || text.clone()))
    })
}

/// Writes manifests together with a subnet of a unique name, and waits until the agent has that
/// subnet. Then the agent has all of the manifests.
fn write_and_settle(bed: &Bed<'_>, manifest: &Manifest, text: &str, number: usize) -> Result<()> {
    let marker = format!("marker{number}");
    let subnet = format!(
        "---\napiVersion: networking.alibaba.com/v1\nkind: Subnet\nmetadata:\n  name: {marker}\nspec:\n  network: rack1\n  \
         range:\n    version: \"4\"\n    cidr: 10.{}.0.0/24\n",
        210 + number
    );
    manifest.write(&format!("{text}{subnet}"))?;
    wait_for(&format!("edit {number} to be in force"), PATIENCE, || {
        let status = client::status(bed.node()?)?;
        let there = status.networks.iter().flat_map(|n| &n.subnets).any(|s| s.name == marker);
        Ok(Seen::when(there, || format!("refused: {:?}", status.manifests.refused)))
    })
}

fn subnet_edit(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let (_pod, attached) = bed.attached("witness", "rack1")?;
        let pings = bed.pings("outside", &attached.addresses)?;
        let before = sessions(bed)?;
        let manifest = bed.manifest("subnets.yaml");
        let original = manifest.read()?;
        let more = "---\napiVersion: networking.alibaba.com/v1\nkind: Subnet\nmetadata:\n  name: rack1-more\nspec:\n  network: \
                    rack1\n  range:\n    version: \"4\"\n    cidr: 10.210.0.0/24\n";
        manifest.write(&format!("{original}{more}"))?;
        let tor = bed.host("tor1")?;
        let subnet = "10.210.0.0/24".parse()?;
        let at_tor = |there: bool| {
            wait_for("the subnet's route in the ToR", PATIENCE, || {
                Ok(Seen::when(routers::kernel_routes(tor)?.contains(&subnet) == there, || {
                    format!("there: {}", !there)
                }))
            })
        };
        at_tor(true)?;
        manifest.write(&original)?;
        at_tor(false)?;
        ensure!(sessions(bed)? == before, "sessions changed: {before:?} became {:?}", sessions(bed)?);
        let pings = lost_nothing(pings)?;
        passed(format!("{pings} pings, none lost"))
    })
}

fn unsupported(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        let manifest = bed.manifest("subnets.yaml");
        let reserved = "---\napiVersion: networking.alibaba.com/v1\nkind: Subnet\nmetadata:\n  name: reserved\nspec:\n  network: \
                        rack1\n  range:\n    version: \"4\"\n    cidr: 10.199.0.0/24\n  config:\n    gatewayType: l3\n";
        manifest.write(&format!("{}{reserved}", manifest.read()?))?;
        let reason = wait_for("the subnet to be refused by name", PATIENCE, || {
            let status = client::status(bed.node()?)?;
            let mut subnets = status.networks.iter().flat_map(|n| &n.subnets);
            let reason = subnets.find(|s| s.name == "reserved").and_then(|s| s.refused.clone());
            Ok(reason.map_or(Seen::NotYet(format!("{:?}", status.networks)), Seen::Yes))
        })?;
        ensure!(reason.contains("gatewayType"), "the reason does not name the field: {reason}");
        let (_, attached) = bed.attached("beside", "rack1").context("a pod of the other subnets")?;
        ensure!(attached.addresses.len() == 2, "{:?}", attached.addresses);
        passed(reason)
    })
}
