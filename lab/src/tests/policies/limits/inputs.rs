//! The inputs of the page: for each row a function that writes it at a multiple of its bound.
//!
//! ```text
//! policies  the rows about network policies
//! pods      what a pod, its Namespace and its owner have
//! others    Services, EndpointSlices, objects of Multus and KubeVirt, Nodes
//! write     objects of the tenant, and their end
//! ```

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::super::world::World;

mod others;
mod pods;
mod policies;
mod write;

pub(super) use write::{ATTACHED, CRDS, NAMESPACES, clear, namespace};

/// One row of the page.
#[derive(Debug)]
pub(super) struct Input {
    /// The first cell of the row.
    pub row: &'static str,
    /// Whether it is among the most expensive ones, which the suite writes too.
    pub costly: bool,
    /// Writes objects at a multiple of the bound. The API server may refuse them.
    pub write: fn(&World<'_>, usize) -> Result<()>,
}

const fn input(row: &'static str, write: fn(&World<'_>, usize) -> Result<()>) -> Input {
    Input { row, costly: false, write }
}

const fn costly(row: &'static str, write: fn(&World<'_>, usize) -> Result<()>) -> Input {
    Input { row, costly: true, write }
}

/// Rows that no tenant of an API server can exceed, with the reason. The tests that the rows name
/// write them.
const ELSEWHERE: &[(&str, &[&str])] = &[
    (
        "no object is so large: the tests have a server of their own",
        &[
            "an object of a list from the API server's cache",
            "any other answer, and a page of one object",
            "an event of a watch",
        ],
    ),
    (
        "another API server answers: the tests have one",
        &[
            "number of objects",
            "all objects together",
            "names, and each text that the controller copies",
            "addresses of a Subnet",
            "addresses of pods on a node",
            "writes of mirrored objects",
            "writes of one mirrored object",
            "the status of a RemoteCluster, and events about a plan",
            "texts of conditions and events of a RemoteCluster",
        ],
    ),
    (
        "only a node's kubelet or agent can write it, and the node's pods need it",
        &[
            "labels of the own Node",
            "Leases of L2 addresses",
            "the same, in the memory of agents",
            "a NodeServices",
            "`status.truncated` of a NodeServices",
            "`spec.vtepInfo.mac`, and the status of a NodeInfo",
            "labels and annotations of a NodeInfo or NodeServices",
            "the condition `NetworkUnavailable` of a Node",
            "the status of an IPInstance",
        ],
    ),
    (
        "the rows are about generations of a workload, and about administrators",
        &[
            "further interfaces with addresses, retained ones included, of a StatefulSet's pod name or of a virtual machine",
            "a key that no label can have",
            "number of ClusterNetworkPolicies",
        ],
    ),
];

/// The inputs in the order of the page.
pub(super) fn all() -> impl Iterator<Item = &'static Input> {
    pods::INPUTS.iter().chain(others::INPUTS).chain(policies::INPUTS)
}

/// Fails if an input has no row on the page, or a row no input.
pub(super) fn match_rows(repository: &Path) -> Result<()> {
    let file = repository.join("docs/limits.md");
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let elsewhere = ELSEWHERE.iter().flat_map(|(_, rows)| rows.iter().copied());
    let inputs: BTreeSet<&str> = all().map(|input| input.row).chain(elsewhere).collect();
    let rows = rows(&text);
    let (without_row, without_input): (Vec<_>, Vec<_>) =
        (inputs.difference(&rows).collect(), rows.difference(&inputs).collect());
    ensure!(without_row.is_empty(), "no rows of docs/limits.md: {without_row:?}");
    ensure!(without_input.is_empty(), "rows of docs/limits.md that no input writes: {without_input:?}");
    Ok(())
}

/// The first cells of all tables.
fn rows(page: &str) -> BTreeSet<&str> {
    let lines = page.lines().filter_map(|line| line.strip_prefix("| "));
    lines.filter_map(|line| line.split(" | ").next()).filter(|cell| *cell != "input").collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{match_rows, rows};

    #[test]
    fn first_cells_of_tables_are_rows() {
        let page = "# T\n\n| input | bound |\n|---|---|\n| a b | 8 |\n| `c` | 9 |\ntext | d\n";
        assert_eq!(rows(page).into_iter().collect::<Vec<_>>(), ["`c`", "a b"]);
    }

    #[test]
    fn every_row_of_the_page_has_an_input() {
        match_rows(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap();
    }
}
