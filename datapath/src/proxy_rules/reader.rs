//! The reader thread: the notification socket, and the dump of all rules.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ipnet::IpNet;
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_NETFILTER;
use tokio::io::unix::{AsyncFd, AsyncFdReadyMutGuard};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::state::{self, Map, ProxyMessage, RuleState};
use super::{Backend, RuleUpdate, elements, rules};
use crate::family::IpFamily;
use crate::netlink::events::{Events, NFTABLES, ReadResult};
use crate::netlink::message::Message;
use crate::netlink::netfilter::{Connection, text};

const GET_TABLES: u16 = request(libc::NFT_MSG_GETTABLE);
const GET_RULES: u16 = request(libc::NFT_MSG_GETRULE);
const GET_ELEMENTS: u16 = request(libc::NFT_MSG_GETSETELEM);

const fn request(kind: i32) -> u16 {
    (libc::NFNL_SUBSYS_NFTABLES as u16) << 8 | kind as u16
}

// NFTA_RULE_TABLE, NFTA_RULE_CHAIN, NFTA_SET_ELEM_LIST_TABLE, NFTA_SET_ELEM_LIST_SET
const TABLE: u16 = 1;
const CHAIN: u16 = 2;
const SET: u16 = 2;

/// kube-proxy's chain with the look-up in `service-ips`. Other chains can have it, too.
const SERVICES: &str = "services";

/// Tries of a dump, while other programs change the ruleset.
const TRIES: usize = 8;
/// Pause after a dump that failed.
const PAUSE: Duration = Duration::from_millis(500);

pub(super) struct Reader {
    interest: watch::Receiver<Vec<IpNet>>,
    receive_buffer: usize,
    looks: mpsc::UnboundedReceiver<()>,
    updates: mpsc::UnboundedSender<RuleUpdate>,
    rereads: Arc<AtomicU64>,

    events: Option<AsyncFd<Events>>,
    /// Whether there is an interest. Without one, the socket is closed.
    listens: bool,
    state: RuleState,
    /// The generation of the last dump, until a newer transaction arrives.
    dumped: Option<u16>,
    /// The rules must be read again, with this `complete` of the update.
    unread: Option<bool>,
    /// Time of the next try.
    retry: Instant,
    /// Found while nf_tables has no rules of a service proxy.
    hidden: Backend,
    reported: Option<Backend>,
    last_error: Option<String>,
}

impl Reader {
    pub(super) fn new(
        interest: watch::Receiver<Vec<IpNet>>,
        receive_buffer: usize,
        looks: mpsc::UnboundedReceiver<()>,
        updates: mpsc::UnboundedSender<RuleUpdate>,
        rereads: Arc<AtomicU64>,
    ) -> Reader {
        Reader {
            interest,
            receive_buffer,
            looks,
            updates,
            rereads,
            events: None,
            listens: false,
            state: RuleState::default(),
            dumped: None,
            unread: None,
            retry: Instant::now(),
            hidden: Backend::Absent,
            reported: None,
            last_error: None,
        }
    }

    /// Runs until the handle or the receiver of the updates is dropped.
    pub(super) async fn run(mut self) {
        self.follow_interest();
        loop {
            tokio::select! {
                biased;
                look = self.looks.recv() => match look {
                    Some(()) => self.look_again(),
                    None => return,
                },
                () = self.updates.closed() => return,
                changed = self.interest.changed() => match changed {
                    Ok(()) => self.follow_interest(),
                    Err(_) => return,
                },
                Some(ready) = readable(&mut self.events) => {
                    let read = ready.and_then(|mut ready| {
                        let read = ready.get_inner_mut().read();
                        if matches!(read, Ok(ReadResult::WouldBlock)) {
                            ready.clear_ready();
                        }
                        read
                    });
                    self.handle_read(read);
                }
                () = tokio::time::sleep_until(self.retry), if self.unread.is_some() => self.read_all(),
            }
        }
    }

