//! Threads that enter a pod's namespace and run ADD, CHECK or DEL there.
//!
//! **Cost.** One ADD needs four `send` calls: create the pair (with the pod interface directly in
//! the pod's namespace), configure the host interface, configure the pod, wait for the host
//! interface. One more call for each family looks for a default route of another interface in the
//! pod (`second`). ADD lists nothing on the host, so it costs nearly the same with 1,000 pods. Only
//! pods with bandwidth limits, a slave or a second interface need more calls. One DEL needs two
//! `send` calls: find the pair and its `ifb` device, and delete them.
//!
//! The order of the requests limits the cost. Each time a link that is up changes its state, the
//! kernel goes through every IPv6 route of the namespace. So ADD first requests the link (the
//! kernel then processes the pending event that the link has no carrier) and changes its settings.
//! Then it sets the link up without carrier. One pass through the routes remains, at the moment
//! when the pod interface gives the link carrier. (Two measures gave no gain. `disable_ipv6` on the
//! link of a pod without IPv6 costs one more pass. The deletion of the ff00::/8 route, which the
//! kernel adds for each link, costs one more request.)

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Semaphore, oneshot};
use trunkline_api::bandwidth::Bandwidth;

use super::device::{Device, DeviceError, DeviceSpec, HOST_MAC, Step};
use super::namespace::NamespaceConfig;
use super::second::Pair;
use super::{bandwidth, check, ipvlan, netns, second, veth};
use crate::naming::{ALIAS_PREFIX, Alias, host_ifname, ifb_name};
use crate::netlink::objects::Veth;
use crate::netlink::{Batch, Connection};
use crate::plan::Attachment;
use crate::sysctl;

/// Creates, checks and deletes devices, each on its own thread. Cheap to clone.
#[derive(Clone)]
pub struct DeviceWorkers {
    shared: Arc<Shared>,
}

struct Shared {
    /// Limits the number of threads. The kernel serializes most of the work, so more threads would
    /// only wait.
    slots: Semaphore,
    /// The network namespace of the host.
    home: OwnedFd,
    /// Unused sockets in the host's namespace.
    idle: Mutex<Vec<Connection>>,
}

impl DeviceWorkers {
    /// Creates workers for at most `threads` attachments at once. The host's side is the network
    /// namespace of the calling thread.
    pub fn spawn(threads: usize) -> Result<DeviceWorkers, DeviceError> {
        let shared = Shared {
            slots: Semaphore::new(threads.max(1)),
            home: netns::current().map_err(DeviceError::Namespace)?,
            idle: Mutex::new(vec![Connection::open().step("open a socket")?]),
        };
        Ok(DeviceWorkers { shared: Arc::new(shared) })
    }

