//! Threads that enter a pod's namespace and do ADD, CHECK or DEL there.
//!
//! **Cost.** One ADD is four `send`s: create the pair (the other end is directly in the pod's namespace), set up the host's end,
//! set up the pod's, wait for the host's; and one more for each family, which asks the pod for a default route that somebody else has
//! (`second`). Of the host nothing is listed, so that it costs nearly the same with 1,000 pods there. Limits, a slave and a second
//! interface cost more to whoever has them. One DEL is two `send`s: find the pair and what limits it, delete what is there.
//!
//! The order within them is what keeps it so. Each time a link that is up changes its state, the kernel walks through every IPv6 route of the
//! namespace; so asking for the link (which settles the news that it has no carrier yet) and the settings come first, then up
//! without carrier, and the one walk that remains is when the pod's end gives it carrier. (Tried, and not worth it: `disable_ipv6` on
//! the link of a pod without IPv6, which costs a walk of its own; taking out the ff00::/8 that the kernel adds for each link, which is one more
//! request and gains nothing that can be measured.)

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

/// Makes, checks and deletes devices, each on a thread of its own. Cheap to clone.
#[derive(Clone)]
pub struct DeviceWorkers {
    shared: Arc<Shared>,
}

struct Shared {
    /// How many at once: the kernel does most of it one by one, so that more would only wait there.
    slots: Semaphore,
    /// The host's network namespace.
    home: OwnedFd,
    /// Sockets of the host's namespace that are not in use.
    idle: Mutex<Vec<Connection>>,
}

impl DeviceWorkers {
    /// For at most `threads` attachments at once. The host's side is the network namespace of the calling thread.
    pub fn spawn(threads: usize) -> Result<DeviceWorkers, DeviceError> {
        let shared = Shared {
            slots: Semaphore::new(threads.max(1)),
            home: netns::current().map_err(DeviceError::Namespace)?,
            idle: Mutex::new(vec![Connection::open().step("open a socket")?]),
        };
        Ok(DeviceWorkers { shared: Arc::new(shared) })
    }

    /// Looks at a pod from both sides: the host's socket, and one of the pod's namespace.
    pub async fn look<T: Send + 'static>(
        &self,
        netns: OwnedFd,
        look: impl FnOnce(&mut Connection, &mut Connection) -> Result<T, DeviceError> + Send + 'static,
    ) -> Result<T, DeviceError> {
        self.run(move |host| {
            netns::enter(netns.as_fd()).map_err(DeviceError::Namespace)?;
            let mut pod = Connection::open().step("open a socket in the pod's namespace")?;
            look(host, &mut pod)
        })
        .await
    }

    /// Makes the device of `spec`, or completes what is there of it.
    pub async fn attach(&self, netns: OwnedFd, spec: DeviceSpec) -> Result<Device, DeviceError> {
        self.run(move |host| {
            netns::enter(netns.as_fd()).map_err(DeviceError::Namespace)?;
            let mut pod = Connection::open().step("open a socket in the pod's namespace")?;
            attach_device(host, &mut pod, netns.as_fd(), &spec)
        })
        .await
    }

    /// Deletes a device; in the pod, if its namespace is still there, also what does not go with it. False: there was none.
    pub async fn detach(&self, host_ifname: String, netns: Option<OwnedFd>) -> Result<bool, DeviceError> {
        self.run(move |host| detach_device(host, &host_ifname, netns)).await
    }

    /// Whose device this is: container and interface, where its alias has them whole.
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

    /// Puts the limits of a device in place again where they are not. What was wrong; nothing is with a device that is gone.
    pub async fn mend_limits(
        &self,
        host_ifname: String,
        limits: Bandwidth,
    ) -> Result<Vec<String>, DeviceError> {
        self.run(move |host| {
            let mut faults = Vec::new();
            let Some(link) = veth::find(host, &host_ifname)? else { return Ok(faults) };
            veth::own(&link)?;
            bandwidth::check(host, &link, &limits, &mut faults)?;
            if !faults.is_empty() {
                bandwidth::limit(host, &link, link.alias.as_deref().unwrap_or(ALIAS_PREFIX), &limits)?;
            }
            Ok(faults)
        })
        .await
    }

    /// Looks whether the device of `spec` is whole, the host's routes and neighbours included.
    pub async fn check(&self, netns: OwnedFd, spec: DeviceSpec) -> Result<Device, DeviceError> {
        self.look(netns, move |host, pod| check::check_device(host, pod, &spec)).await
    }

    async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Connection) -> Result<T, DeviceError> + Send + 'static,
    ) -> Result<T, DeviceError> {
        let gone = || DeviceError::Thread(io::Error::other("it ended without an answer"));
        let _slot = self.shared.slots.acquire().await.map_err(|_| gone())?;
        let shared = Arc::clone(&self.shared);
        let (reply, answer) = oneshot::channel();
        std::thread::Builder::new()
            .name("attach".to_owned())
            .spawn(move || {
                let idle = shared.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
                let host = match idle {
                    Some(host) => Ok(host),
                    // The caller's thread may be anywhere; home is where the workers were made.
                    None => netns::enter(shared.home.as_fd())
                        .map_err(DeviceError::Namespace)
                        .and_then(|()| Connection::open().step("open a socket")),
                };
                let result = host.and_then(|mut host| {
                    let result = job(&mut host);
                    // After a lost answer the socket is still good: answers are matched by number.
                    shared.idle.lock().unwrap_or_else(PoisonError::into_inner).push(host);
                    result
                });
                let _ = reply.send(result); // nobody waits any more: the device is there, and GC's matter
            })
            .map_err(DeviceError::Thread)?;
        answer.await.map_err(|_| gone())?
    }
}

