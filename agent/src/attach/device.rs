//! A pod's veth pair: made, checked, deleted.
//!
//! **In the pod**: `eth0` (or what the runtime calls it) with each address as /32 or /128, a default route through 169.254.1.1 and
//! fe80::ecee:eeff:feee:eeee, and permanent neighbour entries for both, so that the first packet waits for nobody. **On the host**: the
//! other end, its name derived from container and interface, with proxy ARP, MAC ee:ee:ee:ee:ee:ee and an alias that says whose it
//! is. The host's routes and neighbours come last and by another hand
//! ([`crate::kernel::KernelHandle::add_pod`]): a route in table 39999 is the mark that a device is complete.
//!
//! **No address on the host's end.** Neither gateway is an address of the host: both are only a name for the host's MAC, and neither
//! answers a ping. What the host itself says to a pod (a probe, "packet too big") comes from another address of the host. For
//! IPv6 that is a matter of cost: the same address on 1,000 links is one list of 1,000 addresses and another one of 1,000 routes, and the
//! kernel goes through both for each pod (0.4 ms of the ADD of the 1,000th one).
//!
//! **Cost.** One ADD is four `send`s: create the pair (the other end is directly in the pod's namespace), set up the host's end,
//! set up the pod's, wait for the host's. Nothing is listed, so that it costs nearly the same with 1,000 pods there.
//!
//! The order within them is what keeps it so. Each time a link that is up changes its state, the kernel walks through every IPv6 route of the
//! namespace; so asking for the link (which settles the news that it has no carrier yet) and the settings come first, then up
//! without carrier, and the one walk that remains is when the pod's end gives it carrier. (Tried, and not worth it: `disable_ipv6` on
//! the link of a pod without IPv6, which costs a walk of its own; taking out the ff00::/8 that the kernel adds for each link, which is one more
//! request and gains nothing that can be measured.)
//!
//! **Idempotence.** The host's name is a function of container and interface. Whatever an earlier attempt left is either completed (every
//! request but the creation replaces) or, if its other end is not in this namespace, deleted and made anew.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use super::netns;
use crate::kernel::netlink::objects::{self, LinkInfo, Veth};
use crate::kernel::netlink::{Batch, Connection, NetlinkError, Outcome};
use crate::plan::Neighbour;
use ipnet::IpNet;
use tokio::sync::{Semaphore, oneshot};

mod check;

/// What pods send IPv4 to: on no interface, answered for by proxy ARP.
pub const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
/// What pods send IPv6 to: on no interface either, the EUI-64 of [`HOST_MAC`].
pub const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0xecee, 0xeeff, 0xfeee, 0xeeee);
/// MAC of every host end.
pub const HOST_MAC: [u8; 6] = [0xee; 6];
/// What every own link's alias starts with.
pub const ALIAS_PREFIX: &str = "trunkline:";

/// What to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// The container, as the runtime names it.
    pub container_id: String,
    /// The interface in the pod.
    pub ifname: String,
    /// The pod's addresses: at least one.
    pub addresses: Vec<IpAddr>,
    /// MAC of the pod's end; one derived from container and interface if none.
    pub mac: Option<[u8; 6]>,
    /// MTU in octets; the kernel's default if none.
    pub mtu: Option<u32>,
}

/// What was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The host's end.
    pub host_ifname: String,
    /// Its index.
    pub host_ifindex: u32,
    /// Its MAC.
    pub host_mac: [u8; 6],
    /// MAC of the pod's end.
    pub mac: [u8; 6],
    /// MTU in octets.
    pub mtu: u32,
}

/// Why a device could not be made, deleted, or is not whole.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The pod's namespace cannot be entered.
    #[error("the pod's network namespace cannot be entered: {0}")]
    Namespace(#[source] io::Error),
    /// Somebody else's interface has the name.
    #[error(
        "interface {ifname} is already in the pod's network namespace and is not Trunkline's: choose another CNI_IFNAME or remove it"
    )]
    Taken {
        /// The name.
        ifname: String,
    },
    /// A link with an own name that does not look like one of ours.
    #[error(
        "interface {ifname} of the host has Trunkline's name but alias {alias:?}: it is left alone; rename or delete it"
    )]
    Foreign {
        /// The name.
        ifname: String,
        /// Its alias.
        alias: String,
    },
    /// The kernel refused a step.
    #[error("{step}: {error}")]
    Step {
        /// What was being done.
        step: &'static str,
        /// The reason.
        #[source]
        error: NetlinkError,
    },
    /// A check found things missing.
    #[error("the attachment is not whole: {}", .0.join("; "))]
    Check(Vec<String>),
    /// No thread could be had.
    #[error("no thread for the attachment: {0}")]
    Thread(#[source] io::Error),
}

