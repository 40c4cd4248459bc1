//! Detection of secrets by their shape in a text.
//!
//! The text is processed line by line, except for private keys, which have many lines. After a name
//! like `password` and a `:` or `=`, the value is removed. The value ends at the closing quote.
//! Without quotes, it ends at the next blank after `=`. After a bare `name:` it ends at the end of
//! the line, because it may be YAML text with blanks. A message such as `password: the key has 81
//! bytes` is removed too; this is acceptable.

use super::redact::REDACTED;

/// Names, in lower case, before a secret.
const NAMES: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "private_key",
    "private-key",
    "privatekey",
    "api_key",
    "api-key",
    "apikey",
    "key-data",
    "authorization",
];
/// Names of this kind whose values are the place of a secret, or a number.
const HARMLESS: &[&str] = &["passwordfile", "passwordsecretref"];

/// Removes secrets by shape.
pub(super) fn hide(text: &str) -> String {
    let text = private_keys(text);
    let mut clean = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let body = line.trim_end_matches(['\n', '\r']);
        let hidden = assignments(body).map(|line| rest(&line)).unwrap_or_else(|| rest(body));
        clean.push_str(&hidden);
        clean.push_str(&line[body.len()..]);
    }
    clean
}

/// Removes the file lines that errors quote, such as ` 3 | password: hunter2`. They include
/// comments, and no rule can find secrets in comments. An agent logs such an error if its
/// agent.yaml is invalid.
pub(super) fn hide_quoted_lines(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let body = line.trim_end_matches(['\n', '\r']);
        // Journald's prefix precedes the program's text.
        let begins = body.find("]: ").map_or(0, |end| end + 3);
        let after = body[begins..].trim_start();
        let bar = after.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
        let quoted = after.starts_with(|c: char| c.is_ascii_digit()) && bar.starts_with('|');
        if quoted {
            clean.push_str(&body[..body.len() - bar.len()]);
            clean.push_str("| ");
            clean.push_str(REDACTED);
        } else {
            clean.push_str(body);
        }
        clean.push_str(&line[body.len()..]);
    }
    clean
}

/// Removes the shapes without a name before them.
fn rest(line: &str) -> String {
    let mut line = std::borrow::Cow::Borrowed(line);
    if line.contains("://") && line.contains('@') {
        line = user_information(&line).into();
    }
    if line.contains("eyJ") || line.to_ascii_lowercase().contains("bearer ") {
        line = words(&line).into();
    }
    line.into_owned()
}

/// Removes PEM private keys, up to their end or the end of the text.
fn private_keys(text: &str) -> std::borrow::Cow<'_, str> {
    const BEGIN: &str = "-----BEGIN ";
    const KEY: &str = "PRIVATE KEY-----";
    let (mut clean, mut left) = (String::new(), text);
    while let Some(start) = left.find(KEY) {
        let begin = left[..start].rfind(BEGIN).unwrap_or(start);
        clean.push_str(&left[..begin]);
        clean.push_str(REDACTED);
        left = &left[start + KEY.len()..];
        left = left.find(KEY).map_or("", |end| &left[end + KEY.len()..]);
    }
    if clean.is_empty() {
        return text.into();
    }
    clean.push_str(left);
    clean.into()
}

/// Removes the values after names of secrets; none if there is no such name.
fn assignments(line: &str) -> Option<String> {
    let lower = line.to_ascii_lowercase();
    let (mut clean, mut shown, mut at) = (String::new(), 0, 0);
    while let Some(start) =
        NAMES.iter().filter_map(|name| lower[at..].find(name)).min().map(|found| at + found)
    {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        let end = start + lower[start..].find(|c| !is_name(c)).unwrap_or(lower.len() - start);
        let begin = lower[..start]
            .rfind(|c| !is_name(c))
            .map_or(0, |before| before + lower[before..].chars().next().map_or(1, char::len_utf8));
        at = end;
        if HARMLESS.contains(&&lower[begin..end]) {
            continue;
        }
        let Some((from, to)) = value(line, end, lower[start..].starts_with("authorization")) else {
            continue;
        };
        clean.push_str(&line[shown..from]);
        clean.push_str(REDACTED);
        (shown, at) = (to, to);
    }
    if shown == 0 {
        return None;
    }
    clean.push_str(&line[shown..]);
    Some(clean)
}

/// The position of the value for the name that ends at `end`.
fn value(line: &str, end: usize, whole: bool) -> Option<(usize, usize)> {
    let after = &line[end..];
    let sign = end + after.find(|c: char| !" \t\\\"'".contains(c))?;
    let quoted_name = line[end..sign].contains(['"', '\'']);
    let equals = match line[sign..].chars().next()? {
        '=' => true,
        ':' => false,
        _ => return None,
    };
    let mut start = sign + 1 + usize::from(line[sign + 1..].starts_with('>'));
    start += line[start..].find(|c: char| !c.is_whitespace())?;
    let value = &line[start..];
    if value.starts_with(REDACTED) {
        return None;
    }
    // The quote may be `\"`, if the whole text was quoted.
    let quote_at = value.find(|c| c != '\\').unwrap_or(0);
    let quote = value[quote_at..].chars().next().filter(|c| "\"'".contains(*c));
    if let Some(quote) = quote {
        let open = start + quote_at + 1;
        let close =
            closing(&line[open..], &value[..quote_at], quote).map_or(line.len(), |found| open + found);
        return (close > open).then_some((open, close));
    }
    let length = match (whole || value.starts_with(['[', '{']), equals, quoted_name) {
        (true, ..) | (false, false, false) => value.len(),
        (false, true, _) => value.find(|c: char| c.is_whitespace() || c == '"').unwrap_or(value.len()),
        (false, false, true) => {
            value.find(|c: char| c.is_whitespace() || ",}]".contains(c)).unwrap_or(value.len())
        }
    };
    (length > 0).then_some((start, start + length))
}