/// Makes the device, or completes it.
fn attach_device(
    host: &mut Connection,
    pod: &mut Connection,
    netns: BorrowedFd<'_>,
    spec: &DeviceSpec,
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

    let (link, new) = veth::make(host, pod, netns, &veth)?;
    let was_second = veth::alias(&link).second;
    let alias = spec.alias(was_second);

    let mut batch = Batch::new();
    batch.set_host_end(link.index, &alias);
    batch.set_up(link.index);
    host.run(&mut batch).step("set up the host's end")?.check(&[]).step("set up the host's end")?;
    bandwidth::limit(host, &link, &alias, &spec.bandwidth)?;

    let pair = link.peer.unwrap_or_default();
    batch.clear();
    let (inside, mac, mtu) = match &spec.attachment {
        Attachment::Veth => (NamespaceConfig::veth(spec, pair), pair_mac, link.mtu),
        Attachment::Ipvlan(ipvlan) => {
            let slave = ipvlan::make(host, netns, &link, spec, ipvlan)?;
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
    let inside = second::settle(pod, inside, Pair { index: pair, new }, &spec.destinations)?;
    if inside.is_second() && !was_second {
        mark_second(host, link.index, spec)?;
    }
    let rules = inside.put(&mut batch);
    let outcome = pod.run(&mut batch).step("set up the pod's side")?.without(rules, libc::EEXIST);
    outcome.check(&[]).step("set up the pod's side")?;

    batch.clear();
    // The host's end was up before it had carrier, and sends nothing until the kernel's link watch has had its turn; asking for
    // the link makes the kernel (6.8 and later) do that first, so that the first packet to the pod is not lost.
    batch.get_link_at(link.index);
    host.run(&mut batch).step("wait for the host's end")?.check(&[]).step("wait for the host's end")?;
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

/// Says in the alias that there is something to take out of the pod, before it is put there.
fn mark_second(host: &mut Connection, index: u32, spec: &DeviceSpec) -> Result<(), DeviceError> {
    const STEP: &str = "mark the host's end of a second interface";
    let mut batch = Batch::new();
    batch.set_alias(index, &spec.alias(true));
    host.run(&mut batch).step(STEP)?.check(&[]).step(STEP)?;
    Ok(())
}

/// Deletes the device, and the one that limits it; takes out of the pod what does not go with them. False: there was none.
fn detach_device(
    host: &mut Connection,
    host_ifname: &str,
    netns: Option<OwnedFd>,
) -> Result<bool, DeviceError> {
    let limiting = ifb_name(host_ifname);
    let names: Vec<&str> = std::iter::once(host_ifname).chain(limiting.as_deref()).collect();
    // Both are asked for at once. The one that limits the pair outlives it where the pod's namespace goes first.
    let links = veth::find_all(host, &names)?;
    let mut deleted = false;
    for link in &links {
        veth::own(link)?;
        if let (true, Some(pair), Some(netns)) = (veth::alias(link).second, link.peer, &netns)
            && let Err(error) = forget(pair, netns.as_fd())
        {
            tracing::debug!(device = host_ifname, %error, "what a DEL leaves in the pod stays there");
        }
        deleted |= veth::delete(host, link)?;
    }
    Ok(deleted)
}

/// Takes a second interface's rules out of the pod. The calling thread enters the pod's namespace.
fn forget(pair: u32, netns: BorrowedFd<'_>) -> Result<(), DeviceError> {
    netns::enter(netns).map_err(DeviceError::Namespace)?;
    let mut pod = Connection::open().step("open a socket in the pod's namespace")?;
    second::forget(&mut pod, pair)
}

/// Runtimes switch IPv6 off in namespaces where they gave no IPv6 address. `/proc/sys/net` is that of the calling thread's namespace;
/// where it cannot be written, adding the address says why.
fn enable_ipv6() {
    for scope in ["default", "all"] {
        let path = sysctl::file(&format!("net/ipv6/conf/{scope}/disable_ipv6"));
        if std::fs::read(&path).is_ok_and(|value| value.starts_with(b"1")) {
            let _ = std::fs::write(&path, "0");
        }
    }
}