/// A step's name for its error.
trait Step<T> {
    fn step(self, step: &'static str) -> Result<T, DeviceError>;
}

impl<T, E: Into<NetlinkError>> Step<T> for Result<T, E> {
    fn step(self, step: &'static str) -> Result<T, DeviceError> {
        self.map_err(|error| DeviceError::Step { step, error: error.into() })
    }
}

/// FNV-1a, 64 bits: a name must be the same for every version of this program, so no library's hash.
fn stable_hash(container_id: &str, ifname: &str) -> u64 {
    [container_id.as_bytes(), &[0], ifname.as_bytes()]
        .into_iter()
        .flatten()
        .fold(0xcbf2_9ce4_8422_2325, |hash, octet| (hash ^ u64::from(*octet)).wrapping_mul(0x0100_0000_01b3))
}

/// Name of the host's end: `tl` and 12 hex digits.
pub fn host_ifname(container_id: &str, ifname: &str) -> String {
    // FNV's high bits are the well mixed ones; fold both halves into 48 bits.
    let hash = stable_hash(container_id, ifname);
    format!("tl{:012x}", (hash ^ (hash >> 48)) & 0xffff_ffff_ffff)
}

/// Alias of the host's end: whose it is, for people and for the next start.
pub fn alias(container_id: &str, ifname: &str) -> String {
    let short: String = container_id.chars().take(64).collect();
    format!("{ALIAS_PREFIX}{short}:{ifname}")
}

/// MAC of the pod's end where none was asked for: hybridnet's prefix, and 24 bits that stay the same for the attachment.
pub fn default_mac(container_id: &str, ifname: &str) -> [u8; 6] {
    let hash = stable_hash(container_id, ifname).to_be_bytes();
    [0x02, 0x12, 0x34, hash[0] ^ hash[5], hash[1] ^ hash[6], hash[2] ^ hash[7]]
}

fn pod_mac(spec: &DeviceSpec) -> [u8; 6] {
    spec.mac.unwrap_or_else(|| default_mac(&spec.container_id, &spec.ifname))
}

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

    /// Makes the device of `spec`, or completes what is there of it.
    pub async fn attach(&self, netns: OwnedFd, spec: DeviceSpec) -> Result<Device, DeviceError> {
        self.run(move |host| {
            netns::enter(netns.as_fd()).map_err(DeviceError::Namespace)?;
            let mut pod = Connection::open().step("open a socket in the pod's namespace")?;
            attach_device(host, &mut pod, netns.as_fd(), &spec)
        })
        .await
    }

    /// Deletes a device. False: there was none.
    pub async fn detach(&self, host_ifname: String) -> Result<bool, DeviceError> {
        self.run(move |host| detach_device(host, &host_ifname)).await
    }

