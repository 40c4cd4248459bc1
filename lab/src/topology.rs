//! A topology is a containerlab file. This module reads the part of this format that the runner can
//! create in network namespaces: nodes of kind `linux` with `image`, `binds`, `exec`, `env`,
//! `labels` and `sysctls`, and links in the short form `endpoints: ["a:eth1", "b:eth1"]`.
//! containerlab itself can deploy the same file (`containerlab/`).
//!
//! The parser is strict. It refuses features of containerlab that the runner does not support, and
//! names them. Otherwise a lab could differ from its file without a message. If containerlab has a
//! default that namespaces do not have, the file must be explicit. There are two such defaults.
//! Without `network-mode: none`, every node would have a management network with a default route.
//! Without `mtu`, each link would have an MTU of 9500. Every error names the file and the field.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The reason why a topology file was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TopologyError {
    #[error("{file}: cannot be read: {source}")]
    Read { file: PathBuf, source: std::io::Error },
    #[error("{file}: {source}")]
    Syntax { file: PathBuf, source: Box<serde_saphyr::Error> },
    #[error("{file}: {field}: {problem}")]
    Field { file: PathBuf, field: String, problem: String },
}

/// A valid topology, ready to be created.
#[derive(Debug, Clone)]
pub(crate) struct Topology {
    pub name: String,
    /// The file's own folder, the base of relative bind sources.
    pub folder: PathBuf,
    pub nodes: BTreeMap<String, Node>,
    pub links: Vec<Link>,
}

/// One host or router.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub image: Image,
    /// The image's name in the file, with its tag.
    pub image_name: String,
    /// Source (relative to the topology's folder) and absolute target.
    pub binds: Vec<(PathBuf, PathBuf)>,
    /// Commands that run in order once the links exist, each as its words; there is no shell unless
    /// the command names one.
    pub exec: Vec<Vec<String>>,
    pub env: BTreeMap<String, String>,
    pub labels: BTreeMap<String, String>,
    pub sysctls: BTreeMap<String, String>,
}

/// Software of a node. The image's tag only matters to containerlab; here the Debian package
/// determines the version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Image {
    Frr,
    Bird,
    GoBgp,
    /// A Trunkline node: `trunkline agent`.
    Node,
    /// A plain host with links only.
    Host,
}

impl Image {
    const NAMES: [(&'static str, Self); 5] = [
        ("trunkline-lab/frr", Self::Frr),
        ("trunkline-lab/bird", Self::Bird),
        ("trunkline-lab/gobgp", Self::GoBgp),
        ("trunkline-lab/node", Self::Node),
        ("trunkline-lab/host", Self::Host),
    ];

    fn parse(name: &str) -> Option<Self> {
        let untagged = name.split(':').next().unwrap_or(name);
        Self::NAMES.iter().find(|(known, _)| *known == untagged).map(|(_, image)| *image)
    }

    /// The stage in lab/images/Containerfile for it.
    pub(crate) fn stage(self) -> &'static str {
        match self {
            Self::Frr => "frr",
            Self::Bird => "bird",
            Self::GoBgp => "gobgp",
            Self::Node => "node",
            Self::Host => "host",
        }
    }

    /// Debian packages with the daemons of this image.
    pub(crate) fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Frr => &["frr"],
            Self::Bird => &["bird2"],
            Self::GoBgp => &["gobgpd"],
            Self::Node | Self::Host => &[],
        }
    }
}

/// A veth pair between two nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub a: Endpoint,
    pub b: Endpoint,
    pub mtu: u32,
}

/// One end of a link.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Endpoint {
    pub node: String,
    pub interface: String,
}

// The file's structure. serde refuses a field that no struct has, with its line.

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    topology: Body,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    #[serde(default)]
    defaults: NodeFile,
    #[serde(default)]
    kinds: BTreeMap<String, NodeFile>,
    nodes: BTreeMap<String, Option<NodeFile>>,
    #[serde(default)]
    links: Vec<LinkFile>,
}

