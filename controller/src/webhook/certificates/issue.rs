//! Self-issued certificates of the webhook, and the schedule of their rotation.
//!
//! Each certificate has its own CA. The CA's key is dropped after the signature. So no certificate
//! that the API server trusts can be issued later, even with the Secret. A rotation therefore
//! always replaces the CA too. It has several steps, and each step is one write of the Secret:
//!
//! ```text
//!            current        next          trusted (caBundle)
//! issue      A              –             A
//! prepare    A              B             A B       two thirds of A's life have passed
//! prepare    A              B             A B       two thirds of A's life have passed
//! (prepare   B              C             B C)
//! ```
//!
//! So the API servers always trust a certificate before it is served. The previous certificate
//! stays trusted, for replicas that are late.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// Tolerance for API servers whose clocks are behind this one.
const CLOCK_SKEW: Duration = Duration::from_secs(300);

/// A certificate of a TLS server, its private key, and its CA.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Certificate {
    /// PEM.
    pub(super) ca: String,
    /// PEM.
    pub(super) chain: String,
    /// PEM, PKCS #8.
    pub(super) key: String,
    pub(super) issued: Timestamp,
    pub(super) expires: Timestamp,
    /// Its DNS names and addresses.
    pub(super) names: Vec<String>,
}

impl Certificate {
    /// Issues a certificate for these names. The CA's name contains the time, which distinguishes
    /// two CAs in a bundle.
    pub(super) fn issue(
        names: &[String],
        lifetime: Duration,
        now: Timestamp,
    ) -> Result<Certificate, rcgen::Error> {
        // rcgen requires times of the crate `time`, which has no other use here.
        let seconds = Duration::from_secs(u64::try_from(now.as_second()).unwrap_or(0));
        let now_there = rcgen::date_time_ymd(1970, 1, 1) + seconds;
        let (from, until) = (now_there - CLOCK_SKEW, now_there + lifetime);
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        ca.distinguished_name
            .push(DnType::CommonName, format!("trunkline webhook CA {}", now.as_millisecond()));
        (ca.not_before, ca.not_after) = (from, until);
        let ca_key = KeyPair::generate()?;
        let ca_certificate = ca.self_signed(&ca_key)?;

        let mut server = CertificateParams::new(names)?;
        server.distinguished_name.push(DnType::CommonName, "trunkline webhook");
        server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        server.use_authority_key_identifier_extension = true;
        (server.not_before, server.not_after) = (from, until);
        let key = KeyPair::generate()?;
        let certificate = server.signed_by(&key, &Issuer::new(ca, ca_key))?;
        Ok(Certificate {
            ca: ca_certificate.pem(),
            chain: certificate.pem(),
            key: key.serialize_pem(),
            issued: now,
            expires: now + lifetime,
            names: names.to_vec(),
        })
    }

    /// The time at which the next one is issued.
    fn renewal(&self) -> Timestamp {
        let life = self.expires.duration_since(self.issued);
        self.issued + life / 3 * 2
    }

    fn write(&self, prefix: &str, ca: &str, data: &mut BTreeMap<String, ByteString>) {
        let mut put = |key: String, text: &str| data.insert(key, ByteString(text.as_bytes().to_vec()));
        put(ca.to_owned(), &self.ca);
        put(format!("{prefix}.crt"), &self.chain);
        put(format!("{prefix}.key"), &self.key);
        put(format!("{prefix}.issued"), &self.issued.to_string());
        put(format!("{prefix}.expires"), &self.expires.to_string());
        put(format!("{prefix}.names"), &self.names.join("\n"));
    }

    fn read(prefix: &str, ca: &str, data: &BTreeMap<String, ByteString>) -> Option<Certificate> {
        let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok();
        let part = |part: &str| text(&format!("{prefix}.{part}"));
        Some(Certificate {
            ca: text(ca)?,
            chain: part("crt")?,
            key: part("key")?,
            issued: part("issued")?.parse().ok()?,
            expires: part("expires")?.parse().ok()?,
            names: part("names")?.lines().map(str::to_owned).collect(),
        })
    }
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Certificate { issued, expires, names, .. } = self;
        write!(f, "certificate for {names:?}, {issued} to {expires}")
    }
}

