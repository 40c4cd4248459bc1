//! A user-mode kernel: Linux 6.12 that runs as a process ([`kernel`] builds it), with nf_tables and
//! with the VLAN, IPVLAN and other devices that the machine's kernel may lack.
//!
//! ```text
//! outside: run ── writes order.json ── setpriv ─ unshare ─ linux on hostfs, the machine's own tree, read-only
//!            │                                                │ its first process: `lab user-mode-kernel init order.json`
//!            │  console.log, line by line  <── console ───────┤   mounts, then the order's command, bounded in time
//!            └─ standard output and status <── files ─────────┘
//! ```
//!
//! Programs inside find the machine's programs and files at their paths. They can write to /run,
//! /tmp, /var/log and `target/lab`, which are in memory and disappear with the kernel, and to
//! `target/lab/failures`, which is the machine's. The only networks are its own, and a [`Link`] if
//! one is given. Two things prevent leftovers. The kernel is in its own PID namespace. All
//! processes of this namespace end with its first process, and the first process ends with this
//! process in every case. The kernel's memory is a file without a name.
//!
//! It has one processor, and system calls cost three times as much.

mod init;
mod kernel;
pub(crate) mod link;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::fabric::{Place, failure_folder, failures};
use crate::interrupt;
use crate::packages;
use crate::progress::say;
use crate::shell::cmd;

pub(crate) use init::init;

use self::link::Link;

/// Package with the programs that end the kernel together with this process.
const PACKAGES: [&str; 1] = ["util-linux"];

/// The kernel's memory: enough for fifty pods, and small enough for a runner in the cloud. Only
/// used memory is allocated.
const MEMORY: &str = "1G";

/// Time limit for boot and halt of the kernel, in addition to its command.
const BOOT: Duration = Duration::from_secs(60);

/// Variables of this environment that the command gets. Other variables are left out, because the
/// order is a file on disk.
const ENVIRONMENT: [&str; 6] = ["PATH", "HOME", "LANG", "CARGO_TARGET_DIR", "RUST_BACKTRACE", "RUST_LOG"];

/// Marks the beginning and the end of the command's output on the console; the rest is the
/// kernel's.
const CURTAIN: &str = "-- lab --";

/// The order for the first process.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    command: Vec<String>,
    /// Working folder of the command.
    folder: PathBuf,
    environment: BTreeMap<String, String>,
    /// Files here disappear with the kernel.
    scratch: PathBuf,
    /// The writable folders of the machine. A new file there belongs to root, even if another user
    /// creates it.
    writable: Vec<PathBuf>,
    /// Whether there is a [`Link`].
    linked: bool,
    /// Time limit of the command in seconds.
    bound: u64,
}

/// The files of one boot.
struct Files(PathBuf);

impl Files {
    fn order(&self) -> PathBuf {
        self.0.join("order.json")
    }

    fn console(&self) -> PathBuf {
        self.0.join("console.log")
    }

    /// The command's standard output.
    fn stdout(&self) -> PathBuf {
        self.0.join("stdout")
    }

    /// The command's status, written at its end.
    fn status(&self) -> PathBuf {
        self.0.join("status")
    }

    /// The recorded state when the command had to be killed.
    fn overdue(&self) -> PathBuf {
        self.0.join("overdue.txt")
    }
}

/// A finished command.
#[derive(Debug)]
pub(crate) struct Ended {
    pub status: u8,
    pub stdout: String,
}

/// Builds the kernel if needed; returns the reason if this machine cannot have one.
pub(crate) fn missing(place: &Place) -> Result<Option<String>> {
    Ok(kernel::find(place)?.err())
}

/// Boots the kernel, runs the command in it, copies its output to standard error, and halts. If the
/// kernel dies or the command exceeds its time limit, the error names the folder of the console and
/// the rest.
pub(crate) fn run(place: &Place, name: &str, command: &[&str], bound: Duration) -> Result<Ended> {
    run_linked(place, name, command, bound, None)
}

/// Like [`run`], with a link to the machine.
pub(crate) fn run_linked(
    place: &Place,
    name: &str,
    command: &[&str],
    bound: Duration,
    link: Option<&Link>,
) -> Result<Ended> {
    packages::need_root("the user-mode kernel")?;
    packages::need(PACKAGES)?;
    let kernel = kernel::find(place)?.map_err(anyhow::Error::msg)?;
    let all = place.state.join("uml");
    std::fs::create_dir_all(&all)?;
    std::fs::create_dir_all(failures(&place.state))?;
    let lock = File::create(all.join("lock"))?;
    if lock.try_lock().is_err() {
        bail!(
            "another user-mode kernel of this working tree is running: its labs and this one's would share {}",
            place.state.display()
        );
    }
    let files = Files(all.join("boot"));
    if files.0.exists() {
        std::fs::remove_dir_all(&files.0)?;
    }
    std::fs::create_dir(&files.0)?;
    let ended = boot(place, &files, &kernel, command, bound, link);
    let kept = failure_folder(&place.state, &format!("uml-{name}"));
    match &ended {
        Ok(_) => std::fs::remove_dir_all(&files.0)?,
        Err(_) => std::fs::rename(&files.0, &kept)?,
    }
    // Closing the file would not be enough, because a child process that is being forked may have
    // it open too.
    lock.unlock()?;
    ended.map_err(|e| anyhow!("{e:#}\n  the user-mode kernel's console: {}", kept.display()))
}