    /// Runs `inspect` with two sockets: one in the host's namespace and one in the pod's.
    pub async fn inspect<T: Send + 'static>(
        &self,
        netns: OwnedFd,
        inspect: impl FnOnce(&mut Connection, &mut Connection) -> Result<T, DeviceError> + Send + 'static,
    ) -> Result<T, DeviceError> {
        self.run(move |host| {
            netns::enter(netns.as_fd()).map_err(DeviceError::Namespace)?;
            let mut pod = Connection::open().step("open a socket in the pod's namespace")?;
            inspect(host, &mut pod)
        })
        .await
    }

    /// Creates the device of `spec`, or completes an existing one. `created` gets the index of the
    /// host interface as soon as it exists, before it is up.
    pub async fn attach(
        &self,
        netns: OwnedFd,
        spec: DeviceSpec,
        created: impl FnOnce(u32) + Send + 'static,
    ) -> Result<Device, DeviceError> {
        self.run(move |host| {
            netns::enter(netns.as_fd()).map_err(DeviceError::Namespace)?;
            let mut pod = Connection::open().step("open a socket in the pod's namespace")?;
            attach_device(host, &mut pod, netns.as_fd(), &spec, created)
        })
        .await
    }

    /// Deletes a device and its rules in the pod, if the pod's namespace still exists. Returns
    /// false if there was no device.
    pub async fn detach(&self, host_ifname: String, netns: Option<OwnedFd>) -> Result<bool, DeviceError> {
        self.run(move |host| detach_device(host, &host_ifname, netns)).await
    }

    /// The owner of a device: container ID and interface name. None if the alias has only a part of
    /// the container ID.
    pub async fn owner(&self, host_ifname: String) -> Result<Option<(String, String)>, DeviceError> {
        self.run(move |host| {
            let link = veth::find(host, &host_ifname)?;
            let alias = link.as_ref().map(veth::alias);
            let whole =
                |alias: &Alias<'_>| self::host_ifname(alias.container_id, alias.ifname) == host_ifname;
            Ok(alias.filter(whole).map(|alias| (alias.container_id.to_owned(), alias.ifname.to_owned())))
        })
        .await
    }

    /// Restores missing limits of a device. Returns the faults; none if the device is deleted.
    pub async fn repair_limits(
        &self,
        host_ifname: String,
        limits: Bandwidth,
    ) -> Result<Vec<String>, DeviceError> {
        self.run(move |host| {
            let mut faults = Vec::new();
            let Some(link) = veth::find(host, &host_ifname)? else { return Ok(faults) };
            veth::check_owner(&link)?;
            bandwidth::check(host, &link, &limits, &mut faults)?;
            if !faults.is_empty() {
                bandwidth::limit(host, &link, link.alias.as_deref().unwrap_or(ALIAS_PREFIX), &limits)?;
            }
            Ok(faults)
        })
        .await
    }

    /// Checks that the device of `spec` is complete, including the host's routes and neighbour
    /// entries.
    pub async fn check(&self, netns: OwnedFd, spec: DeviceSpec) -> Result<Device, DeviceError> {
        self.inspect(netns, move |host, pod| check::check_device(host, pod, &spec)).await
    }

    async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Connection) -> Result<T, DeviceError> + Send + 'static,
    ) -> Result<T, DeviceError> {
        let gone = || DeviceError::Thread(io::Error::other("the thread ended without an answer"));
        let _slot = self.shared.slots.acquire().await.map_err(|_| gone())?;
        let shared = Arc::clone(&self.shared);
        let (reply, answer) = oneshot::channel();
        std::thread::Builder::new()
            .name("attach".to_owned())
            .spawn(move || {
                let idle = shared.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
                let host = match idle {
                    Some(host) => Ok(host),
                    // The calling thread can be in any namespace, so the new thread enters the
                    // host's namespace.
                    None => netns::enter(shared.home.as_fd())
                        .map_err(DeviceError::Namespace)
                        .and_then(|()| Connection::open().step("open a socket")),
                };
                let result = host.and_then(|mut host| {
                    let result = job(&mut host);
                    // The socket is still usable after a lost answer, because answers are matched
                    // by sequence number.
                    shared.idle.lock().unwrap_or_else(PoisonError::into_inner).push(host);
                    result
                });
                let _ = reply.send(result); // if the caller no longer waits, GC deletes the device
            })
            .map_err(DeviceError::Thread)?;
        answer.await.map_err(|_| gone())?
    }
}