/// Content of the Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredCertificates {
    /// The certificate being served.
    pub(super) current: Certificate,
    /// The next certificate to serve.
    pub(super) next: Option<Certificate>,
    /// PEM: the CA of the previous certificate.
    pub(super) previous_ca: Option<String>,
}

impl StoredCertificates {
    /// The Secret's `data`. `tls.crt`, `tls.key` and `ca.crt` have their usual meaning in a Secret
    /// of type `kubernetes.io/tls`.
    pub(super) fn write(&self) -> BTreeMap<String, ByteString> {
        let mut data = BTreeMap::new();
        self.current.write("tls", "ca.crt", &mut data);
        if let Some(next) = &self.next {
            next.write("next", "next-ca.crt", &mut data);
        }
        if let Some(previous) = &self.previous_ca {
            data.insert("previous-ca.crt".to_owned(), ByteString(previous.clone().into_bytes()));
        }
        data
    }

    /// Parses the Secret; `None` if [`StoredCertificates::write`] did not write it.
    pub(super) fn read(data: &BTreeMap<String, ByteString>) -> Option<StoredCertificates> {
        Some(StoredCertificates {
            current: Certificate::read("tls", "ca.crt", data)?,
            next: Certificate::read("next", "next-ca.crt", data),
            previous_ca: data.get("previous-ca.crt").and_then(|pem| String::from_utf8(pem.0.clone()).ok()),
        })
    }

    /// PEM of every CA that the API servers must trust.
    pub(super) fn trusted(&self) -> String {
        let next = self.next.as_ref().map(|next| next.ca.as_str());
        [Some(self.current.ca.as_str()), next, self.previous_ca.as_deref()].into_iter().flatten().collect()
    }
}

/// Parameters for new certificates.
#[derive(Clone, Debug)]
pub(super) struct IssuePolicy {
    /// DNS names and addresses by which the API server calls the webhook.
    pub(super) names: Vec<String>,
    pub(super) lifetime: Duration,
    /// The time from the publication of a CA to the use of its certificate: the delay of the
    /// slowest API server.
    pub(super) overlap: Duration,
}

/// The next step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing before this time.
    Wait(Timestamp),
    /// Wait until the configurations trust the next CA.
    AwaitTrust,
    /// Write this to the Secret.
    Write(Box<StoredCertificates>),
}

/// Computes the next step; `is_trusted`: whether the configurations contain all of
/// [`StoredCertificates::trusted`].
pub(super) fn step(
    kept: Option<&StoredCertificates>,
    policy: &IssuePolicy,
    is_trusted: bool,
    now: Timestamp,
) -> Result<Step, rcgen::Error> {
    let issue = |names: &[String]| Certificate::issue(names, policy.lifetime, now);
    let write = |kept| Ok(Step::Write(Box::new(kept)));
    let Some(kept) = kept else {
        return write(StoredCertificates { current: issue(&policy.names)?, next: None, previous_ca: None });
    };
    let mut names = kept.current.names.clone();
    names.extend(policy.names.iter().filter(|name| !kept.current.names.contains(name)).cloned());
    let is_broken = kept.current.expires <= now || names.len() > kept.current.names.len();
    match &kept.next {
        Some(next) if kept.current.expires <= now && next.expires > now => write(promoted(kept, next)),
        // The new certificate includes the names of other replicas, because their flags may differ
        // during an update.
        _ if is_broken => write(StoredCertificates {
            current: issue(&names)?,
            next: None,
            previous_ca: Some(kept.current.ca.clone()),
        }),
        Some(next) if now < next.issued + policy.overlap => Ok(Step::Wait(next.issued + policy.overlap)),
        Some(_) if !is_trusted => Ok(Step::AwaitTrust),
        Some(next) => write(promoted(kept, next)),
        None if now < kept.current.renewal() => Ok(Step::Wait(kept.current.renewal())),
        None => {
            let next = Some(issue(&policy.names)?);
            write(StoredCertificates { current: kept.current.clone(), next, previous_ca: None })
        }
    }
}

