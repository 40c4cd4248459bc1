//! A pod's bandwidth limits, at its host interface, where the pod cannot remove them.
//!
//! Packets **to** the pod leave the host by that interface, whose queue is a token bucket (`tbf`).
//! Packets **from** the pod arrive at that interface and are redirected through an `ifb` device
//! with the same kind of queue ([`tc`](crate::netlink::tc) has the reason). The rest of the host
//! sees these packets as received by the pair: policy rules, reverse path checks and captures do
//! not change.
//!
//! If the request has no burst, the burst is the rate times `BURST_TIME`, and at least
//! `LEAST_BURST`. With a smaller burst, TCP cannot fill a fast link. The queue holds the burst and
//! the rate times `WAIT`, as with the reference plugin.
//!
//! The agent repairs limits that other programs remove. The kernel sends notifications about qdiscs
//! and filters, and the attach flow (`Pods::keep_limits` of the agent) checks the pair of the
//! notification. Changes of an ADD cause notifications too. The check then finds no fault.
//!
//! The `ifb` device has the pair's name with the prefix `tb`. The kernel does not delete it with
//! the pair, so DEL deletes both.

use std::time::Duration;

use trunkline_api::bandwidth::{Bandwidth, RateLimit};

use super::device::{DeviceError, Step};
use super::veth::{check_owner, find, first_link};
use crate::naming::ifb_name;
use crate::netlink::objects::LinkInfo;
use crate::netlink::tc::{TokenBucket, read_redirect, read_token_bucket_rate};
use crate::netlink::{Batch, Connection, Refusal};

const BURST_TIME: Duration = Duration::from_millis(50);
const LEAST_BURST: u64 = 128 << 10;
const WAIT: Duration = Duration::from_millis(25);
/// Length of the Ethernet header, which the kernel counts too.
const HEADER: u32 = 14;

/// The queue for a limit on a link with this MTU.
fn bucket(limit: &RateLimit, mtu: u32) -> TokenBucket {
    let rate = limit.rate.div_ceil(8);
    let carried = |time: Duration| {
        let octets = u128::from(rate) * time.as_nanos() / Duration::from_secs(1).as_nanos();
        u64::try_from(octets).unwrap_or(u64::MAX)
    };
    let burst = limit.burst.map_or_else(|| carried(BURST_TIME).max(LEAST_BURST), |bits| bits / 8);
    // A packet larger than the burst would never be sent.
    let burst = burst.max(u64::from(mtu) + u64::from(HEADER));
    let narrow = |octets: u64| u32::try_from(octets).unwrap_or(u32::MAX);
    TokenBucket { rate, burst: narrow(burst), limit: narrow(burst.saturating_add(carried(WAIT))) }
}

/// Installs the limits of a pair; `alias`: the alias of the pair. A repeated call changes nothing.
pub(super) fn limit(
    host: &mut Connection,
    link: &LinkInfo,
    alias: &str,
    bandwidth: &Bandwidth,
) -> Result<(), DeviceError> {
    let mut batch = Batch::new();
    if let Some(limit) = &bandwidth.ingress {
        batch.put_token_bucket(link.index, &bucket(limit, link.mtu));
        let outcome = host.run(&mut batch).step("limit packets to the pod")?.check(&[]);
        outcome.map_err(|refusal| missing(refusal, "sch_tbf")).step("limit packets to the pod")?;
    }
    let (Some(limit), Some(name)) = (&bandwidth.egress, ifb_name(&link.name)) else { return Ok(()) };
    const STEP: &str = "limit packets from the pod";
    batch.clear();
    batch.create_ifb(&name);
    batch.get_link(&name);
    let outcome = host.run(&mut batch).step(STEP)?;
    if let Some(refusal) = outcome.refusal(0).filter(|refusal| refusal.errno != libc::EEXIST) {
        return Err(missing(refusal.clone(), "ifb")).step(STEP);
    }
    let Some(ifb) = first_link(&outcome) else {
        return Err(DeviceError::Check(vec![format!("{name} disappeared at once")]));
    };
    check_owner(&ifb)?;
    let modules = ["ifb", "ifb", "sch_tbf", "sch_ingress", "cls_u32 and act_mirred"];
    batch.clear();
    batch.set_alias(ifb.index, alias);
    batch.set_up(ifb.index);
    batch.put_token_bucket(ifb.index, &bucket(limit, link.mtu));
    batch.put_clsact(link.index);
    batch.put_redirect(link.index, ifb.index);
    let outcome = host.run(&mut batch).step(STEP)?.check(&[]);
    let named = |refusal: Refusal| {
        let module = modules.get(refusal.index).copied().unwrap_or_default();
        missing(refusal, module)
    };
    outcome.map_err(named).step(STEP)?;
    Ok(())
}

