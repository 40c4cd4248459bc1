//! Rate limits of the interface: the capability `bandwidth`, as in the reference plugin of that
//! name, or else the pod's annotations, as in Kubernetes.
//!
//! A runtime that derives the capability from the annotations has no value for the burst, and
//! writes the largest number of 31 or 32 bits. With such a burst, a quarter or half a gigabyte
//! would pass without a limit, so the plugin ignores this value.

use serde_json::{Map, Value};
use trunkline_api::attach::{Code, Failure};
use trunkline_api::bandwidth::{Bandwidth, RateLimit};
use trunkline_api::names::annotation;

use crate::configuration::invalid;

const FIELD: &str = "runtimeConfig.bandwidth";
/// The burst in bits that dockershim, CRI-O and containerd write if it was not chosen.
const NO_BURST: [u64; 2] = [i32::MAX as u64, u32::MAX as u64];

/// The limits of a runtime's configuration; `annotation` looks up the pod's annotations.
pub(crate) fn bandwidth(
    runtime: Option<&Map<String, Value>>,
    annotation: impl Fn(&str) -> Option<String>,
) -> Result<Bandwidth, Failure> {
    let limits = runtime.and_then(|runtime| runtime.get("bandwidth")).filter(|limits| !limits.is_null());
    let capable = limits.map(capability).transpose()?.unwrap_or_default();
    if !capable.is_empty() {
        return Ok(capable);
    }
    let limit = |name: &str| {
        annotation(name)
            .map(|text| {
                let wrong = |why| invalid(name, format!("`{text}` {why}: write bits per second such as 10M"));
                let rate = quantity(&text).ok_or_else(|| wrong("is not a quantity"))?;
                if rate < RateLimit::MIN_RATE {
                    return Err(wrong("is less than 1k"));
                }
                Ok(RateLimit { rate, burst: None })
            })
            .transpose()
    };
    Ok(Bandwidth {
        ingress: limit(annotation::INGRESS_BANDWIDTH)?,
        egress: limit(annotation::EGRESS_BANDWIDTH)?,
    })
}

fn capability(value: &Value) -> Result<Bandwidth, Failure> {
    let Value::Object(keys) = value else { return Err(invalid(FIELD, "it is not a JSON object")) };
    const KEYS: [&str; 4] = ["ingressRate", "ingressBurst", "egressRate", "egressBurst"];
    let empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    if let Some((key, _)) = keys.iter().find(|(key, value)| !KEYS.contains(&key.as_str()) && !empty(value)) {
        let message = format!("{FIELD}.{key}: not known: write {}", KEYS.join(" or "));
        return Err(Failure::new(Code::UnsupportedField, message));
    }
    let bits = |key: &str| match keys.get(key) {
        None | Some(Value::Null) => Ok(0),
        Some(value) => value
            .as_u64()
            .ok_or_else(|| invalid(&format!("{FIELD}.{key}"), format!("{value} is not a number of bits"))),
    };
    let limit = |rate_key: &str, burst_key: &str| {
        let (rate, burst) = (bits(rate_key)?, bits(burst_key)?);
        let (rate_field, burst_field) = (format!("{FIELD}.{rate_key}"), format!("{FIELD}.{burst_key}"));
        match (rate, burst) {
            (0, 0) => Ok(None),
            (0, _) => {
                Err(invalid(&rate_field, format!("if {burst_key} is set, {rate_key} must also be set")))
            }
            (rate, _) if rate < RateLimit::MIN_RATE => Err(invalid(
                &rate_field,
                format!("{rate} is less than {} bits per second", RateLimit::MIN_RATE),
            )),
            (_, burst) if burst > RateLimit::MAX_BURST => Err(invalid(
                &burst_field,
                format!("{burst} is more than 4 GB, which is {} bits", RateLimit::MAX_BURST),
            )),
            (rate, burst) => {
                let burst = Some(burst).filter(|burst| *burst != 0 && !NO_BURST.contains(burst));
                Ok(Some(RateLimit { rate, burst }))
            }
        }
    };
    Ok(Bandwidth {
        ingress: limit("ingressRate", "ingressBurst")?,
        egress: limit("egressRate", "egressBurst")?,
    })
}

/// A Kubernetes quantity of 0 or more, rounded up: `10M`, `1.5Gi`, `1e6`.
fn quantity(text: &str) -> Option<u64> {
    let end =
        text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at_checked(end)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.len() > 18 {
        return None;
    }
    const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    const DECIMAL: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    let place = |table: &[&str]| table.iter().position(|entry| *entry == suffix);
    let factor = if let Some(place) = place(&BINARY) {
        1_u128 << (10 * (place + 1))
    } else if let Some(place) = place(&DECIMAL) {
        1000_u128.pow(u32::try_from(place).ok()?)
    } else {
        let exponent = suffix.strip_prefix(['e', 'E'])?.parse::<u32>().ok()?;
        10_u128.checked_pow(exponent)?
    };
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    u64::try_from(digits.checked_mul(factor)?.div_ceil(scale)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities() {
        for (text, value) in [
            ("0", 0),
            ("1", 1),
            ("10M", 10_000_000),
            ("1k", 1000),
            ("1.5G", 1_500_000_000),
            (".5k", 500),
            ("1.0001k", 1001),
            ("1Ki", 1024),
            ("2Mi", 2 << 20),
            ("1e6", 1_000_000),
            ("1E3", 1000),
            ("1E", 1_000_000_000_000_000_000),
        ] {
            assert_eq!(quantity(text), Some(value), "{text}");
        }
        for text in ["", ".", "M", "10 M", "10Mbit", "-1", "1.2.3", "1e", "100E", "1e40", "1é"] {
            assert_eq!(quantity(text), None, "{text}");
        }
    }
}