fn promoted(kept: &StoredCertificates, next: &Certificate) -> StoredCertificates {
    StoredCertificates { current: next.clone(), next: None, previous_ca: Some(kept.current.ca.clone()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn policy_for(names: &[&str]) -> IssuePolicy {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        IssuePolicy { names, lifetime: 90 * DAY, overlap: DAY }
    }

    #[track_caller]
    fn written(
        kept: Option<&StoredCertificates>,
        policy: &IssuePolicy,
        is_trusted: bool,
        now: Timestamp,
    ) -> StoredCertificates {
        match step(kept, policy, is_trusted, now).unwrap() {
            Step::Write(kept) => *kept,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn rotation_proceeds_in_steps() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let policy = policy_for(&["hook.kube-system.svc", "127.0.0.1"]);
        let first = written(None, &policy, false, start);
        assert_eq!(first.trusted(), first.current.ca);
        assert_eq!(
            StoredCertificates::read(&first.write()),
            Some(first.clone()),
            "the Secret has the written certificates"
        );
        let still = step(Some(&first), &policy, true, start + 59 * DAY).unwrap();
        assert_eq!(still, Step::Wait(start + 60 * DAY));

        let at = start + 60 * DAY;
        let second = written(Some(&first), &policy, true, at);
        assert_eq!(second.current, first.current, "the served certificate does not change");
        let next = second.next.clone().unwrap();
        assert_eq!(second.trusted(), first.current.ca.clone() + &next.ca);
        assert_eq!(StoredCertificates::read(&second.write()), Some(second.clone()));
        assert_eq!(step(Some(&second), &policy, true, at).unwrap(), Step::Wait(at + DAY));
        assert_eq!(step(Some(&second), &policy, false, at + DAY).unwrap(), Step::AwaitTrust);

        let third = written(Some(&second), &policy, true, at + DAY);
        assert_eq!(third.current, next);
        assert_eq!(third.trusted(), next.ca.clone() + &first.current.ca, "late replicas are still trusted");

        let fourth = written(Some(&third), &policy, true, at + 61 * DAY);
        assert!(!fourth.trusted().contains(&first.current.ca), "two at a time");
    }

    #[test]
    fn new_names_and_expiry_rotate_at_once() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let old = policy_for(&["a"]);
        let first = written(None, &old, false, start);
        // After a new name a certificate is issued at once, for both names. So replicas with
        // different flags agree.
        let named = written(Some(&first), &policy_for(&["b"]), true, start);
        assert_eq!(named.current.names, ["a", "b"]);
        assert_eq!(named.previous_ca, Some(first.current.ca.clone()));
        assert_eq!(step(Some(&named), &old, true, start).unwrap(), Step::Wait(start + 60 * DAY));
        // If a certificate expired while no replica ran, the next step serves the prepared
        // certificate, or a new one if none is prepared.
        let fresh = written(Some(&first), &old, true, start + 91 * DAY);
        assert!(fresh.current.expires > start + 91 * DAY);
        let prepared = written(Some(&first), &old, true, start + 89 * DAY);
        let promoted = written(Some(&prepared), &old, false, start + 90 * DAY);
        assert_eq!(Some(promoted.current), prepared.next);
    }

    #[test]
    fn debug_shows_no_key() {
        let kept = written(None, &policy_for(&["a"]), false, Timestamp::UNIX_EPOCH + 9_999 * DAY);
        let shown = format!("{kept:?}");
        assert!(shown.contains("certificate for [\"a\"]") && !shown.contains("PRIVATE"), "{shown}");
    }
}
