//! Requests on the agent's socket: each connection carries one request and its answer.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;
use trunkline_api::attach::{Code, Command, Done, Failure, ListReply, Reply, Request, encode};
use trunkline_api::control::{Query, Table};
use trunkline_api::names::full_name;
use trunkline_daemon::http::pause_accepting;

use crate::change_notifier::ChangeNotifier;
use crate::observe::{Observer, Routes};
use crate::pods::{Pods, RequestContext};
use crate::socket;

/// Time limit for a client to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for a client to receive its answer, or one part of it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Handles the requests.
#[derive(Clone)]
pub struct Server {
    /// Handles the plugin's requests.
    pub pods: Pods,
    /// Handles the operator's requests.
    pub observer: Arc<Observer>,
    /// Notified when a pod was attached or detached.
    pub notifier: ChangeNotifier,
}

impl Server {
    /// Serves forever. Current requests continue in `tasks` when this future is dropped.
    pub async fn serve(self, listener: UnixListener, tasks: TaskTracker) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let server = self.clone();
                    // Each connection has a separate task, so a client that disconnects cannot
                    // interrupt an attach.
                    tasks.spawn(async move { server.converse(stream).await });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection to the socket was not accepted");
                    pause_accepting().await;
                }
            }
        }
    }

    async fn converse(&self, mut stream: UnixStream) {
        let began = Instant::now();
        let received = match timeout(REQUEST_TIMEOUT, socket::receive(&stream)).await {
            Ok(received) => received,
            Err(_) => Err(Failure::new(Code::Io, "no complete request arrived within 10 s")),
        };
        let (request, descriptor) = match received {
            Ok(None) => return,
            Ok(Some((line, descriptor))) => match Request::decode(&line) {
                Ok(request) => (request, descriptor),
                Err(error) => return answer::<Done>(&mut stream, Err(error.into())).await,
            },
            Err(failure) => return answer::<Done>(&mut stream, Err(failure)).await,
        };
        let origin = request.origin;
        match request.command {
            Command::Attach(attach) => {
                let key = format!("{}/{}", attach.interface.container_id, attach.interface.ifname);
                let name = attach.pod.as_ref().map(|pod| full_name(&pod.namespace, &pod.name));
                let context = RequestContext { began, origin };
                let outcome = self.pods.attach(*attach, descriptor, context, socket::gone(&stream)).await;
                self.notifier.notify();
                let ms = began.elapsed().as_micros() as f64 / 1000.0;
                match &outcome {
                    Ok(attachment) => {
                        let addresses: Vec<String> = attachment
                            .addresses
                            .iter()
                            .map(|address| address.address.addr().to_string())
                            .collect();
                        tracing::info!(
                            attachment = key,
                            pod = name.unwrap_or_default(),
                            network = attachment.network,
                            addresses = addresses.join(","),
                            ms,
                            "attached"
                        );
                    }
                    Err(failure) => tracing::warn!(attachment = key, %failure, ms, "not attached"),
                }
                answer(&mut stream, outcome).await;
            }
            Command::Detach(detach) => {
                let key = format!("{}/{}", detach.interface.container_id, detach.interface.ifname);
                let outcome = self.pods.detach(detach, descriptor, RequestContext { began, origin }).await;
                self.notifier.notify();
                failed("detach", &key, &outcome);
                answer(&mut stream, outcome).await;
            }
            Command::Check(check) => {
                let key = format!("{}/{}", check.interface.container_id, check.interface.ifname);
                let outcome = self.pods.check(check, descriptor).await;
                self.done("check", &key, began, &outcome);
                answer(&mut stream, outcome).await;
            }
            Command::Gc(gc) => {
                let name = gc.conf_name.clone();
                let outcome = self.pods.gc(gc).await;
                self.done("gc", &name, began, &outcome);
                answer(&mut stream, outcome).await;
            }
            Command::Status => {
                let missing = self.observer.missing().await;
                let outcome = match missing.as_slice() {
                    [] => Ok(Done {}),
                    missing => Err(Failure::new(Code::NotAvailable, "no pod can be attached now")
                        .with_details(missing.join("; "))),
                };
                self.pods.metrics.request("status", "", outcome.is_ok(), began.elapsed());
                answer(&mut stream, outcome).await;
            }
            Command::Query(query) => self.query(&mut stream, query, descriptor).await,
        }
    }

    fn done(&self, command: &str, subject: &str, began: Instant, outcome: &Result<Done, Failure>) {
        self.notifier.notify();
        self.pods.metrics.request(command, "", outcome.is_ok(), began.elapsed());
        failed(command, subject, outcome);
    }

    async fn query(&self, stream: &mut UnixStream, query: Query, descriptor: Option<OwnedFd>) {
        let observer = &self.observer;
        match query {
            Query::Agent => answer(stream, observer.agent().await).await,
            Query::Peers { address } => answer(stream, observer.peers(address).await).await,
            Query::Routes { table: Table::First { prefixes } } => {
                answer(stream, observer.first_routes(prefixes).await).await;
            }
            Query::Routes { table } => match observer.routes(&table).await {
                // The write ends if the client disconnects or stops reading.
                Ok(routes) => drop(list(stream, routes).await),
                Err(failure) => answer::<Done>(stream, Err(failure)).await,
            },
            Query::Explain { prefix } => answer(stream, observer.explain(prefix).await).await,
            Query::Dump => {
                let outcome = match descriptor {
                    // The command ends if the client disconnects.
                    Some(file) => tokio::select! {
                        outcome = observer.dump(file.into()) => outcome,
                        () = socket::gone(stream) => return,
                    },
                    None => Err(Failure::new(Code::InvalidContent, "the request has no file descriptor")),
                };
                answer(stream, outcome).await;
            }
            Query::Events { after, run, wait: false } => {
                let history = &observer.history;
                answer(stream, Ok(history.since(history.number_of(after, run)))).await;
            }
            Query::Events { after, run, wait: true } => {
                let outcome = tokio::select! {
                    outcome = observer.next_events(after, run) => outcome,
                    () = socket::gone(stream) => return,
                };
                answer(stream, outcome).await;
            }
            Query::Watch { after, run } => {
                let outcome = tokio::select! {
                    outcome = observer.snapshot(&self.notifier, after, run) => outcome,
                    () = socket::gone(stream) => return,
                };
                answer(stream, outcome).await;
            }
            Query::ResetPeer { peer, hard, message } => {
                answer(stream, observer.reset_peer(&peer, hard, message).await).await;
            }
            Query::RefreshPeer { peer, direction } => {
                answer(stream, observer.refresh_peer(&peer, direction).await).await;
            }
            Query::Drain { message } => answer(stream, observer.drain.drain(message).await).await,
            Query::Undrain => answer(stream, observer.drain.undrain().await).await,
            Query::DrainStatus { wait: false } => answer(stream, Ok(observer.drain.status())).await,
            Query::DrainStatus { wait: true } => {
                let outcome = tokio::select! {
                    outcome = observer.drain.settled() => outcome,
                    () = socket::gone(stream) => return,
                };
                answer(stream, outcome).await;
            }
            Query::Pods => answer(stream, observer.pods().await).await,
            Query::Services { name, everywhere } => {
                answer(stream, observer.services(name, everywhere).await).await;
            }
            Query::Policies => answer(stream, observer.policies().await).await,
            Query::PolicyDecision { question } => {
                answer(stream, observer.policy_decision(question).await).await;
            }
            Query::Path { container_id, destination, source } => {
                let outcome = match descriptor {
                    Some(netns) => observer.path(netns, &container_id, destination, source).await,
                    None => {
                        let missing = "the request has no descriptor of the pod's network namespace";
                        Err(Failure::new(Code::InvalidContent, missing))
                    }
                };
                answer(stream, outcome).await;
            }
        }
    }
}