/// A copy of this program. Cargo replaces the program itself, while it runs, when another `cargo lab`
/// builds the lab with other features.
pub(crate) fn own_program(place: &Place) -> Result<PathBuf> {
    static COPY: Mutex<Option<PathBuf>> = Mutex::new(None);
    let mut copy = COPY.lock().unwrap_or_else(PoisonError::into_inner);
    if copy.is_none() {
        let folder = place.state.join("program");
        std::fs::create_dir_all(&folder)?;
        let (next, program) = (folder.join("next"), folder.join("lab"));
        std::fs::copy("/proc/self/exe", &next).context("a copy of the lab's own program")?;
        std::fs::rename(&next, &program)?;
        *copy = Some(program);
    }
    copy.clone().context("a copy of the lab's own program")
}

fn boot(
    place: &Place,
    files: &Files,
    program: &Path,
    command: &[&str],
    bound: Duration,
    link: Option<&Link>,
) -> Result<Ended> {
    let lab = own_program(place)?;
    let order = Order {
        command: command.iter().map(|&word| word.to_owned()).collect(),
        folder: std::env::current_dir()?,
        environment: ENVIRONMENT
            .iter()
            .filter_map(|&name| Some((name.to_owned(), std::env::var(name).ok()?)))
            .collect(),
        scratch: place.state.clone(),
        writable: vec![files.0.clone(), failures(&place.state)],
        linked: link.is_some(),
        bound: bound.as_secs(),
    };
    std::fs::write(files.order(), serde_json::to_string_pretty(&order)?)?;
    let mut kernel = start(&lab, files, program, link)?;
    let pid = i32::try_from(kernel.process.id()).ok().and_then(Pid::from_raw).context("no process")?;
    let folder = files.0.clone();
    let _guard = interrupt::on_stop(move || {
        // Both calls fail only if there is nothing left.
        let _ended = kill_process(pid, Signal::KILL);
        let _gone = std::fs::remove_dir_all(folder);
    });
    let watched = kernel.watch(files, bound + BOOT);
    if watched.is_err() {
        kernel.process.kill()?;
    }
    kernel.process.wait()?;
    watched?;
    let status = std::fs::read_to_string(files.status()).unwrap_or_default();
    let stdout = std::fs::read_to_string(files.stdout()).unwrap_or_default();
    match status.trim() {
        "" if std::fs::metadata(files.overdue()).is_ok_and(|file| file.len() > 0) => {
            bail!("not done after {} s, and killed", bound.as_secs())
        }
        "" => bail!("the user-mode kernel ended before its command did: {}", last_lines(&files.console())),
        code => Ok(Ended { status: code.parse().with_context(|| format!("status {code:?}"))?, stdout }),
    }
}

/// A running kernel.
struct Kernel {
    process: Child,
    console: Receiver<String>,
}

fn start(lab: &Path, files: &Files, program: &Path, link: Option<&Link>) -> Result<Kernel> {
    let (from_kernel, console) = std::io::pipe()?;
    // The shell's command comes last. The shell is the namespace's first process and waits for the
    // kernel. All other processes end with the shell.
    let mut kernel = cmd("setpriv", ["--pdeathsig", "KILL", "--"]);
    if let Some(link) = link {
        kernel.arg("nsenter").arg(format!("--net={}", link.namespace().path().display())).arg("--");
    }
    kernel
        .args(["unshare", "--pid"])
        .args(link.is_none().then_some("--net"))
        .args(["--fork", "--kill-child=KILL", "--"])
        .args(["sh", "-c", "\"$@\"; exit", "sh"])
        .arg(program)
        .args([&format!("mem={MEMORY}"), "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro"])
        .args(["con=null", "con0=fd:0,fd:1", "ssl=null", "quiet", "umid=lab"])
        .arg(format!("uml_dir={}", files.0.display()))
        .args(link.map(|_| Link::option()))
        .arg(format!("init={}", lab.display()))
        .args(["--", "user-mode-kernel", "init"])
        .arg(files.order())
        .stdin(Stdio::null())
        .stdout(console.try_clone()?)
        .stderr(console)
        .process_group(0);
    let process = kernel.spawn().context("setpriv")?;
    // The command's ends of the pipe would keep the pipe open.
    drop(kernel);
    let mut log = File::create(files.console())?;
    let (lines, console) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from_kernel).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            // If the disk is full, only the log is incomplete.
            let _unwritten = writeln!(log, "{line}");
            if lines.send(line).is_err() {
                break;
            }
        }
    });
    Ok(Kernel { process, console })
}

impl Kernel {
    /// Copies the command's output until the kernel has ended.
    fn watch(&self, files: &Files, bound: Duration) -> Result<()> {
        let deadline = Instant::now() + bound;
        let mut curtain_up = false;
        loop {
            match self.console.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line == CURTAIN => curtain_up = !curtain_up,
                Ok(line) if curtain_up => say(&format!("    {line}")),
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => {
                    let seen = last_lines(&files.console());
                    bail!("the user-mode kernel hangs ({} s), and was killed: {seen}", bound.as_secs());
                }
            }
        }
    }
}

fn last_lines(file: &Path) -> String {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join(" | ")
}
