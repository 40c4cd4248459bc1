//! The tables of docs/services.md: the source address that a backend sees, by the lab's Services
//! matrix, and the tests for it.

use std::fmt::Write as _;

use crate::tests::services;
use crate::tests::services::cells::{Backend, Cell, Client, Frontend, Policy};

/// The page, with its hand-written part.
const PAGE: &str = include_str!("../../../docs/services.md");

/// The page with current tables.
pub(super) fn page() -> String {
    let page = between(PAGE, "cells", &cells());
    between(&page, "tests", &tested())
}

/// Replaces the text between `<!-- name -->` and `<!-- /name -->`.
fn between(page: &str, name: &str, text: &str) -> String {
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
    let Some((before, rest)) = page.split_once(&begin) else { return page.to_owned() };
    let Some((_, after)) = rest.split_once(&end) else { return page.to_owned() };
    format!("{before}{begin}\n{text}\n{end}{after}")
}

/// One row for each kind of request. Frontends with the same promises share a row.
fn cells() -> String {
    let external = [Frontend::NodePort, Frontend::LoadBalancer, Frontend::ExternalIp];
    let policies = [Policy::Cluster, Policy::Local];
    let external = external.into_iter().flat_map(|f| policies.map(|policy| (f, Some(policy))));
    let frontends =
        [(Frontend::ClusterIp, None)].into_iter().chain(external).chain([(Frontend::HostPort, None)]);
    let mut rows: Vec<(Vec<Frontend>, Option<Policy>, Vec<String>)> = Vec::new();
    for (frontend, policy) in frontends {
        let row: Vec<String> = Client::ALL.iter().map(|client| cell(frontend, policy, *client)).collect();
        match rows.iter_mut().find(|(_, of, cells)| (*of, cells) == (policy, &row)) {
            Some((names, ..)) => names.push(frontend),
            None => rows.push((vec![frontend], policy, row)),
        }
    }
    let mut text = "| Asked | Policy |".to_owned();
    for client in Client::ALL {
        let _ = write!(
            text,
            " From {} |",
            if client == Client::Outside { "outside".to_owned() } else { the(client) }
        );
    }
    text.push_str("\n|---|---|---|---|---|---|\n");
    for (names, policy, cells) in rows {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let policy = policy.map_or("any".to_owned(), |policy| policy.to_string());
        let _ = writeln!(text, "| {} | {policy} | {} |", names.join(", "), cells.join(" | "));
    }
    text
}

fn the(client: Client) -> String {
    match client {
        Client::Backend => client.to_string(),
        _ => format!("the {client}"),
    }
}

/// The promise for any location of the backend, or by location if it matters.
fn cell(frontend: Frontend, policy: Option<Policy>, client: Client) -> String {
    let promise = |backend| Cell { frontend, policy, backend, client }.promise().to_string();
    let [here, rack, beyond] = Backend::ALL.map(promise);
    if here == rack && rack == beyond {
        return here;
    }
    if rack == beyond {
        return format!("backend on this node: {here}; on another: {rack}");
    }
    let each = Backend::ALL.map(|backend| format!("backend on {backend}: {}", promise(backend)));
    each.join("; ")
}

/// The tests of the cells, for each network.
fn tested() -> String {
    let mut text =
        "| Network | kube-proxy `iptables` | kube-proxy `nftables` | connections |\n|---|---|---|---|\n"
            .to_owned();
    for (network, tests) in services::coverage() {
        let [iptables, nftables] = tests;
        let count = 2 * Cell::all().len();
        let _ = writeln!(text, "| {network} | `{iptables}` | `{nftables}` | {count} in each |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_between_marks_is_replaced() {
        let page = "a\n<!-- x -->\nold\n<!-- /x -->\nb";
        assert_eq!(between(page, "x", "new"), "a\n<!-- x -->\n\nnew\n<!-- /x -->\nb");
    }

    #[test]
    fn writing_twice_changes_nothing() {
        let once = between(&between(PAGE, "cells", &cells()), "tests", &tested());
        assert_eq!(between(&between(&once, "cells", &cells()), "tests", &tested()), once);
    }
}