    /// Reads all rules for a new interest.
    fn follow_interest(&mut self) {
        let interest = self.interest.borrow_and_update().clone();
        self.state.set_interest(&interest);
        self.listens = !interest.is_empty();
        self.reported = None;
        self.unread = Some(true);
        self.read_all();
    }

    /// Looks for changes that no notification reports.
    fn look_again(&mut self) {
        if self.listens {
            self.hidden = hidden();
            self.send(false, Vec::new());
        } else {
            self.unread.get_or_insert(false);
            self.read_all();
        }
    }

    fn handle_read(&mut self, read: io::Result<ReadResult>) {
        match read {
            Ok(ReadResult::Message) => self.handle_messages(),
            Ok(ReadResult::WouldBlock) => {}
            Ok(ReadResult::Overrun) => {
                self.rereads.fetch_add(1, Ordering::Relaxed);
                self.unread.get_or_insert(false);
                self.read_all();
            }
            Err(error) => {
                self.fail("notifications", &error);
                // The socket is opened again, and changes may be lost meanwhile.
                self.events = None;
                self.unread.get_or_insert(false);
            }
        }
    }

    fn handle_messages(&mut self) {
        // A dump follows, so its result replaces these changes.
        if self.unread.is_some() {
            return;
        }
        let Some(events) = &self.events else { return };
        let mut batches = Vec::new();
        for message in events.get_ref().messages() {
            if is_known(&mut self.dumped, &message) {
                continue;
            }
            state::decode(&message, |decoded| match decoded {
                ProxyMessage::Commit => batches.push(self.state.commit()),
                change => self.state.apply(change),
            });
        }
        for changes in batches {
            self.send(false, changes);
        }
    }

    /// Opens the socket if necessary, and reads all rules. If this fails, [`Reader::run`] tries
    /// again after a pause.
    fn read_all(&mut self) {
        let Some(complete) = self.unread else { return };
        match self.listen().and_then(|()| dump(&mut self.state)) {
            Ok(generation) => {
                self.dumped = Some(generation);
                self.unread = None;
                self.last_error = None;
                self.hidden = hidden();
                let changes = self.state.commit();
                self.send(complete, changes);
            }
            Err(error) => self.fail("list", &error),
        }
    }

    /// Opens the notification socket before the dump, so no change between the two is missed.
    fn listen(&mut self) -> io::Result<()> {
        if !self.listens {
            self.events = None;
        } else if self.events.is_none() {
            let socket = Socket::new(NETLINK_NETFILTER)?;
            self.events = Some(Events::listen(socket, &[NFTABLES], self.receive_buffer)?.register()?);
        }
        Ok(())
    }

    /// Reports changes, or a change of the backend.
    fn send(&mut self, complete: bool, changes: Vec<super::RuleChange>) {
        if self.unread.is_some() {
            return; // the backend is not known
        }
        let visible = self.state.backend();
        if visible.is_none() && self.reported.is_some_and(|backend| backend != self.hidden) {
            self.hidden = hidden();
        }
        let backend = visible.unwrap_or(self.hidden);
        if complete || !changes.is_empty() || self.reported != Some(backend) {
            self.reported = Some(backend);
            let _ = self.updates.send(RuleUpdate { backend, complete, changes });
        }
    }

    /// Logs an error once.
    fn fail(&mut self, what: &str, error: &io::Error) {
        self.retry = Instant::now() + PAUSE;
        let text = format!("{what}: {error}");
        if self.last_error.as_ref() != Some(&text) {
            tracing::warn!(error = text, "the service proxy's rules cannot be read; the agent tries again");
            self.last_error = Some(text);
        }
    }
}

/// Finds the backend in the calling thread's network namespace.
pub(super) fn find_backend() -> io::Result<Backend> {
    let mut state = RuleState::default();
    dump(&mut state)?;
    Ok(state.backend().unwrap_or_else(hidden))
}