#[derive(Deserialize, Default, Clone)]
#[serde(deny_unknown_fields)]
struct NodeFile {
    kind: Option<String>,
    image: Option<String>,
    #[serde(rename = "network-mode")]
    network_mode: Option<String>,
    #[serde(default)]
    binds: Vec<String>,
    #[serde(default)]
    exec: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, Scalar>,
    #[serde(default)]
    labels: BTreeMap<String, Scalar>,
    #[serde(default)]
    sysctls: BTreeMap<String, Scalar>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkFile {
    endpoints: Vec<String>,
    mtu: Option<u32>,
}

/// containerlab's schema allows strings, numbers and booleans for environment, labels and sysctls.
#[derive(Deserialize, Clone)]
#[serde(untagged)]
enum Scalar {
    Bool(bool),
    Int(i64),
    Text(String),
}

impl Scalar {
    fn text(&self) -> String {
        match self {
            Self::Bool(b) => b.to_string(),
            Self::Int(i) => i.to_string(),
            Self::Text(s) => s.clone(),
        }
    }
}

impl Topology {
    /// Reads and checks one file.
    pub(crate) fn load(file: &Path) -> Result<Self, TopologyError> {
        let text = std::fs::read_to_string(file)
            .map_err(|source| TopologyError::Read { file: file.to_owned(), source })?;
        Self::parse(file, &text)
    }

    fn parse(file: &Path, text: &str) -> Result<Self, TopologyError> {
        let parsed: File = serde_saphyr::from_str(text)
            .map_err(|source| TopologyError::Syntax { file: file.to_owned(), source: Box::new(source) })?;
        let check = Check { file };
        if let Some((number, _)) =
            text.lines().enumerate().find(|(_, line)| line.contains('$') || line.contains("{{"))
        {
            let field = format!("line {}", number + 1);
            return Err(check.fault(field, "has '$' or '{{', which containerlab treats as its own variables"));
        }
        check.name("name", &parsed.name)?;
        for kind in parsed.topology.kinds.keys() {
            check.kind(&format!("topology.kinds.{kind}"), kind)?;
        }
        let mut nodes = BTreeMap::new();
        for (name, node) in &parsed.topology.nodes {
            let field = format!("topology.nodes.{name}");
            check.name(&field, name)?;
            let node = node.clone().unwrap_or_default();
            nodes.insert(name.clone(), check.node(&field, &parsed.topology, node)?);
        }
        if nodes.is_empty() {
            return Err(check.fault("topology.nodes", "is empty; a lab needs at least one node"));
        }
        let links = check.links(&nodes, &parsed.topology.links)?;
        let folder = file.parent().unwrap_or(Path::new(".")).to_owned();
        Ok(Self { name: parsed.name, folder, nodes, links })
    }

    /// Debian packages with the daemons of this topology.
    pub(crate) fn packages(&self) -> BTreeSet<&'static str> {
        self.nodes.values().flat_map(|n| n.image.packages()).copied().collect()
    }

    /// A short description of its parts.
    pub(crate) fn summary(&self) -> String {
        let counts = [
            (Image::Frr, "FRR"),
            (Image::Bird, "BIRD"),
            (Image::GoBgp, "GoBGP"),
            (Image::Node, "Trunkline"),
            (Image::Host, "host"),
        ];
        let nodes = counts.iter().map(|(image, word)| (self.with_image(*image).count(), word));
        let mut words: Vec<String> =
            nodes.filter(|(n, _)| *n > 0).map(|(n, word)| format!("{n} {word}")).collect();
        words.push(format!("{} links", self.links.len()));
        words.join(", ")
    }

    /// Nodes with this image, in the order of their names.
    pub(crate) fn with_image(&self, image: Image) -> impl Iterator<Item = &str> {
        self.nodes.iter().filter(move |(_, n)| n.image == image).map(|(name, _)| name.as_str())
    }

    /// Nodes whose label `role` has this value.
    pub(crate) fn with_role<'a>(&'a self, role: &'a str) -> impl Iterator<Item = &'a str> {
        self.nodes
            .iter()
            .filter(move |(_, n)| n.labels.get("role").is_some_and(|r| r == role))
            .map(|(name, _)| name.as_str())
    }
}

/// The checks of one file, with the file's name for every fault.
struct Check<'a> {
    file: &'a Path,
}

