//! Queries of the bench. The agent is queried over HTTP, like by Prometheus and a browser. BIRD is
//! queried over its control socket, like by bird_exporter. FRR's bgpd is queried over the socket of
//! its VTY, like by frr_exporter. Each answer is read to its end and checked.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

/// Timeout of an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// An answer, and its time.
pub(super) struct Answer {
    pub(super) ms: f64,
    pub(super) octets: usize,
    /// The part of the answer that is checked.
    pub(super) text: String,
}

fn timed(ask: impl FnOnce() -> Result<String>) -> Result<Answer> {
    let began = Instant::now();
    let text = ask()?;
    Ok(Answer { ms: began.elapsed().as_secs_f64() * 1e3, octets: text.len(), text })
}

/// Sends a GET to the agent in the thread's network namespace; the time includes the connection.
pub(super) fn agent(path: &str) -> Result<Answer> {
    let answer = timed(|| {
        let mut stream = TcpStream::connect("127.0.0.1:9473")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes(),
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    })?;
    ensure!(answer.text.starts_with("HTTP/1.1 200 "), "GET {path}: {:.300}", answer.text);
    Ok(answer)
}

/// The value of a series of a scrape.
pub(super) fn value(scrape: &str, series: &str) -> Option<f64> {
    scrape.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

/// BIRD's `show protocols all`: the counters of its peers.
pub(super) fn bird() -> Result<Answer> {
    let answer = timed(|| {
        let mut stream = UnixStream::connect("/run/bird/bird.ctl").context("BIRD's control socket")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"show protocols all\n")?;
        // The end of an answer is a line of code 0000.
        read_until(&mut stream, |text| text.windows(6).any(|six| six == b"\n0000 "))
    })?;
    ensure!(answer.text.contains("Established"), "BIRD has no session: {}", answer.text);
    Ok(answer)
}

/// FRR's `show bgp ipv4 unicast summary json`: the counters of its peers.
pub(super) fn frr() -> Result<Answer> {
    let answer = timed(|| {
        let mut stream = UnixStream::connect("/run/frr/bgpd.vty").context("the VTY of FRR's bgpd")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"show bgp ipv4 unicast summary json\0")?;
        // The end of an answer is three zeros and a status.
        read_until(&mut stream, |text| text.len() > 4 && text[text.len() - 4..text.len() - 1] == [0, 0, 0])
    })?;
    ensure!(answer.text.contains("\"Established\""), "FRR has no session: {}", answer.text);
    Ok(answer)
}

fn read_until(stream: &mut UnixStream, is_end: impl Fn(&[u8]) -> bool) -> Result<String> {
    let mut text = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    while !is_end(&text) {
        let read = stream.read(&mut buffer).context("no answer")?;
        ensure!(read > 0, "the answer is incomplete: {}", String::from_utf8_lossy(&text));
        text.extend_from_slice(&buffer[..read]);
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::value;

    #[test]
    fn a_series_is_found_by_its_whole_name() {
        let scrape = "# HELP a b\na_total 7\na{b=\"c\"} 0.5\na 9\n";
        assert_eq!(value(scrape, "a"), Some(9.0));
        assert_eq!(value(scrape, "a{b=\"c\"}"), Some(0.5));
        assert_eq!(value(scrape, "b"), None);
    }
}