/// The position of the closing quote. `escapes` and `quote` are the opening quote.
fn closing(text: &str, escapes: &str, quote: char) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + text[from..].find(quote)?;
        let before = text[..at].len() - text[..at].trim_end_matches('\\').len();
        // The closing quote has as many escapes as the opening one; inner quotes have more.
        if before <= escapes.len() || quote == '\'' {
            return Some(at - before.min(escapes.len()));
        }
        from = at + 1;
    }
}

/// Removes the user information of URLs: `https://user:password@host`.
fn user_information(line: &str) -> String {
    let (mut clean, mut left) = (String::new(), line);
    while let Some(at) = left.find("://") {
        let (before, after) = left.split_at(at + 3);
        clean.push_str(before);
        let end = after.find(|c: char| c.is_whitespace() || "/\"'?#".contains(c)).unwrap_or(after.len());
        left = match after[..end].rfind('@') {
            Some(host) => {
                clean.push_str(REDACTED);
                &after[host..]
            }
            None => after,
        };
    }
    clean + left
}

/// Removes the word after `Bearer`, and JSON web tokens.
fn words(line: &str) -> String {
    let mut bearer = false;
    let pieces = line.split_inclusive(|c: char| c.is_whitespace() || "\"',;()".contains(c));
    let clean = pieces.map(|piece| {
        let word = piece.trim_end_matches(|c: char| c.is_whitespace() || "\"',;()".contains(c));
        let is_token = word.find("eyJ").is_some_and(|at| word[at..].matches('.').count() >= 2);
        let hide = !word.is_empty() && (bearer || is_token);
        bearer = word.to_ascii_lowercase().ends_with("bearer");
        if hide { format!("{REDACTED}{}", &piece[word.len()..]) } else { piece.to_owned() }
    });
    clean.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_after_the_name_of_a_secret_is_removed() {
        for (text, clean) in [
            ("password: two words\nasn: 1\n", "password: [redacted]\nasn: 1\n"),
            ("  - {asn: 1, password: hunter2}", "  - {asn: 1, password: [redacted]"),
            ("bgpPassword=hunter2 attachment=c1/eth0", "bgpPassword=[redacted] attachment=c1/eth0"),
            ("{\"token\":\"hun\\\"ter2\",\"asn\":1}", "{\"token\":\"[redacted]\",\"asn\":1}"),
            (
                "\"{\\\"token\\\":\\\"hunter2\\\",\\\"asn\\\":1}\"",
                "\"{\\\"token\\\":\\\"[redacted]\\\",\\\"asn\\\":1}\"",
            ),
            ("{\"secret\": 4711, \"asn\": 1}", "{\"secret\": [redacted], \"asn\": 1}"),
            ("password: 'hunter2'", "password: '[redacted]'"),
            ("password: \"hunter2", "password: \"[redacted]"),
            ("\"passwords\":[[\"n\",0,\"hunter2\"]]", "\"passwords\":[redacted]"),
            ("Authorization: Basic aHVudGVyMg==", "Authorization: [redacted]"),
            ("said Bearer hunter2, then", "said Bearer [redacted], then"),
            ("t eyJhbGciOi.eyJzdWIi.c2ln end", "t [redacted] end"),
            ("proxy http://me:hunter2@proxy:3128/ is down", "proxy http://[redacted]@proxy:3128/ is down"),
            ("ä password=hunter2", "ä password=[redacted]"),
            (
                "a\n-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----\nb",
                "a\n[redacted]\nb",
            ),
            ("-----BEGIN PRIVATE KEY-----\nhunter2", "[redacted]"),
        ] {
            assert_eq!(hide(text), clean, "{text}");
            assert_eq!(hide(clean), clean, "again: {text}");
        }
    }

    #[test]
    fn quoted_file_lines_are_removed() {
        let error = "error: line 2 column 1: unknown field `a`\n --> <input>:2:1\n  |\n1 | # hunter2\n12 | a: hunter2\n   | ^ unknown\n";
        let clean = "error: line 2 column 1: unknown field `a`\n --> <input>:2:1\n  |\n1 | [redacted]\n12 | [redacted]\n   | ^ unknown\n";
        assert_eq!(hide_quoted_lines(error), clean);
        let (before, after) = (
            "2026-11-22T10:00:00Z node1 trunkline[7]:  3 | # hunter2",
            "node1 trunkline[7]:  3 | [redacted]",
        );
        assert!(hide_quoted_lines(before).ends_with(after), "{}", hide_quoted_lines(before));
        let other = "2026-11-22T10:00:00Z node1 trunkline[7]: 3 routes | 4 rules";
        assert_eq!(hide_quoted_lines(other), other);
    }

    #[test]
    fn text_without_secrets_is_unchanged() {
        for text in [
            "cannot connect: no answer for 10 s: it is down or filtered, or the passwords differ (a wrong TCP-MD5 password looks just like this: compare both sides)",
            "passwordFile: /etc/trunkline/tor.key",
            "\"passwordSecretRef\": {\"name\": \"keys\"",
            "trunkline_peer_up{peer=\"10.0.0.1\"} 1",
            "https://10.0.0.1:6443 connected, mail me@example.org",
            "password: \n",
            "password",
            "",
        ] {
            assert_eq!(hide(text), text);
        }
    }
}