/// Adds the name of the missing module to a refusal for an unknown qdisc, filter or device.
fn missing(refusal: Refusal, module: &str) -> Refusal {
    match refusal.errno {
        libc::ENOENT | libc::EOPNOTSUPP => {
            Refusal { note: Some(format!("the kernel lacks the driver: modprobe {module}")), ..refusal }
        }
        _ => refusal,
    }
}

/// Checks that the limits of a pair are installed.
pub(super) fn check(
    host: &mut Connection,
    link: &LinkInfo,
    bandwidth: &Bandwidth,
    faults: &mut Vec<String>,
) -> Result<(), DeviceError> {
    if let Some(limit) = &bandwidth.ingress
        && !is_limited(host, link, limit)?
    {
        faults.push(format!("{} does not limit packets to the pod", link.name));
    }
    let (Some(limit), Some(name)) = (&bandwidth.egress, ifb_name(&link.name)) else { return Ok(()) };
    match find(host, &name)? {
        None => faults.push(format!("{name}, which limits packets from the pod, does not exist")),
        Some(ifb) if !ifb.is_up() => faults.push(format!("{name} is down")),
        Some(ifb) => {
            if !is_limited(host, &ifb, limit)? {
                faults.push(format!("{name} does not limit packets from the pod"));
            }
            if redirect(host, link.index)? != Some(ifb.index) {
                faults.push(format!("{} does not redirect packets from the pod to {name}", link.name));
            }
        }
    }
    Ok(())
}

fn is_limited(host: &mut Connection, link: &LinkInfo, limit: &RateLimit) -> Result<bool, DeviceError> {
    let mut batch = Batch::new();
    batch.get_root_qdisc(link.index);
    let outcome = host.run(&mut batch).step("read the limits")?;
    let rate = outcome.replies.iter().find_map(|(_, _, body)| read_token_bucket_rate(body));
    Ok(rate == Some(bucket(limit, link.mtu).rate))
}

fn redirect(host: &mut Connection, index: u32) -> Result<Option<u32>, DeviceError> {
    let filters = |batch: &mut Batch| batch.dump_ingress_filters(index);
    Ok(host.list(filters, read_redirect).step("read the limits")?.pop())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_size_is_within_one_packet_and_the_kernels_limit() {
        let bucket = |rate, burst, mtu| bucket(&RateLimit { rate, burst }, mtu);
        let ten_megabit = bucket(10_000_000, None, 1500);
        assert_eq!(ten_megabit, TokenBucket { rate: 1_250_000, burst: 131_072, limit: 131_072 + 31_250 });
        let gigabit = bucket(10_000_000_000, None, 1500);
        assert_eq!((gigabit.rate, gigabit.burst), (1_250_000_000, 62_500_000));
        assert_eq!(bucket(10_000_000, Some(800_000), 1500).burst, 100_000);
        assert_eq!(bucket(10_000_000, Some(8), 9000).burst, 9014);
        let most = bucket(u64::MAX, Some(RateLimit::MAX_BURST), 1500);
        assert_eq!((most.burst, most.limit), (u32::MAX, u32::MAX));
        assert_eq!(bucket(RateLimit::MIN_RATE, None, 1500).rate, 125);
    }

    #[test]
    fn missing_module_is_named() {
        let refused = |errno| missing(Refusal { index: 0, errno, note: None }, "ifb").to_string();
        for errno in [libc::ENOENT, libc::EOPNOTSUPP] {
            assert!(
                refused(errno).contains("the kernel lacks the driver: modprobe ifb"),
                "{}",
                refused(errno)
            );
        }
        assert!(!refused(libc::EPERM).contains("modprobe"), "{}", refused(libc::EPERM));
    }
}