impl Check<'_> {
    fn fault(&self, field: impl Into<String>, problem: impl Into<String>) -> TopologyError {
        TopologyError::Field { file: self.file.to_owned(), field: field.into(), problem: problem.into() }
    }

    fn name(&self, field: &str, name: &str) -> Result<(), TopologyError> {
        let good = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
            && name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.len() <= 40;
        if good {
            return Ok(());
        }
        Err(self.fault(
            field,
            format!(
                "{name:?} is not a usable name: up to 40 letters, digits and '-', a letter or digit first"
            ),
        ))
    }

    fn kind(&self, field: &str, kind: &str) -> Result<(), TopologyError> {
        if kind == "linux" {
            return Ok(());
        }
        Err(self.fault(field, format!("kind {kind:?} is not supported here; the only kind is \"linux\"")))
    }

    /// Merges the settings of a node, of its kind, and the defaults, as containerlab does. Lists
    /// are concatenated, with the node's own list last. Maps are merged by key.
    fn node(&self, field: &str, body: &Body, own: NodeFile) -> Result<Node, TopologyError> {
        let kind = own.kind.clone().or_else(|| body.defaults.kind.clone());
        let Some(kind) = kind else {
            return Err(self.fault(format!("{field}.kind"), "is missing; write `kind: linux`"));
        };
        self.kind(&format!("{field}.kind"), &kind)?;
        let of_kind = body.kinds.get(&kind).cloned().unwrap_or_default();
        let layers = [&body.defaults, &of_kind, &own];
        let join = |pick: fn(&NodeFile) -> &BTreeMap<String, Scalar>| -> BTreeMap<String, String> {
            layers.iter().flat_map(|l| pick(l)).map(|(k, v)| (k.clone(), v.text())).collect()
        };
        let network_mode = layers.iter().rev().find_map(|l| l.network_mode.as_deref());
        if network_mode != Some("none") {
            let problem = match network_mode {
                None => "is missing; write `network-mode: none`, or containerlab adds a management network",
                Some(_) => "is not supported here; the only mode is \"none\"",
            };
            return Err(self.fault(format!("{field}.network-mode"), problem));
        }
        let image_name = layers.iter().rev().find_map(|l| l.image.clone());
        let Some(image_name) = image_name else {
            return Err(self.fault(format!("{field}.image"), "is missing; one of: ".to_owned() + &images()));
        };
        let image = Image::parse(&image_name).ok_or_else(|| {
            self.fault(
                format!("{field}.image"),
                format!("{image_name:?} is not known to the runner; one of: {}", images()),
            )
        })?;
        let mut binds = Vec::new();
        for (i, bind) in layers.iter().flat_map(|l| &l.binds).enumerate() {
            binds.push(self.bind(&format!("{field}.binds[{i}]"), bind)?);
        }
        let mut exec = Vec::new();
        for (i, line) in layers.iter().flat_map(|l| &l.exec).enumerate() {
            let fault = |problem| self.fault(format!("{field}.exec[{i}]"), format!("{line:?} {problem}"));
            exec.push(words(line).map_err(fault)?);
        }
        Ok(Node {
            image,
            image_name,
            binds,
            exec,
            env: join(|l| &l.env),
            labels: join(|l| &l.labels),
            sysctls: join(|l| &l.sysctls),
        })
    }

    fn bind(&self, field: &str, bind: &str) -> Result<(PathBuf, PathBuf), TopologyError> {
        let mut parts = bind.split(':');
        let (Some(source), Some(target)) = (parts.next(), parts.next()) else {
            return Err(self.fault(field, format!("{bind:?} is not \"source:target\"")));
        };
        if let Some(options) = parts.next().filter(|o| *o != "ro" && *o != "rw") {
            return Err(self.fault(field, format!("option {options:?} is not known; \"ro\" or \"rw\"")));
        }
        let source = PathBuf::from(source);
        if source.is_absolute() || source.components().any(|c| c.as_os_str() == "..") {
            return Err(
                self.fault(field, format!("{} must be in the folder of the topology file", source.display()))
            );
        }
        let folder = self.file.parent().unwrap_or(Path::new("."));
        if !folder.join(&source).exists() {
            return Err(self.fault(field, format!("{} does not exist", folder.join(&source).display())));
        }
        let target = PathBuf::from(target);
        if !target.starts_with("/etc") {
            return Err(self.fault(
                field,
                format!("target {} is not under /etc, the only tree a node has a copy of", target.display()),
            ));
        }
        Ok((source, target))
    }

    fn links(&self, nodes: &BTreeMap<String, Node>, links: &[LinkFile]) -> Result<Vec<Link>, TopologyError> {
        let mut used = BTreeSet::new();
        let mut checked = Vec::new();
        for (i, link) in links.iter().enumerate() {
            let field = format!("topology.links[{i}].endpoints");
            let [a, b] = link.endpoints.as_slice() else {
                return Err(self.fault(field, format!("has {} ends; a link has two", link.endpoints.len())));
            };
            let ends = [self.endpoint(&field, nodes, a)?, self.endpoint(&field, nodes, b)?];
            for end in &ends {
                if !used.insert(end.clone()) {
                    let name = format!("{}:{}", end.node, end.interface);
                    return Err(self.fault(field, format!("{name} is an end of two links")));
                }
            }
            let field = format!("topology.links[{i}].mtu");
            let Some(mtu) = link.mtu else {
                return Err(self.fault(field, "is missing; containerlab would use 9500"));
            };
            if !(1280..=65535).contains(&mtu) {
                return Err(self.fault(field, format!("{mtu} is outside 1280..65535 (IPv6 needs 1280)")));
            }
            let [a, b] = ends;
            checked.push(Link { a, b, mtu });
        }
        Ok(checked)
    }

    fn endpoint(
        &self,
        field: &str,
        nodes: &BTreeMap<String, Node>,
        text: &str,
    ) -> Result<Endpoint, TopologyError> {
        let Some((node, interface)) = text.split_once(':') else {
            return Err(self.fault(field, format!("{text:?} is not \"node:interface\"")));
        };
        if !nodes.contains_key(node) {
            return Err(self.fault(field, format!("{text:?}: there is no node {node:?} in topology.nodes")));
        }
        // eth0 is containerlab's management interface; IFNAMSIZ is 16 with the final zero.
        let good = !interface.is_empty()
            && interface.len() <= 15
            && interface != "eth0"
            && interface != "lo"
            && interface.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        if !good {
            return Err(self.fault(
                field,
                format!(
                    "{interface:?} is not a usable interface name: 1 to 15 letters and digits, not lo or eth0"
                ),
            ));
        }
        Ok(Endpoint { node: node.to_owned(), interface: interface.to_owned() })
    }
}

