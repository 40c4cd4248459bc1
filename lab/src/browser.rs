//! A headless Chromium on a node of a lab. A test uses it like a person does: open, look, type,
//! press, take a picture.
//!
//! It uses the DevTools protocol over two pipes (`--remote-debugging-pipe`: JSON messages that end
//! in NUL), so no port is open, and no program waits for a port. Errors of the page's scripts and
//! refusals of the browser (Content-Security-Policy) are recorded: [`Browser::faults`].

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::Child;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::host::Host;
use crate::shell::{Seen, cmd, run, wait_for};

/// Debian's packages: the browser, and the fonts for the pictures.
pub(crate) const PACKAGES: [&str; 3] = ["chromium", "fonts-inter", "fonts-jetbrains-mono"];

/// Time limit for each action, on a machine with other load.
const PATIENCE: Duration = Duration::from_secs(60);

/// Size and kind of the window.
#[derive(Clone, Copy)]
pub(crate) struct Screen {
    pub width: u32,
    pub height: u32,
    pub dark: bool,
    pub phone: bool,
}

pub(crate) const DESK: Screen = Screen { width: 1440, height: 1200, dark: false, phone: false };

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    requests: File,
    answers: mpsc::Receiver<Value>,
    session: String,
    last: u64,
    faults: Vec<String>,
}

impl Browser {
    /// Starts the browser on a node. `folder` is for its profile and its pipes only.
    pub(crate) fn start(host: &Host, folder: &Path) -> Result<Browser> {
        std::fs::create_dir_all(folder)?;
        let (requests, replies) = (folder.join("requests"), folder.join("replies"));
        let _old = (std::fs::remove_file(&requests), std::fs::remove_file(&replies));
        run(&mut cmd("mkfifo", [&requests, &replies]))?;
        let line = "exec chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --no-first-run \
                    --user-data-dir=\"$1/profile\" --remote-debugging-pipe about:blank 3<\"$1/requests\" 4>\"$1/replies\"";
        let folder = folder.to_str().context("the folder's name is not text")?;
        let child = host.daemon("chromium.log", "sh", &["-c", line, "sh", folder], &[("HOME", folder)])?;
        // The shell opens its ends in this order, and each open waits for the other end.
        let requests = File::options().write(true).open(&requests)?;
        let replies = BufReader::new(File::open(&replies)?);
        let (sender, answers) = mpsc::channel();
        std::thread::spawn(move || {
            for message in replies.split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else { continue };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser =
            Browser { child, requests, answers, session: String::new(), last: 0, faults: Vec::new() };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }))?;
        let wanted = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", wanted)?;
        browser.session = attached["sessionId"].as_str().context("no session")?.to_owned();
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, json!({}))?;
        }
        Ok(browser)
    }

    fn call(&mut self, method: &str, parameters: Value) -> Result<Value> {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": parameters });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let mut octets = serde_json::to_vec(&message)?;
        octets.push(0);
        self.requests.write_all(&octets).with_context(|| format!("the browser does not answer {method}"))?;
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let mut answer = self
                .answers
                .recv_timeout(left)
                .with_context(|| format!("the browser does not answer {method}; see chromium.log"))?;
            if answer["id"] == self.last {
                ensure!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return Ok(answer["result"].take());
            }
            self.note(&answer);
        }
    }

    fn note(&mut self, event: &Value) {
        let fault = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => &event["params"]["exceptionDetails"],
            // The log also contains closed connections. They may be part of a test, so they are no
            // fault.
            Some("Log.entryAdded") if event["params"]["entry"]["source"] != "network" => {
                &event["params"]["entry"]
            }
            _ => return,
        };
        self.faults.push(fault.to_string());
    }

    /// Errors in the page's scripts, and refusals of the browser.
    pub(crate) fn faults(&self) -> &[String] {
        &self.faults
    }

    /// Changes the window.
    pub(crate) fn screen(&mut self, screen: Screen) -> Result<()> {
        let scale = if screen.phone { 2 } else { 1 };
        let size = json!({ "width": screen.width, "height": screen.height, "deviceScaleFactor": scale, "mobile": screen.phone });
        self.call("Emulation.setDeviceMetricsOverride", size)?;
        let scheme = if screen.dark { "dark" } else { "light" };
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", media).map(drop)
    }

    /// Opens an address.
    pub(crate) fn open(&mut self, address: &str) -> Result<()> {
        self.call("Page.navigate", json!({ "url": address })).map(drop)
    }

    /// The value of an expression in the page.
    pub(crate) fn look(&mut self, expression: &str) -> Result<Value> {
        let wanted = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.call("Runtime.evaluate", wanted)?;
        if !answer["exceptionDetails"].is_null() {
            bail!("{expression}: {}", answer["exceptionDetails"]);
        }
        Ok(answer["result"]["value"].clone())
    }

    /// Waits until the text of the selected element has these words.
    pub(crate) fn wait_text(&mut self, selector: &str, words: &[&str]) -> Result<String> {
        let expression = format!("document.querySelector({})?.innerText ?? ''", json!(selector));
        wait_for(&format!("{selector} to contain {words:?}"), PATIENCE, || {
            let text = self.look(&expression)?.as_str().unwrap_or_default().to_owned();
            let all = words.iter().all(|word| text.contains(word));
            Ok(if all { Seen::Yes(text) } else { Seen::NotYet(format!("{text:?}")) })
        })
    }

    /// Types into the focused element.
    pub(crate) fn write(&mut self, text: &str) -> Result<()> {
        self.call("Input.insertText", json!({ "text": text })).map(drop)
    }

    /// Takes a picture of the window, as PNG.
    pub(crate) fn picture(&mut self, into: &Path) -> Result<()> {
        // Two frames later, every change is drawn.
        self.look(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))",
        )?;
        let answer = self.call("Page.captureScreenshot", json!({ "format": "png" }))?;
        let png = decode(answer["data"].as_str().unwrap_or_default()).context("the picture is no base64")?;
        ensure!(png.starts_with(b"\x89PNG"), "{}: the browser returned no PNG", into.display());
        std::fs::write(into, png).with_context(|| into.display().to_string())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _gone = self.call("Browser.close", json!({}));
        let _ended = (self.child.kill(), self.child.wait());
    }
}

/// Base64 (RFC 4648 §4).
fn decode(text: &str) -> Option<Vec<u8>> {
    let mut octets = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0u32, 0);
    for letter in text.trim_end_matches('=').bytes() {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            octets.push((bits >> count) as u8);
        }
    }
    Some(octets)
}

#[cfg(test)]
mod tests {
    use super::decode;

    #[test]
    fn examples_of_the_rfc_are_decoded() {
        for (text, octets) in
            [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9vYmFy", "foobar"), ("Pz8/Pj4+", "???>>>")]
        {
            assert_eq!(decode(text).as_deref(), Some(octets.as_bytes()));
        }
        assert_eq!(decode("Zg!="), None);
    }
}
