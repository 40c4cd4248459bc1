//! The page's files. They are part of the binary: HTML, CSS and JavaScript as written, without a
//! build step and without downloads from other hosts.
//!
//! A browser caches them and revalidates each time (ETag, a hash of the octets). So the browser
//! detects another version of the agent at once, and an unchanged file is not sent twice.

use std::hash::{DefaultHasher, Hash, Hasher};

use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode};
use trunkline_daemon::http::{Body, whole};

/// A file and the path that it is served at.
struct Asset {
    path: &'static str,
    kind: &'static str,
    text: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

const ASSETS: &[Asset] = &[
    Asset { path: "/", kind: HTML, text: include_str!("assets/index.html") },
    Asset { path: "/page/page.css", kind: CSS, text: include_str!("assets/page.css") },
    Asset { path: "/page/mark.svg", kind: SVG, text: include_str!("assets/mark.svg") },
    Asset { path: "/page/theme.js", kind: SCRIPT, text: include_str!("assets/theme.js") },
    Asset { path: "/page/app.js", kind: SCRIPT, text: include_str!("assets/app.js") },
    Asset { path: "/page/dom.js", kind: SCRIPT, text: include_str!("assets/dom.js") },
    Asset { path: "/page/live.js", kind: SCRIPT, text: include_str!("assets/live.js") },
    Asset { path: "/page/spark.js", kind: SCRIPT, text: include_str!("assets/spark.js") },
    Asset { path: "/page/overview.js", kind: SCRIPT, text: include_str!("assets/overview.js") },
    Asset { path: "/page/peers.js", kind: SCRIPT, text: include_str!("assets/peers.js") },
    Asset { path: "/page/routes.js", kind: SCRIPT, text: include_str!("assets/routes.js") },
    Asset { path: "/page/pods.js", kind: SCRIPT, text: include_str!("assets/pods.js") },
    Asset { path: "/page/services.js", kind: SCRIPT, text: include_str!("assets/services.js") },
    Asset { path: "/page/events.js", kind: SCRIPT, text: include_str!("assets/events.js") },
];

/// The file at this path.
pub(super) fn serve(head: &Parts) -> Option<Response<Body>> {
    let asset = ASSETS.iter().find(|asset| asset.path == head.uri.path())?;
    let tag = tag(asset.text);
    let known = head.headers.get(IF_NONE_MATCH).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_known =
        known.split(',').any(|one| one.trim().trim_start_matches("W/") == tag || one.trim() == "*");
    let mut response = Response::new(whole(if is_known { "" } else { asset.text }));
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(asset.kind));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(ETAG, tag);
    }
    Some(response)
}

fn tag(text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks for content that the page's policy forbids: inline code, and code from other hosts.
    #[test]
    fn no_inline_code_and_no_foreign_resource() {
        let html = ASSETS[0].text;
        for tag in html.split("<script").skip(1) {
            assert!(tag.trim_start().starts_with("src=\"/page/") || tag.contains("src=\"/page/"), "{tag}");
            assert_eq!(tag.split('>').nth(1).map(|body| body.starts_with("</script")), Some(true), "{tag}");
        }
        for asset in ASSETS {
            for barred in [
                "style=\"",
                " onclick=",
                "javascript:",
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
            ] {
                assert!(!asset.text.contains(barred), "{}: {barred}", asset.path);
            }
            let elsewhere = asset.text.replace("http://www.w3.org/", "");
            assert!(!elsewhere.contains("http://") && !elsewhere.contains("https://"), "{}", asset.path);
        }
    }

    #[test]
    fn every_script_that_is_imported_is_served() {
        for asset in ASSETS.iter().filter(|asset| asset.kind == SCRIPT) {
            for import in asset.text.lines().filter(|line| line.starts_with("import ")) {
                let name = import.split('"').nth(1).unwrap().trim_start_matches("./");
                assert!(ASSETS.iter().any(|other| other.path == format!("/page/{name}")), "{import}");
            }
        }
    }
}