/// Creates the device, or completes it.
fn attach_device(
    host: &mut Connection,
    pod: &mut Connection,
    netns: BorrowedFd<'_>,
    spec: &DeviceSpec,
    created: impl FnOnce(u32),
) -> Result<Device, DeviceError> {
    let host_name = host_ifname(&spec.container_id, &spec.ifname);
    let pair_mac = spec.pair_mac();
    let veth = Veth {
        host_name: &host_name,
        host_mac: HOST_MAC,
        pod_name: &spec.pair_name(),
        pod_mac: pair_mac,
        mtu: spec.mtu,
    };
    if spec.addresses.iter().any(IpAddr::is_ipv6) {
        enable_ipv6();
    }

    let (link, new) = veth::create(host, pod, netns, &veth)?;
    created(link.index);
    let was_second = veth::alias(&link).second;
    let alias = spec.alias(was_second);

    let mut batch = Batch::new();
    batch.set_host_end(link.index, &alias);
    batch.set_up(link.index);
    host.run(&mut batch)
        .step("configure the host interface")?
        .check(&[])
        .step("configure the host interface")?;
    bandwidth::limit(host, &link, &alias, &spec.bandwidth)?;

    let pair = link.peer.unwrap_or_default();
    batch.clear();
    let (inside, mac, mtu) = match &spec.attachment {
        Attachment::Veth => (NamespaceConfig::veth(spec, pair), pair_mac, link.mtu),
        Attachment::Ipvlan(ipvlan) => {
            let slave = ipvlan::create(host, netns, &link, spec, ipvlan)?;
            ipvlan::refuse_advertisements(&slave)?;
            if slave.name != spec.ifname {
                batch.rename(slave.index, &spec.ifname);
            }
            for index in [pair, slave.index] {
                batch.set_pod_link(index, &alias);
            }
            batch.set_up(slave.index);
            (NamespaceConfig::ipvlan(ipvlan, slave.index, pair), slave.mac.unwrap_or_default(), slave.mtu)
        }
    };
    batch.set_up(pair);
    let inside = second::settle(pod, inside, Pair { index: pair, new }, &spec.destinations, spec.several)?;
    if inside.has_rules() && !was_second {
        mark_second(host, link.index, spec)?;
    }
    let rules = inside.put(&mut batch);
    let outcome = pod.run(&mut batch).step("configure the pod")?.without(rules, libc::EEXIST);
    outcome.check(&[]).step("configure the pod")?;

    batch.clear();
    // The host interface was up before it had carrier. It sends nothing until the kernel's link
    // watch runs. A request for the link makes the kernel (6.8 and later) run the link watch first,
    // so the first packet to the pod is not lost.
    batch.get_link_at(link.index);
    host.run(&mut batch)
        .step("wait for the host interface")?
        .check(&[])
        .step("wait for the host interface")?;
    Ok(Device {
        host_ifname: host_name,
        host_ifindex: link.index,
        host_mac: HOST_MAC,
        mac,
        pair_mac,
        mtu,
        routes: inside.main(),
    })
}

/// Writes the mark of a second interface into the alias, before the rules are added in the pod.
fn mark_second(host: &mut Connection, index: u32, spec: &DeviceSpec) -> Result<(), DeviceError> {
    const STEP: &str = "write the mark of a second interface";
    let mut batch = Batch::new();
    batch.set_alias(index, &spec.alias(true));
    host.run(&mut batch).step(STEP)?.check(&[]).step(STEP)?;
    Ok(())
}

/// Deletes the pair and its `ifb` device, and removes rules from the pod. Returns false if there
/// was no device.
fn detach_device(
    host: &mut Connection,
    host_ifname: &str,
    netns: Option<OwnedFd>,
) -> Result<bool, DeviceError> {
    let limiting = ifb_name(host_ifname);
    let names: Vec<&str> = std::iter::once(host_ifname).chain(limiting.as_deref()).collect();
    // The pair and its `ifb` device are requested at once, because the `ifb` device outlives the
    // pair if the pod's namespace is deleted first.
    let links = veth::find_all(host, &names)?;
    let mut deleted = false;
    for link in &links {
        veth::check_owner(link)?;
        if let (true, Some(pair), Some(netns)) = (veth::alias(link).second, link.peer, &netns)
            && let Err(error) = delete_rules(pair, netns.as_fd())
        {
            tracing::debug!(device = host_ifname, %error, "the policy rules in the pod were not deleted");
        }
        deleted |= veth::delete(host, link)?;
    }
    Ok(deleted)
}

/// Removes a second interface's rules from the pod. The calling thread enters the pod's namespace.
fn delete_rules(pair: u32, netns: BorrowedFd<'_>) -> Result<(), DeviceError> {
    netns::enter(netns).map_err(DeviceError::Namespace)?;
    let mut pod = Connection::open().step("open a socket in the pod's namespace")?;
    second::delete_rules(&mut pod, pair)
}

/// Enables IPv6 in the pod's namespace: runtimes disable it if they configured no IPv6 address.
/// `/proc/sys/net` shows the namespace of the calling thread. A write error is ignored, because the
/// request that adds the address then fails with a reason.
fn enable_ipv6() {
    for scope in ["default", "all"] {
        let path = sysctl::file(&format!("net/ipv6/conf/{scope}/disable_ipv6"));
        if std::fs::read(&path).is_ok_and(|value| value.starts_with(b"1")) {
            let _ = std::fs::write(&path, "0");
        }
    }
}
