//! The plugin's two neighbours: a runtime that starts it, and an agent with the protocol, in a
//! thread.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    dead_code,
    reason = "support of tests; not every test file uses all of it"
)]

use std::collections::BTreeMap;
use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::{Value, json};
use trunkline_api::attach::Request;

/// A namespace that always exists: the test's own, which CNI_NETNS_OVERRIDE allows.
pub(crate) const NETNS: &str = "/proc/self/ns/net";

/// The agent's reaction to a connection.
#[derive(Clone)]
pub(crate) enum Act {
    /// Reads the request and answers with this line.
    Answer(Value),
    /// Reads the request and answers with these bytes.
    Bytes(Vec<u8>),
    /// Answers in two pieces.
    Pieces(Value),
    /// Answers without reading the request.
    AnswerUnread(Value),
    /// Reads the request and closes.
    Die,
    /// Closes at once.
    DieUnread,
    /// Reads the request, and does not answer until the plugin closes.
    Hang,
}

/// A request to the agent.
pub(crate) struct ReceivedRequest {
    pub(crate) request: Request,
    /// The descriptors sent with it.
    pub(crate) descriptors: Vec<OwnedFd>,
    /// The received line.
    pub(crate) line: String,
}

pub(crate) struct Agent {
    pub(crate) socket: PathBuf,
    received: Receiver<ReceivedRequest>,
    _folder: tempfile::TempDir,
}

impl Agent {
    /// Starts an agent that handles every connection in the same way.
    pub(crate) fn start(act: Act) -> Agent {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("agent.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let (sender, received) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                if let Act::AnswerUnread(answer) = &act {
                    stream.write_all(format!("{answer}\n").as_bytes()).unwrap();
                    continue;
                }
                if matches!(act, Act::DieUnread) {
                    continue;
                }
                let received = receive(&stream);
                match &act {
                    Act::Answer(answer) => stream.write_all(format!("{answer}\n").as_bytes()).unwrap(),
                    Act::Bytes(bytes) => stream.write_all(bytes).unwrap(),
                    Act::Pieces(answer) => {
                        let text = answer.to_string();
                        let (first, second) = text.split_at(text.len() / 2);
                        stream.write_all(first.as_bytes()).unwrap();
                        std::thread::sleep(Duration::from_millis(20));
                        stream.write_all(second.as_bytes()).unwrap();
                        stream.write_all(b"\nbehind the line").unwrap();
                    }
                    Act::Hang => assert_eq!(std::io::Read::read(&mut stream, &mut [0]).unwrap(), 0),
                    Act::AnswerUnread(_) | Act::Die | Act::DieUnread => {}
                }
                drop(stream);
                // The test may have ended.
                let _ = sender.send(received);
            }
        });
        Agent { socket, received, _folder: folder }
    }

    /// The next request; requests are queued.
    pub(crate) fn received(&self) -> ReceivedRequest {
        self.received.recv_timeout(Duration::from_secs(10)).expect("a request")
    }

    pub(crate) fn was_not_contacted(&self) {
        let received = self.received.recv_timeout(Duration::from_millis(100));
        assert!(received.is_err(), "the agent received a request");
    }

    /// A network configuration for this agent with additional keys (`null` removes one).
    pub(crate) fn configuration(&self, version: &str, more: Value) -> Value {
        configuration(self.socket.to_str().unwrap(), version, more)
    }
}

pub(crate) fn configuration(socket: &str, version: &str, more: Value) -> Value {
    let mut configuration = json!({"cniVersion": version, "name": "pods", "type": "trunkline-cni", "socket": socket, "timeoutSeconds": 20});
    for (key, value) in more.as_object().unwrap() {
        configuration[key] = value.clone();
        if value.is_null() {
            configuration.as_object_mut().unwrap().remove(key);
        }
    }
    configuration
}

/// The receiving side of the framing: descriptors arrive with the first octets.
fn receive(stream: &UnixStream) -> ReceivedRequest {
    let (mut line, mut descriptors) = (Vec::new(), Vec::new());
    while !line.ends_with(b"\n") {
        let mut chunk = [0; 65536];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let message =
            recvmsg(stream, &mut [IoSliceMut::new(&mut chunk)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
                .unwrap();
        assert_ne!(message.bytes, 0, "the plugin closed before the end of its line");
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                descriptors.extend(received);
            }
        }
        line.extend(&chunk[..message.bytes]);
    }
    ReceivedRequest {
        request: Request::decode(&line).unwrap(),
        descriptors,
        line: String::from_utf8(line).unwrap(),
    }
}

/// Result of a run of the plugin.
pub(crate) struct Run {
    pub(crate) success: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    /// The printed result of a successful run.
    pub(crate) fn result(&self) -> Value {
        assert!(self.success, "{} {}", self.stdout, self.stderr);
        assert_eq!(self.stderr, "");
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {:?}", self.stdout))
    }

    /// Asserts a success without output.
    pub(crate) fn silence(&self) {
        assert!(self.success, "{} {}", self.stdout, self.stderr);
        assert_eq!((self.stdout.as_str(), self.stderr.as_str()), ("", ""));
    }

    /// Asserts a failure with this code, and these parts in its message.
    pub(crate) fn failure(&self, code: u32, parts: &[&str]) -> Value {
        assert!(!self.success, "{}", self.stdout);
        let error: Value = serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {:?} {:?}", self.stdout, self.stderr));
        assert_eq!(error["code"], code, "{error}");
        for part in parts {
            assert!(error["msg"].as_str().unwrap().contains(part), "`{part}` is missing: {error}");
        }
        error
    }
}

/// The variables of a command for container `c1`.
pub(crate) fn environment(command: &str) -> BTreeMap<String, String> {
    [
        ("CNI_COMMAND", command),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_NETNS", NETNS),
        ("CNI_NETNS_OVERRIDE", "1"),
        ("CNI_PATH", "/opt/cni/bin"),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect()
}

/// Runs the plugin with these variables (an empty one is omitted) and this standard input.
pub(crate) fn plugin(environment: &BTreeMap<String, String>, stdin: &[u8]) -> Run {
    let mut child = Command::new(env!("CARGO_BIN_EXE_trunkline-cni"))
        .env_clear()
        .envs(environment.iter().filter(|(_, value)| !value.is_empty()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A plugin that fails early does not read its standard input.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    let output = child.wait_with_output().unwrap();
    Run {
        success: output.status.success(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs a command for container `c1`, with these variables changed.
pub(crate) fn run(command: &str, configuration: &Value, changes: &[(&str, &str)]) -> Run {
    let mut variables = environment(command);
    variables.extend(changes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    plugin(&variables, configuration.to_string().as_bytes())
}

/// The agent's answer to an attach: dual stack.
pub(crate) fn attachment() -> Value {
    json!({"ok": {
        "network": "rack1",
        "addresses": [
            {"address": "10.14.0.7/32", "gateway": "169.254.1.1", "subnet": "rack1-v4"},
            {"address": "2001:db8:14::7/128", "gateway": "fe80::ecee:eeff:feee:eeee", "subnet": "rack1-v6"},
        ],
        "routes": [
            {"destination": "0.0.0.0/0", "gateway": "169.254.1.1"},
            {"destination": "::/0", "gateway": "fe80::ecee:eeff:feee:eeee"},
        ],
        "mac": "02:12:34:00:00:07",
        "host_ifname": "tl0123456789ab",
        "host_mac": "ee:ee:ee:ee:ee:ee",
        "mtu": 1500,
    }})
}

pub(crate) fn done() -> Value {
    json!({"ok": {}})
}