/// Reads all rules into the state. Returns the lower bits of the ruleset's generation. If
/// transactions of others interrupt each try, the last try counts: the pending notifications contain
/// the difference.
fn dump(state: &mut RuleState) -> io::Result<u16> {
    let mut connection = Connection::open()?;
    for tries in 1..=TRIES {
        let generation = connection.generation()?;
        state.start_again();
        let mut whole = true;
        for family in IpFamily::ALL {
            whole &= list(&mut connection, family, state)?;
        }
        if whole && (tries == TRIES || connection.generation()? == generation) {
            return Ok(generation as u16);
        }
    }
    Err(io::Error::other("the ruleset changes faster than it can be listed"))
}

/// Whether the last dump includes this message. Each message has the lower 16 bits of its
/// generation, and generations only grow.
fn is_known(dumped: &mut Option<u16>, message: &Message<'_>) -> bool {
    let (Some(known), Some(&[high, low])) = (*dumped, message.body.get(2..4)) else { return false };
    let behind = u16::from_be_bytes([high, low]).wrapping_sub(known) as i16 <= 0;
    if !behind {
        *dumped = None;
    }
    behind
}

/// Lists the tables, maps and rules of a family. Returns whether the lists are whole.
fn list(connection: &mut Connection, family: IpFamily, state: &mut RuleState) -> io::Result<bool> {
    let number = match family {
        IpFamily::V4 => libc::NFPROTO_IPV4,
        IpFamily::V6 => libc::NFPROTO_IPV6,
    };
    let mut get = |kind: u16, state: &mut RuleState, names: &[(u16, &str)]| {
        let write = |message: &mut Vec<u8>| names.iter().for_each(|(kind, name)| text(message, *kind, name));
        let result =
            connection.dump(kind, number, write, |found| state::decode(found, |object| state.apply(object)));
        match result {
            Ok(whole) => Ok((true, whole)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((false, true)),
            Err(error) => Err(error),
        }
    };
    let mut all_whole = get(GET_TABLES, state, &[])?.1;
    for map in Map::ALL {
        let (exists, whole) = get(GET_ELEMENTS, state, &[(TABLE, elements::TABLE), (SET, map.name())])?;
        if exists {
            state.apply(ProxyMessage::Map { family, map, exists });
        }
        all_whole &= whole;
    }
    for (table, chain) in [
        (elements::TABLE, SERVICES),
        (rules::NAT, rules::PREROUTING),
        (rules::NAT, rules::SERVICES),
        (rules::FILTER, rules::SERVICES),
        (rules::FILTER, rules::EXTERNAL_SERVICES),
    ] {
        all_whole &= get(GET_RULES, state, &[(TABLE, table), (CHAIN, chain)])?.1;
    }
    // Another release of kube-proxy may have the look-up in another chain.
    if state.has_map(family) && !state.reaches_map(family) {
        all_whole &= get(GET_RULES, state, &[(TABLE, elements::TABLE)])?.1;
    }
    Ok(all_whole)
}

/// The backend of a service proxy without rules in nf_tables.
fn hidden() -> Backend {
    let file = |name: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{name}"));
    let legacy = |name: &str| file(name).is_ok_and(|names| names.lines().any(|table| table == "nat"));
    // Three lines of headings come before the virtual services.
    let ipvs = || file("ip_vs").is_ok_and(|table| table.lines().count() > 3);
    if ipvs() || legacy("ip_tables_names") || legacy("ip6_tables_names") {
        Backend::Invisible
    } else {
        Backend::Absent
    }
}

/// The notification socket, as soon as it is readable. None while there is no socket.
async fn readable(
    events: &mut Option<AsyncFd<Events>>,
) -> Option<io::Result<AsyncFdReadyMutGuard<'_, Events>>> {
    Some(events.as_mut()?.readable_mut().await)
}
