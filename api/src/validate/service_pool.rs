//! Rules for a ServicePool that need no other object.

use super::attributes::{check_number, check_routed, check_selector};
use crate::fault::Faults;
use crate::pool::MAX_SPAN;
use crate::resources::{AddressBlock, PoolMode, ServicePoolSpec};

/// The highest number of blocks of addresses.
const MAX_BLOCKS: usize = 64;
/// The highest number of excluded blocks.
const MAX_EXCLUDED: usize = 1024;
/// The highest number of selectors of one kind.
const MAX_SELECTORS: usize = 16;
/// The highest priority.
const MAX_PRIORITY: u32 = 1000;

pub(super) fn check(spec: &ServicePoolSpec, faults: &mut Faults<'_>) {
    if spec.addresses.is_empty() {
        faults.add("spec.addresses", "missing: write at least one prefix, range or address");
    }
    check_number("spec.addresses", "blocks", spec.addresses.len(), MAX_BLOCKS, faults);
    let mut blocks: Vec<AddressBlock> = Vec::new();
    for (index, text) in spec.addresses.iter().enumerate() {
        let field = format!("spec.addresses[{index}]");
        let block: AddressBlock = match text.parse() {
            Ok(block) => block,
            Err(error) => {
                faults.add(field, format!("{error}"));
                continue;
            }
        };
        check_routed(&field, &block, faults);
        if block.is_ipv4() && block.count() > MAX_SPAN {
            faults.add(
                &*field,
                format!("{block} has more than {MAX_SPAN} addresses: write a prefix of length 12 or more, or several blocks"),
            );
        }
        if let Some(other) = blocks.iter().find(|other| other.overlaps(&block)) {
            faults.add(field, format!("{block} overlaps {other} of the same pool: write each address once"));
        }
        blocks.push(block);
    }
    check_number("spec.exclude", "blocks", spec.exclude.len(), MAX_EXCLUDED, faults);
    for (index, text) in spec.exclude.iter().enumerate() {
        if let Err(error) = text.parse::<AddressBlock>() {
            faults.add(format!("spec.exclude[{index}]"), error.to_string());
        }
    }
    if let Some(priority) = spec.priority.filter(|priority| *priority > MAX_PRIORITY) {
        faults.add("spec.priority", format!("{priority} is not a priority: write 0 to {MAX_PRIORITY}"));
    }
    for (field, selectors) in
        [("serviceSelectors", &spec.service_selectors), ("namespaceSelectors", &spec.namespace_selectors)]
    {
        check_number(&format!("spec.{field}"), "selectors", selectors.len(), MAX_SELECTORS, faults);
        for (index, selector) in selectors.iter().enumerate() {
            check_selector(selector, &format!("spec.{field}[{index}]"), faults);
        }
    }
    match (spec.mode, &spec.l2) {
        (PoolMode::L2, None) => {
            faults.add("spec.l2", "missing: mode L2 needs the Network of the addresses: write l2.network")
        }
        (PoolMode::BGP, Some(_)) => {
            faults.add("spec.l2", "the mode is BGP: write mode: L2, or leave l2 out");
        }
        (PoolMode::L2, Some(l2)) if l2.network.is_empty() => {
            faults.add("spec.l2.network", "missing: write the name of a Network of mode VLAN");
        }
        _ => {}
    }
}

pub(super) fn check_change(old: &ServicePoolSpec, new: &ServicePoolSpec, faults: &mut Faults<'_>) {
    if old.mode != new.mode {
        faults.add(
            "spec.mode",
            format!(
                "{:?}: it was {:?} and cannot change: put it back, or make a new ServicePool",
                new.mode, old.mode
            ),
        );
    }
}