/// The words of a command line, split as containerlab does it: at blanks outside of quotes.
/// containerlab uses no shell, so the runner does not either. Syntax that only a shell understands
/// is refused, because containerlab would pass it to the program.
fn words(line: &str) -> Result<Vec<String>, &'static str> {
    let mut words: Vec<String> = Vec::new();
    let (mut quote, mut inside) = (None, false);
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                if !inside {
                    words.push(String::new());
                    inside = true;
                }
            }
            (None, c) if c.is_whitespace() => inside = false,
            (None, ';' | '|' | '&' | '<' | '>' | '`' | '*') => {
                return Err("needs a shell, and containerlab starts none; write sh -c '…'");
            }
            (_, '\\') => return Err("has a backslash, which shells and containerlab read differently"),
            (_, c) => {
                if !inside {
                    words.push(String::new());
                    inside = true;
                }
                if let Some(word) = words.last_mut() {
                    word.push(c);
                }
            }
        }
    }
    match quote {
        Some(_) => Err("has a quote that is not closed"),
        None if words.is_empty() => Err("is empty"),
        None => Ok(words),
    }
}

fn images() -> String {
    Image::NAMES.map(|(name, _)| name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Topology, TopologyError> {
        let folder = tempfile::tempdir().expect("a scratch folder");
        std::fs::write(folder.path().join("a.conf"), "").expect("a bind source");
        Topology::parse(&folder.path().join("t.clab.yml"), text)
    }

    const GOOD: &str = r#"
name: t
topology:
  defaults: { network-mode: none }
  kinds: { linux: { sysctls: { net.ipv4.ip_forward: 1 } } }
  nodes:
    r1: { kind: linux, image: "trunkline-lab/frr:8.4", binds: ["a.conf:/etc/frr/frr.conf"], labels: { role: tor } }
    h1: { kind: linux, image: trunkline-lab/host, env: { A: 1 }, exec: ["sh -c 'ip link; ip addr'"] }
  links:
    - endpoints: ["r1:eth1", "h1:eth1"]
      mtu: 1500
"#;

    #[test]
    fn a_valid_file_is_read_completely() {
        let t = parse(GOOD).expect("a valid topology");
        assert_eq!(t.nodes["r1"].image, Image::Frr);
        assert_eq!(t.nodes["h1"].image, Image::Host);
        assert_eq!(t.nodes["h1"].sysctls["net.ipv4.ip_forward"], "1");
        assert_eq!(t.nodes["r1"].binds[0].1, PathBuf::from("/etc/frr/frr.conf"));
        assert_eq!(t.with_role("tor").collect::<Vec<_>>(), ["r1"]);
        assert_eq!(t.nodes["h1"].exec, [["sh", "-c", "ip link; ip addr"]]);
        assert_eq!(t.links.len(), 1);
        assert_eq!(t.packages().into_iter().collect::<Vec<_>>(), ["frr"]);
    }

    /// Each row: a change of the valid file, and the words of the error.
    #[test]
    fn each_fault_is_named_with_file_and_field() {
        let rows: [(&str, &str, &[&str]); 16] = [
            ("role: tor", "role: tor }, colour: { a: b", &["colour", "line"]),
            ("kind: linux, image: \"", "kind: srl, image: \"", &["topology.nodes.r1.kind", "srl", "linux"]),
            ("trunkline-lab/frr:8.4", "frr:8", &["topology.nodes.r1.image", "trunkline-lab/frr"]),
            ("a.conf:/etc", "b.conf:/etc", &["topology.nodes.r1.binds[0]", "b.conf", "not exist"]),
            ("a.conf:/etc", "/a.conf:/etc", &["topology.nodes.r1.binds[0]", "in the folder"]),
            ("a.conf:/etc", "a.conf:/usr", &["topology.nodes.r1.binds[0]", "/usr"]),
            ("\"h1:eth1\"", "\"h2:eth1\"", &["topology.links[0].endpoints", "h2"]),
            ("\"h1:eth1\"", "\"r1:eth1\"", &["topology.links[0].endpoints", "two links"]),
            ("\"h1:eth1\"", "\"h1:eth0\"", &["topology.links[0].endpoints", "eth0"]),
            ("mtu: 1500", "mtu: 500", &["topology.links[0].mtu", "500"]),
            ("      mtu: 1500\n", "", &["topology.links[0].mtu", "missing", "9500"]),
            ("{ network-mode: none }", "{}", &["network-mode", "missing", "management"]),
            ("network-mode: none", "network-mode: host", &["network-mode", "none"]),
            ("sh -c 'ip link; ip addr'", "ip link; ip addr", &["topology.nodes.h1.exec[0]", "sh -c"]),
            ("; ip addr'", "; ip addr $X'", &["line 8", "variables"]),
            ("ip addr'", "ip addr", &["topology.nodes.h1.exec[0]", "not closed"]),
        ];
        for (from, to, words) in rows {
            assert!(GOOD.contains(from), "{from}");
            let error = parse(&GOOD.replacen(from, to, 1)).expect_err(to).to_string();
            assert!(error.contains("t.clab.yml"), "{error}");
            for word in words {
                assert!(error.contains(word), "{to}: {error:?} lacks {word:?}");
            }
        }
    }

    #[test]
    fn every_topology_in_the_repository_is_valid() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("topologies");
        let files: Vec<_> = std::fs::read_dir(folder)
            .expect("the topologies folder")
            .filter_map(|e| Some(e.ok()?.path()))
            .filter(|p| p.to_string_lossy().ends_with(".clab.yml"))
            .collect();
        assert!(!files.is_empty());
        for file in files {
            let topology = Topology::load(&file).unwrap_or_else(|e| panic!("{e}"));
            let name = file.file_name().and_then(|n| n.to_str()).expect("a name");
            assert_eq!(format!("{}.clab.yml", topology.name), name, "a topology is found by its name");
        }
    }
}
