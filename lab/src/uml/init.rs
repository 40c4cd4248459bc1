//! The first process of the user-mode kernel. It makes the machine's files usable without write
//! access, runs the order's command, reaps orphans, and halts the kernel.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, WaitOptions, wait};
use rustix::system::{RebootCommand, reboot};

use super::link::{DEVICE, INSIDE, LENGTH};
use super::{CURTAIN, Files, Order};
use crate::shell::{cmd, run};

/// Records the state of a command that takes too long, before it is killed: the processes, and the
/// addresses, rules and routes of every namespace. The argument is the command's process.
const OVERDUE: &str = r#"
exec 2>&1
ps -eo pid,ppid,stat,wchan:20,etime,args
dmesg | tail -50
for ns in $(ls /run/netns); do
    for what in addr rule "-6 rule" "route show table all" "-6 route show table all" neigh; do
        echo "== $ns: $what"
        ip -n "$ns" $what
    done
done
kill -KILL "$1"
"#;

/// Runs the order and halts the kernel. Returns only if it is not the first process.
pub(crate) fn init(order: &Path) -> Result<()> {
    if std::process::id() != 1 {
        bail!("the user-mode kernel starts user-mode-kernel init; see `cargo lab uml`");
    }
    if let Err(e) = obey(order) {
        eprintln!("error: {e:#}");
    }
    rustix::fs::sync();
    Ok(reboot(RebootCommand::PowerOff)?)
}

fn obey(order: &Path) -> Result<()> {
    let files = Files(order.parent().context("the order's folder")?.to_owned());
    let order: Order = serde_json::from_str(&std::fs::read_to_string(order)?)?;
    mounts(&order).context("mounts")?;
    run(&mut cmd("ip", ["link", "set", "lo", "up"]))?;
    if order.linked {
        let own = format!("{INSIDE}/{LENGTH}");
        run(&mut cmd("ip", ["addr", "add", &own, "dev", DEVICE]))?;
        run(&mut cmd("ip", ["link", "set", DEVICE, "up"]))?;
    }
    let (program, arguments) = order.command.split_first().context("an order without a command")?;
    eprintln!("{CURTAIN}");
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(&order.environment)
        .current_dir(&order.folder)
        .stdin(Stdio::null())
        .stdout(File::create(files.stdout())?);
    let child = command.spawn().with_context(|| program.clone())?;
    let child = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("no process")?;
    let overdue = File::create(files.overdue())?;
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(order.bound));
        let mut look = cmd("sh", ["-c", OVERDUE, "sh", &child.as_raw_nonzero().to_string()]);
        // There is no wait here, because the first process reaps every child. If the command cannot
        // be started, the time limit outside of the kernel applies.
        let _started = look.stdout(overdue).spawn();
    });
    let status = loop {
        match wait(WaitOptions::empty())? {
            Some((pid, status)) if pid == child => break status,
            _ => {}
        }
    };
    eprintln!("{CURTAIN}");
    if let Some(code) = status.exit_status() {
        std::fs::write(files.status(), code.to_string())?;
    }
    Ok(())
}

fn mounts(order: &Order) -> Result<()> {
    let mount = |kind: &str, on: &str, options: &str| -> Result<()> {
        run(&mut cmd("mount", ["-t", kind, "-o", options, "lab", on])).map(drop)
    };
    mount("proc", "/proc", "defaults")?;
    mount("sysfs", "/sys", "defaults")?;
    for (kind, on) in
        [("devpts", "/dev/pts"), ("tmpfs", "/dev/shm"), ("tmpfs", "/run"), ("tmpfs", "/var/log")]
    {
        std::fs::create_dir_all(on)?;
        mount(kind, on, "defaults")?;
    }
    // Existing files stay visible, because the working tree may be below /tmp.
    for (number, on) in [Path::new("/tmp"), &order.scratch].into_iter().enumerate() {
        let (upper, work) = (format!("/run/uml/{number}/upper"), format!("/run/uml/{number}/work"));
        std::fs::create_dir_all(&upper)?;
        std::fs::create_dir_all(&work)?;
        let on = text(on)?;
        mount("overlay", on, &format!("lowerdir={on},upperdir={upper},workdir={work}"))?;
    }
    for folder in &order.writable {
        mount("hostfs", text(folder)?, text(folder)?)?;
    }
    Ok(())
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not text", path.display()))
}