fn failed(command: &str, subject: &str, outcome: &Result<Done, Failure>) {
    if let Err(failure) = outcome {
        tracing::warn!(subject, %failure, "{command} failed");
    }
}

/// Writes routes in batches: only one batch waits for a slow client, however large the table is.
async fn list(stream: &mut UnixStream, mut routes: Routes) -> anyhow::Result<()> {
    let mut line = Vec::new();
    let mut reply = ListReply::begin(&mut line);
    while let Some(piece) = routes.next().await? {
        for route in &piece {
            reply.push(&mut line, route)?;
        }
        timeout(ANSWER_TIMEOUT, stream.write_all(&line)).await??;
        line.clear();
    }
    reply.end(&mut line);
    timeout(ANSWER_TIMEOUT, stream.write_all(&line)).await??;
    Ok(())
}

async fn answer<T: Serialize>(stream: &mut UnixStream, outcome: Result<T, Failure>) {
    let reply = Reply::from(outcome);
    let line = encode(&reply).or_else(|error| {
        encode(&Reply::<Done>::Error(Failure::new(
            Code::Internal,
            format!("the answer cannot be written: {error}"),
        )))
    });
    if let Ok(line) = line {
        // A client may disconnect before its answer.
        let _ = timeout(ANSWER_TIMEOUT, stream.write_all(&line)).await;
    }
}