    /// Looks whether the device of `spec` is whole, the host's routes and neighbours included.
    pub async fn check(&self, netns: OwnedFd, spec: DeviceSpec) -> Result<Device, DeviceError> {
        self.run(move |host| {
            netns::enter(netns.as_fd()).map_err(DeviceError::Namespace)?;
            let mut pod = Connection::open().step("open a socket in the pod's namespace")?;
            check::check_device(host, &mut pod, &spec)
        })
        .await
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
    let alias = alias(&spec.container_id, &spec.ifname);
    let mac = pod_mac(spec);
    let veth = Veth {
        host_name: &host_name,
        host_mac: HOST_MAC,
        pod_name: &spec.ifname,
        pod_mac: mac,
        mtu: spec.mtu,
    };
    if spec.addresses.iter().any(IpAddr::is_ipv6) {
        enable_ipv6();
    }

    let mut batch = Batch::new();
    let mut attempt = 0;
    let link = loop {
        attempt += 1;
        batch.clear();
        // No more than this before it is known whose link has the name.
        batch.create_veth(&veth, netns);
        batch.get_link(&host_name);
        let outcome = host.run(&mut batch).step("create the veth pair")?;
        let link = first_link(&outcome);
        match (outcome.refusal(0), link) {
            (None, Some(link)) => {
                outcome.check(&[]).step("create the veth pair")?;
                break link;
            }
            // Something of an earlier attempt is there: good if its other end is the pod's interface.
            (Some(refusal), Some(link)) if refusal.errno == libc::EEXIST => {
                own(&link)?;
                let whole = |end: LinkInfo| {
                    belongs(&link, &end) && link.mac == Some(HOST_MAC) && end.mac == Some(mac)
                };
                if pod_end(pod, &spec.ifname)?.is_some_and(whole) {
                    break link;
                }
                if attempt > 1 {
                    return Err(DeviceError::Taken { ifname: spec.ifname.clone() });
                }
                delete(host, link.index)?;
            }
            (Some(refusal), None) if refusal.errno == libc::EEXIST => {
                return Err(DeviceError::Taken { ifname: spec.ifname.clone() });
            }
            _ => {
                outcome.check(&[]).step("create the veth pair")?;
                return Err(DeviceError::Check(vec![format!("{host_name} was gone as soon as it was made")]));
            }
        }
    };

    batch.clear();
    batch.set_host_end(link.index, &alias);
    batch.set_up(link.index);
    host.run(&mut batch).step("set up the host's end")?.check(&[]).step("set up the host's end")?;

    let index = link.peer.unwrap_or_default();
    batch.clear();
    batch.set_up(index);
    for address in &spec.addresses {
        batch.put_address(index, IpNet::from(*address));
        // An IPv6 address gets its own local route only when a worker of the kernel has its turn; until then the pod would drop what
        // is sent to it.
        if let IpAddr::V6(address) = address {
            batch.put_local_route(*address, index);
        }
    }
    for gateway in gateways(&spec.addresses) {
        batch.put_neighbour(&Neighbour { ifindex: index, address: gateway, mac: HOST_MAC });
        batch.put_onlink_default(gateway, index);
    }
    pod.run(&mut batch).step("set up the pod's end")?.check(&[]).step("set up the pod's end")?;

    batch.clear();
    // The host's end was up before it had carrier, and sends nothing until the kernel's link watch has had its turn; asking for
    // the link makes the kernel (6.8 and later) do that first, so that the first packet to the pod is not lost.
    batch.get_link_at(link.index);
    host.run(&mut batch).step("wait for the host's end")?.check(&[]).step("wait for the host's end")?;
    Ok(Device { host_ifname: host_name, host_ifindex: link.index, host_mac: HOST_MAC, mac, mtu: link.mtu })
}

/// Deletes the device. False: there was none.
fn detach_device(host: &mut Connection, host_ifname: &str) -> Result<bool, DeviceError> {
    let mut batch = Batch::new();
    batch.get_link(host_ifname);
    let outcome =
        host.run(&mut batch).step("look for the link")?.check(&[libc::ENODEV]).step("look for the link")?;
    let Some(link) = first_link(&outcome) else { return Ok(false) };
    own(&link)?;
    delete(host, link.index)
}

fn delete(host: &mut Connection, index: u32) -> Result<bool, DeviceError> {
    let mut batch = Batch::new();
    batch.delete_link(index);
    let outcome =
        host.run(&mut batch).step("delete the link")?.check(&[libc::ENODEV]).step("delete the link")?;
    Ok(outcome.refusals.is_empty())
}

/// Refuses a link that only has an own name by chance.
fn own(link: &LinkInfo) -> Result<(), DeviceError> {
    let alias = link.alias.as_deref().unwrap_or_default();
    // No alias, but the MAC: killed between the pair's creation and its set-up.
    let half_made = alias.is_empty() && link.mac == Some(HOST_MAC);
    if link.kind.as_deref() == Some("veth") && (half_made || alias.starts_with(ALIAS_PREFIX)) {
        Ok(())
    } else {
        Err(DeviceError::Foreign { ifname: link.name.clone(), alias: alias.to_owned() })
    }
}

/// Whether these are the two ends of one pair.
fn belongs(host: &LinkInfo, pod: &LinkInfo) -> bool {
    host.peer == Some(pod.index) && pod.peer == Some(host.index) && pod.kind.as_deref() == Some("veth")
}

fn pod_end(pod: &mut Connection, ifname: &str) -> Result<Option<LinkInfo>, DeviceError> {
    let mut batch = Batch::new();
    batch.get_link(ifname);
    let outcome = pod
        .run(&mut batch)
        .step("look for the pod's interface")?
        .check(&[libc::ENODEV])
        .step("look for the pod's interface")?;
    Ok(first_link(&outcome))
}

fn first_link(outcome: &Outcome) -> Option<LinkInfo> {
    outcome
        .replies
        .iter()
        .find(|(_, kind, _)| *kind == libc::RTM_NEWLINK)
        .and_then(|(_, _, body)| objects::read_link(body))
}

/// The gateways of the families that the pod has addresses in.
fn gateways(addresses: &[IpAddr]) -> impl Iterator<Item = IpAddr> {
    let v4 = addresses.iter().any(IpAddr::is_ipv4).then_some(IpAddr::V4(GATEWAY_V4));
    let v6 = addresses.iter().any(IpAddr::is_ipv6).then_some(IpAddr::V6(GATEWAY_V6));
    v4.into_iter().chain(v6)
}

/// Runtimes switch IPv6 off in namespaces where they gave no IPv6 address. `/proc/sys/net` is that of the calling thread's namespace;
/// where it cannot be written, adding the address says why.
fn enable_ipv6() {
    for scope in ["default", "all"] {
        let path = format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6");
        if std::fs::read(&path).is_ok_and(|value| value.starts_with(b"1")) {
            let _ = std::fs::write(&path, "0");
        }
    }
}
